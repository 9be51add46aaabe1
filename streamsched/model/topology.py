"""What a gang may ask of the network: which of its ranks must, or should, share a topology domain.

A tree of a pool has levels from coarse to fine, `supernode` and `rack` for example, which the policy names; the node is
the finest of all. A **layer** says that each block of so many consecutive ranks shares one domain of a level. A layer
as large as the gang holds the whole of it in one domain. Layers nest: each block is cut into whole blocks of the next.

    Layer(level="supernode")            the whole gang in one supernode
    Layer(level="rack", ranks=2)        ranks 0 and 1 in one rack, ranks 2 and 3 in one rack, ...

Source: `topology.md`, sections 1.3 and 7.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

#: A level of the trees: a lower-case word.
LevelName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]

#: The finest level, which every tree has.
NODE: Final = "node"
#: The most levels of a tree above the node.
MAX_LEVELS: Final = 8
#: The most GPUs of a node.
_MAX_GPUS: Final = 16


class Wish(StrEnum):
    """Whether a gang waits until a layer can be had, or takes the next coarser level if it cannot be had now."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Preference(StrEnum):
    """What is better among the placements that a gang allows.

    Utilization first wastes least of what others could use, by the fragment score. Bandwidth first touches the fewest
    domains, coarse to fine.
    """

    UTILIZATION_FIRST = "utilization_first"
    BANDWIDTH_FIRST = "bandwidth_first"


class Recovery(StrEnum):
    """How far a gang that lost a node may move: not beyond the domain of the lost ranks, step by step, or at once."""

    IN_PLACE = "in_place"
    WIDENING = "widening"
    ANYWHERE = "anywhere"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Layer(_Value):
    """Each block of consecutive ranks shares one domain of a level.

    Attributes:
        level: The name of the level.
        ranks: How many ranks are a block; absent for the whole gang, or the whole group.
        wish: Required, or preferred: then the next coarser level is tried where it cannot be had.
    """

    level: LevelName
    ranks: Annotated[int, Field(ge=1, le=100_000)] | None = None
    wish: Wish = Wish.REQUIRED


