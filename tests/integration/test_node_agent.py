"""A node agent process on a real broker keeps its contract, killed or not."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streamsched.model.commands import Command, Place, Stop, StopReason
from streamsched.model.events import Event, NodeInventoryReported, RunReleased, RunStarted, Seat
from streamsched.wire.codec import decode, encode_command
from streamsched.wire.heartbeats import decode_heartbeat
from tests.brokers import Broker

pytestmark = pytest.mark.kafka

PARTITIONS = 4
NODES = tuple(f"n{number}" for number in range(6))
PATIENCE_SECONDS = 40.0

_AGENT = (
    "import asyncio, json, sys; from pathlib import Path; "
    "from streamsched.node.agent import run_virtual_nodes; from streamsched.node.virtual_node import NodeSpec; "
    "from streamsched.node.virtual_node import Delays; given = json.loads(sys.argv[1]); "
    "asyncio.run(run_virtual_nodes(given['bootstrap'], given['prefix'], [NodeSpec(node) for node in given['nodes']], "
    "Path(given['state']), delays=Delays(accept_ms=(1, 1), start_ms=(200, 400), stop_ms=(50, 50))))"
)


class Topics:
    """The three topics of node agents, with a prefix of their own, and one consumer and producer of the test."""

    def __init__(self, bootstrap: str, producer: AIOKafkaProducer, consumer: AIOKafkaConsumer, prefix: str) -> None:
        self.bootstrap, self.producer, self.consumer, self.prefix = bootstrap, producer, consumer, prefix
        self.reports: list[Event] = []
        self.heartbeats: set[str] = set()
        self.cursor = 0

    async def send(self, *commands: Command) -> None:
        for command in commands:
            key = command.node.encode()
            await self.producer.send_and_wait(f"{self.prefix}commands.v1", encode_command(command), key=key)

    def place(self, node: str, workload: str, argv: str, mask: int) -> Place:
        self.cursor += 1
        return Place(
            command=f"{self.cursor}/0",
            node=node,
            workload=workload,
            attempt=1,
            seats=(Seat(rank=0, node=node, gpu_mask=mask),),
            ranks=1,
            leader=node,
            argv=tuple(argv.split()),
            start_by_ms=253_402_300_799_999,
        )

    def stop(self, node: str, workload: str) -> Stop:
        self.cursor += 1
        return Stop(
            command=f"{self.cursor}/0",
            node=node,
            workload=workload,
            attempt=1,
            grace_ms=10_000,
            reason=StopReason.CANCELLED,
        )

    async def until(self, is_enough: Callable[[], bool]) -> None:
        """Read reports and heartbeats until enough is known."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_enough():
                pages: dict[TopicPartition, Sequence[ConsumerRecord]] = await self.consumer.getmany(timeout_ms=100)
                for partition, messages in pages.items():
                    for message in messages:
                        if partition.topic.endswith("node-status.v1"):
                            self.heartbeats.add(decode_heartbeat(message.value).node)
                        else:
                            event = decode(message.value)
                            assert getattr(event, "node", None) == message.key.decode()
                            self.reports.append(event)

    def released(self) -> dict[str, str]:
        return {event.workload: event.outcome.value for event in self.reports if isinstance(event, RunReleased)}

    def inventories(self) -> list[NodeInventoryReported]:
        return [event for event in self.reports if isinstance(event, NodeInventoryReported)]


@pytest.fixture
async def topics(kafka: Broker) -> AsyncIterator[Topics]:
    prefix = f"agent-{uuid4().hex}."
    names = [f"{prefix}{name}" for name in ("commands.v1", "node-reports.v1", "node-status.v1")]
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
    while any(topic["error_code"] for topic in await admin.describe_topics(names)):
        await asyncio.sleep(0.02)
    await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, enable_idempotence=True)
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=None, auto_offset_reset="earliest")
    await producer.start()
    await consumer.start()
    consumer.assign([TopicPartition(name, partition) for name in names[1:] for partition in range(PARTITIONS)])
    yield Topics(kafka.bootstrap, producer, consumer, prefix)
    await producer.stop()
    await consumer.stop()


@pytest.fixture
async def agents() -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """Ended with the test, whatever happens."""
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        process.kill()
        process.wait()


def agent(topics: Topics, state: Path, nodes: Sequence[str] = NODES) -> subprocess.Popen[bytes]:
    given = {"bootstrap": topics.bootstrap, "prefix": topics.prefix, "nodes": nodes, "state": str(state)}
    return subprocess.Popen([sys.executable, "-c", _AGENT, json.dumps(given)])


async def test_an_agent_says_what_it_is_obeys_and_reports(
    topics: Topics, agents: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Each node reports its inventory first, then starts and releases; another agent's node is left alone."""
    agents.append(agent(topics, tmp_path / "a", NODES[:5]))
    await topics.until(lambda: len(topics.inventories()) == 5 and topics.heartbeats == set(NODES[:5]))
    assert {inventory.node for inventory in topics.inventories()} == set(NODES[:5])

    await topics.send(
        topics.place("n0", "short", "sleep 0.2", 0x0F),
        topics.place("n0", "failing", "sleep 0.1 exit 7", 0xF0),
        topics.place("n1", "long", "sleep 600", 0xFF),
        topics.place("n5", "elsewhere", "sleep 0", 0xFF),
    )
    await topics.until(lambda: any(isinstance(e, RunStarted) and e.workload == "long" for e in topics.reports))
    await topics.send(topics.stop("n1", "long"))
    await topics.until(lambda: len(topics.released()) >= 3)

    assert topics.released() == {"short": "succeeded", "failing": "failed", "long": "stopped"}
    of_short = [type(e).__name__ for e in topics.reports if getattr(e, "workload", None) == "short"]
    assert of_short == ["RunStarted", "RunReleased"]


async def test_a_killed_agent_loses_no_report(
    topics: Topics, agents: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """SIGKILL three times under load: every run starts and ends, in this order, and no GPU is refused."""
    running = agent(topics, tmp_path)
    agents.append(running)
    await topics.until(lambda: len(topics.inventories()) >= len(NODES))

    expected = set()
    for wave in range(3):
        for node in NODES:
            for gpu in range(8):
                workload = f"w{wave}-{node}-{gpu}"
                expected.add(workload)
                await topics.send(topics.place(node, workload, f"sleep 0.{gpu}", 1 << gpu))
        running.kill()
        running.wait()
        await asyncio.sleep(0.5)  # Some work comes to its end while nobody is there to report it.
        running = agent(topics, tmp_path)
        agents.append(running)
        await topics.until(lambda: expected <= set(topics.released()))

    assert set(topics.released().values()) == {"succeeded"}
    for workload in expected:
        story = [type(e).__name__ for e in topics.reports if getattr(e, "workload", None) == workload]
        assert list(dict.fromkeys(story)) == ["RunStarted", "RunReleased"]
    boots = {(inventory.node, inventory.boot) for inventory in topics.inventories()}
    assert len(boots) == len(NODES)  # The machines never restarted.


async def test_two_agents_cannot_share_a_directory(
    topics: Topics, agents: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The second ends at once, with a message that says why; the first goes on."""
    first = agent(topics, tmp_path, ["n0"])
    agents.append(first)
    await topics.until(lambda: len(topics.inventories()) >= 1)

    second = agent(topics, tmp_path, ["n1"])
    agents.append(second)

    assert await asyncio.to_thread(second.wait, PATIENCE_SECONDS) != 0
    assert first.poll() is None
