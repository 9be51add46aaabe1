"""The health agent: heartbeats to health transitions in the ledger.

What was last said of each node is in a Faust table, as absolute values, so that a node which dies while no worker
runs is still missed by the next one. The table is written after the ledger has the transition: a crash in between
restates it, which changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypedDict

import structlog

from streamsched.errors import WireError
from streamsched.model.events import NodeHealth, NodeHealthChanged
from streamsched.model.quantities import SECOND, format_duration
from streamsched.service.fail_stop import fail_stop
from streamsched.service.node_watch import SWEEP_MS, Health, NodeWatch
from streamsched.service.raw_topics import raw_topic
from streamsched.wire import codec
from streamsched.wire.heartbeats import decode_heartbeat
from streamsched.wire.refusals import RefusalCode, refusal, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from faust.types import TP, AppT, StreamT, TableT
    from faust.types.tuples import Message

    from streamsched.model.ledger import Ledger
    from streamsched.service.dead_letters import DeadLetters
    from streamsched.service.metrics import Metrics

TOPIC = "node-status.v1"
#: How long the broker may take to say where the partitions end.
ANSWER_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class HealthRow(TypedDict):
    """One node in the table, as JSON carries it."""

    health: str
    reason: str | None
    partition: int
    fatal: bool


class HealthAgent:
    """Says in the ledger what changed; see `NodeWatch` for what that is."""

    def __init__(
        self,
        app: AppT,
        ledger: Ledger,
        dead_letters: DeadLetters,
        metrics: Metrics,
        *,
        topic_prefix: str,
        lease_ms: int,
    ) -> None:
        """Give the app its table, its agent and its sweep.

        Args:
            app: A Faust app of its own consumer group.
            ledger: Where transitions go.
            dead_letters: Where bytes go that are no heartbeat.
            metrics: Of the process.
            topic_prefix: Before the topic's name.
            lease_ms: How long a node may be silent.
        """
        self._app = app
        self._ledger = ledger
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._lease_ms = lease_ms
        self._watch = NodeWatch(lease_ms)
        self._topic = topic_prefix + TOPIC
        # The sweep writes outside of any event, so the key decides the partition; it is the key of the heartbeats too.
        self._table: TableT[str, HealthRow] = app.Table("nodes", key_type=str, use_partitioner=True)
        heartbeats = raw_topic(app, self._topic)

        @app.agent(heartbeats, name="health", concurrency=1)
        async def health_agent(records: StreamT[bytes]) -> None:
            """Note each heartbeat, and append what it changes."""
            # Acknowledged by hand: Faust also acknowledges what an agent has in hand when it is stopped.
            by_hand: StreamT[bytes] = records.noack()  # type: ignore[attr-defined]  # On Stream, missing from StreamT.
            async for event in by_hand.events():
                try:
                    await self.take(event.message)
                    event.ack()
                except Exception as error:
                    fail_stop("the health agent failed", error, offset=event.message.offset)

        @app.on_partitions_assigned.connect
        async def assigned(_app: Any, /, *assigned: Any, **_: Any) -> None:
            partitions: set[TP] = assigned[0]
            self._watch.assign((tp.partition for tp in partitions if tp.topic == self._topic), _now_ms())

        @app.timer(SWEEP_MS / SECOND)
        async def sweep() -> None:
            try:
                await self.sweep()
            except Exception as error:
                fail_stop("the sweep for silent nodes failed", error)

    async def take(self, message: Message) -> None:
        """Note one record of the topic."""
        self._watch.read(message.partition, message.offset)
        try:
            heartbeat = decode_heartbeat(message.value or b"")
            if message.key != heartbeat.node.encode():
                raise refusal(
                    RefusalCode.INVALID_FIELD,
                    f"the record's key is {shown(str(message.key))}; it must be the node, {shown(heartbeat.node)}, so "
                    "that all heartbeats of a node come to one partition.",
                )
        except WireError as error:
            await (
                await self._dead_letters.send(
                    error,
                    topic=message.topic,
                    partition=message.partition,
                    offset=message.offset,
                    key=message.key,
                    value=message.value,
                )
            )
            self._metrics.events_rejected.labels(TOPIC, error.code).inc()
            _log.warning("heartbeat rejected", partition=message.partition, offset=message.offset, reason=error.reason)
            return
        known = self._table.get(heartbeat.node)
        said = self._watch.heard(heartbeat, message.partition, None if known is None else _health(known), _now_ms())
        if said is not None:
            await self._say(heartbeat.node, said)

    async def sweep(self) -> None:
        """Declare lost who has been silent for a lease, as long as the broker shows that we would have heard."""
        if self._app.in_recovery or self._app.rebalancing:
            return
        watched = {tp for tp in self._app.consumer.assignment() if tp.topic == self._topic}
        ends: Mapping[int, int] | None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for tp in watched:
                    if tp.partition in self._watch.unread:
                        self._watch.begin(tp.partition, await self._app.consumer.position(tp) or 0)
                ends = {tp.partition: end for tp, end in (await self._app.consumer.highwaters(*watched)).items()}
        except Exception as error:  # Whatever kept the broker from answering, we did not hear.
            _log.warning("the broker did not say where the heartbeats end", error=repr(error))
            ends = None
        known = {node: _health(row) for node, row in self._table.items()}
        for node in self._watch.silent(known, ends, _now_ms()):
            reason = f"no heartbeat for {format_duration(self._lease_ms)}"
            await self._say(node, Health(NodeHealth.LOST, reason, known[node].partition))

    async def _say(self, node: str, said: Health) -> None:
        event = NodeHealthChanged(node=node, health=said.health, reason=said.reason, fatal=said.fatal)
        entry = await self._ledger.append(codec.encode(event))
        self._table[node] = HealthRow(
            health=said.health.value, reason=said.reason, partition=said.partition, fatal=said.fatal
        )
        _log.info("node health changed", node=node, health=said.health.value, reason=said.reason, cursor=entry.cursor)


def _health(row: HealthRow) -> Health:
    # A row of an older build has no word on it.
    return Health(NodeHealth(row["health"]), row["reason"], row["partition"], row.get("fatal", False))


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
