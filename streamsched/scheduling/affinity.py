"""Where a gang sits in a topology tree, so that its traffic is cheap and what it leaves is of use to others.

First what is possible, then what is better. A pass over the tree says exactly whether nested equal blocks fit
(`fragmentation.py`). Then wishes are settled, coarse to fine: each layer that is preferred at its own level if that
still fits, or at the next coarser one. Then one of two searches walks down from the root:

* **utilization first** takes domains by the least fragment score, then by the fewest blocks, as long as they are used
  up; and then cuts the smallest. One domain that holds exactly what is left, without strays, goes before all that.
* **bandwidth first** finds the placement that touches the fewest domains, coarse to fine (`bandwidth.py`).

What fits on one node goes to the tightest node, in the domains with the least room: that satisfies every layer, and
leaves whole what is whole. Every tie goes to the first by place.

Source: `topology.md`, sections 1.5 to 1.8 and 9. `exact_fit=False` is the published algorithm without the exact fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from streamsched.model.policy import FragmentScore
from streamsched.model.topology import NODE, Preference, Wish
from streamsched.scheduling.bandwidth import BandwidthFirst
from streamsched.scheduling.fragmentation import Nesting, blocks_that_fit, depth_of, fragment_scores, strays_of
from streamsched.scheduling.groups import Packing, Part, Sharing, cut_into_parts
from streamsched.scheduling.symmetry import can_be_even, fill_evenly
from streamsched.scheduling.utilization import UtilizationFirst

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from streamsched.model.topology import Group, Layer
    from streamsched.scheduling.fragmentation import Counts
    from streamsched.state.topology import PoolTree

#: After how many choices a search for unequal groups gives up a domain that it could do without.
_FEW_CHOICES: Final = 64

#: A node, and how many ranks sit there; in rank order.
Seats = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """What a gang asks of one tree.

    Attributes:
        ranks: Gang size.
        gpus_per_rank: GPUs of each rank, on one node.
        layers: What must or should share a domain, coarse to fine.
        groups: Where ranks are not all alike: consecutive groups, which together are the gang.
        preference: What is better among the allowed placements.
        score: How strays are weighed against each other.
        exact_fit: Whether utilization first takes a domain that holds exactly what is left before several smaller ones.
        symmetric: Whether the domains of the coarsest level on which it uses several take equally many ranks.
    """

    ranks: int
    gpus_per_rank: int
    layers: tuple[Layer, ...] = ()
    groups: tuple[Group, ...] = ()
    preference: Preference = Preference.UTILIZATION_FIRST
    score: FragmentScore = FragmentScore.WEIGHTED
    exact_fit: bool = True
    symmetric: bool = False


@dataclass(frozen=True, slots=True)
class Seating:
    """A gang has room.

    Attributes:
        seats: The nodes with the number of ranks there, in rank order.
        layers: What holds, as it was settled.
        relaxed: Preferred layers that could not be had, each with the coarser level it got; None where it got none.
        key: Compares the trees in which one ask fits: the smaller, the better.
        passes: 2 if it draws on reserved nodes, else 1.
        group_layers: What holds in each group.
    """

    seats: Seats
    layers: tuple[Layer, ...]
    relaxed: tuple[tuple[Layer, str | None], ...]
    key: tuple[int, ...]
    passes: int = 1
    group_layers: tuple[tuple[Layer, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """How many blocks of a required layer have room: `fit` of `asked`, of `ranks` ranks each, in domains of a level."""

    level: str
    ranks: int
    fit: int
    asked: int


@dataclass(frozen=True, slots=True)
class NoFit:
    """A gang has no room.

    Attributes:
        fits: Each required layer, coarse to fine, counted by itself and those below it.
        proven: Whether that is certain. It may not be where groups are unequal.
    """

    fits: tuple[Fit, ...]
    proven: bool = True


def seat_gang(tree: PoolTree, free: Counts, ask: Ask, reserve: Counts | None = None) -> Seating | NoFit:
    """Find seats for a gang in one tree, or say how much of it fits.

    Args:
        tree: The domains of the nodes.
        free: GPUs that each node offers to this gang, in the order of places.
        ask: The gang.
        reserve: From `reserve_places`, what this gang may draw on when it fits nowhere else.
    """
    if ask.groups:
        return _seat_groups(tree, free, ask, reserve)
    slots = free // ask.gpus_per_rank
    required = tuple(layer for layer in ask.layers if layer.wish is Wish.REQUIRED)
    if not tree.nodes or not all(is_known(tree, layer) for layer in required):
        return NoFit(tuple(Fit(layer.level, layer.ranks or ask.ranks, 0, _blocks(layer, ask)) for layer in required))
    places = _Places(tree, slots, reserve, ask)
    if not places.open_for(required):
        return NoFit(places.fits(required))
    layers = list(required)
    relaxed: list[tuple[Layer, str | None]] = []
    for layer in ask.layers:
        if layer.wish is Wish.REQUIRED:
            continue
        got = places.settle(layers, layer)
        if got is not None:
            layers.append(got)
        if got is None or got.level != layer.level:
            relaxed.append((layer, got.level if got else None))
    layers.sort(key=lambda layer: (depth_of(tree.levels, layer.level), -(layer.ranks or ask.ranks)))
    seats, key = places.best(layers)
    return Seating(tuple(seats), tuple(layers), tuple(relaxed), key, places.passes)


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
            fits += _Places(self._tree, slots, None, alone).fits(group.layers)
        return NoFit(tuple(fits), is_proven)


def _in_order(sharing: Sharing) -> Seats:
    return tuple(seat for group in sorted(sharing) for seat in sharing[group])


def _seat_groups(tree: PoolTree, free: Counts, ask: Ask, reserve: Counts | None) -> Seating | NoFit:
    layers = (*ask.layers, *(layer for group in ask.groups for layer in group.layers))
    if not tree.nodes or not all(is_known(tree, layer) for layer in layers if layer.wish is Wish.REQUIRED):
        return NoFit(())
    passes = 1
    gang = _Groups(tree, free if reserve is None else _beside(free, reserve, int(reserve.max())), ask)
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


class _Places:
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
        self._slots = _beside(whole, reserve, kept)
        if self._holds(self._slots, required):
            return True
        self.passes = 2
        if not self._holds(whole, required):
            self._slots = whole
            return False
        fewer = 0
        while kept - fewer > 1:
            middle = (kept + fewer) // 2
            if self._holds(_beside(whole, reserve, middle), required):
                fewer = middle
            else:
                kept = middle
        self._slots = _beside(whole, reserve, fewer)
        self._before = _beside(whole, reserve, fewer + 1)
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
            ranks, depth = layer.ranks or self._ask.ranks, depth_of(self._tree.levels, layer.level)
            fit = int(blocks[depth].sum()) * nesting.sizes[depth] // ranks
            fits.append(Fit(layer.level, ranks, min(fit, _blocks(layer, self._ask)), _blocks(layer, self._ask)))
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


def _beside(slots: Counts, reserve: Counts, kept: int) -> Counts:
    """Return the slots where so many of the reserved nodes of each domain are kept."""
    return np.where((reserve > 0) & (reserve <= kept), 0, slots)


def is_known(tree: PoolTree, layer: Layer) -> bool:
    """Whether the tree has the level of a layer."""
    return layer.level == NODE or layer.level in tree.levels


def _blocks(layer: Layer, ask: Ask) -> int:
    return ask.ranks // (layer.ranks or ask.ranks)


def reserve_places(
    tree: PoolTree, idle: NDArray[np.bool_], reserves: Iterable[tuple[str, str | None, int]]
) -> NDArray[np.int32]:
    """Return for each node the place it has among the reserved ones of its domain: 1 goes last, 0 is not reserved.

    Reserved are the last idle nodes of each domain by place. A node that several reserves name has its lowest place.

    Args:
        tree: The domains.
        idle: Which nodes take work and have none.
        reserves: Level, name of the one domain or None for all, and the number of nodes, of each reserve.
    """
    places = np.zeros(tree.nodes, np.int32)
    if not tree.nodes:
        return places
    after = np.append(np.cumsum(idle[::-1])[::-1], 0)
    for level, domain, nodes in reserves:
        if level not in tree.levels:
            continue
        depth = tree.levels.index(level)
        of_node = tree.domain_of[depth]
        # From the end of its domain, this is the how-manieth idle node.
        place = after[:-1] - after[tree.starts[depth][1:]][of_node]
        kept = idle & (place <= nodes)
        if domain is not None:
            named = np.array([path[-1] == domain for path in tree.paths[depth]], np.bool_)
            kept &= named[of_node]
        better = kept & ((places == 0) | (place < places))
        places[better] = place[better]
    return places


def domain_counts(tree: PoolTree, seats: Iterable[tuple[int, int]]) -> dict[str, dict[int, int]]:
    """Return how many ranks sit in each domain, by level, coarse to fine without the node, and number of the domain."""
    seats = tuple(seats)
    counts: dict[str, dict[int, int]] = {}
    for level, domain_of in zip(tree.levels, tree.domain_of, strict=True):
        here = counts[level] = {}
        for index, ranks in seats:
            domain = int(domain_of[index])
            here[domain] = here.get(domain, 0) + ranks
    return counts


@dataclass(frozen=True, slots=True)
class Violation:
    """Ranks from `first` on, so many, do not share the domain of a level that they must; or are not equally many each.

    Attributes:
        level: The level.
        first: The first of the ranks.
        ranks: How many.
        domains: In how many domains they are.
    """

    level: str
    first: int
    ranks: int
    domains: int


def violations(tree: PoolTree, ask: Ask, seats: Iterable[tuple[int, int]]) -> tuple[Violation, ...]:
    """Return what a placement does not keep of what its gang requires. Levels that the tree lacks are not kept.

    Args:
        tree: The domains.
        ask: The gang; what it only prefers is not looked at.
        seats: Node index and ranks there, in rank order.
    """
    seats = tuple(seats)
    nodes = np.repeat([index for index, _ in seats], [ranks for _, ranks in seats])
    if len(nodes) != ask.ranks:
        raise ValueError(f"{len(nodes)} ranks have a seat, but the gang has {ask.ranks}")
    found: list[Violation] = []

    def check(layers: Iterable[Layer], start: int, ranks: int) -> None:
        for layer in layers:
            size = layer.ranks or ranks
            if layer.wish is not Wish.REQUIRED:
                continue
            for first in range(start, start + ranks, size):
                used = _domains(tree, layer.level, nodes[first : first + size])
                if used != 1:
                    found.append(Violation(layer.level, first, size, used))

    check(ask.layers, 0, ask.ranks)
    start = 0
    for group in ask.groups:
        check(group.layers, start, group.ranks)
        start += group.ranks
    level = uneven(tree, seats) if ask.symmetric else None
    if level is not None:
        found.append(Violation(level, 0, ask.ranks, len(domain_counts(tree, seats)[level])))
    return tuple(found)


def uneven(tree: PoolTree, seats: Iterable[tuple[int, int]]) -> str | None:
    """Return the coarsest level on which a placement uses several domains, if they take unequal numbers of ranks."""
    for level, counts in domain_counts(tree, seats).items():
        if len(counts) > 1:
            return level if len(set(counts.values())) > 1 else None
    return None


def _domains(tree: PoolTree, level: str, nodes: NDArray[np.intp]) -> int:
    """Return in how many domains of a level some nodes are; 0 where the tree has no such level."""
    if level == NODE:
        return len(set(nodes.tolist()))
    if level not in tree.levels:
        return 0
    return len(set(tree.domain_of[tree.levels.index(level)][nodes].tolist()))
