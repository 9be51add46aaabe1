"""The life of a run: bound, started, stopped, released; and what becomes of its workload then.

Functions over the state, called by its gate and by each other, and by nobody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamsched.model.commands import Place, Receipt, ReceiptStatus, Stop, StopReason
from streamsched.model.events import ReleaseOutcome, trusted
from streamsched.model.quantities import MINUTE, SECOND, format_duration, format_instant
from streamsched.state import corrections, recoveries
from streamsched.state.reasons import Ignored
from streamsched.state.workloads import Commitment, Finished, Phase, Run, Workload

if TYPE_CHECKING:
    from streamsched.model.events import RunReleased, RunStarted, Seat
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Node, RunKey

# What a command says was read from facts, or chosen here.
_place, _stop = trusted(Place), trusted(Stop)

#: Back-off after an infrastructure failure: doubles from the first to the last.
_SETBACK_FIRST_MS = 15 * SECOND
_SETBACK_LAST_MS = 30 * MINUTE
#: Back-off of unallocated work that was displaced: doubles from the first to the last.
_EVICTION_FIRST_MS = 1 * MINUTE
_EVICTION_LAST_MS = 30 * MINUTE


def bind(state: ClusterState, workload: Workload, run: Run) -> None:
    """Give a run its GPUs and tell its nodes."""
    now, inventory = state.now_ms, state.inventory
    key = (workload.id, run.attempt)
    allocated = workload.is_allocated
    if workload.phase is Phase.PLANNED:
        state.budgets.plan(workload.budget, -run.units)
    workload.phase = Phase.BOUND
    run.bound_ms = now
    seats: dict[str, tuple[Seat, ...]] = {}
    if len(run.seats) == 1:
        (seat,) = run.seats
        run.held[seat.node] = seat.gpu_mask
        seats[seat.node] = run.seats
    else:
        for seat in run.seats:
            run.held[seat.node] = run.held.get(seat.node, 0) | seat.gpu_mask
            seats[seat.node] = (*seats.get(seat.node, ()), seat)
    start_by = now + state.policy.start_deadline_ms
    leader = run.seats[0].node
    for node_id, mask in run.held.items():
        node = inventory.nodes[node_id]
        if node.claims.pop(key, None) is not None:
            inventory.gains += 1  # What is claimed cannot be promised to a third; what is held can.
        node.held[key] = mask
        if not allocated:
            node.preemptible[key] = mask
        inventory.refile(node)
        state.effects.nodes[node_id] = None
        place = _place(
            command=state.next_command_id(),
            node=node_id,
            workload=workload.id,
            attempt=run.attempt,
            seats=seats[node_id],
            ranks=workload.ranks,
            leader=leader,
            argv=workload.command,
            start_by_ms=start_by,
        )
        run.places[node_id] = place.command
        state.issue(place)
    state.budgets.hold(workload.budget, run.units, now, charged=allocated)
    run.deadline_ms = start_by
    state.timers.set(workload)


def start(state: ClusterState, fact: RunStarted) -> None:
    """Take a node's report that its ranks run."""
    workload = _running(state, fact.workload, fact.attempt, fact.node)
    if workload is None or workload.run is None:
        return
    run = workload.run
    state.dispatch.acknowledge(fact.node, run.places[fact.node])
    if fact.node in run.started_on:
        state.ignore(Ignored.ALREADY_SO)
        return
    _note_start(state, workload, run, fact.node)


def _note_start(state: ClusterState, workload: Workload, run: Run, node_id: str) -> None:
    """Count a node as started; with the last one the gang has started, and its protection begins."""
    run.started_on[node_id] = None
    if len(run.started_on) < len(run.places) or run.stop is not None:
        return
    run.started_ms = state.now_ms
    run.deadline_ms = None if workload.timeout_ms is None else state.now_ms + workload.timeout_ms
    workload.phase = Phase.RUNNING
    workload.setbacks = 0
    state.touch(workload)
    if workload.is_allocated:
        least = run.min_ms
        run.protected_until_ms = until = state.now_ms + least
        if run.commitment is Commitment.WHOLE:
            run.commitment = Commitment.REST
            whole, summed = run.units * least, run.units * until
            for budget in workload.budget.path:
                budget.commitment_fixed -= whole
                budget.commitment_gpus += run.units
                budget.commitment_sum += summed
        state.timers.protect(workload, until)
        if workload.interactive:
            run.warn_ms = until - state.policy.warning_ms
            state.timers.warn(workload)
    state.timers.set(workload)


