"""How far the GPUs that are there lie scattered: what is free, and the largest gang that could start on it.

Sampled after a proposal, when the scheduler has placed what it wanted: what is free then, nobody who waits could use.
This is the form that knows no topology: all nodes of a pool are equally near. The one that weighs domains by what
waits for them belongs here too, as further fields of `Fragmentation`, set in `fragmentation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from streamsched.state.inventory import Inventory, Pool


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
    """

    at_ms: int
    free_gpus: int
    largest_free_gpus: int
    reclaimable_gpus: int
    largest_reclaimable_gpus: int

    @property
    def scattered(self) -> Fraction | None:
        """The part of the free GPUs that no gang of whole nodes can use; None where none is free."""
        return _scattered(self.free_gpus, self.largest_free_gpus)

    @property
    def scattered_reclaimable(self) -> Fraction | None:
        """The same of the GPUs that are free or held by unallocated work."""
        return _scattered(self.reclaimable_gpus, self.largest_reclaimable_gpus)


def fragmentation(inventory: Inventory, at_ms: int) -> Fragmentation:
    """Measure the room of a cluster.

    Costs a look at each size of nodes; where the nodes of a pool differ in size, at each node.
    """
    pools = list(inventory.pools.values())
    return Fragmentation(
        at_ms=at_ms,
        free_gpus=sum(_gpus(pool.free.counts) for pool in pools),
        largest_free_gpus=max((_largest(pool, reclaimable=False) for pool in pools), default=0),
        reclaimable_gpus=sum(_gpus(pool.reclaimable.counts) for pool in pools),
        largest_reclaimable_gpus=max((_largest(pool, reclaimable=True) for pool in pools), default=0),
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
