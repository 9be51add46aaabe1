"""Outcomes: what a stretch of a ledger came to, for the people who asked and for those who pay.

`OutcomeRecorder` observes a simulation or a replay record by record; `OutcomeRecorder.outcomes` sums up. All that is
counted here is an integer. `OUTCOMES.md`, beside this file, defines each figure with its formula.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from streamsched.model.commands import Effects
from streamsched.model.events import NodeInventoryReported, Record, RoundProposed
from streamsched.model.quantities import HOUR, MINUTE, SECOND
from streamsched.simulation.fragmentation import Fragmentation, fragmentation
from streamsched.simulation.lives import (
    ALIVE,
    NEVER,
    PHASES,
    RUN_ENDS,
    Lives,
    PromiseTable,
    RunEnd,
    RunTable,
    WorkloadTable,
)
from streamsched.state.cluster import ClusterState
from streamsched.state.hours import ROOT, Delivery, HourlyUse, Use
from streamsched.state.workloads import Phase

_SHORT_GPUS = 8
_SHORT_MIN_RUNTIME_MS = 15 * MINUTE
#: The slowdown of work that ran for less than this is reckoned as if it had run for so long.
_SLOWDOWN_BOUND_MS = 10 * SECOND
#: A team that got so much of what was due to it, over the whole stretch, is served well.
_SERVED_WELL = Fraction(95, 100)

#: Gangs by size: the largest number of GPUs of each class, and what it is called.
GANG_SIZES: Sequence[tuple[int, str]] = (
    (1, "1 GPU"),
    (8, "2 to 8 GPUs"),
    (64, "9 to 64 GPUs"),
    (2**31, "over 64 GPUs"),
)


class WorkClass(StrEnum):
    """What a workload asked for. Short work is allocated too: people who debug, and sit there."""

    ALLOCATED = "allocated"
    SHORT = "short"
    UNALLOCATED = "unallocated"


def is_short(gpus: int, min_runtime_ms: int) -> bool:
    """Whether a contract is that of short work."""
    return gpus <= _SHORT_GPUS and 0 < min_runtime_ms <= _SHORT_MIN_RUNTIME_MS


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
    def of(cls, waits_ms: Iterable[int]) -> Waits:
        """Sum up the waits of a group.

        >>> Waits.of([1, 2, 3, 4, 100]).p90_ms
        100
        """
        waits = sorted(waits_ms)
        if not waits:
            return cls(0, None, None, None, None, None)
        return cls(len(waits), *_ranked(waits), sum(waits) // len(waits), waits[-1])


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """The bounded slowdowns of a group of workloads that have succeeded, in thousandths; None where none has."""

    count: int
    p50_milli: int | None
    p90_milli: int | None
    p99_milli: int | None
    mean_milli: int | None

    @classmethod
    def of(cls, slowdowns_milli: Iterable[int]) -> Slowdowns:
        """Sum up the slowdowns of a group."""
        slowdowns = sorted(slowdowns_milli)
        if not slowdowns:
            return cls(0, None, None, None, None)
        return cls(len(slowdowns), *_ranked(slowdowns), sum(slowdowns) // len(slowdowns))


def _ranked(values: Sequence[int]) -> tuple[int, int, int]:
    """Return the values at the nearest ranks of 50, 90 and 99 %."""
    p50, p90, p99 = (values[-(-len(values) * percent // 100) - 1] for percent in (50, 90, 99))
    return p50, p90, p99


def bounded_slowdown_milli(turnaround_ms: int, served_ms: int) -> int:
    """Return how many times longer work took than it ran, in thousandths; at least 1000.

    >>> bounded_slowdown_milli(90 * MINUTE, 60 * MINUTE), bounded_slowdown_milli(20 * SECOND, 1 * SECOND)
    (1500, 2000)
    """
    return max(1_000, turnaround_ms * 1_000 // max(served_ms, _SLOWDOWN_BOUND_MS))


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


@dataclass(slots=True)
class RatioSeries:
    """The usage ratio of a leaf over time, about once an hour: (charged + committed) / entitled, not divided."""

    at_ms: array[int] = field(default_factory=lambda: array("q"))
    used_gpu_ms: array[int] = field(default_factory=lambda: array("q"))
    entitled_gpu_ms: array[int] = field(default_factory=lambda: array("q"))


@dataclass(frozen=True, slots=True)
class Outcomes:
    """All of it. Times are milliseconds, GPU-times GPU-milliseconds.

    Attributes:
        since_ms: When the stretch begins.
        until_ms: When it ends.
        records: How many ledger records it has.
        rounds: How many of them are proposals.
        submitted: Workloads submitted.
        started: Those of them that have started.
        finished: Workloads that ended, by how.
        running: Workloads that hold GPUs at the end.
        waiting: Workloads that wait at the end, and have never started.
        longest_waiting: The one of those that was submitted first; None when none waits.
        longest_waiting_ms: How long it has waited.
        preempted_allocated: Allocated runs that were stopped for others.
        preempted_unallocated: Unallocated ones.
        swap_backs: Of the allocated ones, those that took back what the victim had taken.
        evicted_gpus: GPUs of all runs that were stopped for others.
        claimed_gpus: GPUs of the gangs for which they were.
        taken_by: How often a team took allocated GPUs from a team: (claimant's, victim's).
        lost_to_preemption_gpu_ms: GPU-time that did no good, of runs that were stopped for others.
        lost_to_nodes_gpu_ms: The same of runs that were drained or lost with their nodes.
        cluster: The cluster as a whole: the root of the tree.
        teams: The leaves, by name.
        waits_by_class: By `WorkClass`; short work is among the allocated.
        waits_by_size: By the names of `GANG_SIZES`.
        slowdowns_by_class: By `WorkClass`.
        reservation_waits: From the reservation to the start, of reservations that came to one.
        reservations_given_up: Those that came to none.
        healthy_gpu_ms: GPU-time of nodes that took work.
        installed_gpu_ms: GPU-time of all nodes.
        ratios: Usage ratios of the leaves.
        fragmentation: About one sample an hour.
        peak_gpus: The most GPUs that were schedulable.
        workloads: One row for each workload, those before the stretch too.
        runs: One row for each run.
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
    evicted_gpus: int
    claimed_gpus: int
    taken_by: Mapping[tuple[str, str], int]
    lost_to_preemption_gpu_ms: int
    lost_to_nodes_gpu_ms: int
    cluster: TeamOutcome
    teams: Sequence[TeamOutcome]
    waits_by_class: Mapping[str, Waits]
    waits_by_size: Mapping[str, Waits]
    slowdowns_by_class: Mapping[str, Slowdowns]
    reservation_waits: Waits
    reservations_given_up: int
    healthy_gpu_ms: int
    installed_gpu_ms: int
    ratios: Mapping[str, RatioSeries]
    fragmentation: Sequence[Fragmentation]
    peak_gpus: int
    workloads: WorkloadTable
    runs: RunTable

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
    def availability(self) -> Fraction | None:
        """GPU-time of nodes that took work over that of all nodes."""
        return ratio(self.healthy_gpu_ms, self.installed_gpu_ms)

    @property
    def effectiveness(self) -> Fraction | None:
        """Whether those got the GPUs to whom they were due: `strict_by_hour`."""
        return self.strict_by_hour

    @property
    def lost_share(self) -> Fraction | None:
        """Lost over held GPU-time."""
        return ratio(self.lost_to_preemption_gpu_ms + self.lost_to_nodes_gpu_ms, self.held_gpu_ms)

    @property
    def evicted_for_claimed(self) -> Fraction | None:
        """GPUs that were stopped for each GPU that a gang needed: 1 is exact, more is waste."""
        return ratio(self.evicted_gpus, self.claimed_gpus)

    @property
    def scattered_reclaimable(self) -> Fraction | None:
        """The part of the GPUs that were free or held by unallocated work that no gang of whole nodes could use."""
        largest = sum(sample.largest_reclaimable_gpus for sample in self.fragmentation)
        share = ratio(largest, sum(sample.reclaimable_gpus for sample in self.fragmentation))
        return None if share is None else 1 - share

    @property
    def kept_out_share(self) -> Fraction | None:
        """Of the GPUs that waiting work asked for, those of shapes that only the scatter of free GPUs kept out."""
        samples = self.fragmentation
        return ratio(sum(sample.kept_out_gpus for sample in samples), sum(sample.waiting_gpus for sample in samples))

    @property
    def teams_scored(self) -> int:
        """Teams to whom anything was due."""
        return len(self._capped_scores)

    @property
    def teams_served_well(self) -> int:
        """Those of them that got 95 % of it or more, over the whole stretch."""
        return sum(score >= _SERVED_WELL for score in self._capped_scores)

    @property
    def _capped_scores(self) -> list[Fraction]:
        scores = (ratio(team.by_hour.capped_gpu_ms, team.by_hour.due_gpu_ms) for team in self.teams)
        return [score for score in scores if score is not None]

    @property
    def worst_capped(self) -> Fraction | None:
        """The least of what any team got of what was due to it over the whole stretch."""
        return min(self._capped_scores, default=None)

    @property
    def evictions_per_1000_gpu_hours(self) -> Fraction | None:
        """Allocated runs stopped for others, for each 1000 GPU-hours that were held."""
        return ratio(self.preempted_allocated * 1_000 * HOUR, self.held_gpu_ms)

    @property
    def preemptions_per_1000_gpu_hours(self) -> Fraction | None:
        """Runs stopped for others, for each 1000 GPU-hours that were held."""
        return ratio(self.preemptions * 1_000 * HOUR, self.held_gpu_ms)

    def as_json(self) -> dict[str, Any]:
        """Return the outcomes as JSON values: integers as they are, scores as numbers, and no use by hour."""
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
            "evicted_gpus": self.evicted_gpus,
            "claimed_gpus": self.claimed_gpus,
            "taken_by": [
                {"claimant": claimant, "victim": victim, "runs": runs}
                for (claimant, victim), runs in sorted(self.taken_by.items())
            ],
            "lost_to_preemption_gpu_ms": self.lost_to_preemption_gpu_ms,
            "lost_to_nodes_gpu_ms": self.lost_to_nodes_gpu_ms,
            "healthy_gpu_ms": self.healthy_gpu_ms,
            "installed_gpu_ms": self.installed_gpu_ms,
            "peak_gpus": self.peak_gpus,
            "scores": {
                name: None if score is None else round(float(score), 6)
                for name, score in (
                    ("availability", self.availability),
                    ("occupancy", self.occupancy),
                    ("effectiveness", self.effectiveness),
                    ("strict_by_hour", self.strict_by_hour),
                    ("strict_by_day", self.strict_by_day),
                    ("capped", self.capped),
                    ("worst_capped", self.worst_capped),
                    ("unallocated_share", self.unallocated_share),
                    ("demand_to_capacity", self.demand_to_capacity),
                    ("preemptions_per_1000_gpu_hours", self.preemptions_per_1000_gpu_hours),
                    ("evictions_per_1000_gpu_hours", self.evictions_per_1000_gpu_hours),
                    ("evicted_for_claimed", self.evicted_for_claimed),
                    ("lost_share", self.lost_share),
                    ("scattered_reclaimable", self.scattered_reclaimable),
                    ("kept_out_share", self.kept_out_share),
                )
            },
            "teams_scored": self.teams_scored,
            "teams_served_well": self.teams_served_well,
            "cluster": _team_json(self.cluster),
            "teams": [_team_json(team) for team in self.teams],
            "waits_by_class": {name: _waits_json(waits) for name, waits in self.waits_by_class.items()},
            "waits_by_size": {name: _waits_json(waits) for name, waits in self.waits_by_size.items()},
            "slowdowns_by_class": {name: asdict(slowdowns) for name, slowdowns in self.slowdowns_by_class.items()},
            "reservation_waits": _waits_json(self.reservation_waits),
            "reservations_given_up": self.reservations_given_up,
            "fragmentation": [asdict(sample) for sample in self.fragmentation],
        }


