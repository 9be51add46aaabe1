"""The old priority scheduler: one queue for all teams, and limits of GPUs that nobody preempts."""

from __future__ import annotations

from streamsched.model.events import ProposedPlacement
from streamsched.model.policy import Scheme
from streamsched.model.quantities import HOUR
from streamsched.scheduling import schemes
from streamsched.state.limits import NOT_AT_ALL_MS, UNTIL_IT_ENDS_MS
from tests.stories import Story, adopted, budgets, nodes, submitted, unallocated


def cluster(count: int) -> Story:
    """Nodes of 8 GPUs, shared half and half by the teams a and b."""
    return Story(adopted(scheme=Scheme.PRIORITY), budgets(a=0.5, b=0.5), nodes(count))


def decided(story: Story) -> list[ProposedPlacement]:
    proposal = schemes.decide(story.state)
    return [] if proposal is None else list(proposal.placements)


def settle(story: Story) -> None:
    """Let every proposal take effect, and every placement start at once."""
    while (proposal := schemes.decide(story.state)) is not None:
        story.tell(proposal)
        for item in proposal.placements:
            story.start(item.workload)
        pass_time(story, 1)


def pass_time(story: Story, ms: int) -> None:
    story.at(story.now_ms + ms).tick()


def protection(story: Story, workload: str) -> int:
    run = story.state.workloads[workload].run
    assert run is not None
    return run.min_ms


def test_within_the_limit_nobody_preempts_and_beyond_it_anybody_of_higher_priority_does() -> None:
    """Two nodes, a limit of 8 GPUs each: the second gang of a is beyond it, and b's urgent one takes exactly that."""
    story = cluster(2)
    story.tell(submitted("first"), submitted("second"))
    settle(story)
    assert protection(story, "first") == UNTIL_IT_ENDS_MS
    assert protection(story, "second") == NOT_AT_ALL_MS

    story.tell(submitted("equal", budget="b"))
    assert decided(story) == []
    story.tell(submitted("urgent", budget="b", priority=1))
    (item,) = decided(story)

    assert item.workload == "urgent"
    assert [victim.workload for victim in item.victims] == ["second"]


def test_a_limit_counts_what_is_within_it_only() -> None:
    """When the protected gang of a ends, its next one is within the limit again, although another runs beyond it."""
    story = cluster(3)
    story.tell(submitted("first"), submitted("second"))
    settle(story)
    story.end("first")
    story.tell(submitted("third"))
    settle(story)

    assert protection(story, "second") == NOT_AT_ALL_MS
    assert protection(story, "third") == UNTIL_IT_ENDS_MS


def test_priority_goes_across_teams_and_age_decides_among_equals() -> None:
    """One node, three that want it: the highest priority first, then who has waited longest, whatever the team had."""
    story = cluster(1)
    story.tell(submitted("old"), submitted("young", budget="b"), submitted("high", budget="b", priority=2))
    order = []
    for _ in range(3):
        (item,) = decided(story)
        order.append(item.workload)
        settle(story)
        story.end(item.workload)

    assert order == ["high", "old", "young"]


def test_unallocated_work_goes_first_and_then_the_lowest_priority() -> None:
    """A gang of two nodes takes the free one and the unallocated one; a third costs the lower of two priorities."""
    story = cluster(4)
    story.tell(submitted("within"), submitted("within-too"))
    settle(story)
    story.tell(submitted("low", priority=-1), unallocated("spare", budget="b"))
    settle(story)
    assert protection(story, "low") == NOT_AT_ALL_MS

    story.tell(submitted("one", budget="b", priority=1))
    (item,) = decided(story)
    assert [victim.workload for victim in item.victims] == ["spare"]
    story.tell(submitted("pair", budget="b", ranks=2, priority=2))
    (item,) = decided(story)
    assert (item.workload, sorted(victim.workload for victim in item.victims)) == ("pair", ["low", "spare"])


def test_what_is_beyond_the_limit_may_run_for_long() -> None:
    """Nobody's past counts: b waits behind a's older work, however much a had."""
    story = cluster(1)
    story.tell(submitted("a1"), submitted("a2"))
    settle(story)
    pass_time(story, 100 * HOUR)
    story.tell(submitted("b1", budget="b"))

    assert decided(story) == []
    story.end("a1")
    assert [item.workload for item in decided(story)] == ["a2"]
