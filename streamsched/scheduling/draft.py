"""What a decision has given away so far, laid over a state that it only reads.

The index of free GPUs consists of integers, so a draft starts as a copy of a few references, and only the nodes that a
decision touches have an entry of their own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamsched.model.policy import Policy
    from streamsched.scheduling.fair_share import Standing
    from streamsched.scheduling.preemption import Choice
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Node, Pool, Room, RunKey
    from streamsched.state.reservations import Reservation
    from streamsched.state.usage import Budget
    from streamsched.state.workloads import Shape


class DraftPool:
    """One pool under a draft: its rooms, and the GPUs of the nodes that were touched."""

    __slots__ = ("cheapest", "free", "nodes", "pool", "reclaimable", "takeable", "touched", "victims")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.nodes = pool.nodes
        self.free: Room = pool.free.copy()
        self.reclaimable: Room = pool.reclaimable.copy()
        self.takeable: Room = pool.takeable.copy()
        #: Of touched nodes, by index: the free GPUs, and the numbers of reclaimable and of takeable ones.
        self.touched: dict[int, tuple[int, int, int]] = {}
        #: Runs that this decision stops.
        self.victims: set[RunKey] = set()
        #: Which unallocated runs make room for one more rank at the least cost, by size of the rank and node index, as
        #: far as that was asked since the node was last touched.
        self.cheapest: dict[int, dict[int, Choice | None]] = {}

    def copy(self) -> DraftPool:
        """Return a draft of the same pool to try something on."""
        other = DraftPool.__new__(DraftPool)
        other.pool, other.nodes = self.pool, self.nodes
        other.free, other.reclaimable, other.takeable = self.free.copy(), self.reclaimable.copy(), self.takeable.copy()
        other.touched, other.victims, other.cheapest = self.touched.copy(), self.victims.copy(), {}
        return other

    def free_mask(self, node: Node) -> int:
        """Return the GPUs of a node that are free and that this decision has not given away."""
        touched = self.touched.get(node.index)
        return node.free_mask if touched is None else touched[0]

    def preemptible(self, node: Node) -> dict[RunKey, int]:
        """Return the unallocated runs of a node that this decision has not stopped, with their GPUs."""
        if not self.victims:
            return node.preemptible
        return {key: mask for key, mask in node.preemptible.items() if key not in self.victims}

    def unprotected(self, node: Node) -> dict[RunKey, int]:
        """Return the allocated runs of a node past their protection that this decision has not stopped."""
        if not self.victims:
            return node.unprotected
        return {key: mask for key, mask in node.unprotected.items() if key not in self.victims}

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
        free_before, reclaimable_before, takeable_before = (
            (node.filed_free, node.filed_reclaimable, node.filed_takeable)
            if before is None
            else (before[0].bit_count(), before[1], before[2])
        )
        mask = free
        for held in self.preemptible(node).values():
            mask |= held
        reclaimable = mask.bit_count()
        for held in self.unprotected(node).values():
            mask |= held
        takeable = mask.bit_count()
        self.free.move(node.index, free_before, free.bit_count())
        self.reclaimable.move(node.index, reclaimable_before, reclaimable)
        self.takeable.move(node.index, takeable_before, takeable)
        self.touched[node.index] = (free, reclaimable, takeable)
        for known in self.cheapest.values():
            known.pop(node.index, None)


class Draft:
    """A decision in the making: the state, and what is no longer there for whoever comes next."""

    __slots__ = (
        "_nodes_for",
        "_reserved",
        "committed",
        "given",
        "jumped_gpu_ms",
        "kept",
        "now_ms",
        "placed",
        "pools",
        "preempted",
        "standings",
        "state",
        "taken",
    )

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.now_ms = state.now_ms
        self.pools: dict[str, DraftPool] = {}
        #: Commitment that this decision adds, by budget.
        self.committed: dict[Budget, int] = {}
        #: Units that this decision gives to allocated work, by budget.
        self.given: dict[Budget, int] = {}
        #: GPUs that it places, by class (allocated or not) and budget: what counts against limits of GPUs at a time.
        self.placed: dict[bool, dict[Budget, int]] = {True: {}, False: {}}
        #: Allocated GPUs that this decision preempts, by pool; and the nodes that it reserves, as bits.
        self.preempted: dict[str, int] = {}
        self.kept: dict[str, list[int]] = {}
        #: How much this decision has moved what budgets have committed.
        self.jumped_gpu_ms = 0
        #: What allocated budgets stand at, as far as that was asked since they were last given something.
        self.standings: dict[Budget, Standing] = {}
        self._nodes_for: dict[tuple[str, Shape, bool, str | None], int] = {}
        self._reserved: dict[str, int] = {}
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
        self.jumped_gpu_ms += gpu_ms
        for budget in leaf.path:
            self.committed[budget] = self.committed.get(budget, 0) + gpu_ms
            self.standings.pop(budget, None)

    def give(self, leaf: Budget, units: int) -> None:
        """Count what a placement of allocated work holds, where the order asks for what is held now."""
        for budget in leaf.path:
            self.given[budget] = self.given.get(budget, 0) + units
            self.standings.pop(budget, None)

    def place(self, leaf: Budget, gpus: int, *, allocated: bool) -> None:
        """Count the GPUs of a placement, for the limits of GPUs at a time."""
        placed = self.placed[allocated]
        for budget in leaf.path:
            placed[budget] = placed.get(budget, 0) + gpus

    def is_full(self, leaf: Budget, gpus: int, *, allocated: bool) -> bool:
        """Whether a leaf or one above it may not have so many more GPUs at a time, this decision included."""
        return leaf.full_for(gpus, self.placed[allocated], allocated=allocated) is not None

    def nodes_for(self, pool: Pool, shape: Shape, *, allocated: bool, claimant: str | None = None) -> int:
        """Return the nodes of a pool, as bits, that a gang may use now, or might once something on them has ended.

        Headroom nodes take only short and unallocated work. Reserved nodes take what leaves them in time: unallocated
        work until shortly before the start, and allocated work whose protection ends before it. A gang that would not
        fit beside the headroom nodes on an empty pool may use them all.

        Source: `fair-share.md`, sections 4.8 and 4.10.
        """
        if claimant not in self.state.reservations:
            claimant = None
        key = (pool.id, shape, allocated, claimant)
        known = self._nodes_for.get(key)
        if known is None:
            known = self._nodes_for[key] = self._find_nodes(pool, shape, claimant, allocated=allocated)
        return known

    def keep(self, pool: Pool, nodes: int) -> None:
        """Let nodes that this decision reserves be used for nothing else in it."""
        self.kept.setdefault(pool.id, []).append(nodes)
        self._nodes_for.clear()

    def _find_nodes(self, pool: Pool, shape: Shape, claimant: str | None, *, allocated: bool) -> int:
        state = self.state
        nodes = pool.working
        headroom = self.headroom(pool)
        if headroom and allocated and not is_short(shape, state.policy):
            beside = sum([node.gpus // shape[1] for node in self.each(pool, headroom)])
            if pool.healthy.slots(shape[1]) - beside >= shape[2]:
                nodes &= ~headroom
        for promise in state.reservations.values():
            if promise.pool != pool.id or promise.workload == claimant:
                continue
            ends_ms = self.now_ms + state.policy.backfill_margin_ms + (shape[3] if allocated else 0)
            if ends_ms > promise.start_ms:
                nodes &= ~self.reserved(promise)
        for kept in self.kept.get(pool.id, ()):
            nodes &= ~kept
        return nodes

    def headroom(self, pool: Pool) -> int:
        """Return the headroom nodes of a pool, as bits: the last that take work, so that the others fill first.

        One for each so many nodes, to the nearest whole number.
        """
        return _last_nodes(pool.working, self.state.policy.nodes_per_headroom_node)

    def reserved(self, promise: Reservation) -> int:
        """Return the nodes of a reservation, as bits."""
        known = self._reserved.get(promise.workload)
        if known is None:
            known = 0
            for id_ in promise.nodes:
                known |= 1 << self.state.nodes[id_].index
            self._reserved[promise.workload] = known
        return known

    @staticmethod
    def each(pool: Pool, nodes: int) -> Iterator[Node]:
        """Yield some nodes of a pool, given as bits, in the order of their places."""
        while nodes:
            bit = nodes & -nodes
            nodes ^= bit
            yield pool.nodes[bit.bit_length() - 1]


@lru_cache(maxsize=64)
def _last_nodes(nodes: int, per: int) -> int:
    """Return the last of some nodes, one for each so many of them; the same are asked for by decision after decision.

    >>> bin(_last_nodes(0b111011, 2))
    '0b111000'
    """
    left = (nodes.bit_count() + per // 2) // per if per else 0
    chosen = 0
    while left:
        bit = 1 << nodes.bit_length() - 1
        chosen |= bit
        nodes ^= bit
        left -= 1
    return chosen


def is_short(shape: Shape, policy: Policy) -> bool:
    """Whether allocated work of a shape is short: few GPUs for a short time. It needs no patience and has headroom."""
    return shape[1] * shape[2] <= policy.short_gpus and 0 < shape[3] <= policy.short_min_runtime_ms
