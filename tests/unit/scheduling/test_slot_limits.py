"""Limits of GPUs at a time, beside the quota of time: edge case 41 of `fair-share.md`, section 6."""

from __future__ import annotations

import pytest

from streamsched.model.commands import ReceiptStatus
from streamsched.model.events import BudgetShare, BudgetTreeChanged
from streamsched.model.policy import PoolRate, Scheme
from streamsched.model.quantities import HOUR, SECOND, WHOLE
from streamsched.scheduling.decision import decide
from streamsched.scheduling.memory import Memory
from streamsched.scheduling.schemes import decide as propose
from streamsched.state.reasons import Void
from streamsched.state.snapshot import freeze, thaw
from tests.stories import Story, adopted, cancelled, drained, node, nodes, released, submitted, unallocated


def limited(
    change: str = "b1", previous: str | None = None, **limits: tuple[int | None, int | None]
) -> BudgetTreeChanged:
    """p holds everything; p/a and p/b half of it each. Limits by the last letter: allocated, unallocated."""
    fractions = {"p": WHOLE, "p/a": WHOLE // 2, "p/b": WHOLE // 2}
    shares: list[BudgetShare] = []
    for path, nano in fractions.items():
        allocated, free = limits.get(path[-1], (None, None))
        shares.append(
            BudgetShare(budget=path, fraction_nano=nano, max_allocated_gpus=allocated, max_unallocated_gpus=free)
        )
    return BudgetTreeChanged(change=change, previous=previous, reason="a test", budgets=tuple(shares))


def waiting(story: Story) -> list[str]:
    return sorted(id_ for id_, workload in story.state.workloads.items() if workload.run is None)


def test_a_limit_counts_what_is_below_and_each_class_by_itself() -> None:
    """p may have 16 allocated and 8 unallocated GPUs of 40, a 8 allocated ones. One decision keeps to all three."""
    story = Story(limited(p=(16, 8), a=(8, None)), nodes(5))
    story.tell(submitted(f"a{n}", budget="p/a") for n in range(2))
    story.at(1).tell(submitted(f"b{n}", budget="p/b") for n in range(2))
    story.tell(unallocated(f"u{n}", budget="p/a") for n in range(2))
    story.round()

    assert waiting(story) == ["a1", "b1", "u1"]
    assert story.state.void == {}
    assert decide(story.state) is None
    p, a = (story.state.budgets.by_id[name] for name in ("p", "p/a"))
    assert (p.slots(allocated=True), p.slots(allocated=False)) == ((16, 16), (8, 8))
    assert (a.slots(allocated=True), a.slots(allocated=False)) == ((8, 8), (8, None))


def test_gpus_are_counted_and_not_what_they_cost() -> None:
    """Every GPU costs 8 units; 8 GPUs are 8 of the 16 that a may have."""
    story = Story(adopted(rates=(PoolRate(pool="h100", rate=8),)), limited(a=(16, None)), nodes(3))
    story.tell(submitted(f"a{n}", budget="p/a") for n in range(3))
    story.round()

    assert waiting(story) == ["a2"]
    assert story.state.budgets.by_id["p/a"].charged.held == 16 * 8


def test_what_is_planned_counts_until_it_is_withdrawn() -> None:
    """All is held by unallocated work of b. a has a plan for its 8, so its second waits, until the plan is given up."""
    story = Story(limited(a=(8, None)), nodes(2))
    story.tell(unallocated(f"u{n}", budget="p/b") for n in range(2))
    story.round()
    story.at(SECOND).tell(submitted("first", budget="p/a"), submitted("second", budget="p/a"))
    story.round()
    assert (story.phase("first"), story.phase("second")) == ("planned", "queued")
    assert thaw(freeze(story.state)).budgets.by_id["p/a"].slots(allocated=True) == (8, 8)
    assert decide(story.state) is None

    before = story.state.stirred
    story.tell(cancelled("first"))
    assert story.state.stirred != before, "nothing is free yet, and another may plan"
    proposal = decide(story.state)
    assert proposal is not None
    assert [item.workload for item in proposal.placements] == ["second"]


def test_a_proposal_beyond_a_limit_is_void() -> None:
    """It was made before the limit came."""
    story = Story(limited(), nodes(1), submitted("w", budget="p/a"))
    proposal = decide(story.state)
    assert proposal is not None
    story.tell(limited("b2", "b1", p=(7, None)), proposal)

    assert story.state.void == {Void.SLOT_LIMIT: 1}
    assert waiting(story) == ["w"]


def test_a_lower_limit_stops_nobody() -> None:
    """16 run, and 8 are allowed: no more is placed before both have ended, and a restart changes nothing of it."""
    story = Story(limited(), nodes(3), (submitted(f"w{n}", budget="p/a") for n in range(2)))
    story.round()
    for name in ("w0", "w1"):
        story.start(name)
    story.tell(limited("b2", "b1", a=(8, 0)), submitted("next", budget="p/a"))
    story.state = thaw(freeze(story.state))
    assert (story.phase("w0"), story.phase("w1")) == ("running", "running")

    story.at(HOUR).end("w0")
    assert decide(story.state) is None
    story.end("w1")
    story.round()
    assert story.phase("next") == "bound"


@pytest.mark.parametrize("scheme", list(Scheme))
def test_a_limit_that_opens_is_noticed_whatever_decides(scheme: Scheme) -> None:
    """A run ends on a node that takes no work: no GPU comes free, but one more may run on another that was free."""
    story = Story(adopted(scheme=scheme), limited(a=(8, None)), nodes(1), submitted("first", budget="p/a"))
    story.round()
    story.start("first")
    story.tell(drained("n1"), node("n2"), submitted("second", budget="p/a"))
    memory = Memory()
    assert propose(story.state, memory) is None
    assert memory.looks == 0, "it is passed over before anything that costs"

    before = story.state.stirred
    story.at(SECOND).tell(released("n1", "first"))
    assert story.state.stirred != before
    proposal = propose(story.state, memory)
    assert proposal is not None
    assert [item.workload for item in proposal.placements] == ["second"]


def test_limits_belong_to_those_who_manage_the_budget() -> None:
    """A limit is a change of the budget like any other."""
    managed = limited(a=(8, None)).model_copy(update={"change": "b1"})
    shares = tuple(share.model_copy(update={"managers": ("ana",)}) for share in managed.budgets)
    story = Story(managed.model_copy(update={"budgets": shares}))
    raised = tuple(
        share.model_copy(update={"max_allocated_gpus": 9}) if share.budget == "p/a" else share for share in shares
    )
    change = managed.model_copy(update={"change": "b2", "previous": "b1", "budgets": raised})
    assert story.tell(change.model_copy(update={"actor": "ben"})).receipts[0].status is ReceiptStatus.REJECTED
    assert story.tell(change.model_copy(update={"actor": "ana"})).receipts[0].status is ReceiptStatus.ACCEPTED
    assert story.state.budgets.by_id["p/a"].max_allocated_gpus == 9