def release(state: ClusterState, fact: RunReleased) -> None:
    """Take a node's report that its GPUs are free again."""
    node = state.nodes.get(fact.node)
    if node is None:
        state.ignore(Ignored.UNKNOWN_NODE)
        return
    key = (fact.workload, fact.attempt)
    if key in node.orphans:
        forget_orphan(state, node, key)
        return
    workload = _running(state, fact.workload, fact.attempt, fact.node)
    if workload is None or workload.run is None:
        return
    run = workload.run
    match fact.outcome:
        case ReleaseOutcome.FAILED:
            run.failed += 1
            run.failure = run.failure or _said(fact)
        case ReleaseOutcome.REFUSED:
            run.infrastructure += 1
            run.failure = run.failure or _said(fact)
        case ReleaseOutcome.STOPPED:
            run.stopped += 1
        case ReleaseOutcome.SUCCEEDED:
            if node.id not in run.started_on:
                _note_start(state, workload, run, node.id)  # It has run, though nobody told us of its start.
    mask = _give_back(state, workload, run, node)
    _hand_over(state, node, mask)
    broken = fact.outcome in (ReleaseOutcome.FAILED, ReleaseOutcome.REFUSED) or (
        fact.outcome is ReleaseOutcome.STOPPED and run.stop is None
    )
    _after_a_part(state, workload, broken=broken)


def _said(fact: RunReleased) -> str:
    """Return what a node said of its failure."""
    code = "" if fact.exit_code is None else f" with exit code {fact.exit_code}"
    return f"{fact.node}{code}{f' ({fact.detail})' if fact.detail else ''}"


def _running(state: ClusterState, workload_id: str, attempt: int, node: str) -> Workload | None:
    """Return the workload if this attempt of it holds GPUs on this node; otherwise count the fact as ignored."""
    workload = state.workloads.get(workload_id)
    if workload is None:
        state.ignore(Ignored.STALE_ATTEMPT if workload_id in state.finished else Ignored.UNKNOWN_WORKLOAD)
        return None
    if workload.run is None or workload.run.attempt != attempt or node not in workload.run.held:
        state.ignore(Ignored.STALE_ATTEMPT)
        return None
    return workload


def _give_back(state: ClusterState, workload: Workload, run: Run, node: Node) -> int:
    """End a run's part on one node; return its GPUs. The charge ends here."""
    key = (workload.id, run.attempt)
    mask = run.held.pop(node.id)
    node.held.pop(key, None)
    node.preemptible.pop(key, None)
    node.unprotected.pop(key, None)
    if not run.held:
        state.shield(workload)
    state.inventory.refile(node)
    state.dispatch.settle(node.id, key)
    gpus, allocated = mask.bit_count(), workload.is_allocated
    units = gpus * run.rate
    state.budgets.hold(workload.budget, -units, state.now_ms, charged=allocated)
    state.budgets.take_slots(workload.budget, -gpus, allocated=allocated)
    if run.started_ms is None:
        run.returned.append((units, state.now_ms))
    drop_commitment(state, workload)
    state.touch(workload)
    state.effects.nodes[node.id] = None
    return mask


def _hand_over(state: ClusterState, node: Node, mask: int) -> None:
    """Let plans that wait for these GPUs of a node know that they are free."""
    if not node.claims:
        return
    for key in sorted(node.claims):
        claimant = state.workloads[key[0]]
        run = claimant.run
        if run is None or not run.awaited.get(node.id, 0) & mask:
            continue
        run.awaited[node.id] &= ~mask
        if not run.awaited[node.id]:
            del run.awaited[node.id]
        if not run.awaited:
            state.touch(claimant)
            bind(state, claimant, run)


def _after_a_part(state: ClusterState, workload: Workload, *, broken: bool) -> None:
    """Go on after one node of a gang has ended: the others follow when it is broken; the last one ends the run."""
    run = workload.run
    if run is None:
        return
    if not run.held:
        _end(state, workload, run)
    elif broken and run.stop is None:
        stop(state, workload, StopReason.GANG_BROKEN)


def stop(state: ClusterState, workload: Workload, reason: StopReason, beneficiary: str | None = None) -> None:
    """Stop a run on every node that still has it."""
    run = workload.run
    if run is None:
        return
    run.stop = reason
    run.stop_ms = state.now_ms
    run.beneficiary = beneficiary
    workload.phase = Phase.STOPPING
    drop_commitment(state, workload)
    state.touch(workload)
    recoveries.begin(state, workload, reason)
    key = (workload.id, run.attempt)
    state.shield(workload)
    grace = grace_of(state, workload)
    run.deadline_ms = state.now_ms + grace + state.policy.stop_timeout_ms
    state.timers.set(workload)
    for node_id in run.held:
        node = state.nodes[node_id]
        if node.preemptible.pop(key, None) is not None:
            state.inventory.refile(node)
        state.effects.nodes[node_id] = None
        state.issue(
            _stop(
                command=state.next_command_id(),
                node=node_id,
                workload=workload.id,
                attempt=run.attempt,
                grace_ms=grace,
                reason=reason,
                beneficiary=beneficiary,
            )
        )


