"""What became of each workload and each of its runs: one row for each, in columns of integers.

`Lives` follows a fold record by record. A run is read once, when it has ended; until then its own object in the state
has all there is to know. So a record costs a look or two for each workload that it touches, and a workload that has
ended costs its row: 50,000 workloads and their runs take some 15 MB.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Final, TypeVar

from streamsched.model.commands import Effects, StopReason
from streamsched.model.events import RoundProposed
from streamsched.state.cluster import ClusterState
from streamsched.state.workloads import Phase, Run, Workload

#: In a column of times: it has not happened.
NEVER: Final = -1
#: In a column of phases: it has not ended.
ALIVE: Final = -1
#: In a column of rows: nobody.
NOBODY: Final = -1

#: Phases in the order of their numbers in a column.
PHASES: Final = tuple(Phase)


class RunEnd(StrEnum):
    """How a run came to its end.

    Of its own: it succeeded or failed. By its owner: cancelled, or at its timeout. Cut short: preempted for somebody,
    drained with its node, or lost to a failure of the machinery. ``running`` is one that has not ended.
    """

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    PREEMPTED = "preempted"
    DRAINED = "drained"
    LOST = "lost"


#: Ends in the order of their numbers in a column.
RUN_ENDS: Final = tuple(RunEnd)
_CUT_SHORT: Final = frozenset({RunEnd.PREEMPTED, RunEnd.DRAINED, RunEnd.LOST})
_END_IN: Final = {
    Phase.SUCCEEDED: RunEnd.SUCCEEDED,
    Phase.CANCELLED: RunEnd.CANCELLED,
    Phase.TIMED_OUT: RunEnd.TIMED_OUT,
}


def _times() -> array[int]:
    return array("q")


def _numbers() -> array[int]:
    return array("l")


def _marks() -> array[int]:
    return array("b")


@dataclass(slots=True)
class WorkloadTable:
    """One row for each workload, in the order of submission. Times are milliseconds since 1970 UTC, or `NEVER`.

    Attributes:
        ids: Their ids.
        budgets: Names of budgets; `budget` counts in it.
        budget: Which of them asked.
        gpus: Of the whole gang.
        min_runtime_ms: As it was declared; 0 for unallocated work.
        submitted_ms: When it was submitted.
        started_ms: When its last rank started, in the first attempt in which it did.
        ended_ms: When it ended.
        phase: How, as a number in `PHASES`; `ALIVE` while it has not.
        preempted: How many of its runs were stopped for others.
        served_ms: Time that did it good: what its runs saved, and all of the last one from its start.
    """

    ids: list[str] = field(default_factory=list)
    budgets: list[str] = field(default_factory=list)
    budget: array[int] = field(default_factory=_numbers)
    gpus: array[int] = field(default_factory=_numbers)
    min_runtime_ms: array[int] = field(default_factory=_times)
    submitted_ms: array[int] = field(default_factory=_times)
    started_ms: array[int] = field(default_factory=_times)
    ended_ms: array[int] = field(default_factory=_times)
    phase: array[int] = field(default_factory=_marks)
    preempted: array[int] = field(default_factory=_numbers)
    served_ms: array[int] = field(default_factory=_times)

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class RunTable:
    """One row for each run that had GPUs, in the order in which they gave them back; those that still run come last.

    Attributes:
        workload: Its row among the workloads.
        attempt: Its number among the runs of that one, from 1.
        bound_ms: When it was given its GPUs.
        started_ms: When its last rank started.
        protected_until_ms: When its protection ends or ended; `NEVER` where it had none.
        stopped_ms: When it was asked to stop.
        released_ms: When its last node had its GPUs back.
        end: How it ended, as a number in `RUN_ENDS`.
        beneficiary: The row of the workload for which it was stopped, or `NOBODY`.
        lost_gpu_ms: GPU-time that did no good, in units of the rate card.
    """

    workload: array[int] = field(default_factory=_numbers)
    attempt: array[int] = field(default_factory=_numbers)
    bound_ms: array[int] = field(default_factory=_times)
    started_ms: array[int] = field(default_factory=_times)
    protected_until_ms: array[int] = field(default_factory=_times)
    stopped_ms: array[int] = field(default_factory=_times)
    released_ms: array[int] = field(default_factory=_times)
    end: array[int] = field(default_factory=_marks)
    beneficiary: array[int] = field(default_factory=_numbers)
    lost_gpu_ms: array[int] = field(default_factory=_times)

    def __len__(self) -> int:
        return len(self.workload)


@dataclass(slots=True)
class PromiseTable:
    """One row for each reservation that has ended.

    Attributes:
        workload: The claimant's row.
        since_ms: When its nodes were reserved.
        start_ms: When all of them can be had at the latest.
        started_ms: When the claimant's last rank started; `NEVER` where the reservation ended without that.
    """

    workload: array[int] = field(default_factory=_numbers)
    since_ms: array[int] = field(default_factory=_times)
    start_ms: array[int] = field(default_factory=_times)
    started_ms: array[int] = field(default_factory=_times)

    def __len__(self) -> int:
        return len(self.workload)

    def add(self, workload: int, since_ms: int, start_ms: int, started_ms: int) -> None:
        """Write a row."""
        self.workload.append(workload)
        self.since_ms.append(since_ms)
        self.start_ms.append(start_ms)
        self.started_ms.append(started_ms)


@dataclass(slots=True)
class Preemptions:
    """Runs that were stopped for others.

    Attributes:
        allocated: Allocated runs, by run, however many nodes it sat on.
        unallocated: Unallocated ones.
        swap_backs: Of the allocated ones, those that took back what the victim had taken from the claimant's team.
        evicted_gpus: GPUs of all of them.
        claimed_gpus: GPUs of the gangs that they made room for.
        pairs: How often a team took allocated GPUs from a team: (claimant's, victim's).
    """

    allocated: int = 0
    unallocated: int = 0
    swap_backs: int = 0
    evicted_gpus: int = 0
    claimed_gpus: int = 0
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)


_Table = TypeVar("_Table", WorkloadTable, RunTable, PromiseTable)


class _Life:
    """A workload that lives: its row, its present run, and what it took to get there."""

    __slots__ = ("promise", "row", "run", "took_from")

    def __init__(self, row: int) -> None:
        self.row = row
        self.run: Run | None = None
        #: Teams from which its present run took allocated GPUs.
        self.took_from: set[str] | None = None
        #: When nodes were reserved for it, and when it was to start.
        self.promise: tuple[int, int] | None = None


class Lives:
    """Follows workloads and runs from the beginning of a ledger.

    Args:
        from_ms: Preemptions and reservations before this are not counted; rows there are for every workload.
        checkpoint_ms: How often work saves itself; None where it does so as it is asked to stop. As in
            `streamsched.simulation.virtual_cluster`.
    """

    def __init__(self, from_ms: int = 0, checkpoint_ms: int | None = None) -> None:
        self.workloads = WorkloadTable()
        self.runs = RunTable()
        self.promises = PromiseTable()
        self.preemptions = Preemptions()
        self._from_ms = from_ms
        self._checkpoint_ms = checkpoint_ms
        self._budgets: dict[str, int] = {}
        self._lives: dict[str, _Life] = {}

    def note(self, effects: Effects, state: ClusterState) -> None:
        """Follow one record that touched workloads: call it with what its fold returned."""
        lives, live = self._lives, state.workloads
        for name in effects.workloads:
            workload = live.get(name)
            life = lives.get(name)
            if life is None:
                if workload is None:
                    continue
                life = self._begin(workload)
            run = workload.run if workload is not None else None
            if run is not life.run:
                if life.run is not None:
                    self._close(life, name, life.run, state)
                life.run = run
            if life.promise is not None and run is None and name not in state.reservations:
                self._settle_promise(life, life.promise, NEVER)
            if workload is None:
                self._end(life, name, state)

    def note_decision(self, proposal: RoundProposed, cursor: int, state: ClusterState) -> None:
        """Follow the preemptions and reservations of a proposal, after `note`."""
        counts = state.now_ms >= self._from_ms
        for item in proposal.placements:
            if item.victims:
                claimant = state.workloads.get(item.workload)
                if claimant is not None and claimant.run is not None and claimant.run.decided_at == cursor:
                    self._take(claimant, [victim.workload for victim in item.victims], state, counts=counts)
        for promise in proposal.reservations:
            kept = state.reservations.get(promise.workload)
            life = self._lives.get(promise.workload)
            if counts and kept is not None and kept.cursor == cursor and life is not None:
                life.promise = (kept.since_ms, kept.start_ms)

    def tables(self) -> tuple[WorkloadTable, RunTable, PromiseTable]:
        """Return copies of the tables as they stand, with what has not ended: runs, and promises that were kept."""
        workloads, runs, promises = _copy(self.workloads), _copy(self.runs), _copy(self.promises)
        for life in self._lives.values():
            run = life.run
            if run is None or run.bound_ms is None:
                continue
            if run.started_ms is not None and workloads.started_ms[life.row] == NEVER:
                workloads.started_ms[life.row] = run.started_ms
            self._write(runs, life.row, run, NEVER, RunEnd.RUNNING, 0)
            if life.promise is not None and run.started_ms is not None:
                promises.add(life.row, *life.promise, run.started_ms)
        return workloads, runs, promises

    # --- steps --------------------------------------------------------------------------------------------------------

    def _begin(self, workload: Workload) -> _Life:
        table = self.workloads
        life = self._lives[workload.id] = _Life(len(table.ids))
        name = workload.budget.id
        budget = self._budgets.get(name)
        if budget is None:
            budget = self._budgets[name] = len(table.budgets)
            table.budgets.append(name)
        table.ids.append(workload.id)
        table.budget.append(budget)
        table.gpus.append(workload.gpus)
        table.min_runtime_ms.append(workload.min_runtime_ms)
        table.submitted_ms.append(workload.submitted_ms)
        table.started_ms.append(NEVER)
        table.ended_ms.append(NEVER)
        table.phase.append(ALIVE)
        table.preempted.append(0)
        table.served_ms.append(0)
        return life

    def _close(self, life: _Life, name: str, run: Run, state: ClusterState) -> None:
        """Write the row of a run that is over."""
        life.took_from = None
        if life.promise is not None:
            self._settle_promise(life, life.promise, _or_never(run.started_ms))
        if run.bound_ms is None:
            return  # A plan that was given up: it never had GPUs.
        workload = state.workloads.get(name)
        finished = state.finished.get(name) if workload is None else None
        end = _end_of(run, finished.phase if finished is not None else None)
        table, row = self.workloads, life.row
        held_ms = state.now_ms - run.bound_ms
        if run.started_ms is not None and table.started_ms[row] == NEVER:
            table.started_ms[row] = run.started_ms
        lost_ms = 0
        if end in _CUT_SHORT:
            is_over = finished is not None
            saved_ms = 0 if is_over else self._saved_ms(run)
            table.served_ms[row] += saved_ms
            lost_ms = held_ms - saved_ms
            table.preempted[row] += end is RunEnd.PREEMPTED
        elif run.started_ms is not None:
            table.served_ms[row] += state.now_ms - run.started_ms
        self._write(self.runs, row, run, state.now_ms, end, lost_ms * run.units)

    def _saved_ms(self, run: Run) -> int:
        """Return what a run that is to go on elsewhere has kept: whole checkpoints before it was asked to stop."""
        if run.started_ms is None or run.stop_ms is None:
            return 0
        done_ms = max(0, run.stop_ms - run.started_ms)
        return done_ms - done_ms % (self._checkpoint_ms or 1)

    def _write(self, table: RunTable, row: int, run: Run, released_ms: int, end: RunEnd, lost_gpu_ms: int) -> None:
        beneficiary = self._lives.get(run.beneficiary) if run.beneficiary is not None else None
        table.workload.append(row)
        table.attempt.append(run.attempt)
        table.bound_ms.append(_or_never(run.bound_ms))
        table.started_ms.append(_or_never(run.started_ms))
        table.protected_until_ms.append(_or_never(run.protected_until_ms))
        table.stopped_ms.append(_or_never(run.stop_ms))
        table.released_ms.append(released_ms)
        table.end.append(RUN_ENDS.index(end))
        table.beneficiary.append(beneficiary.row if beneficiary is not None else NOBODY)
        table.lost_gpu_ms.append(lost_gpu_ms)

    def _end(self, life: _Life, name: str, state: ClusterState) -> None:
        finished = state.finished.get(name)
        if finished is not None:
            self.workloads.ended_ms[life.row] = finished.at_ms
            self.workloads.phase[life.row] = PHASES.index(finished.phase)
        del self._lives[name]

    def _take(self, claimant: Workload, victims: list[str], state: ClusterState, *, counts: bool) -> None:
        """Count the runs that make room for a claimant."""
        taken = self._lives[claimant.id]
        team = claimant.budget.id
        count = self.preemptions if counts else Preemptions()
        count.claimed_gpus += claimant.gpus
        for name in victims:
            victim, life = state.workloads.get(name), self._lives.get(name)
            if victim is None or life is None:
                continue
            count.evicted_gpus += victim.gpus
            if not victim.is_allocated:
                count.unallocated += 1
                continue
            count.allocated += 1
            count.pairs[team, victim.budget.id] += 1
            count.swap_backs += life.took_from is not None and team in life.took_from
            taken.took_from = taken.took_from or set()
            taken.took_from.add(victim.budget.id)

    def _settle_promise(self, life: _Life, promise: tuple[int, int], started_ms: int) -> None:
        self.promises.add(life.row, *promise, started_ms)
        life.promise = None


def _copy(table: _Table) -> _Table:
    return type(table)(*(getattr(table, column.name)[:] for column in fields(table)))


def _end_of(run: Run, phase: Phase | None) -> RunEnd:
    """Return how a run ended, given the phase in which its workload ended with it (None where it goes on)."""
    if phase is not None and (end := _END_IN.get(phase)) is not None:
        return end
    if run.failed:
        return RunEnd.FAILED
    if run.stop is StopReason.PREEMPTED:
        return RunEnd.PREEMPTED
    return RunEnd.DRAINED if run.stop is StopReason.NODE_DRAINED else RunEnd.LOST


def _or_never(ms: int | None) -> int:
    return NEVER if ms is None else ms
