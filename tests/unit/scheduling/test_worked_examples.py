"""The worked examples of `fair-share.md`, section 8, with their arithmetic.

Those that are cases in `tests/conformance` are run there through the whole core: 1 (`ours-01`), 2 (`ours-02`),
3 (`ours-03`), 4 (`ours-04`), 5 (`ours-05`), 7 (`ours-07`), 8 (`ours-08`), 9 (`ours-10`),
10 (`ours-11`), 11 (`ours-12`) and 12 (`ours-13`). Here is what those leave out.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND
from streamsched.scheduling.draft import Draft
from streamsched.scheduling.fair_share import Standing, comes_before, standing
from tests.conformance.fair_share.worlds import BARE, Spell, World
from tests.stories import node, nodes

WEEK = 7 * DAY


def test_example_2_use_inside_an_hour_is_where_it_was() -> None:
    """64 GPUs from 05:00 to 05:10 are 10.67 GPU-hours; at 05:15 a week later they are gone. A bucket still shows 8."""
    world = World(BARE, nodes(64, gpus=1))
    world.fund({"a": Fraction(1)})
    world.play([Spell("a", 64, 5 * HOUR, 5 * HOUR + 10 * MINUTE)])
    leaf = world.state.budgets.by_id["a"]
    assert leaf.charged_gpu_ms(world.now_ms) == 64 * 10 * MINUTE

    world.at(WEEK + 5 * HOUR + 15 * MINUTE).tick()
    assert leaf.charged_gpu_ms(world.now_ms) == 0
    assert 64 * 10 * MINUTE * 45 // 60 == 8 * HOUR, "what prorating an hour's bucket would still show"


def test_example_4_the_ratios_after_the_burst() -> None:
    """Five placements of 32 GPU-hours give A 160 / 5,376 = .0298, three give B (53.76 + 96) / 5,376 = .0279."""
    world = World(BARE, nodes(8))
    world.fund({"A": Fraction(1, 2), "B": Fraction(1, 2)})
    # 53.76 h of one GPU are 193,536 s.
    world.play([Spell("B", 1, WEEK - 200_000 * SECOND, WEEK - 200_000 * SECOND + 193_536 * SECOND)])
    world.at(WEEK).tick()
    for place in range(8):
        for team in "AB":
            world.ask(f"{team}{place}", team, 1, min_runtime_ms=4 * HOUR)
    world.settle()

    draft = Draft(world.state)
    ratios = {}
    for team in "AB":
        used = standing(world.state.budgets.by_id[team], draft, allocated=True)
        ratios[team] = Fraction(used.used, used.entitled)
    assert ratios == {"A": Fraction(160, 5_376), "B": Fraction(14_976, 537_600)}


def test_example_5_swaps_are_rarer_with_a_longer_min_runtime() -> None:
    """With 8 h for 16 GPUs c = 128 GPU-hours: A_Y + 128 <= A_X first at 8 h, and then every 16 h: 8, 24, 40 h.

    At 24 h Y has 16 x 16 = 256 and X 16 x 8 = 128, so X may take again: 128 + 128 <= 256.
    """
    world = World(BARE, [node("n1", gpus=16)])
    world.fund({"X": Fraction(1, 2), "Y": Fraction(1, 2)})
    world.at(WEEK)
    for team in "XY":
        world.ask(team, team, 1, gpus_per_rank=16, min_runtime_ms=8 * HOUR, resumable=True)
    world.settle()
    swaps = []
    holder = "X"
    for _ in range(41 * 4):
        world.pass_time(15 * MINUTE)
        world.settle()
        now = next(team for team in "XY" if world.nodes_of(team))
        if now != holder:
            swaps.append((world.now_ms - WEEK) // HOUR)
            holder = now

    assert swaps == [8, 24, 40]


@pytest.mark.parametrize(
    ("victim_ratio", "wait_ms"),
    [
        # lambda = (24 h - wait) / 24 h, and it may take when lambda x 25/21 <= r_b: wait = 24 h x (1 - r_b x 21/25).
        (Fraction(110, 100), 6_566_400),  # 24 h x 0.076 = 1.824 h
        (Fraction(95, 100), 17_452_800),  # 24 h x 0.202 = 4.848 h
        (Fraction(90, 100), 21_081_600),  # 24 h x 0.244 = 5.856 h
        (Fraction(40, 100), 57_369_600),  # 24 h x 0.664 = 15.936 h
    ],
)
def test_example_6_a_large_job_of_a_small_budget(victim_ratio: Fraction, wait_ms: int) -> None:
    """2 % of 1,024 GPUs over a week are 3,440.64 GPU-hours; 512 GPUs for 8 h are 4,096 of them, 25/21 of the budget."""
    world = World({**BARE, "guard_relaxation_ms": DAY}, nodes(64, gpus=16))
    world.fund({"small": Fraction(2, 100), "large": Fraction(90, 100)})
    assert Fraction(512 * 8 * 100, 1_024 * 168 * 2) == Fraction(25, 21)
    # The large team holds all 1,024 GPUs for r x .9 x 168 h until the moment at which the guard lets go.
    allowed_ms = 3 * WEEK
    world.at(allowed_ms - int(victim_ratio * 9 * 168 * HOUR / 10))
    for half in range(2):
        where = [(f"n{number}", 16) for number in range(1 + 32 * half, 33 + 32 * half)]
        world.seat(f"half-{half}", "large", where, min_runtime_ms=8 * HOUR)
    world.at(allowed_ms - wait_ms)
    world.ask("claim", "small", 32, gpus_per_rank=16, min_runtime_ms=8 * HOUR)

    world.at(allowed_ms - SECOND).tick()
    assert world.victims_of("claim") is None
    world.at(allowed_ms).tick()
    assert world.victims_of("claim") == ["half-1"]


def test_example_6_without_relaxation_it_never_runs() -> None:
    """r_b of a team that holds everything for a week is 1 / .9 = 1.11, below 25/21 = 1.19: not after a week either."""
    world = World(BARE, nodes(64, gpus=16))
    world.fund({"small": Fraction(2, 100), "large": Fraction(90, 100)})
    world.at(WEEK)
    world.seat("all", "large", [(f"n{number}", 16) for number in range(1, 65)], min_runtime_ms=8 * HOUR)
    world.at(2 * WEEK)
    world.ask("claim", "small", 32, gpus_per_rank=16, min_runtime_ms=8 * HOUR)
    world.at(3 * WEEK).tick()

    assert world.victims_of("claim") is None


def test_example_13_equal_means_equal() -> None:
    """Shares 40/170 and 50/170, usage 20/110 and 25/110: both are 22/17 in fractions, and differ in floating point."""
    one, other = (Standing(used, 0, share) for used, share in ((20, 40), (25, 50)))

    assert Fraction(40, 170) / Fraction(20, 110) == Fraction(50, 170) / Fraction(25, 110) == Fraction(22, 17)
    assert comes_before(one, other) is None
    assert comes_before(other, one) is None
    # The same from histories: 4 and 5 GPUs for five hours, quotas 4/10 and 5/10.
    world = World(BARE, nodes(9, gpus=1))
    world.fund({"uD2": Fraction(4, 10), "uD3": Fraction(5, 10)})
    world.play([Spell("uD2", 4, 0, 5 * HOUR), Spell("uD3", 5, 0, 5 * HOUR)])
    draft = Draft(world.state)
    mine, theirs = (standing(world.state.budgets.by_id[name], draft, allocated=True) for name in ("uD2", "uD3"))
    assert (mine.charged, theirs.charged) == (20 * HOUR, 25 * HOUR)
    assert comes_before(mine, theirs) is None
