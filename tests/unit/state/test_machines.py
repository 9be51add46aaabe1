"""How nodes leave use, empty, are repaired and come back; and what becomes of the work on them."""

from __future__ import annotations

import pytest

from streamsched.model.commands import Effects, Place, ReceiptStatus, Stop
from streamsched.model.events import (
    Drain,
    Event,
    NodeHealth,
    ProposedPlacement,
    ReleaseOutcome,
    RoundProposed,
    Seat,
    Victim,
)
from streamsched.model.quantities import HOUR, MINUTE, SECOND
from streamsched.state.machines import awaiting_repair
from streamsched.state.reasons import Ignored, Void
from streamsched.state.snapshot import digest, freeze, thaw
from streamsched.state.standing import NodeState, Standing, standing
from tests.stories import (
    Story,
    adopted,
    budgets,
    cancelled,
    drained,
    health,
    holding,
    node,
    nodes,
    released,
    repair_began,
    started,
    submitted,
    unallocated,
)

STOPPED = ReleaseOutcome.STOPPED
ILL, WELL, LOST = NodeHealth.UNHEALTHY, NodeHealth.HEALTHY, NodeHealth.LOST
#: The grace of allocated and of unallocated work, and how long a stop may take after it.
GRACE, SHORT_GRACE, STOP_TIMEOUT = 60 * SECOND, 10 * SECOND, 60 * SECOND


def cluster(count: int) -> Story:
    """Nodes of 8 GPUs, and two teams that hold half each."""
    return Story(budgets(a=0.5, b=0.5), nodes(count))


def seat(story: Story, workload: str, *seats: tuple[str, int], victims: tuple[str, ...] = ()) -> Effects:
    """Give a workload its seats by a proposal, whoever would have decided so."""
    placement = ProposedPlacement(
        workload=workload,
        attempt=story.state.workloads[workload].attempt + 1,
        seats=tuple(Seat(rank=rank, node=name, gpu_mask=mask) for rank, (name, mask) in enumerate(seats)),
        victims=tuple(Victim(workload=name, attempt=story.state.workloads[name].attempt) for name in victims),
        shares=(),
    )
    number = story.state.closed_round + 1
    return story.tell(RoundProposed(round=number, based_on=0, policy_version=0, placements=(placement,)))


def run(story: Story, workload: str, *seats: tuple[str, int]) -> None:
    """Seat a workload and let it start."""
    seat(story, workload, *seats)
    story.start(workload)


def stops(effects: Effects) -> list[tuple[str, str, str]]:
    """Who is stopped where, and why."""
    return [(c.workload, c.node, c.reason) for c in effects.commands if isinstance(c, Stop)]


def takes_work(story: Story, name: str) -> bool:
    """Whether a node is in use."""
    return story.state.nodes[name].takes_work


def stands(story: Story, name: str) -> Standing:
    """How a node stands."""
    return standing(story.state, story.state.nodes[name])


def survives_a_snapshot(story: Story) -> bool:
    """Whether a state that is written and read is the same."""
    return digest(thaw(freeze(story.state))) == digest(story.state)


# --- soft drains ------------------------------------------------------------------------------------------------------


def test_example_10_an_unhealthy_node_empties_as_protections_end() -> None:
    """Flagged at 10:00: unallocated leaves then, the gang whole at 11:50, the last at 14:30; repair from 14:31."""

    def at(hours: int, minutes: int = 0, seconds: int = 0) -> int:
        return hours * HOUR + minutes * MINUTE + seconds * SECOND

    story = Story(budgets(a=1), node("n5"), node("n6"), at_ms=at(6, 30))
    story.tell(submitted("r1", gpus_per_rank=2, min_runtime_ms=8 * HOUR))
    run(story, "r1", ("n5", 0b11))
    story.at(at(9)).tell(unallocated("r2", gpus_per_rank=2))
    run(story, "r2", ("n5", 0b1100))
    story.at(at(9, 50)).tell(submitted("r3", ranks=2, gpus_per_rank=4, min_runtime_ms=2 * HOUR))
    run(story, "r3", ("n5", 0xF0), ("n6", 0xF0))

    story.at(at(10))
    assert stops(story.tell(health("n5", ILL))) == [("r2", "n5", "node_drained")]
    assert stands(story, "n5")[:3] == (NodeState.DRAINING, Drain.SOFT, at(10))
    assert stands(story, "n5").empty_by_ms == at(14, 31)
    story.at(at(10, 0, 10)).end("r2", STOPPED)

    assert story.state.next_wakeup_ms is not None
    assert stops(story.at(at(11, 50) - 1).tick()) == []
    assert stops(story.at(at(11, 50)).tick()) == [("r3", "n5", "node_drained"), ("r3", "n6", "node_drained")]
    story.at(at(11, 51)).end("r3", STOPPED)
    assert story.state.workloads["r3"].requeued, "at the head of its leaf"
    assert story.state.workloads["r3"].queue_key is not None, "and at once"
    assert takes_work(story, "n6")

    assert stops(story.at(at(14, 30)).tick()) == [("r1", "n5", "node_drained")]
    assert stands(story, "n5").empty_by_ms == at(14, 31)
    story.at(at(14, 31)).end("r1", STOPPED)
    assert [told.node for told in story.effects[-1].emptied] == ["n5"]
    assert stands(story, "n5")[:3] == (NodeState.EMPTY, Drain.SOFT, at(14, 31))
    assert survives_a_snapshot(story)