def grace_of(state: ClusterState, workload: Workload) -> int:
    """Return the time between a stop of its run and the kill, in milliseconds."""
    return state.policy.grace_ms if workload.is_allocated else state.policy.unallocated_grace_ms


#: Stops that come from neither the work nor from anybody who may take its GPUs.
_INFRASTRUCTURE = (None, StopReason.GANG_BROKEN, StopReason.START_DEADLINE, StopReason.NODE_FAILED)


def _is_nobodys_doing(run: Run) -> bool:
    """Whether a run was stopped by a failure of the machinery; a drain is one to what it kept from starting."""
    return run.stop in _INFRASTRUCTURE or (run.stop is StopReason.NODE_DRAINED and run.started_ms is None)


def _end(state: ClusterState, workload: Workload, run: Run) -> None:
    """Settle what becomes of a workload whose run has released everything.

    What never started may start elsewhere whatever its contract; what has started is only started again if it can
    be resumed.
    """
    may_requeue = workload.resumable or run.started_ms is None
    if workload.cancelled:
        finish(state, workload, Phase.CANCELLED, "cancelled while it ran")
    elif run.failed:
        finish(state, workload, Phase.FAILED, f"{run.failed} of {len(run.places)} nodes failed, first {run.failure}")
    elif run.infrastructure or (run.stopped and _is_nobodys_doing(run)):
        if run.started_ms is None:
            corrections.refund(state, workload, run)
        if may_requeue:
            # A node that was taken out of use does not take it again; of other failures the next may be as quick.
            is_known = run.stop in (StopReason.NODE_FAILED, StopReason.NODE_DRAINED) and not run.infrastructure
            back_to_queue(state, workload, hold=run.started_ms is None and not is_known)
        else:
            why = "a node failed" if run.stop is StopReason.NODE_FAILED else "a node was lost"
            finish(state, workload, Phase.FAILED, f"{why}, and the work cannot be resumed")
    elif not run.stopped:
        finish(state, workload, Phase.SUCCEEDED, "all ranks ended well")
    elif run.stop is StopReason.TIMED_OUT:
        finish(state, workload, Phase.TIMED_OUT, f"ran for {format_duration(workload.timeout_ms or 0)}, its timeout")
    elif may_requeue:
        _back_off(state, workload, run)
        back_to_queue(state, workload, hold=False)
    else:
        why = f"preempted for {run.beneficiary}" if run.beneficiary else "a node was drained"
        finish(state, workload, Phase.PREEMPTED, f"{why}, and it cannot be resumed")


def _back_off(state: ClusterState, workload: Workload, run: Run) -> None:
    """Let unallocated work that is displaced again and again wait longer each time, until a run has lasted as long."""
    if workload.is_allocated or run.stop is not StopReason.PREEMPTED:
        return
    if workload.evictions:
        last = _eviction_wait(workload.evictions)
        if run.started_ms is not None and (run.stop_ms or 0) - run.started_ms >= last:
            workload.evictions = 0
    workload.evictions += 1
    workload.held_until_ms = state.now_ms + _eviction_wait(workload.evictions)


def _eviction_wait(evictions: int) -> int:
    return min(_EVICTION_FIRST_MS << min(evictions - 1, 20), _EVICTION_LAST_MS)


def back_to_queue(state: ClusterState, workload: Workload, *, hold: bool) -> None:
    """Queue a workload again, first of its priority in its leaf; after an infrastructure failure, not at once."""
    now = state.now_ms
    workload.run = None
    workload.phase = Phase.QUEUED
    workload.requeued = True
    workload.queued_ms = now
    state.touch(workload)
    budget = workload.budget
    workload.count_queued(workload.gpus)
    if budget.closed or budget.children:
        workload.count_queued(-workload.gpus)
        finish(state, workload, Phase.REJECTED, f"budget {budget.id!r} takes no work any more")
    elif workload.id in state.recoveries:
        recoveries.wait(state, workload)
    elif hold:
        workload.setbacks += 1
        wait = min(_SETBACK_FIRST_MS << min(workload.setbacks - 1, 20), _SETBACK_LAST_MS)
        workload.held_until_ms = now + wait
        state.timers.set(workload)
    elif workload.held_until_ms > now:
        state.timers.set(workload)
    else:
        state.queue(workload)


