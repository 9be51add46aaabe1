"""The 42 edge cases of `fair-share.md`, section 6: one test for each, named after its number."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from streamsched.model.commands import ReceiptStatus, StopReason
from streamsched.model.events import BudgetShare, BudgetTreeChanged, NodeHealth, ReleaseOutcome, RoundProposed
from streamsched.model.policy import Order, PoolRate
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND, WHOLE
from streamsched.scheduling.decision import decide
from streamsched.scheduling.draft import Draft
from streamsched.scheduling.fair_share import comes_before, standing
from streamsched.scheduling.obstacles import VerdictCode
from streamsched.scheduling.verdicts import verdict
from streamsched.state.cluster import ClusterState
from streamsched.state.hours import HourlyUse
from streamsched.state.reasons import Ignored
from streamsched.state.snapshot import digest
from tests.conformance.fair_share.worlds import BARE, Spell, World
from tests.stories import (
    adjusted,
    adopted,
    cancelled,
    extended,
    health,
    holding,
    node,
    nodes,
    released,
    reprioritized,
    started,
    submitted,
    unallocated,
)

WEEK = 7 * DAY
HALF = Fraction(1, 2)
FAILED, REFUSED, STOPPED = ReleaseOutcome.FAILED, ReleaseOutcome.REFUSED, ReleaseOutcome.STOPPED


def world(count: int = 2, /, *, gpus: int = 8, quotas: dict[str, Fraction] | None = None, **policy: Any) -> World:
    """Nodes n1, n2, ... and teams a and b of one half each, without patience, reservations and headroom."""
    made = World({**BARE, **policy}, nodes(count, gpus=gpus))
    made.fund({"a": HALF, "b": HALF} if quotas is None else quotas)
    return made


def charged(story: World, budget: str) -> int:
    """GPU-milliseconds in the window."""
    return story.state.budgets.by_id[budget].charged_gpu_ms(story.state.now_ms)


def entitled(story: World, budget: str) -> int:
    """What its quota is worth in GPU-milliseconds."""
    return story.state.budgets.by_id[budget].entitled_gpu_ms(story.state.now_ms)


def committed(story: World, budget: str) -> int:
    """Protected GPU-milliseconds ahead."""
    return story.state.budgets.by_id[budget].committed_gpu_ms(story.state.now_ms)


def placed(story: World) -> list[str]:
    """The workloads that a decision would place now, in its order."""
    proposal = decide(story.state)
    return [] if proposal is None else [item.workload for item in proposal.placements]


def before(story: World, one: str, other: str) -> bool | None:
    """Whether one budget comes before another, for allocated work."""
    draft = Draft(story.state)
    by_id = story.state.budgets.by_id
    return comes_before(standing(by_id[one], draft, allocated=True), standing(by_id[other], draft, allocated=True))


def test_edge_01_no_budget_is_last_and_takes_no_allocated_work() -> None:
    """A quota of 0: allocated requests are refused, unallocated ones served after everybody else's, though older."""
    story = world(1, quotas={"none": Fraction(0), "some": Fraction(1)})
    receipt = story.tell(submitted("w", budget="none")).receipts[0]
    assert receipt.status is ReceiptStatus.REJECTED
    assert "quota of 0" in (receipt.reason or "")

    story.tell(unallocated("older", budget="none"))
    story.at(SECOND).tell(unallocated("younger", budget="some"))
    assert placed(story) == ["younger"]


def test_edge_02_no_use_is_a_tie_for_the_older_and_then_the_id() -> None:
    """Nobody has used anything: not priority but age decides, and the id among equals."""
    story = world(1)
    story.tell(submitted("w-b", budget="b"))
    story.at(1).tell(submitted("w-a", budget="a", priority=100))
    assert placed(story) == ["w-b"]

    same_age = world(1)
    same_age.tell(submitted("w-b", budget="b", priority=100), submitted("w-a", budget="a"))
    assert placed(same_age) == ["w-a"]


