"""Nodes that are kept free in each domain, for gangs that find no room beside them.

The reserved nodes of a domain are numbered: the last by place is the first to be kept and the last to be used. A gang
that needs them draws on all domains alike, those that keep the most first. Which reserves a gang may draw on, its
priority and the policy say; to others their nodes are not there.

Source: `topology.md`, sections 1.7 and 9.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamsched.model.policy import ReserveUse
from streamsched.state.inventory import as_bits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from streamsched.model.policy import DomainReserve, Policy
    from streamsched.scheduling.draft import DraftPool
    from streamsched.scheduling.fragmentation import Counts
    from streamsched.state.topology import PoolTree
    from streamsched.state.workloads import Workload


def kept_from(policy: Policy, pool: DraftPool, gang: Workload) -> int:
    """Return the nodes that are reserved and that a gang may not use, as bits."""
    others = [reserve for reserve in policy.domain_reserves if not _may_draw(reserve, gang)]
    return as_bits(_reserved(pool, others) > 0) if others else 0


def last_resort(policy: Policy, pool: DraftPool, gang: Workload, *, recovers: bool = False) -> NDArray[np.int32] | None:
    """Return the places of the nodes that a gang may use only when it fits nowhere else; None where there are none.

    Who recovers may use all of them.
    """
    own = [reserve for reserve in policy.domain_reserves if recovers or _may_draw(reserve, gang)]
    return _reserved(pool, own) if own else None


def _may_draw(reserve: DomainReserve, gang: Workload) -> bool:
    if reserve.use is ReserveUse.ANY:
        return True
    return reserve.priority is not None and gang.is_allocated and gang.priority >= reserve.priority


def _reserved(pool: DraftPool, reserves: list[DomainReserve]) -> NDArray[np.int32]:
    free = pool.free.gpus
    tree = pool.pool.tree
    idle = (free == tree.sizes) & (free > 0)
    return reserve_places(tree, idle, [(one.level, one.domain, one.nodes) for one in reserves])


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


def beside(slots: Counts, reserve: Counts, kept: int) -> Counts:
    """Return the slots where so many of the reserved nodes of each domain are kept."""
    return np.where((reserve > 0) & (reserve <= kept), 0, slots)