def test_edge_19_one_protection_for_a_gang_on_a_node_that_is_well_and_one_that_is_not() -> None:
    """Nothing of it leaves before, and all of it leaves then, by the start of its last rank."""
    story = cluster(2)
    story.tell(submitted("gang", ranks=2))
    seat(story, "gang", ("n1", 0xFF), ("n2", 0xFF))
    story.tell(started("n1", "gang"))
    story.at(MINUTE).tell(started("n2", "gang"))
    assert stops(story.at(2 * MINUTE).tell(health("n2", ILL))) == []

    assert stops(story.at(HOUR + MINUTE - 1).tick()) == []
    assert stops(story.at(HOUR + MINUTE).tick()) == [("gang", "n1", "node_drained"), ("gang", "n2", "node_drained")]


def test_b13_a_drain_waits_for_the_protection_and_a_crash_does_not() -> None:
    """The end of the protection is noticed although nothing else happens then."""
    story = cluster(2)
    story.tell(submitted("w", min_runtime_ms=10 * MINUTE), submitted("v", min_runtime_ms=10 * MINUTE))
    seat(story, "w", ("n1", 0xFF))
    seat(story, "v", ("n2", 0xFF))
    story.at(2 * MINUTE).start("w")
    story.start("v")
    assert stops(story.at(3 * MINUTE).tell(drained("n1"))) == []
    story.tell(health("n2", LOST))
    assert story.phase("v") == "queued"

    story.tell(*(health("n2", WELL),))
    assert stops(story.at(12 * MINUTE - 1).tick()) == []
    assert stops(story.at(12 * MINUTE).tick()) == [("w", "n1", "node_drained")]


def test_what_is_past_its_protection_leaves_a_drained_node_at_once() -> None:
    """At the very end of the protection it is past it."""
    story = cluster(1)
    story.tell(submitted("w"))
    run(story, "w", ("n1", 0xFF))

    assert stops(story.at(HOUR).tell(drained("n1"))) == [("w", "n1", "node_drained")]


def test_what_a_drain_ends_and_cannot_be_resumed_is_over() -> None:
    """It had the time that was promised."""
    story = cluster(1)
    story.tell(submitted("w", resumable=False))
    run(story, "w", ("n1", 0xFF))
    story.at(HOUR).tell(drained("n1"))
    story.end("w", STOPPED)

    assert story.phase("w") == "preempted"
    assert story.state.finished["w"].reason == "a node was drained, and it cannot be resumed"


@pytest.mark.parametrize("change", [health("n2", ILL), drained("n2", Drain.CORDON), drained("n2")])
def test_b18_a_gang_that_has_not_started_leaves_a_node_that_is_taken_out_of_use(change: Event) -> None:
    """It is placed anew, once and whole, and nothing is placed on that node any more."""
    story = cluster(3)
    story.tell(submitted("w", ranks=2))
    seat(story, "w", ("n1", 0xFF), ("n2", 0xFF))
    story.at(5 * SECOND)
    effects = story.tell(change)
    assert stops(effects) == [("w", "n1", "node_drained"), ("w", "n2", "node_drained")]
    story.end("w", STOPPED)
    assert story.state.workloads["w"].queue_key is not None, "it does not back off: the node is known to be out"
    assert story.state.budgets.by_id["a"].charged_gpu_ms(5 * SECOND) == 0, "what never started is refunded"

    refused = seat(story, "w", ("n1", 0xFF), ("n2", 0xFF))
    assert not refused.commands
    assert story.state.void == {Void.NODE_UNAVAILABLE: 1}
    placed = seat(story, "w", ("n1", 0xFF), ("n3", 0xFF))
    assert [(c.node, c.attempt) for c in placed.commands if isinstance(c, Place)] == [("n1", 2), ("n3", 2)]


