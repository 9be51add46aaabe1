"""The fold: lives of workloads, what nodes report, and what does not count."""

from __future__ import annotations

import pytest

from streamsched.errors import LedgerGapError, ReplayDivergenceError
from streamsched.model.commands import Effects, Place, Stop, StopReason
from streamsched.model.events import (
    Event,
    NodeHealth,
    ProposedPlacement,
    Record,
    ReleaseOutcome,
    RoundProposed,
    Seat,
    StateHashed,
    Tick,
    Unreadable,
    Victim,
)
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND
from streamsched.scheduling.decision import decide
from streamsched.state.cluster import LAYOUT
from streamsched.state.reasons import Ignored, Void
from streamsched.state.snapshot import digest, freeze, thaw
from tests.stories import (
    Story,
    accepted,
    adopted,
    budgets,
    cancelled,
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

STOPPED = ReleaseOutcome.STOPPED


def cluster(count: int = 2, **fractions: float) -> Story:
    """A few nodes of 8 GPUs, and teams that share them."""
    return Story(budgets(**(fractions or {"a": 0.5, "b": 0.5})), nodes(count))


def running(*submissions: Event, count: int = 2) -> Story:
    """The same with work that has started at 0."""
    story = cluster(count)
    story.tell(submissions)
    story.round()
    for name in list(story.state.workloads):
        if story.phase(name) == "bound":
            story.start(name)
    return story


def stops(effects: Effects) -> list[tuple[str, str, str]]:
    """Who is stopped where, and why."""
    return [(c.workload, c.node, c.reason) for c in effects.commands if isinstance(c, Stop)]


def places(effects: Effects) -> list[tuple[str, str, int]]:
    """What is placed where, and which attempt."""
    return [(c.workload, c.node, c.attempt) for c in effects.commands if isinstance(c, Place)]


# --- a life -----------------------------------------------------------------------------------------------------------


def test_a_workload_from_submission_to_success() -> None:
    """Queued, bound with a command to its node, running and protected, succeeded and charged for what it held."""
    story = cluster()
    receipt = story.tell(submitted("w")).receipts[0]
    assert (receipt.status, receipt.workload) == ("accepted", "w")

    commands = story.at(1_000).round().commands
    assert [(c.command, c.node, c.workload) for c in commands] == [("4/0", "n1", "w")]
    assert story.phase("w") == "bound"

    story.at(3_000).start("w")
    run = story.state.workloads["w"].run
    assert run is not None
    assert run.protected_until_ms == 3_000 + HOUR
    story.at(10_000).end("w")

    assert story.phase("w") == "succeeded"
    assert story.state.nodes["n1"].free_mask == 0xFF
    assert story.state.budgets.by_id["a"].charged_gpu_ms(10_000) == 8 * 9_000, "charged from bound to released"


def test_a_gang_has_started_when_its_last_node_has() -> None:
    """The protected time is time in which work can be done."""
    story = cluster()
    story.tell(submitted("gang", ranks=2))
    story.round()
    story.at(5_000).tell(started("n1", "gang"))
    assert story.phase("gang") == "bound"
    story.at(9_000).tell(started("n2", "gang"))

    run = story.state.workloads["gang"].run
    assert run is not None
    assert (story.phase("gang"), run.started_ms, run.protected_until_ms) == ("running", 9_000, 9_000 + HOUR)


def test_the_protected_time_is_never_longer_than_the_timeout() -> None:
    """A min runtime of an hour and a timeout of 10 minutes protect for 10 minutes, and stop after them."""
    story = cluster()
    story.tell(submitted("w", timeout_ms=10 * MINUTE))
    story.round()
    story.start("w")
    run = story.state.workloads["w"].run
    assert run is not None
    assert run.protected_until_ms == 10 * MINUTE
    assert story.state.next_wakeup_ms is not None

    effects = story.at(10 * MINUTE).tick()
    assert stops(effects) == [("w", "n1", StopReason.TIMED_OUT)]
    story.tell(released("n1", "w", outcome=STOPPED))
    assert story.phase("w") == "timed_out"


def test_a_failed_rank_stops_its_gang() -> None:
    """One node reports a failure; the others are stopped, and the whole has failed."""
    story = running(submitted("gang", ranks=2))
    effects = story.tell(released("n1", "gang", outcome=ReleaseOutcome.FAILED))
    assert stops(effects) == [("gang", "n2", StopReason.GANG_BROKEN)]
    story.tell(released("n2", "gang", outcome=STOPPED))

    assert story.phase("gang") == "failed"


def test_ranks_that_end_well_need_not_end_together() -> None:
    """The GPUs of a node are free, and no longer charged, when that node has released them."""
    story = running(submitted("gang", ranks=2))
    story.at(1_000).tell(released("n1", "gang"))
    assert story.phase("gang") == "running"
    assert story.state.nodes["n1"].free_mask == 0xFF
    story.at(3_000).tell(released("n2", "gang"))

    assert story.phase("gang") == "succeeded"
    assert story.state.budgets.by_id["a"].charged_gpu_ms(3_000) == 8 * 1_000 + 8 * 3_000


# --- submissions ------------------------------------------------------------------------------------------------------


def test_a_submission_sent_twice_is_one_submission() -> None:
    """A retry is answered like the first and changes nothing; another request of the same id is refused."""
    story = cluster()
    story.tell(submitted("w"))
    before = len(story.state.workloads)

    again = story.tell(submitted("w", priority=9))
    other = story.tell(submitted("w", ranks=2))

    assert again.receipts[0].status == "accepted"
    assert other.receipts[0].status == "rejected"
    assert "taken" in (other.receipts[0].reason or "")
    assert len(story.state.workloads) == before
    assert story.state.workloads["w"].ranks == 1


def test_a_retry_after_the_end_is_recognised_for_a_while() -> None:
    """Its id is remembered for 30 days, and then forgotten."""
    story = running(submitted("w"))
    story.at(1_000).end("w")
    assert story.tell(submitted("w")).receipts[0].status == "accepted"
    assert story.state.workloads == {}

    story.at(1_000 + 30 * DAY).tick()
    assert story.state.finished == {}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"budget": "aa"}, ["budget", "'aa'", "did you mean a"]),
        ({"min_runtime_ms": 1 * MINUTE}, ["min_runtime_ms", "1m", "5m to 8h"]),
        ({"min_runtime_ms": 8 * HOUR + 1}, ["min_runtime_ms", "5m to 8h"]),
        ({"ranks": 3}, ["ranks", "3 ranks of 8 GPUs", "is 2"]),
        ({"gpus_per_rank": 9}, ["ranks", "9 GPUs", "is 0"]),
    ],
)
def test_what_can_never_be_served_is_refused_with_the_remedy(fields: dict[str, object], words: list[str]) -> None:
    """The receipt names the field, the value and what to do."""
    receipt = cluster().tell(submitted("w", **fields)).receipts[0]

    assert receipt.status == "rejected"
    for word in words:
        assert word in (receipt.reason or "")


