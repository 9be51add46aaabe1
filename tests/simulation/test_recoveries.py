"""Do gangs that lose nodes go on beside what they have kept, through the whole loop of nodes and scheduler?"""

from __future__ import annotations

from random import Random

import pytest

from streamsched.model.commands import Effects
from streamsched.model.events import BudgetShare, BudgetTreeChanged, Record, WorkloadSubmitted
from streamsched.model.policy import Levels, Policy
from streamsched.model.quantities import HOUR, MINUTE, WHOLE
from streamsched.model.topology import Layer, TopologyRequest
from streamsched.node.virtual_node import USUAL, VirtualNode, sleep_argv
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.faults import FaultPlan, FaultyCluster
from streamsched.simulation.simulator import simulate
from streamsched.state.cluster import ClusterState
from streamsched.state.invariants import check

TREE = BudgetTreeChanged(change="c1", reason="begin", budgets=(BudgetShare(budget="a", fraction_nano=WHOLE),))
#: Ranks 0 and 1 share a rack, and ranks 2 and 3.
PAIRS = TopologyRequest(layers=(Layer(level="rack", ranks=2),))


class Watch:
    """Judges how each recovery ends, and counts those that found a place."""

    def __init__(self) -> None:
        self.recovered = 0
        #: Of each gang that recovers its nodes by rank, and which of them are kept for it.
        self._waiting: dict[str, tuple[list[str], set[str]]] = {}

    def __call__(self, _record: Record, _effects: Effects, state: ClusterState) -> None:
        check(state)
        for id_, (before, kept) in self._waiting.items():
            workload = state.workloads.get(id_)
            if id_ in state.recoveries or workload is None or workload.run is None:
                continue
            now = [seat.node for seat in workload.run.seats]
            assert all(state.nodes[now[rank]].domains == state.nodes[now[rank + 1]].domains for rank in (0, 2))
            # A pair of which one is kept stays, unless the recovery has widened: these are replaced at once.
            assert [node for node in now if node in kept] == [node for node in before if node in kept]
            self.recovered += 1
        self._waiting = {
            id_: ([seat.node for seat in recovery.seats], set(recovery.pins))
            for id_, recovery in state.recoveries.items()
        }


@pytest.mark.parametrize("seed", range(3))
def test_survivors_keep_their_rank_and_their_node(seed: int) -> None:
    """Three gangs of two pairs in four racks of four nodes: whoever recovers has its survivors where they were."""
    gangs = (
        WorkloadSubmitted(
            workload=f"gang-{number}",
            budget="a",
            ranks=4,
            gpus_per_rank=8,
            min_runtime_ms=4 * HOUR,
            resumable=True,
            command=tuple(sleep_argv(8 * HOUR)),
            topology=PAIRS,
        )
        for number in range(3)
    )
    demand = Demand(tuple(Submission(0, gang, 8 * HOUR) for gang in gangs), TREE)
    nodes = [
        VirtualNode(f"n{rack}{n}", pool="gpu", gpus=8, domains=(f"r{rack}",), delays=USUAL, random=Random(f"{rack}{n}"))
        for rack in range(4)
        for n in range(4)
    ]
    plan = FaultPlan(until_ms=4 * HOUR, outage_gap_ms=30 * MINUTE, illness_gap_ms=12 * HOUR)
    watch = Watch()

    simulate(
        demand,
        FaultyCluster(nodes, plan, Random(seed), 0),
        Policy(levels=(Levels(names=("rack",)),), recovery_step_ms=HOUR),
        until_ms=8 * HOUR,
        observers=[watch],
    )

    assert watch.recovered
