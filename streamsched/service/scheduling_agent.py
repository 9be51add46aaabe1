"""The scheduling agent: folds the ledger, proposes when there is something to decide, emits what was accepted.

Faust's delivery is the trigger and no more than that. What it repeats is skipped, what it leaves out is read straight
from the ledger, and when it falls silent the ledger is asked. At the start the ledger is folded without Faust, which
would take 50 times as long. No offset is committed: the state knows where it is.

A proposal means nothing until it is read back and accepted by the fold. Every live replica emits every command, with
the same ids in the same order, and nodes ignore what they have seen.
"""

from __future__ import annotations

import asyncio
import math
import time
from itertools import count
from typing import TYPE_CHECKING

import structlog

from streamsched.errors import LedgerTruncatedError, LedgerUnavailableError
from streamsched.model.commands import Place
from streamsched.model.events import RoundProposed
from streamsched.model.ledger import Entry
from streamsched.model.quantities import SECOND
from streamsched.replay.replayer import read_record, skipped_cursors
from streamsched.scheduling.scheduler import Scheduler
from streamsched.service.fail_stop import fail_stop
from streamsched.service.metrics import size_class, team_of
from streamsched.service.raw_topics import raw_topic
from streamsched.service.view_records import TOPOLOGY_TOPIC, USAGE_TOPIC, BudgetHour, Views
from streamsched.simulation.fragmentation import fragmentation
from streamsched.state.machines import awaiting_repair, awaits_repair
from streamsched.state.snapshot import digest
from streamsched.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from faust.types import AppT, StreamT

    from streamsched.client.repair_webhook import RepairWebhook
    from streamsched.model.commands import Command, Effects, NodeEmptied, Receipt
    from streamsched.model.events import NodeRepairBegan, Record
    from streamsched.model.ledger import Ledger
    from streamsched.service.folded_mark import FoldedMark
    from streamsched.service.metrics import Metrics
    from streamsched.service.outbox import Outbox

LEDGER_TOPIC = "ledger.v1"
COMMANDS_TOPIC = "commands.v1"
RECEIPTS_TOPIC = "receipts.v1"

#: What arrives together is decided together. The replica that closed the last round waits this long, in seconds.
GATHER_SECONDS = 0.002
#: The others wait this long for it, so that they do not compute the same in vain.
STAND_BACK_SECONDS = 0.040
#: The others wait this long before they tell of an empty node: by then the first has.
REPAIR_STAND_BACK_SECONDS = 5.0
#: How often views are published, the mark is kept, and the ledger is asked whether Faust has fallen silent.
HOUSEKEEPING_SECONDS = 1.0
#: Metrics that walk over all workloads and nodes are set every so many seconds: less often than Prometheus asks.
MEASURE_EVERY = 5
#: While views are published, records are taken in between after so many.
VIEWS_BETWEEN_RECORDS = 50

_log = structlog.get_logger(__name__)


