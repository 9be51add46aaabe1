"""The made-up institute: its shape, its people, and how they look at the queue."""

from __future__ import annotations

from collections import Counter

import pytest

from streamsched.model.events import WorkloadSubmitted
from streamsched.model.policy import DEFAULT_POLICY
from streamsched.model.quantities import DAY, MINUTE, WHOLE
from streamsched.node.virtual_node import read_sleep
from streamsched.simulation.institute import GPUS, LOADS, Institute, Load
from streamsched.state.cluster import ClusterState
from tests.stories import Story, submitted

SINCE_MS = 20_004 * DAY
BUSY = Load(appetite_percent=200, patience_percent=100_000, quiet_percent=100)


def institute(load: Load = BUSY, seed: int = 1, days: int = 2) -> Institute:
    return Institute(load, seed, since_ms=SINCE_MS, until_ms=SINCE_MS + days * DAY)


def submitted_by(source: Institute, state: ClusterState) -> list[tuple[int, WorkloadSubmitted]]:
    """All that people submit to a scheduler that only ever has this state."""
    asked = []
    while (due_ms := source.next_due_ms) is not None:
        while (workload := source.next_submission(due_ms, state)) is not None:
            asked.append((due_ms, workload))
    return asked


def empty() -> ClusterState:
    return Story(institute().budgets).state


def test_fifteen_teams_in_four_programmes_share_the_whole() -> None:
    """Fractions of one parent add up to it."""
    shares = institute().budgets.budgets
    teams = [share for share in shares if "/" in share.budget]
    sums = Counter[str]()
    for share in shares:
        sums[share.budget.rpartition("/")[0]] += share.fraction_nano

    assert len(teams) == 15
    assert len(shares) - len(teams) == 4
    assert set(sums.values()) == {WHOLE}


def test_the_same_seed_gives_the_same_people() -> None:
    """And another seed gives others."""
    assert submitted_by(institute(), empty()) == submitted_by(institute(), empty())
    assert submitted_by(institute(), empty()) != submitted_by(institute(seed=2), empty())


def test_every_submission_can_be_accepted() -> None:
    """Times are in order, ids are new, contracts are within the policy, and a virtual node can run the work."""
    asked = submitted_by(institute(), empty())

    assert [at_ms for at_ms, _ in asked] == sorted(at_ms for at_ms, _ in asked)
    assert len({workload.workload for _, workload in asked}) == len(asked)
    for _, workload in asked:
        allocated = workload.min_runtime_ms
        assert not allocated or DEFAULT_POLICY.min_runtime_floor_ms <= allocated <= DEFAULT_POLICY.min_runtime_cap_ms
        assert workload.ranks * workload.gpus_per_rank <= GPUS
        assert read_sleep(workload.command) is not None


def test_people_ask_for_about_what_the_load_says() -> None:
    """Over many days: the GPU-time of allocated work is the appetite within a half, the chance of large gangs."""
    days = 15
    asked = sum(
        workload.ranks * workload.gpus_per_rank * (read_sleep(workload.command) or (0, 0))[0]
        for _, workload in submitted_by(institute(days=days), empty())
        if workload.min_runtime_ms
    )

    assert 100 < asked * 100 // (GPUS * days * DAY) < 300


def test_people_with_a_long_queue_before_them_only_debug() -> None:
    """To people without patience any queue is too long, even an empty one."""
    load = Load(appetite_percent=200, patience_percent=0, quiet_percent=100)
    asked = [workload for _, workload in submitted_by(institute(load), empty())]

    assert {workload.workload.split("-")[2] for workload in asked} == {"debug", "spare"}
    assert all(workload.min_runtime_ms <= 15 * MINUTE for workload in asked)


@pytest.mark.parametrize("name", sorted(LOADS))
def test_the_queue_changes_who_submits_and_not_what_they_would_have(name: str) -> None:
    """One programme finds a long queue. Whoever submits all the same submits what would have come anyway."""
    ideas = submitted_by(institute(LOADS[name]), empty())
    budgets = institute().budgets
    story = Story(budgets)
    for number, share in enumerate(budgets.budgets):
        if share.budget.startswith("language/"):
            story.tell(submitted(f"before-{number}", budget=share.budget, ranks=1_000))
    fewer = submitted_by(institute(LOADS[name]), story.state)

    def contents(asked: list[tuple[int, WorkloadSubmitted]]) -> Counter[str]:
        return Counter(f"{at_ms} {workload.budget} {workload.ranks} {workload.command}" for at_ms, workload in asked)

    assert 0 < len(fewer) < len(ideas)
    assert contents(fewer) <= contents(ideas)