def test_a_refused_id_may_be_used_again() -> None:
    """Nothing came of it, so the same request is welcome once its budget exists."""
    story = Story(nodes(1))
    assert story.tell(submitted("w")).receipts[0].status == "rejected"
    story.tell(budgets(a=1))

    assert story.tell(submitted("w")).receipts[0].status == "accepted"


def test_an_inner_budget_takes_no_work() -> None:
    """Work belongs to a leaf."""
    story = Story(budgets(**{"p/a": 1.0}), nodes(1))

    assert "not a leaf" in (story.tell(submitted("w", budget="p")).receipts[0].reason or "")


def test_a_request_before_any_node_has_reported_waits() -> None:
    """Scenario B09: what does not fit yet waits, and is placed when the node is there."""
    story = Story(budgets(a=1))
    assert story.tell(submitted("w")).receipts[0].status == "accepted"
    assert decide(story.state) is None
    story.tell(nodes(1))

    assert places(story.round()) == [("w", "n1", 1)]


# --- cancels ----------------------------------------------------------------------------------------------------------


def test_b25_a_cancel_wins_whatever_is_on_its_way() -> None:
    """Cancelled between the placement and the start: it ends cancelled, is charged for a second, is never requeued."""
    story = cluster()
    story.tell(submitted("w"))
    story.round()
    effects = story.at(100).tell(cancelled("w"))
    assert stops(effects) == [("w", "n1", StopReason.CANCELLED)]
    story.at(1_000).tell(started("n1", "w"), released("n1", "w", outcome=STOPPED))

    assert story.phase("w") == "cancelled"
    assert story.state.nodes["n1"].free_mask == 0xFF
    assert story.state.budgets.by_id["a"].charged_gpu_ms(1_000) == 8 * 1_000


