"""Changes of the budget tree: who may make them, when they count, and what becomes of what was there.

The edges of `fair-share.md` section 6, and scenarios B20 to B23 and B28.
"""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from streamsched.model.commands import Receipt, ReceiptStatus
from streamsched.model.events import BudgetShare, BudgetTreeChanged
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND, WHOLE
from streamsched.scheduling.draft import Draft
from streamsched.scheduling.fair_share import comes_before, standing
from streamsched.state.reasons import Ignored
from streamsched.state.snapshot import freeze, thaw
from tests.stories import Story, adopted, budgets, nodes, submitted, unallocated

WEEK = 7 * DAY


def tree(change: str, previous: str | None, **fields: object) -> BudgetTreeChanged:
    """research (60 %; llama and vision by halves) is managed by ana, research/llama by ben too, product by nobody."""
    shares: dict[str, tuple[int | None, tuple[str, ...]]] = {
        "product": (4, ()),
        "research": (6, ("ana",)),
        "research/llama": (5, ("ben",)),
        "research/vision": (5, ()),
        **fields.pop("shares", {}),  # type: ignore[dict-item]
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
        **fields,  # type: ignore[arg-type]
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


# --- what becomes of what was there -----------------------------------------------------------------------------------


def test_edge_6_work_of_a_removed_budget_stays_protected_and_is_the_last_in_order() -> None:
    """Its protection ends when it would have ended; E is 0 from now on, so everybody goes before it."""
    story = Story(budgets(a=0.5, b=0.5), nodes(1), submitted("w"))
    story.round()
    story.start("w")
    old = story.state.budgets.by_id["a"]
    story.at(MINUTE).tell(budgets("b2", "b1", b=0.5))
    run = story.state.workloads["w"].run

    assert run is not None
    assert (story.phase("w"), run.protected_until_ms) == ("running", HOUR)
    draft = Draft(story.state)
    ours, theirs = (standing(budget, draft, allocated=True) for budget in (story.state.budgets.by_id["b"], old))
    assert theirs.entitled == 0
    assert comes_before(ours, theirs)


def test_edge_7_an_idle_week_is_a_credit_of_one_week() -> None:
    """10 % of 80 GPUs, idle for three weeks, is worth one: 1,344 GPU-hours, the whole pool for 16.8 hours."""
    story = Story(budgets(a=0.1), nodes(10))
    story.at(3 * WEEK).tick()

    entitled = story.state.budgets.by_id["a"].entitled_gpu_ms(3 * WEEK)
    assert entitled == 1_344 * HOUR
    assert entitled * 10 == 80 * 168 * HOUR


def test_edge_8_what_is_promised_to_nobody_is_not_held_back() -> None:
    """a holds 10 %, and nobody the rest: its work takes all 16 GPUs."""
    story = Story(budgets(a=0.1), nodes(2), submitted("w1"), submitted("w2"))
    story.round()

    assert (story.phase("w1"), story.phase("w2")) == ("bound", "bound")


def test_edge_9_a_moved_budget_begins_anew_and_its_past_stays_where_it_was() -> None:
    """x moves from a to b: a keeps the 8 GPU-hours, b/x has none, and the work of a/x runs on at a's expense."""
    before = {"a": 0.5, "a/x": 0.5, "b": 0.5, "b/z": 0.5}
    story = Story(budgets(**before), nodes(2), submitted("w", budget="a/x"))
    story.round()
    story.start("w")
    story.at(HOUR).tell(budgets("b2", "b1", **{"a": 0.5, "b": 0.5, "b/z": 0.5, "b/x": 0.5}))
    assert (used(story, "a"), used(story, "b/x"), used(story, "b")) == (8 * HOUR, 0, 0)

    story.tell(submitted("new", budget="b/x"))
    story.round()
    story.at(2 * HOUR).tick()
    assert story.phase("w") == "running"
    assert (used(story, "a"), used(story, "b/x"), used(story, "b")) == (16 * HOUR, 8 * HOUR, 8 * HOUR)
    assert story.state.budgets.root.charged_gpu_ms(2 * HOUR) == 24 * HOUR, "charged once"


def test_b20_deleting_a_leaf_with_running_and_waiting_work() -> None:
    """w runs on, charged to a and the root; q ends with the reason; x is refused, and a new x begins at nothing."""
    story = Story(budgets(**{"a": 1.0, "a/x": 1.0}), nodes(1), submitted("w", budget="a/x"))
    story.at(600 * SECOND).round()
    story.start("w")
    story.tell(submitted("q", budget="a/x"))
    story.at(1_000 * SECOND).tell(budgets("b2", "b1", a=1.0))
    assert used(story, "a") == 8 * 400 * SECOND
    assert story.state.finished["q"].reason == "budget 'a/x' was removed by change 'b2'; submit to another budget"
    assert story.tell(submitted("late", budget="a/x")).receipts[0].status is ReceiptStatus.REJECTED

    story.at(1_600 * SECOND).end("w")
    assert used(story, "a") == story.state.budgets.root.charged_gpu_ms(1_600 * SECOND) == 8 * 1_000 * SECOND
    story.tell(budgets("b3", "b2", **{"a": 1.0, "a/x": 1.0}))
    assert (used(story, "a/x"), used(story, "a")) == (0, 8_000 * SECOND)


def test_b21_a_quota_cut_to_nothing_stops_nobody() -> None:
    """a's quota becomes 0 while its work is protected: 8 of 16 GPUs are free, so one of b's two gets them."""
    story = Story(budgets(a=0.5, b=0.5), nodes(2), submitted("w"))
    story.round()
    story.start("w")
    story.at(100 * SECOND).tell(budgets("b2", "b1", a=0.0, b=0.5))
    story.tell(submitted("b-1", budget="b"), submitted("b-2", budget="b"))
    story.round()

    assert [story.phase(name) for name in ("w", "b-1", "b-2")] == ["running", "bound", "queued"]
    assert story.state.inventory.pools["h100"].free.slots(1) == 0


@pytest.mark.parametrize(
    "shares",
    [
        [("a", 1), ("a", 1)],
        [("b/a", 1), ("b", 1)],
        [("unknown/x", 1)],
        [("a", WHOLE), ("b", 1)],
        [("a", -1)],
        [("a", float("nan"))],
        [("a", 1e308)],
        [("a", "3")],
        [("a", True)],
    ],
)
def test_b22_b23_what_is_no_tree_cannot_be_said(shares: list[tuple[str, object]]) -> None:
    """A budget's parent is in its name, so no cycle can be written; nor may an orphan, a repeat or a wild fraction."""
    items = [{"budget": path, "fraction_nano": nano} for path, nano in shares]
    with pytest.raises(ValidationError):
        BudgetTreeChanged.model_validate({"change": "c", "reason": "a test", "budgets": items})


def test_b23_a_quota_of_zero_is_last_while_others_ask_and_idle_or_not() -> None:
    """b asked first and has used nothing: a is first all the same, and b has what nobody with a budget wants."""
    story = Story(budgets(a=1.0, b=0.0), nodes(1), unallocated("of-b", budget="b"), submitted("of-a"))
    story.round()
    assert (story.phase("of-a"), story.phase("of-b")) == ("bound", "queued")
    assert story.tell(submitted("claims", budget="b")).receipts[0].status is ReceiptStatus.REJECTED

    story.end("of-a")
    story.round()
    assert story.phase("of-b") == "bound"


def test_b23_without_any_quota_spare_capacity_goes_by_age() -> None:
    """Both have 0: no division fails, and the older one is first."""
    story = Story(budgets(a=0.0, b=0.0), nodes(1), unallocated("older", budget="b"))
    story.at(1).tell(unallocated("younger", budget="a"))
    story.round()

    assert (story.phase("older"), story.phase("younger")) == ("bound", "queued")


def test_b23_a_window_of_nothing_is_refused() -> None:
    """At the time it is said, not when something is divided by it."""
    with pytest.raises(ValidationError, match="window_ms"):
        adopted(window_ms=0)
