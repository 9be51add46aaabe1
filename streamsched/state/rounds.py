"""Rounds: the first proposal closes one, each of its items is checked again, and what holds takes effect whole.

Functions over the state, called by its gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamsched.model.commands import StopReason
from streamsched.model.events import NodeHealth
from streamsched.state import runs
from streamsched.state.reasons import Ignored, Void
from streamsched.state.workloads import Commitment, Phase, Run, Workload

if TYPE_CHECKING:
    from streamsched.model.events import ProposedPlacement, RoundProposed
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


def _objection_to(state: ClusterState, item: ProposedPlacement) -> Void | None:
    """Check an item against the state as it is now, not as it was when somebody decided."""
    workload = state.workloads.get(item.workload)
    if workload is None or workload.queue_key is None:
        return Void.NOT_QUEUED
    if item.attempt != workload.attempt + 1:
        return Void.OTHER_ATTEMPT
    if workload.is_allocated and not workload.budget.quota_nano:
        return Void.NO_BUDGET
    wanted = _masks_by_node(item, workload)
    if wanted is None:
        return Void.WRONG_SEATS
    freed: dict[str, int] = {}
    if item.victims and len({victim.workload for victim in item.victims}) < len(item.victims):
        return Void.VICTIM_GONE
    for victim in item.victims:
        other = state.workloads.get(victim.workload)
        run = other.run if other is not None else None
        if other is None or run is None or run.attempt != victim.attempt or run.stop is not None:
            return Void.VICTIM_GONE
        if other.is_allocated or not workload.is_allocated:
            return Void.VICTIM_PROTECTED
        if other.phase is Phase.PLANNED or not any(wanted.get(id_, 0) & mask for id_, mask in run.held.items()):
            return Void.VICTIM_USELESS
        for id_, mask in run.held.items():
            freed[id_] = freed.get(id_, 0) | mask
    pool = workload.pool
    for node_id, mask in wanted.items():
        node = state.nodes.get(node_id)
        if node is None or node.health is not NodeHealth.HEALTHY:
            return Void.NODE_UNAVAILABLE
        if pool is None:
            pool = node.pool
        if node.pool != pool:
            return Void.WRONG_SEATS
        if mask & ~(node.free_mask | freed.get(node_id, 0)):
            return Void.GPU_TAKEN
    return None


def _accept(state: ClusterState, item: ProposedPlacement) -> None:
    """Give a gang its seats, at once or when its victims have gone."""
    workload = state.workloads[item.workload]
    runs.dequeue(state, workload)
    workload.attempt += 1
    run = Run(item.attempt, item.seats, workload.gpus, state.next_cursor - 1, state.now_ms)
    workload.run = run
    if workload.is_allocated:
        run.commitment = Commitment.WHOLE
        committed = run.gpus * workload.effective_min_ms
        for budget in workload.budget.path:
            budget.commitment_fixed += committed
    state.touch(workload)
    if not item.victims:
        runs.bind(state, workload, run)
        return

    workload.phase = Phase.PLANNED
    key = (workload.id, run.attempt)
    wanted = _masks_by_node(item, workload) or {}
    for node_id, mask in wanted.items():
        node = state.nodes[node_id]
        node.claims[key] = mask
        if awaited := mask & ~node.free_mask:
            run.awaited[node_id] = awaited
        state.inventory.refile(node)
        state.effects.nodes[node_id] = None
    grace = state.policy.unallocated_grace_ms
    run.deadline_ms = state.now_ms + grace + state.policy.stop_timeout_ms
    state.timers.set(workload)
    for victim in item.victims:
        runs.stop(state, state.workloads[victim.workload], StopReason.PREEMPTED, beneficiary=workload.id)


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
    key = (workload.id, run.attempt)
    for seat in run.seats:
        node = state.nodes.get(seat.node)
        if node is not None and node.claims.pop(key, None) is not None:
            state.inventory.refile(node)
            state.effects.nodes[node.id] = None
    workload.run = None


def _masks_by_node(item: ProposedPlacement, workload: Workload) -> dict[str, int] | None:
    """Return the GPUs by node that a placement asks for; None when its seats are not those of the workload."""
    if len(item.seats) != workload.ranks:
        return None
    wanted: dict[str, int] = {}
    for rank, seat in enumerate(item.seats):
        before = wanted.get(seat.node, 0)
        if seat.rank != rank or seat.gpu_mask.bit_count() != workload.gpus_per_rank or before & seat.gpu_mask:
            return None
        wanted[seat.node] = before | seat.gpu_mask
    return wanted
