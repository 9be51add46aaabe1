"""GPU-time in the window: the worked examples of `fair-share.md` section 8, and the edges of section 6."""

from __future__ import annotations

import pytest

from streamsched.model.events import BudgetShare
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND, WHOLE
from streamsched.state.usage import Budget, BudgetTree

WEEK = 7 * DAY
CAP = 8 * HOUR


def tree_of(fractions: dict[str, int], *, gpus: int = 0, window_ms: int = WEEK) -> BudgetTree:
    """A tree whose capacity is there from the beginning."""
    tree = BudgetTree(window_ms, CAP)
    tree.set_capacity(gpus, 0)
    change(tree, fractions, 0)
    return tree


def change(tree: BudgetTree, fractions: dict[str, int], now_ms: int) -> list[Budget]:
    shares = tuple(BudgetShare(budget=path, fraction_nano=nano) for path, nano in fractions.items())
    return tree.change_to(shares, f"at {now_ms}", now_ms)


def hold(tree: BudgetTree, leaf: str, gpus: int, start_ms: int, end_ms: int) -> None:
    """Let a run of a leaf hold GPUs for a while; the clock must not have passed its start."""
    budget = tree.by_id[leaf]
    tree.advance(start_ms)
    tree.hold(budget, gpus, start_ms, charged=True)
    tree.advance(end_ms)
    tree.hold(budget, -gpus, end_ms, charged=True)


def used(tree: BudgetTree, budget: str, now_ms: int) -> int:
    tree.advance(now_ms)
    return tree.by_id[budget].charged_gpu_ms(now_ms)


