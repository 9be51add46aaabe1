"""Decide again what was decided: at each accepted proposal, on the state that it was made on, and compare.

A proposal says on how many records it is based. Others may have been folded between those and the proposal itself, so
the ledger is looked through first for what each accepted proposal is based on, and the fold then decides at just those
places. It goes on with what is recorded: one difference does not hide those that follow.

Deciding here has no memory (`streamsched.scheduling.memory`). A scheduler's memory spares it work and must change no
decision; without one, a verification shows that too. It is paid for only where something was proposed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json

from streamsched.errors import WireError
from streamsched.model.commands import Effects
from streamsched.model.events import Fact, ProposedPlacement, ProposedReservation, Record, RoundProposed
from streamsched.model.ledger import Ledger
from streamsched.model.policy import Scheme
from streamsched.replay.replayer import Progress, fold, skipped_cursors
from streamsched.replay.story import Chronicle, Happening
from streamsched.scheduling.schemes import decide
from streamsched.state.cluster import ClusterState
from streamsched.wire import codec

_PROPOSAL_MARK = b'"round_proposed"'
#: What whoever appended a proposal may have added, and no decision has.
_ENVELOPE = dict.fromkeys(Fact.model_fields)

_Item = ProposedPlacement | ProposedReservation


class Parting(BaseModel):
    """One field in which two proposals differ.

    Attributes:
        item: Which item, such as ``placement 2``; ``proposal`` for the proposal itself.
        workload: The workload that the item is about, or either of the two.
        field: What differs in it.
        recorded: What the ledger has, as JSON; None where it has no such item.
        derived: What is decided now, as JSON; None where nothing such is.
    """

    model_config = ConfigDict(frozen=True)

    item: str
    workload: str | None
    field: str
    recorded: str | None
    derived: str | None


class Difference(BaseModel):
    """A recorded proposal that is not what is decided now.

    Attributes:
        cursor: Where it is recorded.
        at_ms: The ledger's time when it was made.
        based_on: How many records it was made on: with `--at` of one less, every question is answered as of then.
        scheme: Who decided, by the policy in force then; None where the proposal names records that come after it.
        recorded: What the ledger has.
        derived: What is decided now; None where nothing is.
        partings: Where they part, in the order of the items.
        workload: The first workload that is decided about otherwise, where there is one.
        story: What had happened to it.
    """

    model_config = ConfigDict(frozen=True)

    cursor: int
    at_ms: int
    based_on: int
    scheme: Scheme | None
    recorded: RoundProposed
    derived: RoundProposed | None
    partings: tuple[Parting, ...]
    workload: str | None
    story: tuple[Happening, ...] = ()


class Verification(BaseModel):
    """What deciding again came to.

    Attributes:
        compared: Accepted proposals that were decided again.
        differences: Those of them that came out otherwise.
        overtaken: Proposals that closed no round, since another had: late ones, which nobody obeyed.
        first: The first difference; None when there is none.
    """

    model_config = ConfigDict(frozen=True)

    compared: int
    differences: int
    overtaken: int
    first: Difference | None

    @property
    def is_equal(self) -> bool:
        """Whether everything was decided as it is recorded."""
        return self.differences == 0


async def verify(
    ledger: Ledger, *, until_cursor: int | None = None, at_ms: int | None = None, progress: Progress | None = None
) -> Verification:
    """Decide again at every accepted proposal of a ledger; see `fold` for the arguments and what is raised."""
    verifier = await Verifier.of(ledger)
    await fold(ledger, until_cursor=until_cursor, at_ms=at_ms, observe=verifier.observe, progress=progress)
    return await verifier.close(ledger)


class Verifier:
    """Decides again while a ledger is folded from its beginning. Pass `observe` to `fold`."""

    def __init__(self, based_on: frozenset[int]) -> None:
        """Begin at an empty state.

        Args:
            based_on: After how many records something was decided.
        """
        self._based_on = based_on
        self._derived: dict[int, _Derived] = {}
        self._closed_round = 0
        self._compared = self._differences = self._overtaken = 0
        self._first: Difference | None = None

    @classmethod
    async def of(cls, ledger: Ledger) -> Verifier:
        """Look through a ledger for what its accepted proposals are based on."""
        skipped = await skipped_cursors(ledger)
        based_on: set[int] = set()
        closed_round = 0
        async for page in ledger.read(0):
            for entry in page:
                if _PROPOSAL_MARK not in entry.data or entry.cursor in skipped:
                    continue
                try:
                    event = codec.read(entry).event
                except WireError:
                    continue  # The fold stops there and says so.
                if isinstance(event, RoundProposed) and event.round == closed_round + 1:
                    closed_round += 1
                    based_on.add(event.based_on)
        return cls(frozenset(based_on))

    def observe(self, record: Record, _effects: Effects, state: ClusterState) -> None:
        """Compare, where the record is an accepted proposal; decide, where one is based on the records up to it."""
        event = record.event
        if isinstance(event, RoundProposed):
            if state.closed_round == self._closed_round:
                self._overtaken += 1
            else:
                self._closed_round = state.closed_round
                self._compare(record.cursor, event)
        if state.next_cursor in self._based_on:
            self._derived[state.next_cursor] = _Derived(decide(state), state.now_ms, state.policy.scheme)

    async def close(self, ledger: Ledger) -> Verification:
        """Return the result; where there is a difference, with the story of the workload that it is about."""
        first = self._first
        if first is not None and first.workload is not None:
            chronicle = Chronicle(only=first.workload)
            await fold(ledger, until_cursor=first.based_on, observe=chronicle.observe)
            first = first.model_copy(update={"story": tuple(chronicle.story(first.workload))})
        return Verification(
            compared=self._compared, differences=self._differences, overtaken=self._overtaken, first=first
        )

    def _compare(self, cursor: int, event: RoundProposed) -> None:
        self._compared += 1
        recorded = event.model_copy(update=_ENVELOPE)
        derived = self._derived.pop(event.based_on, _NOT_DECIDED)
        if derived.proposal == recorded:
            return
        self._differences += 1
        if self._first is None:
            partings = tuple(_partings(recorded, derived.proposal))
            self._first = Difference(
                cursor=cursor,
                at_ms=derived.at_ms,
                based_on=event.based_on,
                scheme=derived.scheme,
                recorded=recorded,
                derived=derived.proposal,
                partings=partings,
                workload=next((parting.workload for parting in partings if parting.workload is not None), None),
            )


class _Derived(NamedTuple):
    """What is decided on some records, and when and by whom."""

    proposal: RoundProposed | None
    at_ms: int
    scheme: Scheme | None


#: Of a proposal that says that it is based on what comes after it.
_NOT_DECIDED = _Derived(None, 0, None)


def _partings(recorded: RoundProposed, derived: RoundProposed | None) -> Iterator[Parting]:
    """Yield where two proposals part, item by item."""
    if derived is not None:
        for field in ("round", "policy_version"):
            yield from _differing("proposal", None, field, recorded, derived)
    for kind in ("placement", "reservation"):
        ours: tuple[_Item, ...] = getattr(recorded, f"{kind}s")
        theirs: tuple[_Item, ...] = () if derived is None else getattr(derived, f"{kind}s")
        for number, (one, other) in enumerate(zip_longest(ours, theirs), 1):
            item = f"{kind} {number}"
            if one is None or other is None or one.workload != other.workload:
                named = one or other
                assert named is not None
                yield Parting(
                    item=item,
                    workload=named.workload,
                    field="workload",
                    recorded=None if one is None else one.workload,
                    derived=None if other is None else other.workload,
                )
                continue
            for field in type(one).model_fields:
                yield from _differing(item, one.workload, field, one, other)


def _differing(item: str, workload: str | None, field: str, one: BaseModel, other: BaseModel) -> Iterator[Parting]:
    mine, theirs = getattr(one, field), getattr(other, field)
    if mine != theirs:
        yield Parting(item=item, workload=workload, field=field, recorded=_as_json(mine), derived=_as_json(theirs))


def _as_json(value: object) -> str:
    return to_json(value, exclude_none=True).decode()
