"""Scenarios whose histories lie in `replay/histories/`: small worlds in which the interesting things happen.

Each is a function of nothing, so a history is recorded again with `pytest tests/replays --update-transcripts`, and the
change shows in a diff that can be read.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from streamsched.model.events import BudgetShare, BudgetTreeChanged, Record, WorkloadSubmitted
from streamsched.model.policy import DEFAULT_POLICY, Levels, Policy
from streamsched.model.quantities import HOUR, MINUTE, SECOND, WHOLE
from streamsched.model.topology import Layer, TopologyRequest
from streamsched.node.virtual_node import USUAL, VirtualNode
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.faults import FaultPlan, FaultyCluster
from streamsched.simulation.simulator import simulate
from streamsched.simulation.virtual_cluster import VirtualCluster, uniform_cluster

#: 2026-03-02T00:00:00Z, a Monday.
MONDAY = 1_772_409_600_000

_TREE = BudgetTreeChanged(
    change="spring",
    reason="two programmes, three teams",
    budgets=(
        BudgetShare(budget="language", fraction_nano=WHOLE * 6 // 10),
        BudgetShare(budget="language/pretrain", fraction_nano=WHOLE * 7 // 10),
        BudgetShare(budget="language/eval", fraction_nano=WHOLE * 3 // 10),
        BudgetShare(budget="vision", fraction_nano=WHOLE * 4 // 10),
    ),
)


def _ask(minute: float, name: str, budget: str, ranks: int, gpus: int, least_m: int, runs_m: int) -> Submission:
    run_ms = runs_m * MINUTE
    workload = WorkloadSubmitted(
        workload=name,
        budget=budget,
        ranks=ranks,
        gpus_per_rank=gpus,
        min_runtime_ms=least_m * MINUTE,
        resumable=True,
        command=("sleep", str(run_ms // SECOND)),
    )
    return Submission(MONDAY + round(minute * MINUTE), workload, run_ms)


def spare_time() -> list[Record]:
    """Unallocated work fills four nodes; allocated work comes and takes what it needs, gang by gang."""
    asked = (
        _ask(0, "sweep-1", "vision", 1, 8, 0, 300),
        _ask(0, "sweep-2", "vision", 2, 8, 0, 300),
        _ask(1, "notebook", "language/eval", 1, 2, 15, 20),
        _ask(10, "llama", "language/pretrain", 2, 8, 60, 90),
        _ask(11, "eval-7", "language/eval", 1, 4, 30, 25),
        _ask(12, "big", "language/pretrain", 4, 8, 120, 60),
        _ask(30, "resnet", "vision", 1, 8, 60, 60),
    )
    return _record(Demand(asked, _TREE), uniform_cluster(4, delays=USUAL, seed=1))


def lost_nodes() -> list[Record]:
    """Ten hours on six nodes that fall silent and come back, while their reports come late and twice."""
    random = Random(7)
    budgets = ("language/pretrain", "language/eval", "vision")
    asked = [
        _ask(
            random.uniform(0, 300),
            f"work-{number:02}",
            random.choice(budgets),
            random.choice((1, 1, 1, 2, 3)),
            random.choice((1, 2, 4, 8)),
            random.choice((0, 0, 15, 60, 120)),
            random.choice((5, 20, 60, 150)),
        )
        for number in range(60)
    ]
    asked.sort(key=lambda submission: submission.at_ms)
    nodes = [VirtualNode(f"node-{n}", pool="gpu", gpus=8, delays=USUAL, random=Random(f"7/{n}")) for n in range(6)]
    plan = FaultPlan(until_ms=MONDAY + 6 * HOUR, outage_gap_ms=40 * MINUTE)
    return _record(Demand(tuple(asked), _TREE), FaultyCluster(nodes, plan, Random("7/faults"), MONDAY))


def lost_ranks() -> list[Record]:
    """Gangs in pairs that share a rack lose nodes, in four racks of three; most of each stays where it is."""
    pairs = TopologyRequest(layers=(Layer(level="rack", ranks=2),))
    asked = tuple(
        Submission(ask.at_ms, ask.workload.model_copy(update={"topology": pairs}), ask.run_ms)
        for ask in (
            _ask(0, "llama", "language/pretrain", 4, 8, 240, 300),
            _ask(1, "resnet", "vision", 4, 8, 240, 300),
            _ask(2, "eval-7", "language/eval", 2, 8, 60, 200),
        )
    )
    nodes = [
        VirtualNode(
            f"node-{rack}{n}",
            pool="gpu",
            gpus=8,
            domains=(f"rack-{rack}",),
            delays=USUAL,
            random=Random(f"3/{rack}{n}"),
        )
        for rack in range(4)
        for n in range(3)
    ]
    plan = FaultPlan(until_ms=MONDAY + 4 * HOUR, outage_gap_ms=30 * MINUTE, illness_gap_ms=12 * HOUR)
    policy = Policy(levels=(Levels(names=("rack",)),))
    return _record(Demand(asked, _TREE), FaultyCluster(nodes, plan, Random("3/faults"), MONDAY), policy)


SCENARIOS: dict[str, Callable[[], list[Record]]] = {
    "spare-time": spare_time,
    "lost-nodes": lost_nodes,
    "lost-ranks": lost_ranks,
}


def _record(demand: Demand, cluster: VirtualCluster, policy: Policy = DEFAULT_POLICY) -> list[Record]:
    records: list[Record] = []
    simulate(
        demand,
        cluster,
        policy,
        since_ms=MONDAY,
        until_ms=MONDAY + 24 * HOUR,
        observers=[lambda record, _effects, _state: records.append(record)],
    )
    return records