def finish(state: ClusterState, workload: Workload, phase: Phase, reason: str) -> None:
    """Take a workload that is over out of the living, and remember it for a while."""
    state.touch(workload)
    if state.reservations.pop(workload.id, None) is not None:
        state.matured += 1
    recoveries.end(state, workload.id)
    workload.phase = phase
    workload.run = None
    del state.workloads[workload.id]
    fingerprint = workload.fingerprint()
    state.remember(
        Finished(workload.id, phase, reason, state.next_cursor - 1, state.now_ms, workload.attempt, fingerprint)
    )


def lose(state: ClusterState, key: RunKey, node: Node) -> None:
    """End a run's part on a node that no longer has it, or that can no longer be asked.

    A placement that the node has not acknowledged may still reach it, so a stop is sent after it, and the GPUs are
    given to nobody before the node has answered.
    """
    workload = state.workloads[key[0]]
    run = workload.run
    if run is None:
        return
    run.infrastructure += 1
    is_on_its_way = not state.dispatch.is_acknowledged(run.places[node.id], node.id)
    mask = _give_back(state, workload, run, node)
    if is_on_its_way:
        node.orphans[key] = mask & node.all_mask
        send_away(state, key, node)
    if key in node.orphans:
        state.inventory.refile(node)
    else:
        _hand_over(state, node, mask)
    _after_a_part(state, workload, broken=True)


def give_up(state: ClusterState, workload: Workload) -> None:
    """End a run that did not stop in time: what its nodes still have is theirs to get rid of, and charged to nobody."""
    run = workload.run
    if run is None:
        return
    key = (workload.id, run.attempt)
    for id_ in sorted(run.held):
        node = state.nodes[id_]
        run.stopped += 1
        node.orphans[key] = run.held[id_]
        node.stuck[key] = state.now_ms
        _give_back(state, workload, run, node)
        send_away(state, key, node)
    _end(state, workload, run)


def send_away(state: ClusterState, key: RunKey, node: Node) -> None:
    """Tell a node to stop a run that is over for us."""
    state.issue(
        Stop(
            command=state.next_command_id(),
            node=node.id,
            workload=key[0],
            attempt=key[1],
            grace_ms=state.policy.unallocated_grace_ms,
            reason=StopReason.UNKNOWN_RUN,
        )
    )


def forget_orphan(state: ClusterState, node: Node, key: RunKey) -> None:
    """Free the GPUs of a run that was over for us, now that its node no longer has it."""
    mask = node.orphans.pop(key)
    node.stuck.pop(key, None)
    state.inventory.refile(node)
    state.effects.nodes[node.id] = None
    _hand_over(state, node, mask)


def dequeue(state: ClusterState, workload: Workload) -> None:
    """Take a workload out of the queue, held or not."""
    state.backlog_of(workload).remove(workload)
    workload.count_queued(-workload.gpus)
    state.touch(workload)


def end_protection(state: ClusterState, workload: Workload) -> None:
    """Let a run be a victim from now on, at the exact end of its protected time."""
    drop_commitment(state, workload)
    run = workload.run
    if run is None:
        return
    state.expose(workload)
    for node_id in run.held:
        state.effects.nodes[node_id] = None
    state.touch(workload)
    if any(state.nodes[node_id].is_draining for node_id in run.held):
        stop(state, workload, StopReason.NODE_DRAINED)


def warn(state: ClusterState, workload: Workload) -> None:
    """Tell whoever sits at an interactive session that its protection is about to end."""
    run = workload.run
    if run is None or run.protected_until_ms is None:
        return
    run.warn_ms = None
    if run.protected_until_ms <= state.now_ms:
        return  # Time stood still for so long that there is nothing to warn of any more.
    state.touch(workload)
    once = "" if run.extended_ms else "; it can be extended once"
    state.effects.receipts.append(
        Receipt(
            workload=workload.id,
            status=ReceiptStatus.NOTICE,
            cursor=state.next_cursor - 1,
            reason=f"protected until {format_instant(run.protected_until_ms)}, and may be stopped from then on{once}",
        )
    )


def drop_commitment(state: ClusterState, workload: Workload) -> None:
    """Stop counting a run's protected time as committed: it is over, or will not come."""
    run = workload.run
    if run is None or run.commitment is Commitment.NONE:
        return
    if run.commitment is Commitment.WHOLE:
        whole = run.units * run.min_ms
        state.budgets.jumped_gpu_ms += whole
        for budget in workload.budget.path:
            budget.commitment_fixed -= whole
    else:
        summed = run.units * (run.protected_until_ms or 0)
        state.budgets.jumped_gpu_ms += max(0, summed - run.units * state.now_ms)
        for budget in workload.budget.path:
            budget.commitment_gpus -= run.units
            budget.commitment_sum -= summed
    run.commitment = Commitment.NONE
    for budget in workload.budget.path:
        state.effects.budgets[budget.id] = None
