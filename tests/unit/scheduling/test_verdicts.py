"""Why a workload stands where it stands, in numbers that a reader can redo: `fair-share.md` section 7."""

from __future__ import annotations

import pytest

from streamsched.model.events import Drain, NodeHealth, ReleaseOutcome
from streamsched.model.quantities import HOUR, MINUTE, SECOND
from streamsched.model.topology import Group, TopologyRequest
from streamsched.scheduling.obstacles import VerdictCode
from streamsched.scheduling.verdicts import Verdict, verdict, waiting_code
from tests.stories import Story, adopted, budgets, drained, health, node, nodes, released, submitted, unallocated


def full() -> Story:
    """Five nodes: one with protected work, one past its protection, one unallocated, one ill, one of another pool."""
    story = Story(budgets(a=0.5, b=0.5), nodes(4), node("x", pool="a100", gpus=4))
    story.tell(submitted("past", pool="h100", min_runtime_ms=30 * MINUTE))
    story.round()
    story.start("past")
    story.at(1 * HOUR).tell(
        submitted("protected", pool="h100", min_runtime_ms=2 * HOUR), unallocated("free", budget="b")
    )
    story.round()
    story.start("protected")
    story.start("free")
    story.tell(health("n4", NodeHealth.UNHEALTHY))
    return story


def test_every_node_counts_under_one_reason() -> None:
    """The counts add up to the nodes there are, so a reader sees what each of them is waiting for."""
    story = full()
    story.tell(submitted("w", ranks=2, pool="h100"))
    found = verdict(story.state, "w")

    assert found.code is VerdictCode.BEHIND
    assert found.fit is not None
    counts = found.fit.nodes
    assert (counts.protected_work, counts.takeable, counts.fits_if_unallocated_work_stops) == (1, 1, 1)
    assert (counts.unhealthy, counts.other_pool, counts.fits, counts.too_small) == (1, 1, 0, 0)
    assert (found.fit.ranks_free, found.fit.ranks_if_unallocated_work_stops) == (0, 1)
    assert (found.fit.ranks_takeable, found.fit.ranks_possible) == (2, 3)
    assert found.sentence == (
        "asks for 2 x 8 GPUs; runs of its own budget a are in the way, and of those only lower priority than 0 makes "
        "room; nodes may be reserved for it, without the guard, from 1970-01-01T01:02:00Z"
    )


def test_the_ratios_of_each_level_can_be_redone() -> None:
    """Half of 36 GPUs over the cap of 8 hours are due; 8 of 9 GPU-hours so far, and 16 more are promised."""
    story = full()
    story.tell(submitted("w", ranks=2, pool="h100"))
    (line,) = verdict(story.state, "w").standings

    assert (line.budget, line.place, line.siblings) == ("a", 2, 2)
    assert line.charged_gpu_ms == 8 * HOUR
    assert line.committed_gpu_ms == 16 * HOUR
    assert line.entitled_gpu_ms == 28 * 8 * HOUR // 2, "n4 is ill and empty: 3 x 8 + 4 GPUs can be scheduled"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"ranks": 4, "pool": "h100"}, VerdictCode.IMPOSSIBLE_NOW),
        ({"pool": "h200"}, VerdictCode.NO_NODES),
        ({"pool": "h100"}, VerdictCode.NEXT_ROUND),
        ({"pool": "h100", "min_runtime_ms": 0}, VerdictCode.NO_CAPACITY),
    ],
)
def test_one_word_says_why_it_waits(fields: dict[str, object], code: VerdictCode) -> None:
    """More than the healthy nodes hold, a kind that nobody has, room that can be made, and none that it may take."""
    story = full()
    story.tell(submitted("w", **fields))

    assert waiting_code(story.state, story.state.workloads["w"]) is code
    assert verdict(story.state, "w").code is code


def test_a_budget_that_became_nothing_is_said() -> None:
    """It was submitted while there was a quota; nothing covers it now, and it is not placed."""
    story = Story(budgets(a=0.5, b=0.5), submitted("w"), budgets("b2", "b1", a=0.0, b=1.0), nodes(1))

    assert story.round().commands == []
    assert verdict(story.state, "w").code is VerdictCode.NO_BUDGET


