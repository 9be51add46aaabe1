"""What a gang asks of a topology tree, what it gets, and whether that keeps what it asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamsched.model.policy import FragmentScore
from streamsched.model.topology import NODE, Preference, Wish

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from streamsched.model.topology import Group, Layer
    from streamsched.state.topology import PoolTree

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

    @classmethod
    def of(cls, layer: Layer, ranks: int, fit: int) -> Fit:
        """Return how much of a layer of so many ranks fits, where there is room for so many of its blocks."""
        size = layer.ranks or ranks
        return cls(layer.level, size, min(fit, ranks // size), ranks // size)


@dataclass(frozen=True, slots=True)
class NoFit:
    """A gang has no room.

    Attributes:
        fits: Each required layer, coarse to fine, counted by itself and those below it.
        proven: Whether that is certain. It may not be where groups are unequal.
    """

    fits: tuple[Fit, ...]
    proven: bool = True


def is_known(tree: PoolTree, layer: Layer) -> bool:
    """Whether the tree has the level of a layer."""
    return layer.level == NODE or layer.level in tree.levels


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
