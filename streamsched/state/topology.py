"""The topology tree of one pool, over its nodes in the order of their places.

That order makes each domain a stretch of neighbouring nodes, at every level, so a tree is a few arrays of integers: the
search adds up over stretches and divides, and knows of names only to say what it found.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamsched.state.inventory import Node

Integers = NDArray[np.int32]


class PoolTree:
    """The domains of one pool at each level, coarse to fine; the node, the finest of all, is left out.

    A node that reports fewer domains than there are levels is alone at the levels that it does not name, in a domain of
    its own name. Domains beyond the last level are not looked at, except that they order the nodes.
    """

    __slots__ = ("children", "domain_of", "levels", "nodes", "paths", "sizes", "starts")

    def __init__(self, levels: tuple[str, ...], nodes: Sequence[Node]) -> None:
        """Cut nodes, in the order of their places, into domains."""
        #: What the levels are called, coarse to fine.
        self.levels = levels
        #: How many nodes there are.
        self.nodes = len(nodes)
        #: How many GPUs each node has.
        self.sizes: NDArray[np.int16] = np.fromiter((node.gpus for node in nodes), np.int16, len(nodes))
        starts: list[list[int]] = [[] for _ in levels]
        paths: list[list[tuple[str, ...]]] = [[] for _ in levels]
        depth = len(levels)
        before: tuple[str, ...] | None = None
        for index, node in enumerate(nodes):
            domains = node.domains
            if domains == before and len(domains) >= depth:
                continue
            shared = _shared(before, domains, depth) if before is not None else 0
            before = domains
            path = domains[:depth] + (node.id,) * (depth - len(domains))
            for level in range(shared, depth):
                starts[level].append(index)
                paths[level].append(path[: level + 1])
        #: By level: the index of the first node of each domain, and at the end the number of nodes.
        self.starts: tuple[Integers, ...] = tuple(np.array([*firsts, self.nodes], np.int32) for firsts in starts)
        #: By level: the number of the domain that each node lies in.
        self.domain_of: tuple[Integers, ...] = tuple(
            np.repeat(np.arange(len(firsts) - 1, dtype=np.int32), np.diff(firsts)) for firsts in self.starts
        )
        #: By level: the names of each domain, from the coarsest level down to its own.
        self.paths: tuple[tuple[tuple[str, ...], ...], ...] = tuple(map(tuple, paths))
        #: By depth, from the root above all levels: the first child of each domain at the next depth, and the number of
        #: children at the end. Those of the last level are nodes.
        self.children: tuple[NDArray[np.intp], ...] = tuple(
            np.searchsorted(finer, coarser)
            for coarser, finer in pairwise(
                (np.array([0, self.nodes], np.int32), *self.starts, np.arange(self.nodes + 1, dtype=np.int32))
            )
        )


def _shared(one: tuple[str, ...], other: tuple[str, ...], depth: int) -> int:
    """Return at how many levels, from the coarsest, two nodes lie in the same domain."""
    shared = 0
    for mine, yours in zip(one[:depth], other[:depth], strict=False):
        if mine != yours:
            break
        shared += 1
    return shared