def ratio(part: int, whole: int) -> Fraction | None:
    """Return part over whole, or None when there is no whole: nothing was due, so there is no score."""
    return Fraction(part, whole) if whole else None


class OutcomeRecorder:
    """Observes every record; see the head of this module. Give it to `simulate` or to `streamsched.replay`.

    It must see a ledger from its beginning. A record costs it a few microseconds, whatever the size of the cluster and
    the length of the queue; what grows with the ledger is a row for each workload and each run.

    Args:
        from_ms: What happens earlier counts for nothing: a cluster that begins empty must first fill. A whole hour.
        checkpoint_ms: How often work saves itself; None where it does so as it is asked to stop. What it had not
            saved when it was stopped is lost.
    """

    def __init__(self, from_ms: int = 0, checkpoint_ms: int | None = None) -> None:
        self.use = HourlyUse()
        self.lives = Lives(from_ms, checkpoint_ms)
        self._from_ms = from_ms
        self._since_ms: int | None = None
        self._records = 0
        self._rounds = 0
        self._peak_gpus = 0
        self._ratios: dict[str, RatioSeries] = {}
        self._fragmentation: list[Fragmentation] = []
        self._next_sample_ms = self._next_room_ms = from_ms
        self._machines = _Machines(from_ms)

    def __call__(self, record: Record, effects: Effects, state: ClusterState) -> None:
        """Take one folded record."""
        use = self.use
        use.note(state, effects)
        if effects.workloads:
            self.lives.note(effects, state)
        event = record.event
        if use.healthy is not self._machines.healthy or type(event) is NodeInventoryReported:
            self._machines.note(use.healthy, state)
        if isinstance(event, RoundProposed):
            self._note_round(event, record.cursor, state)
        if state.now_ms >= self._from_ms:
            self._records += 1
            if state.now_ms >= self._next_sample_ms:
                self._sample(state)

    def outcomes(self, state: ClusterState, *, until_ms: int) -> Outcomes:
        """Sum up what was observed, up to a moment at or after the last record."""
        self.use.settle(until_ms)
        self.use.forget(self._from_ms)
        healthy_gpu_ms, installed_gpu_ms = self._machines.until(until_ms)
        workloads, runs, promises = self.lives.tables()
        asked = [row for row, at_ms in enumerate(workloads.submitted_ms) if at_ms >= self._from_ms]
        groups = _groups(workloads, asked)
        waiting = [
            row
            for row in asked
            if workloads.started_ms[row] == NEVER
            and workloads.phase[row] == ALIVE
            and state.workloads[workloads.ids[row]].phase in (Phase.QUEUED, Phase.PLANNED)
        ]
        first = min(waiting, key=lambda row: (workloads.submitted_ms[row], workloads.ids[row]), default=None)
        finished = Counter(
            PHASES[phase].value
            for phase, ended_ms in zip(workloads.phase, workloads.ended_ms, strict=True)
            if ended_ms >= self._from_ms and phase != ALIVE
        )
        lost = _lost(runs, self._from_ms)
        counts = self.lives.preemptions
        waits = {name: _waits(workloads, rows) for name, rows in groups.items()}
        return Outcomes(
            since_ms=self._since_ms if self._since_ms is not None else until_ms,
            until_ms=until_ms,
            records=self._records,
            rounds=self._rounds,
            submitted=len(asked),
            started=sum(workloads.started_ms[row] != NEVER for row in asked),
            finished=dict(sorted(finished.items())),
            running=sum(workload.run is not None for workload in state.workloads.values()),
            waiting=len(waiting),
            longest_waiting=None if first is None else workloads.ids[first],
            longest_waiting_ms=None if first is None else until_ms - workloads.submitted_ms[first],
            preempted_allocated=counts.allocated,
            preempted_unallocated=counts.unallocated,
            swap_backs=counts.swap_backs,
            evicted_gpus=counts.evicted_gpus,
            claimed_gpus=counts.claimed_gpus,
            taken_by=dict(sorted(counts.pairs.items())),
            lost_to_preemption_gpu_ms=lost[RunEnd.PREEMPTED],
            lost_to_nodes_gpu_ms=lost[RunEnd.DRAINED] + lost[RunEnd.LOST],
            cluster=self._team(state, ROOT, _waits(workloads, asked)),
            teams=[
                self._team(state, budget.id, waits.get(_team_group(budget.id), Waits.of(())))
                for budget in state.budgets.leaves()
            ],
            waits_by_class={name.value: waits[name] for name in WorkClass},
            waits_by_size={name: waits[name] for _, name in GANG_SIZES},
            slowdowns_by_class={name.value: _slowdowns(workloads, groups[name]) for name in WorkClass},
            reservation_waits=_reservation_waits(promises),
            reservations_given_up=sum(started_ms == NEVER for started_ms in promises.started_ms),
            healthy_gpu_ms=healthy_gpu_ms,
            installed_gpu_ms=installed_gpu_ms,
            ratios=self._ratios,
            fragmentation=self._fragmentation,
            peak_gpus=self._peak_gpus,
            workloads=workloads,
            runs=runs,
        )

    def _team(self, state: ClusterState, budget_id: str, waits: Waits) -> TeamOutcome:
        budget = state.budgets.root if budget_id == ROOT else state.budgets.get(budget_id)
        hours = self.use.hours(budget_id)
        return TeamOutcome(
            budget=budget_id,
            quota_nano=budget.quota_nano if budget is not None else 0,
            use=sum(hours.values(), Use()),
            by_hour=Delivery.over(hours.values()),
            by_day=Delivery.over(self.use.days(budget_id).values()),
            waits=waits,
            hours=hours,
        )

    def _note_round(self, proposal: RoundProposed, cursor: int, state: ClusterState) -> None:
        self.lives.note_decision(proposal, cursor, state)
        now_ms = state.now_ms
        if now_ms < self._from_ms:
            return
        self._rounds += 1
        if now_ms >= self._next_room_ms:
            self._next_room_ms = _next_hour(now_ms)
            self._fragmentation.append(fragmentation(state))

    def _sample(self, state: ClusterState) -> None:
        now_ms = state.now_ms
        if self._since_ms is None:
            self._since_ms = now_ms
        self._next_sample_ms = _next_hour(now_ms)
        self._peak_gpus = max(self._peak_gpus, state.inventory.capacity_gpus)
        for leaf in state.budgets.leaves():
            series = self._ratios.setdefault(leaf.id, RatioSeries())
            series.at_ms.append(now_ms)
            series.used_gpu_ms.append(leaf.charged_gpu_ms(now_ms) + leaf.committed_gpu_ms(now_ms))
            series.entitled_gpu_ms.append(leaf.entitled_gpu_ms(now_ms))


