"""The clusters that numbers are given for, each described once, so that numbers compare across years."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from random import Random

from streamsched.model.events import BudgetShare, BudgetTreeChanged, Event, Record, WorkloadSubmitted
from streamsched.model.quantities import HOUR, MINUTE, SECOND, WHOLE
from streamsched.scheduling.decision import decide
from streamsched.state.cluster import ClusterState
from tests.stories import node, started, submitted

#: 25 supernodes of 5 racks of 10 nodes of 8 GPUs: 1,250 nodes, 10,000 GPUs; the cluster itself is the fourth level.
SUPERNODES, RACKS, NODES = 25, 5, 10
#: 8 teams of 4 projects each: 40 budgets, of which 32 are leaves.
TEAMS, PROJECTS = 8, 4
LEAVES = [f"team-{team}/project-{project}" for team in range(TEAMS) for project in range(PROJECTS)]

#: How many of the 900 runs have how many GPUs: 9,886 GPUs together.
RUNS = {1: 222, 2: 90, 4: 135, 8: 270, 16: 90, 32: 55, 64: 20, 128: 18}
#: Every fourth run, and one in five of what waits, is unallocated.
UNALLOCATED_RUNS_EVERY, UNALLOCATED_WAITING_EVERY = 4, 5
MIN_RUNTIMES_MS = (15 * MINUTE, 1 * HOUR, 4 * HOUR, 8 * HOUR)

#: When the clusters come up: a Monday, in the middle of the night.
DAWN_MS = 1_700_438_400_000


def canonical_cluster(seed: int, waiting: int = 2_000) -> ClusterState:
    """Return the canonical cluster: 10,000 GPUs on 1,250 nodes in 4 levels; 900 runs, 2,000 waiting, 40 budgets.

    It came up six hours ago and filled within five; 114 GPUs are free, and a quarter of the runs is unallocated. What
    waits came in the last hour, and nothing has been decided since.

    Args:
        seed: Draws who runs and who waits.
        waiting: How many wait.
    """
    random = Random(seed)
    state = ClusterState()
    fold(state, DAWN_MS, [budget_tree(), *(node(name, domains=domains) for name, domains in places())])

    sizes = [gpus for gpus, runs in RUNS.items() for _ in range(runs)]
    random.shuffle(sizes)
    for number, gpus in enumerate(sizes):
        now_ms = DAWN_MS + number * 20 * SECOND
        fold(state, now_ms, [request(f"run-{number}", gpus, random, unallocated=number % UNALLOCATED_RUNS_EVERY == 0)])
        if number % 20 == 19:
            run_all(state, now_ms)
    run_all(state, DAWN_MS + 5 * HOUR)

    for number in range(waiting):
        gpus = random.choices([*RUNS], weights=[*RUNS.values()])[0]
        event = request(f"waits-{number}", gpus, random, unallocated=number % UNALLOCATED_WAITING_EVERY == 0)
        fold(state, DAWN_MS + 5 * HOUR + number * HOUR // waiting, [event])
    return state


def packed_cluster(waiting: int, held_per_node: int) -> ClusterState:
    """Return the nodes and budgets of the canonical cluster, one protected run on each node, and work that waits.

    Whatever waits asks for whole nodes, so none of it fits.

    Args:
        waiting: How many wait.
        held_per_node: GPUs of the run on each node, 5 to 8, so that no two share one.
    """
    random = Random(waiting)
    state = ClusterState()
    fold(state, DAWN_MS, [budget_tree(), *(node(name, domains=domains) for name, domains in places())])
    for number in range(len(state.nodes)):
        leaf = LEAVES[number % len(LEAVES)]
        fold(state, DAWN_MS, [submitted(f"run-{number}", budget=leaf, gpus_per_rank=held_per_node)])
    run_all(state, DAWN_MS)

    large = [gpus for gpus in RUNS if gpus >= 8]
    for number in range(waiting):
        unallocated = number % UNALLOCATED_WAITING_EVERY == 0
        event = request(f"waits-{number}", random.choice(large), random, unallocated=unallocated)
        fold(state, DAWN_MS + number, [event])
    return state


def request(name: str, gpus: int, random: Random, *, unallocated: bool) -> WorkloadSubmitted:
    """Return a request of some leaf for that many GPUs: one rank up to 8, else ranks of 8."""
    return submitted(
        name,
        budget=random.choice(LEAVES),
        ranks=max(1, gpus // 8),
        gpus_per_rank=min(gpus, 8),
        min_runtime_ms=0 if unallocated else random.choice(MIN_RUNTIMES_MS),
        priority=random.choice((0, 0, 0, 1)),
    )


def budget_tree() -> BudgetTreeChanged:
    """Return the tree: teams of equal shares, projects of equal shares in each."""
    shares = [(f"team-{team}", WHOLE // TEAMS) for team in range(TEAMS)]
    shares += [(leaf, WHOLE // PROJECTS) for leaf in LEAVES]
    return BudgetTreeChanged(
        change="canonical",
        reason="the canonical cluster",
        budgets=tuple(BudgetShare(budget=budget, fraction_nano=nano) for budget, nano in shares),
    )


def places() -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the name and the domains of each node."""
    names = count()
    for supernode in range(SUPERNODES):
        for rack in range(RACKS):
            for _ in range(NODES):
                yield f"node-{next(names):04d}", (f"supernode-{supernode:02d}", f"rack-{supernode:02d}-{rack}")


def fold(state: ClusterState, now_ms: int, events: Iterable[Event]) -> None:
    """Append facts at one moment."""
    for event in events:
        state.apply(Record(state.next_cursor, now_ms, event))


def run_all(state: ClusterState, now_ms: int) -> None:
    """Decide until nothing is left to decide, and let everything that was placed start at once."""
    while (proposal := decide(state)) is not None:
        effects = state.apply(Record(state.next_cursor, now_ms, proposal))
        for command in effects.commands:
            fold(state, now_ms, [started(command.node, command.workload, command.attempt)])
