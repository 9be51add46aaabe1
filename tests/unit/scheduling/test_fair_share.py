"""Whose turn it is: `fair-share.md` sections 4.1 and 8."""

from __future__ import annotations

from typing import Any

import pytest

from streamsched.model.events import ReleaseOutcome, RoundProposed
from streamsched.model.policy import Order, UsageMode
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND, WHOLE
from streamsched.scheduling.decision import decide
from streamsched.scheduling.draft import Draft
from streamsched.scheduling.fair_share import comes_before, standing
from streamsched.state.cluster import ClusterState
from streamsched.state.snapshot import freeze, thaw
from tests.stories import Story, adopted, budgets, cancelled, node, nodes, submitted, unallocated

WEEK = 7 * DAY


def use(state: ClusterState, leaf: str, gpu_hours: float) -> None:
    """Put used time on the books of a leaf, as if it had just been earned."""
    for budget in state.budgets.by_id[leaf].path:
        budget.charged.hold(0, state.now_ms)
        budget.charged.gpu_ms += round(gpu_hours * HOUR)


def order(state: ClusterState) -> list[str]:
    """The workloads that would be placed now, in the order in which their turns come."""
    proposal = decide(state)
    return [] if proposal is None else [item.workload for item in proposal.placements]


def test_example_3_the_order_goes_down_from_the_root() -> None:
    """b, a, d, c, although d has the smallest ratio of all leaves: its programme is ahead."""
    tree = budgets(**{"P1": 0.6, "P1/a": 0.5, "P1/b": 0.5, "P2": 0.4, "P2/c": 0.75, "P2/d": 0.25})
    story = Story(tree, nodes(12), node("n13", gpus=4))
    story.at(WEEK).tick()
    for leaf, hours in (("P1/a", 4_000), ("P1/b", 1_000), ("P2/c", 4_500), ("P2/d", 300)):
        use(story.state, leaf, hours)
    story.tell(
        submitted(path[-1], budget=path, gpus_per_rank=1, min_runtime_ms=5 * MINUTE)
        for path in ("P1/a", "P1/b", "P2/c", "P2/d")
    )

    assert order(story.state) == ["b", "a", "d", "c"]


def test_example_4_commitments_stop_a_burst_in_one_pass() -> None:
    """Team B is 53.76 GPU-hours ahead; each placement of 32 counts at once: A A B A B A B A."""
    story = Story(budgets(A=0.5, B=0.5), nodes(8))
    story.at(WEEK).tick()
    use(story.state, "B", 53.76)
    story.tell(submitted(f"{team}{n}", budget=team, min_runtime_ms=4 * HOUR) for n in range(8) for team in "AB")

    assert [name[0] for name in order(story.state)] == list("AABABABA")
    assert story.state.budgets.by_id["A"].entitled_gpu_ms(WEEK) == 5_376 * HOUR


def test_example_4_without_commitment_a_burst_takes_everything() -> None:
    """The same, commitment switched off: nothing that A is given counts before it has run, so A is first each time."""
    story = Story(adopted(commitment=False), budgets(A=0.5, B=0.5), nodes(8))
    story.at(WEEK).tick()
    use(story.state, "B", 53.76)
    story.tell(submitted(f"{team}{n}", budget=team, min_runtime_ms=4 * HOUR) for n in range(8) for team in "AB")

    assert [name[0] for name in order(story.state)] == list("AAAAAAAA")


def test_due_first_goes_by_what_is_held_now_and_then_by_the_ratio() -> None:
    """32 GPUs. a holds its 8, b none of its 8 but has used most, c none of its 16 and has used half of that ratio."""
    story = Story(adopted(order=Order.DUE_FIRST), budgets(a=0.25, b=0.25, c=0.5), nodes(4), submitted("a1"))
    story.round()
    story.start("a1")
    story.at(WEEK).tick()
    use(story.state, "b", 2_000)
    use(story.state, "c", 2_000)
    tree, draft = story.state.budgets.by_id, Draft(story.state)
    a, b, c = (standing(tree[name], draft, allocated=True) for name in "abc")

    assert (a.above, b.above, c.above) == (True, False, False)
    assert comes_before(c, b)
    assert comes_before(b, a)
    assert a.used * b.entitled < b.used * a.entitled, "by the ratio alone a would be before b"