def test_edge_03_equal_ratios_are_equal_in_integers() -> None:
    """3 of 3/10 and 7 of 7/10 of the pool are one ratio; in floating point 0.3 and 0.7 would make two of it."""
    story = world(10, gpus=1, quotas={"a": Fraction(3, 10), "b": Fraction(7, 10)})
    story.play([Spell("a", 3, 0, HOUR), Spell("b", 7, 0, HOUR)])
    assert before(story, "a", "b") is None

    story.tell(submitted("w-b", budget="b", gpus_per_rank=1))
    story.at(HOUR + 1).tell(submitted("w-a", budget="a", gpus_per_rank=1))
    assert placed(story) == ["w-b", "w-a"], "the tie goes to the older"


def test_edge_04_a_changed_budget_counts_from_its_change() -> None:
    """100 GPUs, a tenth for six days and four tenths for one: (144 x .1 + 24 x .4) x 100 = 2,400 GPU-hours."""
    story = world(100, gpus=1, quotas={"a": Fraction(1, 10)})
    story.at(6 * DAY)
    story.fund({"a": Fraction(4, 10)})
    story.at(WEEK).tick()

    assert entitled(story, "a") == 2_400 * HOUR


def test_edge_05_a_new_team_has_a_floor_and_no_credit() -> None:
    """A minute after its creation half of 100 GPUs is worth 8 h x 50 = 400 GPU-hours, not a week of them."""
    story = world(100, gpus=1, quotas={})
    story.at(30 * DAY)
    story.fund({"a": HALF})
    story.at(30 * DAY + MINUTE).tick()
    assert entitled(story, "a") == 400 * HOUR

    story.at(30 * DAY + 9 * HOUR).tick()
    assert entitled(story, "a") == 450 * HOUR, "from 8 hours on it is what has been due since"


def test_edge_06_a_removed_budget_is_the_first_victim_once_protection_ends() -> None:
    """Its run is protected to the end of its hour. Then its ratio is infinite, and it goes before one as old."""
    third = Fraction(3, 10)
    story = world(2, quotas={"a": third, "b": third, "c": third})
    story.seat("of-a", "a", [("n1", 8)], min_runtime_ms=HOUR)
    story.seat("of-b", "b", [("n2", 8)], min_runtime_ms=HOUR)
    story.at(30 * MINUTE)
    story.fund({"b": third, "c": third})
    story.ask("claim", "c", 1, min_runtime_ms=5 * MINUTE)
    assert story.phase("of-a") == "running"
    assert story.victims_of("claim") is None

    story.at(HOUR).tick()
    assert story.victims_of("claim") == ["of-a"]


def test_edge_07_credit_is_bounded_by_the_window() -> None:
    """A tenth of the pool, idle for a week, is worth 16.8 h of the whole pool; after a month it is worth no more."""
    story = world(10, gpus=1, quotas={"a": Fraction(1, 10), "b": Fraction(9, 10)})
    for week in (1, 2, 4):
        story.at(week * WEEK).tick()
        assert entitled(story, "a") == 168 * HOUR == 10 * (16 * HOUR + 48 * MINUTE)

    # Held alone by the idle team, the pool has cost it its week of credit after 16.8 h: then its ratio is 1.
    story.spread("all", "a", 10, min_runtime_ms=HOUR)
    story.pass_time(16 * HOUR + 48 * MINUTE)
    assert charged(story, "a") == entitled(story, "a")


def test_edge_08_what_no_child_holds_is_not_held_back() -> None:
    """The only team has 30 %, and gets every free node."""
    story = world(3, quotas={"a": Fraction(3, 10)})
    story.tell(submitted("w", ranks=3))

    assert placed(story) == ["w"]


def test_edge_09_a_move_leaves_the_history_with_the_old_parent() -> None:
    """`p/x` closes and `q/x` opens: what was used stays with p, and the new budget starts at nothing."""
    story = world(2, quotas={"p": HALF, "p/x": Fraction(1), "q": HALF})
    story.play([Spell("p/x", 8, 0, HOUR)])
    story.fund({"p": HALF, "q": HALF, "q/x": Fraction(1)})

    assert (charged(story, "p"), charged(story, "q"), charged(story, "q/x")) == (8 * HOUR, 0, 0)


