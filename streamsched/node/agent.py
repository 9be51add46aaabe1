"""A node agent process that hosts virtual nodes against Kafka.

It keeps to the contract that every node agent keeps:

- Commands are read from the partitions that its nodes' names hash to, by hand and without a consumer group. What a
  command led to and how far was read are saved together, before anything is reported.
- Every report stays in the durable record until the broker has confirmed it. Killed at any point, the agent repeats
  some reports when it is back and loses none; the fold ignores repeats.
- One task writes the reports and the inventories, so those of a node are in the order in which they became true. An
  inventory goes out on start and every minute, a heartbeat every three seconds.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from heapq import heappop, heappush
from pathlib import Path
from random import Random

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.partitioner import DefaultPartitioner

from streamsched.errors import ConfigurationError, UnsupportedVersionError, WireError
from streamsched.ledgers.kafka import KafkaSecurity
from streamsched.model.events import NodeHealth
from streamsched.model.quantities import MINUTE, SECOND
from streamsched.node.durable import NodeStore
from streamsched.node.virtual_node import USUAL, Delays, NodeSpec, Report, VirtualNode
from streamsched.wire.codec import decode_command, encode
from streamsched.wire.heartbeats import Heartbeat, encode_heartbeat

INVENTORY_MS = MINUTE
HEARTBEAT_SECONDS = 3.0
#: After the broker refused or went away for good, as far as its client is concerned.
RECONNECT_SECONDS = 1.0
#: How long a closing agent waits for confirmations. What is not confirmed by then is repeated by the next start.
CLOSE_SECONDS = 5.0
POLL_MS = 200

_log = structlog.get_logger(__name__)


async def run_virtual_nodes(
    bootstrap: str,
    prefix: str,
    nodes: Sequence[NodeSpec],
    state_dir: Path,
    *,
    speed: int = 1,
    delays: Delays = USUAL,
    seed: int = 0,
    security: KafkaSecurity | None = None,
) -> None:
    """Host virtual nodes until cancelled. While the broker is away, work goes on and reports wait.

    Args:
        bootstrap: Brokers to begin with, ``host:port[,host:port...]``.
        prefix: What the names of the topics begin with, such as ``streamsched.``.
        nodes: The nodes to be. No other agent may be one of them.
        state_dir: A directory of this agent's own. With it a restarted agent goes on where it was.
        speed: How much faster than true work runs.
        delays: How long a node takes to accept, start and stop.
        seed: Draws the delays.
        security: How to connect; plain text when None.

    Raises:
        ConfigurationError: There are no nodes, a node is named twice, or the directory cannot be used.
        UnsupportedVersionError: A newer scheduler writes the commands: upgrade the agent.
    """
    if not nodes or len({spec.node for spec in nodes}) != len(nodes):
        raise ConfigurationError(
            f"the agent is given the nodes {[spec.node for spec in nodes]}; name each once, at least one"
        )
    store = NodeStore(state_dir)
    try:
        agent = _NodeAgent(prefix, _restored(nodes, store, speed=speed, delays=delays, seed=seed), store)
        while True:
            try:
                async with _connected(bootstrap, security or KafkaSecurity()) as (consumer, producer):
                    await agent.serve(consumer, producer)
            except (KafkaError, OSError) as error:
                _log.warning("connection lost", bootstrap=bootstrap, error=repr(error))
            except ExceptionGroup as errors:
                _, others = errors.split((KafkaError, OSError))
                if others is not None:
                    raise others.exceptions[0] from errors
                _log.warning("connection lost", bootstrap=bootstrap, error=repr(errors.exceptions[0]))
            await asyncio.sleep(RECONNECT_SECONDS)
    finally:
        store.close()


class _NodeAgent:
    """The nodes of one process and what they have still to say."""

    def __init__(self, prefix: str, nodes: Iterable[VirtualNode], store: NodeStore) -> None:
        self._commands, self._reports = f"{prefix}commands.v1", f"{prefix}node-reports.v1"
        self._status = f"{prefix}node-status.v1"
        self._nodes = {node.node: node for node in nodes}
        self._store = store
        self._due: list[tuple[int, int, VirtualNode, Report]] = []
        self._planned = 0
        self._is_changed = asyncio.Event()
        #: A node obeys between its reports, never while one is on its way: a placement may follow from a release before
        #: its sender has heard that it arrived, and to the node those GPUs are taken until then.
        self._turn = asyncio.Lock()
        for node in self._nodes.values():
            self._plan(node, node.planned)
        store.save([node.record() for node in self._nodes.values()], {})

    async def serve(self, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer) -> None:
        """Work over one pair of connections until one fails."""
        partitions = await producer.partitions_for(self._commands)
        await self._seek(consumer, sorted(partitions))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._obey_all(consumer))
            tasks.create_task(self._report_all(producer))
            tasks.create_task(self._beat(producer))

    async def _seek(self, consumer: AIOKafkaConsumer, partitions: Sequence[int]) -> None:
        """Take the partitions of our nodes, each where we left it.

        One that we have never read is begun at its end: what stands there was meant for an agent that had our names
        before. The inventory, sent after this, says that nothing of it runs.
        """
        choose = DefaultPartitioner()
        ours = sorted({choose(node.encode(), partitions, partitions) for node in self._nodes})
        where = [TopicPartition(self._commands, partition) for partition in ours]
        consumer.assign(where)
        first, end = await consumer.beginning_offsets(where), await consumer.end_offsets(where)
        saved = self._store.positions()
        positions = {}
        for partition in where:
            position = saved.get(partition.partition, end[partition])
            if not first[partition] <= position <= end[partition]:
                _log.warning(
                    "commands are gone", partition=partition.partition, position=position, first=first[partition]
                )
                position = first[partition]
            positions[partition.partition] = position
            consumer.seek(partition, position)
        self._store.save([], positions)

    async def _obey_all(self, consumer: AIOKafkaConsumer) -> None:
        while True:
            fetched = await consumer.getmany(timeout_ms=POLL_MS)
            changed: dict[str, VirtualNode] = {}
            positions: dict[int, int] = {}
            async with self._turn:
                for partition, messages in fetched.items():
                    for message in messages:
                        node = self._obey(message)
                        if node is not None:
                            changed[node.node] = node
                        positions[partition.partition] = message.offset + 1
                if positions:
                    self._store.save([node.record() for node in changed.values()], positions)
                    self._is_changed.set()

    def _obey(self, message: ConsumerRecord) -> VirtualNode | None:
        """Hand a command to its node, if that is ours; return the node."""
        if message.key is None or message.key.decode(errors="replace") not in self._nodes:
            return None
        try:
            command = decode_command(message.value or b"")
        except UnsupportedVersionError:
            raise
        except WireError as error:
            _log.error("unreadable command", partition=message.partition, offset=message.offset, error=str(error))
            return None
        node = self._nodes.get(command.node)
        if node is not None:
            self._plan(node, node.obey(command, _now_ms()))
        return node

    async def _report_all(self, producer: AIOKafkaProducer) -> None:
        """Send what is due, and the inventories: the only task that writes reports."""
        inventory_ms = _now_ms()
        while True:
            self._is_changed.clear()
            async with self._turn:
                await self._send_due(producer)
            if _now_ms() >= inventory_ms:
                await _confirmed(
                    [await self._send(producer, node.node, encode(node.inventory())) for node in self._all()]
                )
                inventory_ms = _now_ms() + INVENTORY_MS
            next_ms = min(inventory_ms, self._due[0][0]) if self._due else inventory_ms
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0, next_ms - _now_ms()) / SECOND):
                    await self._is_changed.wait()

    async def _send_due(self, producer: AIOKafkaProducer) -> None:
        sent: list[tuple[int, int, VirtualNode, Report]] = []
        try:
            futures = []
            while self._due and self._due[0][0] <= _now_ms():
                item = heappop(self._due)
                _, _, node, report = item
                if report.withdrawn:
                    continue
                sent.append(item)
                fact = report.fact.model_copy(update={"at_ms": report.due_ms})
                futures.append(await self._send(producer, node.node, encode(fact)))
            await _confirmed(futures)
        except BaseException:
            # In doubt: they are sent again over the next connection.
            for item in sent:
                heappush(self._due, item)
            raise
        for _, _, node, report in sent:
            node.sent(report)
        if sent:
            changed = {node.node: node for _, _, node, _ in sent}
            self._store.save([node.record() for node in changed.values()], {})

    async def _send(self, producer: AIOKafkaProducer, node: str, value: bytes) -> asyncio.Future[object]:
        future: asyncio.Future[object] = await producer.send(self._reports, value, key=node.encode())
        return future

    async def _beat(self, producer: AIOKafkaProducer) -> None:
        while True:
            futures = []
            for node in self._all():
                heartbeat = Heartbeat(
                    node=node.node,
                    boot=node.boot,
                    health=NodeHealth.HEALTHY,
                    at_ms=_now_ms(),
                    watermark=node.watermark,
                )
                futures.append(await producer.send(self._status, encode_heartbeat(heartbeat), key=node.node.encode()))
            await _confirmed(futures)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _plan(self, node: VirtualNode, reports: Iterable[Report]) -> None:
        for report in reports:
            self._planned += 1
            heappush(self._due, (report.due_ms, self._planned, node, report))

    def _all(self) -> list[VirtualNode]:
        return list(self._nodes.values())


@asynccontextmanager
async def _connected(
    bootstrap: str, security: KafkaSecurity
) -> AsyncIterator[tuple[AIOKafkaConsumer, AIOKafkaProducer]]:
    """A consumer without a group and an idempotent producer, both started."""
    async with AsyncExitStack() as undo:
        # Registered before it starts: a client that failed to start has connections too.
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all", **security)
        undo.push_async_callback(_stopped, producer)
        await producer.start()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **security,
        )
        undo.push_async_callback(_stopped, consumer)
        await consumer.start()
        yield consumer, producer


async def _stopped(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    """Stop a client, without waiting for a broker that is gone."""
    with suppress(TimeoutError, KafkaError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await client.stop()


async def _confirmed(futures: Sequence[asyncio.Future[object]]) -> None:
    """Wait for all; raise the first failure after all are done, so that none is left unheard."""
    results = await asyncio.gather(*futures, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _restored(
    specs: Sequence[NodeSpec], store: NodeStore, *, speed: int, delays: Delays, seed: int
) -> list[VirtualNode]:
    """Build the nodes and let each go on from its record, if it has one."""
    records = store.records()
    nodes = []
    for spec in specs:
        node = spec.as_new(boot=uuid.uuid4().hex, delays=delays, random=Random(f"{seed}/{spec.node}"), speed=speed)
        if spec.node in records:
            node.restore(records[spec.node])
        nodes.append(node)
    return nodes


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
