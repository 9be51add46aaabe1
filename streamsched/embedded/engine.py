"""The rounds protocol in one process: what is written is durable, then folded, then obeyed.

The engine is the only writer of its ledger, so it need not read back what it wrote: the ledger's answer to an append
carries the cursor and the time, and records are folded strictly in the order of their cursors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from streamsched.ledgers.writing import wall_clock_ms
from streamsched.model.commands import Command, Effects, NodeEmptied
from streamsched.model.events import Event, Record
from streamsched.model.ledger import Entry, Ledger
from streamsched.replay.replayer import Progress, fold
from streamsched.replay.story import Chronicle
from streamsched.scheduling.scheduler import Scheduler
from streamsched.state.cluster import ClusterState
from streamsched.wire import codec

R = TypeVar("R")
#: Makes an answer at the moment a record is folded, from its cursor, its effects and the state that it left.
Settle = Callable[[int, Effects, ClusterState], R]


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A record that is durable, and whoever waits for its fold."""

    entry: Entry
    settle: Settle[Any]
    settled: asyncio.Future[Any]


class Engine:
    """One cluster on one ledger, alone."""

    def __init__(
        self,
        ledger: Ledger,
        scheduler: Scheduler,
        chronicle: Chronicle,
        obey: Callable[[Sequence[Command]], None],
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Take over a scheduler that has folded all of `ledger`; callers use `Engine.recover`.

        Args:
            obey: Takes the commands to the nodes, those that belong together in one call. It must not wait.
            clock: Milliseconds since 1970 UTC: the clock that the ledger stamps with.
        """
        self.chronicle = chronicle
        #: Told of each node that has become empty. It must not wait.
        self.emptied: Callable[[NodeEmptied], None] = lambda _: None
        self._ledger = ledger
        self._scheduler = scheduler
        self._obey = obey
        self._clock = clock
        self._arrived: dict[int, _Arrival] = {}
        self._changed = asyncio.Event()
        self._halted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writes: set[asyncio.Task[Any]] = set()

    @classmethod
    async def recover(
        cls,
        ledger: Ledger,
        obey: Callable[[Sequence[Command]], None],
        *,
        clock: Callable[[], int] = wall_clock_ms,
        progress: Progress | None = None,
    ) -> Engine:
        """Fold what `ledger` holds and return an engine that goes on from there.

        Raises:
            ReplayDivergenceError: The fold is not what it was when a digest was recorded.
            LedgerError: The ledger is not whole.
        """
        chronicle = Chronicle()
        state = await fold(ledger, observe=chronicle.observe, progress=progress)
        return cls(ledger, Scheduler(state), chronicle, obey, clock)

    @property
    def state(self) -> ClusterState:
        """The present. Read it between two awaits; never keep parts of it."""
        return self._scheduler.state

    async def record(self, event: Event, settle: Settle[R]) -> R:
        """Append an event; return what `settle` makes of it, once it is durable and folded.

        Goes on when the caller is cancelled: what was begun is finished.

        Raises:
            LedgerError: The ledger did not take it.
        """
        return await self._shielded(self._write(event, settle, is_ours=False))

    async def report(self, fact: Event) -> None:
        """Append what a node says; return once it is durable and folded. Raises like `record`."""
        await self.record(fact, _no_answer)

    async def run(self) -> None:
        """Go live: send what no node has answered, then decide and let time pass. Ends only by an error.

        Raises:
            LedgerError: The ledger did not take a decision.
            Exception: The fold failed: a bug. Nothing may be folded after it.
        """
        if unanswered := self.state.unanswered_commands():
            self._obey(unanswered)
        decisions = asyncio.ensure_future(self._decide())
        try:
            await asyncio.wait({decisions, self._halted}, return_when=asyncio.FIRST_COMPLETED)
            for ended in (self._halted, decisions):
                if ended.done():
                    ended.result()
        finally:
            decisions.cancel()
            await asyncio.gather(decisions, return_exceptions=True)

    async def settle(self) -> None:
        """Wait for the appends that are under way."""
        await asyncio.gather(*self._writes, return_exceptions=True)

    async def _decide(self) -> None:
        while True:
            self._changed.clear()
            event = self._scheduler.next_event(self._clock())
            if event is not None:
                await self._shielded(self._write(event, _no_answer, is_ours=True))
                continue
            pause_ms = self._scheduler.wakeup_ms(self._clock()) - self._clock()
            try:
                async with asyncio.timeout(max(pause_ms, 1) / 1_000):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _shielded(self, write: Coroutine[Any, Any, R]) -> R:
        task = asyncio.ensure_future(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)

    async def _write(self, event: Event, settle: Settle[R], *, is_ours: bool) -> R:
        entry = await self._ledger.append(codec.encode(event))
        if is_ours:
            self._scheduler.appended(entry.cursor)
        settled: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._arrived[entry.cursor] = _Arrival(entry, settle, settled)
        self._fold_arrived()
        return await settled

    def _fold_arrived(self) -> None:
        if self._halted.done():
            self._refuse_arrived()
        while (arrival := self._arrived.get(self.state.next_cursor)) is not None:
            cursor = arrival.entry.cursor
            try:
                effects = self._fold(codec.read(arrival.entry))
                arrival.settled.set_result(arrival.settle(cursor, effects, self.state))
            except Exception as error:
                # The record is in the ledger and cannot be taken back: whoever folds on would fold another history.
                self._halted.set_exception(error)
                self._refuse_arrived()
                return
            del self._arrived[cursor]
        self._changed.set()

    def _fold(self, record: Record) -> Effects:
        effects = self._scheduler.take(record)
        self.chronicle.observe(record, effects, self.state)
        if effects.commands:
            self._obey(effects.commands)
        for emptied in effects.emptied:
            self.emptied(emptied)
        return effects

    def _refuse_arrived(self) -> None:
        failure = self._halted.exception()
        for arrival in self._arrived.values():
            if failure is not None and not arrival.settled.done():
                arrival.settled.set_exception(failure)
        self._arrived.clear()


def _no_answer(_cursor: int, _effects: Effects, _state: ClusterState) -> None:
    """Settle a record that nobody waits to hear about."""