def test_b25_cancels_that_come_early_twice_or_for_nothing() -> None:
    """A queued workload is gone at once; what is over or unknown is answered and changes nothing."""
    story = cluster()
    story.tell(submitted("w"))
    assert story.tell(cancelled("w")).receipts[0].status == "accepted"
    assert decide(story.state) is None

    assert story.tell(cancelled("w")).receipts[0].reason == "it had ended before: cancelled"
    assert story.tell(cancelled("never")).receipts[0].status == "rejected"
    assert story.state.ignored == {Ignored.UNKNOWN_WORKLOAD: 2}


def test_b25_a_cancelled_claimant_leaves_the_gpus_to_the_others() -> None:
    """It waits for its victim to stop and is cancelled: the victim's stop is not undone, its GPUs go to the queue."""
    story = running(unallocated("u", ranks=2))
    story.tell(submitted("w"))
    assert stops(story.round()) == [("u", "n1", "preempted"), ("u", "n2", "preempted")]
    assert story.phase("w") == "planned"
    story.tell(cancelled("w"))
    story.tell(released("n1", "u", outcome=STOPPED), released("n2", "u", outcome=STOPPED))

    assert story.phase("w") == "cancelled"
    assert places(story.round()) == [], "displaced work backs off for a minute"
    story.at(60_000).tick()
    assert places(story.round()) == [("u", "n1", 2), ("u", "n2", 2)]


def test_a_reprioritized_workload_moves_in_its_leaf() -> None:
    """Queued work changes its place; the event of a workload that is over changes nothing."""
    story = cluster(1)
    story.tell(submitted("first"), submitted("second"), reprioritized("second", 5))

    assert places(story.round()) == [("second", "n1", 1)]
    story.tell(reprioritized("gone", 1))
    assert story.state.ignored == {Ignored.UNKNOWN_WORKLOAD: 1}


# --- preemption and requeue -------------------------------------------------------------------------------------------


def test_unallocated_work_makes_room_and_comes_back_first() -> None:
    """The victim stops, the claimant is placed when the GPUs are free, and the victim is attempt 2, ahead of others."""
    story = running(unallocated("u"), submitted("x", budget="b"))
    story.at(1_000).tell(unallocated("new"), submitted("w"))
    story.round()
    assert [story.phase(name) for name in ("u", "w", "new")] == ["stopping", "planned", "queued"]

    effects = story.at(5_000).tell(released("n2", "u", outcome=STOPPED))
    assert places(effects) == [("w", "n2", 1)]
    assert story.phase("u") == "queued"
    assert story.state.workloads["u"].requeued

    story.start("w")
    story.at(2 * HOUR).end("x")
    assert places(story.round()) == [("u", "n1", 2)]


def test_what_cannot_be_resumed_ends_preempted() -> None:
    """Not resumable means that a second start is not wanted."""
    story = running(unallocated("u", ranks=2, resumable=False))
    story.tell(submitted("w"))
    story.round()
    story.tell(released("n1", "u", outcome=STOPPED), released("n2", "u", outcome=STOPPED))

    assert story.phase("u") == "preempted"
    assert "preempted for w" in story.state.finished["u"].reason


def test_a_victim_that_ends_by_itself_inside_its_grace_has_ended_by_itself() -> None:
    """Edge case 21: finished counts as finished."""
    story = running(unallocated("u", ranks=2))
    story.tell(submitted("w"))
    story.round()
    story.tell(released("n1", "u"), released("n2", "u"))

    assert story.phase("u") == "succeeded"
    assert story.phase("w") == "bound"


