"""What was charged and is put right: refunds of what was not the run's fault, and adjustments by an administrator."""

from __future__ import annotations

import pytest

from streamsched.model.commands import ReceiptStatus
from streamsched.model.events import Event, NodeHealth, ReleaseOutcome
from streamsched.model.policy import UsageMode
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND
from streamsched.state.cluster import ClusterState
from streamsched.state.hours import ROOT, HourlyUse, Use
from streamsched.state.reasons import Ignored
from streamsched.state.snapshot import freeze, thaw
from tests.stories import Story, adjusted, adopted, budgets, health, node, nodes, released, submitted

WEEK = 7 * DAY


def used(story: Story, at_ms: int, budget: str = "a") -> int:
    """Let time pass, and return what a budget is charged then."""
    story.at(at_ms).tick()
    return story.state.budgets.by_id[budget].charged_gpu_ms(at_ms)


def hourly(story: Story, budget: str = "a") -> dict[int, Use]:
    """The hours of a budget, from all records once more."""
    state, hours = ClusterState(), HourlyUse()
    for record in story.records:
        hours.note(state, state.apply(record))
    hours.settle(state.now_ms)
    return hours.hours(budget)


def an_hour_of_8() -> Story:
    """8 GPUs of a were charged from 1 h to 2 h."""
    story = Story(budgets(a=0.5, b=0.5), nodes(1), at_ms=HOUR)
    story.tell(submitted("w"))
    story.round()
    story.start("w")
    story.at(2 * HOUR).end("w")
    return story


@pytest.mark.parametrize("outcome", [ReleaseOutcome.REFUSED, ReleaseOutcome.FAILED])
def test_edge_14_a_start_that_fails_is_refunded_unless_the_work_itself_failed(outcome: ReleaseOutcome) -> None:
    """8 GPUs for 10 minutes: nothing of it is left where the node refused, and all of it where the command did."""
    story = Story(budgets(a=1.0), nodes(1), submitted("w"))
    story.round()
    story.at(10 * MINUTE).end("w", outcome)
    kept = 0 if outcome is ReleaseOutcome.REFUSED else 80 * MINUTE

    assert used(story, 10 * MINUTE) == kept
    assert story.state.budgets.root.charged_gpu_ms(10 * MINUTE) == kept
    assert hourly(story)[0].allocated_gpu_ms == hourly(story, ROOT)[0].allocated_gpu_ms == kept


def test_a_lost_node_before_the_start_is_refunded_node_by_node() -> None:
    """A gang on two nodes: one is lost after 10 minutes, the other stops two minutes later; both parts come back."""
    story = Story(budgets(a=1.0), nodes(2), submitted("w", ranks=2))
    story.round()
    story.at(10 * MINUTE).tell(health("n1", NodeHealth.LOST))
    assert used(story, 11 * MINUTE) == 8 * 10 * MINUTE + 8 * 11 * MINUTE, "not before the run has ended"

    story.at(12 * MINUTE).tell(released("n2", "w", outcome=ReleaseOutcome.STOPPED))
    assert used(story, 12 * MINUTE) == 0
    assert hourly(story)[0].allocated_gpu_ms == 0


def test_a_run_that_has_started_is_charged_although_its_node_was_lost() -> None:
    """Edge case 12: charged until the node is given up; what that was worth is for an administrator to say."""
    story = Story(budgets(a=1.0), nodes(1), submitted("w"))
    story.round()
    story.start("w")
    story.at(20 * MINUTE).tell(health("n1", NodeHealth.LOST))
    assert used(story, HOUR) == 8 * 20 * MINUTE

    evidence = adjusted("dead since 00:15", -8 * 5 * MINUTE, 15 * MINUTE, 20 * MINUTE, workload="w", attempt=1)
    story.tell(evidence)
    assert used(story, HOUR) == 8 * 15 * MINUTE


def test_a_start_deadline_is_refunded() -> None:
    """It did not start in time: infrastructure. Half an hour and ten seconds of 8 GPUs come back, in both hours."""
    story = Story(budgets(a=1.0), nodes(1), at_ms=45 * MINUTE)
    story.tell(submitted("w"))
    story.round()
    story.at(75 * MINUTE).tick()
    story.at(75 * MINUTE + 10 * SECOND).tell(released("n1", "w", outcome=ReleaseOutcome.STOPPED))

    assert used(story, 2 * HOUR) == 0
    assert [use.allocated_gpu_ms for use in hourly(story).values()] == [0, 0]


def test_a_refund_leaves_the_window_with_what_it_refunds() -> None:
    """A week later, when the refused run is half out of the window, there is still nothing of it."""
    story = Story(budgets(a=1.0), nodes(1), submitted("w"))
    story.round()
    story.at(10 * MINUTE).end("w", ReleaseOutcome.REFUSED)

    assert [used(story, WEEK + minutes * MINUTE) for minutes in (0, 5, 10, 60)] == [0, 0, 0, 0]
    assert not story.state.budgets.changes


