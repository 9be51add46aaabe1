"""What people ask for: work, its end, its place in the leaf, another budget tree, another policy.

Functions over the state, called by its gate. Each request gets a receipt.
"""

from __future__ import annotations

from bisect import insort
from difflib import get_close_matches
from typing import TYPE_CHECKING

from streamsched.model.commands import Receipt, ReceiptStatus, StopReason
from streamsched.model.events import trusted
from streamsched.model.quantities import format_duration
from streamsched.model.topology import objection_to_levels
from streamsched.state import corrections, recoveries, rounds, runs, straddling
from streamsched.state.reasons import Ignored
from streamsched.state.workloads import Commitment, Finished, Phase, Workload, contract_fingerprint

if TYPE_CHECKING:
    from streamsched.model.events import (
        BudgetTreeChanged,
        PolicyAdopted,
        Rejected,
        RunExtended,
        UsageAdjusted,
        WorkloadCancelled,
        WorkloadReprioritized,
        WorkloadSubmitted,
    )
    from streamsched.model.policy import Policy
    from streamsched.model.topology import TopologyRequest
    from streamsched.state.cluster import ClusterState
    from streamsched.state.usage import Budget

_receipt = trusted(Receipt)


def submit(state: ClusterState, fact: WorkloadSubmitted) -> None:
    """Queue a workload, or refuse it with the reason."""
    known = state.workloads.get(fact.workload)
    ended = state.finished.get(fact.workload)
    if ended is not None and ended.phase is Phase.REJECTED and not ended.attempts:
        # It never had an effect, so its id is free: the same request may be welcome now.
        del state.finished[fact.workload]
        ended = None
    if known is not None or ended is not None:
        before = known.fingerprint() if known is not None else ended.fingerprint if ended is not None else ""
        if before == contract_fingerprint(fact):
            state.ignore(Ignored.REPEATED)
            _answer(state, fact, ReceiptStatus.ACCEPTED)
        else:
            state.ignore(Ignored.ALREADY_SO)
            _answer(
                state,
                fact,
                ReceiptStatus.REJECTED,
                f"workload: the id {fact.workload!r} is taken by another submission; choose a new id",
            )
        return
    budget = state.budgets.get(fact.budget)
    objection = _objection_to(state, fact, budget)
    if objection is not None or budget is None:
        state.remember(
            Finished(
                fact.workload,
                Phase.REJECTED,
                objection or "",
                state.next_cursor - 1,
                state.now_ms,
                0,
                contract_fingerprint(fact),
            )
        )
        state.effects.workloads[fact.workload] = None
        _answer(state, fact, ReceiptStatus.REJECTED, objection)
        return
    workload = Workload(fact, budget, state.now_ms)
    state.workloads[workload.id] = workload
    workload.count_queued(workload.gpus)
    state.queue(workload)
    state.touch(workload)
    _answer(state, fact, ReceiptStatus.ACCEPTED)


def _objection_to(state: ClusterState, fact: WorkloadSubmitted, budget: Budget | None) -> str | None:
    """Return why a submission cannot be accepted: the field, the value and the remedy."""
    if budget is None:
        near = get_close_matches(fact.budget, sorted(state.budgets.by_id), n=3)
        leaves = near or [leaf.id for leaf in state.budgets.leaves()[:10]]
        known = (
            f"; did you mean {', '.join(leaves)}?"
            if leaves
            else "; no budget exists yet: create them with `streamsched budgets apply FILE`"
        )
        return f"budget: there is no budget {fact.budget!r}{known}"
    if budget.children:
        inside = ", ".join(sorted(budget.children)[:5])
        return f"budget: {fact.budget!r} is not a leaf; submit to one of its children ({inside}, ...)"
    policy = state.policy
    if fact.min_runtime_ms:
        if not policy.min_runtime_floor_ms <= fact.min_runtime_ms <= policy.min_runtime_cap_ms:
            return (
                f"min_runtime_ms: {fact.min_runtime_ms} ({format_duration(fact.min_runtime_ms)}) is outside "
                f"{format_duration(policy.min_runtime_floor_ms)} to {format_duration(policy.min_runtime_cap_ms)}; "
                "ask for a time inside, or for 0, which is unallocated: free and displaced at any time"
            )
        if not budget.quota_nano:
            return (
                f"budget: {fact.budget!r} has a quota of 0, and allocated work needs one that covers it; "
                "use another budget, or min_runtime_ms 0 for unallocated time"
            )
    elif fact.interactive:
        return (
            "interactive: an interactive session is allocated work, and min_runtime_ms is 0; ask for a min runtime, or "
            "leave interactive out"
        )
    pools = list(state.inventory.candidates(fact.pool))
    if fact.topology is not None:
        objection = _objection_to_topology(policy, fact, fact.topology, sorted({pool.kind for pool in pools}))
        if objection is not None:
            return f"topology.{objection}"
    if pools:
        largest = max(pool.installed.slots(fact.gpus_per_rank) for pool in pools)
        if largest < fact.ranks:
            where = f"pool {fact.pool!r}" if fact.pool else "any one pool"
            return (
                f"ranks: asks for {fact.ranks} ranks of {fact.gpus_per_rank} GPUs, and the largest possible in "
                f"{where}, with every node healthy and empty, is {largest}; ask for fewer or smaller ranks"
            )
    return None


