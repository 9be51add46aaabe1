"""Virtual nodes in the process: what they hold is remembered, what they report is in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamsched.embedded.local_nodes import LocalNodes
from streamsched.model.commands import Command, Place, Stop, StopReason
from streamsched.model.events import (
    Event,
    NodeHealth,
    NodeHealthChanged,
    NodeInventoryReported,
    ReleaseOutcome,
    RunReleased,
    RunStarted,
    Seat,
)
from streamsched.node.durable import NodeStore
from streamsched.node.virtual_node import NodeSpec
from streamsched.state.inventory import Node

NOW_MS = 1_000_000


class Clock:
    """A clock that tests set; it may go on by itself whenever it is looked at."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.step_ms = 0

    def __call__(self) -> int:
        self.now_ms += self.step_ms
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hosted(tmp_path: Path, clock: Clock) -> Iterator[Callable[..., LocalNodes]]:
    """Hosts nodes in one directory, each call as a new process would."""
    stores: list[NodeStore] = []

    def host(*specs: NodeSpec, known: dict[str, Node] | None = None) -> LocalNodes:
        if stores:
            stores.pop().close()
        stores.append(NodeStore(tmp_path))
        nodes = LocalNodes(stores[0], speed=1, clock=clock)
        nodes.host(specs, known or {})
        return nodes

    yield host
    for store in stores:
        store.close()


def place(node: str = "n1", seconds: int = 60, command: str = "5/0", workload: str = "w") -> Place:
    return Place(
        command=command,
        node=node,
        workload=workload,
        attempt=1,
        seats=(Seat(rank=0, node=node, gpu_mask=0b1111),),
        ranks=1,
        leader=node,
        argv=("sleep", str(seconds)),
        start_by_ms=NOW_MS + 600_000,
    )


async def presence(nodes: LocalNodes, known: dict[str, Node] | None = None) -> list[Event]:
    facts: list[Event] = []

    async def report(fact: Event) -> None:
        facts.append(fact)

    await nodes.report_presence(report, known or {})
    return facts


async def obeyed(nodes: LocalNodes, *commands: Command) -> None:
    """Run the nodes until they have taken the commands, and report nothing yet."""

    async def report(fact: Event) -> None:
        raise AssertionError(f"nothing is due yet, and {fact} was reported")

    running = asyncio.ensure_future(nodes.run(report))
    nodes.obey(commands)
    await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def reports(nodes: LocalNodes, count: int) -> list[Event]:
    """Run the nodes until they have reported so much."""
    facts: list[Event] = []
    enough = asyncio.Event()

    async def report(fact: Event) -> None:
        facts.append(fact)
        if len(facts) >= count:
            enough.set()

    running = asyncio.ensure_future(nodes.run(report))
    async with asyncio.timeout(5):
        await enough.wait()
    await asyncio.sleep(0)  # What was reported is written down.
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return facts


KNOWN = {"n1": Node("n1", "gpu", 8, (), NOW_MS)}


async def test_a_run_outlives_the_process(hosted: Callable[..., LocalNodes], clock: Clock) -> None:
    """A node that is hosted again holds what it held, and the run ends when it would have."""
    await obeyed(hosted(NodeSpec("n1")), place())

    again = hosted(NodeSpec("n1"), known=KNOWN)

    (inventory,) = await presence(again)
    assert isinstance(inventory, NodeInventoryReported)
    assert [(run.workload, run.attempt, run.gpu_mask) for run in inventory.runs] == [("w", 1, 0b1111)]
    assert inventory.watermark == "5/0"
    clock.now_ms += 120_000
    facts = await reports(again, 3)
    assert isinstance(facts[1], RunStarted)
    assert isinstance(facts[2], RunReleased)
    assert facts[2].outcome is ReleaseOutcome.SUCCEEDED


async def test_a_command_that_was_obeyed_before_the_restart_is_not_obeyed_again(
    hosted: Callable[..., LocalNodes], clock: Clock
) -> None:
    """The watermark is remembered with the runs."""
    await obeyed(hosted(NodeSpec("n1")), place())
    again = hosted(NodeSpec("n1"), known=KNOWN)

    await obeyed(again, place())

    clock.now_ms += 120_000
    kinds = [fact.type for fact in await reports(again, 3)]
    assert kinds == ["command_accepted", "run_started", "run_released"]


