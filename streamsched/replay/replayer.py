"""Fold a recorded ledger, up to any cursor or time, and prove the digests that its schedulers recorded on the way.

The state's own ``apply`` compares each recorded digest with its own and raises `ReplayDivergenceError` when they
differ, so a fold that returns has proved every digest it passed.
"""

from __future__ import annotations

from collections.abc import Callable

from streamsched.errors import WireError
from streamsched.model.commands import Effects
from streamsched.model.events import LedgerSkipped, Record, Unreadable
from streamsched.model.ledger import Entry, Ledger
from streamsched.state.cluster import ClusterState
from streamsched.wire import codec

#: Called after each record was folded, with what it caused and the state that it left.
Observer = Callable[[Record, Effects, ClusterState], None]
#: Called after each page with the number of records folded so far.
Progress = Callable[[int], None]

_SKIP_MARK = b'"ledger_skipped"'


async def fold(
    ledger: Ledger,
    *,
    until_cursor: int | None = None,
    at_ms: int | None = None,
    state: ClusterState | None = None,
    observe: Observer | None = None,
    progress: Progress | None = None,
) -> ClusterState:
    """Return the state after the records of `ledger`, in order.

    A record that an admin skipped (`LedgerSkipped`, anywhere later in the ledger) takes its place as an unreadable
    one: its cursor is counted, and what it says is not folded.

    Args:
        ledger: Where to read. Only what it holds when the call is made is read.
        until_cursor: Fold the records below this cursor only.
        at_ms: Stop before the first record that was appended after this time, in milliseconds since 1970 UTC.
        state: Where to begin; its ``next_cursor`` says which record comes next. It is changed. A new one when None.
        observe: Told of every record after it was folded.
        progress: Told now and then how many records are folded.

    Raises:
        ReplayDivergenceError: A recorded digest is not the digest of this fold.
        WireError: A record was written by a newer streamsched.
        LedgerError: The ledger is not whole.
    """
    state = state or ClusterState()
    skipped = await skipped_cursors(ledger)
    async for page in ledger.read(state.next_cursor):
        for entry in page:
            if until_cursor is not None and entry.cursor >= until_cursor:
                return state
            if at_ms is not None and entry.append_ms > at_ms:
                return state
            record = read_record(entry, skipped)
            effects = state.apply(record)
            if observe is not None:
                observe(record, effects, state)
        if progress is not None:
            progress(state.next_cursor)
    return state


async def skipped_cursors(ledger: Ledger) -> frozenset[int]:
    """Return the cursors of the records that an admin decided not to fold.

    Reads the whole ledger, but decodes only what looks like such a decision.
    """
    skipped: set[int] = set()
    async for page in ledger.read(0):
        for entry in page:
            if _SKIP_MARK not in entry.data:
                continue
            try:
                event = codec.read(entry).event
            except WireError:
                continue  # Perhaps one that is skipped itself; if not, the fold stops there and says so.
            if isinstance(event, LedgerSkipped):
                skipped.add(event.cursor)
    return frozenset(skipped)


def read_record(entry: Entry, skipped: frozenset[int]) -> Record:
    """Return what the fold is given for an entry: its event, or an unreadable one where it was skipped."""
    if entry.cursor in skipped:
        return Record(entry.cursor, entry.append_ms, Unreadable("skipped by an admin"))
    return codec.read(entry)
