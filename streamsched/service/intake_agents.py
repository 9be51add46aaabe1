"""Intake: validates what clients and nodes send and gives it one order, the ledger.

Each source record gives exactly one ledger record that carries where it came from: the event, or a ``Rejected`` after
the bytes are safe in the dead-letter topic. So the sequence of every source is whole, and the fold can prove it.

Offsets are ours to commit, not Faust's (the topics are declared with ``acks=False``): Faust also acknowledges what it
skips in a rebalance and what a cancelled agent holds. We commit only what the ledger has confirmed, in offset order.
What was confirmed and not committed comes again after a restart, and the fold drops it by its sequence.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog
from faust.types import TP

from streamsched.errors import WireError
from streamsched.model.events import Event, Rejected
from streamsched.service.fail_stop import fail_stop
from streamsched.service.raw_topics import raw_topic
from streamsched.wire import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from faust.types import AppT, StreamT
    from faust.types.tuples import Message

    from streamsched.model.ledger import Entry, Ledger
    from streamsched.service.dead_letters import DeadLetters
    from streamsched.service.metrics import Metrics

#: Which events may come from which topic.
SOURCES: Mapping[str, frozenset[str]] = {
    "workloads.v1": frozenset({"workload_submitted", "workload_cancelled", "workload_reprioritized", "run_extended"}),
    "control.v1": frozenset(
        {"budget_tree_changed", "usage_adjusted", "policy_adopted", "node_drain_changed", "nodes_relabelled"}
    ),
    "node-reports.v1": frozenset({"node_inventory_reported", "command_accepted", "run_started", "run_released"}),
}
#: Records on their way to the ledger at once: enough to fill its batches, few enough to be confirmed in a second.
IN_FLIGHT_MAX = 1_000
#: How often offsets are committed. A crash repeats at most what came in that time.
COMMIT_SECONDS = 1.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A ledger record about to be appended, once the dead letter it may have is safe."""

    source: TP
    offset: int
    data: bytes
    dead_letter: asyncio.Future[object] | None


class Intake:
    """Carries source records to the ledger, in order for each source, many at once.

    One task appends, so that the order of the ledger is the order of the sources. Anything but bytes that do not
    validate ends the process: a record that is neither in the ledger nor a dead letter must come again.
    """

    def __init__(self, ledger: Ledger, dead_letters: DeadLetters, metrics: Metrics, *, topic_prefix: str) -> None:
        """Prepare; `run` must be running for `take` to come to anything."""
        self._ledger = ledger
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._topic_prefix = topic_prefix
        self._admitted: asyncio.Queue[_Admitted] = asyncio.Queue(IN_FLIGHT_MAX)
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._appending: set[asyncio.Task[Entry]] = set()
        self._safe: dict[TP, int] = {}

    async def take(self, source: TP, message: Message) -> None:
        """Admit one source record; returns before it is in the ledger, and waits while too many are on their way."""
        topic = source.topic.removeprefix(self._topic_prefix)
        src = f"{topic}/{source.partition}"
        dead_letter: asyncio.Future[object] | None = None
        try:
            event: Event = codec.admit(message.value or b"", allowed=SOURCES[topic], src=src, seq=message.offset)
            data = codec.encode(event)
            self._metrics.events.labels(event.type).inc()
        except WireError as error:
            dead_letter = await self._dead_letters.send(
                error,
                topic=source.topic,
                partition=source.partition,
                offset=message.offset,
                key=message.key,
                value=message.value,
            )
            data = codec.encode(
                Rejected(src=src, seq=message.offset, code=error.code, reason=error.reason, workload=error.workload)
            )
            self._metrics.events_rejected.labels(topic, error.code).inc()
            _log.warning("record rejected", src=src, seq=message.offset, code=error.code, reason=error.reason)
        await self._slots.acquire()
        await self._admitted.put(_Admitted(source, message.offset, data, dead_letter))

    async def run(self) -> None:
        """Append what was admitted, in that order, until cancelled."""
        while True:
            admitted = await self._admitted.get()
            if admitted.dead_letter is not None:
                await admitted.dead_letter
            # Appends take their turn in the order in which their tasks were made, and are confirmed in it.
            task = asyncio.create_task(self._ledger.append(admitted.data))
            self._appending.add(task)
            task.add_done_callback(partial(self._confirm, admitted))

    def take_safe(self) -> Mapping[TP, int]:
        """Return the sources that moved since the last call, with the offset below which all is in the ledger."""
        safe, self._safe = self._safe, {}
        return safe

    async def drain(self) -> None:
        """Wait until all that was taken is in the ledger."""
        for _ in range(IN_FLIGHT_MAX):
            await self._slots.acquire()

    def _confirm(self, admitted: _Admitted, done: asyncio.Task[Entry]) -> None:
        self._appending.discard(done)
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            fail_stop("the ledger did not confirm a record", error, source=str(admitted.source), offset=admitted.offset)
        self._safe[admitted.source] = admitted.offset + 1
        self._slots.release()


def attach_intake(app: AppT, intake: Intake, *, topic_prefix: str) -> None:
    """Give the app the agent that feeds `intake`, and the timer that commits what is safe."""
    topics = raw_topic(app, *(topic_prefix + topic for topic in SOURCES), acks=False)

    @app.agent(topics, name="intake", concurrency=1)
    async def intake_agent(records: StreamT[bytes]) -> None:
        """Validate each record and send it on to the ledger, or to the dead letters."""
        async for event in records.events():
            try:
                await intake.take(event.message.tp, event.message)
            except Exception as error:
                fail_stop("intake failed", error, source=str(event.message.tp), offset=event.message.offset)

    @app.timer(COMMIT_SECONDS)
    async def commit() -> None:
        await commit_safe(app, intake)


async def commit_safe(app: AppT, intake: Intake) -> None:
    """Commit the offsets of what is in the ledger, for the partitions that are still ours."""
    if safe := intake.take_safe():
        # Faust commits what it acknowledged; its driver's own commit takes the offsets we say.
        await app.consumer._commit(safe)  # type: ignore[attr-defined]  # On every driver, missing from ConsumerT.
