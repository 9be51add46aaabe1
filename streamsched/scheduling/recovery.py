"""Places for the lost ranks of a gang that recovers, beside those that stay where they are.

Each lost block gets a place inside the domain of the block around it, the deepest block first, since it has the least
choice. A block that finds none gives way to the block around it, which moves whole, as often as the recovery may by
now. The search has all free GPUs to choose from, reserved nodes last, what is pinned for the ranks that move, and for
want of those the GPUs of unallocated work.

Source: `topology.md`, sections 4.3 and 9.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from streamsched.model.events import Seat, Victim
from streamsched.model.topology import NODE, TopologyRequest, Wish
from streamsched.scheduling.affinity import Ask, NoFit, seat_gang, violations
from streamsched.scheduling.placement import lowest_bits
from streamsched.scheduling.reserves import last_resort
from streamsched.state.recoveries import Block, Chain, domain_around, kept_ranks, lost_blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from streamsched.model.topology import Layer
    from streamsched.scheduling.draft import Draft, DraftPool
    from streamsched.state.inventory import Node, RunKey
    from streamsched.state.recoveries import Recovering
    from streamsched.state.workloads import Workload


def seat_again(draft: Draft, recovery: Recovering) -> tuple[tuple[Seat, ...], tuple[Victim, ...]] | None:
    """Seat a gang that recovers, its survivors where they were, and take its seats; None when there is no room.

    Args:
        draft: The decision in the making; changed when there is room.
        recovery: A gang whose run has stopped everywhere.
    """
    state = draft.state
    workload = state.workloads[recovery.workload]
    topology = workload.topology or TopologyRequest()
    home = state.nodes[next(iter(recovery.pins))].home
    pool = draft.pool(state.inventory.pools[home])
    kept = kept_ranks(state, recovery, pool.free_mask)
    moving = {rank for rank in range(workload.ranks) if rank not in kept}
    #: How many blocks have given way, one inside the other, by the block that they gave way to.
    given_way: dict[Block, int] = {}
    while True:
        lost = sorted(lost_blocks(topology, workload.ranks, moving), key=lambda chain: (-len(chain), chain[-1].first))
        if lost and len(lost[-1]) == 1:
            return None
        search = _Search(draft, pool, workload, topology, recovery, moving, displaces=False)
        if search.replace(lost) is None:
            return search.take()
        search = _Search(draft, pool, workload, topology, recovery, moving, displaces=True)
        stuck = search.replace(lost)
        if stuck is None:
            return search.take()
        block, around = stuck[-1], stuck[-2]
        if len(stuck) == 2 or given_way.get(block, 0) >= recovery.step:
            return None
        inside = [times for other, times in given_way.items() if around.first <= other.first < around.end]
        given_way[around] = max(inside, default=0) + 1
        moving.update(range(around.first, around.end))


@dataclass(slots=True)
class _Search:
    """One way to seat a gang: these ranks move, and unallocated work is displaced, or is not."""

    draft: Draft
    pool: DraftPool
    workload: Workload
    topology: TopologyRequest
    recovery: Recovering
    moving: set[int]
    displaces: bool
    #: GPUs of each node, in the order of their places, that may be taken; and of those nodes that differ from the draft
    #: which ones are free.
    offers: NDArray[np.int16] = field(init=False)
    free: dict[int, int] = field(default_factory=dict)
    stays: dict[int, Node] = field(default_factory=dict)
    masks: dict[int, tuple[Node, int]] = field(default_factory=dict)
    victims: dict[RunKey, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        state, pool, workload = self.draft.state, self.pool, self.workload
        room = pool.reclaimable if self.displaces else pool.free
        self.offers = room.gpus
        usable = self.draft.nodes_for(pool.pool, workload.shape, allocated=True)
        bits = np.frombuffer(usable.to_bytes(len(pool.nodes) // 8 + 1, "little"), np.uint8)
        self.offers[np.unpackbits(bits, bitorder="little")[: len(pool.nodes)] == 0] = 0

        def free(node: Node) -> int:
            return pool.free_mask(node) if usable >> node.index & 1 else 0

        for id_ in self.recovery.pins:
            node = state.nodes[id_]
            self.free[node.index] = free(node) | node.pins[workload.id] & node.unheld_mask
        for seat in self.recovery.seats:
            if seat.rank not in self.moving:
                node = state.nodes[seat.node]
                self.stays[seat.rank] = node
                self.masks[seat.rank] = (node, seat.gpu_mask)
                self.free[node.index] = self.free.get(node.index, free(node)) & ~seat.gpu_mask
        for index in self.free:
            self._count(pool.nodes[index])

    def _count(self, node: Node) -> None:
        """Note how many GPUs a node offers, which is not what the draft says."""
        mask = self.free[node.index]
        for held in self._displaceable(node).values():
            mask |= held
        self.offers[node.index] = mask.bit_count()

    def _displaceable(self, node: Node) -> dict[RunKey, int]:
        if not self.displaces:
            return {}
        return {key: mask for key, mask in self.pool.preemptible(node).items() if key not in self.victims}

    def replace(self, lost: Sequence[Chain]) -> Chain | None:
        """Find a place for each lost block in turn; return the first that has none, or None when all have one."""
        tree = self.pool.pool.tree
        for chain in lost:
            block = chain[-1]
            offers = self.offers
            domain = domain_around(self.draft.state, self.stays, chain[:-1])
            if domain is not None:
                index = domain.node.index
                begin, end = index, index + 1
                if domain.level in tree.levels:
                    level = tree.levels.index(domain.level)
                    number = int(tree.domain_of[level][index])
                    begin, end = int(tree.starts[level][number]), int(tree.starts[level][number + 1])
                offers = np.zeros_like(self.offers)
                offers[begin:end] = self.offers[begin:end]
            ask = self._ask(block)
            reserve = last_resort(self.draft.state.policy, self.pool, self.workload, recovers=True)
            seating = seat_gang(tree, offers, ask, reserve)
            if isinstance(seating, NoFit):
                return chain
            places = [index for index, ranks in seating.seats for _ in range(ranks)]
            for rank, index in zip(range(block.first, block.end), self._in_place(ask, block, places), strict=True):
                self._sit(rank, self.pool.nodes[index], ask.gpus_per_rank)
        return None if not lost or self._holds() else lost[-1]

    def _ask(self, block: Block) -> Ask:
        """Return what a block asks for by itself: what it shares as a whole, and the layers inside it."""
        topology, policy = self.topology, self.draft.state.policy
        layers, size, gpus = topology.layers, self.workload.ranks, self.workload.gpus_per_rank
        first = 0
        for group in topology.groups:
            layers, size, gpus = group.layers, group.ranks, group.gpus_per_rank or self.workload.gpus_per_rank
            if block.first < first + size:
                break
            first += size
        ranks = block.end - block.first
        inside = [layer.model_copy(update={"ranks": layer.ranks or size}) for layer in layers]
        return Ask(
            ranks=ranks,
            gpus_per_rank=gpus,
            layers=tuple(layer for layer in inside if (layer.ranks or size) <= ranks),
            preference=topology.preference or policy.preference,
            score=policy.fragment_score,
        )

    def _in_place(self, ask: Ask, block: Block, places: list[int]) -> list[int]:
        """Let ranks that move stay on a node that they had, as far as the layers do not tell them apart."""
        if any(layer.level == NODE for layer in ask.layers):
            return places
        size = min((layer.ranks or ask.ranks for layer in ask.layers), default=ask.ranks)
        nodes = self.draft.state.nodes
        before: list[int | None] = []
        for rank in range(block.first, block.end):
            node = nodes.get(self.recovery.seats[rank].node)
            before.append(node.index if node is not None and node.home == self.pool.pool.id else None)
        return [
            place
            for first in range(0, ask.ranks, size)
            for place in stay_put(before[first : first + size], places[first : first + size])
        ]

    def _sit(self, rank: int, node: Node, gpus: int) -> None:
        """Give a rank GPUs of a node: free ones first, then those of the smallest runs that may be displaced."""
        free = self.free.get(node.index, self.pool.free_mask(node))
        if free.bit_count() < gpus:
            for key, mask in sorted(self._displaceable(node).items(), key=lambda item: (item[1].bit_count(), item[0])):
                self.victims[key] = None
                free |= mask
                if free.bit_count() >= gpus:
                    break
        mask = lowest_bits(free, gpus)
        self.masks[rank] = (node, mask)
        self.stays[rank] = node
        self.free[node.index] = free & ~mask
        self._count(node)

    def _holds(self) -> bool:
        """Whether the gang as a whole has what it requires, survivors and newcomers together."""
        seats = [(self.stays[rank].index, 1) for rank in range(self.workload.ranks)]
        return not violations(self.pool.pool.tree, required_of(self.topology, self.workload), seats)

    def take(self) -> tuple[tuple[Seat, ...], tuple[Victim, ...]]:
        """Take what was found from the draft; return the seats in rank order, and who is stopped for them."""
        state = self.draft.state
        seats = []
        for rank in range(self.workload.ranks):
            node, mask = self.masks[rank]
            self.pool.take(node, mask & self.pool.free_mask(node))
            seats.append(Seat(rank=rank, node=node.id, gpu_mask=mask))
        for key in self.victims:
            run = state.workloads[key[0]].run
            if run is not None:
                self.pool.stop(key, [state.nodes[id_] for id_ in run.held if state.nodes[id_].takes_work])
        return tuple(seats), tuple(Victim(workload=id_, attempt=attempt) for id_, attempt in self.victims)


def required_of(topology: TopologyRequest, workload: Workload) -> Ask:
    """Return what a gang must have, without what it would like."""

    def required(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        return tuple(layer for layer in layers if layer.wish is Wish.REQUIRED)

    return Ask(
        ranks=workload.ranks,
        gpus_per_rank=workload.gpus_per_rank,
        layers=required(topology.layers),
        groups=tuple(group.model_copy(update={"layers": required(group.layers)}) for group in topology.groups),
        symmetric=topology.symmetric,
    )


def stay_put(before: Sequence[int | None], places: Sequence[int]) -> list[int]:
    """Order places so that who had one of them keeps it; the others are filled in their order.

    >>> stay_put([1, 2, 3], [2, 3, 4])
    [4, 2, 3]
    """
    left = list(places)
    chosen: list[int | None] = []
    for place in before:
        if place in left:
            left.remove(place)
            chosen.append(place)
        else:
            chosen.append(None)
    return [left.pop(0) if place is None else place for place in chosen]
