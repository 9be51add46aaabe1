"""Does everything together keep its promises while parts of it are killed, from requests to completion?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from streamsched.errors import LedgerError
from streamsched.model.commands import Place, ReceiptStatus
from streamsched.model.events import RunReleased, RunStarted
from streamsched.replay.replayer import fold
from streamsched.state.cluster import ClusterState
from streamsched.state.snapshot import digest
from streamsched.state.workloads import Phase
from streamsched.wire import codec
from tests.brokers import Broker
from tests.integration.services import Deployment, Process, deployed, eventually
from tests.stories import adopted, budgets, submitted

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

WORKLOADS = 1_000
NODES = [f"n{number}" for number in range(40)]


@pytest.fixture
def deployment(kafka: Broker, tmp_path: Path) -> Iterator[Deployment]:
    with deployed(kafka.bootstrap, tmp_path) as deployment:
        yield deployment


async def start_everything(deployment: Deployment) -> tuple[list[Process], list[Process]]:
    """Start two schedulers, the edge and the nodes in processes of their own; return the schedulers and the rest."""
    await deployment.apply_topics()
    schedulers = [deployment.serve("scheduler", replica=replica) for replica in ("a", "b")]
    rest = [
        deployment.serve("intake", "health", "views", replica="edge"),
        deployment.run_nodes("nodes-1", NODES[: len(NODES) // 2]),
        deployment.run_nodes("nodes-2", NODES[len(NODES) // 2 :]),
    ]
    await deployment.tell(
        "control.v1", [("default", budgets(a=0.5, b=0.5)), ("default", adopted(resend_ms=3_000, tick_ms=1_000))]
    )
    for process in (*schedulers, rest[0]):
        await process.has_logged("running")
    state = ClusterState()

    async def ready() -> bool:
        await deployment.fold(state)
        return state.policy_version == 1 and len(state.nodes) == len(NODES)

    await eventually(ready, "the policy and the nodes in the ledger")
    return schedulers, rest


async def submit(deployment: Deployment, first: int, last: int) -> None:
    """Submit gangs of one to three nodes that work for half a second."""
    await deployment.tell(
        "workloads.v1",
        [
            (
                f"w{number}",
                submitted(
                    f"w{number}",
                    budget="ab"[number % 2],
                    ranks=1 + number % 3,
                    gpus_per_rank=4,
                    command=("sleep", "0.5"),
                ),
            )
            for number in range(first, last)
        ],
    )


async def until_finished(deployment: Deployment, state: ClusterState, count: int, patience_seconds: float) -> None:
    """Wait until `count` workloads have come to their end."""

    async def finished() -> bool:
        with suppress(LedgerError):  # While the broker is away.
            await deployment.fold(state)
        return len(state.finished) >= count

    await eventually(finished, f"{count} finished workloads", patience_seconds)


async def check_promises(deployment: Deployment, schedulers: Sequence[Process]) -> ClusterState:
    """Every workload placed exactly once per attempt and done, no gap, and every fold the same.

    An attempt after the first is lawful where a node refused: one that does not know whether the broker has its word
    that GPUs are free does not give them away twice.
    """
    async with deployment.ledger() as ledger:
        state = await fold(ledger)
    names = {f"w{number}" for number in range(WORKLOADS)}

    assert {name for name, finished in state.finished.items() if finished.phase is Phase.SUCCEEDED} == names
    assert state.gaps == []
    assert state.void == {}
    # Each node of a gang was told once per attempt; what a replica repeats has the same id.
    placed: dict[tuple[str, int, str], set[str]] = {}
    for record in await deployment.read("commands.v1"):
        command = codec.decode_command(record.value)
        assert record.key == command.node.encode()
        if isinstance(command, Place):
            placed.setdefault((command.workload, command.attempt, command.node), set()).add(command.command)
    assert all(len(ids) == 1 for ids in placed.values())
    attempts = {(name, attempt) for name in names for attempt in range(1, state.finished[name].attempts + 1)}
    assert {(workload, attempt) for workload, attempt, _ in placed} == attempts
    facts = [record.event for record in await deployment.records()]
    started = {(fact.workload, fact.attempt, fact.node) for fact in facts if isinstance(fact, RunStarted)}
    released = {(fact.workload, fact.attempt, fact.node) for fact in facts if isinstance(fact, RunReleased)}
    assert released == set(placed)
    assert {key for key in placed if key[1] == state.finished[key[0]].attempts} <= started <= set(placed)
    receipts = {
        receipt.workload
        for receipt in (codec.decode_receipt(record.value) for record in await deployment.read("receipts.v1"))
        if receipt.status is ReceiptStatus.ACCEPTED and receipt.workload is not None
    }
    assert receipts == names
    # A scheduler that stops says how far it had folded and what it had come to.
    for scheduler in schedulers:
        assert await scheduler.terminate() == 0
        said = await scheduler.has_logged("folded")
        async with deployment.ledger() as ledger:
            audited = await fold(ledger, until_cursor=said["folded"])
        assert said["folded"] >= state.next_cursor
        assert said["digest"] == digest(audited)
    return state


async def test_a_scheduler_is_killed(deployment: Deployment) -> None:
    """1,000 gangs run to their end through two replicas, of which one dies in the middle and comes back."""
    schedulers, _ = await start_everything(deployment)
    state = ClusterState()

    await submit(deployment, 0, 600)
    await until_finished(deployment, state, 200, 60)
    schedulers[0].kill()
    await submit(deployment, 600, WORKLOADS)
    await until_finished(deployment, state, 400, 60)
    schedulers[0].start()
    await until_finished(deployment, state, WORKLOADS, 90)

    state = await check_promises(deployment, schedulers)
    assert {finished.attempts for finished in state.finished.values()} == {1}


async def test_the_broker_is_killed(own_broker: Callable[[], Broker], tmp_path: Path) -> None:
    """The same while the broker dies and comes back; a supervisor starts again whatever stopped for that."""
    broker = await asyncio.to_thread(own_broker)
    with deployed(broker.bootstrap, tmp_path) as deployment:
        schedulers, rest = await start_everything(deployment)
        supervisor = asyncio.create_task(supervise([*schedulers, *rest]))
        state = ClusterState()

        await submit(deployment, 0, 600)
        await until_finished(deployment, state, 200, 60)
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(3)
        await asyncio.to_thread(broker.restart)
        await submit(deployment, 600, WORKLOADS)
        await until_finished(deployment, state, WORKLOADS, 120)

        supervisor.cancel()
        for scheduler in schedulers:
            await scheduler.has_logged("running")
        await check_promises(deployment, schedulers)
        deployment.end()


async def supervise(processes: Sequence[Process]) -> None:
    """Start again what has ended, as any supervisor does."""
    while True:
        for process in processes:
            if process.popen.poll() is not None:
                process.start()
        await asyncio.sleep(0.5)
