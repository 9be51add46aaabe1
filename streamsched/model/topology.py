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
from typing import Annotated, Final, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

#: A level of the trees: a lower-case word.
LevelName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]

#: The finest level, which every tree has.
NODE: Final = "node"
#: The most levels of a tree above the node.
MAX_LEVELS: Final = 8


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
    gpus_per_rank: Annotated[int, Field(ge=1, le=16)] | None = None
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
    def _asks_something(self) -> Self:
        names = [group.name for group in self.groups]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"groups: {twice[0]!r} is named twice; give each group a name of its own")
        return self


def objection_to_layers(layers: tuple[Layer, ...], ranks: int, what: str) -> str | None:
    """Return why layers cannot hold for so many ranks whatever the levels are: the field, the value and the remedy.

    Args:
        layers: Coarse to fine.
        ranks: Of the gang or group.
        what: Which of them, for the message.
    """
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
        above = size
    return None
