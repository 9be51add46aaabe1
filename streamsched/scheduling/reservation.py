"""Promises to gangs that need more than one node: which nodes are drained for one, and when it can start.

For each node it is known when its runs can be made to go: free GPUs and unallocated runs at once, an allocated run at
the end of its protection if the claimant may take from its leaf as things stand. The gang starts when the last of the
nodes that it needs is there.

Source: `fair-share.md`, section 4.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamsched.scheduling.guard import compare
from streamsched.scheduling.preemption import Shortage
from streamsched.state.workloads import Phase

if TYPE_CHECKING:
    from streamsched.scheduling.draft import Draft
    from streamsched.state.inventory import Node, Pool
    from streamsched.state.usage import Budget
    from streamsched.state.workloads import Workload


class Promise(NamedTuple):
    """Nodes in the order of their places, when the last is there, and the allocated GPUs that must go for it."""

    nodes: tuple[str, ...]
    start_ms: int
    evicted_gpus: int


class _Clearing(NamedTuple):
    """When a node has room for `ranks`, and the allocated GPUs that must go for it; in the order of preference."""

    at_ms: int
    evicted_gpus: int
    place: int
    ranks: int
    node: Node


def spans_nodes(pool: Pool, ranks: int, gpus_per_rank: int) -> bool:
    """Whether a gang needs more than one node of a pool."""
    largest = max((gpus for gpus, nodes in enumerate(pool.installed.counts) if nodes), default=0)
    return ranks > largest // gpus_per_rank


def promise(draft: Draft, pool: Pool, claimant: Workload, nodes: int) -> Promise | Shortage:
    """Return the earliest promise that can be made to a claimant; a shortage when too few nodes can be had at all.

    Args:
        draft: The decision in the making.
        pool: Where to look.
        claimant: A gang that needs more than one node.
        nodes: The nodes that may be used, as bits.
    """
    rights: dict[Budget, bool] = {}
    clearings: list[_Clearing] = []
    while nodes:
        bit = nodes & -nodes
        nodes ^= bit
        clearing = _clearing(draft, claimant, pool.nodes[bit.bit_length() - 1], rights)
        if clearing is not None:
            clearings.append(clearing)
    clearings.sort()
    seated, start_ms = 0, 0
    for clearing in clearings:
        seated += clearing.ranks
        start_ms = clearing.at_ms
        if seated >= claimant.ranks:
            break
    else:
        return Shortage(claimant.ranks - seated)
    in_time = [clearing for clearing in clearings if clearing.at_ms <= start_ms]
    in_time.sort(key=lambda clearing: (clearing.evicted_gpus * claimant.gpus // clearing.ranks, clearing[:3]))
    chosen: list[_Clearing] = []
    seated = 0
    for clearing in in_time:
        if seated >= claimant.ranks:
            break
        chosen.append(clearing)
        seated += clearing.ranks
    chosen.sort(key=lambda clearing: clearing.place)
    return Promise(
        tuple(clearing.node.id for clearing in chosen), start_ms, sum(clearing.evicted_gpus for clearing in chosen)
    )


def _clearing(draft: Draft, claimant: Workload, node: Node, rights: dict[Budget, bool]) -> _Clearing | None:
    """Return when a node has room for as many ranks as it can ever hold beside what may not be taken."""
    size = claimant.gpus_per_rank
    if node.claims:
        return None
    free = node.gpus
    going: list[tuple[int, int, int]] = []
    for key, mask in node.held.items():
        workload = draft.state.workloads[key[0]]
        gpus = mask.bit_count()
        at_ms = _leaves_at(draft, claimant, workload, rights)
        free -= gpus
        if at_ms is not None:
            going.append((at_ms, workload.gpus if workload.is_allocated else 0, gpus))
    for mask in node.orphans.values():
        free -= mask.bit_count()
        going.append((draft.now_ms, 0, mask.bit_count()))
    ranks = (free + sum(gpus for _, _, gpus in going)) // size
    if not ranks:
        return None
    at_ms, evicted = draft.now_ms, 0
    for leaves_ms, allocated, gpus in sorted(going):
        if free >= ranks * size:
            break
        free += gpus
        evicted += allocated
        at_ms = max(at_ms, leaves_ms)
    return _Clearing(at_ms, evicted, node.index, ranks, node)


def _leaves_at(draft: Draft, claimant: Workload, workload: Workload, rights: dict[Budget, bool]) -> int | None:
    """Return when a run can be made to go; None when the claimant may not take from it."""
    run = workload.run
    if run is None:
        return None
    if not workload.is_allocated or workload.phase is Phase.STOPPING:
        return draft.now_ms
    leaf = workload.budget
    if leaf is not claimant.budget:
        allowed = rights.get(leaf)
        if allowed is None:
            allowed = rights[leaf] = compare(draft, claimant.budget, leaf, 0) is not None
        if not allowed:
            return None
    until_ms = run.protected_until_ms
    if until_ms is None:
        until_ms = (run.deadline_ms or draft.now_ms) + run.min_ms
    return max(until_ms, draft.now_ms)