def test_b17_gpus_of_a_stopping_run_are_not_free() -> None:
    """Between the stop and its confirmation nothing is placed there, and the victim is charged for it."""
    story = running(submitted("v"), count=1)
    story.at(100 * SECOND).tell(cancelled("v"))
    story.at(101 * SECOND).tell(submitted("w"))
    assert decide(story.state) is None
    story.at(160 * SECOND).tell(released("n1", "v", outcome=STOPPED))

    assert places(story.round()) == [("w", "n1", 1)]
    assert story.state.budgets.by_id["a"].charged_gpu_ms(160 * SECOND) == 8 * 160 * SECOND


def test_a_plan_ends_when_its_victim_does_not_stop() -> None:
    """The claims are withdrawn after the grace and the stop timeout; nobody sits there before the victim is gone."""
    story = running(unallocated("u", ranks=2))
    story.tell(submitted("w"))
    story.round()
    assert story.state.next_wakeup_ms == 15 * SECOND, "the stop is sent again before"
    story.at(70 * SECOND).tick()

    assert story.phase("w") == "queued"
    assert decide(story.state) is None
    story.at(72 * SECOND).tell(released("n1", "u", outcome=STOPPED))
    assert places(story.round()) == [("w", "n1", 2)]


def test_a_start_that_never_comes_is_given_up() -> None:
    """After the start deadline the run is stopped; it has not run, so it is queued again whatever its contract."""
    story = cluster(1)
    story.tell(submitted("w", resumable=False))
    story.round()
    effects = story.at(30 * MINUTE).tick()
    assert ("w", "n1", StopReason.START_DEADLINE) in stops(effects)
    story.tell(released("n1", "w", outcome=STOPPED))

    assert story.phase("w") == "queued"
    assert story.state.workloads["w"].held_until_ms == 30 * MINUTE + 15 * SECOND


def test_refusals_back_off_and_a_start_forgives_them() -> None:
    """15 s, 30 s, 60 s between attempts that a node refuses, so that a bad node is no treadmill."""
    story = cluster(1)
    story.tell(submitted("w"))
    waits = []
    for attempt in (1, 2, 3):
        story.round()
        story.tell(released("n1", "w", attempt, ReleaseOutcome.REFUSED))
        held_until = story.state.workloads["w"].held_until_ms
        waits.append(held_until - story.now_ms)
        story.at(held_until).tick()

    assert waits == [15 * SECOND, 30 * SECOND, 60 * SECOND]
    story.round()
    story.start("w")
    assert story.state.workloads["w"].setbacks == 0


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_lost_node_ends_its_gangs_and_keeps_its_gpus() -> None:
    """The rest of the gang is stopped, the workload is queued again, and the lost GPUs are given to nobody."""
    story = running(submitted("gang", ranks=2))
    effects = story.at(HOUR).tell(health("n1", NodeHealth.LOST))
    assert stops(effects) == [("gang", "n2", StopReason.GANG_BROKEN)]
    assert story.state.budgets.capacity_units == 8
    story.tell(released("n2", "gang", outcome=STOPPED))
    assert story.phase("gang") == "queued"

    story.tell(health("n1", NodeHealth.HEALTHY))
    assert decide(story.state) is None, "n1 has yet to say what still runs there"
    effects = story.tell(node("n1", runs=(holding("gang"),), watermark="99/0"))
    assert stops(effects) == [("gang", "n1", StopReason.UNKNOWN_RUN)]
    story.tell(released("n1", "gang", outcome=STOPPED))

    assert places(story.round()) == [("gang", "n1", 2), ("gang", "n2", 2)]
    assert story.state.budgets.by_id["a"].charged_gpu_ms(HOUR) == 16 * HOUR


def test_a_lost_run_that_cannot_be_resumed_has_failed() -> None:
    """It had started, so a second start might do its work twice."""
    story = running(submitted("w", resumable=False))
    story.tell(health("n1", NodeHealth.LOST))

    assert story.phase("w") == "failed"


