"""What was looked at in vain, and until when that holds: so that nothing is looked at again before it may have changed.

A candidate that could not be seated is blocked by room, by protection or by the order of the budgets. Room comes back
with an event, and protection ends at a known time. The order moves with time, but no faster than GPU-time can be used,
so the distance by which a comparison failed says how much must happen before it can turn out otherwise.

A memory changes no decision: whoever has none looks at everything each time, and proposes the same.

Source: `fair-share.md`, section 4.11.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamsched.model.policy import Order, UsageMode
from streamsched.scheduling.guard import refusals, rival_of
from streamsched.scheduling.yardsticks import WaitingLine
from streamsched.state.inventory import MAX_GPUS

if TYPE_CHECKING:
    from streamsched.scheduling.draft import Draft
    from streamsched.state.cluster import ClusterState
    from streamsched.state.usage import Budget
    from streamsched.state.workloads import Workload

#: What every comparison rests on besides use: the policy, the tree, the promises, the capacity.
_Epoch = tuple[int, str | None, int, int]


@dataclass(slots=True)
class _Blocked:
    """Why a candidate was not seated, as far as it must change before it can be."""

    epoch: _Epoch
    #: So many times must a node offer more before there can be room.
    gains: int
    at_ms: int
    jumped: int
    #: From then on its own wait lets something else be tried; None for never.
    until_ms: int | None
    #: The least that must happen before one of the comparisons that failed can succeed; None when none failed.
    slack_gpu_ms: int | None
    #: How much of that a millisecond can use up: use moves by what is held, or was held a window ago, and commitment
    #: falls no faster than use rises.
    rate: int
    #: The vertices of the tree that it may not take from; None when it looked at runs that are protected still.
    refused: frozenset[Budget] | None

    @property
    def review_ms(self) -> int | None:
        """When time alone may have changed it."""
        if self.slack_gpu_ms is None:
            return self.until_ms
        crossing_ms = self.at_ms + self.slack_gpu_ms // self.rate + 1
        return crossing_ms if self.until_ms is None else min(crossing_ms, self.until_ms)


class Memory:
    """The blocked candidates of one scheduler, by workload."""

    __slots__ = ("_blocked", "_is_restless", "_recoveries", "leaves_nothing", "line", "looks")

    def __init__(self) -> None:
        self._blocked: dict[str, _Blocked] = {}
        #: Whether something is blocked of which it is not known how long that holds.
        self._is_restless = False
        #: On what state each recovery was last in vain: its epoch and its gains.
        self._recoveries: dict[str, tuple[_Epoch, int]] = {}
        #: How often a candidate was looked at beyond what its size alone tells.
        self.looks = 0
        #: Whether there is room for nothing that waits in what the last proposal leaves, while nothing is promised and
        #: nobody recovers.
        self.leaves_nothing = False
        #: What waits in the order in which it came, for schemes that ask for that.
        self.line = WaitingLine()

    def still_blocks(self, draft: Draft, workload: Workload) -> bool:
        """Whether a candidate would be looked at in vain again, for certain."""
        blocked = self._blocked.get(workload.id)
        if blocked is None:
            return False
        state = draft.state
        if blocked.epoch != _epoch(state) or (blocked.until_ms is not None and draft.now_ms >= blocked.until_ms):
            return False
        if blocked.slack_gpu_ms is not None:
            moved = state.budgets.jumped_gpu_ms + draft.jumped_gpu_ms - blocked.jumped
            if moved + blocked.rate * (draft.now_ms - blocked.at_ms) >= blocked.slack_gpu_ms:
                return False
        if state.inventory.gains < blocked.gains:
            return True
        # Something came free. While only unallocated work may be stopped, the numbers of GPUs say whether it helps.
        if blocked.refused is None:
            return False
        for leaf, runs in state.unprotected.items():
            if leaf is workload.budget:
                if any(run.priority < workload.priority for run in runs.values()):
                    return False
            elif rival_of(workload.budget, leaf) not in blocked.refused:
                return False
        size, ranks = workload.gpus_per_rank, workload.ranks
        return all(
            pool.reclaimable.slots(size) < ranks
            or pool.reclaimable.slots_on(
                size, draft.nodes_for(pool, workload.shape, allocated=True, claimant=workload.id)
            )
            < ranks
            for pool in state.inventory.candidates(workload.pool)
        )

    def note(
        self,
        draft: Draft,
        workload: Workload,
        *,
        until_ms: int | None,
        guard_gpu_ms: int | None,
        helped_by_any: bool,
        missing: int,
    ) -> None:
        """Note that a candidate was looked at in vain, with nothing given away before in this decision.

        Args:
            draft: The decision, which has given nothing away yet.
            workload: The candidate.
            until_ms: When its own wait lets something else be tried.
            guard_gpu_ms: The guard it was compared with; None when it was not compared with anybody.
            helped_by_any: Whether anything that comes free may help it: it asked for a reservation, and too few nodes
                could be had, or runs may be moved for it.
            missing: For how many of its ranks at least there was no place, whoever would have been stopped.
        """
        state = draft.state
        policy = state.policy
        if policy.order is not Order.WINDOW or policy.usage is not UsageMode.WINDOW:
            self._is_restless = True  # No bound is known on how fast these change.
            return
        slack: int | None = None
        refused: set[Budget] = set()
        if guard_gpu_ms is not None:
            asks_of = (0, guard_gpu_ms) if helped_by_any else (guard_gpu_ms,)
            for theirs, needed in refusals(draft, workload.budget, asks_of):
                slack = needed if slack is None else min(slack, needed)
                refused.add(theirs)
        left_ms = (policy.guard_relaxation_ms or 0) - (draft.now_ms - workload.queued_ms)
        fading = (guard_gpu_ms or 0) // left_ms if left_ms > 0 else 0
        self._blocked[workload.id] = _Blocked(
            epoch=_epoch(state),
            gains=state.inventory.gains + max(1, -(-missing // (MAX_GPUS // workload.gpus_per_rank))),
            at_ms=draft.now_ms,
            jumped=state.budgets.jumped_gpu_ms,
            until_ms=until_ms,
            slack_gpu_ms=slack,
            rate=state.budgets.peak_units + fading + 1,
            refused=None if helped_by_any else frozenset(refused),
        )

    def recovers_in_vain(self, state: ClusterState, workload: str) -> bool:
        """Whether a gang that recovers would look for places in vain again, since nothing came free and it stays put.

        Time alone does not help it: its next step, as all that ends a promise, begins another epoch.
        """
        return self._recoveries.get(workload) == (_epoch(state), state.inventory.gains)

    def note_recovery(self, state: ClusterState, workload: str) -> None:
        """Note that a gang that recovers found no places, with nothing given away before in this decision."""
        self._recoveries[workload] = (_epoch(state), state.inventory.gains)

    def review_ms(self, state: ClusterState) -> int | None:
        """Return when time alone may let a candidate be seated; None for never. Forgets those that no longer wait."""
        blocked = self._blocked
        gone = [id_ for id_ in blocked if id_ not in state.workloads or state.workloads[id_].queue_key is None]
        for id_ in gone:
            del blocked[id_]
        for id_ in [id_ for id_ in self._recoveries if id_ not in state.recoveries]:
            del self._recoveries[id_]
        if self._is_restless:
            self._is_restless = False
            return state.now_ms + state.policy.review_ms
        reviews = [review for one in blocked.values() if (review := one.review_ms) is not None]
        if not reviews:
            return None
        return max(min(reviews), state.now_ms + state.policy.review_ms)


def _epoch(state: ClusterState) -> _Epoch:
    return (state.policy_version, state.budgets.change, state.matured, state.budgets.capacity_units)
