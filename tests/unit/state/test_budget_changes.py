"""Changes of the budget tree: who may make them, and when they count (scenario B28)."""

from __future__ import annotations

from typing import Any

import pytest

from streamsched.model.commands import Receipt, ReceiptStatus
from streamsched.model.events import BudgetShare, BudgetTreeChanged
from streamsched.model.quantities import DAY, HOUR, MINUTE, WHOLE
from streamsched.state.reasons import Ignored
from streamsched.state.snapshot import freeze, thaw
from tests.stories import Story, budgets, nodes

WEEK = 7 * DAY


def tree(change: str, previous: str | None, **fields: Any) -> BudgetTreeChanged:
    """research (60 %; llama and vision by halves) is managed by ana, research/llama by ben too, product by nobody."""
    shares: dict[str, tuple[int | None, tuple[str, ...]]] = {
        "product": (4, ()),
        "research": (6, ("ana",)),
        "research/llama": (5, ("ben",)),
        "research/vision": (5, ()),
        **fields.pop("shares", {}),
    }
    return BudgetTreeChanged(
        change=change,
        previous=previous,
        reason="a test",
        budgets=tuple(
            BudgetShare(budget=path, fraction_nano=tenths * WHOLE // 10, managers=managers)
            for path, (tenths, managers) in shares.items()
            if tenths is not None
        ),
        **fields,
    )


def answer(story: Story, fact: BudgetTreeChanged) -> Receipt:
    return story.tell(fact).receipts[0]


def used(story: Story, budget: str) -> int:
    return story.state.budgets.by_id[budget].charged_gpu_ms(story.state.now_ms)


# --- who may ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actor", "shares", "may"),
    [
        ("ana", {"research/llama": (4, ("ben",))}, True),
        ("ben", {"research/llama": (4, ("ben",))}, True),
        ("ben", {"research/llama": (5, ("ben", "carl"))}, True),
        ("ben", {"research/llama/probes": (10, ())}, True),
        ("ben", {"research/vision": (4, ())}, False),
        ("ben", {"research": (5, ("ana",))}, False),
        ("ana", {"research/vision": (None, ())}, True),
        ("ben", {"research/vision": (None, ())}, False),
        ("carl", {"product": (3, ())}, True),
        (None, {"product": (3, ())}, True),
        (None, {"research/vision": (4, ())}, False),
        ("ana", {"product": (3, ("ana",))}, True),
        ("carl", {"research/small": (0, ())}, False),
    ],
)
def test_a_subtree_is_changed_by_its_managers(
    actor: str | None, shares: dict[str, tuple[int | None, tuple[str, ...]]], may: bool
) -> None:
    """Those of a budget or of any above it; where there are none, anybody may."""
    story = Story(tree("b1", None, actor="root"))
    receipt = answer(story, tree("b2", "b1", actor=actor, shares=shares))

    assert receipt.status is (ReceiptStatus.ACCEPTED if may else ReceiptStatus.REJECTED)
    assert story.state.budgets.change == ("b2" if may else "b1")
    assert story.state.ignored.get(Ignored.NOT_MANAGED, 0) == (0 if may else 1)


def test_a_refusal_names_the_budget_and_who_may() -> None:
    """So that whoever is refused knows whom to ask."""
    story = Story(tree("b1", None))
    receipt = answer(story, tree("b2", "b1", actor="ben", shares={"research/vision": (4, ())}))

    assert receipt.reason == (
        "actor: 'ben' does not manage budget 'research/vision', which this would change; ask one of ana, who manage "
        "'research'"
    )


# --- when it counts ---------------------------------------------------------------------------------------------------


def test_b28_a_change_takes_effect_at_its_instant_once() -> None:
    """Scheduled for 2 h: half before and a quarter after, through two restarts before and one after it."""
    story = Story(budgets(a=0.5), nodes(1))
    later = budgets("b2", "b1", a=0.25).model_copy(update={"effective_ms": 2 * HOUR})
    assert answer(story.at(HOUR), later).status is ReceiptStatus.ACCEPTED
    assert story.state.next_wakeup_ms == 2 * HOUR
    assert story.state.budgets.by_id["a"].quota_nano == WHOLE // 2

    for at_ms in (HOUR, HOUR + MINUTE, 3 * HOUR):
        story.state = thaw(freeze(story.state))
        story.at(at_ms).tick()
    story.state = thaw(freeze(story.state))
    leaf = story.state.budgets.by_id["a"]

    assert (story.state.budgets.change, leaf.quota_nano) == ("b2", WHOLE // 4)
    assert [begin for begin, _ in leaf.segments] == [0, 8 * 2 * HOUR], "at 2 h, though nothing was heard until 3 h"
    assert answer(story, later).status is ReceiptStatus.ACCEPTED
    assert (story.state.ignored, story.state.scheduled) == ({Ignored.REPEATED: 1}, [])


def test_a_change_before_it_makes_a_scheduled_one_stale() -> None:
    """It was made on a tree that is no more; its author hears of that when it would have taken effect."""
    story = Story(budgets(a=0.5))
    story.tell(budgets("later", "b1", a=0.25).model_copy(update={"effective_ms": HOUR, "corr": "c"}))
    story.tell(budgets("now", "b1", a=0.75))
    effects = story.at(HOUR).tick()

    assert (story.state.budgets.change, story.state.scheduled) == ("now", [])
    assert [(receipt.change, receipt.status, receipt.corr) for receipt in effects.receipts] == [
        ("later", ReceiptStatus.REJECTED, "c")
    ]


def test_scheduled_changes_follow_each_other() -> None:
    """One that was made on another takes effect after it, in the order of their instants."""
    story = Story(budgets(a=0.5))
    story.tell(budgets("b2", "b1", a=0.25).model_copy(update={"effective_ms": HOUR}))
    story.tell(budgets("b3", "b2", a=0.75).model_copy(update={"effective_ms": 2 * HOUR}))

    story.at(HOUR).tick()
    assert story.state.budgets.change == "b2"
    story.at(2 * HOUR).tick()
    assert story.state.budgets.change == "b3"


def test_an_instant_that_has_passed_is_now() -> None:
    """Nothing is changed in the past."""
    story = Story(budgets(a=0.5), nodes(1))
    story.at(2 * HOUR).tell(budgets("b2", "b1", a=0.25).model_copy(update={"effective_ms": HOUR}))

    assert [begin for begin, _ in story.state.budgets.by_id["a"].segments] == [0, 8 * 2 * HOUR]
