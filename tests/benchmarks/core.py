"""The fold and the decision: how fast they are, and what waiting work costs."""

from __future__ import annotations

import gc
import statistics
import tracemalloc
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from random import Random

from streamsched.model.events import BudgetShare, BudgetTreeChanged, Record, Tick
from streamsched.model.ledger import Entry
from streamsched.model.quantities import MINUTE, WHOLE
from streamsched.scheduling.decision import decide
from streamsched.scheduling.memory import Memory
from streamsched.state.cluster import ClusterState
from streamsched.state.snapshot import digest, freeze, thaw
from streamsched.wire import codec
from tests.benchmarks.clusters import (
    DAWN_MS,
    LEAVES,
    budget_tree,
    canonical_cluster,
    fold,
    packed_cluster,
    places,
    request,
)
from tests.benchmarks.histories import philly_history
from tests.benchmarks.measuring import Bound, Limit, Result, median_ratio, seconds, seconds_in_turns
from tests.stories import cancelled, node, released, started, submitted

#: Folding a record must not take much longer than making an object of its bytes, which every reader must do anyway.
APPLY_RATE_MIN = Limit(Bound.AT_LEAST, 0.3)
#: A submission costs what it changes and not what waits: indexes grow with the logarithm, everything else not at all.
BACKLOG_RATIO_MAX = Limit(Bound.AT_MOST, 1.5)


def measure(jobs: int = 3_000) -> Iterator[Result]:
    """Measure everything of the core; yield each result when it is known."""
    history = philly_history(jobs)
    decoding, applying = fold_against_decoding(history, rounds=7)
    records = len(history)
    what = f"history of {jobs:,} Philly jobs, {records:,} records"
    yield Result(f"{what}: decode", records / statistics.median(decoding), "records/s")
    yield Result(f"{what}: apply", records / statistics.median(applying), "records/s")
    yield Result(f"{what}: rate of apply / rate of decode", median_ratio(decoding, applying), limit=APPLY_RATE_MIN)
    yield Result(f"{what}: scheduled again, apply and decide", 1e6 * scheduling(history) / records, "us/record")

    state = canonical_cluster(seed=1)
    proposal = decide(state)
    if proposal is None:
        raise AssertionError("the canonical cluster has something to decide")
    placements = len(proposal.placements)
    taken = statistics.median(seconds(partial(decide, state)) for _ in range(9))
    yield Result(f"decide on the canonical cluster, {placements} placements", 1e3 * taken, "ms")
    yield Result("decide on the canonical cluster, each placement", 1e6 * taken / placements, "us")

    for fits in (False, True):
        few, many = submissions_against_backlog(fits=fits, rounds=200)
        case = "one that fits" if fits else "one that fits nowhere"
        for waiting, times in ((2_000, few), (20_000, many)):
            what = f"a submission and its decision, {case}, {waiting:,} waiting"
            yield Result(what, 1e6 * statistics.median(times), "us")
        what = f"a submission and its decision, {case}: 20,000 waiting / 2,000 waiting"
        yield Result(what, statistics.median(many) / statistics.median(few), limit=BACKLOG_RATIO_MAX)

    for budgets in (100, 1_000):
        state = one_for_each(budgets)
        proposal = decide(state)
        placements = len(proposal.placements) if proposal is not None else 0
        taken = statistics.median(seconds(partial(decide, state)) for _ in range(5))
        what = f"decide where one workload waits in each of {budgets:,} budgets, each of {placements} placements"
        yield Result(what, 1e6 * taken / placements, "us")

    for nodes in (1_000, 10_000):
        taken = statistics.median(seconds(partial(join, nodes)) for _ in range(3))
        yield Result(f"{nodes:,} nodes join in random order, each", 1e6 * taken / nodes, "us")

    yield Result("memory of a waiting workload, of 100,000", memory_per_waiting(100_000), "bytes")

    for waiting in (2_000, 100_000):
        state = canonical_cluster(seed=1, waiting=waiting)
        frozen = freeze(state)
        what = f"state with 900 runs and {waiting:,} waiting"
        yield Result(f"{what}: frozen", len(frozen) / 1e6, "MB")
        for name, work in (
            ("freeze", partial(freeze, state)),
            ("digest", partial(digest, state)),
            ("thaw", partial(thaw, frozen)),
        ):
            yield Result(f"{what}: {name}", 1e3 * statistics.median(seconds(work) for _ in range(5)), "ms")


