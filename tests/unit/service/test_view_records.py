"""Do views say what changed, whole hours and all, and no more?"""

from __future__ import annotations

from streamsched.model.commands import Effects
from streamsched.model.events import Record, Tick
from streamsched.model.quantities import HOUR, MINUTE
from streamsched.service.view_records import HOURS_AT_ONCE, BudgetHour, NodeTopology, Views
from streamsched.state.cluster import ClusterState
from tests.stories import Story, budgets, node, started, submitted

#: An hour of 2023, as any history has them.
NOON = 1_700_000_000_000 // HOUR * HOUR


def followed(story: Story) -> tuple[Views, ClusterState]:
    """Fold the story once more, with views beside it."""
    views, state = Views(), ClusterState()
    for record in story.records:
        views.note(state, state.apply(record))
    return views, state


def pass_time(views: Views, state: ClusterState, now_ms: int) -> Effects:
    effects = state.apply(Record(state.next_cursor, now_ms, Tick(tick=state.last_tick + 1)))
    views.note(state, effects)
    return effects


def test_a_node_is_published_with_who_has_its_gpus() -> None:
    """And not again before it changes."""
    story = Story(budgets(a=1.0), node("n1", domains=("rack-1",)), at_ms=NOON)
    story.tell(submitted("w1", gpus_per_rank=4))
    story.round()
    views, state = followed(story)

    (shown,) = [record for record in views.changed(state) if isinstance(record, NodeTopology)]

    assert (shown.node, shown.pool, shown.domains, shown.gpus) == ("n1", "h100", ("rack-1",), 8)
    assert shown.as_of == state.next_cursor
    (run,) = shown.runs
    assert (run.workload, run.attempt, run.gpu_mask.bit_count()) == ("w1", 1, 4)
    assert shown.free_mask == 0xFF & ~run.gpu_mask
    assert list(views.changed(state)) == []


def test_hours_are_published_as_they_pass() -> None:
    """4 GPUs held from a quarter to one until half past: 15 minutes of them in the first hour, 30 in the next."""
    story = Story(budgets(a=1.0), node("n1"), at_ms=NOON + 45 * MINUTE)
    story.tell(submitted("w1", gpus_per_rank=4))
    story.round()
    story.tell(started("n1", "w1"))
    views, state = followed(story)
    list(views.changed(state))

    pass_time(views, state, NOON + 90 * MINUTE)
    hours = {
        record.hour_ms: record
        for record in views.changed(state)
        if isinstance(record, BudgetHour) and record.budget == "a"
    }

    assert {hour: record.allocated_gpu_ms for hour, record in hours.items()} == {
        NOON: 4 * 15 * MINUTE,
        NOON + HOUR: 4 * 30 * MINUTE,
    }
    assert hours[NOON].quota_gpu_ms == 8 * 15 * MINUTE
    assert hours[NOON].key == f"a|{NOON}"


def test_a_view_that_begins_late_publishes_every_hour() -> None:
    """A scheduler that starts publishes the whole history, so that deleting a view costs only time."""
    story = Story(budgets(a=1.0), node("n1"), at_ms=NOON)
    story.tell(submitted("w1"))
    story.round()
    story.at(NOON + 30 * HOUR).tell(Tick(tick=1))
    views, state = followed(story)

    hours = [record for record in views.changed(state) if isinstance(record, BudgetHour) and record.budget == ""]

    assert [record.hour_ms for record in hours] == [NOON + number * HOUR for number in range(30)]


def test_years_of_history_are_published_a_part_at_a_time() -> None:
    """A start must not keep the scheduler from deciding; nothing is left out, and nothing comes twice."""
    story = Story(budgets(a=1.0), node("n1"), at_ms=NOON)
    story.at(NOON + 5_000 * HOUR).tell(Tick(tick=1))
    views, state = followed(story)

    parts = []
    while part := [record for record in views.changed(state) if isinstance(record, BudgetHour)]:
        parts.append(part)

    assert max(map(len, parts)) == HOURS_AT_ONCE
    published = [(record.budget, record.hour_ms) for part in parts for record in part]
    assert sorted(published) == [(budget, NOON + number * HOUR) for budget in ("", "a") for number in range(5_000)]