class _Machines:
    """GPU-time of the nodes that took work, and of all, exact to the millisecond."""

    def __init__(self, from_ms: int) -> None:
        #: As of `HourlyUse.healthy`.
        self.healthy: object = ()
        self._from_ms = self._since_ms = from_ms
        self._healthy_gpus = self._installed_gpus = 0
        self._healthy_gpu_ms = self._installed_gpu_ms = 0

    def note(self, healthy: object, state: ClusterState) -> None:
        """Take the levels that hold from now on."""
        self._healthy_gpu_ms, self._installed_gpu_ms = self.until(state.now_ms)
        self._since_ms = max(self._from_ms, state.now_ms)
        self.healthy = healthy
        pools = state.inventory.pools.values()
        self._healthy_gpus = sum(gpus * nodes for pool in pools for gpus, nodes in enumerate(pool.healthy.counts))
        self._installed_gpus = sum(pool.installed_gpus for pool in pools)

    def until(self, now_ms: int) -> tuple[int, int]:
        """Return healthy and installed GPU-time up to a moment."""
        span_ms = max(0, now_ms - self._since_ms)
        return (
            self._healthy_gpu_ms + self._healthy_gpus * span_ms,
            self._installed_gpu_ms + self._installed_gpus * span_ms,
        )


def _next_hour(now_ms: int) -> int:
    return (now_ms // HOUR + 1) * HOUR


def _groups(table: WorkloadTable, rows: Iterable[int]) -> dict[str, list[int]]:
    """Return rows by what they are reported under: class, size, team. A row is in several."""
    groups: dict[str, list[int]] = {name: [] for name in (*WorkClass, *(name for _, name in GANG_SIZES))}
    teams = [groups.setdefault(_team_group(name), []) for name in table.budgets]
    for row in rows:
        gpus, min_runtime_ms = table.gpus[row], table.min_runtime_ms[row]
        groups[WorkClass.ALLOCATED if min_runtime_ms else WorkClass.UNALLOCATED].append(row)
        if is_short(gpus, min_runtime_ms):
            groups[WorkClass.SHORT].append(row)
        groups[gang_size_of(gpus)].append(row)
        teams[table.budget[row]].append(row)
    return groups


def _team_group(budget: str) -> str:
    """Return the name of a team's group: no budget may be called so, and none is taken for a class."""
    return f"/{budget}"


def _waits(table: WorkloadTable, rows: Iterable[int]) -> Waits:
    return Waits.of(table.started_ms[row] - table.submitted_ms[row] for row in rows if table.started_ms[row] != NEVER)


def _slowdowns(table: WorkloadTable, rows: Iterable[int]) -> Slowdowns:
    succeeded = PHASES.index(Phase.SUCCEEDED)
    return Slowdowns.of(
        bounded_slowdown_milli(table.ended_ms[row] - table.submitted_ms[row], table.served_ms[row])
        for row in rows
        if table.phase[row] == succeeded
    )


def _reservation_waits(table: PromiseTable) -> Waits:
    pairs = zip(table.since_ms, table.started_ms, strict=True)
    return Waits.of(started_ms - since_ms for since_ms, started_ms in pairs if started_ms != NEVER)


def _lost(table: RunTable, from_ms: int) -> dict[RunEnd, int]:
    """Return the GPU-time that was lost, by how the runs ended."""
    lost = dict.fromkeys(RUN_ENDS, 0)
    for end, released_ms, lost_gpu_ms in zip(table.end, table.released_ms, table.lost_gpu_ms, strict=True):
        if released_ms >= from_ms:
            lost[RUN_ENDS[end]] += lost_gpu_ms
    return lost


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