class SchedulingAgent:
    """One replica between the ledger and the rest of the world."""

    def __init__(
        self, ledger: Ledger, outbox: Outbox, mark: FoldedMark, metrics: Metrics, *, replica: str, topic_prefix: str
    ) -> None:
        """Prepare; call `recover` before anything else.

        Args:
            ledger: The cluster's ledger.
            outbox: Where commands, receipts and views go.
            mark: How far this replica has folded before.
            metrics: Of the process.
            replica: Signs what this replica appends.
            topic_prefix: Before the topics' names.
        """
        self._ledger = ledger
        self._outbox = outbox
        self._mark = mark
        self._metrics = metrics
        self._actor = f"scheduler {replica}"
        self._topic_prefix = topic_prefix
        self._scheduler = Scheduler()
        self._views = Views()
        self._reading = asyncio.Lock()
        self._changed = asyncio.Event()
        self._is_first = True
        self._webhook: RepairWebhook | None = None
        #: Where the ledger ends as far as Faust's consumer knows; set by `attach_scheduler`.
        self.highwater: Callable[[], int] = lambda: 0

    @property
    def folded(self) -> int:
        """How many records have been folded."""
        return self._scheduler.state.next_cursor

    async def recover(self) -> None:
        """Fold the ledger to its end; answer the requests that came since the mark, then send unacknowledged commands.

        No other replica may have been there to answer those. A replica without a mark is new, and answers nothing old.

        Raises:
            LedgerTruncatedError: The ledger ends before what this replica has folded once.
            LedgerUnavailableError: No broker answered.
        """
        began = time.monotonic()
        self._mark.check(await self._ledger.end())
        answered = self._mark.folded or math.inf
        skipped = await skipped_cursors(self._ledger)
        while self.folded < await self._ledger.end():
            async for page in self._ledger.read(self.folded):
                for entry in page:
                    effects = self._fold(read_record(entry, skipped))
                    if entry.cursor >= answered:
                        await self._emit((), effects.receipts)
        await self._emit(self._scheduler.state.unanswered_commands(), ())
        await self._outbox.delivered()
        self._mark.reach(self.folded)
        seconds = time.monotonic() - began
        self._metrics.recovery.observe(seconds)
        _log.info(
            "recovered", folded=self.folded, seconds=round(seconds, 3), workloads=len(self._scheduler.state.workloads)
        )

    async def deliver(self, entry: Entry) -> None:
        """Take one record as Faust delivers it: skip a repeat, fill a hole before it, fold it, emit its effects."""
        async with self._reading:
            if entry.cursor > self.folded:
                _log.info("hole in delivery", folded=self.folded, delivered=entry.cursor)
                await self._read_to(entry.cursor)
            if entry.cursor == self.folded:
                await self._take(entry)

    async def propose(self) -> None:
        """Append proposals, ticks and digests, one at a time, until cancelled."""
        while True:
            await self._wait_for_something()
            closed_round = self._scheduler.state.closed_round
            await asyncio.sleep(GATHER_SECONDS if self._is_first else STAND_BACK_SECONDS)
            if not self._is_first and self._scheduler.state.closed_round != closed_round:
                self._changed.set()  # Somebody else was quicker; give them the next one too.
                continue
            if self.folded < self.highwater():
                continue  # The rest is on its way, and wakes us.
            began = time.monotonic()
            event = self._scheduler.next_event(_clock_ms())
            if event is None:
                continue
            decided = time.monotonic()
            entry = await self._ledger.append(codec.encode(event.model_copy(update={"actor": self._actor})))
            self._scheduler.appended(entry.cursor)
            if isinstance(event, RoundProposed):
                self._metrics.round_duration.labels(self._metrics.cluster, "decide").observe(decided - began)
                self._metrics.round_duration.labels(self._metrics.cluster, "append").observe(time.monotonic() - decided)

    async def keep_house(self) -> None:
        """Once a second: publish views, keep the mark, and read on by ourselves if Faust is silent; until cancelled."""
        before = self.folded
        for turn in count():
            await asyncio.sleep(HOUSEKEEPING_SECONDS)
            if self.folded == before:
                await self._read_what_faust_withholds()
            async with self._reading:  # What lies before the mark is never answered again, so it was sent, and arrived.
                before = self.folded
            await self._outbox.delivered()
            await asyncio.to_thread(self._mark.reach, before)  # It waits for the disk.
            await self._publish_views()
            if turn % MEASURE_EVERY == 0:
                self._measure()

    async def call_for_repair(self, webhook: RepairWebhook) -> None:
        """Tell of empty nodes, those of before the start too; until cancelled."""
        self._webhook = webhook
        for emptied in awaiting_repair(self._scheduler.state):
            self._call_for_repair(emptied)
        await webhook.run()

    def still_waits(self, emptied: NodeEmptied) -> bool:
        """Whether nobody has begun to repair an empty node yet, as far as is folded here."""
        return awaits_repair(self._scheduler.state, emptied)

    async def note_repair(self, began: NodeRepairBegan) -> None:
        """Append that a repair has begun."""
        await self._ledger.append(codec.encode(began.model_copy(update={"actor": self._actor})))

    def say_where(self) -> None:
        """Log how far the ledger is folded and to which digest, so that it can be compared with any other fold."""
        self._mark.reach(self.folded)
        _log.info("folded", folded=self.folded, digest=digest(self._scheduler.state))

    async def _wait_for_something(self) -> None:
        wakeup_ms = self._scheduler.wakeup_ms(_clock_ms())
        try:
            async with asyncio.timeout(max(0.0, (wakeup_ms - _clock_ms()) / SECOND)):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    async def _read_what_faust_withholds(self) -> None:
        try:
            end = await self._ledger.end()
        except LedgerUnavailableError as error:
            _log.warning("the ledger's end is not known", error=str(error))
            return
        if end < self.folded:  # The topic was deleted and made again: what it holds goes on another history.
            raise LedgerTruncatedError(self.folded, end)
        if end > self.folded:
            async with self._reading:
                _log.info("nothing delivered, reading the ledger", folded=self.folded, end=end)
                await self._read_to(end)

    async def _read_to(self, end: int) -> None:
        """Fold and emit from the ledger itself what lies before `end`."""
        while self.folded < end:
            async for page in self._ledger.read(self.folded):
                for entry in page:
                    await self._take(entry)
                if self.folded >= end:
                    break

    async def _take(self, entry: Entry) -> None:
        record = codec.read(entry)
        effects = self._fold(record)
        self._metrics.decision_lag.observe(max(0, _clock_ms() - record.append_ms) / SECOND)
        await self._emit(effects.commands, effects.receipts)
        for emptied in effects.emptied:
            self._call_for_repair(emptied)
        self._changed.set()

    def _fold(self, record: Record) -> Effects:
        state = self._scheduler.state
        closed_round, gaps = state.closed_round, len(state.gaps)
        effects = self._scheduler.take(record)
        self._views.note(state, effects)
        if isinstance(record.event, RoundProposed) and state.closed_round != closed_round:
            self._is_first = record.event.actor == self._actor
            _log.info(
                "round closed",
                cursor=record.cursor,
                round=state.closed_round,
                by=record.event.actor,
                proposed=len(record.event.placements),
                commands=len(effects.commands),
            )
        for gap in state.gaps[gaps:]:
            self._metrics.source_gaps.inc()
            _log.error("source gap", src=gap.src, expected=gap.expected, found=gap.found, cursor=gap.cursor)
        return effects

    async def _emit(self, commands: Iterable[Command], receipts: Iterable[Receipt]) -> None:
        """Hand over in order of ids; the outbox ends the process if one is not confirmed."""
        for command in commands:
            await self._outbox.send(
                self._topic_prefix + COMMANDS_TOPIC, key=command.node.encode(), value=codec.encode_command(command)
            )
            if isinstance(command, Place) and command.node == command.leader:
                self._observe_wait(command.workload)
        for receipt in receipts:
            about = receipt.workload or receipt.change or receipt.node
            await self._outbox.send(
                self._topic_prefix + RECEIPTS_TOPIC,
                key=about.encode() if about is not None else None,
                value=codec.encode_receipt(receipt),
            )

    def _call_for_repair(self, emptied: NodeEmptied) -> None:
        if self._webhook is not None:
            self._webhook.tell(emptied, 0.0 if self._is_first else REPAIR_STAND_BACK_SECONDS)

    async def _publish_views(self) -> None:
        for number, record in enumerate(list(self._views.changed(self._scheduler.state))):
            if number % VIEWS_BETWEEN_RECORDS == 0:
                await asyncio.sleep(0)
            topic = USAGE_TOPIC if isinstance(record, BudgetHour) else TOPOLOGY_TOPIC
            await self._outbox.send(
                self._topic_prefix + topic, key=record.key.encode(), value=record.model_dump_json().encode()
            )

    def _observe_wait(self, name: str) -> None:
        workload = self._scheduler.state.workloads.get(name)
        if workload is not None and workload.run is not None:
            wait_ms = self._scheduler.state.now_ms - workload.queued_ms
            allocated = "yes" if workload.is_allocated else "no"
            team = team_of(workload.budget.id)
            self._metrics.queue_wait.labels(team, size_class(workload.gpus), allocated).observe(wait_ms / SECOND)

    def _measure(self) -> None:
        state, metrics = self._scheduler.state, self._metrics
        metrics.ledger_cursor.set(self.folded)
        metrics.commands_unacked.set(sum(len(commands) for commands in state.dispatch.unacknowledged.values()))
        metrics.show_ignored(state.ignored)
        metrics.show_workloads(state.workloads.values())
        metrics.show_gangs(state.recoveries, state.workloads.values())
        metrics.show_nodes(state.nodes.values())
        metrics.show_fragmentation(fragmentation(state))


def attach_scheduler(app: AppT, agent: SchedulingAgent, *, topic: str, partition: int) -> None:
    """Give the app the Faust agent that feeds `agent`.

    Args:
        app: A Faust app of this replica's own consumer group, so that it is never rebalanced.
        agent: Recovered.
        topic: The ledger topic's full name.
        partition: The cluster's partition of it.
    """
    ledger_topic = raw_topic(app, topic, acks=False)

    @app.agent(ledger_topic, name="scheduler", concurrency=1)
    async def scheduling_agent(records: StreamT[bytes]) -> None:
        """Fold the records of our partition in order; the other partitions are other clusters."""
        async for event in records.events():
            message = event.message
            if message.partition != partition:
                continue
            try:
                # Faust gives seconds as a float.
                append_ms = round(message.timestamp * SECOND)
                await agent.deliver(Entry(message.offset, append_ms, message.value or b""))
            except Exception as error:
                fail_stop("the scheduler cannot go on", error, cursor=message.offset)


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000
