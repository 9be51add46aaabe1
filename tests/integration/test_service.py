"""Does the service do on a real broker what the core assumes: one ledger record for each source record, in order?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from streamsched.model.events import NodeHealth, NodeHealthChanged, Rejected, WorkloadSubmitted
from streamsched.state.cluster import ClusterState
from streamsched.wire import codec
from streamsched.wire.heartbeats import Heartbeat, encode_heartbeat
from tests.brokers import Broker
from tests.integration.services import Deployment, deployed, eventually
from tests.stories import budgets, node, submitted

pytestmark = pytest.mark.kafka


@pytest.fixture
def deployment(kafka: Broker, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(kafka.bootstrap, tmp_path) as deployment:
        yield deployment


async def folded(deployment: Deployment, count: int) -> ClusterState:
    """Wait until the ledger holds `count` records that came from sources, and return its fold."""
    state = ClusterState()

    async def enough() -> bool:
        await deployment.fold(state)
        return sum(seq + 1 for seq in state.sources.values()) >= count

    await eventually(enough, f"{count} source records in the ledger")
    return state


async def fund(deployment: Deployment) -> None:
    """Let team ``a`` have everything. Topics have no order between them, so wait until the ledger has it."""
    await deployment.tell("control.v1", [("default", budgets(a=1.0))])
    await folded(deployment, 1)


async def test_every_source_record_gives_one_ledger_record(deployment: Deployment) -> None:
    """Requests of all three topics reach the ledger whole, each stamped with where it came from."""
    await deployment.apply_topics()
    service = deployment.serve("intake")

    await fund(deployment)
    await deployment.tell("node-reports.v1", [("n1", node("n1"))])
    where = await deployment.tell("workloads.v1", [(f"w{i}", submitted(f"w{i}")) for i in range(500)])
    state = await folded(deployment, 502)

    assert state.gaps == []
    stamps = {
        (record.event.src, record.event.seq)
        for record in await deployment.records()
        if isinstance(record.event, WorkloadSubmitted)
    }
    assert stamps == {(f"workloads.v1/{partition}", offset) for partition, offset in where}
    assert await service.terminate() == 0


async def test_nothing_is_lost_when_intake_is_killed(deployment: Deployment) -> None:
    """Killed in mid-stream and started again, intake repeats some records and leaves none out."""
    await deployment.apply_topics()
    first = deployment.serve("intake")
    await fund(deployment)
    await deployment.tell("workloads.v1", [(f"w{i}", submitted(f"w{i}")) for i in range(10_000)])

    async def under_way() -> bool:
        async with deployment.ledger() as ledger:
            return await ledger.end() > 2_000

    await eventually(under_way, "2,000 records in the ledger")
    first.kill()
    second = deployment.serve("intake")
    state = await folded(deployment, 10_001)

    assert state.gaps == []
    assert len(state.workloads) == 10_000
    assert await second.terminate() == 0


async def test_a_second_intake_takes_over_partitions(deployment: Deployment) -> None:
    """A worker that joins and one that leaves repeat records at most."""
    await deployment.apply_topics()
    first = deployment.serve("intake")
    await fund(deployment)
    await deployment.tell("workloads.v1", [(f"w{i}", submitted(f"w{i}")) for i in range(6_000)])
    second = deployment.serve("intake", replica="b")
    await second.has_logged("running")
    await deployment.tell("workloads.v1", [(f"w{i}", submitted(f"w{i}")) for i in range(6_000, 8_000)])
    first.kill()
    await deployment.tell("workloads.v1", [(f"w{i}", submitted(f"w{i}")) for i in range(8_000, 9_000)])

    state = await folded(deployment, 9_001)

    assert state.gaps == []
    assert len(state.workloads) == 9_000


async def test_a_record_that_is_no_event_is_a_dead_letter(deployment: Deployment) -> None:
    """Its bytes are kept with where it came from and why, a `Rejected` takes its place, and the next one flows."""
    await deployment.apply_topics()
    service = deployment.serve("intake")
    await fund(deployment)
    newer = json.dumps({"type": "workload_submitted", "v": 99, "workload": "w9"}).encode()
    poison: list[bytes | None] = [
        b"{",
        b"\xff\xfe",
        b"",
        None,
        newer,
        b'{"type":"tick","v":1,"tick":1}',
        b"[" * 200_000,
    ]
    where = await deployment.send("workloads.v1", [("k", value) for value in poison])
    await deployment.tell("workloads.v1", [("k", submitted("good"))])

    state = await folded(deployment, len(poison) + 2)

    assert list(state.workloads) == ["good"]
    assert state.gaps == []
    letters = {
        int(dict(letter.headers)["source.offset"]): letter for letter in await deployment.read("dead-letters.v1")
    }
    facts = [record.event for record in await deployment.records()]
    rejected = {fact.seq: fact for fact in facts if isinstance(fact, Rejected)}
    assert list(letters) == list(rejected) == [offset for _, offset in where]
    for value, (partition, offset) in zip(poison, where, strict=True):
        headers = dict(letters[offset].headers)
        assert letters[offset].value == value
        assert headers["source.topic"].decode() == f"{deployment.prefix}workloads.v1"
        assert int(headers["source.partition"]) == partition
        assert headers["source.key"] == b"k"
        assert headers["code"].decode() == rejected[offset].code
        assert headers["reason"].decode() == rejected[offset].reason
    assert rejected[where[4][1]].workload == "w9"
    assert rejected[where[4][1]].code == "unsupported_version"
    assert await service.terminate() == 0


async def test_a_silent_node_is_lost(deployment: Deployment) -> None:
    """One lease after its last heartbeat, also when the health agent was killed and started again in between."""
    await deployment.apply_topics()

    async def beat(name: str) -> None:
        health: Literal[NodeHealth.HEALTHY, NodeHealth.UNHEALTHY]
        health = NodeHealth.UNHEALTHY if name == "sick" else NodeHealth.HEALTHY
        heartbeat = Heartbeat(node=name, boot="b", health=health, at_ms=0)
        key = "other" if name == "misplaced" else name
        await deployment.send("node-status.v1", [(key, encode_heartbeat(heartbeat))])

    async def said(name: str) -> list[NodeHealth]:
        return [
            record.event.health
            for record in await deployment.records()
            if isinstance(record.event, NodeHealthChanged) and record.event.node == name
        ]

    first = deployment.serve("health", lease_ms=3_000)
    await first.has_logged("running")
    await beat("dies")
    await beat("lives")
    await beat("sick")
    await beat("dies")
    await beat("misplaced")
    await deployment.send("node-status.v1", [("x", b"{}")])

    async def all_said() -> bool:
        return bool(await said("sick") and await said("dies") and await said("lives"))

    await eventually(all_said, "the health of three nodes")
    await asyncio.sleep(2.5)  # Its offsets are committed by now, so that what it read does not come again.
    first.kill()
    second = deployment.serve("health", lease_ms=3_000)

    async def lost() -> bool:
        await beat("lives")
        await beat("sick")
        return NodeHealth.LOST in await said("dies")

    await eventually(lost, "the loss of a silent node")
    await beat("dies")

    async def back() -> bool:
        return (await said("dies"))[-1] is NodeHealth.HEALTHY

    await eventually(back, "its return")
    assert await said("dies") == [NodeHealth.HEALTHY, NodeHealth.LOST, NodeHealth.HEALTHY]
    assert await said("lives") == [NodeHealth.HEALTHY]
    assert await said("sick") == [NodeHealth.UNHEALTHY]
    letters = await deployment.read("dead-letters.v1")
    assert {dict(letter.headers)["code"] for letter in letters} == {b"missing_field", b"invalid_field"}
    assert await second.terminate() == 0


async def test_requests_made_while_no_scheduler_ran_are_answered(deployment: Deployment) -> None:
    """The only scheduler dies; what is asked for meanwhile has its receipt once it is back, and so has all before."""
    await deployment.apply_topics()
    deployment.serve("intake")
    scheduler = deployment.serve("scheduler")
    await scheduler.has_logged("running")
    await fund(deployment)
    await deployment.tell("workloads.v1", [(f"w{i}", submitted(f"w{i}")) for i in range(20)])
    await answered(deployment, {f"w{i}" for i in range(20)})
    mark = deployment.directory / "data-a" / "scheduler-default-0-a.folded"
    await eventually(lambda: asyncio.to_thread(mark.exists), "the mark of the scheduler")

    scheduler.kill()
    await deployment.tell("workloads.v1", [(f"w{i}", submitted(f"w{i}")) for i in range(20, 60)])
    await folded(deployment, 61)
    scheduler.start()

    await answered(deployment, {f"w{i}" for i in range(60)})


async def test_a_scheduler_stops_when_its_ledger_begins_anew(deployment: Deployment) -> None:
    """Somebody deletes the topic and makes it again: what follows is no continuation of what was folded."""
    await deployment.apply_topics()
    deployment.serve("intake")
    scheduler = deployment.serve("scheduler")
    await scheduler.has_logged("running")
    await fund(deployment)
    await deployment.tell("workloads.v1", [(f"w{i}", submitted(f"w{i}")) for i in range(20)])
    await answered(deployment, {f"w{i}" for i in range(20)})

    await delete(deployment, "ledger.v1")
    await asyncio.sleep(1)
    await deployment.apply_topics()

    assert await scheduler.exit_code() == 70
    (said,) = [line for line in scheduler.logged() if line["level"] == "critical"]
    assert "LedgerTruncatedError" in said["exception"]


async def test_intake_stops_when_one_of_its_topics_is_gone(deployment: Deployment) -> None:
    """It would stand still without a word, even once the topic is back. A start without the topic is refused."""
    await deployment.apply_topics()
    intake = deployment.serve("intake")
    await intake.has_logged("running")

    await delete(deployment, "workloads.v1")

    assert await intake.exit_code() == 70
    (said,) = [line for line in intake.logged() if line["event"] == "topics are gone"]
    assert said["topics"] == [deployment.prefix + "workloads.v1"]
    intake.start()
    assert await intake.exit_code() == 78


async def delete(deployment: Deployment, topic: str) -> None:
    """Delete a topic, as a person may by mistake."""
    admin = AIOKafkaAdminClient(bootstrap_servers=deployment.bootstrap)
    await admin.start()
    await admin.delete_topics([deployment.prefix + topic])
    await admin.close()


async def answered(deployment: Deployment, workloads: set[str]) -> None:
    """Wait for the receipts of these workloads."""

    async def all_there() -> bool:
        receipts = [codec.decode_receipt(record.value) for record in await deployment.read("receipts.v1")]
        return workloads <= {receipt.workload for receipt in receipts}

    await eventually(all_there, f"{len(workloads)} receipts")
