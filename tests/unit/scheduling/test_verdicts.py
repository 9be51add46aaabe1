"""Why a workload stands where it stands, in numbers that a reader can redo: `fair-share.md` section 7."""

from __future__ import annotations

import pytest

from streamsched.model.events import NodeHealth, ReleaseOutcome
from streamsched.model.quantities import HOUR, MINUTE, SECOND
from streamsched.scheduling.verdicts import VerdictCode, verdict, waiting_code
from tests.stories import Story, budgets, health, node, nodes, released, submitted, unallocated


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

    assert found.code is VerdictCode.NO_CAPACITY
    assert found.fit is not None
    counts = found.fit.nodes
    assert (counts.protected_work, counts.other_allocated_work, counts.fits_if_unallocated_work_stops) == (1, 1, 1)
    assert (counts.unhealthy, counts.other_pool, counts.fits, counts.too_small) == (1, 1, 0, 0)
    assert (found.fit.ranks_free, found.fit.ranks_if_unallocated_work_stops, found.fit.ranks_possible) == (0, 1, 3)
    assert "asks for 2 x 8 GPUs; free GPUs in pool h100 hold 0 such ranks, 1 if unallocated work stops" in (
        found.sentence
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


def test_an_unknown_workload_has_no_verdict() -> None:
    """Whoever asks knows whether it exists."""
    with pytest.raises(KeyError):
        verdict(Story().state, "w")
