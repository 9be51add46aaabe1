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

from typing import TYPE_CHECKING

from streamsched.model.topology import Wish
from streamsched.scheduling.equal_ranks import Places
from streamsched.scheduling.fragmentation import depth_of
from streamsched.scheduling.groups import seat_groups
from streamsched.scheduling.reserves import reserve_places
from streamsched.scheduling.seating import Ask, Fit, NoFit, Seating, domain_counts, is_known, violations
from streamsched.scheduling.symmetry import symmetric_counts

if TYPE_CHECKING:
    from streamsched.model.topology import Layer
    from streamsched.scheduling.fragmentation import Counts
    from streamsched.state.topology import PoolTree

__all__ = [
    "Ask",
    "Fit",
    "NoFit",
    "Seating",
    "domain_counts",
    "reserve_places",
    "seat_gang",
    "symmetric_counts",
    "violations",
]


def seat_gang(tree: PoolTree, free: Counts, ask: Ask, reserve: Counts | None = None) -> Seating | NoFit:
    """Find seats for a gang in one tree, or say how much of it fits.

    Args:
        tree: The domains of the nodes.
        free: GPUs that each node offers to this gang, in the order of places.
        ask: The gang.
        reserve: From `reserve_places`, what this gang may draw on when it fits nowhere else.
    """
    if ask.groups:
        return seat_groups(tree, free, ask, reserve)
    slots = free // ask.gpus_per_rank
    required = tuple(layer for layer in ask.layers if layer.wish is Wish.REQUIRED)
    if not tree.nodes or not all(is_known(tree, layer) for layer in required):
        return NoFit(tuple(Fit.of(layer, ask.ranks, 0) for layer in required))
    places = Places(tree, slots, reserve, ask)
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
