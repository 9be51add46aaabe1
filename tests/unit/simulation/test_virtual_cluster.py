"""A virtual cluster remembers what work has done: the next attempt runs for what is left."""

import pytest

from streamsched.model.commands import Place, Stop, StopReason
from streamsched.model.events import Event, ReleaseOutcome, RunReleased, RunStarted, Seat
from streamsched.model.quantities import MINUTE, SECOND
from streamsched.node.virtual_node import Delays, sleep_argv
from streamsched.simulation.virtual_cluster import VirtualCluster, uniform_cluster


def place(cursor: int, attempt: int, *, node: int = 0, ranks: int = 1, run_ms: int = 60 * MINUTE) -> Place:
    return Place(
        command=f"{cursor}/{node}",
        node=f"node-{node:03d}",
        workload="w",
        attempt=attempt,
        seats=(Seat(rank=node, node=f"node-{node:03d}", gpu_mask=0xFF),),
        ranks=ranks,
        leader="node-000",
        argv=sleep_argv(run_ms),
        start_by_ms=10**9,
    )


def stop(cursor: int, attempt: int, *, node: int = 0, grace_ms: int = 0) -> Stop:
    return Stop(
        command=f"{cursor}/{node}",
        node=f"node-{node:03d}",
        workload="w",
        attempt=attempt,
        grace_ms=grace_ms,
        reason=StopReason.PREEMPTED,
    )


def happen(cluster: VirtualCluster, until_ms: int) -> list[tuple[int, Event]]:
    """Let everything come out that is due, and say when it did."""
    facts: list[tuple[int, Event]] = []
    while (due_ms := cluster.next_due_ms) is not None and due_ms <= until_ms:
        fact = cluster.next_fact(due_ms)
        if fact is not None:
            facts.append((due_ms, fact))
    return facts


def end_of(facts: list[tuple[int, Event]], attempt: int) -> int:
    """When the last part of an attempt ended by itself."""
    return max(
        at_ms
        for at_ms, fact in facts
        if isinstance(fact, RunReleased) and (fact.attempt, fact.outcome) == (attempt, ReleaseOutcome.SUCCEEDED)
    )


@pytest.mark.parametrize(("checkpoint_ms", "saved_minutes"), [(None, 25), (10 * MINUTE, 20), (30 * MINUTE, 0)])
def test_the_next_attempt_runs_for_what_is_left(checkpoint_ms: int | None, saved_minutes: int) -> None:
    """An hour of work, stopped after 25 minutes and placed again on another node at 40: what it had saved is done."""
    cluster = uniform_cluster(2, checkpoint_ms=checkpoint_ms)
    cluster.obey([place(1, 1)], 0)
    happen(cluster, 25 * MINUTE)
    cluster.obey([stop(2, 1)], 25 * MINUTE)
    happen(cluster, 40 * MINUTE)
    cluster.obey([place(3, 2, node=1)], 40 * MINUTE)

    assert end_of(happen(cluster, 1000 * MINUTE), 2) == (40 + 60 - saved_minutes) * MINUTE


def test_progress_adds_up_over_attempts() -> None:
    """10 minutes, then 20: the third attempt has 30 of 60 left."""
    cluster = uniform_cluster(1)
    for attempt, (begin, end) in enumerate([(0, 10), (20, 40)], start=1):
        cluster.obey([place(2 * attempt, attempt)], begin * MINUTE)
        happen(cluster, end * MINUTE)
        cluster.obey([stop(2 * attempt + 1, attempt)], end * MINUTE)
        happen(cluster, end * MINUTE)
    cluster.obey([place(9, 3)], 100 * MINUTE)

    assert end_of(happen(cluster, 1000 * MINUTE), 3) == 130 * MINUTE


def test_a_gang_has_done_what_all_its_ranks_have_done() -> None:
    """Two ranks; stopping takes until the grace ends, and counts for nothing: the first request was at 5:00."""
    cluster = uniform_cluster(2, delays=Delays(stop_ms=(30 * SECOND, 30 * SECOND)))
    cluster.obey([place(1, 1, ranks=2), place(1, 1, node=1, ranks=2)], 0)
    happen(cluster, 5 * MINUTE)
    cluster.obey([stop(2, 1, grace_ms=MINUTE), stop(2, 1, node=1, grace_ms=MINUTE)], 5 * MINUTE)
    happen(cluster, 6 * MINUTE)
    cluster.obey([place(3, 2, ranks=2), place(3, 2, node=1, ranks=2)], 10 * MINUTE)

    assert end_of(happen(cluster, 1000 * MINUTE), 2) == 65 * MINUTE


def test_half_a_gang_has_done_nothing() -> None:
    """Its second node never got the command, so the first rank has only waited."""
    cluster = uniform_cluster(2)
    cluster.obey([place(1, 1, ranks=2)], 0)
    assert [type(fact) for _, fact in happen(cluster, 5 * MINUTE)] == [RunStarted]
    cluster.obey([stop(2, 1)], 5 * MINUTE)
    happen(cluster, 5 * MINUTE)
    cluster.obey([place(3, 2, ranks=2), place(3, 2, node=1, ranks=2)], 10 * MINUTE)

    assert end_of(happen(cluster, 1000 * MINUTE), 2) == 70 * MINUTE