def test_a_back_off_names_its_end() -> None:
    """Refused once: 15 s."""
    story = Story(budgets(a=1), nodes(1), submitted("w"))
    story.round()
    story.tell(released("n1", "w", outcome=ReleaseOutcome.REFUSED))
    found = verdict(story.state, "w")

    assert (found.code, found.until_ms) == (VerdictCode.HELD, 15 * SECOND)


def test_who_is_waited_for_is_named() -> None:
    """A planned gang says whose GPUs it waits for, and the victim says for whom it goes."""
    story = Story(budgets(a=1), nodes(1), unallocated("u"))
    story.round()
    story.tell(submitted("w"))
    story.round()

    assert verdict(story.state, "w").code is VerdictCode.PLANNED
    assert "8 GPUs of u" in verdict(story.state, "w").sentence
    assert "preempted for w" in verdict(story.state, "u").sentence


def test_what_its_owner_could_change_is_said() -> None:
    """Two of three ranks would fit; unallocated time would be there at once for nobody here."""
    story = Story(budgets(a=1), nodes(3), submitted("one", gpus_per_rank=1))
    story.round()
    story.tell(submitted("w", ranks=3, pool="h100"))

    assert verdict(story.state, "w").remedies == (
        "with 2 ranks instead of 3 it would fit on what is free now",
        "without insisting on pool h100 it could use any kind of GPU",
    )


def one_node(**knobs: object) -> Story:
    """One node of 8 GPUs, half of it for `a` and half for `b`; over the cap of 8 hours each is due 32 GPU-hours.

    `old` of `b` has it, protected for the first hour.
    """
    story = Story(adopted(**knobs), budgets(a=0.5, b=0.5), nodes(1), submitted("old", budget="b"))
    story.round()
    story.start("old")
    return story


def verdict_on(story: Story, workload: str) -> Verdict:
    """The verdict, which the word in the lists agrees with."""
    found = verdict(story.state, workload)
    assert waiting_code(story.state, story.state.workloads[workload]) is found.code
    return found


def test_the_gpus_of_unequal_groups_are_added_up() -> None:
    """A leader with 4 GPUs and two workers with 2 want 8; no one number of GPUs is that of each rank."""
    leader, workers = Group(name="leader", ranks=1, gpus_per_rank=4), Group(name="workers", ranks=2)
    story = one_node().at(30 * MINUTE)
    story.tell(submitted("w", ranks=3, gpus_per_rank=2, topology=TopologyRequest(groups=(leader, workers))))

    assert verdict_on(story, "w").sentence == (
        "asks for 3 ranks with 8 GPUs together; only protected runs are in the way: old, the last of them until "
        "1970-01-01T01:00:00Z"
    )


def test_protection_is_named_when_it_is_the_sole_obstacle() -> None:
    """After 30 minutes `b` has 4 + 4 of 32; `w` asks for 8, which would leave `a` no further ahead."""
    story = one_node().at(30 * MINUTE)
    story.tell(submitted("w"))
    found = verdict_on(story, "w")

    assert (found.code, found.until_ms, found.others) == (VerdictCode.PROTECTED, HOUR, ("old",))
    assert found.sentence == (
        "asks for 1 x 8 GPUs; only protected runs are in the way: old, the last of them until 1970-01-01T01:00:00Z"
    )
    assert found.fit is not None
    assert found.fit.possible_from_ms == HOUR


@pytest.mark.parametrize("at_ms", [30 * MINUTE, 1 * HOUR])
def test_the_guard_says_after_which_wait_it_passes(at_ms: int) -> None:
    """Two hours of 8 GPUs are 16 GPU-hours, `b` has 8: half of the guard must fade, which takes 12 of 24 hours.

    Protection comes last, so the guard is the reason before the protection of `old` ends, too.
    """
    story = one_node().at(at_ms)
    story.tell(submitted("w", min_runtime_ms=2 * HOUR))
    found = verdict_on(story, "w")

    assert (found.code, found.until_ms) == (VerdictCode.GUARD, at_ms + 12 * HOUR)
    assert found.because is not None
    assert (found.because.claimant_used_gpu_ms, found.because.guard_gpu_ms) == (0, 16 * HOUR)
    assert (found.because.victim_used_gpu_ms, found.because.victim_entitled_gpu_ms) == (8 * HOUR, 32 * HOUR)
    assert (
        "a at 0.000 (0.00 of 32.00 GPU-h), b at 0.250 (8.00 of 32.00 GPU-h); with the guard of 16.00 GPU-h a at 0.500 "
        "(16.00 of 32.00 GPU-h); as things stand it passes after a wait of 12h"
    ) in found.sentence


