"""Recorded demand served again: as it was decided when nothing is changed, and as arithmetic says when something is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamsched.cli.tree import app
from streamsched.model.commands import Effects
from streamsched.model.events import (
    BudgetShare,
    BudgetTreeChanged,
    NodeInventoryReported,
    Record,
    RoundProposed,
    RunStarted,
    Unreadable,
    WorkloadSubmitted,
)
from streamsched.model.policy import DEFAULT_POLICY, NAMED_POLICIES
from streamsched.model.quantities import HOUR, MINUTE, WHOLE
from streamsched.node.virtual_node import IDEAL, USUAL, Delays, sleep_argv
from streamsched.replay.replayer import Observer
from streamsched.reporting.demo import MAX_GPUS, SINCE_MS, TRACES
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.history import HistoryKeeper
from streamsched.simulation.simulator import simulate
from streamsched.simulation.traces import read_philly
from streamsched.simulation.virtual_cluster import uniform_cluster
from streamsched.simulation.what_if import Change, DemandRecorder, RecordedDemand
from streamsched.state.cluster import ClusterState
from streamsched.state.workloads import Phase
from streamsched.wire.codec import encode
from tests.replays.histories import HISTORIES, read_history

TREE = BudgetTreeChanged(
    change="c1",
    reason="begin",
    budgets=(BudgetShare(budget="blue", fraction_nano=WHOLE // 2), BudgetShare(budget="red", fraction_nano=WHOLE // 2)),
)


def submission(at_ms: int, workload: str, budget: str = "red", *, run_ms: int = HOUR, min_ms: int = HOUR) -> Submission:
    submitted = WorkloadSubmitted(
        workload=workload,
        budget=budget,
        ranks=1,
        gpus_per_rank=8,
        min_runtime_ms=min_ms,
        resumable=True,
        command=sleep_argv(run_ms),
    )
    return Submission(at_ms, submitted, run_ms)


#: One node of 8 GPUs. red-0 runs 0:00 to 1:00; blue-0, asked for at 0:10, runs 1:00 to 2:00; free, asked for at 0:20,
#: starts at 2:00 and is displaced at 2:30 by red-1, which runs to 3:30; free goes on then for the half hour left.
STORY = Demand(
    (
        submission(0, "red-0"),
        submission(10 * MINUTE, "blue-0", "blue"),
        submission(20 * MINUTE, "free", min_ms=0),
        submission(150 * MINUTE, "red-1"),
    ),
    TREE,
)


def recorded(demand: Demand, nodes: int, delays: Delays = IDEAL) -> RecordedDemand:
    recorder = DemandRecorder()
    simulate(demand, uniform_cluster(nodes, delays=delays), observers=[recorder.observe])
    return recorder.demand()


def starts(demand: RecordedDemand, change: Change) -> dict[str, int]:
    """Return when each workload first started, in minutes."""
    found: dict[str, int] = {}

    def observe(record: Record, _effects: Effects, state: ClusterState) -> None:
        if isinstance(record.event, RunStarted):
            found.setdefault(record.event.workload, state.now_ms // MINUTE)

    demand.serve(change, IDEAL, observers=[observe])
    return found


@pytest.mark.parametrize("name", ["over_the_week", "by_priority"])
def test_without_a_change_the_same_is_decided_again(name: str) -> None:
    """Byte for byte, on hours of a real trace in which work is preempted: every record, proposals among them."""
    demand = read_philly(
        TRACES / "philly_2017_jobs.csv.gz",
        TRACES / "philly_2017_vc_nodes.csv",
        since_ms=SINCE_MS,
        until_ms=SINCE_MS + 6 * HOUR,
        max_gpus=MAX_GPUS,
    )
    first: list[bytes] = []
    again: list[bytes] = []
    preemptions = 0

    def keep(into: list[bytes]) -> Observer:
        def observe(record: Record, _effects: Effects, _state: ClusterState) -> None:
            nonlocal preemptions
            if isinstance(record.event, RoundProposed):
                preemptions += sum(len(placement.victims) for placement in record.event.placements)
            if not isinstance(record.event, WorkloadSubmitted | Unreadable):  # A command says the length that was seen.
                into.append(encode(record.event))

        return observe

    recorder = DemandRecorder()
    simulate(
        demand,
        uniform_cluster(8),
        NAMED_POLICIES[name],
        since_ms=SINCE_MS,
        until_ms=SINCE_MS + 12 * HOUR,
        observers=[recorder.observe, keep(first)],
    )

    recorder.demand().serve(Change(), IDEAL, observers=[keep(again)])

    assert preemptions > 0
    assert again == first


@pytest.mark.parametrize("delays", [IDEAL, USUAL])
def test_true_lengths_are_seen_through_preemption_and_delays(delays: Delays) -> None:
    """An hour each, also of what was displaced half way, however long the node took over starting and stopping."""
    demand = recorded(STORY, 1, delays)

    assert {asked.workload.workload: asked.run_ms for asked in demand.submissions} == {
        "red-0": HOUR,
        "blue-0": HOUR,
        "free": HOUR,
        "red-1": HOUR,
    }
    assert demand.unseen_ends == 0


def test_nodes_are_lost_and_come_back_as_they_did() -> None:
    """On a golden history with lost, ill and drained nodes: at its end all are as they were, and nobody still waits."""
    recorder, state = DemandRecorder(), ClusterState()
    for record in read_history(HISTORIES / "lost-nodes.jsonl"):
        recorder.observe(record, state.apply(record), state)

    served = recorder.demand().serve(Change(), IDEAL)

    assert {name: node.health for name, node in served.inventory.nodes.items()} == {
        name: node.health for name, node in state.inventory.nodes.items()
    }
    assert {workload.phase for workload in served.workloads.values()} <= {Phase.RUNNING}


@pytest.mark.parametrize(
    ("change", "started"),
    [
        (Change(), {"red-0": 0, "blue-0": 60, "free": 120, "red-1": 150}),
        # With two nodes more nobody waits.
        (
            Change(
                added=tuple(
                    NodeInventoryReported(node=f"added-{number}", boot="boot-1", pool="gpu", gpus=8)
                    for number in (1, 2)
                )
            ),
            {"red-0": 0, "blue-0": 10, "free": 20, "red-1": 150},
        ),
        # The only node is lost at 2:10: free has started, and red-1 never does.
        (Change(lost=(("node-000", 130 * MINUTE),)), {"red-0": 0, "blue-0": 60, "free": 120}),
        (Change(lost=(("node-000", 0),)), {}),
        # Declaring nothing is asking for unallocated time: it is served in order of submission, and displaces nobody.
        (Change(min_runtime_percent=0), {"red-0": 0, "blue-0": 60, "free": 120, "red-1": 180}),
    ],
)
def test_a_change_does_what_arithmetic_says(change: Change, started: dict[str, int]) -> None:
    """On the story of one node."""
    assert starts(recorded(STORY, 1), change) == started


def test_nobody_declares_more_than_the_cap_that_is_asked_about() -> None:
    """With a cap of half an hour, red-0 may be displaced after that by blue, who has had nothing."""
    change = Change(policy=DEFAULT_POLICY.model_copy(update={"min_runtime_cap_ms": 30 * MINUTE}))

    assert starts(recorded(STORY, 1), change)["blue-0"] == 30


def test_budgets_that_are_asked_about_pay_from_the_beginning() -> None:
    """Where blue has no budget it never runs, free follows red-0 at once, and red-1 finds the node empty."""
    tree = BudgetTreeChanged(change="c2", reason="asked", budgets=(BudgetShare(budget="red", fraction_nano=WHOLE),))

    assert starts(recorded(STORY, 1), Change(budgets=tree)) == {"red-0": 0, "free": 60, "red-1": 150}


def test_on_the_command_line(tmp_path: Path) -> None:
    """The recorded outcomes stand first and the new ones beside them, with the knobs that differ."""
    with HistoryKeeper(tmp_path / "ledger.sqlite", "demo", 0) as keeper:
        simulate(STORY, uniform_cluster(1), observers=[keeper])
    command = ["whatif", str(tmp_path / "ledger.sqlite"), "--set", "window_ms=3d", "--ideal", "--json"]

    result = CliRunner().invoke(app, [*command, "--report", str(tmp_path / "report.html")])

    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["workloads"] == 4
    assert answer["unseen_ends"] == 0
    assert [run["name"] for run in answer["runs"]] == ["recorded", "what if"]
    assert answer["runs"][1]["changes"] == [{"knob": "window_ms", "before": "7d", "after": "3d"}]
    assert answer["runs"][0]["outcomes"] == answer["runs"][1]["outcomes"]  # A week or three days: the story is shorter.
    assert (tmp_path / "report.html").exists()


def test_variants_stand_beside_each_other(tmp_path: Path) -> None:
    """Each named by its knobs, in their order, from processes of their own."""
    with HistoryKeeper(tmp_path / "ledger.sqlite", "demo", 0) as keeper:
        simulate(STORY, uniform_cluster(1), observers=[keeper])
    variants = ["--variant", "window_ms=3d", "--variant", "min_runtime_cap_ms=30m,window_ms=3d"]

    result = CliRunner().invoke(app, ["whatif", str(tmp_path / "ledger.sqlite"), "--ideal", "--json", *variants])

    assert result.exit_code == 0, result.output
    runs = json.loads(result.stdout)["runs"]
    assert [run["name"] for run in runs] == ["recorded", *variants[1::2]]
    assert [len(run["changes"]) for run in runs] == [0, 1, 2]


def test_a_node_that_is_not_there_cannot_be_lost(tmp_path: Path) -> None:
    """It is said which."""
    with HistoryKeeper(tmp_path / "ledger.sqlite", "demo", 0) as keeper:
        simulate(STORY, uniform_cluster(1), observers=[keeper])

    result = CliRunner().invoke(app, ["whatif", str(tmp_path / "ledger.sqlite"), "--lose-node", "n17"])

    assert result.exit_code == 2
    assert "n17" in result.output