def _objection_to_topology(
    policy: Policy, fact: WorkloadSubmitted, asked: TopologyRequest, kinds: list[str]
) -> str | None:
    """Return why what a gang asks goes with the levels of no pool that it may use; what is wrong with the first.

    Whether a domain is large enough is no matter of levels: nodes may yet join.
    """
    if not kinds and fact.pool is not None:
        kinds = [fact.pool]
    known = [(f"pool {kind!r}", policy.levels_of(kind)) for kind in kinds]
    if not known:
        known = [("a pool" if one.pool is None else f"pool {one.pool!r}", one.names) for one in policy.levels]
    objections = [
        objection_to_levels(asked, fact.ranks, levels, whose) for whose, levels in known or [("any pool", ())]
    ]
    return None if None in objections else objections[0]


def cancel(state: ClusterState, fact: WorkloadCancelled) -> None:
    """End a workload, wherever it stands."""
    workload = state.workloads.get(fact.workload)
    if workload is None:
        state.ignore(Ignored.UNKNOWN_WORKLOAD)
        ended = state.finished.get(fact.workload)
        if ended is not None:
            _answer(state, fact, ReceiptStatus.ACCEPTED, f"it had ended before: {ended.phase}")
        else:
            _answer(state, fact, ReceiptStatus.REJECTED, f"workload: there is no workload {fact.workload!r}")
        return
    reason = f"cancelled: {fact.reason}" if fact.reason else "cancelled"
    state.touch(workload)
    if workload.phase is Phase.QUEUED:
        state.waited += 1
        runs.dequeue(state, workload)
        runs.finish(state, workload, Phase.CANCELLED, reason)
    elif workload.phase is Phase.PLANNED:
        rounds.withdraw_claims(state, workload)
        runs.finish(state, workload, Phase.CANCELLED, reason)
    elif workload.cancelled:
        state.ignore(Ignored.ALREADY_SO)
    else:
        workload.cancelled = True
        if workload.phase is not Phase.STOPPING:
            runs.stop(state, workload, StopReason.CANCELLED)
    _answer(state, fact, ReceiptStatus.ACCEPTED)


def reprioritize(state: ClusterState, fact: WorkloadReprioritized) -> None:
    """Move a workload inside its leaf."""
    workload = state.workloads.get(fact.workload)
    if workload is None:
        state.ignore(Ignored.UNKNOWN_WORKLOAD)
        _answer(state, fact, ReceiptStatus.REJECTED, f"workload: no live workload {fact.workload!r}")
        return
    if workload.queue_key is not None:
        backlog = state.backlog_of(workload)
        backlog.remove(workload)
        workload.priority = fact.priority
        backlog.add(workload)
    elif workload.run is not None:
        state.matured += 1  # Others of its leaf may, or may no longer, have it stopped.
    workload.priority = fact.priority
    state.touch(workload)
    _answer(state, fact, ReceiptStatus.ACCEPTED)


