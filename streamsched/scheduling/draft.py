"""What a decision has given away so far, laid over a state that it only reads.

The index of free GPUs consists of integers, so a draft starts as a copy of a few references, and only the nodes that a
decision touches have an entry of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamsched.scheduling.preemption import Choice
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Node, Pool, Room, RunKey
    from streamsched.state.usage import Budget


class DraftPool:
    """One pool under a draft: its rooms, and the GPUs of the nodes that were touched."""

    __slots__ = ("cheapest", "free", "nodes", "pool", "reclaimable", "touched", "victims")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.nodes = pool.nodes
        self.free: Room = pool.free.copy()
        self.reclaimable: Room = pool.reclaimable.copy()
        #: Of touched nodes, by index: the free GPUs, and the number of reclaimable ones.
        self.touched: dict[int, tuple[int, int]] = {}
        #: Runs that this decision stops.
        self.victims: set[RunKey] = set()
        #: Which runs make room for one more rank at the least cost, by size of the rank and node index, as far as that
        #: was asked since the node was last touched.
        self.cheapest: dict[int, dict[int, Choice | None]] = {}

    def free_mask(self, node: Node) -> int:
        """Return the GPUs of a node that are free and that this decision has not given away."""
        touched = self.touched.get(node.index)
        return node.free_mask if touched is None else touched[0]

    def preemptible(self, node: Node) -> dict[RunKey, int]:
        """Return the unallocated runs of a node that this decision has not stopped, with their GPUs."""
        if not self.victims:
            return node.preemptible
        return {key: mask for key, mask in node.preemptible.items() if key not in self.victims}

    def take(self, node: Node, mask: int) -> None:
        """Give away free GPUs of a node."""
        self._refile(node, self.free_mask(node) & ~mask)

    def stop(self, key: RunKey, nodes: list[Node]) -> None:
        """Stop a run: its GPUs can no longer be reclaimed, and they are not free either before it has ended."""
        self.victims.add(key)
        for node in nodes:
            self._refile(node, self.free_mask(node))

    def _refile(self, node: Node, free: int) -> None:
        before = self.touched.get(node.index)
        free_before, reclaimable_before = (
            (node.filed_free, node.filed_reclaimable) if before is None else (before[0].bit_count(), before[1])
        )
        mask = free
        for held in self.preemptible(node).values():
            mask |= held
        reclaimable = mask.bit_count()
        self.free.move(node.index, free_before, free.bit_count())
        self.reclaimable.move(node.index, reclaimable_before, reclaimable)
        self.touched[node.index] = (free, reclaimable)
        for known in self.cheapest.values():
            known.pop(node.index, None)


class Draft:
    """A decision in the making: the state, and what is no longer there for whoever comes next."""

    __slots__ = ("committed", "now_ms", "pools", "state", "taken")

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.now_ms = state.now_ms
        self.pools: dict[str, DraftPool] = {}
        #: Commitment that this decision adds, by budget.
        self.committed: dict[Budget, int] = {}
        #: How many workloads were taken from the front of each queue, by leaf and shape.
        self.taken: dict[object, int] = {}

    def pool(self, pool: Pool) -> DraftPool:
        """Return the pool as this decision has left it."""
        drafted = self.pools.get(pool.id)
        if drafted is None:
            drafted = self.pools[pool.id] = DraftPool(pool)
        return drafted

    def commit(self, leaf: Budget, gpu_ms: int) -> None:
        """Count the protected time of a placement at once, so that a leaf does not win every turn of one decision."""
        for budget in leaf.path:
            self.committed[budget] = self.committed.get(budget, 0) + gpu_ms
