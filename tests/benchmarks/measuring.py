"""How things are measured here, and what a measurement says.

Time is the process time of this process, so that a neighbour on the machine costs little; and what is compared is
measured in turns, so that what the machine does to one it does to the other.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Bound(StrEnum):
    """On which side of a limit a result must be."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclass(frozen=True, slots=True)
class Limit:
    """What we promise."""

    bound: Bound
    value: float

    def __str__(self) -> str:
        return f"{self.bound.value} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the results.

    Attributes:
        what: What was measured, in words.
        value: The number.
        unit: Of the number; a ratio has none.
        limit: What it must not pass; None for what is only reported.
    """

    what: str
    value: float
    unit: str = ""
    limit: Limit | None = None

    @property
    def is_met(self) -> bool:
        """Whether the limit is kept; what has none always is."""
        if self.limit is None:
            return True
        within = self.value <= self.limit.value
        return within if self.limit.bound is Bound.AT_MOST else self.value >= self.limit.value


def seconds(work: Callable[[], object], *, collect: bool = True) -> float:
    """Return the process time that `work` takes.

    Args:
        work: What is measured.
        collect: Collect the garbage of earlier work before; for what takes microseconds that is too much.
    """
    if collect:
        gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def seconds_in_turns(works: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Return the process times of several works, run one after the other, `rounds` times over."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for index, work in enumerate(works):
            times[index].append(seconds(work))
    return times


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Return the median over the turns of the ratio within one turn.

    >>> median_ratio([1.0, 30.0, 4.0], [2.0, 10.0, 8.0])
    0.5
    """
    return statistics.median(one / other for one, other in zip(numerators, denominators, strict=True))
