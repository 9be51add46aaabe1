"""Why a workload stands where it stands, with the numbers that a reader needs to redo the arithmetic.

A verdict is a function of the state at one cursor: asked of a replay, it says what was so then.

Source: `fair-share.md`, section 7.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from streamsched.model.events import GpuMs, Instant, Value
from streamsched.model.identifiers import BudgetId, PoolId, WorkloadId
from streamsched.model.quantities import counted, format_duration, format_instant
from streamsched.scheduling.draft import Draft
from streamsched.scheduling.fair_share import comes_before, standing
from streamsched.state.inventory import Node
from streamsched.state.workloads import Phase, Workload

if TYPE_CHECKING:
    from streamsched.state.cluster import ClusterState
    from streamsched.state.usage import Budget


class VerdictCode(StrEnum):
    """The closed set of outcomes."""

    RUNS = "runs"
    STARTS = "starts"
    STOPS = "stops"
    PLANNED = "planned"
    NEXT_ROUND = "next_round"
    NO_CAPACITY = "no_capacity"
    IMPOSSIBLE_NOW = "impossible_now"
    NO_NODES = "no_nodes"
    NO_BUDGET = "no_budget"
    HELD = "held"
    ENDED = "ended"


class Standing(Value):
    """One level of the tree: ``(charged + committed) / entitled``, and its place among its siblings."""

    budget: BudgetId
    charged_gpu_ms: GpuMs
    committed_gpu_ms: GpuMs
    entitled_gpu_ms: GpuMs
    place: int = Field(ge=1)
    siblings: int = Field(ge=1)


class NodeCounts(Value):
    """Every node of the cluster under the one reason why it cannot take a rank now, or can; they add up."""

    fits: int = 0
    fits_if_unallocated_work_stops: int = 0
    protected_work: int = 0
    other_allocated_work: int = 0
    unhealthy: int = 0
    too_small: int = 0
    other_pool: int = 0


class Fit(Value):
    """How much room there is for a shape: numbers of ranks of that size, in the pool that has the most.

    Attributes:
        ranks_free: On GPUs that are free.
        ranks_if_unallocated_work_stops: On those and on the GPUs of unallocated runs.
        ranks_possible: On the healthy nodes if they were empty.
    """

    pool: PoolId | None = None
    ranks_needed: int
    gpus_per_rank: int
    ranks_free: int
    ranks_if_unallocated_work_stops: int
    ranks_possible: int
    nodes: NodeCounts


class Verdict(Value):
    """What holds for one workload now.

    Attributes:
        sentence: The whole in words.
        until_ms: When the state of affairs ends by itself: a protection, a back-off, a deadline.
        ahead_in_leaf: How many workloads of its leaf come first.
        standings: From the root down.
        fit: For a workload that waits: what room there is for it.
        remedies: What its owner could change, and what that would do now.
    """

    workload: WorkloadId
    code: VerdictCode
    sentence: str
    until_ms: Instant | None = None
    ahead_in_leaf: Annotated[int, Field(ge=0)] | None = None
    standings: tuple[Standing, ...] = ()
    fit: Fit | None = None
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


def waiting_code(state: ClusterState, workload: Workload) -> VerdictCode:
    """Return why a queued workload waits, in one word; costs the same however large the cluster and the queue."""
    if workload.queue_key is None:
        return VerdictCode.HELD
    if workload.is_allocated and not workload.budget.quota_nano:
        return VerdictCode.NO_BUDGET
    pools = state.inventory.candidates(workload.pool)
    if not pools:
        return VerdictCode.NO_NODES
    size, ranks = workload.gpus_per_rank, workload.ranks
    if max(pool.healthy.slots(size) for pool in pools) < ranks:
        return VerdictCode.IMPOSSIBLE_NOW
    rooms = (pool.reclaimable if workload.is_allocated else pool.free for pool in pools)
    return VerdictCode.NEXT_ROUND if max(room.slots(size) for room in rooms) >= ranks else VerdictCode.NO_CAPACITY


def _waiting(state: ClusterState, workload: Workload) -> Verdict:
    code = waiting_code(state, workload)
    where = f"pool {workload.pool}" if workload.pool else "any one pool"
    if code is VerdictCode.HELD:
        until = workload.held_until_ms
        failed = f"{workload.setbacks} failed starts in a row" if workload.setbacks > 1 else "a failed start"
        return _verdict(state, workload, code, f"is held until {format_instant(until)} after {failed}", until)
    if code is VerdictCode.NO_BUDGET:
        sentence = f"is allocated, and the quota of {workload.budget.id} has become 0; nothing covers it"
        return _verdict(state, workload, code, sentence, None)
    if code is VerdictCode.NO_NODES:
        return _verdict(state, workload, code, f"no node of {where} has reported yet", None)

    fit = _fit(state, workload)
    ask = f"{fit.ranks_needed} x {fit.gpus_per_rank} GPUs"
    if code is VerdictCode.IMPOSSIBLE_NOW:
        sentence = (
            f"asks for {ask}; every healthy node of {where} empty would hold {counted(fit.ranks_possible, 'such rank')}"
        )
    elif code is VerdictCode.NO_CAPACITY:
        sentence = f"asks for {ask}; free GPUs in {where} hold {counted(fit.ranks_free, 'such rank')}"
        if workload.is_allocated:
            sentence += f", {fit.ranks_if_unallocated_work_stops} if unallocated work stops"
    else:
        sentence = f"asks for {ask}, and they can be had: it is placed when its turn comes in this round"
    return _verdict(state, workload, code, sentence, None, fit)


def _fit(state: ClusterState, workload: Workload) -> Fit:
    pools = state.inventory.candidates(workload.pool)
    size = workload.gpus_per_rank
    return Fit(
        pool=workload.pool,
        ranks_needed=workload.ranks,
        gpus_per_rank=size,
        ranks_free=max(pool.free.slots(size) for pool in pools),
        ranks_if_unallocated_work_stops=max(pool.reclaimable.slots(size) for pool in pools),
        ranks_possible=max(pool.healthy.slots(size) for pool in pools),
        nodes=_count_nodes(state, workload),
    )


def _verdict(
    state: ClusterState,
    workload: Workload,
    code: VerdictCode,
    sentence: str,
    until_ms: int | None,
    fit: Fit | None = None,
) -> Verdict:
    return Verdict(
        workload=workload.id,
        code=code,
        sentence=sentence,
        until_ms=until_ms,
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


def _count_nodes(state: ClusterState, workload: Workload) -> NodeCounts:
    counts: dict[str, int] = {}
    for node in state.nodes.values():
        reason = _reason_of(state, node, workload)
        counts[reason] = counts.get(reason, 0) + 1
    return NodeCounts(**counts)


def _reason_of(state: ClusterState, node: Node, workload: Workload) -> str:
    """Return the field of `NodeCounts` that a node counts under: the first obstacle that is there to stay."""
    size = workload.gpus_per_rank
    if workload.pool is not None and node.pool != workload.pool:
        return "other_pool"
    if node.gpus < size:
        return "too_small"
    if not node.takes_work:
        return "unhealthy"
    if node.free_mask.bit_count() >= size:
        return "fits"
    unallocated = node.preemptible_mask
    if (node.free_mask | unallocated).bit_count() >= size:
        return "fits_if_unallocated_work_stops" if workload.is_allocated else "other_allocated_work"
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
