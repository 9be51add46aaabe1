"""Equally many ranks in each domain: what collective communication over several domains is fastest with.

A ring or halving algorithm works with groups as large as the greatest common divisor of the ranks in each domain; what
lies between two groups leaves the domain, even inside it.

Source: `topology.md`, section 3.7.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from streamsched.scheduling.bandwidth import BandwidthFirst
    from streamsched.scheduling.fragmentation import Counts, Nesting
    from streamsched.scheduling.utilization import UtilizationFirst
    from streamsched.state.topology import PoolTree


def symmetric_counts(counts: Iterable[int]) -> tuple[int, int]:
    """Return how large the logical groups of a placement are, and how many there are.

    >>> symmetric_counts([8, 8, 4])
    (4, 5)
    """
    counts = tuple(counts)
    group = gcd(*counts)
    return group, sum(counts) // group if group else 0


def can_be_even(tree: PoolTree, nesting: Nesting, blocks: list[Counts]) -> bool:
    """Whether a gang fits so that the domains of the coarsest level with several of its own take as many ranks each."""
    return bool(_even_domains(tree, nesting, blocks)[0][0])


def fill_evenly(
    tree: PoolTree, nesting: Nesting, blocks: list[Counts], search: BandwidthFirst | UtilizationFirst
) -> list[tuple[int, int]]:
    """Return nodes and ranks there, by place: one domain as long as one does, then as few equal parts as possible."""
    even = _even_domains(tree, nesting, blocks)
    wanted, domain = 1, 0
    for depth, ratio in enumerate(nesting.ratios[:-1]):
        wanted *= ratio
        first, end = (int(child) for child in tree.children[depth][domain : domain + 2])
        whole = first + np.flatnonzero(even[depth + 1][first:end])
        if whole.size:
            domain = int(search.order(depth + 1, whole)[0])
            continue
        for parts in _divisors(wanted)[1:]:
            share = wanted // parts
            able = first + np.flatnonzero(blocks[depth + 1][first:end] >= share)
            if able.size >= parts:
                chosen = np.sort(search.order(depth + 1, able)[:parts])
                return [seat for child in chosen.tolist() for seat in search.fill(depth + 1, child, share)]
    return search.fill(len(nesting.ratios) - 1, domain, wanted)


def _even_domains(tree: PoolTree, nesting: Nesting, blocks: list[Counts]) -> list[NDArray[np.bool_]]:
    """Return which domains hold the whole gang evenly, by depth down to the finest level. Nodes need not be even."""
    last = len(tree.children) - 1
    of_depth = [nesting.sizes[0] // size for size in nesting.sizes]
    even = [blocks[last] >= of_depth[last]]
    for depth in range(last - 1, -1, -1):
        starts = tree.children[depth][:-1]
        here = np.logical_or.reduceat(even[-1], starts)
        for parts in _divisors(of_depth[depth + 1])[1:]:
            if here.all():
                break
            able = blocks[depth + 1] >= of_depth[depth + 1] // parts
            here |= np.add.reduceat(able, starts, dtype=np.int64) >= parts
        even.append(here)
    return even[::-1]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