def extend(state: ClusterState, fact: RunExtended) -> None:
    """Move the end of a session's protection, once for each run; the time is committed, and charged as it is used."""
    workload = state.workloads.get(fact.workload)
    run = workload.run if workload is not None else None
    objection = _objection_to_extension(state, fact, workload)
    if objection is not None or workload is None or run is None or run.protected_until_ms is None:
        state.ignore(Ignored.UNKNOWN_WORKLOAD if workload is None else Ignored.ALREADY_SO)
        _answer(state, fact, ReceiptStatus.REJECTED, objection)
        return
    run.extended_ms = fact.extra_ms
    run.protected_until_ms += fact.extra_ms
    if run.commitment is Commitment.REST:
        added = run.units * fact.extra_ms
        for budget in workload.budget.path:
            budget.commitment_sum += added
    state.timers.protect(workload, run.protected_until_ms)
    run.warn_ms = run.protected_until_ms - state.policy.warning_ms
    state.timers.warn(workload)
    state.touch(workload)
    for node_id in run.held:
        state.effects.nodes[node_id] = None
    _answer(state, fact, ReceiptStatus.ACCEPTED)


def _objection_to_extension(state: ClusterState, fact: RunExtended, workload: Workload | None) -> str | None:
    """Return why a protection cannot be extended: the field, the value and the remedy."""
    if workload is None:
        return f"workload: no live workload {fact.workload!r}"
    if not workload.interactive:
        return f"workload: {workload.id!r} is no interactive session; only those can be extended"
    run = workload.run
    if run is None or workload.phase is not Phase.RUNNING or run.protected_until_ms is None:
        return f"workload: {workload.id!r} is {workload.phase}; only what runs can be extended"
    if run.protected_until_ms <= state.now_ms:
        return f"workload: the protection of {workload.id!r} is over; ask before it ends"
    if run.extended_ms:
        return f"workload: {workload.id!r} was extended before, and each run may be once; submit it again afterwards"
    if fact.extra_ms > state.policy.min_runtime_cap_ms:
        return f"extra_ms: at most {format_duration(state.policy.min_runtime_cap_ms)} can be added; ask for less"
    if run.deadline_ms is not None and run.protected_until_ms + fact.extra_ms > run.deadline_ms:
        return f"extra_ms: {workload.id!r} ends at its timeout before that; ask for less"
    # What was promised to others rests on when this protection ends.
    for node_id in sorted(run.held):
        if state.nodes[node_id].is_draining:
            return f"workload: node {node_id!r} is being drained as protections end; submit it again afterwards"
        if any(node_id in promise.nodes for promise in state.reservations.values()):
            return f"workload: node {node_id!r} is reserved for when this protection ends; submit it again afterwards"
    return None


def change_budgets(state: ClusterState, fact: BudgetTreeChanged) -> None:
    """Adopt a tree of budgets, unless it was made on another tree than the present one."""
    if fact.change == state.budgets.change or any(fact.change == other.change for other in state.scheduled):
        state.ignore(Ignored.REPEATED)
        _answer(state, fact, ReceiptStatus.ACCEPTED)
        return
    is_later = fact.effective_ms is not None and fact.effective_ms > state.now_ms
    # One that takes effect later may be made on another that does: whether that comes first is seen then.
    expected = [state.budgets.change, *(other.change for other in state.scheduled if is_later)]
    objection = _objection_to_change(state, fact, expected)
    if objection is not None:
        _answer(state, fact, ReceiptStatus.REJECTED, objection)
    elif is_later:
        insort(state.scheduled, fact, key=lambda change: change.effective_ms or 0)
        _answer(state, fact, ReceiptStatus.ACCEPTED)
    else:
        _change_tree(state, fact, state.now_ms)
        _answer(state, fact, ReceiptStatus.ACCEPTED)


def take_effect(state: ClusterState, fact: BudgetTreeChanged) -> None:
    """Let a change of the tree come about at its instant, if it still may."""
    at_ms = fact.effective_ms or 0
    state.budgets.advance(at_ms)
    objection = _objection_to_change(state, fact, [state.budgets.change])
    if objection is None:
        _change_tree(state, fact, at_ms)
    else:
        _answer(state, fact, ReceiptStatus.REJECTED, objection)


