"""Outcomes: what a stretch of a ledger came to, for the people who asked and for those who pay.

`OutcomeRecorder` observes a simulation or a replay record by record; `OutcomeRecorder.outcomes` sums up. All that is
counted here is an integer. Definitions, after `fair-share.md`, section 5:

- **Wait**: from the submission of a workload to the first start of its last rank. Workloads that have not started yet
  have no wait; they are counted, with the longest time any of them has waited.
- **Class**: *short* is allocated work of at most 8 GPUs and a min runtime of at most 15 minutes; *allocated* is the
  rest of what is charged; *unallocated* is free and may be displaced.
- **Due and delivered**: of an hour, the quota clipped to the demand, and the allocated time held. *Strict* counts of
  each hour (or day) what was delivered up to what was due; *capped* clips the sums only.
- **Occupancy**: held GPU-time over schedulable GPU-time.
- **Preemptions** are counted by run, however many nodes it sat on.
- **Swap-backs**: preemptions of an allocated run that had itself displaced allocated work of the claimant's team: what
  one team took, the other takes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from streamsched.model.commands import Effects, Stop, StopReason
from streamsched.model.events import Record, RoundProposed, RunStarted, WorkloadSubmitted
from streamsched.model.quantities import HOUR, MINUTE
from streamsched.state.cluster import ClusterState
from streamsched.state.hours import ROOT, Delivery, HourlyUse, Use
from streamsched.state.workloads import Phase, Workload

_SHORT_GPUS = 8
_SHORT_MIN_RUNTIME_MS = 15 * MINUTE

#: Gangs by size: the largest number of GPUs of each class, and what it is called.
GANG_SIZES: Sequence[tuple[int, str]] = (
    (1, "1 GPU"),
    (8, "2 to 8 GPUs"),
    (64, "9 to 64 GPUs"),
    (2**31, "over 64 GPUs"),
)


class WorkClass(StrEnum):
    """What a workload asked for."""

    SHORT = "short"
    ALLOCATED = "allocated"
    UNALLOCATED = "unallocated"


def class_of(workload: Workload) -> WorkClass:
    """Return the class of a workload, by its contract alone."""
    if not workload.is_allocated:
        return WorkClass.UNALLOCATED
    is_short = workload.gpus <= _SHORT_GPUS and workload.min_runtime_ms <= _SHORT_MIN_RUNTIME_MS
    return WorkClass.SHORT if is_short else WorkClass.ALLOCATED


def gang_size_of(gpus: int) -> str:
    """Return what gangs of this many GPUs are counted as.

    >>> gang_size_of(1), gang_size_of(8), gang_size_of(16)
    ('1 GPU', '2 to 8 GPUs', '9 to 64 GPUs')
    """
    return next(name for most, name in GANG_SIZES if gpus <= most)


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of a group of workloads that have started, in milliseconds; None where none has.

    A percentile is the wait of the workload at that rank (nearest rank), so it is one that somebody had.
    """

    count: int
    p50_ms: int | None
    p90_ms: int | None
    p99_ms: int | None
    mean_ms: int | None
    max_ms: int | None

    @classmethod
    def of(cls, waits_ms: Sequence[int]) -> Waits:
        """Sum up the waits of a group.

        >>> Waits.of([1, 2, 3, 4, 100]).p90_ms
        100
        """
        if not waits_ms:
            return cls(0, None, None, None, None, None)
        waits = sorted(waits_ms)
        count = len(waits)
        p50, p90, p99 = (waits[-(-count * percent // 100) - 1] for percent in (50, 90, 99))
        return cls(count, p50, p90, p99, sum(waits) // count, waits[-1])


@dataclass(frozen=True, slots=True)
class TeamOutcome:
    """What one budget was promised and got.

    Attributes:
        budget: Its path; empty for the whole cluster.
        quota_nano: Its share of the cluster at the end, in parts of 1,000,000,000.
        use: What it held, wanted and was worth over the whole stretch.
        by_hour: Due and delivered, clipped hour by hour.
        by_day: The same, clipped day by day.
        waits: Of its workloads, allocated and not.
        hours: The use of each hour, by the millisecond at which it begins.
    """

    budget: str
    quota_nano: int
    use: Use
    by_hour: Delivery
    by_day: Delivery
    waits: Waits
    hours: Mapping[int, Use]


@dataclass(frozen=True, slots=True)
class RatioSample:
    """The usage ratio of a leaf at one moment: (charged + committed) / entitled, not divided."""

    at_ms: int
    used_gpu_ms: int
    entitled_gpu_ms: int


@dataclass(frozen=True, slots=True)
class Outcomes:
    """All of it. Times are milliseconds, GPU-times GPU-milliseconds.

    Attributes:
        since_ms: When the stretch begins.
        until_ms: When it ends.
        records: How many ledger records it has.
        rounds: How many of them are proposals.
        submitted: Workloads submitted.
        started: Workloads that started at least once.
        finished: Workloads that ended, by how.
        running: Workloads that hold GPUs at the end.
        waiting: Workloads that wait at the end, and have never started.
        longest_waiting: The one of those that was submitted first; None when none waits.
        longest_waiting_ms: How long it has waited.
        preempted_allocated: Allocated runs that were stopped for others.
        preempted_unallocated: Unallocated ones.
        swap_backs: Of the allocated ones, those that took back what the victim had taken.
        cluster: The cluster as a whole: the root of the tree.
        teams: The leaves, by name.
        waits_by_class: By `WorkClass`.
        waits_by_size: By the names of `GANG_SIZES`.
        ratios: Usage ratios of the leaves, about one sample an hour.
        peak_gpus: The most GPUs that were schedulable.
    """

    since_ms: int
    until_ms: int
    records: int
    rounds: int
    submitted: int
    started: int
    finished: Mapping[str, int]
    running: int
    waiting: int
    longest_waiting: str | None
    longest_waiting_ms: int | None
    preempted_allocated: int
    preempted_unallocated: int
    swap_backs: int
    cluster: TeamOutcome
    teams: Sequence[TeamOutcome]
    waits_by_class: Mapping[str, Waits]
    waits_by_size: Mapping[str, Waits]
    ratios: Mapping[str, Sequence[RatioSample]]
    peak_gpus: int

    @property
    def held_gpu_ms(self) -> int:
        """GPU-time held by anybody."""
        return self.cluster.use.allocated_gpu_ms + self.cluster.use.unallocated_gpu_ms

    @property
    def preemptions(self) -> int:
        """Runs stopped for others."""
        return self.preempted_allocated + self.preempted_unallocated

    @property
    def occupancy(self) -> Fraction | None:
        """Held over schedulable GPU-time."""
        return ratio(self.held_gpu_ms, self.cluster.use.quota_gpu_ms)

    @property
    def unallocated_share(self) -> Fraction | None:
        """Unallocated over held GPU-time."""
        return ratio(self.cluster.use.unallocated_gpu_ms, self.held_gpu_ms)

    @property
    def demand_to_capacity(self) -> Fraction | None:
        """What was held or waited for as allocated time, over the schedulable GPU-time."""
        return ratio(self.cluster.use.demand_gpu_ms, self.cluster.use.quota_gpu_ms)

    @property
    def strict_by_hour(self) -> Fraction | None:
        """What the teams got of what was due, hour by hour: effectiveness."""
        return ratio(
            sum(team.by_hour.strict_gpu_ms for team in self.teams), sum(team.by_hour.due_gpu_ms for team in self.teams)
        )

    @property
    def strict_by_day(self) -> Fraction | None:
        """The same, day by day."""
        return ratio(
            sum(team.by_day.strict_gpu_ms for team in self.teams), sum(team.by_day.due_gpu_ms for team in self.teams)
        )

    @property
    def capped(self) -> Fraction | None:
        """What the teams got of what was due over the whole stretch."""
        return ratio(
            sum(team.by_hour.capped_gpu_ms for team in self.teams), sum(team.by_hour.due_gpu_ms for team in self.teams)
        )

    @property
    def worst_capped(self) -> Fraction | None:
        """The least of what any team got of what was due to it over the whole stretch."""
        scores = [ratio(team.by_hour.capped_gpu_ms, team.by_hour.due_gpu_ms) for team in self.teams]
        return min((score for score in scores if score is not None), default=None)

    @property
    def evictions_per_1000_gpu_hours(self) -> Fraction | None:
        """Allocated runs stopped for others, for each 1000 GPU-hours that were held."""
        return ratio(self.preempted_allocated * 1_000 * HOUR, self.held_gpu_ms)

    @property
    def preemptions_per_1000_gpu_hours(self) -> Fraction | None:
        """Runs stopped for others, for each 1000 GPU-hours that were held."""
        return ratio(self.preemptions * 1_000 * HOUR, self.held_gpu_ms)

    def as_json(self) -> dict[str, Any]:
        """Return the outcomes as JSON values: integers as they are, without the series by hour."""
        return {
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "records": self.records,
            "rounds": self.rounds,
            "submitted": self.submitted,
            "started": self.started,
            "finished": dict(self.finished),
            "running": self.running,
            "waiting": self.waiting,
            "longest_waiting": self.longest_waiting,
            "longest_waiting_ms": self.longest_waiting_ms,
            "preempted_allocated": self.preempted_allocated,
            "preempted_unallocated": self.preempted_unallocated,
            "swap_backs": self.swap_backs,
            "peak_gpus": self.peak_gpus,
            "cluster": _team_json(self.cluster),
            "teams": [_team_json(team) for team in self.teams],
            "waits_by_class": {name: _waits_json(waits) for name, waits in self.waits_by_class.items()},
            "waits_by_size": {name: _waits_json(waits) for name, waits in self.waits_by_size.items()},
        }


def ratio(part: int, whole: int) -> Fraction | None:
    """Return part over whole, or None when there is no whole: nothing was due, so there is no score."""
    return Fraction(part, whole) if whole else None


@dataclass(slots=True)
class _Started:
    """Waits of those that started, by what they are reported under."""

    by_class: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in WorkClass})
    by_size: dict[str, list[int]] = field(default_factory=lambda: {name: [] for _, name in GANG_SIZES})
    by_budget: dict[str, list[int]] = field(default_factory=dict)


class OutcomeRecorder:
    """Observes every record; see the head of this module. Give it to `simulate` or to `streamsched.replay`.

    Args:
        from_ms: What happens earlier counts for nothing: a cluster that begins empty must first fill. A whole hour.
    """

    def __init__(self, from_ms: int = 0) -> None:
        self.use = HourlyUse()
        self._from_ms = from_ms
        self._since_ms: int | None = None
        self._records = 0
        self._rounds = 0
        self._submitted = 0
        self._peak_gpus = 0
        self._waits = _Started()
        self._never_started: dict[str, None] = {}
        self._finished: Counter[str] = Counter()
        self._preempted: dict[tuple[str, int], bool] = {}
        #: Teams from which a run took allocated GPUs when it was placed.
        self._took_from: dict[tuple[str, int], set[str]] = {}
        self._swap_backs = 0
        self._ratios: dict[str, list[RatioSample]] = {}
        self._next_sample_ms = 0

    def __call__(self, record: Record, effects: Effects, state: ClusterState) -> None:
        """Take one folded record."""
        self.use.note(state, effects)
        now_ms = state.now_ms
        if now_ms < self._from_ms:
            return
        self._records += 1
        event = record.event
        if isinstance(event, RunStarted):
            self._note_start(event, state)
        elif isinstance(event, RoundProposed):
            self._rounds += 1
        elif isinstance(event, WorkloadSubmitted) and event.workload in state.workloads:
            self._submitted += 1
            self._never_started[event.workload] = None
        if effects.commands:
            self._note_victims(effects, state)
        for name in effects.workloads:
            finished = state.finished.get(name)
            if finished is not None and finished.cursor == record.cursor:
                self._finished[finished.phase.value] += 1
                self._never_started.pop(name, None)
        if now_ms >= self._next_sample_ms:
            self._sample(state)

    def outcomes(self, state: ClusterState, *, until_ms: int) -> Outcomes:
        """Sum up what was observed, up to a moment at or after the last record."""
        self.use.settle(until_ms)
        self.use.forget(self._from_ms)
        waiting = [state.workloads[name] for name in self._never_started if name in state.workloads]
        waiting = [workload for workload in waiting if workload.phase in (Phase.QUEUED, Phase.PLANNED)]
        first = min(waiting, key=lambda workload: (workload.submitted_ms, workload.id), default=None)
        return Outcomes(
            since_ms=self._since_ms if self._since_ms is not None else until_ms,
            until_ms=until_ms,
            records=self._records,
            rounds=self._rounds,
            submitted=self._submitted,
            started=sum(len(waits) for waits in self._waits.by_class.values()),
            finished=dict(sorted(self._finished.items())),
            running=sum(workload.run is not None for workload in state.workloads.values()),
            waiting=len(waiting),
            longest_waiting=first.id if first is not None else None,
            longest_waiting_ms=until_ms - first.submitted_ms if first is not None else None,
            preempted_allocated=sum(self._preempted.values()),
            preempted_unallocated=sum(not is_allocated for is_allocated in self._preempted.values()),
            swap_backs=self._swap_backs,
            cluster=self._team(state, ROOT, [wait for waits in self._waits.by_class.values() for wait in waits]),
            teams=[
                self._team(state, budget.id, self._waits.by_budget.get(budget.id, []))
                for budget in state.budgets.leaves()
            ],
            waits_by_class={name: Waits.of(waits) for name, waits in self._waits.by_class.items()},
            waits_by_size={name: Waits.of(waits) for name, waits in self._waits.by_size.items()},
            ratios=self._ratios,
            peak_gpus=self._peak_gpus,
        )

    def _team(self, state: ClusterState, budget_id: str, waits_ms: Sequence[int]) -> TeamOutcome:
        budget = state.budgets.root if budget_id == ROOT else state.budgets.get(budget_id)
        hours = self.use.hours(budget_id)
        return TeamOutcome(
            budget=budget_id,
            quota_nano=budget.quota_nano if budget is not None else 0,
            use=sum(hours.values(), Use()),
            by_hour=Delivery.over(hours.values()),
            by_day=Delivery.over(self.use.days(budget_id).values()),
            waits=Waits.of(waits_ms),
            hours=hours,
        )

    def _note_start(self, fact: RunStarted, state: ClusterState) -> None:
        if fact.workload not in self._never_started:
            return
        workload = state.workloads.get(fact.workload)
        if workload is None or workload.run is None or workload.run.started_ms is None:
            return
        del self._never_started[fact.workload]
        wait_ms = workload.run.started_ms - workload.submitted_ms
        self._waits.by_class[class_of(workload)].append(wait_ms)
        self._waits.by_size[gang_size_of(workload.gpus)].append(wait_ms)
        self._waits.by_budget.setdefault(workload.budget.id, []).append(wait_ms)

    def _note_victims(self, effects: Effects, state: ClusterState) -> None:
        for command in effects.commands:
            if isinstance(command, Stop) and command.reason is StopReason.PREEMPTED:
                run = (command.workload, command.attempt)
                victim = state.workloads.get(command.workload)
                if victim is None or run in self._preempted:
                    continue
                self._preempted[run] = victim.is_allocated
                claimant = state.workloads.get(command.beneficiary or "")
                if victim.is_allocated and claimant is not None:
                    self._swap_backs += claimant.budget.id in self._took_from.get(run, ())
                    taken = self._took_from.setdefault((claimant.id, claimant.attempt), set())
                    taken.add(victim.budget.id)

    def _sample(self, state: ClusterState) -> None:
        now_ms = state.now_ms
        if self._since_ms is None:
            self._since_ms = now_ms
        self._next_sample_ms = (now_ms // HOUR + 1) * HOUR
        self._peak_gpus = max(self._peak_gpus, state.inventory.capacity_gpus)
        for leaf in state.budgets.leaves():
            used = leaf.charged_gpu_ms(now_ms) + leaf.committed_gpu_ms(now_ms)
            sample = RatioSample(now_ms, used, leaf.entitled_gpu_ms(now_ms))
            self._ratios.setdefault(leaf.id, []).append(sample)


def _team_json(team: TeamOutcome) -> dict[str, Any]:
    return {
        "budget": team.budget,
        "quota_nano": team.quota_nano,
        "allocated_gpu_ms": team.use.allocated_gpu_ms,
        "unallocated_gpu_ms": team.use.unallocated_gpu_ms,
        "demand_gpu_ms": team.use.demand_gpu_ms,
        "quota_gpu_ms": team.use.quota_gpu_ms,
        "due_by_hour_gpu_ms": team.by_hour.due_gpu_ms,
        "strict_by_hour_gpu_ms": team.by_hour.strict_gpu_ms,
        "due_by_day_gpu_ms": team.by_day.due_gpu_ms,
        "strict_by_day_gpu_ms": team.by_day.strict_gpu_ms,
        "capped_gpu_ms": team.by_hour.capped_gpu_ms,
        "waits": _waits_json(team.waits),
    }


def _waits_json(waits: Waits) -> dict[str, int | None]:
    return {
        "count": waits.count,
        "p50_ms": waits.p50_ms,
        "p90_ms": waits.p90_ms,
        "p99_ms": waits.p99_ms,
        "mean_ms": waits.mean_ms,
        "max_ms": waits.max_ms,
    }
