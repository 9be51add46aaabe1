"""Is each trap of Faust and Kafka that a straightforward program falls into one that the service steps around?"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streamsched.errors import LedgerTruncatedError
from streamsched.model.events import StateHashed, Tick
from streamsched.model.ledger import Entry
from streamsched.model.quantities import DAY, HOUR
from streamsched.service.folded_mark import FoldedMark
from streamsched.service.metrics import Metrics
from streamsched.service.outbox import Outbox
from streamsched.service.scheduling_agent import SchedulingAgent
from streamsched.service.view_records import BudgetHour
from streamsched.state.cluster import LAYOUT, ClusterState
from streamsched.wire import codec
from streamsched.wire.topic_catalogue import catalogue
from tests.brokers import Broker
from tests.integration.services import Deployment, deployed, eventually
from tests.stories import budgets, node, submitted

pytestmark = pytest.mark.kafka

#: What a process says with its exit code: something that must not happen, and wrong before anything was started.
FAIL_STOP, CONFIGURATION = 70, 78


@pytest.fixture
def deployment(kafka: Broker, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(kafka.bootstrap, tmp_path) as deployment:
        yield deployment


async def append(deployment: Deployment, *data: bytes) -> list[Entry]:
    async with deployment.ledger(readonly=False) as ledger:
        return [await ledger.append(record) for record in data]


@pytest.mark.parametrize(
    ("newer", "said"),
    [
        ({"type": "tick", "v": 2, "tick": 1}, "tick has version 2"),
        ({"type": "node_moved", "v": 1}, "node_moved"),
    ],
    ids=["version", "type"],
)
async def test_a_newer_event_stops_the_scheduler(deployment: Deployment, newer: dict[str, object], said: str) -> None:
    """Folding on without it would part from those who know it. A decision of an admin leads past it."""
    await deployment.apply_topics()
    scheduler = deployment.serve("scheduler")
    await scheduler.has_logged("running")

    (entry,) = await append(deployment, json.dumps(newer).encode())

    assert await scheduler.exit_code() == FAIL_STOP
    assert said in critical(scheduler.log)
    # It does not get past it by itself either.
    scheduler.start()
    assert await scheduler.exit_code() == FAIL_STOP
    skipped = {"type": "ledger_skipped", "v": 1, "cursor": entry.cursor, "reason": "written by mistake"}
    await append(deployment, json.dumps(skipped).encode())
    scheduler.start()
    await scheduler.has_logged("running")
    assert await scheduler.terminate() == 0


def critical(log: Path) -> str:
    return "\n".join(line for line in log.read_text().splitlines() if '"level": "critical"' in line)


async def test_another_digest_stops_the_scheduler(deployment: Deployment) -> None:
    """A recorded digest that is not ours means that one of two folds is wrong."""
    await deployment.apply_topics()
    async with deployment.ledger(readonly=False) as ledger:
        state = ClusterState()
        while not state.digests:
            batch = [codec.encode(Tick(tick=tick)) for tick in range(state.next_cursor + 1, state.next_cursor + 501)]
            for entry in await asyncio.gather(*map(ledger.append, batch)):
                state.apply(codec.read(entry))
        (folded,) = state.digests
        wrong = StateHashed(folded=folded, digest="0" * 64, build="another", layout=LAYOUT)
        await ledger.append(codec.encode(wrong))
    scheduler = deployment.serve("scheduler")

    assert await scheduler.exit_code() == FAIL_STOP
    assert f"the state after cursor {folded}" in scheduler.log.read_text()


async def test_what_is_no_event_at_all_is_folded_to_nothing(deployment: Deployment) -> None:
    """Any bytes in the ledger fold to something, so that they cannot stop every scheduler for ever."""
    await deployment.apply_topics()
    await append(deployment, b"", b"\xff", b"[]", b'{"type":"tick","v":1,"tick":-1}')
    scheduler = deployment.serve("scheduler")
    await scheduler.has_logged("running")

    await append(deployment, codec.encode(budgets(a=1.0)), codec.encode(node("n1")), codec.encode(submitted("w1")))

    async def placed() -> bool:
        return bool(await deployment.read("commands.v1"))

    await eventually(placed, "a command")
    assert await scheduler.terminate() == 0


async def test_a_wrong_partition_count_refuses_to_start(deployment: Deployment) -> None:
    """Faust would say it is ready and crash its agents for ever. We say which topic, and what to do."""
    name = deployment.prefix + "workloads.v1"
    admin = AIOKafkaAdminClient(bootstrap_servers=deployment.bootstrap)
    try:
        await admin.start()
        await admin.create_topics([NewTopic(name, 5, 1)])
    finally:
        await admin.close()
    service = deployment.serve("intake")

    assert await service.exit_code() == CONFIGURATION
    said = critical(service.log)
    assert f"{name}: partitions is 5 and must be {catalogue()['workloads.v1'].partitions}" in said
    assert f"{deployment.prefix}ledger.v1 is missing. Run `streamsched topics apply`." in said
    assert "streamsched topics apply" in said


async def test_sigterm_while_joining_ends_it(deployment: Deployment) -> None:
    """Faust hangs when it is stopped while it joins its group; ours is gone within 15 s."""
    await deployment.apply_topics()
    first = deployment.serve("intake")
    await first.has_logged("running")
    first.kill()  # Its session has seconds to go, and the next member waits for its end.
    second = deployment.serve("intake")
    await second.has_logged("settings")
    await asyncio.sleep(2.5)

    began = time.monotonic()
    assert await second.terminate() == 0
    assert time.monotonic() - began < 15


async def test_the_ports_are_open_to_this_machine_only(deployment: Deployment) -> None:
    """Faust's own command binds 0.0.0.0 and serves its tables. We bind loopback, for two pages and the metrics."""
    await deployment.apply_topics()
    service = deployment.serve("intake", "health", "scheduler", "views")
    await service.has_logged("running")
    settings = await service.has_logged("settings")

    assert listening(service.popen.pid) == {
        ("127.0.0.1", settings["web_port"]),
        ("127.0.0.1", settings["metrics_port"]),
    }
    status, _ = await get(f"http://127.0.0.1:{settings['web_port']}/table/")
    assert status == 404
    status, metrics = await get(f"http://127.0.0.1:{settings['metrics_port']}/metrics")
    assert status == 200
    assert 'streamsched_commands_unacked{cluster="default"}' in metrics
    assert await service.terminate() == 0


