"""What counts as usage: the window, old time fading out, or what is held now; with commitment and without."""

from __future__ import annotations

from streamsched.model.events import BudgetShare
from streamsched.model.policy import Policy, UsageMode
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND, WHOLE
from streamsched.state.fading import ONE, fade
from streamsched.state.snapshot import freeze, thaw
from streamsched.state.usage import BudgetTree
from tests.stories import Story, adopted, budgets, nodes, submitted

WEEK = 7 * DAY


def fading(half_life_ms: int) -> Policy:
    return Policy(usage=UsageMode.DECAY, half_life_ms=half_life_ms)


def tree_of(policy: Policy, gpus: int, **fractions: int) -> BudgetTree:
    """A tree whose capacity is there from the beginning."""
    tree = BudgetTree(policy.window_ms, policy.min_runtime_cap_ms)
    tree.follow(policy, 0)
    tree.set_capacity(gpus, 0)
    change(tree, 0, **fractions)
    return tree


def change(tree: BudgetTree, now_ms: int, **fractions: int) -> None:
    tree.advance(now_ms)
    shares = tuple(BudgetShare(budget=path, fraction_nano=nano) for path, nano in fractions.items())
    tree.change_to(shares, f"at {now_ms}", now_ms)


def hold(tree: BudgetTree, leaf: str, gpus: int, start_ms: int, end_ms: int) -> None:
    for gpus_more, when in ((gpus, start_ms), (-gpus, end_ms)):
        tree.advance(when)
        tree.hold(tree.by_id[leaf], gpus_more, when, charged=True)


