"""Rounds: the first proposal closes one, each of its items is checked again, and what holds takes effect whole.

Functions over the state, called by its gate.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from streamsched.model.commands import StopReason
from streamsched.model.events import TakeRule
from streamsched.model.policy import Scheme
from streamsched.model.quantities import WHOLE
from streamsched.state import limits, recoveries, runs, straddling
from streamsched.state.disruption import DisruptionBudget
from streamsched.state.reasons import Ignored, Void
from streamsched.state.reservations import Reservation
from streamsched.state.workloads import Commitment, Phase, Run, Workload, is_unprotected

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamsched.model.events import ProposedPlacement, ProposedReservation, RoundProposed, Seat
    from streamsched.state.cluster import ClusterState


def close_round(state: ClusterState, proposal: RoundProposed) -> None:
    """Close the open round by its first proposal, and let what holds of it take effect."""
    if proposal.round != state.closed_round + 1:
        closed = proposal.round <= state.closed_round
        state.ignore(Ignored.ROUND_CLOSED if closed else Ignored.ROUND_NOT_OPEN)
        return
    state.closed_round = proposal.round
    for item in proposal.placements:
        objection = _objection_to(state, item)
        if objection is None:
            _accept(state, item)
        else:
            state.void[objection] = state.void.get(objection, 0) + 1
    for promise in proposal.reservations:
        objection = _objection_to_promise(state, promise)
        if objection is None:
            _promise(state, promise)
        else:
            state.void[objection] = state.void.get(objection, 0) + 1


def _objection_to(state: ClusterState, item: ProposedPlacement) -> Void | None:
    """Check an item against the state as it is now, not as it was when somebody decided."""
    workload = state.workloads.get(item.workload)
    if workload is None or (workload.queue_key is None and not recoveries.waits(state, workload)):
        return Void.NOT_QUEUED
    if item.attempt != workload.attempt + 1:
        return Void.OTHER_ATTEMPT
    if workload.is_allocated and not workload.budget.quota_nano:
        return Void.NO_BUDGET
    if workload.budget.full_for(workload.gpus, {}, allocated=workload.is_allocated) is not None:
        return Void.SLOT_LIMIT
    wanted = _masks_by_node(item.seats, workload)
    if wanted is None:
        return Void.WRONG_SEATS
    taken = dict(wanted)
    freed: dict[str, int] = {}
    if item.victims and len({victim.workload for victim in item.victims}) < len(item.victims):
        return Void.VICTIM_GONE
    for victim in item.victims:
        other = state.workloads.get(victim.workload)
        run = other.run if other is not None else None
        if other is None or run is None or run.attempt != victim.attempt or run.stop is not None:
            return Void.VICTIM_GONE
        if not workload.is_allocated or (other.is_allocated and not is_unprotected(other, state.now_ms)):
            return Void.VICTIM_PROTECTED
        if victim.moves_to is not None and not _can_move(state, other, victim.moves_to, taken):
            return Void.WRONG_SEATS
        if other.phase is Phase.PLANNED or not any(wanted.get(id_, 0) & mask for id_, mask in run.held.items()):
            return Void.VICTIM_USELESS
        for id_, mask in run.held.items():
            freed[id_] = freed.get(id_, 0) | mask
    home: str | None = None
    for node_id, mask in wanted.items():
        node = state.nodes.get(node_id)
        if node is None or not node.takes_work:
            return Void.NODE_UNAVAILABLE
        if home is None:
            home = node.home
        if node.home != home or workload.pool not in (None, node.pool):
            return Void.WRONG_SEATS
        pinned = node.pins.get(workload.id, 0) & node.unheld_mask
        if mask & ~(node.free_mask | freed.get(node_id, 0) | pinned):
            return Void.GPU_TAKEN
    # Nodes may have been relabelled, or levels renamed, since it was decided.
    return None if _keeps_layers(state, workload, item.seats) else Void.WRONG_SEATS


def _keeps_layers(state: ClusterState, workload: Workload, seats: Sequence[Seat]) -> bool:
    if workload.topology is None:
        return True
    nodes = [state.nodes[seat.node] for seat in seats]
    return straddling.breach_of(workload.topology, state.policy.levels_of(nodes[0].pool), nodes) is None


def _can_move(state: ClusterState, workload: Workload, seats: Sequence[Seat], taken: dict[str, int]) -> bool:
    """Whether a run may be stopped to start elsewhere, on GPUs that are free and that nobody else takes.

    Args:
        taken: GPUs by node that the claimant and those before it take; its own are added.
    """
    masks = _masks_by_node(seats, workload)
    run = workload.run
    if masks is None or run is None or not (workload.is_allocated and workload.resumable):
        return False
    homes = {state.nodes[id_].home for id_ in run.held}
    for id_, mask in masks.items():
        node = state.nodes.get(id_)
        if node is None or not node.takes_work or mask & ~(node.free_mask & ~taken.get(id_, 0)):
            return False
        homes.add(node.home)
        taken[id_] = taken.get(id_, 0) | mask
    return len(homes) == 1 and _keeps_layers(state, workload, seats)


def _accept(state: ClusterState, item: ProposedPlacement) -> None:
    """Give a gang its seats, at once or when its victims have gone."""
    workload = state.workloads[item.workload]
    runs.dequeue(state, workload)
    recoveries.end(state, workload.id)
    workload.attempt += 1
    run = Run(item.attempt, item.seats, workload.gpus, state.next_cursor - 1, state.now_ms)
    workload.run = run
    run.rate = state.policy.rate_of(state.nodes[item.seats[0].node].pool)
    state.reservations.pop(workload.id, None)
    if workload.is_allocated:
        run.min_ms = _protected_time(state, workload, run)
        run.commitment = Commitment.WHOLE
        committed = run.units * run.min_ms
        state.budgets.jumped_gpu_ms += committed
        for budget in workload.budget.path:
            budget.commitment_fixed += committed
    state.budgets.take_slots(workload.budget, workload.gpus, allocated=workload.is_allocated)
    state.touch(workload)
    if not item.victims:
        runs.bind(state, workload, run)
        return

    workload.phase = Phase.PLANNED
    state.budgets.plan(workload.budget, run.units)
    key = (workload.id, run.attempt)
    wanted = _masks_by_node(item.seats, workload) or {}
    for node_id, mask in wanted.items():
        node = state.nodes[node_id]
        node.claims[key] = mask
        if awaited := mask & ~node.free_mask:
            run.awaited[node_id] = awaited
        state.inventory.refile(node)
        state.effects.nodes[node_id] = None
    for named in item.victims:
        if named.moves_to is not None:
            recoveries.move(state, state.workloads[named.workload], named.moves_to)
    victims = [state.workloads[victim.workload] for victim in item.victims]
    allocated = [victim for victim in victims if victim.is_allocated]
    grace = state.policy.grace_ms if allocated else state.policy.unallocated_grace_ms
    _spend(state, item)
    run.deadline_ms = state.now_ms + grace + state.policy.stop_timeout_ms
    state.timers.set(workload)
    for victim in victims:
        runs.stop(state, victim, StopReason.PREEMPTED, beneficiary=workload.id)


def _protected_time(state: ClusterState, workload: Workload, run: Run) -> int:
    """Return how long a run will be protected: what it asked for, and less if the policy says so above a quota."""
    if state.policy.scheme is Scheme.PRIORITY:
        return limits.protected_time(workload.budget, run.units, state.budgets.capacity_units)
    most = state.policy.over_quota_protection_ms
    wanted = workload.effective_min_ms
    if most is None or wanted <= most:
        return wanted
    leaf = workload.budget
    quota = leaf.quota_nano * state.budgets.capacity_units
    return most if (leaf.charged.held + run.units) * WHOLE > quota else wanted


def _spend(state: ClusterState, item: ProposedPlacement) -> None:
    """Count the allocated GPUs that are preempted, unless it was promised."""
    spent = 0
    for named in item.victims:
        victim = state.workloads[named.workload]
        is_promised = named.because is not None and named.because.rule is TakeRule.RESERVATION
        if victim.is_allocated and not is_promised:
            spent += victim.gpus
    if spent:
        pool = state.inventory.pools[state.nodes[item.seats[0].node].home]
        budget = state.disruption.setdefault(pool.id, DisruptionBudget())
        budget.spend(spent, pool.installed_gpus, state.policy, state.now_ms)


def _objection_to_promise(state: ClusterState, item: ProposedReservation) -> Void | None:
    """Check a reservation against the state as it is now."""
    workload = state.workloads.get(item.workload)
    if workload is None or workload.queue_key is None or not workload.is_allocated:
        return Void.NOT_QUEUED
    if workload.id in state.reservations or len(state.reservations) >= state.policy.reservations:
        return Void.RESERVED
    kept = {id_ for promise in state.reservations.values() for id_ in promise.nodes}
    for id_ in item.nodes:
        node = state.nodes.get(id_)
        if node is None or not node.takes_work or node.home != item.pool:
            return Void.NODE_UNAVAILABLE
        if id_ in kept:
            return Void.RESERVED
    if len(set(item.nodes)) < len(item.nodes):
        return Void.WRONG_SEATS
    return None


def _promise(state: ClusterState, item: ProposedReservation) -> None:
    """Keep nodes for a gang."""
    promise = Reservation(item.workload, item.pool, item.nodes, item.start_ms, state.now_ms, state.next_cursor - 1)
    state.reservations[item.workload] = promise
    state.timers.reserve(promise, state.policy.reservation_overrun_ms)
    state.matured += 1
    state.touch(state.workloads[item.workload])
    for id_ in item.nodes:
        state.effects.nodes[id_] = None


def end_reservation(state: ClusterState, claimant: str) -> None:
    """Give up a reservation: its nodes are as any others."""
    promise = state.reservations.pop(claimant, None)
    if promise is None:
        return
    state.matured += 1
    workload = state.workloads.get(claimant)
    if workload is not None:
        state.touch(workload)
    for id_ in promise.nodes:
        state.effects.nodes[id_] = None


def leave_reservations(state: ClusterState, node: str) -> None:
    """Give up what was promised on a node that takes no work any more."""
    for claimant in [id_ for id_, promise in state.reservations.items() if node in promise.nodes]:
        end_reservation(state, claimant)


def fail_plan(state: ClusterState, workload: Workload, *, setback: bool) -> None:
    """Give up a plan: its claims are void, and its claimant waits again, where it was in its leaf."""
    withdraw_claims(state, workload)
    runs.back_to_queue(state, workload, hold=setback)


def withdraw_claims(state: ClusterState, workload: Workload) -> None:
    """Give up the GPUs that a planned run waits for."""
    run = workload.run
    if run is None:
        return
    runs.drop_commitment(state, workload)
    state.budgets.plan(workload.budget, -run.units)
    state.budgets.take_slots(workload.budget, -run.gpus, allocated=workload.is_allocated)
    key = (workload.id, run.attempt)
    for seat in run.seats:
        node = state.nodes.get(seat.node)
        if node is not None and node.claims.pop(key, None) is not None:
            state.inventory.refile(node)
            state.effects.nodes[node.id] = None
    workload.run = None


def _masks_by_node(seats: Sequence[Seat], workload: Workload) -> dict[str, int] | None:
    """Return the GPUs by node that seats have; None when they are not those of a workload."""
    if len(seats) != workload.ranks:
        return None
    sizes: Iterable[int] = repeat(workload.gpus_per_rank)
    if workload.topology is not None and workload.topology.groups:
        sizes = workload.topology.gpus_of_ranks(workload.gpus_per_rank)
    wanted: dict[str, int] = {}
    for rank, (seat, gpus) in enumerate(zip(seats, sizes, strict=False)):
        before = wanted.get(seat.node, 0)
        if seat.rank != rank or seat.gpu_mask.bit_count() != gpus or before & seat.gpu_mask:
            return None
        wanted[seat.node] = before | seat.gpu_mask
    return wanted
