"""Small runs with outcomes that can be computed by hand."""

from streamsched.model.events import BudgetShare, BudgetTreeChanged, WorkloadSubmitted
from streamsched.model.quantities import HOUR, MINUTE, WHOLE
from streamsched.node.virtual_node import sleep_argv
from streamsched.reporting.runs import ReportedRun, RunRecorder
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.simulator import simulate
from streamsched.simulation.virtual_cluster import uniform_cluster

TREE = BudgetTreeChanged(
    change="c1",
    reason="begin",
    budgets=(
        BudgetShare(budget="blue", fraction_nano=WHOLE // 2),
        BudgetShare(budget="idle", fraction_nano=WHOLE // 4),
        BudgetShare(budget="red", fraction_nano=WHOLE // 4),
    ),
)


def run_of(
    *asked: tuple[int, str, int, int], until_ms: int = 4 * HOUR, name: str = "as it was", nodes: int = 1
) -> ReportedRun:
    """Serve (when, budget, run time, min runtime) on nodes of 8 GPUs, each asking for all of one."""
    submissions = tuple(
        Submission(
            at_ms,
            WorkloadSubmitted(
                workload=f"w{number}",
                budget=budget,
                ranks=1,
                gpus_per_rank=8,
                min_runtime_ms=min_ms,
                resumable=True,
                command=sleep_argv(run_ms),
            ),
            run_ms,
        )
        for number, (at_ms, budget, run_ms, min_ms) in enumerate(asked)
    )
    recorder = RunRecorder()
    demand, cluster = Demand(submissions, TREE), uniform_cluster(nodes)
    state = simulate(demand, cluster, since_ms=0, until_ms=until_ms, observers=[recorder])
    return recorder.run(name, state, until_ms=until_ms)


def in_turn() -> ReportedRun:
    """red runs 0:00 to 1:00, blue waits from 0:30 and runs to 3:00; a second red waits from 2:00 and runs to 4:00."""
    return run_of((0, "red", HOUR, HOUR), (30 * MINUTE, "blue", 2 * HOUR, 2 * HOUR), (2 * HOUR, "red", HOUR, HOUR))


def displaced() -> ReportedRun:
    """red runs unallocated from 0:00; blue takes its place at 0:30 for an hour, and red goes on behind it."""
    return run_of((0, "red", 2 * HOUR, 0), (30 * MINUTE, "blue", HOUR, HOUR), name="displaced")