async def test_another_machine_of_the_same_name_begins_empty(hosted: Callable[..., LocalNodes]) -> None:
    """Its inventory keeps the watermark, which says that the command was obeyed and nothing is left of it."""
    await obeyed(hosted(NodeSpec("n1")), place())

    other = hosted(NodeSpec("n1", gpus=4), known=KNOWN)

    (inventory,) = await presence(other)
    assert isinstance(inventory, NodeInventoryReported)
    assert (inventory.gpus, inventory.runs, inventory.watermark) == (4, (), "5/0")


async def test_a_node_that_the_ledger_does_not_know_begins_anew(hosted: Callable[..., LocalNodes]) -> None:
    """Its record is of a ledger that is gone, and with that watermark it would ignore the commands of this one."""
    await obeyed(hosted(NodeSpec("n1")), place())

    anew = hosted(NodeSpec("n1"), known={})

    (inventory,) = await presence(anew)
    assert isinstance(inventory, NodeInventoryReported)
    assert (inventory.runs, inventory.watermark) == ((), None)
    await obeyed(anew, place(command="1/0"))
    (inventory,) = await presence(anew)
    assert isinstance(inventory, NodeInventoryReported)
    assert (len(inventory.runs), inventory.watermark) == (1, "1/0")


async def test_nodes_that_are_not_hosted_are_lost_and_come_back(hosted: Callable[..., LocalNodes]) -> None:
    """The cluster hears of both."""
    known = {"n1": Node("n1", "gpu", 8, (), 0), "n2": Node("n2", "gpu", 8, (), 0)}

    facts = await presence(hosted(NodeSpec("n1"), known=known), known)
    assert [(fact.node, fact.health) for fact in facts if isinstance(fact, NodeHealthChanged)] == [
        ("n2", NodeHealth.LOST)
    ]

    known["n2"].health = NodeHealth.LOST
    facts = await presence(hosted(NodeSpec("n1"), NodeSpec("n2"), known=known), known)
    assert [fact.type for fact in facts] == ["node_inventory_reported"] * 2 + ["node_health_changed"]
    assert [(fact.node, fact.health) for fact in facts if isinstance(fact, NodeHealthChanged)] == [
        ("n2", NodeHealth.HEALTHY)
    ]


async def test_a_stopped_run_is_not_reported_as_ended_by_itself(
    hosted: Callable[..., LocalNodes], clock: Clock
) -> None:
    """A stop withdraws the natural end, and the GPUs come back once."""
    nodes = hosted(NodeSpec("n1"))
    await obeyed(nodes, place(seconds=60))
    clock.now_ms += 5_000
    assert [fact.type for fact in await reports(nodes, 2)] == ["command_accepted", "run_started"]
    stop = Stop(command="6/0", node="n1", workload="w", attempt=1, grace_ms=10_000, reason=StopReason.CANCELLED)
    await obeyed(nodes, stop)
    clock.now_ms += 120_000

    facts = await reports(nodes, 2)

    releases = [fact for fact in facts if isinstance(fact, RunReleased)]
    assert [release.outcome for release in releases] == [ReleaseOutcome.STOPPED]


async def test_commands_for_other_nodes_are_left_alone(hosted: Callable[..., LocalNodes]) -> None:
    """A command for a node that is not here leads to nothing; the scheduler sends it again."""
    nodes = hosted(NodeSpec("n1"))

    await obeyed(nodes, place(node="n9"))

    (inventory,) = await presence(nodes)
    assert isinstance(inventory, NodeInventoryReported)
    assert inventory.runs == ()


async def test_gpus_are_free_for_what_their_own_release_leads_to(
    hosted: Callable[..., LocalNodes], clock: Clock
) -> None:
    """The fold of a release may place the next run on the same GPUs before its sender hears that it arrived."""
    nodes = hosted(NodeSpec("n1"))
    await obeyed(nodes, place(seconds=60))
    clock.now_ms += 120_000
    facts: list[Event] = []
    enough = asyncio.Event()

    async def report(fact: Event) -> None:
        facts.append(fact)
        if isinstance(fact, RunReleased):
            nodes.obey([place(command="9/0", workload="next", seconds=1)])
            if fact.workload == "next":
                enough.set()

    clock.step_ms = 100
    running = asyncio.ensure_future(nodes.run(report))
    async with asyncio.timeout(5):
        await enough.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    outcomes = [(fact.workload, fact.outcome.value) for fact in facts if isinstance(fact, RunReleased)]
    assert outcomes == [("w", "succeeded"), ("next", "succeeded")]
