"""Whose turn it is: the walk from the root of the budget tree to the leaf that is furthest behind its share.

Siblings are ordered by usage ratio, (charged + committed) / entitled, compared by cross-multiplication so that equal
means equal; a budget with no entitlement comes last. A tie goes to the sibling with the older waiting workload, then
to the smaller id. Priority sorts inside a leaf and never leaves it. Where the policy's order is `due_first`, siblings
that hold fewer GPUs now than their quota come before the others, and the ratio decides inside either class.

Source: `fair-share.md`, section 4.1.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from streamsched.model.events import ShareLine, trusted
from streamsched.model.policy import Order, UsageMode
from streamsched.model.quantities import WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamsched.scheduling.draft import Draft
    from streamsched.state.backlog import ShapeQueue
    from streamsched.state.usage import Budget
    from streamsched.state.workloads import QueueKey

_share_line = trusted(ShareLine)


class Standing(NamedTuple):
    """What a budget used, with what it has committed; and what it is entitled to, in GPU-milliseconds.

    `above` says that it holds its quota or more at this moment; it is False where the policy's order does not ask.
    """

    charged: int
    committed: int
    entitled: int
    above: bool = False

    @property
    def used(self) -> int:
        """What is compared with the entitlement: charged and committed."""
        return self.charged + self.committed


def standing(budget: Budget, draft: Draft, *, allocated: bool) -> Standing:
    """Return (charged, committed, entitled) of a budget in GPU-milliseconds, this decision included.

    Unallocated work is ordered by its own ledger: unallocated time over the quota.
    """
    if not allocated:
        return Standing(budget.unallocated_gpu_ms(draft.now_ms), 0, 0 if budget.closed else budget.quota_nano)
    now_ms, tree = draft.now_ms, budget.tree
    charged, committed, entitled = (
        budget.charged_gpu_ms(now_ms),
        budget.committed_gpu_ms(now_ms),
        budget.entitled_gpu_ms(now_ms),
    )
    if tree.counts_commitment:
        committed += draft.committed.get(budget, 0)
    if tree.usage is UsageMode.INSTANT:
        charged += budget.held_for_instant(_claimed(budget, draft))
    above = False
    if draft.state.policy.order is Order.DUE_FIRST:
        above = (budget.charged.held + _claimed(budget, draft)) * WHOLE >= budget.quota_nano * tree.capacity_units
    return Standing(charged, committed, entitled, above)


def _claimed(budget: Budget, draft: Draft) -> int:
    """Return the units that a budget has won and does not hold yet: of plans that wait for victims, and of this round.

    Without them a team would win again in every round until its victims are gone.
    """
    return budget.planned_units + draft.given.get(budget, 0)


def stand(draft: Draft, budget: Budget) -> Standing:
    """Return the standing of a budget for allocated work, computed once until this decision gives it something."""
    known = draft.standings.get(budget)
    if known is None:
        known = draft.standings[budget] = standing(budget, draft, allocated=True)
    return known


def share_lines(draft: Draft, leaf: Budget, *, allocated: bool) -> tuple[ShareLine, ...]:
    """Return how a leaf and those above it stand now, the one below the root first."""
    lines: list[ShareLine] = []
    for budget in leaf.path[-2::-1]:
        now = stand(draft, budget) if allocated else standing(budget, draft, allocated=False)
        lines.append(
            _share_line(
                budget=budget.id,
                charged_gpu_ms=now.charged,
                committed_gpu_ms=now.committed,
                entitled_gpu_ms=now.entitled,
                siblings=max(1, len(budget.parent.children) if budget.parent is not None else 1),
            )
        )
    return tuple(lines)


def comes_before(one: Standing, other: Standing) -> bool | None:
    """Return whether the first goes before the other; None when they stand equal.

    Those with no entitlement are last, then those at their quota or above, and among equals the smaller ratio decides.

    >>> comes_before(Standing(0, 0, 10), Standing(1, 0, 10))
    True
    >>> comes_before(Standing(1, 1, 10), Standing(4, 0, 20)) is None
    True
    >>> comes_before(Standing(0, 0, 0), Standing(99, 0, 1))
    False
    >>> comes_before(Standing(99, 0, 1), Standing(0, 0, 1, above=True))
    True
    """
    if one.entitled == 0 or other.entitled == 0:
        if one.entitled != other.entitled:
            return one.entitled != 0
        return None if one.used == other.used else one.used < other.used
    if one.above is not other.above:
        return other.above
    left = one.used * other.entitled
    right = other.used * one.entitled
    return None if left == right else left < right


class Turns:
    """The candidates of one class (allocated, or unallocated), taken leaf by leaf in fair-share order.

    Only queues whose shape may fit are given to it: a shape that fits nowhere takes no turn. Between two turns
    only the budgets on the way to the candidate of the first may come to stand otherwise.
    """

    __slots__ = ("_below", "_draft", "_met", "_orders", "_queues", "_waiting", "allocated")

    def __init__(self, draft: Draft, queues: Iterable[ShapeQueue], *, allocated: bool) -> None:
        self.allocated = allocated
        self._draft = draft
        #: Per leaf its queues that have something left; per inner budget the children that do.
        self._queues: dict[Budget, list[ShapeQueue]] = {}
        self._below: dict[Budget, dict[Budget, None]] = {}
        #: The same children, per inner budget that was met where there were several, as a heap by whose turn it is; and
        #: the heaps that the last turn met, whose first entries may have changed since.
        self._orders: dict[Budget, list[_Place]] = {}
        self._met: list[tuple[Budget, list[_Place]]] = []
        taken = draft.taken
        #: What the heaps look up. They do not refer to the turns, since a ring of references is freed late.
        self._waiting = _Waiting(self._queues, self._below, taken)
        for queue in queues:
            if taken.get(queue, 0) < len(queue.entries):
                self._queues.setdefault(queue.leaf, []).append(queue)
        for leaf in self._queues:
            child = leaf
            for budget in leaf.path[1:]:
                children = self._below.setdefault(budget, {})
                if child in children:
                    break
                children[child] = None
                child = budget

    def next(self) -> tuple[ShapeQueue, QueueKey] | None:
        """Return the candidate whose turn it is, and its queue; None when nothing is left."""
        if not self._queues:
            return None
        self._put_last_turn_in_order()
        budget = self._draft.state.budgets.root
        while budget not in self._queues:
            children = self._below[budget]
            if len(children) == 1:
                (budget,) = children
                continue
            order = self._orders.get(budget)
            if order is None:
                order = self._orders[budget] = [self._place(child) for child in children]
                heapify(order)
            self._met.append((budget, order))
            budget = order[0].budget
        taken = self._draft.taken
        first, *others = self._queues[budget]
        key: QueueKey = first.entries[taken.get(first, 0)]
        for queue in others:
            other: QueueKey = queue.entries[taken.get(queue, 0)]
            if other < key:
                first, key = queue, other
        return first, key

    def _put_last_turn_in_order(self) -> None:
        for parent, order in self._met:
            budget = order[0].budget
            if budget in self._below.get(parent, ()):
                heapreplace(order, self._place(budget))
            else:
                heappop(order)
        self._met.clear()

    def drop(self, queue: ShapeQueue) -> None:
        """Take out a queue of which nothing is left."""
        leaf = queue.leaf
        queues = self._queues[leaf]
        queues.remove(queue)
        if queues:
            return
        del self._queues[leaf]
        child = leaf
        for budget in leaf.path[1:]:
            children = self._below[budget]
            del children[child]
            if children:
                return
            del self._below[budget]
            child = budget

    def _place(self, budget: Budget) -> _Place:
        draft = self._draft
        stands = stand(draft, budget) if self.allocated else standing(budget, draft, allocated=False)
        return _Place(budget, stands, self._waiting)


class _Waiting(NamedTuple):
    """What waits where: per leaf its queues, per inner budget its children, and how many of each queue are taken."""

    queues: dict[Budget, list[ShapeQueue]]
    below: dict[Budget, dict[Budget, None]]
    taken: dict[object, int]

    def oldest(self, budget: Budget) -> int:
        """Return when the candidate below a budget that waits longest was queued."""
        queues = self.queues.get(budget)
        if queues is not None:
            return min(queue.oldest(self.taken.get(queue, 0)) for queue in queues)
        return min(self.oldest(child) for child in self.below[budget])


class _Place:
    """A budget among its siblings, ordered by whose turn it is."""

    __slots__ = ("_oldest_ms", "_standing", "_waiting", "budget")

    def __init__(self, budget: Budget, standing: Standing, waiting: _Waiting) -> None:
        self.budget = budget
        self._standing = standing
        self._waiting = waiting
        self._oldest_ms: int | None = None

    def __lt__(self, other: _Place) -> bool:
        before = comes_before(self._standing, other._standing)
        if before is None:
            return (self.oldest_ms, self.budget.id) < (other.oldest_ms, other.budget.id)
        return before

    @property
    def oldest_ms(self) -> int:
        """When the candidate below it that waits longest was queued; looked up when it is first asked for."""
        if self._oldest_ms is None:
            self._oldest_ms = self._waiting.oldest(self.budget)
        return self._oldest_ms
