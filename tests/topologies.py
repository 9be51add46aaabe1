"""Topology trees for tests, each written as the free GPUs of its nodes by domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsched.scheduling.affinity import Ask, NoFit, Seating, domain_counts, reserve_places, seat_gang
from streamsched.state.inventory import Node
from streamsched.state.topology import PoolTree


@dataclass(frozen=True)
class Forest:
    """One tree, and what its nodes have free."""

    tree: PoolTree
    free: NDArray[np.signedinteger[Any]]
    names: tuple[str, ...]

    def seat(self, ask: Ask, **kept: int) -> Seating | NoFit:
        """Search seats for a gang, with so many nodes of 8 GPUs kept in each domain of a level."""
        reserve = reserve_places(self.tree, self.free == 8, [(level, None, nodes) for level, nodes in kept.items()])
        return seat_gang(self.tree, self.free, ask, reserve if kept else None)

    def seated(self, ask: Ask, **kept: int) -> Seating:
        """Search seats for a gang that must have room."""
        found = self.seat(ask, **kept)
        assert isinstance(found, Seating), found
        return found

    def counts(self, seating: Seating, level: str) -> dict[str, int]:
        """Return how many ranks sit in each domain of a level, by its own name."""
        paths = self.tree.paths[self.tree.levels.index(level)]
        return {paths[domain][-1]: ranks for domain, ranks in domain_counts(self.tree, seating.seats)[level].items()}

    def by_node(self, seating: Seating) -> dict[str, int]:
        """Return how many ranks sit on each node."""
        ranks: dict[str, int] = {}
        for index, here in seating.seats:
            ranks[self.names[index]] = ranks.get(self.names[index], 0) + here
        return ranks


def forest(levels: str, free: Mapping[str, Sequence[int]]) -> Forest:
    """Return a tree with these levels: the free GPUs of the nodes in each finest domain, which is given by its path.

    >>> forest("supernode rack", {"s0/r0": [8, 8], "s0/r1": [4]}).names
    ('s0/r0/0', 's0/r0/1', 's0/r1/0')
    """
    nodes = [
        (Node(f"{path}/{number}", "gpu", 8, tuple(path.split("/")), now_ms=0), gpus)
        for path, all_gpus in free.items()
        for number, gpus in enumerate(all_gpus)
    ]
    nodes.sort(key=lambda entry: entry[0].place_key)
    tree = PoolTree(tuple(levels.split()), [node for node, _ in nodes])
    return Forest(tree, np.array([gpus for _, gpus in nodes], np.int16), tuple(node.id for node, _ in nodes))


def whole(**nodes: int) -> dict[str, list[int]]:
    """Return so many wholly free nodes of 8 GPUs in each domain."""
    return {domain: [8] * number for domain, number in nodes.items()}