def listening(pid: int) -> set[tuple[str, int]]:
    """Return the addresses on which a process listens, from what Linux says of its sockets."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = descriptor.readlink().name if descriptor.is_symlink() else ""
        if target.startswith("socket:["):
            sockets.add(target.removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                address, port = fields[1].split(":")
                ip = ".".join(str(byte) for byte in reversed(bytes.fromhex(address))) if table == "tcp" else address
                found.add((ip, int(port, 16)))
    return found


async def get(url: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(ask)


async def test_views_keep_an_old_history(deployment: Deployment) -> None:
    """Hours of 2023 stay in the view: Faust's windowed tables would expire them at once. A lower cursor is dropped."""
    await deployment.apply_topics()
    november_2023 = 1_700_000_000_000 // HOUR * HOUR
    hours = [
        BudgetHour(
            as_of=1_000 + number,
            budget="nlp/llama",
            hour_ms=november_2023 + number * HOUR,
            allocated_gpu_ms=number,
            unallocated_gpu_ms=0,
            queued_gpu_ms=0,
            quota_gpu_ms=0,
        )
        for number in range(7 * 24)
    ]
    stale = hours[3].model_copy(update={"as_of": 5, "allocated_gpu_ms": 999})
    await deployment.send(
        "usage.v1", [(hour.key, hour.model_dump_json().encode()) for hour in (*hours, stale)] + [("x", b"nonsense")]
    )
    views = deployment.serve("views")
    await views.has_logged("running")
    url = f"http://127.0.0.1:{(await views.has_logged('settings'))['web_port']}/usage?budget=nlp/llama"

    async def shown() -> list[object]:
        _, body = await get(url)
        rows: list[object] = json.loads(body)["hours"]
        return rows if len(rows) == len(hours) else []

    expected = [hour.model_dump() for hour in hours]
    assert await eventually(shown, "a week of hours") == expected
    # What is in the table comes back after a crash.
    await asyncio.sleep(2)
    views.kill()
    views.start()
    await views.has_logged("running")
    assert await eventually(shown, "the same week") == expected
    assert await views.terminate() == 0
    assert november_2023 + 365 * DAY < time.time() * 1000


async def test_a_hole_in_delivery_is_read_from_the_log(deployment: Deployment, tmp_path: Path) -> None:
    """What Faust leaves out, as after a rebalance or a restart, is read from the ledger; repeats are skipped."""
    await deployment.apply_topics()
    outbox = await Outbox.start(deployment.bootstrap, {})
    async with deployment.ledger(readonly=False) as ledger:
        agent = SchedulingAgent(
            ledger, outbox, FoldedMark(tmp_path / "mark"), Metrics("c"), replica="a", topic_prefix=deployment.prefix
        )
        await agent.recover()
        entries = [await ledger.append(codec.encode(Tick(tick=tick))) for tick in range(1, 8)]

        await agent.deliver(entries[0])
        assert agent.folded == 1
        await agent.deliver(entries[4])
        assert agent.folded == 7  # Whatever the ledger held beyond the hole came with it.
        await agent.deliver(entries[2])
        await agent.deliver(entries[6])
        assert agent.folded == 7
    await outbox.stop()


async def test_a_truncated_ledger_refuses_to_start(deployment: Deployment) -> None:
    """A scheduler that has seen more than the ledger holds does not decide on what is left."""
    await deployment.apply_topics()
    (deployment.directory / "data-a").mkdir()
    (deployment.directory / "data-a" / "scheduler-default-0-a.folded").write_text("4711\n")
    scheduler = deployment.serve("scheduler")

    assert await scheduler.exit_code() == FAIL_STOP
    assert "cursor 4711 was reached before" in critical(scheduler.log)
    mark = FoldedMark(deployment.directory / "data-a" / "scheduler-default-0-a.folded")
    with pytest.raises(LedgerTruncatedError):
        mark.check(4710)
    mark.check(4711)


async def test_without_a_broker_it_says_so(own_broker: Callable[[], Broker], tmp_path: Path) -> None:
    """A broker that does not answer ends the start with its address, and no trace of Python."""
    broker = await asyncio.to_thread(own_broker)
    await asyncio.to_thread(broker.kill)
    with deployed(broker.bootstrap, tmp_path) as deployment:
        service = deployment.serve("intake")

        assert await service.exit_code() == FAIL_STOP
        assert f"no broker at {broker.bootstrap} answered" in critical(service.log)
        assert "Traceback" not in service.log.read_text()