def test_due_first_counts_what_the_decision_has_given() -> None:
    """At its quota is above it: 16 of 32 GPUs given to a half of them."""
    story = Story(adopted(order=Order.DUE_FIRST), budgets(a=0.5, b=0.5), nodes(4))
    draft = Draft(story.state)
    a = story.state.budgets.by_id["a"]
    draft.give(a, 15)
    assert not standing(a, draft, allocated=True).above
    draft.give(a, 1)
    assert standing(a, draft, allocated=True).above
    assert not standing(a, draft, allocated=False).above, "unallocated work is ordered by its own ledger alone"


def test_instant_counts_what_the_decision_has_given() -> None:
    """No history and no commitment: 8 of the 16 GPUs that are due."""
    story = Story(adopted(usage=UsageMode.INSTANT), budgets(a=0.5, b=0.5), nodes(4))
    story.at(WEEK).tick()
    use(story.state, "a", 5_000)
    draft = Draft(story.state)
    a = story.state.budgets.by_id["a"]
    draft.commit(a, 8 * HOUR)
    draft.give(a, 8)

    assert standing(a, draft, allocated=True) == (8 * WHOLE, 0, 16 * WHOLE, False)


@pytest.mark.parametrize(
    "policy",
    [{"usage": UsageMode.INSTANT}, {"order": Order.DUE_FIRST, "commitment": False}],
    ids=["instant", "due_first"],
)
def test_a_plan_counts_until_its_victims_are_gone(policy: dict[str, Any]) -> None:
    """Three nodes, one placement a round, each for a victim in its grace: a and b win one each, then a its second.

    Each is due 6 of 24. What a has planned puts it behind b, though nobody holds anything before the victims are gone.
    """
    story = Story(adopted(placements_per_round=1, **policy), budgets(a=0.25, b=0.25, c=0.0), nodes(3))
    for number in range(3):
        story.tell(unallocated(f"u{number}", budget="c"))
        story.round()
        story.start(f"u{number}")
    story.at(1).tell(submitted(f"a{number}", budget="a") for number in range(3))
    story.at(2).tell(submitted(f"b{number}", budget="b") for number in range(3))
    story.round()
    story.round()

    tree = story.state.budgets
    assert [story.phase(name) for name in ("a0", "a1", "b0")] == ["planned", "queued", "planned"]
    assert (tree.by_id["a"].planned_units, tree.by_id["b"].planned_units, tree.root.planned_units) == (8, 8, 16)
    assert thaw(freeze(story.state)).budgets.root.planned_units == 16

    story.round()
    assert story.phase("a1") == "planned", "equal again, and a has waited longer"
    story.tell(cancelled("a1"))
    assert (tree.by_id["a"].planned_units, tree.by_id["a"].charged.held) == (8, 0), "withdrawn"
    for number in range(3):
        story.end(f"u{number}", ReleaseOutcome.STOPPED)
    assert (story.phase("a0"), tree.by_id["a"].planned_units, tree.by_id["a"].charged.held) == ("bound", 0, 8)


def test_a_tie_goes_to_the_older_workload_and_then_to_the_id() -> None:
    """Nobody has used anything: the team that has waited longer is first, whatever it calls its priority."""
    story = Story(budgets(a=0.5, b=0.5), nodes(1))
    story.at(10).tell(submitted("young", budget="a", priority=100))
    story.tell(submitted("b-same-age", budget="b"))
    assert order(story.state) == ["young"], "equal ages: budget a comes before budget b"

    other = Story(budgets(a=0.5, b=0.5), nodes(1))
    other.at(10).tell(submitted("older", budget="b"))
    other.at(11).tell(submitted("younger", budget="a", priority=100))
    assert order(other.state) == ["older"]


