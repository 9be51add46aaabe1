"""Seats for a gang of equal ranks: what is possible, which wishes can be had, and then what is better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamsched.model.topology import NODE, Preference, Wish
from streamsched.scheduling.bandwidth import BandwidthFirst
from streamsched.scheduling.fragmentation import Nesting, blocks_that_fit, depth_of, fragment_scores, strays_of
from streamsched.scheduling.reserves import beside
from streamsched.scheduling.seating import Fit, is_known
from streamsched.scheduling.symmetry import can_be_even, fill_evenly
from streamsched.scheduling.utilization import UtilizationFirst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamsched.model.topology import Layer
    from streamsched.scheduling.fragmentation import Counts
    from streamsched.scheduling.seating import Ask
    from streamsched.state.topology import PoolTree


class Places:
    """The room of one tree for one gang, as much of it as must be opened to the gang."""

    __slots__ = ("_ask", "_before", "_reserve", "_slots", "_tree", "passes")

    def __init__(self, tree: PoolTree, slots: Counts, reserve: Counts | None, ask: Ask) -> None:
        self._tree = tree
        self._ask = ask
        self._reserve = reserve
        self._slots = slots
        #: The slots with one reserved node more kept in each domain, where reserved nodes are drawn on.
        self._before: Counts | None = None
        self.passes = 1

    def open_for(self, required: Sequence[Layer]) -> bool:
        """Open as many reserved nodes as the gang needs, the same number in each domain; whether it fits at all."""
        whole, reserve = self._slots, self._reserve
        if reserve is None or not reserve.any():
            return self._holds(whole, required)
        kept = int(reserve.max())
        self._slots = beside(whole, reserve, kept)
        if self._holds(self._slots, required):
            return True
        self.passes = 2
        if not self._holds(whole, required):
            self._slots = whole
            return False
        fewer = 0
        while kept - fewer > 1:
            middle = (kept + fewer) // 2
            if self._holds(beside(whole, reserve, middle), required):
                fewer = middle
            else:
                kept = middle
        self._slots = beside(whole, reserve, fewer)
        self._before = beside(whole, reserve, fewer + 1)
        return True

    def settle(self, layers: list[Layer], wish: Layer) -> Layer | None:
        """Return a preferred layer at its own level or the finest coarser one at which it can be had beside others."""
        if not is_known(self._tree, wish):
            return None
        for level in (*self._tree.levels, NODE)[depth_of(self._tree.levels, wish.level) - 1 :: -1]:
            layer = wish.model_copy(update={"level": level, "wish": Wish.REQUIRED})
            if self._holds(self._slots, [*layers, layer]):
                return layer
        return None

    def fits(self, required: Sequence[Layer]) -> tuple[Fit, ...]:
        """Return how many blocks of each required layer there is room for."""
        nesting = Nesting(self._tree.levels, self._ask.ranks, required)
        blocks = blocks_that_fit(self._tree, nesting, self._slots)
        fits = []
        for layer in required:
            depth = depth_of(self._tree.levels, layer.level)
            ranks_with_room = int(blocks[depth].sum()) * nesting.sizes[depth]
            fits.append(Fit.of(layer, self._ask.ranks, ranks_with_room // (layer.ranks or self._ask.ranks)))
        return tuple(fits)

    def best(self, layers: Sequence[Layer]) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
        """Return the best seats with these layers, all of them required, and the key of the placement."""
        tree, ask, slots = self._tree, self._ask, self._slots
        nesting = Nesting(tree.levels, ask.ranks, layers)
        return seat_equal(tree, nesting, slots, ask, self._before)

    def _holds(self, slots: Counts, layers: Sequence[Layer]) -> bool:
        nesting = Nesting(self._tree.levels, self._ask.ranks, layers)
        blocks = blocks_that_fit(self._tree, nesting, slots)
        return bool(blocks[0][0]) and (not self._ask.symmetric or can_be_even(self._tree, nesting, blocks))


def seat_equal(
    tree: PoolTree, nesting: Nesting, slots: Counts, ask: Ask, before: Counts | None = None
) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """Return the best seats of equal ranks, which must fit, by place; and the key of the placement.

    Args:
        tree: The domains.
        nesting: The blocks.
        slots: How many ranks each node takes.
        ask: What is better.
        before: The slots with less of the reserve, which do not do.
    """
    blocks = blocks_that_fit(tree, nesting, slots)
    strays = strays_of(tree, nesting, slots, blocks)
    if ask.preference is Preference.BANDWIDTH_FIRST:
        search: BandwidthFirst | UtilizationFirst = BandwidthFirst(tree, nesting, blocks, strays, slots)
    else:
        scores = fragment_scores(tree, nesting, strays, ask.score)
        less = None if before is None else blocks_that_fit(tree, nesting, before)
        search = UtilizationFirst(tree, nesting, blocks, scores, exact_fit=ask.exact_fit, before=less)
    single = _tightest(tree, slots, nesting.sizes[0])
    if single is not None:
        seats = [(single, nesting.sizes[0])]
    elif ask.symmetric:
        seats = fill_evenly(tree, nesting, blocks, search)
    else:
        seats = search.fill(0, 0, 1)
    return seats, search.parts_of(seats)


def _tightest(tree: PoolTree, slots: Counts, ranks: int) -> int | None:
    """Return the node with the least room that holds a whole gang, then that in the domains with the least room."""
    nodes = np.flatnonzero(slots >= ranks)
    if not nodes.size:
        return None
    nodes = nodes[slots[nodes] == slots[nodes].min()]
    for starts, domain_of in zip(tree.starts, tree.domain_of, strict=True):
        room = np.add.reduceat(slots, starts[:-1], dtype=np.int64)[domain_of[nodes]]
        nodes = nodes[room == room.min()]
    return int(nodes[0])