class Group(_Value):
    """Consecutive ranks with layers of their own: a role, such as the leader or the decoders.

    Groups follow one another in rank order and make up the gang. They may differ in size and in GPUs for each rank.

    Attributes:
        name: For people.
        ranks: How many.
        gpus_per_rank: Of each of its ranks; absent for that of the gang.
        layers: What its ranks must or should share, coarse to fine.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
    ranks: Annotated[int, Field(ge=1, le=100_000)]
    gpus_per_rank: Annotated[int, Field(ge=1, le=_MAX_GPUS)] | None = None
    layers: Annotated[tuple[Layer, ...], Field(max_length=2 * MAX_LEVELS)] = ()


class TopologyRequest(_Value):
    """What a gang asks of the topology.

    Attributes:
        layers: Coarse to fine; of one level the larger block first.
        groups: Where its ranks are not all alike: consecutive groups, which together are the gang.
        preference: What is better among the allowed placements; absent for that of the policy.
        symmetric: Whether each domain of the coarsest level it uses must take equally many ranks.
        recovery: How far it may move when it has lost a node; absent for that of the policy.
    """

    layers: Annotated[tuple[Layer, ...], Field(max_length=2 * MAX_LEVELS)] = ()
    groups: Annotated[tuple[Group, ...], Field(max_length=64)] = ()
    preference: Preference | None = None
    symmetric: bool = False
    recovery: Recovery | None = None

    @model_validator(mode="after")
    def _names_each_group_once(self) -> Self:
        names = [group.name for group in self.groups]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"groups: {twice[0]!r} is named twice; give each group a name of its own")
        return self

    def gpus_of_ranks(self, gpus_per_rank: int) -> list[int]:
        """Return the GPUs of each rank of a gang with groups, whose smallest ranks have `gpus_per_rank`."""
        return [group.gpus_per_rank or gpus_per_rank for group in self.groups for _ in range(group.ranks)]


def objection_to(request: TopologyRequest, ranks: int, gpus_per_rank: int) -> str | None:
    """Return why a request cannot be kept whatever the levels are: the field, the value and the remedy.

    Args:
        request: What a gang asks.
        ranks: Gang size.
        gpus_per_rank: GPUs of each rank, where its group says nothing else.
    """
    if request == TopologyRequest():
        return "layers: there are none, and nothing else is asked for; name at least one, or leave topology out"
    objection = _objection_to_layers(request.layers, ranks, gpus_per_rank, "the gang")
    for group in request.groups:
        gpus = group.gpus_per_rank or gpus_per_rank
        objection = objection or _objection_to_layers(group.layers, group.ranks, gpus, f"group {group.name!r}")
        if gpus < gpus_per_rank:
            objection = objection or (
                f"groups: the ranks of {group.name!r} have {gpus} GPUs, fewer than gpus_per_rank ({gpus_per_rank}); "
                "let that be the smallest"
            )
    grouped = sum(group.ranks for group in request.groups)
    if request.groups and grouped != ranks:
        objection = objection or (
            f"groups: they have {grouped} ranks together, and the gang has {ranks}; let them add up"
        )
    return objection or _objection_to_overlap(request, ranks)


def objection_to_levels(request: TopologyRequest, ranks: int, levels: tuple[str, ...], pool: str) -> str | None:
    """Return why a request does not go with the levels of a pool: the field, the value and the remedy.

    Args:
        request: What a gang asks; `objection_to` has none.
        ranks: Gang size.
        levels: Coarse to fine, without the node.
        pool: Whose levels they are, for the message.
    """
    depths = {level: depth for depth, level in enumerate((*levels, NODE))}
    for whose, layers in (("", request.layers), *((f" of {group.name!r}", group.layers) for group in request.groups)):
        for layer in layers:
            if layer.level not in depths:
                return (
                    f"layers{whose}: {layer.level!r} is no level of {pool}, whose levels are {', '.join(depths)}, "
                    "coarse to fine; name one of those, or have the policy name it (levels)"
                )
        for coarse, fine in pairwise(layers):
            if depths[coarse.level] > depths[fine.level]:
                return (
                    f"layers{whose}: {coarse.level!r} comes before {fine.level!r}, which is coarser; order layers as "
                    f"the levels of {pool} are: {', '.join(depths)}"
                )
    for group in request.groups:
        # Blocks of the gang that cut a group are layers of the group, too.
        cut = [layer for layer in request.layers if (layer.ranks or ranks) <= group.ranks]
        sized = sorted(
            (depths[layer.level], -(layer.ranks or group.ranks), layer.level) for layer in (*cut, *group.layers)
        )
        for (_, coarse_ranks, coarse_level), (_, fine_ranks, fine_level) in pairwise(sized):
            if coarse_ranks % fine_ranks:
                return (
                    f"groups: in {group.name!r}, blocks of {-fine_ranks} ranks in one {fine_level} do not divide those "
                    f"of {-coarse_ranks} in one {coarse_level}, the layers of the whole gang included; make each size "
                    "a multiple of the next finer one"
                )
    return None


def _objection_to_layers(layers: tuple[Layer, ...], ranks: int, gpus_per_rank: int, what: str) -> str | None:
    above = ranks
    for layer in layers:
        size = layer.ranks or ranks
        if ranks % size:
            return (
                f"layers: a block of {size} ranks in one {layer.level} does not divide the {ranks} ranks of {what}; "
                "make the one a multiple of the other"
            )
        if above % size:
            return (
                f"layers: blocks of {size} ranks in one {layer.level} do not divide the blocks of {above} before "
                "them; order layers from coarse to fine, each size a multiple of the next"
            )
        if layer.level == NODE and size * gpus_per_rank > _MAX_GPUS:
            return (
                f"layers: {size} ranks of {gpus_per_rank} GPUs on one node are {size * gpus_per_rank} GPUs, and no "
                f"node has more than {_MAX_GPUS}; make the block smaller"
            )
        above = size
    return None


def _objection_to_overlap(request: TopologyRequest, ranks: int) -> str | None:
    """Return where a block of the gang has one part of a group and not the rest, nor lies in it."""
    for layer in request.layers:
        size = layer.ranks or ranks
        first = 0
        for group in request.groups:
            end = first + group.ranks
            is_made_of_blocks = first % size == 0 == end % size
            if not is_made_of_blocks and first // size != (end - 1) // size:
                return (
                    f"groups: ranks {first} to {end - 1} ({group.name!r}) and the blocks of {size} ranks in one "
                    f"{layer.level} overlap in part; let groups begin and end where blocks do, or give each group "
                    "layers of its own"
                )
            first = end
    return None
