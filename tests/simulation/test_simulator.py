"""The loop serves a small demand as arithmetic says it must, and its ledger is one like any other."""

import gc
from pathlib import Path

import pytest

from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.model.commands import Effects
from streamsched.model.events import BudgetShare, BudgetTreeChanged, Record, Tick, Unreadable, WorkloadSubmitted
from streamsched.model.policy import Policy
from streamsched.model.quantities import HOUR, MINUTE, SECOND, WHOLE
from streamsched.node.virtual_node import USUAL, sleep_argv
from streamsched.replay.replayer import fold
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.history import HistoryKeeper
from streamsched.simulation.outcomes import OutcomeRecorder, Waits
from streamsched.simulation.simulator import simulate
from streamsched.simulation.virtual_cluster import uniform_cluster
from streamsched.state.cluster import ClusterState
from streamsched.state.snapshot import digest
from streamsched.wire import codec

TREE = BudgetTreeChanged(
    change="c1",
    reason="begin",
    budgets=(BudgetShare(budget="blue", fraction_nano=WHOLE // 2), BudgetShare(budget="red", fraction_nano=WHOLE // 2)),
)


def submission(
    at_ms: int, workload: str, *, budget: str = "red", gpus: int = 8, run_ms: int = HOUR, min_ms: int = HOUR
) -> Submission:
    submitted = WorkloadSubmitted(
        workload=workload,
        budget=budget,
        ranks=1,
        gpus_per_rank=gpus,
        min_runtime_ms=min_ms,
        resumable=True,
        command=sleep_argv(run_ms),
    )
    return Submission(at_ms, submitted, run_ms)


#: One node of 8 GPUs. red-0 runs 0:00 to 1:00; blue-0, asked for at 0:10, runs 1:00 to 2:00; free, asked for at 0:20,
#: starts at 2:00 and is displaced at 2:30 by red-1, which runs to 3:30; free goes on then for the half hour left.
STORY = Demand(
    (
        submission(0, "red-0"),
        submission(10 * MINUTE, "blue-0", budget="blue"),
        submission(20 * MINUTE, "free", min_ms=0),
        submission(150 * MINUTE, "red-1"),
    ),
    TREE,
)


def test_a_day_on_one_node() -> None:
    """Waits, GPU-time, preemptions and the end are those of the story."""
    recorder = OutcomeRecorder()

    state = simulate(STORY, uniform_cluster(1), observers=[recorder])
    outcomes = recorder.outcomes(state, until_ms=state.now_ms)

    assert state.now_ms == 4 * HOUR
    assert outcomes.finished == {"succeeded": 4}
    assert (outcomes.submitted, outcomes.started, outcomes.waiting, outcomes.running) == (4, 4, 0, 0)
    assert (outcomes.preempted_allocated, outcomes.preempted_unallocated) == (0, 1)
    teams = {team.budget: team for team in outcomes.teams}
    assert teams["red"].use.allocated_gpu_ms == 16 * HOUR
    assert teams["blue"].use.allocated_gpu_ms == 8 * HOUR
    assert teams["red"].use.unallocated_gpu_ms == 8 * HOUR
    assert outcomes.waits_by_class["allocated"] == Waits.of([0, 50 * MINUTE, 0])
    assert outcomes.waits_by_class["unallocated"].max_ms == 100 * MINUTE
    assert outcomes.occupancy == 1
    assert outcomes.peak_gpus == 8
    # red is due 4 GPU-hours in hour 0, 4 in hour 2 (queued or held for a half hour: demand 4) and 4 in hour 3.
    assert teams["red"].by_hour.due_gpu_ms == 12 * HOUR
    # blue wanted 8 GPUs for 50 minutes of hour 0 and all of hour 1: 4 due in each, delivered 0 and 8.
    assert teams["blue"].by_hour.due_gpu_ms == 8 * HOUR
    assert teams["blue"].by_hour.strict_gpu_ms == 4 * HOUR


def test_what_comes_before_the_stretch_that_counts_is_left_out() -> None:
    """From 1:00 on: blue's hour, free's two halves, red's second hour; and only red-1 is submitted."""
    recorder = OutcomeRecorder(from_ms=HOUR)

    state = simulate(STORY, uniform_cluster(1), observers=[recorder])
    outcomes = recorder.outcomes(state, until_ms=state.now_ms)

    teams = {team.budget: team for team in outcomes.teams}
    assert outcomes.since_ms == HOUR
    assert (outcomes.submitted, outcomes.started, outcomes.preemptions) == (1, 1, 1)
    assert (teams["blue"].use.allocated_gpu_ms, teams["red"].use.allocated_gpu_ms) == (8 * HOUR, 8 * HOUR)
    assert teams["red"].use.unallocated_gpu_ms == 8 * HOUR
    # blue was due 4 GPU-hours of hour 1, and red 4 of hour 2 and 4 of hour 3.
    assert (teams["blue"].by_hour.due_gpu_ms, teams["red"].by_hour.due_gpu_ms) == (4 * HOUR, 8 * HOUR)


@pytest.mark.parametrize(("guard", "evictions", "swap_backs"), [(False, 2, 1), (True, 1, 0)])
def test_taking_back_is_counted_as_a_swap(guard: bool, evictions: int, swap_backs: int) -> None:
    """Two teams want one node for long, with an hour of protection. blue takes it at 1:00.

    At 2:00 both have had 8 GPU-hours, and right after it red is behind: it takes the node back when there is no guard.
    With the guard it must wait until it is behind by its own next hour, at 3:00.
    """
    asked = (
        submission(0, "red-0", run_ms=10 * HOUR),
        submission(30 * MINUTE, "blue-0", budget="blue", run_ms=10 * HOUR),
    )
    recorder = OutcomeRecorder()
    policy = Policy(guard=guard, guard_relaxation_ms=None, preemption_burst_percent=1_000)

    until_ms = 2 * HOUR + 30 * MINUTE
    state = simulate(Demand(asked, TREE), uniform_cluster(1), policy, until_ms=until_ms, observers=[recorder])
    outcomes = recorder.outcomes(state, until_ms=until_ms)

    assert (outcomes.preempted_allocated, outcomes.swap_backs) == (evictions, swap_backs)


def test_time_jumps_from_event_to_event() -> None:
    """A month without an event costs a record or two, not a quarter of a million ticks."""
    records: list[Record] = []

    def keep(record: Record, _effects: Effects, _state: ClusterState) -> None:
        records.append(record)

    demand = Demand((submission(0, "a"), submission(720 * HOUR, "b")), TREE)
    simulate(demand, uniform_cluster(1), observers=[keep])

    assert sum(isinstance(record.event, Tick) for record in records) <= 4
    assert [record.cursor for record in records] == list(range(len(records)))


def test_nothing_happens_after_the_end_that_was_asked_for() -> None:
    """At 0:30 one runs and two wait."""
    recorder = OutcomeRecorder()

    state = simulate(STORY, uniform_cluster(1), until_ms=30 * MINUTE, observers=[recorder])
    outcomes = recorder.outcomes(state, until_ms=30 * MINUTE)

    assert (outcomes.running, outcomes.waiting) == (1, 2)
    assert (outcomes.longest_waiting, outcomes.longest_waiting_ms) == ("blue-0", 20 * MINUTE)
    assert outcomes.cluster.use.allocated_gpu_ms == 4 * HOUR
    assert outcomes.cluster.use.queued_gpu_ms == 8 * 20 * MINUTE


def test_a_cluster_cannot_come_up_after_the_first_submission() -> None:
    """The message names both times."""
    with pytest.raises(ValueError, match="since_ms is 5, after the first submission at 0"):
        simulate(STORY, uniform_cluster(1), since_ms=5)


async def test_the_kept_ledger_folds_to_the_same_state(tmp_path: Path) -> None:
    """Replay of the file and the simulation agree to the digest, and the append times are the simulated ones."""
    path = tmp_path / "ledger.sqlite"
    with HistoryKeeper(path, "demo", 0) as keeper:
        state = simulate(STORY, uniform_cluster(1), observers=[keeper])

    ledger = await SqliteLedger.open(path, readonly=True)
    folded = await fold(ledger)
    entries = [entry async for page in ledger.read() for entry in page]
    await ledger.close()

    assert digest(folded) == digest(state)
    assert [entry.cursor for entry in entries] == list(range(state.next_cursor))
    assert entries[-1].append_ms == 4 * HOUR


def test_equal_arguments_give_equal_records() -> None:
    """With random delays too: each node draws from its own seed."""

    def records() -> list[Record]:
        kept: list[Record] = []
        cluster = uniform_cluster(2, seed=7)
        simulate(STORY, cluster, observers=[lambda record, _effects, _state: kept.append(record)])
        return kept

    assert records() == records()


def test_percentiles_are_waits_that_somebody_had() -> None:
    """Nearest rank: of 10 waits the median is the 5th, p90 the 9th and p99 the 10th."""
    waits = Waits.of([second * SECOND for second in (10, 9, 8, 7, 6, 5, 4, 3, 2, 1)])

    assert (waits.p50_ms, waits.p90_ms, waits.p99_ms) == (5 * SECOND, 9 * SECOND, 10 * SECOND)
    assert (waits.mean_ms, waits.count) == (5_500, 10)
    assert Waits.of([]).p50_ms is None


def test_what_is_made_without_validation_is_valid() -> None:
    """Facts, commands and receipts that we make ourselves are those that a strict reader of their bytes makes."""
    seen = set[str]()

    def check(record: Record, effects: Effects, _state: ClusterState) -> None:
        assert not isinstance(record.event, Unreadable)
        assert codec.decode(codec.encode(record.event)) == record.event
        seen.add(record.event.type)
        for command in effects.commands:
            assert codec.decode_command(codec.encode_command(command)) == command
            seen.add(command.type)
        for receipt in effects.receipts:
            assert codec.decode_receipt(codec.encode_receipt(receipt)) == receipt
            seen.add(receipt.type)

    simulate(STORY, uniform_cluster(1, delays=USUAL), observers=[check])

    assert {"command_accepted", "run_started", "run_released", "place", "stop", "receipt"} <= seen


def test_cycles_are_searched_for_again_after_a_simulation() -> None:
    """And the search finds nothing of ours, as long as the state that came of it lives."""
    gc.collect()

    state = simulate(STORY, uniform_cluster(1))

    assert gc.isenabled()
    assert not state.workloads
    assert not [found for found in _unreachable() if type(found).__module__.startswith("streamsched")]


def _unreachable() -> list[object]:
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
