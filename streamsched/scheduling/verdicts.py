"""Why a workload stands where it stands, with the numbers that a reader needs to redo the arithmetic.

A verdict is a function of the state at one cursor: asked of a replay, it says what was so then.

Source: `fair-share.md`, section 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from streamsched.model.events import Comparison, GpuMs, Instant, NodeHealth, TakeRule, Value
from streamsched.model.identifiers import BudgetId, PoolId, WorkloadId
from streamsched.model.policy import VictimUnderBudget
from streamsched.model.quantities import counted, format_duration, format_instant, gpu_hours
from streamsched.scheduling.draft import Draft
from streamsched.scheduling.fair_share import comes_before, standing
from streamsched.scheduling.misfits import Misfit, misfit, nearest
from streamsched.scheduling.obstacles import Obstacle, Obstacles, VerdictCode
from streamsched.scheduling.reservation import spans_nodes
from streamsched.state.inventory import Node
from streamsched.state.recoveries import recovering_in_words
from streamsched.state.standing import standing as standing_of
from streamsched.state.workloads import Phase, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamsched.state.cluster import ClusterState
    from streamsched.state.usage import Budget


class Standing(Value):
    """One level of the tree: ``(charged + committed) / entitled``, and its place among its siblings."""

    budget: BudgetId
    charged_gpu_ms: GpuMs
    committed_gpu_ms: GpuMs
    entitled_gpu_ms: GpuMs
    place: int = Field(ge=1)
    siblings: int = Field(ge=1)


class NodeCounts(Value):
    """Every node of the cluster under the one reason why it cannot take a rank now, or can; they add up.

    Attributes:
        takeable: They would fit if runs past their protection stopped, if those may be taken.
        reserved: Kept for another gang.
        headroom: Kept for short and unallocated work.
        draining: Cordoned, drained, or held down after they fell too often.
        protected_work: Runs inside their protection hold them.
        other_allocated_work: Runs that are stopping hold them, or somebody waits for their GPUs; for unallocated work,
            any run.
    """

    fits: int = 0
    fits_if_unallocated_work_stops: int = 0
    takeable: int = 0
    protected_work: int = 0
    other_allocated_work: int = 0
    reserved: int = 0
    headroom: int = 0
    draining: int = 0
    unhealthy: int = 0
    too_small: int = 0
    other_pool: int = 0


class Fit(Value):
    """How much room there is for a shape: numbers of ranks of that size, in the pool that has the most.

    What is kept for others does not count, but for `ranks_possible`.

    Attributes:
        ranks_free: On GPUs that are free.
        ranks_if_unallocated_work_stops: On those and on the GPUs of unallocated runs.
        ranks_takeable: On those and on the GPUs of runs past their protection, whoever may take them.
        ranks_possible: On the healthy nodes if they were empty.
        possible_from_ms: For allocated work: the first possible start, if leaves stay in their order. None is never.
    """

    pool: PoolId | None = None
    ranks_needed: int
    gpus_per_rank: int
    ranks_free: int
    ranks_if_unallocated_work_stops: int
    ranks_takeable: int
    ranks_possible: int
    possible_from_ms: Instant | None = None
    nodes: NodeCounts


class Verdict(Value):
    """What holds for one workload now.

    Attributes:
        sentence: The whole in words.
        until_ms: When the state of affairs ends by itself: a protection, a back-off, a deadline, the guard's wait.
        others: The workloads that it is about: victims awaited, whose protection ends, for whom nodes are reserved.
        because: For work that waits behind others or for the guard: the comparison that failed, as it is now.
        ahead_in_leaf: How many workloads of its leaf come first.
        standings: From the root down.
        fit: For a workload that waits: what room there is for it.
        misfit: For one that waits and whose required layers have no room on what is free: what keeps it out.
        remedies: What its owner could change, and what that would do now.
    """

    workload: WorkloadId
    code: VerdictCode
    sentence: str
    until_ms: Instant | None = None
    others: tuple[WorkloadId, ...] = ()
    because: Comparison | None = None
    ahead_in_leaf: Annotated[int, Field(ge=0)] | None = None
    standings: tuple[Standing, ...] = ()
    fit: Fit | None = None
    misfit: Misfit | None = None
    remedies: tuple[str, ...] = ()


def verdict(state: ClusterState, workload_id: str) -> Verdict:
    """Return the verdict on a workload, live or remembered.

    Raises:
        KeyError: The state knows no such workload.
    """
    workload = state.workloads.get(workload_id)
    if workload is None:
        ended = state.finished[workload_id]
        return Verdict(
            workload=workload_id,
            code=VerdictCode.ENDED,
            sentence=f"{ended.phase} at {format_instant(ended.at_ms)} (cursor {ended.cursor}): {ended.reason}",
        )
    if workload.phase is Phase.QUEUED:
        return _waiting(state, workload)
    return _placed(state, workload)


def _placed(state: ClusterState, workload: Workload) -> Verdict:
    run = workload.run
    if run is None:
        raise AssertionError(f"{workload.id} is {workload.phase} and has no run")
    now = state.now_ms
    until = run.deadline_ms
    if workload.phase is Phase.PLANNED:
        victims = sorted({key for node in run.awaited for key in _holders(state.nodes[node], run.awaited[node])})
        names = ", ".join(victims)
        return _verdict(
            state,
            workload,
            VerdictCode.PLANNED,
            f"has its seats and waits for {sum(m.bit_count() for m in run.awaited.values())} GPUs of {names} to be "
            f"released; the plan ends at {format_instant(until or 0)}",
            until,
            others=tuple(victims),
        )
    if workload.phase is Phase.BOUND:
        waits = len(run.places) - len(run.started_on)
        return _verdict(
            state,
            workload,
            VerdictCode.STARTS,
            f"was given to {counted(len(run.places), 'node')}; {waits} of {len(run.places)} must yet report the start "
            f"(deadline {format_instant(until or 0)})",
            until,
        )
    if workload.phase is Phase.STOPPING:
        stop = run.stop.value if run.stop is not None else "stopping"
        whom = f" for {run.beneficiary}" if run.beneficiary else ""
        return _verdict(
            state,
            workload,
            VerdictCode.STOPS,
            f"is being stopped ({stop}{whom}) since {format_instant(run.stop_ms or 0)}; "
            f"{len(run.held)} of {counted(len(run.places), 'node')} must yet release the GPUs",
            None,
        )
    protected = run.protected_until_ms
    if protected is None:
        words = "on unallocated time: any allocated request may take its GPUs"
    elif now < protected:
        words = f"protected until {format_instant(protected)}, another {format_duration(protected - now)}"
    else:
        words = f"its protection ended at {format_instant(protected)}; it runs on, charged"
    return _verdict(state, workload, VerdictCode.RUNS, f"runs on {run.gpus} GPUs, {words}", protected)


def waiting_code(state: ClusterState, workload: Workload, obstacles: Obstacles | None = None) -> VerdictCode:
    """Return why a queued workload waits, in one word.

    Args:
        state: The cluster at one cursor.
        workload: Who waits.
        obstacles: Shared by all who are asked about at that cursor, so that equal work is looked at once.
    """
    return (obstacles or Obstacles(state)).of(workload).code


def _waiting(state: ClusterState, workload: Workload) -> Verdict:
    obstacles = Obstacles(state)
    obstacle = obstacles.of(workload)
    code = obstacle.code
    fit = None
    if code not in (VerdictCode.HELD, VerdictCode.RECOVERS, VerdictCode.NO_BUDGET, VerdictCode.NO_NODES):
        fit = _fit(obstacles, workload)
    sentence = _why_it_waits(obstacles, workload, obstacle, fit)
    found = _verdict(
        state, workload, code, sentence, obstacle.until_ms, fit, others=obstacle.others, because=obstacle.because
    )
    return found.model_copy(update={"misfit": _misfit(obstacles, workload)})


def _misfit(obstacles: Obstacles, workload: Workload) -> Misfit | None:
    """Return what keeps required layers out where least is missing; None where they have room, or there are none."""
    if workload.topology is None or workload.id in obstacles.state.recoveries:
        return None
    found: dict[str, Misfit] = {}
    for pool, nodes in obstacles.places(workload):
        one = misfit(obstacles.state.policy, obstacles.draft.pool(pool), workload, nodes)
        if one is None:
            return None
        found[pool.id] = one
    return nearest(found)


def _why_it_waits(obstacles: Obstacles, workload: Workload, obstacle: Obstacle, fit: Fit | None) -> str:
    """Return an obstacle in words, with its arithmetic."""
    state = obstacles.state
    until = "" if obstacle.until_ms is None else format_instant(obstacle.until_ms)
    where = f"pool {workload.pool}" if workload.pool else "any one pool"
    alike = workload.gpus == workload.ranks * workload.gpus_per_rank
    each = f"x {workload.gpus_per_rank} GPUs" if alike else f"ranks with {workload.gpus} GPUs together"
    ask = f"asks for {workload.ranks} {each}"
    others = _some(obstacle.others)
    match obstacle.code:
        case VerdictCode.HELD:
            return f"is held until {until} after {_set_back(workload)}"
        case VerdictCode.RECOVERS:
            return recovering_in_words(state, state.recoveries[workload.id])
        case VerdictCode.NO_BUDGET:
            return f"is allocated, and the quota of {workload.budget.id} has become 0; nothing covers it"
        case VerdictCode.NO_NODES:
            return f"no node of {where} has reported yet"
        case VerdictCode.PROMISED:
            return _promised(obstacles, workload, until)
        case VerdictCode.NEXT_ROUND if obstacle.gpus:
            return f"{ask}, and {obstacle.gpus} allocated GPUs may be preempted for it in this round"
        case VerdictCode.NEXT_ROUND:
            return f"{ask}, and they can be had: it is placed when its turn comes in this round"
        case VerdictCode.BEHIND if obstacle.gpus:
            level = "" if obstacle.because is None else f"; {compared_in_words(obstacle.because)}"
            return f"{ask}; work whose turn comes first asks for {obstacle.gpus} of the GPUs that can be had{level}"
        case VerdictCode.BEHIND if obstacle.because is not None:
            return f"{ask}; {_behind(state, workload, obstacle.because)}{_reserves_later(obstacles, workload)}"
        case VerdictCode.GUARD:
            return f"{ask}; {_guarded(obstacles, workload, obstacle)}"
        case VerdictCode.PATIENCE:
            return f"{ask}; {obstacle.gpus} allocated GPUs may be preempted for it once it has waited until {until}"
        case VerdictCode.RATE_LIMITED:
            return f"{ask}; {_rate_limited(state, obstacle)}"
        case VerdictCode.RESERVED:
            return f"{ask}; nodes that would do are reserved for {others}, until {until} at the latest"
        case VerdictCode.PROTECTED:
            return f"{ask}; only protected runs are in the way: {others}, the last of them until {until}"
        case VerdictCode.SLOT_LIMIT:
            return f"{ask}; {_limited(workload)}"
        case VerdictCode.NO_DOMAIN:
            return f"{ask}; so many ranks have room in {where}, but not in the topology domains that it requires"
        case VerdictCode.IMPOSSIBLE_NOW if fit is not None and fit.ranks_possible >= workload.ranks:
            return f"{ask}; with every healthy node of {where} empty no topology domains would hold it as it requires"
        case VerdictCode.IMPOSSIBLE_NOW if fit is not None:
            possible = counted(fit.ranks_possible, "such rank")
            return f"{ask}; every healthy node of {where} empty would hold {possible}{_out_of_use(state, workload)}"
        case _ if fit is not None:
            return f"{ask}; {_no_capacity(workload, fit, where)}"
        case code:
            raise AssertionError(f"{code} is no reason to wait")


def _out_of_use(state: ClusterState, workload: Workload) -> str:
    """Return which nodes would hold ranks if they took work, and what each of them is."""
    names = [
        f"{id_} is {_condition(state, node)}"
        for id_, node in sorted(state.nodes.items())
        if not node.takes_work and node.gpus >= workload.gpus_per_rank and workload.pool in (None, node.pool)
    ]
    return f"; {_some(names)}" if names else ""


def _condition(state: ClusterState, node: Node) -> str:
    if node.health is not NodeHealth.HEALTHY:
        return node.health.value
    return standing_of(state, node).state.replace("_", " ")


def _set_back(workload: Workload) -> str:
    if workload.evictions and not workload.is_allocated:
        often = "it was" if workload.evictions == 1 else f"it was for the {workload.evictions}th time in a row"
        return f"{often} displaced while unallocated"
    return f"{workload.setbacks} failed starts in a row" if workload.setbacks > 1 else "a failed start"


def _limited(workload: Workload) -> str:
    allocated = workload.is_allocated
    full = workload.budget.full_for(workload.gpus, {}, allocated=allocated)
    if full is None:
        raise AssertionError(f"no limit is in the way of {workload.id}")
    used, limit = full.slots(allocated=allocated)
    kind = "allocated" if allocated else "unallocated"
    return f"{full.id} has {used} of at most {limit} {kind} GPUs at a time, planned ones included"


def _promised(obstacles: Obstacles, workload: Workload, until: str) -> str:
    kept = obstacles.state.reservations[workload.id]
    held, last_ms = obstacles.progress(kept)
    names = _some(kept.nodes)
    start = f"it starts at {until} at the latest"
    if kept.start_ms <= obstacles.state.now_ms:
        start = f"it was to start at {format_instant(kept.start_ms)}, and they are given up at {until}"
    if held == len(kept.nodes):
        return f"has {names} reserved; all {held} are held for it, and {start}"
    return (
        f"has {names} reserved: held {held} of {counted(len(kept.nodes), 'node')}, last one expected free at "
        f"{format_instant(last_ms)}; {start}"
    )


def _behind(state: ClusterState, workload: Workload, because: Comparison) -> str:
    if because.rule is TakeRule.PRIORITY:
        return (
            f"runs of its own budget {because.victim} are in the way, and of those only lower priority than "
            f"{workload.priority} makes room"
        )
    words = compared_in_words(because)
    ours, theirs = because.claimant_entitled_gpu_ms, because.victim_entitled_gpu_ms
    before = because.claimant_used_gpu_ms * theirs < because.victim_used_gpu_ms * ours
    if not before or not ours or not theirs:
        return f"{because.victim} holds what it needs, and {because.claimant} does not come before it: {words}"
    forbids = state.policy.victim_under_budget is VictimUnderBudget.FORBID
    if forbids and because.victim_used_gpu_ms <= theirs:
        return f"{because.victim} holds what it needs, and is not above what it is due: {words}"
    return f"{because.victim} holds what it needs, and less than its quota, while {because.claimant} does not: {words}"


def _guarded(obstacles: Obstacles, workload: Workload, obstacle: Obstacle) -> str:
    because = obstacle.because
    if because is None:
        raise AssertionError("a guard compares")
    raised = because.claimant_used_gpu_ms + because.guard_gpu_ms
    sentence = (
        f"{because.claimant} comes before {because.victim}, which holds what it needs, but would be further ahead "
        f"afterwards: {compared_in_words(because)}; with the guard of {_hours(because.guard_gpu_ms)} GPU-h "
        f"{because.claimant} at {ratio_in_words(raised, because.claimant_entitled_gpu_ms)}; "
    )
    if obstacle.until_ms is None:
        sentence += "the guard does not fade that far"
    else:
        wait = format_duration(obstacle.until_ms - workload.queued_ms)
        sentence += f"as things stand it passes after a wait of {wait}, at {format_instant(obstacle.until_ms)}"
    return sentence + _reserves_later(obstacles, workload)


def _reserves_later(obstacles: Obstacles, workload: Workload) -> str:
    """Return what a gang of several nodes may hope for besides its turn: a reservation, which asks for no guard."""
    policy = obstacles.state.policy
    spans = any(spans_nodes(pool, workload.ranks, workload.gpus_per_rank) for pool, _ in obstacles.places(workload))
    if not spans or not policy.reservations or obstacles.possible_from_ms(workload) is None:
        return ""
    from_ms = workload.queued_ms + policy.reserve_after_ms
    return f"; nodes may be reserved for it, without the guard, from {format_instant(from_ms)}"


def _rate_limited(state: ClusterState, obstacle: Obstacle) -> str:
    policy = state.policy
    limit = (
        f"{obstacle.gpus} allocated GPUs would be preempted for it, and too many were lately: at most "
        f"{policy.preemption_burst_percent} % of the pool at once, of which {policy.preemption_refill_percent} % come "
        "back in an hour"
    )
    if obstacle.until_ms is None:
        return f"{limit}; so many are never allowed"
    return f"{limit}; allowed from {format_instant(obstacle.until_ms)} if nothing else is preempted"


def _no_capacity(workload: Workload, fit: Fit, where: str) -> str:
    sentence = f"free GPUs in {where} hold {counted(fit.ranks_free, 'such rank')}"
    if not workload.is_allocated:
        return sentence
    sentence += (
        f", {fit.ranks_if_unallocated_work_stops} if unallocated work stops, {fit.ranks_takeable} if all work past its "
        "protection does"
    )
    possible = "none" if fit.possible_from_ms is None else format_instant(fit.possible_from_ms)
    return f"{sentence}; first possible time: {possible}"


def compared_in_words(because: Comparison) -> str:
    """Return two budgets with the ratios that were compared."""
    return (
        f"{because.claimant} at {ratio_in_words(because.claimant_used_gpu_ms, because.claimant_entitled_gpu_ms)}, "
        f"{because.victim} at {ratio_in_words(because.victim_used_gpu_ms, because.victim_entitled_gpu_ms)}"
    )


def ratio_in_words(used_gpu_ms: int, entitled_gpu_ms: int) -> str:
    """Return a usage ratio with what it is made of.

    >>> ratio_in_words(3_600_000, 14_400_000)
    '0.250 (1.00 of 4.00 GPU-h)'
    """
    if not entitled_gpu_ms:
        return f"no share ({_hours(used_gpu_ms)} GPU-h)"
    return f"{used_gpu_ms / entitled_gpu_ms:.3f} ({_hours(used_gpu_ms)} of {_hours(entitled_gpu_ms)} GPU-h)"


def _hours(gpu_ms: int) -> str:
    return f"{gpu_hours(gpu_ms):,.2f}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _fit(obstacles: Obstacles, workload: Workload) -> Fit:
    places = obstacles.places(workload)
    size = workload.gpus_per_rank
    return Fit(
        pool=workload.pool,
        ranks_needed=workload.ranks,
        gpus_per_rank=size,
        ranks_free=max(pool.free.slots_on(size, nodes) for pool, nodes in places),
        ranks_if_unallocated_work_stops=max(pool.reclaimable.slots_on(size, nodes) for pool, nodes in places),
        ranks_takeable=max(pool.takeable.slots_on(size, nodes) for pool, nodes in places),
        ranks_possible=max(pool.healthy.slots(size) for pool, _ in places),
        possible_from_ms=obstacles.possible_from_ms(workload) if workload.is_allocated else None,
        nodes=_count_nodes(obstacles, workload),
    )


def _verdict(
    state: ClusterState,
    workload: Workload,
    code: VerdictCode,
    sentence: str,
    until_ms: int | None,
    fit: Fit | None = None,
    *,
    others: tuple[str, ...] = (),
    because: Comparison | None = None,
) -> Verdict:
    return Verdict(
        workload=workload.id,
        code=code,
        sentence=sentence,
        until_ms=until_ms,
        others=others,
        because=because,
        ahead_in_leaf=_backlog_ahead(state, workload) if workload.phase is Phase.QUEUED else None,
        standings=standings(state, workload.budget, allocated=workload.is_allocated),
        fit=fit,
        remedies=() if fit is None else _remedies(workload, fit.ranks_free),
    )


def standings(state: ClusterState, budget: Budget, *, allocated: bool) -> tuple[Standing, ...]:
    """Return how a budget and those above it stand against their siblings, from the root down."""
    draft = Draft(state)
    lines: list[Standing] = []
    for vertex in reversed(budget.path[:-1]):
        mine = standing(vertex, draft, allocated=allocated)
        siblings = list(vertex.parent.children.values()) if vertex.parent is not None else [vertex]
        before = sum(
            comes_before(standing(sibling, draft, allocated=allocated), mine) is True
            for sibling in siblings
            if sibling is not vertex
        )
        lines.append(
            Standing(
                budget=vertex.id,
                charged_gpu_ms=mine[0],
                committed_gpu_ms=mine[1],
                entitled_gpu_ms=mine[2],
                place=before + 1,
                siblings=max(len(siblings), 1),
            )
        )
    return tuple(lines)


def _backlog_ahead(state: ClusterState, workload: Workload) -> int:
    return (state.allocated if workload.is_allocated else state.unallocated).ahead_of(workload)


def _holders(node: Node, mask: int) -> list[str]:
    return [key[0] for owners in (node.held, node.orphans) for key, held in owners.items() if held & mask]


def _count_nodes(obstacles: Obstacles, workload: Workload) -> NodeCounts:
    usable = {pool.id: nodes for pool, nodes in obstacles.places(workload)}
    counts: dict[str, int] = {}
    for node in obstacles.state.nodes.values():
        reason = _reason_of(obstacles, node, workload, usable)
        counts[reason] = counts.get(reason, 0) + 1
    return NodeCounts(**counts)


def _reason_of(obstacles: Obstacles, node: Node, workload: Workload, usable: dict[str, int]) -> str:
    """Return the field of `NodeCounts` that a node counts under: the first obstacle that is there to stay."""
    state, size = obstacles.state, workload.gpus_per_rank
    if node.home not in usable:
        return "other_pool"
    if node.gpus < size:
        return "too_small"
    if node.health is not NodeHealth.HEALTHY:
        return "unhealthy"
    if not node.takes_work:
        return "draining"
    if not usable[node.home] >> node.index & 1:
        others = (kept.nodes for kept in state.reservations.values() if kept.workload != workload.id)
        return "reserved" if any(node.id in names for names in others) else "headroom"
    if node.filed_free >= size:
        return "fits"
    if not workload.is_allocated:
        return "other_allocated_work"
    if node.filed_reclaimable >= size:
        return "fits_if_unallocated_work_stops"
    if node.filed_takeable >= size:
        return "takeable"
    protected = 0
    for key, mask in node.held.items():
        run = state.workloads[key[0]].run
        if run is not None and run.stop is None and (run.protected_until_ms or 0) > state.now_ms:
            protected |= mask
    return "protected_work" if (node.all_mask & ~protected).bit_count() < size else "other_allocated_work"


def _remedies(workload: Workload, free: int) -> tuple[str, ...]:
    """Return what its owner could change, and what that would do now."""
    remedies: list[str] = []
    if 0 < free < workload.ranks:
        remedies.append(f"with {counted(free, 'rank')} instead of {workload.ranks} it would fit on what is free now")
    if workload.is_allocated and free >= workload.ranks:
        remedies.append("with min runtime 0 it would start now on free GPUs, uncharged and unprotected")
    if workload.pool is not None:
        remedies.append(f"without insisting on pool {workload.pool} it could use any kind of GPU")
    return tuple(remedies)