def test_example_1_a_leaf_knows_its_absolute_share() -> None:
    """70 % of 50 % of 1,024 GPUs is worth 60,211.2 GPU-hours a week."""
    tree = tree_of({"A": WHOLE // 2, "A/A1": 700_000_000}, gpus=1024)
    leaf = tree.by_id["A/A1"]

    assert leaf.quota_nano == 350_000_000
    tree.advance(WEEK)
    assert leaf.entitled_gpu_ms(WEEK) == 602_112 * HOUR // 10
    assert leaf.entitled_gpu_ms(WEEK) // 7 == 86_016 * HOUR // 10


def test_example_2_the_window_is_exact() -> None:
    """16 GPUs from 00:00 to 10:30; one week later at 05:15 exactly 84 GPU-hours are left, not 72 and not 88."""
    tree = tree_of({"a": WHOLE})
    hold(tree, "a", 16, 0, 10 * HOUR + 30 * MINUTE)

    assert used(tree, "a", WEEK + 5 * HOUR + 15 * MINUTE) == 84 * HOUR


def test_example_2_use_inside_an_hour_is_not_spread_over_it() -> None:
    """64 GPUs from 05:00 to 05:10 have left the window at 05:15 a week later; an hour's bucket would still show 8."""
    tree = tree_of({"a": WHOLE})
    hold(tree, "a", 64, 5 * HOUR, 5 * HOUR + 10 * MINUTE)

    assert used(tree, "a", WEEK + 5 * HOUR) == 64 * 10 * MINUTE
    assert used(tree, "a", WEEK + 5 * HOUR + 15 * MINUTE) == 0


def test_example_12_a_raise_is_not_retroactive() -> None:
    """100 GPUs, 10 % for six days and 40 % for one: 2,400 GPU-hours are due, not 6,720."""
    tree = tree_of({"a": WHOLE // 10}, gpus=100)
    change(tree, {"a": 4 * WHOLE // 10}, 6 * DAY)
    tree.advance(WEEK)

    assert tree.by_id["a"].entitled_gpu_ms(WEEK) == 2_400 * HOUR


def test_a_new_budget_has_no_credit_from_before_and_a_floor() -> None:
    """After a minute half of 100 GPUs are worth the floor: the quota over the cap of 8 hours, 400 GPU-hours."""
    tree = tree_of({}, gpus=100)
    change(tree, {"a": WHOLE // 2}, 30 * DAY)
    now = 30 * DAY + MINUTE
    tree.advance(now)

    assert tree.by_id["a"].entitled_gpu_ms(now) == 400 * HOUR
    after = 30 * DAY + 10 * HOUR
    tree.advance(after)
    assert tree.by_id["a"].entitled_gpu_ms(after) == 500 * HOUR


def test_broken_capacity_shrinks_everyone_in_proportion() -> None:
    """Half the GPUs are gone for the second half of the week: three quarters of the week are due."""
    tree = tree_of({"a": WHOLE // 4, "b": 3 * WHOLE // 4}, gpus=64)
    tree.set_capacity(32, WEEK // 2)
    tree.advance(WEEK)

    assert tree.by_id["a"].entitled_gpu_ms(WEEK) == 16 * 168 * HOUR * 3 // 4
    assert tree.by_id["b"].entitled_gpu_ms(WEEK) == 48 * 168 * HOUR * 3 // 4


def test_quotas_of_siblings_add_up() -> None:
    """Three thirds that cannot be written down exactly still give out what they hold: largest remainder, then id."""
    third = WHOLE // 3
    tree = tree_of({"p": 999_999_999, "p/a": third, "p/b": third, "p/c": third + 1})

    quotas = [tree.by_id[f"p/{name}"].quota_nano for name in "abc"]
    assert sum(quotas) == 999_999_999
    assert max(quotas) - min(quotas) <= 1


def test_b02_a_run_counts_where_it_ran_not_where_it_began() -> None:
    """A window of an hour and 4 GPUs from 1,000 s to 9,000 s."""
    tree = tree_of({"a": WHOLE}, window_ms=3_600 * SECOND)
    leaf = tree.by_id["a"]
    tree.hold(leaf, 4, 1_000 * SECOND, charged=True)

    seen = []
    for now in (5_000, 9_000):
        tree.advance(now * SECOND)
        seen.append(leaf.charged_gpu_ms(now * SECOND))
    tree.hold(leaf, -4, 9_000 * SECOND, charged=True)
    seen += [used(tree, "a", now * SECOND) for now in (10_000, 12_600)]

    assert seen == [14_400 * SECOND, 14_400 * SECOND, 10_400 * SECOND, 0]


def test_b04_small_amounts_add_up_and_leave_without_a_trace() -> None:
    """1,000 runs of 0.4 s are 400 GPU-seconds, and nothing at all a window later."""
    tree = tree_of({"a": WHOLE})
    for run in range(1_000):
        hold(tree, "a", 1, run * SECOND, run * SECOND + 400)

    assert used(tree, "a", 1_000 * SECOND) == 400 * SECOND
    assert used(tree, "a", WEEK + 1_000 * SECOND) == 0
    assert not tree.changes


@pytest.mark.parametrize("depth", range(1, 13))
def test_b05_parents_are_the_sum_of_their_own_children(depth: int) -> None:
    """Whatever the depth, a branch counts its own and nothing of the other."""
    path = "/".join(["a"] * (depth - 1) + ["x"])
    ancestors = {"/".join(path.split("/")[:n]): WHOLE // 2 for n in range(1, depth + 1)}
    tree = tree_of({**ancestors, "other": WHOLE // 2, "other/y": WHOLE})
    hold(tree, path, 3, 0, 10)
    hold(tree, "other/y", 7, 10, 11)

    for budget in tree.by_id[path].path[:-1]:
        assert budget.charged_gpu_ms(11) == 30
    assert tree.by_id["other"].charged_gpu_ms(11) == 7
    assert tree.root.charged_gpu_ms(11) == 37


def test_a_removed_budget_is_charged_to_what_is_left_of_its_path() -> None:
    """Scenario B20: its running work goes on, its parent pays, and a new budget of its name starts at nothing."""
    tree = tree_of({"a": WHOLE, "a/x": WHOLE})
    old = tree.by_id["a/x"]
    tree.hold(old, 8, 600 * SECOND, charged=True)
    change(tree, {"a": WHOLE}, 1_000 * SECOND)
    tree.hold(old, -8, 1_600 * SECOND, charged=True)

    assert tree.by_id["a"].charged_gpu_ms(1_600 * SECOND) == 8_000 * SECOND
    change(tree, {"a": WHOLE, "a/x": WHOLE}, 1_700 * SECOND)
    assert used(tree, "a/x", 1_700 * SECOND) == 0
    assert used(tree, "a", 1_700 * SECOND) == 8_000 * SECOND
    assert old.entitled_gpu_ms(1_700 * SECOND) == 0


def test_closed_budgets_are_forgotten_once_nothing_of_theirs_is_left() -> None:
    """A budget that was removed stays known while its use is inside the window, and no longer."""
    tree = tree_of({"a": WHOLE})
    hold(tree, "a", 8, 0, HOUR)
    change(tree, {"b": WHOLE}, HOUR)
    assert [budget.id for budget in tree.closed_in_use] == ["a"]

    tree.advance(WEEK + HOUR)
    change(tree, {"c": WHOLE}, WEEK + HOUR)
    assert tree.closed_in_use == []


def test_a_shorter_window_forgets_and_a_longer_one_fills_up() -> None:
    """Use and entitlement are always taken over the same stretch, whatever happens to the window."""
    tree = tree_of({"a": WHOLE}, gpus=8, window_ms=10 * HOUR)
    tree.hold(tree.by_id["a"], 8, 0, charged=True)
    tree.advance(20 * HOUR)
    tree.set_window(5 * HOUR, MINUTE, 20 * HOUR)
    leaf = tree.by_id["a"]
    assert leaf.charged_gpu_ms(20 * HOUR) == leaf.entitled_gpu_ms(20 * HOUR) == 40 * HOUR

    tree.set_window(10 * HOUR, MINUTE, 20 * HOUR)
    for now, hours in ((20, 5), (22, 7), (25, 10), (30, 10)):
        tree.advance(now * HOUR)
        assert leaf.charged_gpu_ms(now * HOUR) == 8 * hours * HOUR
        assert leaf.entitled_gpu_ms(now * HOUR) == 8 * hours * HOUR


def test_b03_an_edit_charges_nothing_twice() -> None:
    """A budget edit at 600 s and a window of six days and back at 1,200 s leave 2 GPUs at 2 GPU-seconds a second."""
    tree = tree_of({"a": WHOLE}, gpus=8)
    leaf = tree.by_id["a"]
    tree.hold(leaf, 2, 0, charged=True)
    change(tree, {"a": WHOLE // 2}, 600 * SECOND)
    assert leaf.charged_gpu_ms(600 * SECOND) == 1_200 * SECOND
    tree.set_window(6 * DAY, CAP, 1_200 * SECOND)
    tree.set_window(7 * DAY, CAP, 1_200 * SECOND)
    assert leaf.charged_gpu_ms(1_200 * SECOND) == 2_400 * SECOND
    tree.hold(leaf, -2, 1_800 * SECOND, charged=True)
    assert used(tree, "a", 1_800 * SECOND) == 3_600 * SECOND
    assert used(tree, "a", 7 * DAY + 600 * SECOND) == 2_400 * SECOND
    assert used(tree, "a", 7 * DAY + 1_800 * SECOND) == 0


def test_a_zero_quota_is_entitled_to_nothing() -> None:
    """E is 0, so whoever compares ratios puts it last."""
    tree = tree_of({"a": 0, "b": WHOLE}, gpus=8)
    tree.advance(WEEK)

    assert tree.by_id["a"].entitled_gpu_ms(WEEK) == 0
