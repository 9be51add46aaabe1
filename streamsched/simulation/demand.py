"""Demand: what people ask for, when, and how long it would truly run.

It is listed beforehand, or comes from a source that sees how full the queue is. `streamsched.simulation.traces` reads
it from trace files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from streamsched.model.events import BudgetTreeChanged, WorkloadSubmitted
from streamsched.model.quantities import HOUR, MINUTE, WHOLE

if TYPE_CHECKING:
    from streamsched.state.cluster import ClusterState

#: What people write as a min runtime.
USUAL_MIN_RUNTIMES_MS: Final = (5 * MINUTE, 15 * MINUTE, 30 * MINUTE, 1 * HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR)


@dataclass(frozen=True, slots=True)
class Submission:
    """One workload, when it is asked for, and how long it would run if nobody stopped it."""

    at_ms: int
    workload: WorkloadSubmitted
    run_ms: int


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """A row of a trace that is no job.

    Attributes:
        line: Where it stands, counted from 1.
        reason: What is wrong with it, with its value.
        kind: The same without the value, so that rows can be counted by it.
    """

    line: int
    reason: str
    kind: str


@dataclass(frozen=True, slots=True)
class Demand:
    """What a cluster is asked for.

    Attributes:
        submissions: In order of time, those of one moment in the order of the trace.
        budgets: The tree of budgets that pay for it.
        dropped: Rows of the trace that were no jobs.
    """

    submissions: tuple[Submission, ...]
    budgets: BudgetTreeChanged
    dropped: tuple[DroppedRow, ...] = ()


class Source(Protocol):
    """Whoever submits, one workload at a time, in order of time."""

    @property
    def budgets(self) -> BudgetTreeChanged:
        """The tree of budgets that pay."""
        ...

    @property
    def next_due_ms(self) -> int | None:
        """When somebody next thinks of submitting; None when nobody does any more."""
        ...

    def next_submission(self, now_ms: int, state: ClusterState) -> WorkloadSubmitted | None:
        """Take the next submission due by now, or None when there is none yet. People may look at the queue first."""
        ...


@dataclass(slots=True)
class _Listed:
    """A list that is submitted whatever the queue is like."""

    budgets: BudgetTreeChanged
    submissions: tuple[Submission, ...]
    following: int = 0

    @property
    def next_due_ms(self) -> int | None:
        return self.submissions[self.following].at_ms if self.following < len(self.submissions) else None

    def next_submission(self, now_ms: int, state: ClusterState) -> WorkloadSubmitted | None:  # noqa: ARG002
        if self.following == len(self.submissions) or self.submissions[self.following].at_ms > now_ms:
            return None
        self.following += 1
        return self.submissions[self.following - 1].workload


def listed(demand: Demand) -> Source:
    """Return a source that submits what a demand lists."""
    return _Listed(demand.budgets, demand.submissions)


def declared_min_runtime_ms(run_ms: int, cap_ms: int) -> int:
    """Return the usual min runtime that covers a run, or the longest within the cap when none does.

    >>> declared_min_runtime_ms(20 * MINUTE, 8 * HOUR) == 30 * MINUTE
    True
    >>> declared_min_runtime_ms(9 * DAY, 8 * HOUR) == 8 * HOUR
    True
    """
    within = [usual for usual in USUAL_MIN_RUNTIMES_MS if usual <= cap_ms] or [cap_ms]
    return next((usual for usual in within if usual >= run_ms), within[-1])


@lru_cache(maxsize=1_024)
def gang_of(gpus: int, gpus_per_node: int = 8) -> tuple[int, int]:
    """Return ranks and GPUs of each for a number of GPUs: the fewest equal ranks that fit on a node each.

    >>> gang_of(4), gang_of(32), gang_of(12), gang_of(11)
    ((1, 4), (4, 8), (2, 6), (11, 1))
    """
    ranks = next(ranks for ranks in range(1, gpus + 1) if gpus % ranks == 0 and gpus // ranks <= gpus_per_node)
    return ranks, gpus // ranks


def shares_of(sizes: dict[str, int]) -> list[tuple[str, int]]:
    """Return each size as parts of `WHOLE`, by largest remainder, so that they add up to the whole; sorted by name.

    >>> shares_of({"b": 1, "a": 1, "c": 1})
    [('a', 333333334), ('b', 333333333), ('c', 333333333)]
    """
    total = sum(sizes.values())
    names = sorted(sizes)
    if not total:
        return [(name, 0) for name in names]
    parts = {name: divmod(sizes[name] * WHOLE, total) for name in names}
    missing = WHOLE - sum(whole for whole, _ in parts.values())
    rounded_up = sorted(names, key=lambda name: (-parts[name][1], name))[:missing]
    return [(name, parts[name][0] + (name in rounded_up)) for name in names]