def test_fading_is_exact_at_whole_half_lives_and_right_to_the_last_bits_between() -> None:
    """Three thirds of a half-life are one half: the cube of what is left after a third is 1/2."""
    assert [fade(days * DAY, DAY) for days in range(4)] == [ONE, ONE // 2, ONE // 4, ONE // 8]
    third = fade(DAY, 3 * DAY)
    assert abs(2 * third**3 - ONE**3) < ONE**3 >> 60
    assert fade(1_000 * DAY, DAY) == 0


def test_example_11_old_time_counts_less() -> None:
    """8 GPUs from 48 h to 24 h ago, a half-life of 72 h.

    8 x 72/ln 2 x (2^(-1/3) - 2^(-2/3)) = 136.0667 of 192 GPU-hours, which is 489,840.07 GPU-seconds.
    """
    tree = tree_of(fading(72 * HOUR), 8, a=WHOLE)
    hold(tree, "a", 8, 0, 24 * HOUR)
    tree.advance(48 * HOUR)

    assert tree.by_id["a"].charged_gpu_ms(48 * HOUR) == 489_840 * SECOND
    assert tree.root.charged_gpu_ms(48 * HOUR) == 489_840 * SECOND


def test_a_burst_fades_out_instead_of_leaving_all_at_once() -> None:
    """The day after the window has closed behind it, a quarter of what was left two half-lives before still counts."""
    tree = tree_of(fading(3 * DAY), 8, a=WHOLE)
    hold(tree, "a", 8, 0, DAY)
    before = tree.by_id["a"].charged_gpu_ms(2 * DAY)
    tree.advance(8 * DAY)

    assert abs(4 * tree.by_id["a"].charged_gpu_ms(8 * DAY) - before) <= 4 * SECOND
    assert tree.by_id["a"].charged.at(8 * DAY) == 0


def test_time_fades_while_gpus_are_held() -> None:
    """8 GPUs held for one half-life of 24 h: 8 x 24/ln 2 x 1/2 = 138.4987 GPU-hours, 498,595.41 GPU-seconds."""
    tree = tree_of(fading(DAY), 8, a=WHOLE)
    tree.hold(tree.by_id["a"], 8, 0, charged=True)

    assert tree.by_id["a"].charged_gpu_ms(DAY) == 498_595 * SECOND


def test_entitlement_fades_by_the_same_kernel() -> None:
    """40 of 100 GPUs over a half-life of 72 h: 40 x 72/ln 2 x 1/2 = 2,077.4809 GPU-hours, 7,478,931.09 GPU-seconds."""
    tree = tree_of(fading(72 * HOUR), 100, a=4 * WHOLE // 10)

    assert tree.by_id["a"].entitled_gpu_ms(72 * HOUR) == 7_478_931 * SECOND


def test_a_raise_is_not_retroactive_when_time_fades_either() -> None:
    """100 GPUs, 10 % for six days and 40 % for one, a half-life of a day.

    100 x 24/ln 2 x (0.1 x (2^-1 - 2^-7) + 0.4 x (1 - 2^-1)) = 862.91197 GPU-hours, 3,106,483.10 GPU-seconds.
    """
    tree = tree_of(fading(DAY), 100, a=WHOLE // 10)
    change(tree, 6 * DAY, a=4 * WHOLE // 10)
    tree.advance(WEEK)

    assert tree.by_id["a"].entitled_gpu_ms(WEEK) == 3_106_483 * SECOND


def test_fading_begins_with_what_the_window_knows() -> None:
    """Adopted at the end, the half-life gives what it would have given from the beginning: nothing had left yet."""
    late = tree_of(Policy(), 100, a=WHOLE // 10)
    early = tree_of(fading(DAY), 100, a=WHOLE // 10)
    for tree in (early, late):
        hold(tree, "a", 8, 5 * HOUR, 7 * HOUR)
        tree.set_capacity(50, DAY)
        change(tree, 2 * DAY, a=4 * WHOLE // 10, b=WHOLE // 10)
        tree.set_capacity(0, 3 * DAY)
        change(tree, 4 * DAY, a=3 * WHOLE // 10, b=WHOLE // 10)
        tree.set_capacity(80, 5 * DAY)
        tree.hold(tree.by_id["b"], 4, 6 * DAY, charged=True)
        tree.advance(WEEK)
    late.follow(fading(DAY), WEEK)

    for name in "ab":
        assert late.by_id[name].charged_gpu_ms(WEEK) == early.by_id[name].charged_gpu_ms(WEEK) > 0
        assert late.by_id[name].entitled_gpu_ms(WEEK) == early.by_id[name].entitled_gpu_ms(WEEK) > 0


def test_fading_leaves_the_window_as_it_is() -> None:
    """Back in the mode window, all is as if it had never been left."""
    tree = tree_of(Policy(), 8, a=WHOLE)
    tree.hold(tree.by_id["a"], 8, 0, charged=True)
    tree.follow(fading(DAY), HOUR)
    tree.follow(Policy(), 2 * HOUR)

    assert tree.by_id["a"].charged_gpu_ms(3 * HOUR) == 24 * HOUR


def test_no_fading_of_nothing() -> None:
    """What came to nothing is exactly nothing, and not a rounding error of it: equal teams stay equal."""
    tree = tree_of(fading(3 * DAY), 8, a=WHOLE // 2, b=WHOLE // 2)
    for second in range(100):
        hold(tree, "a", 3, second * SECOND, second * SECOND + 7)

    assert tree.by_id["a"].charged_gpu_ms(300 * DAY) == tree.by_id["b"].charged_gpu_ms(300 * DAY) == 0


def test_instant_compares_what_is_held_with_what_is_due_now() -> None:
    """A third of 10 GPUs is due, which no number of GPUs is; 3 held are below it and 4 are above, history or none."""
    third = WHOLE // 3
    tree = tree_of(Policy(usage=UsageMode.INSTANT), 10, a=third)
    hold(tree, "a", 10, 0, DAY)
    leaf = tree.by_id["a"]
    assert leaf.charged_gpu_ms(2 * DAY) == 0

    tree.hold(leaf, 3, 2 * DAY, charged=True)
    assert (leaf.charged_gpu_ms(2 * DAY), leaf.entitled_gpu_ms(2 * DAY)) == (3 * WHOLE, 10 * third)
    tree.hold(leaf, 1, 2 * DAY, charged=True)
    assert leaf.charged_gpu_ms(2 * DAY) == 4 * WHOLE > leaf.entitled_gpu_ms(2 * DAY)


def test_commitment_counts_only_where_the_policy_says_so() -> None:
    """8 GPUs protected for an hour are 8 GPU-hours ahead; without commitment, and held now, they are none."""
    story = Story(budgets(a=1.0), nodes(1), submitted("w"))
    story.round()
    leaf = story.state.budgets.by_id["a"]
    assert leaf.committed_gpu_ms(0) == 8 * HOUR

    story.tell(adopted(commitment=False))
    assert leaf.committed_gpu_ms(0) == 0
    story.tell(adopted(usage=UsageMode.INSTANT))
    assert leaf.committed_gpu_ms(0) == 0
    story.tell(adopted())
    assert leaf.committed_gpu_ms(0) == 8 * HOUR


def test_a_snapshot_goes_on_fading_where_it_was_taken() -> None:
    """To the last bit: the same bytes again, and the same numbers later."""
    story = Story(adopted(usage=UsageMode.DECAY, half_life_ms=DAY), budgets(a=0.5, b=0.25), nodes(2), submitted("w"))
    story.round()
    story.start("w")
    story.at(5 * HOUR).tell(budgets("b2", "b1", a=0.25, b=0.5))
    story.at(5 * HOUR + 7 * MINUTE).end("w")
    again = thaw(freeze(story.state))
    assert freeze(again) == freeze(story.state)

    for name in "ab":
        ours, theirs = story.state.budgets.by_id[name], again.budgets.by_id[name]
        assert ours.charged_gpu_ms(9 * HOUR) == theirs.charged_gpu_ms(9 * HOUR)
        assert ours.entitled_gpu_ms(9 * HOUR) == theirs.entitled_gpu_ms(9 * HOUR) > 0
