"""Ranks onto nodes: where a gang sits, when its GPUs are free.

A gang that fits on one node takes the node where it leaves the least; a larger one takes the emptiest nodes, so that
it touches few, and its last ranks take the tightest. Among equal nodes the first by place goes first, and neighbours
in the topology are neighbours in that order.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from streamsched.model.events import Seat
from streamsched.state.inventory import MAX_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from streamsched.scheduling.draft import DraftPool
    from streamsched.state.inventory import Node

#: A node, and the GPUs that ranks take of it.
Share = tuple["Node", int]


def lowest_bits(mask: int, count: int) -> int:
    """Return the `count` lowest bits of a mask, which must have so many.

    >>> bin(lowest_bits(0b11010, 2))
    '0b1010'
    """
    if mask.bit_count() == count:
        return mask
    chosen = 0
    for _ in range(count):
        bit = mask & -mask
        chosen |= bit
        mask ^= bit
    return chosen


def place(pool: DraftPool, ranks: int, gpus_per_rank: int, nodes: int) -> tuple[Seat, ...] | None:
    """Seat a gang on free GPUs and take them; None, and nothing is taken, when it does not fit.

    Args:
        pool: Where to look; changed when the gang fits.
        ranks: Gang size.
        gpus_per_rank: GPUs of each rank, on one node.
        nodes: The nodes that may be used, as bits.
    """
    if pool.free.slots_on(gpus_per_rank, nodes) < ranks:
        return None
    shares: list[tuple[Node, int]] = []
    left = ranks
    while left:
        offered = pool.free.tightest(left * gpus_per_rank, nodes) if left * gpus_per_rank <= MAX_GPUS else -1
        if offered < 0:
            offered = next(gpus for gpus in range(MAX_GPUS, 0, -1) if pool.free.nodes[gpus] & nodes)
        node = pool.nodes[pool.free.first(offered, nodes)]
        here = min(left, offered // gpus_per_rank)
        mask = lowest_bits(pool.free_mask(node), here * gpus_per_rank)
        pool.take(node, mask)
        shares.append((node, mask))
        left -= here
    return seats_of(shares, gpus_per_rank)


def seats_of(shares: list[Share], gpus_per_rank: int) -> tuple[Seat, ...]:
    """Number the ranks over the nodes, in the order of their places, so that the ranks of a domain are contiguous."""
    seats: list[Seat] = []
    for node, mask in sorted(shares, key=lambda share: share[0].index):
        rest = mask
        while rest:
            chosen = lowest_bits(rest, gpus_per_rank)
            seats.append(_seat(len(seats), node.id, chosen))
            rest &= ~chosen
    return tuple(seats)


def seats_in_order(order: Iterable[tuple[int, int, int]], masks: Mapping[int, tuple[Node, int]]) -> tuple[Seat, ...]:
    """Number the ranks in a given order.

    Args:
        order: Node index, ranks there and GPUs of each, in rank order.
        masks: By node index, the node and the GPUs that the gang takes there.
    """
    seats: list[Seat] = []
    rest = {index: mask for index, (_, mask) in masks.items()}
    for index, ranks, gpus in order:
        for _ in range(ranks):
            chosen = lowest_bits(rest[index], gpus)
            rest[index] &= ~chosen
            seats.append(_seat(len(seats), masks[index][0].id, chosen))
    return tuple(seats)


@lru_cache(maxsize=16_384)
def _seat(rank: int, node: str, gpu_mask: int) -> Seat:
    """Return a seat, checked once: the same few are taken again and again."""
    return Seat(rank=rank, node=node, gpu_mask=gpu_mask)
