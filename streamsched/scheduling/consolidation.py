"""Moving work so that a request fits: nobody gives anything up but the time that it takes to stop and start again.

Allocated runs past their protection that can resume are moved to free GPUs elsewhere, which are kept for them while
they stop, if a gang then has room that it could not take from anybody. Who is unallocated is displaced as ever. One
choice is tried in each pool, the cheapest; it is made only if everybody in it has a place to go to.

Source: `fair-share.md`, section 4.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamsched.model.events import Victim
from streamsched.scheduling.placement import place
from streamsched.scheduling.preemption import Preemption, cheapest, spare_last
from streamsched.state.workloads import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamsched.scheduling.draft import Draft, DraftPool
    from streamsched.state.inventory import RunKey
    from streamsched.state.workloads import Workload


def consolidate(
    draft: Draft, pool: DraftPool, claimant: Workload, nodes: int, *, affordable: Callable[[int], bool]
) -> Preemption | None:
    """Seat a gang where others have been moved away, and take its seats and theirs; None, and nothing is taken.

    Args:
        draft: The decision in the making; changed when the gang fits.
        pool: Where to look.
        claimant: The gang.
        nodes: The nodes that may be used, as bits.
        affordable: Whether so many allocated GPUs may be moved at this moment.
    """
    state = draft.state
    extra: dict[int, dict[RunKey, int]] = {}
    ranking: dict[RunKey, int] = {}
    for key, run in _movable(draft, pool):
        if pool.free.slots_on(run.gpus_per_rank, _usable(draft, pool, run)) < run.ranks or run.run is None:
            continue
        ranking[key] = len(ranking)
        for node_id, mask in run.run.held.items():
            index = state.nodes[node_id].index
            if nodes >> index & 1:
                extra.setdefault(index, {})[key] = mask
    if not extra or not _has_room(pool, claimant, nodes, extra):
        return None
    trial = pool.copy()
    search = cheapest(state, trial, claimant, nodes, extra, ranking)
    if search is None or search.allocated_gpus > state.policy.disruption_cap * claimant.gpus:
        return None
    if not affordable(search.allocated_gpus):
        return None
    seats = search.seats()
    moved: dict[RunKey, Victim] = {}
    for key in sorted(search.chosen, key=lambda key: (-search.chosen[key].gpus, key)):
        other = state.workloads[key[0]]
        if not other.is_allocated:
            continue
        places = place(state.policy, trial, other, _usable(draft, pool, other))
        if places is None:
            return None
        moved[key] = Victim(workload=key[0], attempt=key[1], moves_to=places)
    draft.pools[pool.pool.id] = trial
    victims = tuple(moved.get(key) or Victim(workload=key[0], attempt=key[1]) for key in sorted(search.chosen))
    return Preemption(seats, victims, search.allocated_gpus, over_cap=False)


def _movable(draft: Draft, pool: DraftPool) -> list[tuple[RunKey, Workload]]:
    """Return the allocated runs of a pool that can be moved, in the order in which equal victims are chosen."""
    state = draft.state
    found: list[tuple[RunKey, Workload]] = []
    for runs in state.unprotected.values():
        for key, workload in runs.items():
            run = workload.run
            if run is None or not workload.resumable or key in pool.victims or workload.phase is not Phase.RUNNING:
                continue
            if all(state.nodes[id_].home == pool.pool.id and state.nodes[id_].takes_work for id_ in run.held):
                found.append((key, workload))
    found.sort(key=lambda item: item[0], reverse=True)
    found.sort(key=lambda item: spare_last(item[1]))
    return found


def _usable(draft: Draft, pool: DraftPool, workload: Workload) -> int:
    return draft.nodes_for(pool.pool, workload.shape, allocated=True)


def _has_room(pool: DraftPool, claimant: Workload, nodes: int, extra: dict[int, dict[RunKey, int]]) -> bool:
    """Whether a gang would fit if all of these runs were gone, as far as the numbers of GPUs say."""
    size = claimant.gpus_per_rank
    slots = pool.reclaimable.slots_on(size, nodes)
    for index, runs in extra.items():
        before = int(pool.reclaimable.offers[index])
        slots += (before + sum(mask.bit_count() for mask in runs.values())) // size - before // size
    return slots >= claimant.ranks
