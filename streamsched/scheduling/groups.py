"""Seats for a gang whose ranks are not all alike, and what it may wish for beside that.

Under bandwidth first it sits in one domain of the finest level that holds it, if that can be had without much ado.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from streamsched.model.topology import NODE, Preference, Wish
from streamsched.scheduling.equal_ranks import Places, seat_equal
from streamsched.scheduling.fragmentation import Nesting, blocks_that_fit, depth_of
from streamsched.scheduling.packing import Packing, Part, Sharing, cut_into_parts
from streamsched.scheduling.reserves import beside
from streamsched.scheduling.seating import Fit, NoFit, Seating, domain_counts, is_known, uneven

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamsched.model.topology import Group, Layer
    from streamsched.scheduling.fragmentation import Counts
    from streamsched.scheduling.seating import Ask, Seats
    from streamsched.state.topology import PoolTree

#: After how many choices a search for unequal groups gives up a domain that need not be.
_FEW_CHOICES: Final = 64


class _Groups:
    """The layers of a gang of unequal groups as they are settled, and what they leave possible in one tree."""

    __slots__ = ("_ask", "_free", "_tree", "layers", "of_groups")

    def __init__(self, tree: PoolTree, free: Counts, ask: Ask) -> None:
        self._tree = tree
        self._free = free
        self._ask = ask
        #: Those of the gang, and those of each group; all of them required.
        self.layers = [layer for layer in ask.layers if layer.wish is Wish.REQUIRED]
        self.of_groups = [[layer for layer in group.layers if layer.wish is Wish.REQUIRED] for group in ask.groups]

    def settle(self, layers: list[Layer], wish: Layer) -> str | None:
        """Add a preferred layer at the finest level, from its own on, at which it can be had; return that level."""
        if not is_known(self._tree, wish):
            return None
        for level in (*self._tree.levels, NODE)[depth_of(self._tree.levels, wish.level) - 1 :: -1]:
            before = layers.copy()
            layers.append(wish.model_copy(update={"level": level, "wish": Wish.REQUIRED}))
            layers.sort(key=lambda layer: depth_of(self._tree.levels, layer.level))
            if not isinstance(self.seats(), NoFit):
                return level
            layers[:] = before
        return None

    def seats(self) -> Seats | NoFit:
        """Return seats in rank order; under bandwidth first in the finest level of which one domain does, if any."""
        tree, ask = self._tree, self._ask
        groups = [
            group.model_copy(update={"layers": tuple(layers)})
            for group, layers in zip(ask.groups, self.of_groups, strict=True)
        ]
        parts = cut_into_parts(tree.levels, ask.ranks, ask.gpus_per_rank, self.layers, groups)
        if parts is None:
            return self._no_fit(groups, is_proven=False)
        if ask.preference is Preference.BANDWIDTH_FIRST:
            for depth in range(len(tree.levels), 0, -1):
                within = Part(0, ask.ranks, depth, parts)
                sharing = Packing(tree, self._free, [within], self._seat_group, _FEW_CHOICES).search(self._is_allowed)
                if sharing is not None:
                    return _in_order(sharing)
        packing = Packing(tree, self._free, parts, self._seat_group)
        sharing = packing.search(self._is_allowed)
        return _in_order(sharing) if sharing is not None else self._no_fit(groups, is_proven=packing.is_proven)

    def _seat_group(self, part: Part, slots: Counts) -> list[tuple[int, int]] | None:
        nesting = Nesting(self._tree.levels, part.ranks, part.layers)
        if not blocks_that_fit(self._tree, nesting, slots)[0][0]:
            return None
        return seat_equal(self._tree, nesting, slots, replace(self._ask, symmetric=False))[0]

    def _is_allowed(self, sharing: Sharing) -> bool:
        return not self._ask.symmetric or not uneven(self._tree, _in_order(sharing))

    def _no_fit(self, groups: Sequence[Group], *, is_proven: bool) -> NoFit:
        """Count what fits of each required layer of each group as if it were alone."""
        fits: list[Fit] = []
        for group in groups:
            alone = replace(
                self._ask,
                ranks=group.ranks,
                gpus_per_rank=group.gpus_per_rank or self._ask.gpus_per_rank,
                symmetric=False,
            )
            slots = self._free // alone.gpus_per_rank
            fits += Places(self._tree, slots, None, alone).fits(group.layers)
        return NoFit(tuple(fits), is_proven)


def _in_order(sharing: Sharing) -> Seats:
    return tuple(seat for group in sorted(sharing) for seat in sharing[group])


def seat_groups(tree: PoolTree, free: Counts, ask: Ask, reserve: Counts | None) -> Seating | NoFit:
    layers = (*ask.layers, *(layer for group in ask.groups for layer in group.layers))
    if not tree.nodes or not all(is_known(tree, layer) for layer in layers if layer.wish is Wish.REQUIRED):
        return NoFit(())
    passes = 1
    gang = _Groups(tree, free if reserve is None else beside(free, reserve, int(reserve.max())), ask)
    seats = gang.seats()
    if isinstance(seats, NoFit) and reserve is not None and reserve.any():
        passes = 2
        gang = _Groups(tree, free, ask)
        seats = gang.seats()
    if isinstance(seats, NoFit):
        return seats
    relaxed: list[tuple[Layer, str | None]] = []
    for settled, asked in (
        (gang.layers, ask.layers),
        *zip(gang.of_groups, (group.layers for group in ask.groups), strict=True),
    ):
        for layer in asked:
            if layer.wish is Wish.PREFERRED:
                level = gang.settle(settled, layer)
                if level != layer.level:
                    relaxed.append((layer, level))
    seats = gang.seats()
    if isinstance(seats, NoFit):
        raise AssertionError("wishes that were settled one by one do not hold together")
    used = tuple(len(counts) for counts in domain_counts(tree, seats).values())
    key = (*used, len({index for index, _ in seats}))
    return Seating(seats, tuple(gang.layers), tuple(relaxed), key, passes, tuple(map(tuple, gang.of_groups)))
