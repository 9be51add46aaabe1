"""What to do now: a function of the state alone.

Allocated work first, in fair-share order, each workload meeting what the ones before it left: it takes free GPUs, or
else those of unallocated runs. Then unallocated work, on what is free. Nothing here asks a clock, and nothing writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamsched.model.events import ProposedPlacement, RoundProposed, Seat, Victim
from streamsched.scheduling.draft import Draft
from streamsched.scheduling.fair_share import Turns
from streamsched.scheduling.placement import place
from streamsched.scheduling.preemption import displace

if TYPE_CHECKING:
    from streamsched.state.backlog import Backlog, ShapeQueue
    from streamsched.state.cluster import ClusterState
    from streamsched.state.workloads import Shape


def decide(state: ClusterState) -> RoundProposed | None:
    """Choose what to place, and what to preempt for it.

    Equal states give equal proposals on any machine, so a decision can be checked years later.

    Args:
        state: The cluster at one cursor, policy included. Not modified.

    Returns:
        The proposal for the open round, each item with its arithmetic; None when there is nothing to do.
    """
    draft = Draft(state)
    limit = state.policy.placements_per_round
    placements: list[ProposedPlacement] = []
    for backlog, allocated in ((state.allocated, True), (state.unallocated, False)):
        if backlog.size:
            _settle(draft, backlog, placements, limit, allocated=allocated)
    if not placements:
        return None
    return RoundProposed(
        round=state.closed_round + 1,
        based_on=state.next_cursor,
        policy_version=state.policy_version,
        placements=tuple(placements),
    )


def _settle(
    draft: Draft, backlog: Backlog, placements: list[ProposedPlacement], limit: int, *, allocated: bool
) -> None:
    """Place what fits of one class, in its order, until nothing fits or the proposal is full."""
    fitting: dict[Shape, list[ShapeQueue]] = {
        shape: [queue for queue in queues.values() if not allocated or queue.leaf.quota_nano]
        for shape, queues in backlog.by_shape.items()
        if _fits(draft, shape, displacing=allocated)
    }
    turns: Turns | None = None
    while fitting and len(placements) < limit:
        if turns is None:
            turns = Turns(draft, (queue for queues in fitting.values() for queue in queues), allocated=allocated)
        turn = turns.next()
        if turn is None:
            return
        queue, key, shares = turn
        workload = draft.state.workloads[key[3]]
        seats, victims = _seat(draft, queue.shape, displacing=allocated)
        placements.append(
            ProposedPlacement(
                workload=workload.id, attempt=workload.attempt + 1, seats=seats, victims=victims, shares=shares
            )
        )
        taken = draft.taken[queue] = draft.taken.get(queue, 0) + 1
        if allocated:
            draft.commit(workload.budget, workload.gpus * workload.effective_min_ms)
        if taken == len(queue.entries):
            fitting[queue.shape].remove(queue)
            turns = None
        still = {
            shape: queues for shape, queues in fitting.items() if queues and _fits(draft, shape, displacing=allocated)
        }
        if len(still) < len(fitting):
            fitting, turns = still, None


def _fits(draft: Draft, shape: Shape, *, displacing: bool) -> bool:
    """Whether a gang of that shape could sit somewhere now: exact, and at no cost that grows with the cluster."""
    wanted, gpus_per_rank, ranks, _ = shape
    for pool in draft.state.inventory.candidates(wanted):
        drafted = draft.pools.get(pool.id)
        source = pool if drafted is None else drafted
        room = source.reclaimable if displacing else source.free
        if room.slots(gpus_per_rank) >= ranks:
            return True
    return False


def _seat(draft: Draft, shape: Shape, *, displacing: bool) -> tuple[tuple[Seat, ...], tuple[Victim, ...]]:
    """Seat a gang that fits: on free GPUs of the first pool that has them, else where others make room."""
    wanted, gpus_per_rank, ranks, _ = shape
    pools = [draft.pool(pool) for pool in draft.state.inventory.candidates(wanted)]
    for pool in pools:
        seats = place(pool, ranks, gpus_per_rank)
        if seats is not None:
            return seats, ()
    if displacing:
        for pool in pools:
            displaced = displace(draft.state, pool, ranks, gpus_per_rank)
            if displaced is not None:
                return displaced
    raise AssertionError(f"a gang of shape {shape} was found to fit, and does not")
