"""Is anything unlawful under faults? Is everyone served once they stop? Each case is its seed."""

import hashlib
from random import Random

import pytest

from streamsched.model.commands import Effects
from streamsched.model.events import (
    BudgetShare,
    BudgetTreeChanged,
    Record,
    ReleaseOutcome,
    RunReleased,
    Unreadable,
    WorkloadSubmitted,
)
from streamsched.model.policy import Policy
from streamsched.model.quantities import HOUR, MINUTE, SECOND, WHOLE
from streamsched.node.virtual_node import Delays, VirtualNode, sleep_argv
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.faults import FaultPlan, FaultyCluster, FaultyScheduler
from streamsched.simulation.simulator import simulate
from streamsched.state.cluster import ClusterState
from streamsched.state.invariants import check
from streamsched.state.snapshot import digest
from streamsched.state.workloads import Phase
from streamsched.wire.codec import encode

TREE = BudgetTreeChanged(
    change="c1",
    reason="begin",
    budgets=(
        BudgetShare(budget="nlp", fraction_nano=WHOLE // 2),
        BudgetShare(budget="nlp/a", fraction_nano=WHOLE // 2),
        BudgetShare(budget="nlp/b", fraction_nano=WHOLE // 4),
        BudgetShare(budget="vision", fraction_nano=WHOLE // 2),
    ),
)
LEAVES = ("nlp/a", "nlp/b", "vision")
FAULTS_UNTIL_MS = 6 * HOUR
#: Nodes take their time, as real ones do.
DELAYS = Delays(accept_ms=(5, 500), start_ms=(500, 20 * SECOND), stop_ms=(100, 15 * SECOND))


def demand(random: Random, workloads: int = 150) -> Demand:
    """Gangs of 1 to 24 GPUs, about a third of them unallocated, in four hours: some twice what 48 GPUs can do."""
    submissions = []
    for number in range(workloads):
        ranks = random.choice((1, 1, 1, 1, 2, 3))
        run_ms = random.randint(1 * MINUTE, 3 * HOUR)
        workload = WorkloadSubmitted(
            workload=f"w{number}",
            budget=random.choice(LEAVES),
            ranks=ranks,
            gpus_per_rank=8 if ranks > 1 else random.choice((1, 2, 4, 8)),
            min_runtime_ms=random.choice((0, 5 * MINUTE, 30 * MINUTE)),
            resumable=random.random() < 0.8,
            command=(*sleep_argv(run_ms), "exit", random.choice("0001")),
        )
        submissions.append(Submission(random.randint(0, 4 * HOUR), workload, run_ms))
    return Demand(tuple(sorted(submissions, key=lambda submission: submission.at_ms)), TREE)


class Watch:
    """Checks every record, and keeps what is needed to judge the whole."""

    def __init__(self, *, check_each: bool) -> None:
        self.check_each = check_each
        self.hash = hashlib.sha256()
        self.refused: list[RunReleased] = []

    def __call__(self, record: Record, _effects: Effects, state: ClusterState) -> None:
        if self.check_each:
            check(state)
        assert not isinstance(record.event, Unreadable)
        self.hash.update(b"%d %d " % (record.cursor, record.append_ms) + encode(record.event))
        if isinstance(record.event, RunReleased) and record.event.outcome is ReleaseOutcome.REFUSED:
            self.refused.append(record.event)


def run(
    seed: int, *, numbered: bool = True, check_each: bool = True
) -> tuple[ClusterState, Watch, FaultyCluster, FaultyScheduler]:
    """Two schedulers, six nodes, and six hours of bad luck, all from one seed."""
    random = Random(seed)
    asked = demand(random)
    nodes = [VirtualNode(f"n{i}", delays=DELAYS, random=Random(f"{seed}/{i}")) for i in range(6)]
    plan = FaultPlan(until_ms=FAULTS_UNTIL_MS, numbered=numbered)
    cluster = FaultyCluster(nodes, plan, Random(f"{seed}/cluster"), since_ms=0)
    scheduler = FaultyScheduler(Random(f"{seed}/scheduler"))
    watch = Watch(check_each=check_each)
    state = simulate(asked, cluster, Policy(), since_ms=0, scheduler=scheduler, observers=[watch])
    return state, watch, cluster, scheduler


@pytest.mark.parametrize("numbered", [True, False], ids=["numbered", "bare"])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_unlawful_and_everyone_is_served(seed: int, numbered: bool) -> None:
    """The invariants hold after every record, no node is asked for a GPU twice, and all work ends."""
    state, watch, cluster, scheduler = run(seed, numbered=numbered)

    assert cluster.outages >= 5
    assert cluster.illnesses >= 5
    assert cluster.repeats >= 10
    assert scheduler.restarts >= 5
    assert scheduler.rival_proposals >= 5
    assert watch.refused == []
    assert state.workloads == {}
    assert len(state.finished) == 150
    ends = {finished.phase for finished in state.finished.values()}
    assert ends <= {Phase.SUCCEEDED, Phase.FAILED, Phase.PREEMPTED}
    assert state.gaps == []
    if numbered:
        assert state.ignored["repeated"] >= 10


def test_the_same_seed_gives_the_same_bytes() -> None:
    """Every record, its time and the state at the end; another seed gives others."""
    first, again, other = (run(seed, check_each=False) for seed in (11, 11, 12))

    assert first[1].hash.digest() == again[1].hash.digest()
    assert digest(first[0]) == digest(again[0])
    assert other[1].hash.digest() != first[1].hash.digest()


def test_resumable_work_survives_everything() -> None:
    """What may be resumed and ends well by itself has succeeded, however often it lost its node or its place."""
    state, *_ = run(21, check_each=False)

    asked = {item.workload.workload: item.workload for item in demand(Random(21)).submissions}
    for name, finished in state.finished.items():
        if asked[name].resumable and asked[name].command[-1] == "0":
            assert finished.phase is Phase.SUCCEEDED, f"{name}: {finished.phase}, {finished.reason}"
    assert max(finished.attempts for finished in state.finished.values()) > 1
