"""The rules of fair share and preemption, written down once more: plainly, by trying everything, in fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import zip_longest

from streamsched.model.policy import Order, VictimUnderBudget
from streamsched.model.quantities import WHOLE
from streamsched.model.topology import NODE, Layer, Wish
from streamsched.state.cluster import ClusterState
from streamsched.state.inventory import Node
from streamsched.state.usage import Budget
from streamsched.state.workloads import Phase, Workload


def next_by_the_book(state: ClusterState) -> str | None:
    """Return whose turn it is, by trying every workload and comparing ratios as fractions."""
    for allocated in (True, False):
        waiting = [w for w in state.workloads.values() if w.is_allocated is allocated and may_be_placed(state, w)]
        if not waiting:
            continue
        budget = state.budgets.root
        while budget.children:
            budget = min(
                (child for child in budget.children.values() if below(waiting, child)),
                key=lambda child: (*rank(state, child, allocated=allocated), oldest(below(waiting, child)), child.id),
            )
        first = min(below(waiting, budget), key=lambda w: (-w.priority, 0 if w.requeued else 1, w.queued_ms, w.id))
        return first.id
    return None


def rank(state: ClusterState, budget: Budget, *, allocated: bool) -> tuple[bool, bool, Fraction]:
    """Return how a budget stands among its siblings: last without entitlement, then by used / entitled."""
    if allocated:
        mine, due, above = used(state, budget), entitled(state, budget), is_above(state, budget)
    else:
        mine, due, above = budget.unallocated_gpu_ms(state.now_ms), budget.quota_nano, False
    return (True, False, Fraction(mine)) if not due else (False, above, Fraction(mine, due))


def below(workloads: list[Workload], budget: Budget) -> list[Workload]:
    """Return those of a budget and of all below it."""
    return [workload for workload in workloads if budget in workload.budget.path]


def oldest(workloads: list[Workload]) -> int:
    """Return since when the first of them waits."""
    return min(workload.queued_ms for workload in workloads)


def may_be_placed(state: ClusterState, workload: Workload) -> bool:
    """Whether a workload waits, may be looked at, and would fit into some pool now, whomever it has to have stopped."""
    if workload.run is not None or workload.held_until_ms > state.now_ms or workload.id in state.recoveries:
        return False
    if workload.is_allocated and not workload.budget.quota_nano:
        return False
    stopped: tuple[str, ...] = ()
    if workload.is_allocated:
        stopped = takeable(state, workload) if is_patient(state, workload) else preemptible(state)
    return any(fits(state, workload, pool, stopped) for pool in sorted({node.pool for node in state.nodes.values()}))


def preemptible(state: ClusterState) -> tuple[str, ...]:
    """Return the unallocated workloads that run and that nobody stops."""
    return tuple(
        id_ for id_, w in state.workloads.items() if not w.is_allocated and w.run is not None and w.run.stop is None
    )


def room(node: Node, stopped: tuple[str, ...]) -> int:
    """Return the GPUs of a node that nobody else has, waits for or left behind."""
    taken = 0
    for owners in (node.held, node.claims, node.orphans):
        for (workload, _), mask in owners.items():
            if workload not in stopped or owners is not node.held:
                taken |= mask
    for mask in node.pins.values():
        taken |= mask
    return node.all_mask & ~taken


def used(state: ClusterState, budget: Budget) -> int:
    """Return what is charged and committed, in GPU-milliseconds."""
    return budget.charged_gpu_ms(state.now_ms) + budget.committed_gpu_ms(state.now_ms)


def entitled(state: ClusterState, budget: Budget) -> int:
    """Return what is due, in GPU-milliseconds."""
    return budget.entitled_gpu_ms(state.now_ms)


def is_above(state: ClusterState, budget: Budget) -> bool:
    """Whether a budget holds its quota now, with what is planned for it, where the order asks for that."""
    planned = sum(
        workload.gpus
        for workload in state.workloads.values()
        if workload.phase is Phase.PLANNED and workload.is_allocated and budget in workload.budget.path
    )
    holds = (budget.allocated_gpus + planned) * WHOLE >= budget.quota_nano * state.budgets.capacity_units
    return state.policy.order is Order.DUE_FIRST and holds


def comes_before(state: ClusterState, one: Budget, other: Budget) -> bool:
    """Whether a budget goes before its sibling by their standings alone."""
    if not entitled(state, one) or not entitled(state, other):
        return entitled(state, one) > 0 or (not entitled(state, other) and used(state, one) < used(state, other))
    if is_above(state, one) is not is_above(state, other):
        return is_above(state, other)
    return used(state, one) * entitled(state, other) < used(state, other) * entitled(state, one)


def may_take(state: ClusterState, claimant: Workload, victim: Workload) -> bool:
    """Whether allocated work may have an allocated run stopped: section 4.3, word by word."""
    run = victim.run
    if run is None or run.stop is not None or run.protected_until_ms is None or state.now_ms < run.protected_until_ms:
        return False
    if victim.budget is claimant.budget:
        return claimant.priority > victim.priority
    paths = zip_longest(reversed(claimant.budget.path), reversed(victim.budget.path))
    ours, theirs = next((ours, theirs) for ours, theirs in paths if ours is not theirs)
    ours, theirs = ours or claimant.budget, theirs or victim.budget
    if not comes_before(state, ours, theirs):
        return False
    policy = state.policy
    if policy.victim_under_budget is VictimUnderBudget.FORBID and used(state, theirs) <= entitled(state, theirs):
        return False
    if not policy.guard or not entitled(state, theirs) or is_above(state, ours) is not is_above(state, theirs):
        return True
    cost = claimant.gpus * max(claimant.effective_min_ms, policy.guard_floor_ms)
    whole = policy.guard_relaxation_ms or 1
    left = 1 if policy.guard_relaxation_ms is None else max(0, whole - (state.now_ms - claimant.queued_ms))
    guard = -(-cost * left // whole)
    return (used(state, ours) + guard) * entitled(state, theirs) <= used(state, theirs) * entitled(state, ours)


def takeable(state: ClusterState, claimant: Workload) -> tuple[str, ...]:
    """Return all whom a claimant may have stopped."""
    allocated = [
        other.id for other in state.workloads.values() if other.is_allocated and may_take(state, claimant, other)
    ]
    return (*preemptible(state), *allocated)


def is_short(state: ClusterState, workload: Workload) -> bool:
    """Whether allocated work is short."""
    policy = state.policy
    return workload.gpus <= policy.short_gpus and workload.effective_min_ms <= policy.short_min_runtime_ms


def is_patient(state: ClusterState, workload: Workload) -> bool:
    """Whether it has waited long enough for allocated work to be stopped for it."""
    return is_short(state, workload) or state.now_ms - workload.queued_ms >= state.policy.patience_ms


def nodes_by_the_book(state: ClusterState, workload: Workload, pool: str) -> list[Node]:
    """Return the nodes of a pool that a workload may use: sections 4.8 and 4.10."""
    members = sorted((node for node in state.nodes.values() if node.pool == pool), key=lambda node: node.index)
    working = [node for node in members if node.takes_work]
    per = state.policy.nodes_per_headroom_node
    headroom = working[len(working) - (len(working) + per // 2) // per :] if per else []
    others = [node for node in working if node not in headroom]
    fits_beside = sum(node.gpus // workload.gpus_per_rank for node in others) >= workload.ranks
    is_kept_from = workload.is_allocated and fits_beside and not is_short(state, workload)
    kept_from = {node.id for node in headroom} if is_kept_from else set()
    for promise in state.reservations.values():
        protected_ms = workload.effective_min_ms if workload.is_allocated else 0
        ends_ms = state.now_ms + state.policy.backfill_margin_ms + protected_ms
        if promise.workload != workload.id and ends_ms > promise.start_ms:
            kept_from.update(promise.nodes)
    return [node for node in working if node.id not in kept_from]


def fits(state: ClusterState, workload: Workload, pool: str, stopped: tuple[str, ...]) -> bool:
    """Whether a gang fits into a pool once some others have released their GPUs."""
    if workload.pool not in (None, pool):
        return False
    nodes = nodes_by_the_book(state, workload, pool)
    blocks = [(node, room(node, stopped).bit_count() // workload.gpus_per_rank) for node in nodes]
    size, levels = 1, state.policy.levels_of(pool)
    required = [layer for layer in layers_of(workload) if layer.wish is Wish.REQUIRED]
    for layer in reversed(required):
        if layer.level != NODE and layer.level not in levels:
            return False
        ranks = layer.ranks or workload.ranks
        depth = len(levels) + 1 if layer.level == NODE else levels.index(layer.level) + 1
        domains: dict[tuple[str, ...], list[tuple[Node, int]]] = {}
        for node, count in blocks:
            path = (*node.domains[: len(levels)], *[node.id] * (len(levels) + 1 - len(node.domains[: len(levels)])))
            domains.setdefault(path[:depth], []).append((node, count))
        blocks = [(here[0][0], sum(count for _, count in here) * size // ranks) for here in domains.values()]
        size = ranks
    return sum(count for _, count in blocks) * size >= workload.ranks


def layers_of(workload: Workload) -> tuple[Layer, ...]:
    """Return the layers of a gang, coarse to fine."""
    return () if workload.topology is None else workload.topology.layers


def most_served_first(state: ClusterState, leaves: set[Budget], depth: int = 1) -> list[Budget]:
    """Return leaves that have their first `depth` ancestors in common in the order of the walk, mirrored."""
    ordered = [leaf for leaf in leaves if len(leaf.path) == depth]
    left = sorted({leaf.path[-1 - depth] for leaf in leaves if len(leaf.path) > depth}, key=lambda child: child.id)
    while left:
        last = next(one for one in reversed(left) if not any(comes_before(state, one, other) for other in left))
        left.remove(last)
        below = {leaf for leaf in leaves if last in leaf.path}
        ordered.extend(most_served_first(state, below, depth + 1))
    return ordered
