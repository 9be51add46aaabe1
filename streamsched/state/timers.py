"""What time alone brings about: nothing here is state, and all of it can be set again from the workloads.

A timer is never withdrawn, only overtaken: it counts while its workload is still where it was when the timer was set.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import TYPE_CHECKING

from streamsched.state.workloads import Phase, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamsched.model.policy import Policy
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Node
    from streamsched.state.recoveries import Recovering
    from streamsched.state.reservations import Reservation


class Due(IntEnum):
    """What comes due for a workload at a moment; at one moment in this order."""

    HOLD_OVER = 0
    #: Before the plans that wait for the run: they fail with its node, and may be made anew at once.
    STOP_OVERDUE = 1
    PLAN_EXPIRES = 2
    START_DEADLINE = 3
    TIMEOUT = 4
    #: It has waited long enough for others to be preempted for it, or for nodes to be reserved.
    PATIENCE_OVER = 5
    RESERVATION_DUE = 6
    RESERVATION_OVER = 7
    #: An interactive session is told that its protection is about to end.
    WARNING = 8
    #: A recovery in vain may move more of its gang.
    RECOVERY_WIDENS = 9


#: What the deadline of a run means in each phase.
_DUE_IN = {
    Phase.PLANNED: Due.PLAN_EXPIRES,
    Phase.BOUND: Due.START_DEADLINE,
    Phase.RUNNING: Due.TIMEOUT,
    Phase.STOPPING: Due.STOP_OVERDUE,
}

#: When, what, and for which attempt (of a reservation: which cursor) of which workload.
_Timer = tuple[int, Due, str, int]


class Timers:
    """The deadlines and protections ahead, earliest first."""

    __slots__ = ("_deadlines", "_holds", "_protections")

    def __init__(self) -> None:
        self._deadlines: list[_Timer] = []
        self._protections: list[tuple[int, str, int]] = []
        self._holds: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._deadlines) + len(self._protections) + len(self._holds)

    def set(self, workload: Workload) -> None:
        """Set what its present phase brings: the end of its back-off, or the deadline of its run."""
        run = workload.run
        if run is None:
            heapq.heappush(self._deadlines, (workload.held_until_ms, Due.HOLD_OVER, workload.id, workload.attempt))
        elif run.deadline_ms is not None and workload.phase in _DUE_IN:
            heapq.heappush(self._deadlines, (run.deadline_ms, _DUE_IN[workload.phase], workload.id, workload.attempt))

    def await_patience(self, workload: Workload, policy: Policy, now_ms: int) -> None:
        """Set when a waiting workload may have others preempted for it, and when nodes may be reserved for it."""
        for due_ms in _moments_of(workload, policy):
            if due_ms > now_ms:
                heapq.heappush(self._deadlines, (due_ms, Due.PATIENCE_OVER, workload.id, workload.attempt))

    def reserve(self, reservation: Reservation, overrun_ms: int) -> None:
        """Set the start and the end of a reservation."""
        due_ms, id_ = reservation.start_ms, reservation.workload
        heapq.heappush(self._deadlines, (due_ms, Due.RESERVATION_DUE, id_, reservation.cursor))
        heapq.heappush(self._deadlines, (due_ms + overrun_ms, Due.RESERVATION_OVER, id_, reservation.cursor))

    def protect(self, workload: Workload, until_ms: int) -> None:
        """Set the end of a run's protection."""
        heapq.heappush(self._protections, (until_ms, workload.id, workload.attempt))

    def warn(self, workload: Workload) -> None:
        """Set when an interactive session is warned."""
        if workload.run is not None and workload.run.warn_ms is not None:
            heapq.heappush(self._deadlines, (workload.run.warn_ms, Due.WARNING, workload.id, workload.attempt))

    def recover(self, recovery: Recovering, attempt: int) -> None:
        """Set when a recovery widens."""
        if recovery.widens_ms is not None:
            heapq.heappush(self._deadlines, (recovery.widens_ms, Due.RECOVERY_WIDENS, recovery.workload, attempt))

    def hold_down(self, node: Node) -> None:
        """Set when a node that is held down takes work again."""
        if node.held_down_until_ms is not None:
            heapq.heappush(self._holds, (node.held_down_until_ms, node.id))

    def next_ms(self, state: ClusterState) -> int | None:
        """Return when the next deadline or end of a protection comes due; forgets those that were overtaken."""
        deadlines, protections = self._deadlines, self._protections
        while deadlines and not _is_pending(deadlines[0], state):
            heapq.heappop(deadlines)
        while protections and _protected(protections[0], state.workloads) is None:
            heapq.heappop(protections)
        holds = self._holds
        while holds and not _is_held_down(holds[0], state.nodes):
            heapq.heappop(holds)
        first = deadlines[0][0] if deadlines else None
        if protections and (first is None or protections[0][0] < first):
            first = protections[0][0]
        if holds and (first is None or holds[0][0] < first):
            first = holds[0][0]
        return first

    def is_any_due(self, now_ms: int) -> bool:
        """Whether a deadline or a protection ends by now, or seems to."""
        if self._deadlines and self._deadlines[0][0] <= now_ms:
            return True
        if self._holds and self._holds[0][0] <= now_ms:
            return True
        return bool(self._protections) and self._protections[0][0] <= now_ms

    def come_due(self, state: ClusterState) -> Iterator[tuple[Due, Workload]]:
        """Yield what comes due by now, in order; what one does may overtake the next."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= state.now_ms:
            timer = heapq.heappop(deadlines)
            if _is_pending(timer, state):
                yield timer[1], state.workloads[timer[2]]

    def protections_over(self, now_ms: int, workloads: Mapping[str, Workload]) -> Iterator[Workload]:
        """Yield the workloads whose protection has ended by now."""
        protections = self._protections
        while protections and protections[0][0] <= now_ms:
            workload = _protected(heapq.heappop(protections), workloads)
            if workload is not None:
                yield workload

    def holds_over(self, now_ms: int, nodes: Mapping[str, Node]) -> Iterator[Node]:
        """Yield the nodes that need not be held down any longer."""
        holds = self._holds
        while holds and holds[0][0] <= now_ms:
            hold = heapq.heappop(holds)
            if _is_held_down(hold, nodes):
                yield nodes[hold[1]]


def _is_held_down(hold: tuple[int, str], nodes: Mapping[str, Node]) -> bool:
    node = nodes.get(hold[1])
    return node is not None and node.held_down_until_ms == hold[0]


def _protected(protection: tuple[int, str, int], workloads: Mapping[str, Workload]) -> Workload | None:
    """Return the workload whose run is still under this protection."""
    until_ms, id_, attempt = protection
    workload = workloads.get(id_)
    if workload is None or workload.phase is not Phase.RUNNING or workload.run is None:
        return None
    return workload if (workload.run.attempt, workload.run.protected_until_ms) == (attempt, until_ms) else None


def _is_pending(timer: _Timer, state: ClusterState) -> bool:
    due_ms, due, id_, number = timer
    if due is Due.RESERVATION_DUE or due is Due.RESERVATION_OVER:
        reservation = state.reservations.get(id_)
        return reservation is not None and reservation.cursor == number
    workload = state.workloads.get(id_)
    if workload is None or workload.attempt != number:
        return False
    if due is Due.HOLD_OVER:
        is_held = workload.run is None and workload.queue_key is None and id_ not in state.recoveries
        return is_held and workload.held_until_ms == due_ms
    if due is Due.RECOVERY_WIDENS:
        return id_ in state.recoveries and state.recoveries[id_].widens_ms == due_ms
    if due is Due.PATIENCE_OVER:
        return workload.queue_key is not None and due_ms in _moments_of(workload, state.policy)
    if due is Due.WARNING:
        return workload.phase is Phase.RUNNING and workload.run is not None and workload.run.warn_ms == due_ms
    # The time is compared too: an id that was forgotten may live again, with attempts from 1.
    return _DUE_IN.get(workload.phase) is due and workload.run is not None and workload.run.deadline_ms == due_ms


def _moments_of(workload: Workload, policy: Policy) -> list[int]:
    """Return when a waiting workload may have others preempted for it, and when nodes may be reserved for it."""
    if not workload.is_allocated:
        return []
    moments = [workload.queued_ms + policy.patience_ms]
    if workload.ranks > 1 and policy.reservations:
        moments.append(workload.queued_ms + policy.reserve_after_ms)
    return moments