def test_an_unhealthy_node_takes_nothing_new() -> None:
    """What runs there goes on; its capacity shrinks to what is held."""
    story = running(submitted("w", gpus_per_rank=4))
    story.tell(health("n1", NodeHealth.UNHEALTHY), submitted("v", gpus_per_rank=4))

    assert places(story.round()) == [("v", "n2", 1)]
    assert story.phase("w") == "running"
    assert story.state.budgets.capacity_units == 8 + 4


def test_an_inventory_without_a_run_loses_it_only_if_the_node_knew_of_it() -> None:
    """A report that was written before the command was obeyed says nothing about it."""
    story = cluster(1)
    story.tell(submitted("w"))
    place = story.round().commands[0]
    story.tell(node("n1", watermark="0/0"))
    assert story.phase("w") == "bound"

    story.tell(node("n1", watermark=place.command, boot="boot-2"))
    assert story.phase("w") == "queued"
    assert story.state.nodes["n1"].free_mask == 0xFF


def test_a_placement_on_its_way_to_a_lost_node_is_taken_back() -> None:
    """The node comes back and has not read it yet: a stop follows it, and nobody gets its GPUs before the answer."""
    story = cluster(1)
    story.tell(submitted("w"))
    place = story.round().commands[0]
    effects = story.at(1_000).tell(health("n1", NodeHealth.LOST))
    assert stops(effects) == [("w", "n1", StopReason.UNKNOWN_RUN)]
    assert story.phase("w") == "queued"
    assert story.state.dispatch.oldest_ms() is None, "nothing is sent again to a node that is lost"

    back = story.at(HOUR).tell(health("n1", NodeHealth.HEALTHY))
    assert back.commands == effects.commands
    story.tell(node("n1"))
    assert decide(story.state) is None
    story.tell(node("n1", runs=(holding("w"),), watermark=place.command), released("n1", "w", outcome=STOPPED))

    assert places(story.round()) == [("w", "n1", 2)]


def test_a_start_deadline_that_is_overtaken_by_success_is_success() -> None:
    """The stop came too late to stop anything."""
    story = cluster(1)
    story.tell(submitted("w"))
    story.round()
    story.at(30 * MINUTE).tick()
    story.tell(released("n1", "w"))

    assert story.phase("w") == "succeeded"


def test_an_agent_that_has_forgotten_everything_has_lost_what_it_had() -> None:
    """It had acknowledged the command, and now holds nothing and knows of no command: its disk was wiped."""
    story = running(submitted("w"), count=1)
    story.tell(node("n1", boot="boot-2"))

    assert story.phase("w") == "queued"
    assert story.state.nodes["n1"].free_mask == 0xFF


def test_health_that_comes_before_the_inventory_is_kept() -> None:
    """Topics have no order between them."""
    story = Story(budgets(a=1), health("n1", NodeHealth.UNHEALTHY), node("n1"), submitted("w"))
    assert decide(story.state) is None
    story.tell(health("n1", NodeHealth.HEALTHY))

    assert places(story.round()) == [("w", "n1", 1)]


def test_a_node_that_changes_is_filed_anew() -> None:
    """A repaired machine may come back with fewer GPUs, in another rack, as another kind."""
    story = cluster(2)
    story.tell(node("n1", gpus=4, pool="a100", domains=("rack-9",)), submitted("w", gpus_per_rank=4, pool="a100"))

    assert places(story.round()) == [("w", "n1", 1)]
    assert story.state.budgets.capacity_units == 12


# --- facts that come twice, late or for nobody ------------------------------------------------------------------------


def test_b06_an_end_that_is_reported_three_times_frees_once() -> None:
    """Stopped, exited, and stopped again: 8 GPUs are free, not 24, and 880 GPU-seconds are charged."""
    story = running(submitted("w"))
    story.at(100 * SECOND).tell(cancelled("w"))
    for second in (110, 111, 115):
        story.at(second * SECOND).tell(released("n1", "w", outcome=STOPPED))
        assert story.state.nodes["n1"].free_mask == 0xFF

    assert story.state.budgets.by_id["a"].charged_gpu_ms(115 * SECOND) == 880 * SECOND
    assert story.state.ignored == {Ignored.STALE_ATTEMPT: 2}