def test_a_plan_on_a_node_that_is_drained_is_given_up() -> None:
    """Its claimant waits again without a setback."""
    story = cluster(1)
    story.tell(unallocated("u"))
    run(story, "u", ("n1", 0xFF))
    story.tell(submitted("w"))
    seat(story, "w", ("n1", 0xFF), victims=("u",))
    assert story.phase("w") == "planned"

    story.tell(drained("n1", Drain.CORDON))
    assert story.phase("w") == "queued"
    assert story.state.workloads["w"].queue_key is not None


def test_a_cordon_lets_what_has_started_go_on() -> None:
    """Also past its protection, and unallocated."""
    story = cluster(1)
    story.tell(submitted("w", gpus_per_rank=4), unallocated("u", gpus_per_rank=4))
    run(story, "w", ("n1", 0x0F))
    run(story, "u", ("n1", 0xF0))
    assert stops(story.tell(drained("n1", Drain.CORDON, actor="ana"))) == []
    assert stops(story.at(2 * HOUR).tick()) == []

    assert stands(story, "n1") == Standing(NodeState.CORDONED, Drain.CORDON, 0, "ana", "a test", "an undrain", None)


def test_edge_38_a_pool_that_shrinks_below_what_is_protected_evicts_nobody() -> None:
    """The order goes on with less capacity: GPUs that are still held count until they are free."""
    story = cluster(2)
    story.tell(submitted("w"), submitted("v", budget="b"))
    run(story, "w", ("n1", 0xFF))
    run(story, "v", ("n2", 0xFF))
    assert stops(story.tell(health("n1", ILL))) == stops(story.tell(health("n2", ILL))) == []
    assert story.state.inventory.capacity_gpus == 16

    story.end("w")
    assert story.state.inventory.capacity_gpus == 8


# --- hard drains ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [health("n1", ILL, fatal=True), drained("n1", Drain.HARD)])
def test_a_hard_drain_stops_everything_at_once_and_it_is_nobodys_fault(change: Event) -> None:
    """Protected work too: its commitment drops, and it is queued again; what cannot be resumed has failed."""
    story = cluster(1)
    story.tell(submitted("w", gpus_per_rank=4), submitted("x", gpus_per_rank=4, resumable=False))
    run(story, "w", ("n1", 0x0F))
    run(story, "x", ("n1", 0xF0))
    leaf = story.state.budgets.by_id["a"]
    assert leaf.committed_gpu_ms(0) == 8 * HOUR

    effects = story.tell(change)
    assert stops(effects) == [("w", "n1", "node_failed"), ("x", "n1", "node_failed")]
    assert leaf.committed_gpu_ms(0) == 0
    story.end("w", STOPPED)
    story.end("x", STOPPED)
    assert (story.phase("w"), story.phase("x")) == ("queued", "failed")
    assert story.state.finished["x"].reason == "a node failed, and the work cannot be resumed"


def test_edge_21_work_that_ends_by_itself_in_its_grace_has_ended_well() -> None:
    """Whatever it was stopped for."""
    story = cluster(1)
    story.tell(submitted("w"))
    run(story, "w", ("n1", 0xFF))
    story.tell(drained("n1", Drain.HARD))
    story.end("w")

    assert story.phase("w") == "succeeded"


# --- what does not stop -----------------------------------------------------------------------------------------------