def _objection_to_change(state: ClusterState, fact: BudgetTreeChanged, expected: list[str | None]) -> str | None:
    """Return why a tree cannot be adopted: the field, the value and the remedy."""
    if fact.previous not in expected:
        state.ignore(Ignored.STALE_CHANGE)
        return (
            f"previous: the change was made on {fact.previous!r}, but the tree is at {state.budgets.change!r}; "
            "look at the tree as it is now and make the change again"
        )
    not_theirs = state.budgets.not_managed_by(fact.actor, fact.budgets)
    if not_theirs is not None:
        state.ignore(Ignored.NOT_MANAGED)
        changed, managed = not_theirs
        return (
            f"actor: {fact.actor!r} does not manage budget {changed!r}, which this would change; ask one of "
            f"{', '.join(managed.managers)}, who manage {managed.id!r}"
        )
    return None


def _change_tree(state: ClusterState, fact: BudgetTreeChanged, at_ms: int) -> None:
    for budget in state.budgets.change_to(fact.budgets, fact.change, at_ms):
        why = f"budget {budget.id!r} " + ("was removed" if budget.closed else "is no leaf any more")
        waiting = [w for w in state.workloads.values() if w.budget is budget and w.phase is Phase.QUEUED]
        for workload in sorted(waiting, key=lambda w: w.id):
            runs.dequeue(state, workload)
            runs.finish(state, workload, Phase.REJECTED, f"{why} by change {fact.change!r}; submit to another budget")
    for id_ in sorted(state.budgets.by_id):
        state.effects.budgets[id_] = None


def adjust_usage(state: ClusterState, fact: UsageAdjusted) -> None:
    """Correct what a leaf was charged, once."""
    if fact.adjustment in state.adjustments:
        state.ignore(Ignored.REPEATED)
        _answer(state, fact, ReceiptStatus.ACCEPTED)
        return
    objection = corrections.objection_to(state, fact)
    if objection is not None:
        _answer(state, fact, ReceiptStatus.REJECTED, objection)
        return
    state.adjustments[fact.adjustment] = state.now_ms
    corrections.adjust(state, fact)
    _answer(state, fact, ReceiptStatus.ACCEPTED)


def adopt(state: ClusterState, fact: PolicyAdopted) -> None:
    """Follow another policy from now on."""
    renames = fact.policy.levels != state.policy.levels
    state.policy = fact.policy
    state.policy_version += 1
    for workload in state.workloads.values():
        if workload.queue_key is not None:
            state.timers.await_patience(workload, fact.policy, state.now_ms)
    state.budgets.follow(fact.policy, state.now_ms)
    state.inventory.follow(fact.policy)
    recoveries.follow_policy(state)
    if renames:
        straddling.recheck(state, state.workloads)
    receipt = Receipt(status=ReceiptStatus.ACCEPTED, cursor=state.next_cursor - 1, corr=fact.corr)
    state.effects.receipts.append(receipt)


def reject(state: ClusterState, fact: Rejected) -> None:
    """Count what intake refused, and tell the client."""
    state.rejected += 1
    if fact.workload is not None:
        state.effects.receipts.append(
            Receipt(
                workload=fact.workload,
                status=ReceiptStatus.REJECTED,
                cursor=state.next_cursor - 1,
                corr=fact.corr,
                reason=_as_reason(fact.reason),
            )
        )


def _answer(
    state: ClusterState,
    fact: WorkloadSubmitted
    | WorkloadCancelled
    | WorkloadReprioritized
    | RunExtended
    | BudgetTreeChanged
    | UsageAdjusted,
    status: ReceiptStatus,
    reason: str | None = None,
) -> None:
    workload = change = None
    if fact.type == "budget_tree_changed":
        change = fact.change
    elif fact.type == "usage_adjusted":
        workload, change = fact.workload, fact.adjustment
    else:
        workload = fact.workload
    state.effects.receipts.append(
        _receipt(
            workload=workload,
            change=change,
            status=status,
            cursor=state.next_cursor - 1,
            corr=fact.corr,
            reason=_as_reason(reason),
        )
    )


def _as_reason(text: str | None) -> str | None:
    """Return a text as a `Reason` may look: a receipt that cannot be made would stop every scheduler."""
    if not text:
        return None
    return "".join(letter if (letter >= " " and letter != "\x7f") or letter == "\n" else " " for letter in text[:2_000])
