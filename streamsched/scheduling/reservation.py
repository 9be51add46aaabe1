"""Promises to gangs that need more than one node: which nodes are drained for one, and when it can start.

For each node it is known when its runs can be made to go: free GPUs and unallocated runs at once, an allocated run at
the end of its protection if the claimant may take from its leaf as things stand. The gang starts when the last of the
nodes that it needs is there.

Source: `fair-share.md`, section 4.8.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamsched.scheduling.affinity import Seating, seat_gang
from streamsched.scheduling.domains import ways_within
from streamsched.scheduling.guard import may_take_from
from streamsched.scheduling.placement import ask_of
from streamsched.scheduling.preemption import Shortage
from streamsched.state.workloads import Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamsched.scheduling.draft import Draft
    from streamsched.state.inventory import Node, Pool
    from streamsched.state.usage import Budget
    from streamsched.state.workloads import Run, Workload


class Promise(NamedTuple):
    """Nodes in the order of their places, when the last is there, and the allocated GPUs that must go for it."""

    nodes: tuple[str, ...]
    start_ms: int
    evicted_gpus: int


class _Clearing(NamedTuple):
    """When a node has room for `ranks` of the smallest, on `gpus` GPUs, and the allocated GPUs that must go for it.

    In the order of preference.
    """

    at_ms: int
    evicted_gpus: int
    place: int
    ranks: int
    gpus: int
    node: Node


def spans_nodes(pool: Pool, ranks: int, gpus_per_rank: int) -> bool:
    """Whether a gang needs more than one node of a pool."""
    return ranks > pool.installed.largest // gpus_per_rank


def promise(
    draft: Draft, pool: Pool, claimant: Workload, nodes: int, guard_gpu_ms: int | None = 0
) -> Promise | Shortage:
    """Return the earliest promise that can be made to a claimant; a shortage when too few nodes can be had at all.

    A gang of one node is promised nothing, but the same arithmetic says when it could start. Of its own leaf it takes
    from lower priority only, as it would then.

    Args:
        draft: The decision in the making.
        pool: Where to look.
        claimant: Who waits.
        nodes: The nodes that may be used, as bits.
        guard_gpu_ms: What the guard adds when leaves are compared: nothing for a reservation. None compares nobody, as
            if the claimant came before everybody in the order.
    """
    spans = spans_nodes(pool, claimant.ranks, claimant.gpus_per_rank)
    rights: dict[Budget, bool] = {claimant.budget: spans or guard_gpu_ms is None}
    clearings: list[_Clearing] = []
    touched = draft.pool(pool).touched
    while nodes:
        bit = nodes & -nodes
        nodes ^= bit
        if bit.bit_length() - 1 in touched:
            continue  # What this decision gave away there is nobody's yet: the next round can say when it leaves.
        clearing = _clearing(draft, claimant, pool.nodes[bit.bit_length() - 1], rights, guard_gpu_ms)
        if clearing is not None:
            clearings.append(clearing)
    clearings.sort()
    if claimant.topology is not None:
        return _promise_of_domains(draft, pool, claimant, clearings)
    seated, start_ms = 0, 0
    for clearing in clearings:
        seated += clearing.ranks
        start_ms = clearing.at_ms
        if seated >= claimant.ranks:
            break
    else:
        return Shortage(claimant.ranks - seated)
    in_time = [clearing for clearing in clearings if clearing.at_ms <= start_ms]
    return _promised(_least_evicted(in_time, claimant, claimant.ranks), start_ms)


def _promise_of_domains(draft: Draft, pool: Pool, claimant: Workload, clearings: list[_Clearing]) -> Promise | Shortage:
    """Return the earliest promise of nodes in the domains that a gang needs; they are in the order of their moments."""
    tree, policy = pool.tree, draft.state.policy
    moments = sorted({clearing.at_ms for clearing in clearings})

    def room(until_ms: int, *, evicting: bool = True) -> NDArray[np.int64]:
        gpus = np.zeros(len(pool.nodes), np.int64)
        for clearing in clearings:
            if clearing.at_ms <= until_ms and (evicting or not clearing.evicted_gpus):
                gpus[clearing.place] = clearing.gpus
        return gpus

    def fits(until_ms: int) -> bool:
        return isinstance(seat_gang(tree, room(until_ms), ask_of(claimant, policy)), Seating)

    if not moments or not fits(moments[-1]):
        return Shortage(1)
    start_ms = moments[bisect_left(moments, True, key=fits)]
    free = room(start_ms, evicting=False)
    way = next(ways_within(policy, tree, claimant, free, free, room(start_ms)))
    chosen: list[_Clearing] = []
    for part in way.parts:
        here = [one for one in clearings if one.at_ms <= start_ms and part.nodes >> one.place & 1]
        chosen.extend(_least_evicted(here, claimant, part.ranks))
    return _promised(chosen, start_ms)


def _least_evicted(clearings: list[_Clearing], claimant: Workload, ranks: int) -> list[_Clearing]:
    """Return the nodes for so many ranks for which the fewest allocated GPUs must go."""
    chosen: list[_Clearing] = []
    for clearing in sorted(
        clearings, key=lambda clearing: (clearing.evicted_gpus * claimant.gpus // clearing.ranks, clearing[:3])
    ):
        if ranks <= 0:
            break
        chosen.append(clearing)
        ranks -= clearing.ranks
    return chosen


def _promised(chosen: list[_Clearing], start_ms: int) -> Promise:
    chosen.sort(key=lambda clearing: clearing.place)
    evicted = sum(clearing.evicted_gpus for clearing in chosen)
    return Promise(tuple(clearing.node.id for clearing in chosen), start_ms, evicted)


def _clearing(
    draft: Draft, claimant: Workload, node: Node, rights: dict[Budget, bool], guard_gpu_ms: int | None
) -> _Clearing | None:
    """Return when a node has room for all the ranks it can ever hold beside what may not be taken, or all there are."""
    size = claimant.gpus_per_rank
    if node.claims or node.pins:
        return None
    free = node.gpus
    going: list[tuple[int, int, int]] = []
    for key, mask in node.held.items():
        workload = draft.state.workloads[key[0]]
        gpus = mask.bit_count()
        at_ms = _leaves_at(draft, claimant, workload, rights, guard_gpu_ms)
        free -= gpus
        if at_ms is not None:
            going.append((at_ms, workload.gpus if workload.is_allocated else 0, gpus))
    for mask in node.orphans.values():
        free -= mask.bit_count()
        going.append((draft.now_ms, 0, mask.bit_count()))
    most = free + sum(gpus for _, _, gpus in going)
    # The ranks of groups may be larger than the smallest: then each GPU counts.
    has_groups = claimant.topology is not None and claimant.topology.groups
    wanted = min(most, claimant.gpus) if has_groups else min(most // size, claimant.ranks) * size
    if wanted < size:
        return None
    at_ms, evicted = draft.now_ms, 0
    for leaves_ms, allocated, gpus in sorted(going):
        if free >= wanted:
            break
        free += gpus
        evicted += allocated
        at_ms = max(at_ms, leaves_ms)
    return _Clearing(at_ms, evicted, node.index, wanted // size, wanted, node)


def _leaves_at(
    draft: Draft, claimant: Workload, workload: Workload, rights: dict[Budget, bool], guard_gpu_ms: int | None
) -> int | None:
    """Return when a run can be made to go; None when the claimant may not take from it."""
    run = workload.run
    if run is None:
        return None
    if not workload.is_allocated or workload.phase is Phase.STOPPING:
        return draft.now_ms
    leaf = workload.budget
    allowed = rights.get(leaf)
    if allowed is None:
        allowed = guard_gpu_ms is None or may_take_from(draft, claimant.budget, leaf, guard_gpu_ms)
        rights[leaf] = allowed
    if not allowed and not (leaf is claimant.budget and workload.priority < claimant.priority):
        return None
    return max(protected_until(run, draft.now_ms), draft.now_ms)


def protected_until(run: Run, now_ms: int) -> int:
    """Return when the protection of an allocated run ends; at the latest, while it has not started."""
    if run.protected_until_ms is not None:
        return run.protected_until_ms
    return (run.deadline_ms or now_ms) + run.min_ms
