"""Runs the service as it is run in earnest: processes on topics of the test's own, on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

from streamsched.ledgers.kafka import KafkaLedger
from streamsched.model.events import Event, Record
from streamsched.service import topic_administration
from streamsched.state.cluster import ClusterState
from streamsched.state.invariants import check
from streamsched.wire import codec

T = TypeVar("T")

_SERVE = (
    "import sys; from streamsched.service.app import serve; from streamsched.service.settings import load_settings; "
    "sys.exit(serve(load_settings()))"
)
_NODES = (
    "import asyncio, json, sys; from pathlib import Path; "
    "from streamsched.node.agent import run_virtual_nodes; from streamsched.node.virtual_node import NodeSpec; "
    "from streamsched.node.virtual_node import IDEAL; given = json.loads(sys.argv[1]); "
    "asyncio.run(run_virtual_nodes(given['bootstrap'], given['prefix'], [NodeSpec(node) for node in given['nodes']], "
    "Path(given['state']), delays=IDEAL))"
)
#: How long a process may take to do what it is asked to, on a busy machine.
PATIENCE_SECONDS = 40.0


class Process:
    """One process of a deployment, and what it logs."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self._arguments = arguments
        self._environment = environment
        self.log = log
        self.start()

    def start(self) -> None:
        """Start it, also once more after its end; the log goes on."""
        self._begun = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", *self._arguments], stdout=output, stderr=output, env=self._environment
            )

    def logged(self) -> list[dict[str, Any]]:
        """Return the log lines of the present run that are ours."""
        with self.log.open("rb") as file:
            file.seek(self._begun)
            lines = file.read().decode("utf-8", "replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    async def has_logged(self, event: str) -> dict[str, Any]:
        """Wait for a log line of the present run."""

        async def found() -> dict[str, Any] | None:
            for line in self.logged():
                if line["event"] == event:
                    return line
            assert self.popen.poll() is None, f"exit {self.popen.returncode}:\n{self.log.read_text()[-4000:]}"
            return None

        return await eventually(found, f"{event!r} in {self.log}")

    async def exit_code(self, patience_seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for its end."""

        async def ended() -> tuple[int] | None:
            code = self.popen.poll()
            return None if code is None else (code,)

        (code,) = await eventually(ended, f"the end of {self.log.stem}", patience_seconds)
        return code

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self.popen.kill()
        self.popen.wait()

    async def terminate(self) -> int:
        """Ask it to stop (SIGTERM); return its exit code."""
        self.popen.send_signal(signal.SIGTERM)
        return await self.exit_code()


class Deployment:
    """Topics with a prefix of their own, and the processes that run on them."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.prefix = f"test-{uuid4().hex}."
        self.directory = directory
        self.processes: list[Process] = []

    async def apply_topics(self) -> None:
        await topic_administration.apply(self.bootstrap, self.prefix, replication=1)

    def serve(self, *roles: str, replica: str = "a", **settings: object) -> Process:
        """Start `streamsched serve` with some roles; further settings by their names."""
        given = {
            "bootstrap": self.bootstrap,
            "topic_prefix": self.prefix,
            "roles": ",".join(roles),
            "replica": replica,
            "data_dir": self.directory / f"data-{replica}",
            "web_port": free_port(),
            "metrics_port": free_port(),
            **settings,
        }
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMSCHED_")}
        environment |= {f"STREAMSCHED_{name.upper()}": str(value) for name, value in given.items()}
        return self._run([_SERVE], f"{'-'.join(roles)}-{replica}", environment)

    def run_nodes(self, name: str, nodes: Sequence[str]) -> Process:
        """Start a process of virtual nodes that take no time but the work's own."""
        given = {
            "bootstrap": self.bootstrap,
            "prefix": self.prefix,
            "nodes": list(nodes),
            "state": str(self.directory / name),
        }
        return self._run([_NODES, json.dumps(given)], name, dict(os.environ))

    def _run(self, arguments: Sequence[str], name: str, environment: dict[str, str]) -> Process:
        process = Process(arguments, self.directory / f"{name}-{len(self.processes)}.log", environment)
        self.processes.append(process)
        return process

    async def send(self, topic: str, records: Iterable[tuple[str | None, bytes | None]]) -> list[tuple[int, int]]:
        """Write keys and values to one of our topics; return the partition and offset of each."""
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, enable_idempotence=True, acks="all")
        await producer.start()
        try:
            sent = [
                await producer.send(self.prefix + topic, value, key=None if key is None else key.encode())
                for key, value in records
            ]
            return [(done.partition, done.offset) for done in await asyncio.gather(*sent)]
        finally:
            await producer.stop()

    async def tell(self, topic: str, events: Iterable[tuple[str, Event]]) -> list[tuple[int, int]]:
        """Write events under their keys."""
        return await self.send(topic, [(key, codec.encode(event)) for key, event in events])

    async def read(self, topic: str) -> list[ConsumerRecord]:
        """Return every record of one of our topics, in order within each partition."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap, group_id=None, auto_offset_reset="earliest")
        await consumer.start()
        try:
            partitions = [
                TopicPartition(self.prefix + topic, number)
                for number in sorted(consumer.partitions_for_topic(self.prefix + topic) or ())
            ] or await self._partitions(consumer, topic)
            ends = await consumer.end_offsets(partitions)
            consumer.assign(partitions)
            records: list[ConsumerRecord] = []
            while any([await consumer.position(where) < end for where, end in ends.items()]):
                for page in (await consumer.getmany(timeout_ms=500)).values():
                    records.extend(page)
            return records
        finally:
            await consumer.stop()

    async def _partitions(self, consumer: AIOKafkaConsumer, topic: str) -> list[TopicPartition]:
        await consumer._client.force_metadata_update()
        consumer._client.add_topic(self.prefix + topic)
        await consumer._client.force_metadata_update()
        return [
            TopicPartition(self.prefix + topic, number)
            for number in sorted(consumer.partitions_for_topic(self.prefix + topic))
        ]

    @contextlib.asynccontextmanager
    async def ledger(self, *, readonly: bool = True) -> AsyncIterator[KafkaLedger]:
        """The ledger, opened by the test."""
        ledger = await KafkaLedger.open(self.bootstrap, self.prefix + "ledger.v1", readonly=readonly)
        try:
            yield ledger
        finally:
            await ledger.close()

    async def records(self) -> list[Record]:
        """Return every record of the ledger, decoded."""
        async with self.ledger() as ledger:
            return [codec.read(entry) async for page in ledger.read() for entry in page]

    async def fold(self, state: ClusterState) -> ClusterState:
        """Fold what the ledger holds beyond `state` into it, and check the invariants."""
        async with self.ledger() as ledger:
            async for page in ledger.read(state.next_cursor):
                for entry in page:
                    state.apply(codec.read(entry))
        check(state)
        return state

    def end(self) -> None:
        """End every process that still runs."""
        for process in self.processes:
            if process.popen.poll() is None:
                process.kill()


@contextlib.contextmanager
def deployed(bootstrap: str, directory: Path) -> Iterator[Deployment]:
    """A deployment whose processes end with the test."""
    deployment = Deployment(bootstrap, directory)
    try:
        yield deployment
    finally:
        deployment.end()


async def eventually(
    ask: Callable[[], Awaitable[T | None]], what: str, patience_seconds: float = PATIENCE_SECONDS
) -> T:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + patience_seconds
    while True:
        answer = await ask()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience_seconds:.0f} s in vain for {what}")
        await asyncio.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