def test_b07_overtaken_facts_change_nothing() -> None:
    """A start after the end, an end before the start, another attempt, and nobody's end."""
    story = cluster()
    story.at(15 * SECOND).tell(submitted("w2"))
    story.round()
    story.at(60 * SECOND).tell(released("n1", "w2"))
    assert story.phase("w2") == "succeeded"
    before = story.state.budgets.by_id["a"].charged_gpu_ms(60 * SECOND)

    story.tell(started("n1", "w2"), released("n1", "w2", attempt=7), released("n1", "nobody"))

    assert story.phase("w2") == "succeeded"
    assert story.state.budgets.by_id["a"].charged_gpu_ms(60 * SECOND) == before == 8 * 45 * SECOND
    assert story.state.ignored == {Ignored.STALE_ATTEMPT: 2, Ignored.UNKNOWN_WORKLOAD: 1}


def test_b01_the_clock_of_an_agent_is_no_clock() -> None:
    """Its times are data; 480 s of 8 GPUs or 250 s of them are what the ledger says, whatever the agent claims."""
    for at_ms, end_s, charged in ((880_000, 1_600, 600), (1_120_000, 1_600, 600), (950_000, 1_250, 250)):
        story = cluster()
        story.at(1_000 * SECOND).tell(submitted("w"))
        story.round()
        story.tell(started("n1", "w").model_copy(update={"at_ms": at_ms}))
        story.at(end_s * SECOND).tell(released("n1", "w").model_copy(update={"at_ms": at_ms}))
        assert story.state.budgets.by_id["a"].charged_gpu_ms(end_s * SECOND) == 8 * charged * SECOND


def test_every_source_is_read_once_and_whole() -> None:
    """A repeat is dropped by its sequence number; a gap is written down, and does not stop the fold."""
    story = cluster()
    first = submitted("w1").model_copy(update={"src": "workloads.v1/3", "seq": 0})
    second = submitted("w2").model_copy(update={"src": "workloads.v1/3", "seq": 1})
    fifth = submitted("w5").model_copy(update={"src": "workloads.v1/3", "seq": 4})
    story.tell(first, second, first, second, fifth)

    assert story.state.sources == {"workloads.v1/3": 4}
    assert story.state.ignored == {Ignored.REPEATED: 2}
    assert [(gap.src, gap.expected, gap.found) for gap in story.state.gaps] == [("workloads.v1/3", 2, 4)]
    assert sorted(story.state.workloads) == ["w1", "w2", "w5"]


def test_time_never_goes_back() -> None:
    """A ledger's clock may step back; the core's does not."""
    story = cluster()
    story.at(5_000).tick()
    story.at(4_000).tick()

    assert story.state.now_ms == 5_000


def test_bytes_that_are_no_event_fold_to_nothing() -> None:
    """They are counted, and the cursor goes on."""
    story = cluster()
    story.state.apply(Record(story.state.next_cursor, 0, Unreadable("no JSON")))

    assert story.state.ignored == {Ignored.UNREADABLE: 1}


def test_a_hole_in_the_ledger_is_not_folded_over() -> None:
    """The next cursor or nothing."""
    story = cluster()
    with pytest.raises(LedgerGapError, match="from cursor 3 to 9"):
        story.state.apply(Record(9, 0, Tick(tick=1)))


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_a_change_made_on_an_old_tree_is_refused() -> None:
    """Whoever comes second has to look at the tree as it is."""
    story = cluster()
    assert story.tell(budgets("b2", "b1", a=1)).receipts[0].status == "accepted"
    stale = story.tell(budgets("b3", "b1", b=1))
    again = story.tell(budgets("b2", "b1", a=1))

    assert stale.receipts[0].status == "rejected"
    assert "b2" in (stale.receipts[0].reason or "")
    assert again.receipts[0].status == "accepted"
    assert sorted(story.state.budgets.by_id) == ["a"]