def test_a_guard_that_never_fades_names_no_time() -> None:
    """The policy may say so."""
    story = one_node(guard_relaxation_ms=None).at(1 * HOUR)
    story.tell(submitted("w", min_runtime_ms=2 * HOUR))
    found = verdict_on(story, "w")

    assert (found.code, found.until_ms) == (VerdictCode.GUARD, None)
    assert found.sentence.endswith("the guard does not fade that far")


def test_patience_ends_after_15_seconds() -> None:
    """One hour of 8 GPUs leaves `a` where `b` is, so it may take, but not at once."""
    story = one_node().at(1 * HOUR)
    story.tell(submitted("w"))
    found = verdict_on(story, "w")

    assert (found.code, found.until_ms) == (VerdictCode.PATIENCE, HOUR + 15 * SECOND)
    story.at(HOUR + 15 * SECOND).tick()
    assert verdict_on(story, "w").code is VerdictCode.NEXT_ROUND


def test_the_bucket_says_from_when_it_allows() -> None:
    """8 of 8 GPUs were preempted at 1:00:15; 2 come back in an hour, so 8 more are allowed from 5:00:15."""
    story = Story(budgets(a=1), nodes(1), submitted("first"))
    story.round()
    story.start("first")
    story.at(HOUR).tell(submitted("second", priority=1))
    story.at(HOUR + 15 * SECOND).tick()
    story.round()
    story.end("first", ReleaseOutcome.STOPPED)
    story.start("second")
    story.at(2 * HOUR + 15 * SECOND).tell(submitted("third", priority=2))
    story.at(2 * HOUR + 30 * SECOND).tick()
    found = verdict_on(story, "third")

    assert (found.code, found.until_ms) == (VerdictCode.RATE_LIMITED, 5 * HOUR + 15 * SECOND)
    assert "8 allocated GPUs would be preempted for it" in found.sentence
    assert story.round().commands == []
    own = verdict_on(story, "first")
    assert own.code is VerdictCode.BEHIND
    assert "of those only lower priority than 0 makes room" in own.sentence


def test_more_than_the_bucket_holds_is_never_allowed() -> None:
    """Half of 8 GPUs at a time, and 8 would have to go."""
    story = one_node(preemption_burst_percent=50).at(1 * HOUR)
    story.tell(submitted("w"))
    story.at(2 * HOUR).tick()
    found = verdict_on(story, "w")

    assert (found.code, found.until_ms) == (VerdictCode.RATE_LIMITED, None)
    assert found.sentence.endswith("so many are never allowed")


def test_whoever_comes_first_is_named_with_both_ratios() -> None:
    """16 GPUs over 8 hours are 64 for each. `a` has used 8, `b` 4: nothing of `b` is there for `a`."""
    story = Story(budgets(a=0.5, b=0.5), nodes(2), submitted("mine"))
    story.round()
    story.start("mine")
    story.at(30 * MINUTE).tell(submitted("theirs", budget="b", min_runtime_ms=30 * MINUTE))
    story.round()
    story.start("theirs")
    story.at(1 * HOUR).tell(submitted("w"))
    found = verdict_on(story, "w")

    assert (found.code, found.until_ms) == (VerdictCode.BEHIND, None)
    assert found.sentence == (
        "asks for 1 x 8 GPUs; b holds what it needs, and a does not come before it: a at 0.125 (8.00 of 64.00 GPU-h), "
        "b at 0.062 (4.00 of 64.00 GPU-h)"
    )


