"""How far free GPUs lie scattered: how many there are, the largest gang that could start on them, and who is kept out.

Sampled after a proposal, when the scheduler has placed what it wanted. All nodes of a pool count as equally near: what
only the domains of its topology keep out is not counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from streamsched.state.cluster import ClusterState
from streamsched.state.inventory import Inventory, Pool


@dataclass(frozen=True, slots=True)
class WaitingShape:
    """Workloads that wait and fit alike.

    Attributes:
        pool: The kind of GPU they ask for; None for any.
        ranks: Of each gang.
        gpus_per_rank: On one node.
        workloads: How many they are.
    """

    pool: str | None
    ranks: int
    gpus_per_rank: int
    workloads: int

    @property
    def gpus(self) -> int:
        """Of all of them together: their weight."""
        return self.ranks * self.gpus_per_rank * self.workloads


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The room at one moment, in GPUs on nodes that take work.

    Whole nodes are those on which nobody is. A gang of whole nodes has equal ranks, each of them all of a node.

    Attributes:
        at_ms: When.
        free_gpus: Held, claimed and left behind by nobody.
        largest_free_gpus: Of the largest gang of whole nodes that could start there, in any one pool.
        reclaimable_gpus: Free, or held by unallocated work: what allocated work may take at once.
        largest_reclaimable_gpus: Of the largest gang of whole nodes that could start on those.
        waiting_gpus: Asked for by all that waits, allocated or not.
        kept_out: The shapes that wait although enough GPUs are free, by pool, ranks and GPUs per rank.
    """

    at_ms: int
    free_gpus: int
    largest_free_gpus: int
    reclaimable_gpus: int
    largest_reclaimable_gpus: int
    waiting_gpus: int
    kept_out: tuple[WaitingShape, ...]

    @property
    def kept_out_gpus(self) -> int:
        """Asked for by workloads of the shapes that are kept out."""
        return sum(shape.gpus for shape in self.kept_out)

    @property
    def scattered(self) -> Fraction | None:
        """The part of the free GPUs that no gang of whole nodes can use; None where none is free."""
        return _scattered(self.free_gpus, self.largest_free_gpus)

    @property
    def scattered_reclaimable(self) -> Fraction | None:
        """The same of the GPUs that are free or held by unallocated work."""
        return _scattered(self.reclaimable_gpus, self.largest_reclaimable_gpus)


def fragmentation(state: ClusterState) -> Fragmentation:
    """Measure the room of a cluster.

    Costs a look at each size of nodes, and at each shape that waits; where the nodes of a pool differ in size, at each
    node.
    """
    pools = list(state.inventory.pools.values())
    waiting = _waiting(state)
    return Fragmentation(
        at_ms=state.now_ms,
        free_gpus=sum(_gpus(pool.free.counts) for pool in pools),
        largest_free_gpus=max((_largest(pool, reclaimable=False) for pool in pools), default=0),
        reclaimable_gpus=sum(_gpus(pool.reclaimable.counts) for pool in pools),
        largest_reclaimable_gpus=max((_largest(pool, reclaimable=True) for pool in pools), default=0),
        waiting_gpus=sum(shape.gpus for shape in waiting),
        kept_out=tuple(shape for shape in waiting if _is_kept_out(shape, state.inventory)),
    )


def _waiting(state: ClusterState) -> list[WaitingShape]:
    """Return the shapes that wait, whether they fit or not, in an order that is theirs."""
    counts: Counter[tuple[str, bool, int, int]] = Counter()
    for backlog in (state.allocated, state.unallocated):
        for (pool, gpus_per_rank, ranks, _, _), queues in backlog.by_shape.items():
            waits = sum(len(queue.entries) for queue in queues.values())
            counts[pool or "", pool is None, ranks, gpus_per_rank] += waits
    return [
        WaitingShape(None if any_pool else pool, ranks, gpus_per_rank, workloads)
        for (pool, any_pool, ranks, gpus_per_rank), workloads in sorted(counts.items())
    ]


def _is_kept_out(shape: WaitingShape, inventory: Inventory) -> bool:
    """Whether some pool has enough GPUs free for one gang of a shape, and none has them so that it fits."""
    pools = inventory.candidates(shape.pool)
    gpus = shape.ranks * shape.gpus_per_rank
    return any(_gpus(pool.free.counts) >= gpus for pool in pools) and not any(
        pool.free.slots(shape.gpus_per_rank) >= shape.ranks for pool in pools
    )


def _scattered(gpus: int, largest: int) -> Fraction | None:
    return 1 - Fraction(largest, gpus) if gpus else None


def _gpus(counts: list[int]) -> int:
    return sum(gpus * nodes for gpus, nodes in enumerate(counts))


def _largest(pool: Pool, *, reclaimable: bool) -> int:
    """Return the GPUs of the largest gang of whole nodes; a rank of fewer GPUs may sit on a larger node alone."""
    counts = (pool.reclaimable if reclaimable else pool.free).counts
    sizes = [gpus for gpus, nodes in enumerate(pool.installed.counts) if nodes and gpus]
    if len(sizes) == 1:
        return sizes[0] * counts[sizes[0]]
    whole = dict.fromkeys(sizes, 0)
    for node in pool.nodes:
        if node.gpus and (node.filed_reclaimable if reclaimable else node.filed_free) == node.gpus:
            whole[node.gpus] += 1
    return max((size * sum(nodes for gpus, nodes in whole.items() if gpus >= size) for size in sizes), default=0)