def one_for_each(budgets: int) -> ClusterState:
    """Return a cluster of 80 free GPUs, and one workload of one GPU in each of so many budgets of equal quota."""
    names = [f"team-{number}" for number in range(budgets)]
    shares = tuple(BudgetShare(budget=name, fraction_nano=WHOLE // budgets) for name in names)
    state = ClusterState()
    fold(state, DAWN_MS, [BudgetTreeChanged(change="teams", reason="a benchmark", budgets=shares)])
    fold(state, DAWN_MS, [node(f"node-{number}") for number in range(10)])
    fold(state, DAWN_MS, [submitted(f"waits-{name}", budget=name, gpus_per_rank=1) for name in names])
    return state


def join(nodes: int) -> ClusterState:
    """Return a cluster whose nodes came in an order of their own, and whose pool is in the order of their places."""
    names = [f"node-{number:05}" for number in range(nodes)]
    Random(nodes).shuffle(names)
    state = ClusterState()
    fold(state, DAWN_MS, [node(name) for name in names])
    assert all(len(pool.nodes) == nodes for pool in state.inventory.pools.values())
    return state


def fold_against_decoding(history: Sequence[Entry], rounds: int) -> tuple[list[float], list[float]]:
    """Return the times to decode a history and to fold its decoded records, measured in turns."""
    records = [codec.read(entry) for entry in history]

    def decode_all() -> None:
        for entry in history:
            codec.decode(entry.data)

    def apply_all() -> None:
        state = ClusterState()
        for record in records:
            state.apply(record)

    decoding, applying = seconds_in_turns([decode_all, apply_all], rounds)
    return decoding, applying


def scheduling(history: Sequence[Entry]) -> float:
    """Return the time to fold a history and to decide where it decided: the work of a live scheduler, without I/O."""
    records = [codec.read(entry) for entry in history]
    decides = [getattr(record.event, "type", None) == "round_proposed" for record in records]

    def schedule() -> None:
        state = ClusterState()
        for record, decided in zip(records, decides, strict=True):
            if decided:
                decide(state)
            state.apply(record)

    return statistics.median(seconds(schedule) for _ in range(3))


def submissions_against_backlog(*, fits: bool, rounds: int) -> tuple[list[float], list[float]]:
    """Return the times of a submission and the decision after it, with 2,000 and with 20,000 waiting, in turns.

    Args:
        fits: Whether there is room for the submission. What waits never fits.
        rounds: How many submissions to each.
    """
    states = [(packed_cluster(waiting, held_per_node=6 if fits else 8), Memory()) for waiting in (2_000, 20_000)]
    for state, memory in states:
        # By then all have waited long enough for whatever may be tried for them, and it has been.
        fold(state, state.now_ms + 10 * MINUTE, [Tick(tick=1)])
        while (proposal := decide(state, memory)) is not None:
            fold(state, state.now_ms, [proposal])
    times: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    for number in range(rounds):
        for (state, memory), taken in zip(states, times, strict=True):
            taken.append(seconds(partial(_submit_and_decide, state, memory, number), collect=False))
            _undo(state, memory, number)
    return times


def _submit_and_decide(state: ClusterState, memory: Memory, number: int) -> None:
    fold(state, state.now_ms + 1, [submitted(f"new-{number}", budget=LEAVES[number % len(LEAVES)], gpus_per_rank=2)])
    decide(state, memory)


def _undo(state: ClusterState, memory: Memory, number: int) -> None:
    """Let the last submission run and end, or be cancelled when it waits."""
    proposal = decide(state, memory)
    if proposal is None:
        fold(state, state.now_ms, [cancelled(f"new-{number}")])
        return
    for command in state.apply(Record(state.next_cursor, state.now_ms, proposal)).commands:
        fold(state, state.now_ms, [started(command.node, command.workload), released(command.node, command.workload)])


def memory_per_waiting(waiting: int) -> float:
    """Return the bytes that a waiting workload keeps alive, its strings included."""
    random = Random(1)
    state = ClusterState()
    fold(state, 0, chain([budget_tree()], (node(name, domains=domains) for name, domains in places())))
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(waiting):
            event = request(f"waits-{number}", random.choice((1, 8, 64)), random, unallocated=False)
            # As it would come from a ledger: nothing in it is shared with the others.
            fold(state, number, [codec.decode(codec.encode(event))])
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (after - before) / waiting