def test_work_that_waits_under_a_removed_budget_ends_with_a_reason() -> None:
    """Scenario B20: running work goes on, waiting work gets a final state, and new work is refused."""
    story = running(submitted("runs", budget="b"))
    story.tell(submitted("waits", budget="b", ranks=2), budgets("b2", "b1", a=1))

    assert story.phase("waits") == "rejected"
    assert "'b' was removed" in story.state.finished["waits"].reason
    assert story.phase("runs") == "running"
    assert story.tell(submitted("late", budget="b")).receipts[0].status == "rejected"


def test_an_adopted_policy_holds_from_the_next_record_on() -> None:
    """Protection that was given is kept."""
    story = running(submitted("w"))
    story.tell(adopted(min_runtime_cap_ms=30 * MINUTE))
    run = story.state.workloads["w"].run
    assert run is not None

    assert run.protected_until_ms == HOUR
    assert story.state.policy_version == 1
    assert story.tell(submitted("v")).receipts[0].status == "rejected"


# --- rounds -----------------------------------------------------------------------------------------------------------


def proposal(number: int, *items: ProposedPlacement) -> RoundProposed:
    return RoundProposed(round=number, based_on=0, policy_version=0, placements=items)


def item(workload: str, *seats: tuple[str, int], attempt: int = 1, victims: tuple[str, ...] = ()) -> ProposedPlacement:
    return ProposedPlacement(
        workload=workload,
        attempt=attempt,
        seats=tuple(Seat(rank=rank, node=name, gpu_mask=mask) for rank, (name, mask) in enumerate(seats)),
        victims=tuple(Victim(workload=name, attempt=1) for name in victims),
        shares=(),
    )


def test_the_first_proposal_of_a_round_wins() -> None:
    """The second one is counted and has no effect, and neither has one of a round that is not open."""
    story = cluster()
    story.tell(submitted("w"), submitted("v"))
    story.tell(proposal(1, item("w", ("n1", 0xFF))))
    assert not story.tell(proposal(1, item("v", ("n2", 0xFF)))).commands
    assert not story.tell(proposal(7, item("v", ("n2", 0xFF)))).commands

    assert story.state.closed_round == 1
    assert story.state.ignored == {Ignored.ROUND_CLOSED: 1, Ignored.ROUND_NOT_OPEN: 1}
    assert story.phase("v") == "queued"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (item("nobody", ("n1", 0xFF)), Void.NOT_QUEUED),
        (item("w", ("n1", 0xFF), attempt=2), Void.OTHER_ATTEMPT),
        (item("w", ("n1", 0xFF), ("n2", 0xFF)), Void.WRONG_SEATS),
        (item("w", ("n1", 0x0F)), Void.WRONG_SEATS),
        (item("gang", ("n1", 0xFF), ("n1", 0xFF)), Void.WRONG_SEATS),
        (item("w", ("n9", 0xFF)), Void.NODE_UNAVAILABLE),
        (item("w", ("ill", 0xFF)), Void.NODE_UNAVAILABLE),
        (item("w", ("busy", 0xFF)), Void.GPU_TAKEN),
        (item("w", ("n1", 0x1FE)), Void.GPU_TAKEN),
        (item("w", ("busy", 0xFF), victims=("runs",)), Void.VICTIM_PROTECTED),
        (item("w", ("n1", 0xFF), victims=("spare",)), Void.VICTIM_USELESS),
        (item("w", ("n1", 0xFF), victims=("nobody",)), Void.VICTIM_GONE),
        (item("free", ("full", 0xFF), victims=("spare",)), Void.VICTIM_PROTECTED),
    ],
)
def test_an_item_that_does_not_hold_is_void_and_the_others_stand(bad: ProposedPlacement, why: Void) -> None:
    """Every item is checked against the state as it is, and is all or nothing."""
    story = Story(budgets(a=1), node("busy"), node("full"), node("ill"), node("n1"), node("n2"))
    story.tell(submitted("runs"), unallocated("spare"))
    story.tell(proposal(1, item("runs", ("busy", 0xFF)), item("spare", ("full", 0xFF))))
    story.tell(health("ill", NodeHealth.UNHEALTHY))
    story.tell(submitted("w"), submitted("gang", ranks=2), submitted("good"), unallocated("free"))

    effects = story.tell(proposal(2, bad, item("good", ("n2", 0xFF))))

    assert story.state.void == {why: 1}
    assert places(effects) == [("good", "n2", 1)]
    assert story.phase("spare") == "bound"