def test_work_whose_turn_comes_first_is_counted() -> None:
    """8 GPUs are free; equal teams take turns by age, so the second of two requests of 8 waits."""
    story = Story(budgets(a=0.5, b=0.5), nodes(1), submitted("x"))
    story.at(1 * MINUTE).tell(submitted("y", budget="b"))

    assert verdict_on(story, "x").code is VerdictCode.NEXT_ROUND
    found = verdict_on(story, "y")
    assert found.code is VerdictCode.BEHIND
    assert found.sentence.startswith(
        "asks for 1 x 8 GPUs; work whose turn comes first asks for 8 of the GPUs that can be had; b at 0.000"
    )


def reserved_nodes() -> Story:
    """Four nodes of `b`, protected for four hours, and reserved for a gang of `a`; three become free before."""
    story = Story(budgets(a=0.5, b=0.5), nodes(4))
    story.tell(submitted(f"old{number}", budget="b", min_runtime_ms=4 * HOUR) for number in range(1, 5))
    story.round()
    for number in range(1, 5):
        story.start(f"old{number}")
    story.tell(submitted("gang", ranks=4))
    story.at(2 * MINUTE).tick()
    story.round()
    story.at(1 * HOUR)
    for number in range(1, 4):
        story.end(f"old{number}")
    return story


def test_the_owner_of_a_reservation_sees_how_far_it_has_come() -> None:
    """Scenario B12."""
    found = verdict_on(reserved_nodes(), "gang")

    assert (found.code, found.until_ms) == (VerdictCode.PROMISED, 4 * HOUR)
    assert found.sentence == (
        "has n1, n2, n3, n4 reserved: held 3 of 4 nodes, last one expected free at 1970-01-01T04:00:00Z; it starts at "
        "1970-01-01T04:00:00Z at the latest"
    )


def test_who_may_not_use_reserved_nodes_sees_for_whom_they_are() -> None:
    """At 1:00 what is protected for 4 hours would be in the way at 4:00; an hour and two minutes is not."""
    story = reserved_nodes()
    story.tell(submitted("long", min_runtime_ms=4 * HOUR), submitted("hour", budget="b"))
    found = verdict_on(story, "long")

    assert (found.code, found.until_ms, found.others) == (VerdictCode.RESERVED, 4 * HOUR, ("gang",))
    assert found.fit is not None
    assert found.fit.nodes.reserved == 4
    assert verdict_on(story, "hour").code is VerdictCode.NEXT_ROUND


def test_gpus_that_somebody_waits_for_are_no_capacity() -> None:
    """They are planned for `w`, and when that will go is not known."""
    story = Story(budgets(a=1), nodes(1), unallocated("u"))
    story.round()
    story.tell(submitted("w"))
    story.round()
    story.tell(submitted("next"))
    found = verdict_on(story, "next")

    assert found.code is VerdictCode.NO_CAPACITY
    assert found.sentence == (
        "asks for 1 x 8 GPUs; free GPUs in any one pool hold 0 such ranks, 0 if unallocated work stops, 0 if all work "
        "past its protection does; first possible time: none"
    )


def test_what_was_displaced_says_so() -> None:
    """One minute after the first time, two after the second."""
    story = Story(budgets(a=1), nodes(1), unallocated("u"))
    story.round()
    story.start("u")
    story.tell(submitted("w"))
    story.round()
    story.end("u", ReleaseOutcome.STOPPED)
    found = verdict_on(story, "u")

    assert (found.code, found.until_ms) == (VerdictCode.HELD, MINUTE)
    assert found.sentence == "is held until 1970-01-01T00:01:00Z after it was displaced while unallocated"


def test_nodes_that_are_kept_or_drained_are_counted_as_such() -> None:
    """Of two free nodes one is headroom for short work, and a third is cordoned."""
    story = Story(adopted(nodes_per_headroom_node=2), budgets(a=1), nodes(3), drained("n1", Drain.CORDON))
    story.tell(submitted("one"))
    story.round()
    story.tell(submitted("w"))
    found = verdict_on(story, "w")

    assert found.fit is not None
    counts = found.fit.nodes
    assert (counts.headroom, counts.draining, counts.other_allocated_work) == (1, 1, 1), "`one` has yet to start"


def test_an_unknown_workload_has_no_verdict() -> None:
    """Whoever asks knows whether it exists."""
    with pytest.raises(KeyError):
        verdict(Story().state, "w")
