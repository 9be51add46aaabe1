"""Demand as at a research institute of Ai2's shape: made up, seeded, and closed-loop.

1,024 GPUs on 128 nodes, 15 teams in four programmes. Each team has people who debug, who run single jobs and sweeps,
and who train on gangs; what a team asks for is in proportion to its quota, and rises and falls with campaigns of some
days, with seasons of all, with the week and with the hour. The loop is closed: whoever finds a long queue in front of
the own team does not submit. Debugging goes on whatever the queue, and unallocated work is offered as long as not too
much of it waits.

Each stream of one team and one kind of work draws from its own seed, in the same order whatever the scheduler does, so
that two policies meet the same people with the same ideas. All draws are integers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heapify, heapreplace
from random import Random
from typing import TYPE_CHECKING, Final

from streamsched.model.events import BudgetShare, BudgetTreeChanged, WorkloadSubmitted
from streamsched.model.quantities import DAY, HOUR, MINUTE, WHOLE
from streamsched.node.virtual_node import sleep_argv
from streamsched.simulation.demand import declared_min_runtime_ms, gang_of

if TYPE_CHECKING:
    from streamsched.state.cluster import ClusterState

NODES: Final = 128
GPUS_PER_NODE: Final = 8
GPUS: Final = NODES * GPUS_PER_NODE

#: Programmes with their share of the cluster, and their teams with the share of the programme; in percent.
PROGRAMMES: Final = {
    "language": (40, {"pretraining": 45, "posttraining": 25, "data": 15, "evaluation": 15}),
    "vision": (25, {"multimodal": 50, "video": 25, "robotics": 15, "maps": 10}),
    "science": (20, {"climate": 35, "biology": 30, "agents": 20, "papers": 15}),
    "platform": (15, {"inference": 50, "safety": 30, "tools": 20}),
}


@dataclass(frozen=True, slots=True)
class Load:
    """How much people ask for.

    Attributes:
        appetite_percent: Allocated GPU-time that the people of a team think of, of what its quota is worth.
        patience_percent: They submit while no more GPUs wait for their team than this, in percent of its quota.
        quiet_percent: What is left of that in quiet seasons.
    """

    appetite_percent: int
    patience_percent: int
    quiet_percent: int


#: Moderate, with quiet seasons in which hardly anybody but debuggers works; and high.
LOAD_M: Final = Load(appetite_percent=290, patience_percent=420, quiet_percent=5)
LOAD_H: Final = Load(appetite_percent=290, patience_percent=480, quiet_percent=20)
LOADS: Final = {"M": LOAD_M, "H": LOAD_H}

#: Unallocated workloads that wait when nobody offers more.
_SPARE_WAITING: Final = 200
#: Unallocated GPU-time that a team thinks of, of what its quota is worth, in percent: always more than there is.
_SPARE_APPETITE: Final = 100


@dataclass(frozen=True, slots=True)
class _Kind:
    """One way of working.

    Attributes:
        percent: Of the GPU-time that people think of.
        gpus: Sizes, equally likely.
        run_ms: Ranges of true run times, both ends included, equally likely.
        batch: How many are submitted at once, both ends included.
    """

    name: str
    percent: int
    gpus: tuple[int, ...]
    run_ms: tuple[tuple[int, int], ...]
    batch: tuple[int, int] = (1, 1)

    @property
    def mean_gpu_ms(self) -> int:
        """GPU-time of one batch on average."""
        run_ms = sum(low + high for low, high in self.run_ms) // (2 * len(self.run_ms))
        return sum(self.gpus) * run_ms * sum(self.batch) // (2 * len(self.gpus))


_DEBUG: Final = _Kind("debug", 1, (1, 1, 1, 2, 2, 4, 8), ((2 * MINUTE, 15 * MINUTE),), (1, 3))
_SPARE: Final = _Kind("spare", 100, (1, 2, 4, 8, 8), ((30 * MINUTE, 4 * HOUR), (4 * HOUR, 24 * HOUR)), (4, 32))
_KINDS: Final = (
    _DEBUG,
    _Kind(
        "single",
        19,
        (1, 1, 2, 4, 8, 8),
        ((15 * MINUTE, 2 * HOUR), (2 * HOUR, 8 * HOUR), (8 * HOUR, 36 * HOUR)),
        (1, 4),
    ),
    _Kind("sweep", 20, (1, 2, 4, 8), ((30 * MINUTE, 2 * HOUR), (2 * HOUR, 8 * HOUR)), (8, 48)),
    _Kind("gang", 35, (16, 16, 32, 32, 64), ((2 * HOUR, 12 * HOUR), (12 * HOUR, 60 * HOUR))),
    _Kind("large", 25, (96, 128, 128, 192, 256), ((6 * HOUR, 24 * HOUR), (24 * HOUR, 96 * HOUR))),
    _SPARE,
)

#: How busy people are by hour of the day and by day of the week, in percent; both are 100 on average.
_HOURS: Final = (
    50,
    40,
    35,
    30,
    30,
    30,
    40,
    60,
    100,
    150,
    180,
    190,
    170,
    170,
    190,
    190,
    180,
    150,
    120,
    100,
    70,
    45,
    40,
    40,
)
_DAYS: Final = (125, 125, 125, 125, 110, 45, 45)
#: And in a campaign of some days; equally likely.
_CAMPAIGNS: Final = (30, 60, 80, 100, 130, 200)
_CAMPAIGN_MS: Final = (2 * DAY, 7 * DAY)
#: Everybody is busy for some days, and then many are not: before a deadline, and after it.
_BUSY_MS: Final = (4 * DAY, 7 * DAY)
_QUIET_MS: Final = (4 * DAY, 6 * DAY)
#: The most that all of it comes to: people think so much more often, and then mostly let it be.
_BUSY_MOST: Final = 400

#: Priorities, equally likely; debugging is above all of them.
_PRIORITIES: Final = (-1, 0, 0, 0, 1)
_DEBUG_PRIORITY: Final = 2
#: The shortest useful stretch that people declare; None is all of it.
_DECLARED: Final = (None, None, 1 * HOUR, 2 * HOUR, 4 * HOUR)


class Institute:
    """A source of submissions; see the head of this module.

    Args:
        load: How much is asked for.
        seed: Equal seeds give the same people.
        since_ms: When they begin to work.
        until_ms: When they stop.
        min_runtime_cap_ms: The longest min runtime that the policy admits.
    """

    def __init__(
        self, load: Load, seed: int, *, since_ms: int, until_ms: int, min_runtime_cap_ms: int = 8 * HOUR
    ) -> None:
        self.budgets = BudgetTreeChanged(change="institute", reason="the programmes and their teams", budgets=_shares())
        self._load = load
        self._until_ms = until_ms
        self._cap_ms = min_runtime_cap_ms
        teams = [
            (f"{programme}/{team}", GPUS * share * part)
            for programme, (share, parts) in PROGRAMMES.items()
            for team, part in parts.items()
        ]
        seasons = _seasons(Random(f"{seed}/seasons"), load, since_ms, until_ms)
        self._busy = {
            budget: {
                day: busy * seasons[day] // 100
                for day, busy in _campaigns(Random(f"{seed}/{budget}"), since_ms, until_ms).items()
            }
            for budget, _ in teams
        }
        #: The next thought of each stream; a heap.
        self._thoughts = [
            _Stream(kind, budget, ten_thousandths, load, Random(f"{seed}/{budget}/{kind.name}"), since_ms)
            for budget, ten_thousandths in teams
            for kind in _KINDS
        ]
        self._thoughts_due = [(stream.next_ms, number) for number, stream in enumerate(self._thoughts)]
        heapify(self._thoughts_due)
        self._asked: deque[WorkloadSubmitted] = deque()

    @property
    def next_due_ms(self) -> int | None:
        """When somebody next thinks of submitting."""
        due_ms = self._thoughts_due[0][0]
        return due_ms if due_ms < self._until_ms else None

    def next_submission(self, now_ms: int, state: ClusterState) -> WorkloadSubmitted | None:
        """Take the next submission due by now, or None."""
        while not self._asked:
            due_ms, number = self._thoughts_due[0]
            if due_ms > now_ms or due_ms >= self._until_ms:
                return None
            stream = self._thoughts[number]
            busy_percent = 100 if stream.kind is _SPARE else self._busy[stream.budget][due_ms // DAY]
            batch = stream.think(busy_percent, self._cap_ms)
            if batch and self._submits(stream, state):
                self._asked.extend(batch)
            heapreplace(self._thoughts_due, (stream.next_ms, number))
        return self._asked.popleft()

    def _submits(self, stream: _Stream, state: ClusterState) -> bool:
        """Whether people are content with the queue that they find."""
        if stream.kind is _SPARE:
            return state.unallocated.size < _SPARE_WAITING
        if stream.kind is _DEBUG:
            return True
        team = state.budgets.get(stream.budget)
        waiting = team.queued_gpus if team is not None else 0
        return waiting * 10_000 * 100 < stream.ten_thousandths * self._load.patience_percent


class _Stream:
    """The ideas of one team for one kind of work."""

    __slots__ = ("_count", "_gap_ms", "_random", "budget", "kind", "next_ms", "ten_thousandths")

    def __init__(
        self, kind: _Kind, budget: str, ten_thousandths: int, load: Load, random: Random, since_ms: int
    ) -> None:
        self.kind = kind
        self.budget = budget
        #: GPUs of the team's quota, in parts of 10,000 of a GPU.
        self.ten_thousandths = ten_thousandths
        appetite = _SPARE_APPETITE if kind is _SPARE else load.appetite_percent
        worth = ten_thousandths * appetite * kind.percent * _BUSY_MOST
        self._gap_ms = max(1, kind.mean_gpu_ms * 10_000 * 100 * 100 * 100 // worth)
        self._random = random
        self._count = 0
        self.next_ms = since_ms + random.randrange(2 * self._gap_ms)

    def think(self, busy_percent: int, cap_ms: int) -> list[WorkloadSubmitted]:
        """Return what would be submitted now, often nothing; and set when there is the next thought."""
        random, kind = self._random, self.kind
        at_ms = self.next_ms
        self.next_ms += 1 + random.randrange(2 * self._gap_ms)
        busy = busy_percent * _HOURS[at_ms % DAY // HOUR] * _DAYS[(at_ms // DAY + 3) % 7] // 10_000
        if random.randrange(_BUSY_MOST) >= busy:
            return []
        gpus, (shortest_ms, longest_ms) = random.choice(kind.gpus), random.choice(kind.run_ms)
        priority = _DEBUG_PRIORITY if kind is _DEBUG else random.choice(_PRIORITIES)
        batch = []
        for _ in range(random.randint(*kind.batch)):
            run_ms = random.randint(shortest_ms, longest_ms)
            declared_ms = declared_min_runtime_ms(min(run_ms, random.choice(_DECLARED) or run_ms), cap_ms)
            ranks, gpus_per_rank = gang_of(gpus)
            self._count += 1
            batch.append(
                WorkloadSubmitted(
                    workload=f"{self.budget.replace('/', '-')}-{kind.name}-{self._count}",
                    budget=self.budget,
                    ranks=ranks,
                    gpus_per_rank=gpus_per_rank,
                    min_runtime_ms=0 if kind is _SPARE else declared_ms,
                    resumable=True,
                    priority=priority,
                    command=sleep_argv(run_ms),
                )
            )
        return batch


def _shares() -> tuple[BudgetShare, ...]:
    percent = WHOLE // 100
    return tuple(
        BudgetShare(budget=budget, fraction_nano=share * percent)
        for programme, (whole, parts) in PROGRAMMES.items()
        for budget, share in ((programme, whole), *((f"{programme}/{team}", part) for team, part in parts.items()))
    )


def _campaigns(random: Random, since_ms: int, until_ms: int) -> dict[int, int]:
    """Return how busy a team is on each day, in percent."""
    days: dict[int, int] = {}
    day = since_ms // DAY
    while day <= until_ms // DAY:
        busy = random.choice(_CAMPAIGNS)
        for _ in range(random.randint(*_CAMPAIGN_MS) // DAY):
            days[day] = busy
            day += 1
    return {day: busy for day, busy in days.items() if day <= until_ms // DAY}


def _seasons(random: Random, load: Load, since_ms: int, until_ms: int) -> dict[int, int]:
    """Return how busy everybody is on each day, in percent."""
    days: dict[int, int] = {}
    day = since_ms // DAY
    while day <= until_ms // DAY:
        for busy, span_ms in ((100, _BUSY_MS), (load.quiet_percent, _QUIET_MS)):
            for _ in range(random.randint(*span_ms) // DAY):
                days[day] = busy
                day += 1
    return days
