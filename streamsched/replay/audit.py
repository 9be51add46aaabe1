"""What a ledger holds and whether it is whole: every record accounted for, every recorded digest proved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict

from streamsched.model.commands import Effects
from streamsched.model.events import Record, Rejected, RoundProposed, StateHashed, Unreadable
from streamsched.model.ledger import Ledger
from streamsched.replay.replayer import Observer, Progress, fold
from streamsched.state.cluster import LAYOUT, ClusterState
from streamsched.state.snapshot import digest


class Gap(BaseModel):
    """A source whose sequence jumped: its records in between never reached the ledger."""

    model_config = ConfigDict(frozen=True)

    src: str
    expected: int
    found: int
    cursor: int


class Audit(BaseModel):
    """The account of a ledger.

    Attributes:
        records: How many were folded.
        first_ms: When the first was appended; None for an empty ledger.
        last_ms: The latest append time.
        events: How many of each type.
        unreadable: Records whose bytes are no event of ours, or that an admin skipped.
        sources: For each source, its high-water mark: the last sequence number taken from it.
        gaps: Where a source jumped. Empty when nothing was lost on the way to the ledger.
        rejected: Requests that intake refused, by code.
        ignored: Facts that changed nothing, by reason: repeats, stale attempts, lost races.
        rounds: Proposals that closed a round.
        overtaken: Proposals that came after their round was closed.
        accepted: Placements of closing proposals that held when they were checked again.
        void: Placements of closing proposals that did not hold any more, by reason.
        digests_proved: Recorded digests that this fold reproduced. One that differs stops the audit with an error.
        digests_of_other_layouts: Recorded by builds that freeze a state in other bytes: they prove nothing here.
        digest: SHA-256 of the state at the end, in hex.
    """

    model_config = ConfigDict(frozen=True)

    records: int
    first_ms: int | None
    last_ms: int | None
    events: dict[str, int]
    unreadable: int
    sources: dict[str, int]
    gaps: tuple[Gap, ...]
    rejected: dict[str, int]
    ignored: dict[str, int]
    rounds: int
    overtaken: int
    accepted: int
    void: dict[str, int]
    digests_proved: int
    digests_of_other_layouts: int
    digest: str

    @property
    def is_whole(self) -> bool:
        """Whether every source arrived without a gap."""
        return not self.gaps


async def audit(ledger: Ledger, *, progress: Progress | None = None) -> Audit:
    """Fold the whole ledger and return its account; see `fold` for what is raised."""
    return (await audited_state(ledger, progress=progress))[0]


async def audited_state(
    ledger: Ledger,
    *,
    until_cursor: int | None = None,
    at_ms: int | None = None,
    observers: Iterable[Observer] = (),
    progress: Progress | None = None,
) -> tuple[Audit, ClusterState]:
    """Return the account of a ledger, up to a cursor or time, and the state there; see `fold` for the arguments.

    The observers are told of each record too, in this order.
    """
    account = _Account()
    watching = (account.add, *observers)

    def observe(record: Record, effects: Effects, state: ClusterState) -> None:
        for watch in watching:
            watch(record, effects, state)

    state = await fold(ledger, until_cursor=until_cursor, at_ms=at_ms, observe=observe, progress=progress)
    return account.close(state), state


class _Account:
    def __init__(self) -> None:
        self._events: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._unreadable = self._rounds = self._overtaken = self._placements = self._proved = self._foreign = 0
        self._first_ms: int | None = None
        self._closed_round = 0

    def add(self, record: Record, _effects: Effects, state: ClusterState) -> None:
        if self._first_ms is None:
            self._first_ms = record.append_ms
        event = record.event
        if isinstance(event, Unreadable):
            self._unreadable += 1
            return
        self._events[event.type] += 1
        if isinstance(event, Rejected):
            self._rejected[event.code] += 1
        elif isinstance(event, StateHashed):
            self._add_digest(event, state)
        elif isinstance(event, RoundProposed):
            self._add_round(event, state)

    def _add_digest(self, event: StateHashed, state: ClusterState) -> None:
        if event.layout != LAYOUT:
            self._foreign += 1
        elif event.folded in state.digests:
            self._proved += 1

    def _add_round(self, event: RoundProposed, state: ClusterState) -> None:
        if state.closed_round == self._closed_round:
            self._overtaken += 1
            return
        self._closed_round = state.closed_round
        self._rounds += 1
        self._placements += len(event.placements)

    def close(self, state: ClusterState) -> Audit:
        return Audit(
            records=state.next_cursor,
            first_ms=self._first_ms,
            last_ms=state.now_ms if state.next_cursor else None,
            events=dict(sorted(self._events.items())),
            unreadable=self._unreadable,
            sources=dict(sorted(state.sources.items())),
            gaps=tuple(
                Gap(src=gap.src, expected=gap.expected, found=gap.found, cursor=gap.cursor) for gap in state.gaps
            ),
            rejected=dict(sorted(self._rejected.items())),
            ignored=dict(sorted(state.ignored.items())),
            rounds=self._rounds,
            overtaken=self._overtaken,
            accepted=self._placements - sum(state.void.values()),
            void=dict(sorted(state.void.items())),
            digests_proved=self._proved,
            digests_of_other_layouts=self._foreign,
            digest=digest(state),
        )
