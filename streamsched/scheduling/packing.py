"""Groups of ranks that are not all alike: leaders and workers, or those that prefill and those that decode.

Unequal groups hinder each other, so what fits is a question of packing, and no single pass over the tree answers it.
The gang is cut into parts: blocks of whole groups that share a domain, and in them the groups, each of which is a gang
of equal ranks. Larger parts choose first, a block the domain with the least room that might hold it, a group its best
place as if it were alone. When a later part finds no room, earlier ones choose again: another domain, then every other
way to share the group out. That is complete, but may take long, so it ends after so many choices, and the answer then
says that it is not proven.

Source: `topology.md`, section 9.12.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from streamsched.scheduling.fragmentation import Nesting, blocks_that_fit, depth_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamsched.model.topology import Group, Layer
    from streamsched.scheduling.fragmentation import Counts
    from streamsched.state.topology import PoolTree

#: After how many choices a search for unequal groups gives up.
MOST_CHOICES: Final = 2_000
#: The most nodes among which every way to share out a group is tried.
_MOST_NODES: Final = 64

#: Nodes and ranks there, by place, of each group by its number.
Sharing = dict[int, list[tuple[int, int]]]


@dataclass(slots=True)
class Part:
    """Consecutive ranks: a block that shares a domain at a depth, made of parts; or one group."""

    first: int
    ranks: int
    depth: int = 0
    parts: list[Part] = field(default_factory=list)
    group: int = -1
    gpus: int = 0
    layers: tuple[Layer, ...] = ()

    def sizes(self) -> list[tuple[int, int]]:
        """Return ranks and GPUs of each, group by group."""
        return [size for part in self.parts for size in part.sizes()] if self.parts else [(self.ranks, self.gpus)]

    @property
    def order(self) -> tuple[int, int, int]:
        """What chooses first: the most GPUs, then the largest ranks."""
        sizes = self.sizes()
        return (-sum(ranks * gpus for ranks, gpus in sizes), -max(gpus for _, gpus in sizes), self.first)


def cut_into_parts(
    levels: tuple[str, ...], ranks: int, gpus_per_rank: int, layers: Sequence[Layer], groups: Sequence[Group]
) -> list[Part] | None:
    """Return the parts of a gang; None where blocks and groups overlap without one being made of the other.

    All layers are taken as required.
    """
    sized = [(depth_of(levels, layer.level), layer.ranks or ranks) for layer in layers]
    parts = []
    first = 0
    for number, group in enumerate(groups):
        inside = [
            layer.model_copy(update={"ranks": size})
            for layer, (_, size) in zip(layers, sized, strict=True)
            if _is_made_of(first, group.ranks, size)
        ]
        part = Part(first, group.ranks, group=number, gpus=group.gpus_per_rank or gpus_per_rank)
        part.layers = (*inside, *group.layers)
        sizes = Nesting(levels, group.ranks, part.layers).sizes
        if any(coarse % fine for coarse, fine in pairwise(sizes)):
            return None
        parts.append(part)
        first += group.ranks
    for depth, size in reversed(sized):
        blocks: list[Part] = []
        for part in parts:
            if _is_made_of(part.first, part.ranks, size):
                blocks.append(part)
                continue
            start = part.first // size * size
            if part.first + part.ranks > start + size:
                return None
            if part.first == start:
                blocks.append(Part(start, size, depth))
            elif blocks[-1].first != start or blocks[-1].ranks != size:
                return None
            blocks[-1].parts.append(part)
        parts = blocks
    return parts


def _is_made_of(first: int, ranks: int, size: int) -> bool:
    """Whether consecutive ranks are whole blocks of a size."""
    return ranks >= size and first % size == 0 == ranks % size


#: Returns the best seats of a group of equal ranks with required layers on nodes with so many slots, or nothing.
SeatEqual = Callable[["Part", "Counts"], "list[tuple[int, int]] | None"]


class Packing:
    """One search for seats of unequal groups."""

    __slots__ = ("_choices", "_free", "_is_cut_short", "_parts", "_seat_equal", "_tree")

    def __init__(
        self, tree: PoolTree, free: Counts, parts: list[Part], seat_equal: SeatEqual, choices: int = MOST_CHOICES
    ) -> None:
        """Prepare a search.

        Args:
            tree: The domains.
            free: GPUs that each node offers.
            parts: From `cut_into_parts`.
            seat_equal: Seats one group as if it were alone.
            choices: After how many it gives up.
        """
        self._tree = tree
        self._free = free.astype(np.int64)
        self._parts = parts
        self._seat_equal = seat_equal
        self._choices = choices
        self._is_cut_short = False

    @property
    def is_proven(self) -> bool:
        """Whether nothing was left untried, when nothing was found."""
        return not self._is_cut_short

    def search(self, is_allowed: Callable[[Sharing], bool]) -> Sharing | None:
        """Return the first way to seat all parts that is allowed, or None."""
        return next(
            filter(is_allowed, self._seat_all(sorted(self._parts, key=lambda part: part.order), 0, 0, {})), None
        )

    def _seat_all(self, parts: list[Part], depth: int, domain: int, seated: Sharing) -> Iterator[Sharing]:
        """Yield every way to seat parts inside a domain beside what is seated. GPUs are taken while it is looked at."""
        if not parts:
            yield seated
            return
        part, *others = parts
        for sharing in self._ways(part, depth, domain):
            yield from self._seat_all(others, depth, domain, seated | sharing)

    def _ways(self, part: Part, depth: int, domain: int) -> Iterator[Sharing]:
        if part.group >= 0:
            yield from self._ways_of_group(part, depth, domain)
            return
        if part.depth <= depth:
            yield from self._seat_all(sorted(part.parts, key=lambda inner: inner.order), depth, domain, {})
            return
        for choice in self._candidates(part, depth, domain):
            if not self._may_choose():
                return
            yield from self._seat_all(sorted(part.parts, key=lambda inner: inner.order), part.depth, choice, {})

    def _may_choose(self) -> bool:
        self._choices -= 1
        self._is_cut_short |= self._choices < 0
        return self._choices >= 0

    def _candidates(self, part: Part, depth: int, domain: int) -> list[int]:
        """Return the domains that might hold a part, those with the least room first, and of twins only the first."""
        starts = self._starts(part.depth)
        first, end = np.searchsorted(starts, self._range(depth, domain))
        able = np.ones(end - first, np.bool_)
        for least in {gpus for _, gpus in part.sizes()}:
            slots = np.add.reduceat(self._free // least, starts[:-1])[first:end]
            able &= slots >= sum(ranks for ranks, gpus in part.sizes() if gpus >= least)
        room = np.add.reduceat(self._free, starts[:-1])[first:end]
        able &= room >= sum(ranks * gpus for ranks, gpus in part.sizes())
        candidates: list[int] = []
        seen = set()
        for choice in np.argsort(room, kind="stable").tolist():
            if able[choice]:
                looks = self._looks(part.depth, int(first) + choice)
                if looks not in seen:
                    seen.add(looks)
                    candidates.append(int(first) + choice)
        return candidates

    def _looks(self, depth: int, domain: int) -> tuple[bytes, ...]:
        """Return what a domain looks like: two that look the same are as good as each other."""
        first, end = self._range(depth, domain)
        inside = [self._tree.domain_of[level][first:end] for level in range(depth, len(self._tree.levels))]
        return (self._free[first:end].tobytes(), *((numbers - numbers[0]).tobytes() for numbers in inside))

    def _starts(self, depth: int) -> Counts:
        tree = self._tree
        return tree.starts[depth - 1] if depth <= len(tree.levels) else np.arange(tree.nodes + 1)

    def _range(self, depth: int, domain: int) -> tuple[int, int]:
        """Return the first node of a domain and the one after its last."""
        if depth == 0:
            return 0, self._tree.nodes
        starts = self._starts(depth)
        return int(starts[domain]), int(starts[domain + 1])

    def _ways_of_group(self, part: Part, depth: int, domain: int) -> Iterator[Sharing]:
        """Yield the best way to seat a group inside a domain, and then all others."""
        slots = np.zeros(self._tree.nodes, np.int64)
        here = slice(*self._range(depth, domain))
        slots[here] = self._free[here] // part.gpus
        if not self._may_choose():
            return
        best = self._seat_equal(part, slots)
        if best is None:
            return
        yield from self._taken(part, best)
        if np.count_nonzero(slots) > _MOST_NODES:
            self._is_cut_short = True
            return
        nesting = Nesting(self._tree.levels, part.ranks, part.layers)
        blocks = blocks_that_fit(self._tree, nesting, slots)
        for seats in self._all_ways(nesting, blocks, [(0, 0, 1)]):
            if not self._may_choose():
                return
            yield from self._taken(part, seats)

    def _taken(self, part: Part, seats: list[tuple[int, int]]) -> Iterator[Sharing]:
        """Yield seats of a group with their GPUs taken, and give them back afterwards."""
        for index, ranks in seats:
            self._free[index] -= ranks * part.gpus
        yield {part.group: sorted(seats)}
        for index, ranks in seats:
            self._free[index] += ranks * part.gpus

    def _all_ways(
        self, nesting: Nesting, blocks: list[Counts], open_: list[tuple[int, int, int]]
    ) -> Iterator[list[tuple[int, int]]]:
        """Yield all ways to share out blocks among nodes: those of a depth and domain, the last of a list first."""
        if not open_:
            yield []
            return
        *others, (depth, domain, wanted) = open_
        if depth == len(self._tree.children):
            for seats in self._all_ways(nesting, blocks, others):
                yield [(domain, wanted * nesting.sizes[-1]), *seats]
            return
        first, end = (int(child) for child in self._tree.children[depth][domain : domain + 2])
        able = first + np.flatnonzero(blocks[depth + 1][first:end])
        for shares in _compositions(blocks[depth + 1][able].tolist(), wanted * nesting.ratios[depth]):
            inside = [(depth + 1, child, share) for child, share in zip(able.tolist(), shares, strict=True) if share]
            yield from self._all_ways(nesting, blocks, others + inside[::-1])


def _compositions(fits: list[int], wanted: int) -> Iterator[list[int]]:
    """Yield all ways to draw so many from parts that hold so many each, more from the first ones first.

    >>> list(_compositions([1, 2], 2))
    [[1, 1], [0, 2]]
    """
    if not fits:
        yield []
        return
    fit, *others = fits
    for share in range(min(fit, wanted), max(0, wanted - sum(others)) - 1, -1):
        for rest in _compositions(others, wanted - share):
            yield [share, *rest]
