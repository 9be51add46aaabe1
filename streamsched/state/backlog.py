"""Workloads that wait, filed by leaf and shape.

What decides whether a workload fits is its shape, and the shapes that wait are few, whatever the number of workloads.
So the question "can anything start now?" is asked once for each shape, and the order inside a leaf is kept for each
shape by itself: neither costs more when more work waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamsched.state.usage import Budget
    from streamsched.state.workloads import QueueKey, Shape, Workload


class ShapeQueue:
    """The workloads of one leaf that have one shape, in the order of the leaf."""

    __slots__ = ("entries", "leaf", "ranks_of_order", "shape")

    def __init__(self, leaf: Budget, shape: Shape) -> None:
        self.leaf = leaf
        self.shape = shape
        self.entries: SortedList[QueueKey] = SortedList()
        #: How many entries have each (priority, requeued or new).
        self.ranks_of_order: dict[tuple[int, int], int] = {}

    def next_order(self, position: int) -> int:
        """Return the position of the first entry of another priority, or new after requeued, than the one there."""
        return self.entries.bisect_left((*self.entries[position][:2], 1 << 63, ""))

    def oldest(self, skipped: int) -> int:
        """Return the earliest enqueue among the entries after the first `skipped`; there must be one.

        Entries of one priority are in the order of their enqueue, so it is one of the first of each.
        """
        entries = self.entries
        firsts = []
        for order in self.ranks_of_order:
            position = max(entries.bisect_left((*order, -1, "")), skipped)
            if position < len(entries):
                entry = entries[position]
                if entry[:2] == order:
                    firsts.append(entry[2])
        return min(firsts)


class Backlog:
    """All waiting workloads of one class (allocated, or unallocated)."""

    __slots__ = ("additions", "by_shape", "size")

    def __init__(self) -> None:
        self.by_shape: dict[Shape, dict[str, ShapeQueue]] = {}
        self.size = 0
        #: Rises whenever something is filed.
        self.additions = 0

    def add(self, workload: Workload) -> None:
        """File a workload under its leaf and shape."""
        key = (-workload.priority, 0 if workload.requeued else 1, workload.queued_ms, workload.id)
        workload.queue_key = key
        shape = workload.shape
        leaf = workload.budget
        queues = self.by_shape.get(shape)
        if queues is None:
            queues = self.by_shape[shape] = {}
        queue = queues.get(leaf.id)
        if queue is None:
            queue = queues[leaf.id] = ShapeQueue(leaf, shape)
        queue.entries.add(key)
        order = key[:2]
        queue.ranks_of_order[order] = queue.ranks_of_order.get(order, 0) + 1
        self.size += 1
        self.additions += 1

    def remove(self, workload: Workload) -> None:
        """Take a workload out."""
        key = workload.queue_key
        if key is None:
            return
        shape = workload.shape
        queues = self.by_shape[shape]
        queue = queues[workload.budget.id]
        queue.entries.remove(key)
        order = key[:2]
        if queue.ranks_of_order[order] == 1:
            del queue.ranks_of_order[order]
        else:
            queue.ranks_of_order[order] -= 1
        if not queue.entries:
            del queues[workload.budget.id]
            if not queues:
                del self.by_shape[shape]
        workload.queue_key = None
        self.size -= 1

    def queues_of(self, leaf: str) -> Iterator[ShapeQueue]:
        """Yield the queues of one leaf, in no order that matters."""
        for queues in self.by_shape.values():
            queue = queues.get(leaf)
            if queue is not None:
                yield queue

    def ahead_of(self, workload: Workload) -> int:
        """Return how many workloads of its leaf come before it."""
        key = workload.queue_key
        if key is None:
            return 0
        return self._before(workload.budget.id, key)

    def place_if_requeued(self, workload: Workload, now_ms: int) -> int:
        """Return the place in its leaf, from 1, that a workload would have if it came back to the queue now."""
        return self._before(workload.budget.id, (-workload.priority, 0, now_ms, workload.id)) + 1

    def _before(self, leaf: str, key: QueueKey) -> int:
        return sum(queue.entries.bisect_left(key) for queue in self.queues_of(leaf))