def test_a_stale_proposal_cannot_place_twice() -> None:
    """Two items of one proposal for the same GPUs: the first has them."""
    story = cluster()
    story.tell(submitted("w"), submitted("v"))
    story.tell(proposal(1, item("w", ("n1", 0xFF)), item("v", ("n1", 0xFF)), item("w", ("n2", 0xFF))))

    assert story.state.void == {Void.GPU_TAKEN: 1, Void.NOT_QUEUED: 1}


# --- commands ---------------------------------------------------------------------------------------------------------


def test_commands_are_sent_again_on_ticks_until_they_are_acknowledged() -> None:
    """The same command with the same id, after the resend time and only when a tick comes."""
    story = cluster()
    story.tell(submitted("w"))
    place = story.round().commands[0]
    assert story.state.next_wakeup_ms == 15 * SECOND
    assert story.state.unanswered_commands() == [place]
    assert not story.at(14 * SECOND).tick().commands
    assert not story.at(15 * SECOND).tell(submitted("other")).commands
    assert story.tick().commands == [place]
    assert not story.tick().commands
    assert story.at(30 * SECOND).tick().commands == [place]

    story.tell(accepted("n1", place.command))
    assert story.state.unanswered_commands() == []
    assert story.state.next_wakeup_ms == 30 * MINUTE, "what is left is the start deadline"


def test_a_gang_is_placed_with_the_ranks_of_each_node() -> None:
    """Each node is told its own seats, the size of the whole, and where rank 0 is."""
    story = cluster()
    story.tell(submitted("gang", ranks=4, gpus_per_rank=4))
    commands = [c for c in story.round().commands if isinstance(c, Place)]

    assert [[seat.rank for seat in command.seats] for command in commands] == [[0, 1], [2, 3]]
    assert {(command.ranks, command.leader) for command in commands} == {(4, "n1")}


# --- digests ----------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_the_whole_state() -> None:
    """Thawed, it freezes to the same bytes and goes on the same way."""
    story = running(unallocated("u", ranks=2), submitted("w", budget="b"))
    story.at(1_000).tell(submitted("claimant"), submitted("later"), health("n9", NodeHealth.LOST))
    story.round()
    copy = thaw(freeze(story.state))
    assert freeze(copy) == freeze(story.state)

    other = Story(at_ms=2_000, state=copy)
    for one in (story.at(2_000), other):
        one.tell(released("n1", "u", outcome=STOPPED), released("n2", "u", outcome=STOPPED))
        one.round()
    assert digest(story.state) == digest(other.state)


def test_a_recorded_digest_that_differs_stops_the_fold() -> None:
    """Two builds that fold differently part within one stretch, not at the yearly audit."""
    story = cluster()
    story.state.digests = {3: "a" * 64}
    story.tell(StateHashed(folded=3, digest="a" * 64, build="test", layout=LAYOUT))
    with pytest.raises(ReplayDivergenceError, match="cursor 3"):
        story.tell(StateHashed(folded=3, digest="b" * 64, build="test", layout=LAYOUT))


def test_a_digest_is_due_after_as_many_records_as_the_state_has_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost for each record stays the same however much waits, and a restored state hashes at the same records."""
    monkeypatch.setattr("streamsched.state.cluster.HASH_EVERY", 4)
    story = Story()
    story.state.next_hash = 4
    story.tell(budgets(a=1), nodes(2), submitted("w0"))
    assert story.effects[3].hash is not None
    assert story.effects[3].hash.folded == 4
    assert story.state.next_hash == 8
    story.tell(submitted(f"w{n}") for n in range(1, 5))

    assert [n for n, effects in enumerate(story.effects) if effects.hash is not None] == [3, 7]
    assert story.state.next_hash == 8 + 5, "five workloads wait"
    assert thaw(freeze(story.state)).next_hash == 13
