"""How many blocks of a gang fit in each domain, and what of its room they cannot use: its score for that gang.

A gang of nested equal blocks is a size at each depth of a tree: the whole gang at the root, one rank or more on a node.
From the bottom up, a domain holds as many blocks as those of its children make whole. What is left over are strays.
Each counts its ranks, ten times as many for each named level between it and where scores are compared.

    blocks = children's blocks // ratio
    score  = (children's blocks % ratio) * ranks of a child's block  +  10 * children's scores

The number of blocks at the root is exact, since blocks of equal size in different domains do not hinder each other.

Source: `topology.md`, sections 1.5, 1.8 and 3. A level that the gang does not name adds up and scores nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamsched.model.policy import FragmentScore
from streamsched.model.topology import NODE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamsched.model.topology import Layer
    from streamsched.state.topology import PoolTree

Counts = NDArray[np.signedinteger[Any]]

#: How much more a stray counts for each named level that it lies deeper.
_DEEPER = 10


class Nesting:
    """The block of a gang at each depth of a tree, from the root (0) to the node.

    Attributes:
        sizes: Ranks of a block.
        ratios: How many blocks of the next depth make one, for each depth but the last.
        named: Whether a layer names the depth.
    """

    __slots__ = ("named", "ratios", "sizes")

    def __init__(self, levels: tuple[str, ...], ranks: int, layers: Iterable[Layer]) -> None:
        """Nest layers, each of whose blocks is a multiple of the next. All of their levels must be known."""
        sizes = [ranks, *[1] * (len(levels) + 1)]
        named = [True, *[False] * (len(levels) + 1)]
        for layer in layers:
            depth = depth_of(levels, layer.level)
            sizes[depth] = max(sizes[depth], layer.ranks or ranks)
            named[depth] = True
        # What shares a rack shares what the rack is in.
        for depth in range(len(levels), 0, -1):
            sizes[depth] = max(sizes[depth], sizes[depth + 1])
        self.sizes = sizes
        self.ratios = [sizes[depth] // sizes[depth + 1] for depth in range(len(levels) + 1)]
        self.named = named


def depth_of(levels: tuple[str, ...], level: str) -> int:
    """Return how deep a level lies under the root, which is above all levels.

    Raises:
        ValueError: If there is no such level.
    """
    return len(levels) + 1 if level == NODE else levels.index(level) + 1


def blocks_that_fit(tree: PoolTree, nesting: Nesting, slots: Counts) -> list[Counts]:
    """Return how many blocks fit in each domain, by depth from the root to the node.

    Args:
        tree: With at least one node.
        nesting: The blocks.
        slots: How many ranks each node takes.
    """
    of_node = nesting.sizes[-1]
    blocks = slots if of_node == 1 else slots // of_node
    by_depth = [blocks]
    for depth in range(len(tree.levels), -1, -1):
        blocks = np.add.reduceat(blocks, tree.children[depth][:-1], dtype=np.int64)
        if nesting.ratios[depth] > 1:
            blocks //= nesting.ratios[depth]
        by_depth.append(blocks)
    return by_depth[::-1]


def strays_of(tree: PoolTree, nesting: Nesting, slots: Counts, blocks: list[Counts]) -> list[Counts]:
    """Return how many ranks of room each domain itself cannot make a block of, by depth; not those of its children.

    They stay as they are when blocks are placed there, since whole blocks leave whole blocks.
    """
    strays: list[Counts] = []
    for depth, ratio in enumerate(nesting.ratios):
        if ratio == 1:
            strays.append(np.zeros(len(blocks[depth]), np.int64))
            continue
        below = np.add.reduceat(blocks[depth + 1], tree.children[depth][:-1], dtype=np.int64)
        strays.append((below - blocks[depth] * ratio) * nesting.sizes[depth + 1])
    strays.append(slots - blocks[-1] * nesting.sizes[-1])
    return strays


def fragment_scores(tree: PoolTree, nesting: Nesting, strays: list[Counts], score: FragmentScore) -> list[Counts]:
    """Return the score of each domain, by depth. Lower is better.

    Each is an array of rows, the most significant first: one row where strays are weighed against each other, one for
    each depth, the node first, where the deepest decide.
    """
    depths = len(strays)
    if score is FragmentScore.WEIGHTED:
        scores = [strays[-1][np.newaxis, :]]
        for depth in range(depths - 2, -1, -1):
            below = np.add.reduceat(scores[-1], tree.children[depth][:-1], axis=1, dtype=np.int64)
            scores.append(strays[depth] + (below * _DEEPER if nesting.named[depth] else below))
        return scores[::-1]
    rows = np.zeros((depths, len(strays[-1])), np.int64)
    rows[0] = strays[-1]
    scores = [rows]
    for depth in range(depths - 2, -1, -1):
        rows = np.add.reduceat(scores[-1], tree.children[depth][:-1], axis=1, dtype=np.int64)
        rows[depths - 1 - depth] = strays[depth]
        scores.append(rows)
    return scores[::-1]
