"""What time alone brings about: nothing here is state, and all of it can be set again from the workloads.

A timer is never withdrawn, only overtaken: it counts while its workload is still where it was when the timer was set.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import TYPE_CHECKING

from streamsched.state.workloads import Commitment, Phase, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Due(IntEnum):
    """What comes due for a workload at a moment; at one moment in this order."""

    HOLD_OVER = 0
    PLAN_EXPIRES = 1
    START_DEADLINE = 2
    TIMEOUT = 3


#: What the deadline of a run means in each phase.
_DUE_IN = {Phase.PLANNED: Due.PLAN_EXPIRES, Phase.BOUND: Due.START_DEADLINE, Phase.RUNNING: Due.TIMEOUT}

#: When, what, and for which attempt of which workload.
_Timer = tuple[int, Due, str, int]


class Timers:
    """The deadlines and protections ahead, earliest first."""

    __slots__ = ("_deadlines", "_protections")

    def __init__(self) -> None:
        self._deadlines: list[_Timer] = []
        self._protections: list[tuple[int, str, int]] = []

    def __len__(self) -> int:
        return len(self._deadlines) + len(self._protections)

    def set(self, workload: Workload) -> None:
        """Set what its present phase brings: the end of its back-off, or the deadline of its run."""
        run = workload.run
        if run is None:
            heapq.heappush(self._deadlines, (workload.held_until_ms, Due.HOLD_OVER, workload.id, workload.attempt))
        elif run.deadline_ms is not None and workload.phase in _DUE_IN:
            heapq.heappush(self._deadlines, (run.deadline_ms, _DUE_IN[workload.phase], workload.id, workload.attempt))

    def protect(self, workload: Workload, until_ms: int) -> None:
        """Set the end of a run's protection. It wakes nobody: nothing is decided on it yet."""
        heapq.heappush(self._protections, (until_ms, workload.id, workload.attempt))

    def next_ms(self, workloads: Mapping[str, Workload]) -> int | None:
        """Return when the next deadline comes due; forgets those that were overtaken."""
        deadlines = self._deadlines
        while deadlines and not _is_pending(deadlines[0], workloads):
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def is_any_due(self, now_ms: int) -> bool:
        """Whether a deadline or a protection ends by now, or seems to."""
        if self._deadlines and self._deadlines[0][0] <= now_ms:
            return True
        return bool(self._protections) and self._protections[0][0] <= now_ms

    def come_due(self, now_ms: int, workloads: Mapping[str, Workload]) -> Iterator[tuple[Due, Workload]]:
        """Yield what comes due by now, in order; what one does may overtake the next."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            timer = heapq.heappop(deadlines)
            if _is_pending(timer, workloads):
                yield timer[1], workloads[timer[2]]

    def protections_over(self, now_ms: int, workloads: Mapping[str, Workload]) -> Iterator[Workload]:
        """Yield the workloads whose protection has ended by now."""
        protections = self._protections
        while protections and protections[0][0] <= now_ms:
            until_ms, id_, attempt = heapq.heappop(protections)
            workload = workloads.get(id_)
            run = workload.run if workload is not None else None
            if (
                workload is not None
                and run is not None
                and run.commitment is Commitment.REST
                and (run.attempt, run.protected_until_ms) == (attempt, until_ms)
            ):
                yield workload


def _is_pending(timer: _Timer, workloads: Mapping[str, Workload]) -> bool:
    due_ms, due, id_, attempt = timer
    workload = workloads.get(id_)
    if workload is None or workload.attempt != attempt:
        return False
    if due is Due.HOLD_OVER:
        return workload.run is None and workload.queue_key is None and workload.held_until_ms == due_ms
    # The time is compared too: an id that was forgotten may live again, with attempts from 1.
    return _DUE_IN.get(workload.phase) is due and workload.run is not None and workload.run.deadline_ms == due_ms