def test_b17_gpus_of_what_is_stopping_are_not_free() -> None:
    """Nor is its node handed out when the stop is never confirmed, until its agent says that the run is gone."""
    story = cluster(2)
    story.tell(submitted("v", min_runtime_ms=5 * MINUTE), submitted("other", gpus_per_rank=4))
    run(story, "v", ("n1", 0xFF))
    story.at(5 * MINUTE).tell(drained("n1"))
    story.tell(drained("n1", Drain.NONE))
    leaf = story.state.budgets.by_id["a"]
    assert leaf.allocated_gpus == 8, "charged until it is gone"

    overdue = 5 * MINUTE + GRACE + STOP_TIMEOUT
    story.at(overdue - 1).tick()
    assert leaf.allocated_gpus == 8
    assert stops(story.at(overdue).tick())[-1] == ("v", "n1", "unknown_run")
    assert leaf.allocated_gpus == 0, "its charge is off the team from then on"
    assert leaf.charged_gpu_ms(overdue) == 8 * overdue
    assert story.phase("v") == "queued"
    assert not takes_work(story, "n1")
    assert stands(story, "n1") == Standing(
        NodeState.DRAINING,
        Drain.HARD,
        overdue,
        "the scheduler",
        "container not stopping: v (attempt 1)",
        "its agent to say that the run is gone",
        None,
    )
    assert survives_a_snapshot(story)

    gone = overdue + 10 * MINUTE
    gains = story.state.inventory.gains
    story.at(gone).tell(released("n1", "v", outcome=STOPPED))
    assert takes_work(story, "n1")
    assert story.state.inventory.gains > gains, "whoever waits is looked at again"
    assert stands(story, "n1").state is NodeState.HEALTHY
    assert leaf.charged_gpu_ms(gone) == 8 * overdue


def test_b17_nothing_is_placed_on_gpus_before_they_are_released() -> None:
    """Stopped at 100 s and gone at 160 s: charged until then, and who waits since 101 s sits there right after."""
    story = cluster(1)
    story.tell(submitted("v"))
    run(story, "v", ("n1", 0xFF))
    story.at(100 * SECOND).tell(cancelled("v"))
    story.at(101 * SECOND).tell(submitted("w"))
    assert not story.round().commands
    story.at(160 * SECOND - 1).tick()
    assert not story.round().commands

    story.at(160 * SECOND).end("v", STOPPED)
    assert [(c.workload, c.node) for c in story.round().commands if isinstance(c, Place)] == [("w", "n1")]
    assert story.state.budgets.by_id["a"].charged_gpu_ms(160 * SECOND) == 8 * 160 * SECOND


def test_edge_22_a_victim_that_does_not_stop_frees_its_claimant_to_go_elsewhere() -> None:
    """The plan fails without a setback, everything else on the node is stopped, and the node is out."""
    story = cluster(1)
    story.tell(unallocated("u", gpus_per_rank=4), submitted("near", gpus_per_rank=4))
    run(story, "u", ("n1", 0x0F))
    run(story, "near", ("n1", 0xF0))
    story.tell(submitted("w", gpus_per_rank=4))
    seat(story, "w", ("n1", 0x0F), victims=("u",))

    effects = story.at(SHORT_GRACE + STOP_TIMEOUT).tick()

    assert ("near", "n1", "node_failed") in stops(effects)
    assert story.phase("w") == "queued"
    assert story.state.workloads["w"].queue_key is not None, "it may be planned elsewhere at once"
    story.tell(node("n2"))
    seat(story, "w", ("n2", 0x0F))
    assert story.phase("w") == "bound"


def test_an_inventory_without_the_run_that_did_not_stop_puts_the_node_back() -> None:
    """An agent that was started anew need not know that it was asked."""
    story = cluster(1)
    story.tell(unallocated("u"))
    run(story, "u", ("n1", 0xFF))
    story.tell(drained("n1"))
    stop = [c for c in story.at(SHORT_GRACE + STOP_TIMEOUT).tick().commands if isinstance(c, Stop)][-1]
    story.tell(node("n1", runs=(holding("u"),), watermark=stop.command))
    story.tell(drained("n1", Drain.NONE))
    assert not takes_work(story, "n1")

    again = [c for c in story.effects[-2].commands if isinstance(c, Stop)][-1]
    story.tell(node("n1", watermark=again.command))
    assert takes_work(story, "n1")


# --- orders -----------------------------------------------------------------------------------------------------------


def test_an_order_about_an_unknown_node_is_refused() -> None:
    """With the name and where the others are listed."""
    story = cluster(1)
    receipt = story.tell(drained("n9", corr="c-1")).receipts[0]

    assert (receipt.status, receipt.node, receipt.corr) == (ReceiptStatus.REJECTED, "n9", "c-1")
    assert receipt.reason == "node: there is no node 'n9'; `streamsched nodes` lists them"
    assert story.state.ignored == {Ignored.UNKNOWN_NODE: 1}


