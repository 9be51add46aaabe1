"""Deciding again: what is equal, what is not, and what is not asked."""

from __future__ import annotations

import pytest

from streamsched.model.events import RoundProposed
from streamsched.model.policy import Scheme
from streamsched.model.quantities import MINUTE
from streamsched.replay.verify import verify
from streamsched.scheduling.schemes import decide
from tests.stories import Story, adopted, budgets, nodes, submitted
from tests.unit.replay.recording import recorded


def proposal(story: Story) -> RoundProposed:
    """What is decided now."""
    decided = decide(story.state)
    assert decided is not None
    return decided


@pytest.fixture
def story() -> Story:
    """Two nodes, two budgets, and a workload that waits."""
    story = Story(nodes(2), budgets(a=0.5, b=0.5))
    story.at(1 * MINUTE).tell(submitted("first"))
    return story


async def test_what_is_decided_again_is_equal(story: Story) -> None:
    """Whoever appended a proposal, and whatever was folded between those records and itself."""
    decided = proposal(story)
    story.at(2 * MINUTE).tell(submitted("second", budget="b"))
    story.tell(decided.model_copy(update={"actor": "scheduler-b", "at_ms": 7}))
    story.round()

    verification = await verify(await recorded(story.records))

    assert (verification.compared, verification.differences, verification.overtaken) == (2, 0, 0)
    assert verification.is_equal
    assert verification.first is None


async def test_late_proposals_are_counted_and_not_compared(story: Story) -> None:
    """Nobody obeyed them, so it does not matter what they say."""
    decided = proposal(story)
    story.tell(decided, decided.model_copy(update={"placements": ()}))

    verification = await verify(await recorded(story.records))

    assert (verification.compared, verification.differences, verification.overtaken) == (1, 0, 1)


async def test_the_first_difference_is_told_with_its_story(story: Story) -> None:
    """Both proposals, where they part, who decided, and what had happened to the workload. The rest is compared too."""
    decided = proposal(story)
    (item,) = decided.placements
    elsewhere = tuple(seat.model_copy(update={"node": "n2"}) for seat in item.seats)
    forged = decided.model_copy(update={"placements": (item.model_copy(update={"seats": elsewhere}),)})
    story.at(2 * MINUTE).tell(forged)
    story.tell(submitted("second", budget="b"))
    story.round()

    verification = await verify(await recorded(story.records))

    assert (verification.compared, verification.differences) == (2, 1)
    assert not verification.is_equal
    first = verification.first
    assert first is not None
    assert (first.cursor, first.at_ms, first.based_on, first.scheme) == (4, 1 * MINUTE, 4, Scheme.FAIR_SHARE)
    assert (first.recorded, first.derived) == (forged, decided)
    (parting,) = first.partings
    assert (parting.item, parting.workload, parting.field) == ("placement 1", "first", "seats")
    assert '"n2"' in (parting.recorded or "")
    assert '"n1"' in (parting.derived or "")
    assert [happening.cursor for happening in first.story] == [3]


async def test_an_item_too_many_and_one_about_somebody_else(story: Story) -> None:
    """Each is a parting of its own."""
    story.tell(submitted("second", budget="b"))
    decided = proposal(story)
    one, other = decided.placements
    story.tell(decided.model_copy(update={"placements": (other,)}))

    first = (await verify(await recorded(story.records))).first

    assert first is not None
    assert [(at.item, at.field, at.recorded, at.derived) for at in first.partings] == [
        ("placement 1", "workload", other.workload, one.workload),
        ("placement 2", "workload", None, other.workload),
    ]


async def test_where_nothing_is_decided_now(story: Story) -> None:
    """A proposal made out of nothing, and one that says that it is based on what comes after it."""
    story.round()
    made_up = RoundProposed(round=2, based_on=story.state.next_cursor, policy_version=0)
    story.tell(made_up)
    story.tell(made_up.model_copy(update={"round": 3, "based_on": 99}))

    verification = await verify(await recorded(story.records))

    assert (verification.compared, verification.differences) == (3, 2)
    assert verification.first is not None
    assert (verification.first.derived, verification.first.partings, verification.first.workload) == (None, (), None)


async def test_each_is_decided_under_the_policy_that_it_was_made_under(story: Story) -> None:
    """Adopted between the records that it is based on and the proposal itself, another policy says nothing about it."""
    decided = proposal(story)
    story.tell(adopted(scheme=Scheme.PRIORITY), decided)
    story.tell(submitted("second", budget="b"))
    story.tell(proposal(story))

    assert (await verify(await recorded(story.records))).is_equal


async def test_up_to_a_moment(story: Story) -> None:
    """Only what was accepted until then."""
    story.round()
    story.at(5 * MINUTE).tell(submitted("second", budget="b"))
    story.round()
    ledger = await recorded(story.records)

    assert (await verify(ledger, until_cursor=6)).compared == 1
    assert (await verify(ledger, at_ms=4 * MINUTE)).compared == 1
    assert (await verify(ledger)).compared == 2