def test_the_oldest_decides_a_tie_even_when_another_is_first_in_its_leaf() -> None:
    """Priority reorders the leaf, and does not make the leaf younger."""
    story = Story(budgets(a=0.5, b=0.5), nodes(1))
    story.at(10).tell(submitted("a-old", budget="a"))
    story.at(20).tell(submitted("b-middle", budget="b"))
    story.at(30).tell(submitted("a-urgent", budget="a", priority=5))

    assert order(story.state) == ["a-urgent"]


def test_priority_never_leaves_its_leaf() -> None:
    """Team b has used nothing, so its ordinary work goes before the most urgent work of team a."""
    story = Story(budgets(a=0.5, b=0.5), nodes(1))
    story.at(WEEK).tick()
    use(story.state, "a", 1)
    story.tell(submitted("urgent", budget="a", priority=1_000), submitted("ordinary", budget="b"))

    assert order(story.state) == ["ordinary"]


def test_order_inside_a_leaf() -> None:
    """Priority, then what was requeued, then age, then id."""
    story = Story(budgets(a=1), nodes(5))
    story.at(1).tell(submitted("y"), submitted("x"))
    story.at(2).tell(submitted("late"), submitted("urgent", priority=1), submitted("again"))
    again = story.state.workloads["again"]
    story.state.allocated.remove(again)
    again.requeued = True
    story.state.allocated.add(again)

    assert order(story.state) == ["urgent", "again", "x", "y", "late"]


def test_equal_ratios_are_equal_whatever_their_size() -> None:
    """20/40 of the entitlement is 25/50 of it to the last digit; a float may say otherwise."""
    story = Story(budgets(p=1, **{"p/a": 0.4, "p/b": 0.5}), nodes(1))
    story.at(WEEK).tick()
    use(story.state, "p/a", 20)
    use(story.state, "p/b", 25)
    story.tell(submitted("first", budget="p/b"), submitted("second", budget="p/a"))
    story.state.workloads["second"].queued_ms = story.state.workloads["first"].queued_ms

    assert order(story.state) == ["second"], "a tie of equals goes to the smaller id, which is a"


def test_a_quota_of_zero_is_served_last_and_only_unallocated() -> None:
    """Scenario B23: with no use anywhere, 0 divided by 0 is not a reason to go first."""
    story = Story(budgets(a=1, b=0), nodes(1))
    receipts = story.tell(submitted("refused", budget="b")).receipts
    assert receipts[0].status == "rejected"
    assert "quota of 0" in (receipts[0].reason or "")
    story.tell(unallocated("spare", budget="b"))
    story.at(1).tell(unallocated("owned", budget="a"))

    assert order(story.state) == ["owned"]


def test_the_arithmetic_is_in_the_proposal() -> None:
    """One line for each level, with what the comparison was made of."""
    story = Story(budgets(**{"P": 1, "P/a": 0.5, "P/b": 0.5}), nodes(2))
    story.at(10 * HOUR).tell(submitted("w", budget="P/a"), submitted("v", budget="P/b"))
    proposal = decide(story.state)

    assert isinstance(proposal, RoundProposed)
    first = proposal.placements[0].shares
    assert [line.budget for line in first] == ["P", "P/a"], "equal in use and age, so the smaller id"
    assert first[0].siblings == 1
    assert first[1].siblings == 2
    assert first[0].entitled_gpu_ms == 16 * 10 * HOUR
    assert first[1].entitled_gpu_ms == 8 * 10 * HOUR
    second = proposal.placements[1].shares
    assert second[0].committed_gpu_ms == 8 * HOUR, "the first placement's protected hour counts already"


def test_unallocated_work_has_its_own_order() -> None:
    """Who has had less unallocated time for its quota goes first; allocated use does not count."""
    story = Story(budgets(a=0.5, b=0.5), nodes(2))
    story.tell(unallocated("u-a", budget="a", ranks=2))
    story.round()
    story.start("u-a")
    story.at(60 * SECOND).end("u-a")
    use(story.state, "b", 100)
    story.tell(unallocated("a-next", budget="a", ranks=2), unallocated("b-next", budget="b", ranks=2))

    assert order(story.state) == ["b-next"]
