"""Which domains a gang could be given for the fewest GPUs that others would have to give up.

Every GPU has a price: nothing while it is free, one while unallocated work holds it, and far more while allocated work
past its protection does. What k more ranks cost on a node rises with k, and so does what k more blocks cost in a
domain, so the cheapest blocks of a domain are the cheapest of its parts put together: one sort for each layer, exact.

The price says where to look. Whoever is stopped gives up all that he holds, so what a choice really costs is only known
when the victims are.

Source: `topology.md`, section 7, point 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamsched.model.topology import NODE
from streamsched.scheduling.affinity import NoFit, seat_gang
from streamsched.scheduling.placement import ask_of, order_of
from streamsched.state.inventory import as_bits, as_truths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamsched.model.policy import Policy
    from streamsched.scheduling.draft import DraftPool
    from streamsched.state.inventory import RunKey
    from streamsched.state.topology import PoolTree
    from streamsched.state.workloads import Workload

_Integers = NDArray[np.int64]

#: What a GPU of allocated work costs, when one of unallocated work costs 1: more than all of those together.
ALLOCATED_PRICE: Final = 1 << 22


class Block(NamedTuple):
    """So many consecutive ranks share a domain of a level, numbered coarse to fine; the node comes last."""

    level: int
    ranks: int


class Part(NamedTuple):
    """So many ranks of a gang, of so many GPUs each, sit on some nodes of a pool, given as bits."""

    nodes: int
    ranks: int
    gpus_per_rank: int


class Way(NamedTuple):
    """Where a gang could sit.

    Attributes:
        price: What that costs others at least.
        parts: Which ranks go where; no node is in two of them.
        order: Node index, ranks there and GPUs of each, in rank order; absent where ranks follow the places of nodes.
    """

    price: int
    parts: tuple[Part, ...]
    order: tuple[tuple[int, int, int], ...] | None = None


def ways_to_seat(
    policy: Policy, pool: DraftPool, gang: Workload, nodes: int, allocated: Mapping[int, Mapping[RunKey, int]] | None
) -> Iterator[Way]:
    """Yield where a gang could sit if others made room, the cheapest first.

    Args:
        policy: The one in force.
        pool: Where to look.
        gang: Who asks.
        nodes: The nodes that may be used, as bits.
        allocated: Allocated runs that may be stopped besides unallocated ones, by node index, with their GPUs there.
    """
    if gang.topology is None:
        yield Way(0, (Part(nodes, gang.ranks, gang.gpus_per_rank),))
        return
    usable = as_truths(nodes, len(pool.nodes))
    free = np.where(usable, pool.free.gpus, 0).astype(np.int64)
    unallocated = np.where(usable, pool.reclaimable.gpus, 0).astype(np.int64)
    reach = unallocated.copy()
    for index, runs in (allocated or {}).items():
        if usable[index]:
            node = pool.nodes[index]
            mask = pool.free_mask(node)
            for held in (*pool.preemptible(node).values(), *runs.values()):
                mask |= held
            reach[index] = mask.bit_count()
    yield from ways_within(policy, pool.pool.tree, gang, free, unallocated, reach)


def ways_within(
    policy: Policy, tree: PoolTree, gang: Workload, free: _Integers, unallocated: _Integers, reach: _Integers
) -> Iterator[Way]:
    """Yield where a gang with layers could sit, the cheapest first. The arrays are those of `cheapest_ways`.

    Preferred layers are kept as far as all that may be freed allows. Unequal groups sit where the search puts them.
    """
    found = seat_gang(tree, reach, ask_of(gang, policy))
    if isinstance(found, NoFit):
        return
    if gang.topology is not None and gang.topology.groups:
        order = order_of(gang, found.seats)
        wanted: dict[int, int] = {}
        for index, ranks, gpus in order:
            wanted[index] = wanted.get(index, 0) + ranks * gpus
        yield Way(0, tuple(Part(1 << index, 1, gpus) for index, gpus in sorted(wanted.items())), order)
        return
    blocks = [
        Block(len(tree.levels) if layer.level == NODE else tree.levels.index(layer.level), layer.ranks or gang.ranks)
        for layer in found.layers
    ]
    yield from cheapest_ways(tree, free, unallocated, reach, gang.gpus_per_rank, gang.ranks, blocks)


def cheapest_ways(
    tree: PoolTree,
    free: _Integers,
    unallocated: _Integers,
    reach: _Integers,
    gpus_per_rank: int,
    ranks: int,
    blocks: Sequence[Block],
) -> Iterator[Way]:
    """Yield where a gang of equal ranks could sit, with what others must give up there at least: the cheapest first.

    One way for each domain that could hold the whole gang, if the coarsest layer wants that; else one in all.

    Args:
        tree: The domains of the pool.
        free: GPUs that each node offers for nothing, in the order of their places; 0 for nodes that may not be used.
        unallocated: The same with those of unallocated work,
        reach: and with all that may be freed.
        gpus_per_rank: GPUs of each rank, on one node.
        ranks: Gang size.
        blocks: The layers that must hold, coarse to fine; each is a multiple of the next.
    """
    node, price = _ranks_of_nodes(free, unallocated, reach, gpus_per_rank)
    if not blocks:
        if len(price) >= ranks:
            chosen = np.lexsort((node, price))[:ranks]
            yield Way(int(price[chosen].sum()), (Part(as_bits(reach >= gpus_per_rank), ranks, gpus_per_rank),))
        return
    # From fine to coarse: what was found for one layer are the members of the blocks of the next.
    members: list[_Integers] = []
    size = 1
    for block in reversed(blocks):
        domain = node if block.level == len(tree.levels) else tree.domain_of[block.level][node].astype(np.int64)
        chosen = _grouped(domain, price, node, block.ranks // size)
        members.append(chosen)
        price = price[chosen].sum(axis=1).astype(np.int64)
        node = node[chosen].min(axis=1) if len(chosen) else node[:0]
        size = block.ranks
    needed = ranks // size
    order = np.lexsort((node, price))
    if needed == 1:
        # The cheapest of each domain; another one in the same domain costs more.
        level = blocks[0].level
        domain = node if level == len(tree.levels) else tree.domain_of[level][node].astype(np.int64)
        seen: set[int] = set()
        for one in order.tolist():
            if int(domain[one]) not in seen:
                seen.add(int(domain[one]))
                parts = _parts(tree, reach, blocks, members, np.array([one]), gpus_per_rank)
                yield Way(int(price[one]), parts)
    elif len(order) >= needed:
        chosen = order[:needed]
        yield Way(int(price[chosen].sum()), _parts(tree, reach, blocks, members, chosen, gpus_per_rank))


def _ranks_of_nodes(
    free: _Integers, unallocated: _Integers, reach: _Integers, gpus_per_rank: int
) -> tuple[_Integers, _Integers]:
    """Return the node and the price of each rank that could be seated, the cheaper ones of a node first."""
    most = reach // gpus_per_rank
    node = np.repeat(np.arange(len(reach)), most)
    first = np.concatenate(([0], np.cumsum(most)[:-1])) if len(most) else most
    number = np.arange(len(node)) - np.repeat(first, most) + 1
    price = np.zeros(len(node), np.int64)
    for costless, extra in ((free, 1), (unallocated, ALLOCATED_PRICE)):
        lacking = number * gpus_per_rank - costless[node]
        price += extra * np.minimum(np.maximum(0, lacking), gpus_per_rank)
    return node, price


def _grouped(domain: _Integers, price: _Integers, node: _Integers, size: int) -> _Integers:
    """Put items of one domain together, `size` at a time, the cheapest first: one row each, without the rest."""
    order = np.lexsort((np.arange(len(price)), node, price, domain))
    here = domain[order]
    is_first = np.concatenate(([True], here[1:] != here[:-1])) if len(here) else np.zeros(0, bool)
    begins = np.flatnonzero(is_first)
    counts = np.diff(np.concatenate((begins, [len(here)])))
    position = np.arange(len(here)) - np.repeat(begins, counts)
    whole = position < np.repeat(counts // size * size, counts)
    return order[whole].reshape(-1, size)


def _parts(
    tree: PoolTree,
    reach: _Integers,
    blocks: Sequence[Block],
    members: Sequence[_Integers],
    chosen: _Integers,
    gpus_per_rank: int,
) -> tuple[Part, ...]:
    """Return the ranks of some blocks of the coarsest layer by domain of the finest, in the order of their places."""
    ranks = chosen
    for layer in reversed(members[1:]):
        ranks = layer[ranks].reshape(-1)
    nodes = members[0][ranks]
    finest = blocks[-1]
    # `members[0]` are ranks, as `_ranks_of_nodes` lists them: the node is found by how many each node has before it.
    ends = np.cumsum(reach // gpus_per_rank)
    of_node = np.searchsorted(ends, nodes[:, 0], side="right")
    usable = reach >= gpus_per_rank
    if finest.level == len(tree.levels):
        at, count = np.unique(of_node, return_counts=True)
        return tuple(
            Part(1 << index, blocks_there * finest.ranks, gpus_per_rank)
            for index, blocks_there in zip(at.tolist(), count.tolist(), strict=True)
        )
    at, count = np.unique(tree.domain_of[finest.level][of_node], return_counts=True)
    starts = tree.starts[finest.level]
    parts: list[Part] = []
    for domain, blocks_there in zip(at.tolist(), count.tolist(), strict=True):
        begin, end = int(starts[domain]), int(starts[domain + 1])
        parts.append(Part(as_bits(usable[begin:end]) << begin, blocks_there * finest.ranks, gpus_per_rank))
    return tuple(parts)
