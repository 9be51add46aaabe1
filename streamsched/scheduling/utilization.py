"""Utilization first: take what leaves the least that nobody can use, by the fragment scores of domains.

The published search. A domain that must supply blocks first asks those of its children that it can use up, the least
score and then the fewest blocks first; what is then missing it cuts from the smallest ones.

Where reserved nodes are needed, what fits without them comes first, and only the rest is searched among them.

Source: `topology.md`, sections 1.6, 1.7 and 9.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from streamsched.scheduling.fragmentation import Counts, Nesting
    from streamsched.state.topology import PoolTree


class UtilizationFirst:
    """One search in one tree."""

    __slots__ = ("_before", "_blocks", "_exact_fit", "_nesting", "_scores", "_tree")

    def __init__(
        self,
        tree: PoolTree,
        nesting: Nesting,
        blocks: list[Counts],
        scores: list[Counts],
        *,
        exact_fit: bool,
        before: list[Counts] | None = None,
    ) -> None:
        """Prepare a search.

        Args:
            tree: The domains.
            nesting: The blocks.
            blocks: How many fit in each domain, by depth.
            scores: The fragment scores, by depth.
            exact_fit: Whether a domain that holds exactly what is left, without strays, goes before several.
            before: How many fit in each domain with less of the reserve, where that does not do for the gang.
        """
        self._tree = tree
        self._nesting = nesting
        self._blocks = blocks
        self._scores = scores
        self._exact_fit = exact_fit
        self._before = before

    def order(self, depth: int, domains: Counts) -> Counts:
        """Return domains of a depth, the one to take first at the front."""
        rows = self._scores[depth][:, domains]
        return domains[np.lexsort((self._blocks[depth][domains], *rows[::-1]))]

    def parts_of(self, seats: list[tuple[int, int]]) -> tuple[int, ...]:  # noqa: ARG002
        """Return the key of the tree: its score before anything is placed."""
        return tuple(int(part) for part in self._scores[0][:, 0])

    def fill(self, depth: int, domain: int, wanted: int) -> list[tuple[int, int]]:
        """Return nodes and ranks there, by place, for so many blocks of a domain, which must hold them."""
        if depth == len(self._tree.children):
            return [(domain, wanted * self._nesting.sizes[-1])]
        first, end = (int(child) for child in self._tree.children[depth][domain : domain + 2])
        here = slice(first, end)
        blocks = self._blocks[depth + 1][here]
        scores = self._scores[depth + 1][:, here]
        wanted *= self._nesting.ratios[depth]
        before = None if self._before is None else self._before[depth + 1][here]
        if before is None:
            shares = self._share_out(blocks, scores, wanted)
        elif (enough := int(before.sum())) >= wanted:
            shares = self._share_out(before, scores, wanted)
        else:
            shares = self._share_out(blocks - before, scores, wanted - enough)
            for child in np.flatnonzero(before).tolist():
                shares[child] = shares.get(child, 0) + int(before[child])
        seats: list[tuple[int, int]] = []
        for child in sorted(shares):
            seats += self.fill(depth + 1, first + child, shares[child])
        return seats

    def _share_out(self, blocks: Counts, scores: Counts, wanted: int) -> dict[int, int]:
        """Return how many of the wanted blocks each domain supplies that supplies any."""
        if self._exact_fit:
            exact = np.flatnonzero((blocks == wanted) & ~scores.any(axis=0))
            if exact.size:
                return {int(exact[0]): wanted}
        shares: dict[int, int] = {}
        whole = np.flatnonzero((blocks > 0) & (blocks <= wanted))
        order = whole[np.lexsort((blocks[whole], *scores[::-1, whole]))]
        for child, fit in zip(order.tolist(), blocks[order].tolist(), strict=True):
            if fit <= wanted:
                shares[child] = fit
                wanted -= fit
                if not wanted:
                    return shares
        rest = blocks.copy()
        rest[list(shares)] = 0
        cut = np.flatnonzero(rest)
        order = cut[np.lexsort((*scores[::-1, cut], blocks[cut]))]
        for child in order.tolist():
            shares[child] = min(int(blocks[child]), wanted)
            wanted -= shares[child]
            if not wanted:
                break
        return shares