def test_edge_10_a_burst_leaves_the_window_as_it_came() -> None:
    """16 GPUs for an hour: a week later a quarter of it has gone after 15 minutes, and all of it after 60."""
    story = world(16, gpus=1)
    story.play([Spell("a", 16, 0, HOUR)])
    left = []
    for minutes in (0, 15, 30, 60):
        story.at(WEEK + minutes * MINUTE).tick()
        left.append(charged(story, "a") // HOUR)

    assert left == [16, 12, 8, 0]


def test_edge_11_a_repeated_end_is_charged_once() -> None:
    """The second and the late report of one end change nothing, by workload and attempt; a correction counts once."""
    story = world(1)
    story.seat("w", "a", [("n1", 8)])
    story.at(HOUR).tell(released("n1", "w"), released("n1", "w"))
    story.at(2 * HOUR).tell(released("n1", "w"))

    assert charged(story, "a") == 8 * HOUR
    assert story.state.ignored[Ignored.STALE_ATTEMPT] == 2
    for _ in range(2):
        story.tell(adjusted("half-back", -4 * HOUR, 0, HOUR))
        assert charged(story, "a") == 4 * HOUR


def test_edge_12_a_lost_node_charges_to_the_moment_of_its_loss() -> None:
    """The health agent calls it lost at 1 h: the charge ends there, and its GPUs are nobody's until it reports."""
    story = world(1)
    story.seat("w", "a", [("n1", 8)], resumable=True)
    story.at(HOUR).tell(health("n1", NodeHealth.LOST))
    story.at(2 * HOUR).tick()
    assert charged(story, "a") == 8 * HOUR
    assert placed(story) == []

    story.tell(health("n1", NodeHealth.HEALTHY), node("n1", runs=(holding("w"),), watermark="99/0"))
    assert placed(story) == [], "it still holds the lost run"
    story.tell(released("n1", "w", outcome=STOPPED))
    assert placed(story) == ["w"]
    assert charged(story, "a") == 8 * HOUR


def test_edge_13_an_agents_clock_changes_nothing() -> None:
    """Its times lie two minutes early or late; the charge is by the ledger's."""
    for skew_ms in (-2 * MINUTE, 2 * MINUTE):
        story = world(1)
        story.at(10 * MINUTE).tell(submitted("w"))
        story.round()
        story.tell(started("n1", "w").model_copy(update={"at_ms": 10 * MINUTE + skew_ms}))
        story.at(20 * MINUTE).tell(released("n1", "w").model_copy(update={"at_ms": 20 * MINUTE + skew_ms}))
        assert charged(story, "a") == 8 * 10 * MINUTE


def test_edge_14_a_start_that_fails_is_paid_by_whoever_failed() -> None:
    """The node refuses after a minute: refunded. The work itself fails after a minute: charged."""
    amounts = []
    for outcome in (REFUSED, FAILED):
        story = world(1)
        story.tell(submitted("w"))
        story.round()
        story.at(MINUTE).tell(released("n1", "w", outcome=outcome))
        amounts.append(charged(story, "a"))

    assert amounts == [0, 8 * MINUTE]


def test_edge_15_an_early_end_commits_nothing_more() -> None:
    """10 of 60 minutes: 80 GPU-minutes are charged, and the other 400 are not committed any longer."""
    story = world(1)
    story.seat("w", "a", [("n1", 8)], min_runtime_ms=HOUR)
    story.at(10 * MINUTE).tick()
    assert committed(story, "a") == 8 * 50 * MINUTE

    story.end("w")
    assert (charged(story, "a"), committed(story, "a")) == (8 * 10 * MINUTE, 0)


@pytest.mark.parametrize("least_ms", [5 * MINUTE - 1, 8 * HOUR + 1])
def test_edge_16_a_min_runtime_outside_its_bounds_is_refused_with_them(least_ms: int) -> None:
    """Not shortened, not lengthened: the bounds are in the message."""
    story = World({}, nodes(1))
    story.fund({"a": Fraction(1)})
    receipt = story.tell(submitted("w", min_runtime_ms=least_ms)).receipts[0]

    assert receipt.status is ReceiptStatus.REJECTED
    assert "5m to 8h" in (receipt.reason or "")


def test_edge_17_a_timeout_below_the_min_runtime_is_the_min_runtime() -> None:
    """One hour asked for, 20 minutes of timeout: protected and committed for 20 minutes."""
    story = world(1)
    story.seat("w", "a", [("n1", 8)], min_runtime_ms=HOUR, timeout_ms=20 * MINUTE)

    run = story.state.workloads["w"].run
    assert run is not None
    assert run.protected_until_ms == 20 * MINUTE
    assert committed(story, "a") == 8 * 20 * MINUTE


def test_edge_18_a_gang_has_not_started_before_its_last_member() -> None:
    """One node of two reports: still bound, and given up whole at the start deadline."""
    story = world(2)
    story.tell(submitted("gang", ranks=2))
    story.round()
    story.at(10 * MINUTE).tell(started("n1", "gang"))
    assert story.phase("gang") == "bound"
    assert committed(story, "a") == 16 * HOUR

    effects = story.at(30 * MINUTE).tick()
    stops = [(command.node, command.reason) for command in effects.commands if command.type == "stop"]
    assert stops == [("n1", StopReason.START_DEADLINE), ("n2", StopReason.START_DEADLINE)]
    story.end("gang", STOPPED)
    assert [vertex.free_mask for vertex in story.state.nodes.values()] == [0xFF, 0xFF]
    assert committed(story, "a") == 0


def test_edge_19_a_gang_leaves_an_unhealthy_node_whole() -> None:
    """n1 of n1 + n2 is ill: nothing happens inside the protection, and at its end the gang goes from both."""
    story = world(2)
    story.seat("gang", "a", [("n1", 8), ("n2", 8)], min_runtime_ms=HOUR, resumable=True)
    story.at(10 * MINUTE).tell(health("n1", NodeHealth.UNHEALTHY))
    story.at(HOUR - 1).tick()
    assert story.phase("gang") == "running"

    effects = story.at(HOUR).tick()
    assert sorted(command.node for command in effects.commands if command.type == "stop") == ["n1", "n2"]


def test_edge_20_a_stop_is_not_undone_when_its_claimant_is_cancelled() -> None:
    """The victim leaves all the same and is queued again; the plan is gone; the GPUs are free for whoever comes."""
    story = world(1)
    story.tell(unallocated("victim"))
    story.settle()
    story.tell(submitted("claim"))
    story.round()
    assert story.phase("claim") == "planned"

    story.tell(cancelled("claim"))
    assert story.phase("victim") == "stopping"
    assert not story.state.nodes["n1"].claims
    story.end("victim", STOPPED)
    assert story.phase("victim") == "queued"
    assert story.state.nodes["n1"].free_mask == 0xFF


def test_edge_21_a_victim_that_ends_by_itself_has_ended_by_itself() -> None:
    """It was told to stop, and succeeded inside its grace: succeeded, not preempted."""
    story = world(1)
    story.tell(unallocated("victim", resumable=False))
    story.settle()
    story.tell(submitted("claim"))
    story.round()
    story.at(5 * SECOND).end("victim")

    assert story.phase("victim") == "succeeded"
    assert story.phase("claim") == "bound"


def test_edge_22_a_victim_that_refuses_to_stop_costs_its_node() -> None:
    """After grace and stop timeout (10 s + 60 s) the node takes no work, and the claimant is planned elsewhere."""
    story = world(2)
    story.tell(unallocated("one"))
    story.round()
    story.start("one")
    story.at(1).tell(unallocated("two"))
    story.round()
    story.start("two")
    story.tell(submitted("claim"))
    story.round()
    stuck = next(iter(story.state.workloads["claim"].run.awaited)) if story.state.workloads["claim"].run else ""
    story.at(2 * MINUTE).tick()
    assert not story.state.nodes[stuck].takes_work

    for _ in range(3):
        story.settle()
        story.pass_time(MINUTE)
    assert story.phase("claim") == "running"
    assert story.nodes_of("claim") == [name for name in ("n1", "n2") if name != stuck]


def test_edge_23_victims_of_an_open_plan_are_not_available_again() -> None:
    """Two claimants, one victim: the first in order has it, and the second waits."""
    story = world(1)
    story.tell(unallocated("victim"))
    story.settle()
    story.tell(submitted("second", budget="b"), submitted("first", budget="a"))
    proposal = decide(story.state)
    assert proposal is not None
    assert [(item.workload, [v.workload for v in item.victims]) for item in proposal.placements] == [
        ("first", ["victim"])
    ]

    story.tell(proposal)
    assert placed(story) == []


def test_edge_24_a_plan_is_kept_when_a_better_one_comes() -> None:
    """A workload of a asks while the plan of b waits for its victim: it would be first, and does not take it over."""
    story = world(1)
    story.tell(unallocated("victim"))
    story.settle()
    story.tell(submitted("of-b", budget="b"))
    story.round()
    story.at(SECOND).tell(submitted("of-a", budget="a", priority=9))
    assert before(story, "a", "b"), "what b has planned is committed"
    assert placed(story) == []

    story.end("victim", STOPPED)
    assert story.phase("of-b") == "bound"


def test_edge_25_a_reservation_is_kept_when_its_claimant_falls_behind() -> None:
    """Two nodes are kept for the gang of a. That a is then found to have used more than b ends no promise."""
    story = world(2, reservations=1, reserve_after_ms=0)
    story.seat("x", "b", [("n1", 8)], min_runtime_ms=HOUR)
    story.seat("y", "b", [("n2", 8)], min_runtime_ms=2 * HOUR)
    story.ask("gang", "a", 2)
    story.settle()
    promise = story.state.reservations["gang"]
    assert (promise.nodes, promise.start_ms) == (("n1", "n2"), 2 * HOUR)

    story.at(30 * MINUTE).tell(adjusted("found", 100 * HOUR, 0, 30 * MINUTE), submitted("rival", budget="b", ranks=2))
    assert before(story, "b", "a")
    story.settle()
    assert list(story.state.reservations) == ["gang"]
    story.at(2 * HOUR).tick()
    story.settle()
    assert story.nodes_of("gang") == ["n1", "n2"]


def test_edge_26_what_is_too_large_is_refused_and_what_is_too_large_now_waits() -> None:
    """Three nodes of two: refused. Two nodes of which one is ill: waits, and is no demand."""
    story = world(2)
    assert story.tell(submitted("never", ranks=3)).receipts[0].status is ReceiptStatus.REJECTED
    story.tell(health("n2", NodeHealth.UNHEALTHY))
    assert story.tell(submitted("later", ranks=2)).receipts[0].status is ReceiptStatus.ACCEPTED

    assert placed(story) == []
    assert verdict(story.state, "later").code is VerdictCode.IMPOSSIBLE_NOW
    story.at(HOUR).tell(health("n2", NodeHealth.HEALTHY))
    assert placed(story) == ["later"]

    story.at(HOUR + 30 * MINUTE).tick()
    state, use = ClusterState(), HourlyUse()
    for record in story.records:
        use.note(state, state.apply(record))
    use.settle(state.now_ms)
    demands = [use.hour("a", hour * HOUR).demand_gpu_ms for hour in (0, 1)]
    assert demands == [0, 16 * 30 * MINUTE], "from 1 h on it could be had"


def test_edge_27_what_may_sit_in_several_pools_sits_in_one() -> None:
    """One ledger decides: the gang is placed once, whole, in the first pool that has room."""
    story = World(BARE, [node("h1", pool="h100"), node("x1", pool="x100"), node("x2", pool="x100")])
    story.fund({"a": Fraction(1)})
    story.tell(submitted("gang", ranks=2))
    story.settle()

    assert story.nodes_of("gang") == ["x1", "x2"]
    assert story.placed == ["gang"]


def test_edge_28_a_claimant_above_its_budget_may_take_from_one_further_above() -> None:
    """Over 8 h a tenth of 16 GPUs is worth 12.8: a has used 16, its ratio is 1.25, and takes from b at 64 and 5."""
    tenth = Fraction(1, 10)
    story = world(2, quotas={"a": tenth, "b": tenth, "c": Fraction(8, 10)}, window_ms=8 * HOUR)
    story.at(8 * HOUR)
    story.seat("x", "a", [("n1", 8)], min_runtime_ms=HOUR)
    story.seat("y", "b", [("n2", 8)], min_runtime_ms=HOUR)
    story.at(10 * HOUR).end("x")
    story.seat("z", "c", [("n1", 8)], min_runtime_ms=8 * HOUR)
    story.at(16 * HOUR).tick()
    assert (charged(story, "a"), charged(story, "b")) == (16 * HOUR, 64 * HOUR)
    assert entitled(story, "a") == entitled(story, "b") == 16 * 8 * HOUR // 10

    story.ask("claim", "a", 1, min_runtime_ms=HOUR)
    assert story.victims_of("claim") == ["y"]


def test_edge_29_own_allocated_work_yields_only_to_a_higher_priority_in_its_leaf() -> None:
    """Past its protection it goes for priority 1 in its leaf, and neither for an equal nor for a sibling's priority."""
    for leaf, priority, victims in (("a/x", 1, ["run"]), ("a/x", 0, None), ("a/y", 9, None)):
        story = world(1, quotas={"a": Fraction(1), "a/x": HALF, "a/y": HALF})
        story.seat("run", "a/x", [("n1", 8)], min_runtime_ms=HOUR)
        story.at(HOUR)
        # A sibling leaf is far behind; its guard (one hour against one hour) is what priority cannot lift.
        story.ask("claim", leaf, 1, min_runtime_ms=2 * HOUR, priority=priority)
        assert story.victims_of("claim") == victims, (leaf, priority)


def test_edge_30_equal_priorities_of_a_leaf_are_not_sliced() -> None:
    """However long it has run, its equal waits for its end."""
    story = world(1, quotas={"a": Fraction(1)})
    story.seat("run", "a", [("n1", 8)], min_runtime_ms=HOUR)
    story.ask("next", "a", 1)
    story.at(5 * DAY).tick()

    assert placed(story) == []


def test_edge_31_displaced_again_and_again_it_waits_longer() -> None:
    """1, 2, 4 minutes; counted; never charged."""
    story = world(1)
    story.tell(unallocated("u"))
    story.settle()
    waits = []
    for number in range(3):
        story.tell(submitted(f"claim-{number}"))
        story.settle()
        waits.append(story.state.workloads["u"].held_until_ms - story.now_ms)
        story.end(f"claim-{number}")
        story.pass_time(waits[-1])
        story.settle()
        assert story.phase("u") == "running"

    assert waits == [MINUTE, 2 * MINUTE, 4 * MINUTE]
    assert story.state.workloads["u"].evictions == 3
    assert charged(story, "a") == 0


def test_edge_32_unallocated_work_has_its_own_ledger() -> None:
    """a had 8 GPUs free of charge for an hour: b's unallocated work goes first, and a's allocated work is no worse."""
    story = world(1)
    story.tell(unallocated("squatter", budget="a"))
    story.settle()
    story.at(HOUR).end("squatter")
    story.tell(unallocated("more", budget="a"))
    story.at(HOUR + 1).tell(unallocated("other", budget="b"))
    assert placed(story) == ["other"]

    story.tell(submitted("paid-a", budget="a"), submitted("paid-b", budget="b"))
    assert placed(story) == ["paid-a"], "equal, of one age: the id"


def test_edge_33_five_minutes_for_everyone_swap_no_faster_than_the_floor() -> None:
    """c counts 30 minutes at least: b takes over at 30 min, when a has used as much as b is counted for, not at 5."""
    story = world(1)
    story.seat("run", "a", [("n1", 8)], min_runtime_ms=5 * MINUTE)
    story.ask("claim", "b", 1, min_runtime_ms=5 * MINUTE)
    story.at(30 * MINUTE - 1).tick()
    assert story.victims_of("claim") is None

    story.at(30 * MINUTE).tick()
    assert story.victims_of("claim") == ["run"]


def test_edge_34_eight_hours_for_everyone_take_turns_and_bound_the_wait() -> None:
    """a's first 64 GPU-hours count at once, so b is next; a gang of both nodes can start 8 h later at the latest."""
    story = world(2, reservations=1, reserve_after_ms=0)
    story.tell(
        submitted("a1", budget="a", min_runtime_ms=8 * HOUR), submitted("a2", budget="a", min_runtime_ms=8 * HOUR)
    )
    story.tell(submitted("b1", budget="b", min_runtime_ms=8 * HOUR))
    assert placed(story) == ["a1", "b1"]

    story.settle()
    story.fund({"a": HALF, "b": Fraction(1, 4), "c": Fraction(1, 4)})
    story.tell(cancelled("a2"), submitted("gang", budget="c", ranks=2))
    story.settle()
    assert story.state.reservations["gang"].start_ms == 8 * HOUR


def test_edge_35_a_session_is_warned_and_can_be_extended_once() -> None:
    """An allocated run like any other; 15 minutes before its hour ends its user is told, and may ask for more once."""
    story = world(1)
    story.tell(submitted("session", interactive=True))
    story.settle()
    notices = story.at(45 * MINUTE).tick().receipts
    assert [(notice.workload, notice.status) for notice in notices] == [("session", ReceiptStatus.NOTICE)]

    assert story.tell(extended("session", 30 * MINUTE)).receipts[0].status is ReceiptStatus.ACCEPTED
    assert story.tell(extended("session", 30 * MINUTE)).receipts[0].status is ReceiptStatus.REJECTED
    run = story.state.workloads["session"].run
    assert run is not None
    assert run.protected_until_ms == 90 * MINUTE
    assert committed(story, "a") == 8 * 45 * MINUTE


def test_edge_36_work_without_gpus_belongs_to_a_pool_of_its_own_unit() -> None:
    """A GPU node takes no request for 0 GPUs; a pool of CPUs is a pool at its own rate, here a tenth of a GPU's."""
    with pytest.raises(ValidationError, match="gpus_per_rank"):
        submitted("w", gpus_per_rank=0)

    rates = (PoolRate(pool="h100", rate=10), PoolRate(pool="cpu", rate=1))
    story = World({**BARE, "rates": rates}, [node("g1"), node("c1", pool="cpu", gpus=16)])
    story.fund({"a": HALF, "b": HALF})
    story.tell(submitted("cpus", budget="a", pool="cpu", gpus_per_rank=16), submitted("gpus", budget="b", pool="h100"))
    story.settle()
    story.at(HOUR).tick()

    assert (charged(story, "a"), charged(story, "b")) == (16 * HOUR, 80 * HOUR)


def test_edge_37_no_request_can_strand_gpus_by_other_means() -> None:
    """Whole GPUs are all that can be asked for: CPUs or memory beside them cannot be said, so none are charged."""
    for field in ("cpus", "memory_bytes"):
        with pytest.raises(ValidationError, match=field):
            submitted("w", **{field: 1})


def test_edge_38_a_shrinking_pool_evicts_nobody() -> None:
    """Both nodes hold protected runs; one of them falls ill. Both runs go on, and what waits waits in its order."""
    story = world(2)
    story.seat("x", "a", [("n1", 8)], min_runtime_ms=8 * HOUR)
    story.seat("y", "b", [("n2", 8)], min_runtime_ms=8 * HOUR)
    story.at(HOUR).tell(submitted("w-b", budget="b", gpus_per_rank=4), health("n2", NodeHealth.UNHEALTHY))
    story.at(HOUR + 1).tell(submitted("w-a", budget="a", gpus_per_rank=4))
    story.at(2 * HOUR).tick()
    assert (story.phase("x"), story.phase("y")) == ("running", "running")
    assert placed(story) == []

    story.end("x")
    assert placed(story) == ["w-a", "w-b"], "b has six hours of its protection ahead, and they are committed"


def test_edge_39_a_replay_decides_the_same() -> None:
    """The records of a story, folded again, give every proposal again, with its cursor and its policy's version."""
    story = world(2)
    story.tell(unallocated("u", ranks=2), submitted("x", budget="b", gpus_per_rank=4))
    story.settle()
    story.at(MINUTE).tell(adopted(**BARE, order=Order.DUE_FIRST), submitted("w"))
    story.settle()

    again = ClusterState()
    decisions = 0
    for record in story.records:
        if isinstance(record.event, RoundProposed):
            decisions += 1
            assert decide(again) == record.event
            assert record.event.based_on == record.cursor
            assert record.event.policy_version == again.policy_version
        again.apply(record)
    assert decisions >= 2
    assert digest(again) == digest(story.state)


def test_edge_40_a_policy_changes_the_next_pass_and_no_protection() -> None:
    """Two hours were protected. A cap of one hour comes: the run keeps its two, the next request gets one at most."""
    story = world(1)
    story.seat("run", "a", [("n1", 8)], min_runtime_ms=2 * HOUR)
    story.at(10 * MINUTE).tell(adopted(**{**BARE, "min_runtime_cap_ms": HOUR}))
    run = story.state.workloads["run"].run
    assert run is not None
    assert run.protected_until_ms == 2 * HOUR
    assert story.tell(submitted("long", min_runtime_ms=2 * HOUR)).receipts[0].status is ReceiptStatus.REJECTED

    story.tell(submitted("claim", budget="b", min_runtime_ms=HOUR))
    story.at(2 * HOUR - 1).tick()
    assert placed(story) == []
    story.at(2 * HOUR).tick()
    assert placed(story) == ["claim"]


def test_edge_41_a_budget_has_no_more_gpus_at_a_time_than_it_may() -> None:
    """8 allocated and 4 unallocated GPUs at most: what is above waits beside free GPUs, and says for what."""
    story = world(4)
    shares = (
        BudgetShare(budget="a", fraction_nano=WHOLE // 2, max_allocated_gpus=8, max_unallocated_gpus=4),
        BudgetShare(budget="b", fraction_nano=WHOLE // 2),
    )
    story.tell(BudgetTreeChanged(change="limits", previous=story.state.budgets.change, reason="r", budgets=shares))
    story.tell(submitted("a1"), submitted("a2", gpus_per_rank=1), unallocated("u1", gpus_per_rank=4))
    story.tell(unallocated("u2", gpus_per_rank=1), submitted("b1", budget="b"))
    story.settle()
    assert sorted(story.placed) == ["a1", "b1", "u1"]

    why = verdict(story.state, "a2")
    assert why.code is VerdictCode.SLOT_LIMIT
    assert "a has 8 of at most 8 allocated GPUs at a time" in why.sentence
    assert "a has 4 of at most 4 unallocated GPUs at a time" in verdict(story.state, "u2").sentence

    story.end("a1")
    assert placed(story) == ["a2"]


def test_edge_42_priority_moves_what_waits_and_exposes_what_runs() -> None:
    """Raised, a queued workload goes first in its leaf; lowered, a running one yields to its own leaf only."""
    story = world(1, quotas={"a": Fraction(1)})
    story.seat("run", "a", [("n1", 8)], min_runtime_ms=HOUR)
    story.ask("first", "a", 1)
    story.ask("second", "a", 1)
    story.at(HOUR).tick()
    assert placed(story) == []

    story.tell(reprioritized("second", 1))
    assert placed(story) == ["second"]
    story.tell(reprioritized("second", 0), reprioritized("run", -1))
    assert placed(story) == ["first"], "the older of two equals"
