"""Each figure of OUTCOMES.md, on stories that can be reckoned on paper."""

from fractions import Fraction

import pytest

from streamsched.model.events import BudgetShare, BudgetTreeChanged, Event, Record, WorkloadSubmitted
from streamsched.model.quantities import HOUR, MINUTE, SECOND, WHOLE
from streamsched.node.virtual_node import sleep_argv
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.outcomes import (
    OutcomeRecorder,
    Outcomes,
    Slowdowns,
    Waits,
    bounded_slowdown_milli,
    gang_size_of,
    is_short,
)
from streamsched.simulation.simulator import simulate
from streamsched.simulation.virtual_cluster import uniform_cluster
from streamsched.state.cluster import ClusterState
from tests.stories import budgets, drained, node

TREE = BudgetTreeChanged(
    change="c1",
    reason="begin",
    budgets=(BudgetShare(budget="blue", fraction_nano=WHOLE // 2), BudgetShare(budget="red", fraction_nano=WHOLE // 2)),
)


def asked(at_ms: int, workload: str, budget: str, *, ranks: int = 1, min_ms: int = HOUR) -> Submission:
    """Each rank asks for a whole node, for an hour of work."""
    submitted = WorkloadSubmitted(
        workload=workload,
        budget=budget,
        ranks=ranks,
        gpus_per_rank=8,
        min_runtime_ms=min_ms,
        resumable=True,
        command=sleep_argv(HOUR),
    )
    return Submission(at_ms, submitted, HOUR)


#: One node of 8 GPUs, half of it for each team. red-0 runs 0:00 to 1:00; blue-0, asked for at 0:10, 1:00 to 2:00; free,
#: asked for at 0:20, starts at 2:00 and is displaced at 2:30 by red-1, which ends at 3:30; then free goes on.
STORY = Demand(
    (
        asked(0, "red-0", "red"),
        asked(10 * MINUTE, "blue-0", "blue"),
        asked(20 * MINUTE, "free", "red", min_ms=0),
        asked(150 * MINUTE, "red-1", "red"),
    ),
    TREE,
)


def outcomes_of(demand: Demand, *, nodes: int = 1, checkpoint_ms: int | None = None) -> Outcomes:
    recorder = OutcomeRecorder(checkpoint_ms=checkpoint_ms)
    cluster = uniform_cluster(nodes, checkpoint_ms=checkpoint_ms)
    state = simulate(demand, cluster, observers=[recorder])
    return recorder.outcomes(state, until_ms=state.now_ms)


@pytest.fixture(scope="module")
def story() -> Outcomes:
    return outcomes_of(STORY)


def test_occupancy_and_what_of_it_was_free_of_charge(story: Outcomes) -> None:
    """Four hours of 8 GPUs, all of them held: 24 GPU-hours allocated, 8 unallocated.

    Demand is what allocated work held, and what blue-0 waited for: 24 + 8 × 50/60 of 32.
    """
    assert story.occupancy == Fraction(1)
    assert story.unallocated_share == Fraction(8, 32)
    assert story.demand_to_capacity == (24 + Fraction(8 * 50, 60)) / 32


def test_due_and_delivered_by_hour(story: Outcomes) -> None:
    """Each is worth 4 GPU-hours an hour. red is due 4 in hours 0, 2 and 3, and gets it in each: 8, 4 and 4.

    blue is due 4 in hour 0, in which it gets nothing, and 4 in hour 1.
    """
    teams = {team.budget: team for team in story.teams}

    red, blue = teams["red"].by_hour, teams["blue"].by_hour
    assert (red.due_gpu_ms, red.strict_gpu_ms) == (12 * HOUR, 12 * HOUR)
    assert (blue.due_gpu_ms, blue.strict_gpu_ms) == (8 * HOUR, 4 * HOUR)
    assert story.strict_by_hour == Fraction(12 + 4, 12 + 8)
    assert story.effectiveness == story.strict_by_hour


def test_due_and_delivered_by_day(story: Outcomes) -> None:
    """In the four hours of this day red wanted 16 and blue 8 + 8 × 50/60, neither more than the 16 it was worth."""
    due = 16 + 8 + Fraction(8 * 50, 60)

    assert story.strict_by_day == (16 + 8) / due


def test_capped_forgives_what_came_late(story: Outcomes) -> None:
    """red got 16 of 12 that were due, which counts as 12; blue 8 of 8, though an hour late."""
    assert story.capped == Fraction(12 + 8, 12 + 8)
    assert story.worst_capped == Fraction(1)
    assert (story.teams_scored, story.teams_served_well) == (2, 2)


def test_waits_by_class_size_and_team(story: Outcomes) -> None:
    """red-0 and red-1 waited for nothing, blue-0 for 50 minutes, free for 100; no contract is that of short work."""
    teams = {team.budget: team for team in story.teams}

    assert story.waits_by_class["allocated"] == Waits.of([0, 0, 50 * MINUTE])
    assert story.waits_by_class["unallocated"] == Waits.of([100 * MINUTE])
    assert story.waits_by_class["short"].count == 0
    assert story.waits_by_size["2 to 8 GPUs"] == Waits.of([0, 0, 50 * MINUTE, 100 * MINUTE])
    assert teams["red"].waits == Waits.of([0, 0, 100 * MINUTE])
    assert teams["blue"].waits == Waits.of([50 * MINUTE])


def test_percentiles_are_nearest_ranks() -> None:
    """Of 200 waits of 1 to 200 seconds: the 100th, the 180th and the 198th."""
    waits = Waits.of(second * SECOND for second in range(200, 0, -1))

    assert (waits.p50_ms, waits.p90_ms, waits.p99_ms) == (100 * SECOND, 180 * SECOND, 198 * SECOND)


@pytest.mark.parametrize(
    ("gpus", "min_ms", "short"),
    [(8, 15 * MINUTE, True), (9, 15 * MINUTE, False), (8, 15 * MINUTE + 1, False), (1, 1, True), (1, 0, False)],
)
def test_short_work(gpus: int, min_ms: int, short: bool) -> None:
    """At most 8 GPUs, allocated, and at most 15 minutes of protection."""
    assert is_short(gpus, min_ms) is short


def test_classes_of_size_begin_where_they_say() -> None:
    """A boundary belongs to the smaller class."""
    sizes = [gang_size_of(gpus) for gpus in (1, 2, 8, 9, 64, 65)]

    assert sizes == ["1 GPU", "2 to 8 GPUs", "2 to 8 GPUs", "9 to 64 GPUs", "9 to 64 GPUs", "over 64 GPUs"]


def test_bounded_slowdown(story: Outcomes) -> None:
    """red-0 and red-1: 60 of 60 minutes. blue-0: 110 of 60. free: 0:20 to 4:00, 220 of 60."""
    assert story.slowdowns_by_class["allocated"] == Slowdowns.of([1_000, 1_000, 1_833])
    assert story.slowdowns_by_class["unallocated"] == Slowdowns.of([3_666])
    # What runs for a second counts as if it had run for ten.
    assert bounded_slowdown_milli(30 * SECOND, 1 * SECOND) == 3_000
    assert bounded_slowdown_milli(5 * SECOND, 5 * SECOND) == 1_000


def test_preemptions(story: Outcomes) -> None:
    """red-1 displaced one unallocated run of 8 GPUs, and needed 8; 32 GPU-hours were held."""
    assert (story.preempted_allocated, story.preempted_unallocated, story.swap_backs) == (0, 1, 0)
    assert story.evicted_for_claimed == Fraction(8, 8)
    assert story.preemptions_per_1000_gpu_hours == Fraction(1_000, 32)
    assert story.evictions_per_1000_gpu_hours == Fraction(0)
    # It saved itself as it was asked to stop.
    assert story.lost_share == Fraction(0)


def test_what_was_not_saved_is_lost() -> None:
    """With a checkpoint every 20 minutes, 10 of free's first 30 are done again: it ends at 4:10."""
    outcomes = outcomes_of(STORY, checkpoint_ms=20 * MINUTE)

    assert outcomes.until_ms == 250 * MINUTE
    assert outcomes.lost_to_preemption_gpu_ms == 8 * 10 * MINUTE
    assert outcomes.lost_to_nodes_gpu_ms == 0
    assert outcomes.lost_share == Fraction(10, 250)


def test_reservation_waits() -> None:
    """A gang of two nodes, asked for at 0:10, has one reserved after two minutes of patience, and starts at 1:00."""
    demand = Demand((asked(0, "red-0", "red"), asked(10 * MINUTE, "blue-0", "blue", ranks=2)), TREE)

    outcomes = outcomes_of(demand, nodes=2)

    assert outcomes.reservation_waits == Waits.of([48 * MINUTE])
    assert outcomes.reservations_given_up == 0


def test_availability() -> None:
    """Two nodes for two hours, and one of them drained for the second: 3 of 4."""
    recorder, state = OutcomeRecorder(), ClusterState()
    facts: list[tuple[int, Event]] = [
        (0, budgets(a=1)),
        (0, node("n1")),
        (0, node("n2")),
        (HOUR, drained("n2")),
    ]
    for at_ms, fact in facts:
        record = Record(state.next_cursor, at_ms, fact)
        recorder(record, state.apply(record), state)

    outcomes = recorder.outcomes(state, until_ms=2 * HOUR)

    assert (outcomes.healthy_gpu_ms, outcomes.installed_gpu_ms) == (24 * HOUR, 32 * HOUR)
    assert outcomes.availability == Fraction(3, 4)


def test_what_did_not_happen_has_no_score() -> None:
    """Nothing due, nothing held: None, and neither 0 nor 100 %."""
    outcomes = outcomes_of(Demand((), TREE), nodes=0)

    assert outcomes.occupancy is None
    assert outcomes.strict_by_hour is None
    assert outcomes.availability is None
    assert outcomes.lost_share is None
    assert outcomes.kept_out_share is None
