"""From a submission on its topic to the command on the nodes' topic, through a running service on a real Kafka.

It is compared with a record that is sent and read back on the same broker by the same client. The two take turns, in
blocks of some seconds, so that what the machine does to one it does to the other, and neither is in the other's way.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from streamsched.model.commands import Place
from streamsched.model.quantities import HOUR
from streamsched.service.scheduling_agent import COMMANDS_TOPIC
from streamsched.state.cluster import ClusterState
from streamsched.wire import codec
from tests.benchmarks.measuring import Bound, Limit, Result
from tests.integration.services import Deployment, deployed, eventually
from tests.ledger_topics import create_ledger_topic
from tests.stories import adopted, budgets, nodes, submitted

#: Four hops are the floor: to intake, to the ledger and back, to the ledger and back as a proposal, to the nodes. The
#: prototype had 7.5.
P50_RATIO_MAX = Limit(Bound.AT_MOST, 8.0)

PER_SECOND = 50
#: Records of one block, and how many blocks of each kind; the first is not counted.
BLOCK, BLOCKS = 150, 6
#: A record that is not back after this is lost.
PATIENCE_SECONDS = 30.0


async def measure(bootstrap: str, directory: Path) -> AsyncIterator[Result]:
    """Measure both on one broker; yield the results.

    Args:
        bootstrap: A broker that does nothing else.
        directory: Where the service keeps its files and its log.
    """
    with deployed(bootstrap, directory) as deployment:
        await deployment.apply_topics()
        # No node acknowledges here, so nothing is to be sent again.
        await deployment.tell("control.v1", [("default", adopted(resend_ms=HOUR)), ("default", budgets(a=1.0))])
        # Room for all: a decision has something to place each time, and nothing ever waits.
        await deployment.tell("node-reports.v1", [(node.node, node) for node in nodes(BLOCK * BLOCKS // 8 + 1)])
        service = deployment.serve("intake", "health", "scheduler", "views")
        await service.has_logged("running")
        await _is_ready(deployment)

        echo_topic = await create_ledger_topic(bootstrap)
        async with (
            _Traffic(bootstrap, echo_topic, echo_topic, lambda value: value.decode()) as echoes,
            _Traffic(
                bootstrap, deployment.prefix + "workloads.v1", deployment.prefix + COMMANDS_TOPIC, _placed
            ) as submissions,
        ):
            there_and_back: list[float] = []
            to_command: list[float] = []
            for block in range(BLOCKS):
                names = [f"{block}-{number}" for number in range(BLOCK)]
                echoed = await echoes.run({name: name.encode() for name in names})
                commanded = await submissions.run(
                    {name: codec.encode(submitted(name, gpus_per_rank=1)) for name in names}
                )
                if block:
                    there_and_back += echoed
                    to_command += commanded
        await service.terminate()

    counted = f"{len(to_command)} at {PER_SECOND}/s"
    for what, waits in (("sent and read back", there_and_back), ("submission to command", to_command)):
        yield Result(f"Kafka, {counted}: {what}, p50", 1e3 * statistics.median(waits), "ms")
        yield Result(f"Kafka, {counted}: {what}, p99", 1e3 * statistics.quantiles(waits, n=100)[98], "ms")
    ratio = statistics.median(to_command) / statistics.median(there_and_back)
    yield Result(
        f"Kafka, {counted}: submission to command / sent and read back, p50 of each", ratio, limit=P50_RATIO_MAX
    )


async def _is_ready(deployment: Deployment) -> None:
    """Wait until the service has folded what it must know before it can place anything."""

    async def knows_all() -> bool:
        state = await deployment.fold(ClusterState())
        return bool(state.budgets.by_id) and len(state.nodes) > BLOCK * BLOCKS // 8

    await eventually(knows_all, "the budgets and the nodes in the ledger")


def _placed(value: bytes) -> str | None:
    command = codec.decode_command(value)
    return command.workload if isinstance(command, Place) else None


class _Traffic:
    """Sends records at a steady rate to one topic, and waits for what answers them on another.

    The tailing consumer gets whatever is appended after it was entered.
    """

    def __init__(self, bootstrap: str, to: str, back: str, name_of: Callable[[bytes], str | None]) -> None:
        """Prepare.

        Args:
            bootstrap: The broker.
            to: The topic that is written.
            back: The topic that is read.
            name_of: Says which record an answer belongs to; None for no answer.
        """
        self._bootstrap = bootstrap
        self._to = to
        self._back = back
        self._name_of = name_of
        self._waiting: dict[str, asyncio.Future[float]] = {}

    async def __aenter__(self) -> _Traffic:
        self._producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, enable_idempotence=True, acks="all")
        await self._producer.start()
        # In no group, so that it reads from where it is told to, and nothing is committed.
        self._consumer = AIOKafkaConsumer(self._back, bootstrap_servers=self._bootstrap, group_id=None)
        await self._consumer.start()
        for partition in self._consumer.assignment():
            await self._consumer.position(partition)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        await self._consumer.stop()
        await self._producer.stop()

    async def run(self, records: dict[str, bytes]) -> list[float]:
        """Send each record in its turn; return how many seconds each took until its answer was read."""
        loop = asyncio.get_running_loop()
        began: dict[str, float] = {}
        first = time.perf_counter()
        for number, (name, value) in enumerate(records.items()):
            await asyncio.sleep(max(0.0, first + number / PER_SECOND - time.perf_counter()))
            self._waiting[name] = loop.create_future()
            began[name] = time.perf_counter()
            await self._producer.send(self._to, value, key=name.encode())
        async with asyncio.timeout(PATIENCE_SECONDS):
            ended = await asyncio.gather(*self._waiting.values())
        self._waiting.clear()
        return [end - began[name] for name, end in zip(records, ended, strict=True)]

    async def _read(self) -> None:
        async for message in self._consumer:
            name = self._name_of(message.value)
            answered = self._waiting.get(name) if name is not None else None
            if answered is not None and not answered.done():
                answered.set_result(time.perf_counter())