def test_an_order_is_answered_and_the_same_again_changes_nothing() -> None:
    """The first who ordered it is remembered."""
    story = cluster(1)
    assert story.tell(drained("n1", actor="ana")).receipts[0].status == "accepted"
    assert story.at(MINUTE).tell(drained("n1", actor="bo")).receipts[0].status == "accepted"

    assert stands(story, "n1")[2:4] == (0, "ana")
    assert story.state.ignored == {Ignored.ALREADY_SO: 1}


def test_b19c_a_drained_node_that_was_silent_stays_drained() -> None:
    """Whatever it says of itself when it is back, with another boot; and its work exists once."""
    story = cluster(2)
    story.tell(submitted("w"))
    run(story, "w", ("n1", 0xFF))
    story.at(MINUTE).tell(health("n1", LOST))
    story.at(2 * MINUTE).tell(drained("n1", actor="ana"))
    assert stands(story, "n1").state is NodeState.LOST
    story.at(3 * MINUTE).tell(health("n1", WELL), node("n1", boot="boot-2"))

    assert stands(story, "n1") == Standing(NodeState.EMPTY, Drain.SOFT, 3 * MINUTE, "ana", "a test", "an undrain", None)
    assert not takes_work(story, "n1")
    assert survives_a_snapshot(story)
    seat(story, "w", ("n2", 0xFF))
    assert [key for name in ("n1", "n2") for key in story.state.nodes[name].held] == [("w", 2)]
    story.tell(drained("n1", Drain.NONE))
    assert stands(story, "n1").state is NodeState.HEALTHY


def test_edge_12_a_lost_node_is_charged_until_it_is_lost() -> None:
    """What it did after that, nobody knows."""
    story = cluster(1)
    story.tell(submitted("w"))
    run(story, "w", ("n1", 0xFF))
    story.at(10 * MINUTE).tell(health("n1", LOST))
    story.at(20 * MINUTE).tick()

    assert story.state.budgets.by_id["a"].charged_gpu_ms(20 * MINUTE) == 8 * 10 * MINUTE


# --- flapping ---------------------------------------------------------------------------------------------------------


def test_b19a_a_node_that_flaps_is_held_down() -> None:
    """Unhealthy and healthy every minute: after three times it takes no work before it was healthy for 30 minutes."""
    story = cluster(1)
    for minute in range(0, 30, 2):
        story.at(minute * MINUTE).tell(health("n1", ILL))
        story.at((minute + 1) * MINUTE).tell(health("n1", WELL))
        assert takes_work(story, "n1") is (minute < 4), minute
    last = 29 * MINUTE
    back = last + 30 * MINUTE
    assert stands(story, "n1") == Standing(
        NodeState.HELD_DOWN,
        Drain.CORDON,
        28 * MINUTE,
        "the scheduler",
        "ceased to be healthy 15 times within 1h",
        "to have been healthy until 1970-01-01T00:59:00Z, or an undrain",
        None,
    )
    assert survives_a_snapshot(story)
    assert thaw(freeze(story.state)).next_wakeup_ms == story.state.next_wakeup_ms == back

    story.at(back - 1).tick()
    assert not takes_work(story, "n1")
    gains = story.state.inventory.gains
    story.at(back).tick()
    assert takes_work(story, "n1")
    assert story.state.inventory.gains > gains
    assert story.state.nodes["n1"].falls == []


def test_b19a_a_flapping_node_ends_a_run_so_often_and_not_more_often() -> None:
    """Three times, and then its work waits for another node or for the end of the hold."""
    story = cluster(1)
    story.tell(unallocated("w"))
    story.round()
    for minute in range(0, 30, 2):
        story.at(minute * MINUTE).tell(health("n1", ILL))
        if "w" in story.state.workloads and story.phase("w") == "stopping":
            story.end("w", STOPPED)
        story.at((minute + 1) * MINUTE).tell(health("n1", WELL))
        story.round()
    assert story.state.workloads["w"].attempt == 3

    story.at(59 * MINUTE).tick()
    assert [c.attempt for c in story.round().commands if isinstance(c, Place)] == [4]


def test_a_hold_begins_anew_when_the_node_falls_again() -> None:
    """Only healthy time counts."""
    story = Story(budgets(a=1), adopted(flap_limit=1, hold_down_ms=10 * MINUTE), node("n1"))
    story.tell(health("n1", ILL))
    story.at(MINUTE).tell(health("n1", WELL))
    story.at(5 * MINUTE).tell(health("n1", ILL))
    story.at(6 * MINUTE).tell(health("n1", WELL))
    story.at(11 * MINUTE).tick()
    assert not takes_work(story, "n1")

    story.at(16 * MINUTE).tick()
    assert takes_work(story, "n1")