def test_an_adjustment_gives_back_over_its_interval_and_leaves_the_window_with_it() -> None:
    """3 of 8 GPU-hours come back, evenly: 5 are left, and half of them when the window has passed half of the hour."""
    story = an_hour_of_8()
    effects = story.tell(adjusted("x", -3 * HOUR, HOUR, 2 * HOUR))
    assert effects.receipts[0].status is ReceiptStatus.ACCEPTED
    assert effects.receipts[0].change == "x"

    assert used(story, 2 * HOUR) == story.state.budgets.root.charged_gpu_ms(2 * HOUR) == 5 * HOUR
    assert hourly(story)[HOUR].allocated_gpu_ms == hourly(story, ROOT)[HOUR].allocated_gpu_ms == 5 * HOUR
    assert used(story, WEEK + HOUR) == 5 * HOUR
    assert used(story, WEEK + 90 * MINUTE) == 5 * HOUR // 2
    assert used(story, WEEK + 2 * HOUR) == 0


def test_an_amount_that_is_not_even_counts_to_the_last_gpu_millisecond() -> None:
    """10 GPU-milliseconds over 4 ms are 3 + 3 + 2 + 2."""
    story = Story(budgets(a=1.0), nodes(1), at_ms=HOUR)
    story.tell(adjusted("x", 10, HOUR - 4, HOUR))

    assert [used(story, WEEK + HOUR - 4 + ms) for ms in range(5)] == [10, 7, 4, 2, 0]


def test_edge_11_an_adjustment_counts_once() -> None:
    """The same id again changes nothing, and is answered as the first was."""
    story = an_hour_of_8()
    story.tell(adjusted("x", -HOUR, HOUR, 2 * HOUR))
    effects = story.tell(adjusted("x", -HOUR, HOUR, 2 * HOUR))

    assert effects.receipts[0].status is ReceiptStatus.ACCEPTED
    assert story.state.ignored[Ignored.REPEATED] == 1
    assert used(story, 2 * HOUR) == 7 * HOUR


@pytest.mark.parametrize(
    ("fact", "says"),
    [
        (adjusted("x", -9 * HOUR, HOUR, 2 * HOUR), "gpu_ms: -32400000 over this interval is up to 9 GPUs at a time"),
        (adjusted("x", -8 * HOUR, 30 * MINUTE, 90 * MINUTE), "as few as 0"),
        (adjusted("x", -8, HOUR, 3 * HOUR), "to_ms: 10800000 (1970-01-01T03:00:00Z) is ahead of the cluster's time"),
        (adjusted("x", -8, HOUR, 2 * HOUR, budget="z"), "budget: there is no budget 'z'"),
    ],
)
def test_an_adjustment_that_cannot_be_is_refused_by_name(fact: Event, says: str) -> None:
    """No more comes back than was charged at any moment; what has not passed cannot be put right."""
    story = an_hour_of_8()
    effects = story.tell(fact)

    assert effects.receipts[0].status is ReceiptStatus.REJECTED
    assert says in (effects.receipts[0].reason or "")
    assert used(story, 2 * HOUR) == 8 * HOUR


def test_what_was_given_back_is_not_given_back_again() -> None:
    """Six of eight are gone: three more are too many, and two are not."""
    story = an_hour_of_8()
    story.tell(adjusted("x", -6 * HOUR, HOUR, 2 * HOUR))
    assert story.tell(adjusted("y", -3 * HOUR, HOUR, 2 * HOUR)).receipts[0].status is ReceiptStatus.REJECTED
    assert story.tell(adjusted("z", -2 * HOUR, HOUR, 2 * HOUR)).receipts[0].status is ReceiptStatus.ACCEPTED
    assert used(story, 2 * HOUR) == 0


def test_what_may_be_refunded_is_not_given_back_before() -> None:
    """A run that has yet to start may come back whole, and would come back twice."""
    story = Story(budgets(a=1.0), nodes(1), submitted("w"))
    story.round()
    story.at(MINUTE)
    assert story.tell(adjusted("x", -8 * MINUTE, 0, MINUTE)).receipts[0].status is ReceiptStatus.REJECTED

    story.start("w")
    assert story.tell(adjusted("x", -8 * MINUTE, 0, MINUTE)).receipts[0].status is ReceiptStatus.ACCEPTED


def test_an_adjustment_fades_with_what_it_corrects() -> None:
    """Usage mode decay: all of it given back leaves nothing at any later moment."""
    story = Story(adopted(usage=UsageMode.DECAY, half_life_ms=DAY), budgets(a=1.0), nodes(1), submitted("w"))
    story.round()
    story.start("w")
    story.at(HOUR).end("w")
    assert used(story, 2 * HOUR) > 7 * HOUR
    story.tell(adjusted("x", -8 * HOUR, 0, HOUR))

    assert [used(story, hours * HOUR) for hours in (2, 3, 50)] == [0, 0, 0]


def test_corrections_go_through_a_snapshot() -> None:
    """What is to be refunded when the gang has ended, and what has been adjusted, are part of the state."""
    story = Story(budgets(a=1.0), node("n0"), nodes(2), submitted("w", ranks=2))
    story.round()
    story.at(10 * MINUTE).tell(health("n1", NodeHealth.LOST), adjusted("x", HOUR, 0, MINUTE))
    again = thaw(freeze(story.state))

    assert freeze(again) == freeze(story.state)
    assert again.adjustments == {"x": 10 * MINUTE}
