"""What of a gang's layers has room, what keeps the rest of it out, and which domain comes closest.

For each required layer its blocks are counted one obstacle at a time: on the nodes that the gang may use now, then as
if nothing were kept for others, then as if no node were out of use, then as if all were empty. What is missing even
then is room that no domain has in one piece. The numbers of one layer add up to the blocks that it asks for.

Source: `topology.md`, section 7, point 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from pydantic import Field

from streamsched.model.events import Value
from streamsched.model.identifiers import TreeId, WorkloadId
from streamsched.model.topology import NODE, Wish
from streamsched.scheduling.affinity import Ask, NoFit, seat_gang
from streamsched.scheduling.domains import Block, cheapest_ways
from streamsched.scheduling.placement import ask_of
from streamsched.scheduling.reserves import kept_from
from streamsched.scheduling.seating import Fit, is_known
from streamsched.state.inventory import as_truths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from streamsched.model.policy import Policy
    from streamsched.model.topology import Layer
    from streamsched.scheduling.draft import DraftPool
    from streamsched.state.topology import PoolTree
    from streamsched.state.workloads import Workload

#: So many runs of a domain are named.
_NAMED: Final = 20


class LayerFit(Value):
    """How many blocks of a required layer have room, and what the others are lost to; the five add up to `asked`.

    Attributes:
        level: Of the domains.
        ranks: Of one block.
        fit: On what is free now, for this gang.
        reserved: As many more if nothing were kept for others.
        out_of_use: As many more if no node were unhealthy, drained, cordoned or held down.
        busy: As many more if nothing ran.
        strays: The rest: no domains are large enough.
    """

    level: str
    ranks: int = Field(ge=1)
    asked: int = Field(ge=1)
    fit: int = Field(ge=0)
    reserved: int = Field(ge=0)
    out_of_use: int = Field(ge=0)
    busy: int = Field(ge=0)
    strays: int = Field(ge=0)


class Closest(Value):
    """The domain where one more block of the coarsest required layer would need the fewest GPUs to be freed.

    Attributes:
        domain: Its names from the coarsest level down, joined by ``/``.
        ranks: Of the block.
        ranks_free: How many of its ranks fit there now, finer layers left aside.
        ranks_possible: The same if the nodes there that are in use were empty.
        gpus_to_free: What others would have to give up there at least; None where the block does not fit even then.
        held_by: Who holds GPUs there, by name; at most twenty.
    """

    level: str
    domain: str
    ranks: int
    ranks_free: int
    ranks_possible: int
    gpus_to_free: int | None
    held_by: tuple[WorkloadId, ...]


class Misfit(Value):
    """How far a gang is from what it requires of the topology, in the tree where least is missing.

    Attributes:
        tree: The pool, and its tree where trees have names.
        layers: Those required, coarse to fine; those of groups after those of the gang.
        closest: Where the coarsest of the gang's layers comes closest; None where it has none of its own.
    """

    tree: TreeId
    layers: tuple[LayerFit, ...]
    closest: Closest | None = None

    @property
    def is_impossible(self) -> bool:
        """Whether it would not fit if every node were in use and empty."""
        return any(layer.strays for layer in self.layers)


def misfit(policy: Policy, pool: DraftPool, gang: Workload, nodes: int) -> Misfit | None:
    """Return what keeps a gang out of one tree by its required layers; None where it has none, or has room.

    Args:
        policy: The one in force.
        pool: Where to look.
        gang: Who asks.
        nodes: The nodes that it may use now, as bits.
    """
    tree = pool.pool.tree
    ask = ask_of(gang, policy)
    free = np.where(as_truths(nodes & ~kept_from(policy, pool, gang), len(pool.nodes)), pool.free.gpus, 0)
    found = seat_gang(tree, free, ask)
    if not isinstance(found, NoFit) or not found.fits:
        return None
    unkept = pool.free.gpus
    usable = unkept.astype(np.int64)
    for node in pool.nodes:
        if not node.takes_work:
            usable[node.index] = pool.free_mask(node).bit_count()
    empty = np.array([node.gpus for node in pool.nodes], np.int64)
    steps = [found.fits, *(_fits(tree, counts, ask, found.fits) for counts in (unkept, usable, empty))]
    layers = []
    for now, open_, mended, bare in zip(*steps, strict=True):
        counts = [now.fit]
        for more in (open_, mended, bare):
            counts.append(max(counts[-1], more.fit))
        layers.append(
            LayerFit(
                level=now.level,
                ranks=now.ranks,
                asked=now.asked,
                fit=counts[0],
                reserved=counts[1] - counts[0],
                out_of_use=counts[2] - counts[1],
                busy=counts[3] - counts[2],
                strays=now.asked - counts[3],
            )
        )
    return Misfit(tree=pool.pool.id, layers=tuple(layers), closest=_closest(pool, gang, ask, free))


def nearest(misfits: Mapping[str, Misfit]) -> Misfit | None:
    """Return the misfit of the tree where least is missing: possible at all, fewest GPUs to free, the first by name."""

    def missing(one: Misfit) -> tuple[int, int, str]:
        gpus = one.closest.gpus_to_free if one.closest is not None else None
        return (sum(layer.strays for layer in one.layers), 1 << 62 if gpus is None else gpus, one.tree)

    return min(misfits.values(), key=missing, default=None)


def _fits(tree: PoolTree, free: NDArray[np.signedinteger], ask: Ask, asked: tuple[Fit, ...]) -> tuple[Fit, ...]:
    """Return how many blocks of each required layer have room; all of them where the whole gang has."""
    found = seat_gang(tree, free, ask)
    if isinstance(found, NoFit):
        return found.fits
    return tuple(Fit(fit.level, fit.ranks, fit.asked, fit.asked) for fit in asked)


def _closest(pool: DraftPool, gang: Workload, ask: Ask, free: NDArray[np.signedinteger]) -> Closest | None:
    """Return where one block of the coarsest required layer of the gang is nearest to having room."""
    tree = pool.pool.tree
    required = [layer for layer in ask.layers if layer.wish is Wish.REQUIRED]
    if not required or not all(is_known(tree, layer) for layer in required) or not tree.nodes:
        return None
    coarsest, size = required[0], required[0].ranks or ask.ranks
    reach = np.array([node.gpus if node.takes_work else 0 for node in pool.nodes], np.int64)
    now, possible = (
        np.add.reduceat(counts // ask.gpus_per_rank, _starts(tree, coarsest)[:-1]) for counts in (free, reach)
    )
    blocks = [Block(_number(tree, layer), layer.ranks or ask.ranks) for layer in required]
    way = next(cheapest_ways(tree, free.astype(np.int64), reach, reach, ask.gpus_per_rank, size, blocks), None)
    if way is not None:
        first = min((part.nodes & -part.nodes).bit_length() - 1 for part in way.parts)
        domain = int(np.searchsorted(_starts(tree, coarsest), first, side="right")) - 1
    else:
        domain = int(np.lexsort((np.arange(len(now)), -now, -possible))[0])
    begin, end = (int(_starts(tree, coarsest)[domain + step]) for step in (0, 1))
    held = {key[0] for node in pool.nodes[begin:end] for owners in (node.held, node.orphans) for key in owners}
    return Closest(
        level=coarsest.level,
        domain=pool.nodes[begin].id
        if coarsest.level == NODE
        else "/".join(tree.paths[_number(tree, coarsest)][domain]),
        ranks=size,
        ranks_free=min(size, int(now[domain])),
        ranks_possible=min(size, int(possible[domain])),
        gpus_to_free=None if way is None else way.price,
        held_by=tuple(sorted(held - {gang.id})[:_NAMED]),
    )


def _number(tree: PoolTree, layer: Layer) -> int:
    """Return the number of a level as `Block` has it: coarse to fine, the node last."""
    return len(tree.levels) if layer.level == NODE else tree.levels.index(layer.level)


def _starts(tree: PoolTree, layer: Layer) -> NDArray[np.signedinteger]:
    """Return the first node of each domain of a level, and the number of nodes at the end."""
    return np.arange(tree.nodes + 1) if layer.level == NODE else tree.starts[tree.levels.index(layer.level)]


def in_words(found: Misfit) -> tuple[str, ...]:
    """Return a misfit as sentences: one for each layer, and one for the domain that comes closest."""
    sentences = []
    for layer in found.layers:
        lost = (
            (layer.reserved, "reserved"),
            (layer.out_of_use, "out of use"),
            (layer.busy, "busy"),
            (layer.strays, "no domain large enough"),
        )
        why = ", ".join(f"{count} {reason}" for count, reason in lost if count)
        sentences.append(
            f"{layer.fit} of {layer.asked} blocks of {layer.ranks} ranks in one {layer.level} have room"
            + (f"; the others: {why}" if why else "")
        )
    closest = found.closest
    if closest is not None:
        have = f"{closest.level} {closest.domain} comes closest: room for {closest.ranks_free} of {closest.ranks} ranks"
        if closest.gpus_to_free is None:
            sentences.append(f"{have}, and for {closest.ranks_possible} if it were empty")
        elif closest.gpus_to_free:
            who = f", held by {', '.join(closest.held_by[:4])}" if closest.held_by else ""
            more = f" and {len(closest.held_by) - 4} more" if len(closest.held_by) > 4 else ""
            sentences.append(f"{have}; at least {closest.gpus_to_free} GPUs would have to be freed there{who}{more}")
        else:
            sentences.append(have)
    return tuple(sentences)