def test_falls_outside_the_window_do_not_count() -> None:
    """Three times in more than an hour are not too often: the window is half open."""
    story = cluster(1)
    for moment in (0, 30 * MINUTE, HOUR):
        story.at(moment).tell(health("n1", ILL), health("n1", WELL))
    assert takes_work(story, "n1")

    story.at(90 * MINUTE - 1).tell(health("n1", ILL), health("n1", WELL))
    assert not takes_work(story, "n1")


def test_an_undrain_ends_a_hold() -> None:
    """Although no drain was ordered."""
    story = Story(budgets(a=1), adopted(flap_limit=1), node("n1"))
    story.tell(health("n1", ILL), health("n1", WELL))
    assert not takes_work(story, "n1")

    assert story.tell(drained("n1", Drain.NONE)).receipts[0].status == "accepted"
    assert takes_work(story, "n1")


# --- repair -----------------------------------------------------------------------------------------------------------


def test_the_repair_of_a_node_drives_itself() -> None:
    """Healthy, draining, empty, repair, healthy: nobody has to do anything but repair it."""
    story = cluster(1)
    story.tell(submitted("w"))
    run(story, "w", ("n1", 0xFF))
    story.at(MINUTE).tell(health("n1", ILL, "GPU 3 is slow"))
    assert stands(story, "n1").state is NodeState.DRAINING
    story.at(HOUR).tick()
    assert not story.effects[-1].emptied
    story.end("w", STOPPED)
    (told,) = story.effects[-1].emptied
    cursor = story.state.next_cursor - 1
    assert (told.node, told.cursor, told.emptied_ms, told.drain, told.reason, told.by) == (
        "n1", cursor, HOUR, Drain.SOFT, "GPU 3 is slow", None
    )  # fmt: skip
    assert awaiting_repair(story.state) == awaiting_repair(thaw(freeze(story.state))) == [told]

    story.at(HOUR + MINUTE).tell(repair_began("n1", cursor))
    assert awaiting_repair(story.state) == []
    assert stands(story, "n1") == Standing(
        NodeState.REPAIR,
        Drain.SOFT,
        HOUR + MINUTE,
        "its health",
        "GPU 3 is slow",
        "a report that it is healthy",
        None,
    )
    story.at(2 * HOUR).tell(health("n1", LOST))
    assert stands(story, "n1").state is NodeState.REPAIR, "it is switched off for it"
    assert survives_a_snapshot(story)
    story.at(3 * HOUR).tell(health("n1", WELL))
    assert stands(story, "n1").state is NodeState.HEALTHY
    assert takes_work(story, "n1")
    assert survives_a_snapshot(story)


def test_a_repair_of_another_time_is_none_of_this_one() -> None:
    """The webhook may be told of a node that has been in use since."""
    story = cluster(1)
    story.tell(drained("n1"))
    first = story.effects[-1].emptied[0].cursor
    story.tell(drained("n1", Drain.NONE), drained("n1"))
    story.tell(repair_began("n1", first), repair_began("n9", first))

    assert stands(story, "n1").state is NodeState.EMPTY
    assert story.state.ignored == {Ignored.ALREADY_SO: 1, Ignored.UNKNOWN_NODE: 1}


def test_an_empty_node_is_told_of_once() -> None:
    """However much is reported of it."""
    story = cluster(1)
    story.tell(drained("n1"), node("n1", boot="boot-2"), drained("n1", Drain.HARD), node("n1", boot="boot-3"))

    assert sum(len(effects.emptied) for effects in story.effects) == 1


def test_a_node_is_not_empty_before_what_is_left_behind_is_gone() -> None:
    """Its agent has the last word."""
    story = cluster(1)
    story.tell(node("n1", runs=(holding("ghost", gpu_mask=0x0F),)), drained("n1"))
    assert stands(story, "n1")[0:2] == (NodeState.DRAINING, Drain.SOFT)
    assert stands(story, "n1").waits_for == "its agent to say what still runs"

    story.tell(released("n1", "ghost", outcome=STOPPED))
    assert stands(story, "n1").state is NodeState.EMPTY
