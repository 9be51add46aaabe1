"""Corrections of what was charged: by an administrator, or because a run failed through no fault of its own.

What was recorded is never edited. A correction is GPU-time of its own over the interval that it corrects, so it leaves
the window exactly as that does.

Source: `fair-share.md`, section 3.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamsched.model.commands import Correction
from streamsched.model.quantities import format_instant

if TYPE_CHECKING:
    from streamsched.model.events import UsageAdjusted
    from streamsched.state.cluster import ClusterState
    from streamsched.state.usage import Budget
    from streamsched.state.workloads import Run, Workload


def refund(state: ClusterState, workload: Workload, run: Run) -> None:
    """Take back all that a run was charged which never started, node by node."""
    for units, until_ms in run.returned:
        since_ms = run.bound_ms or 0
        _correct(state, workload.budget, -units, since_ms, until_ms, charged=workload.is_allocated)


def objection_to(state: ClusterState, fact: UsageAdjusted) -> str | None:
    """Return why an adjustment cannot be made: the field, the value and the remedy."""
    budget = state.budgets.get(fact.budget)
    if budget is None:
        return f"budget: there is no budget {fact.budget!r}; name a leaf of the tree"
    if budget.children:
        return f"budget: {fact.budget!r} is not a leaf; adjust one of its children"
    if fact.to_ms > state.now_ms:
        return (
            f"to_ms: {fact.to_ms} ({format_instant(fact.to_ms)}) is ahead of the cluster's time, "
            f"{format_instant(state.now_ms)}; adjust what has passed"
        )
    most = max(units for units, _, _ in _levels(fact))
    held = state.budgets.least_charged(budget, fact.from_ms, fact.to_ms, state.now_ms)
    if fact.gpu_ms < 0 and held is not None:
        held -= _may_be_refunded(state, budget, fact.to_ms)
        if held < most:
            return (
                f"gpu_ms: {fact.gpu_ms} over this interval is up to {most} GPUs at a time, and {fact.budget!r} was "
                f"charged for as few as {held} in it, without those of runs that have yet to start; give back less, or "
                "name the intervals in which more was charged"
            )
    return None


def _may_be_refunded(state: ClusterState, leaf: Budget, until_ms: int) -> int:
    """Return the units of those runs of a leaf that have not started: theirs may come back whole."""
    return sum(
        workload.run.units
        for workload in state.workloads.values()
        if workload.budget is leaf
        and workload.is_allocated
        and workload.run is not None
        and workload.run.started_ms is None
        and workload.run.bound_ms is not None
        and workload.run.bound_ms < until_ms
    )


def adjust(state: ClusterState, fact: UsageAdjusted) -> None:
    """Charge a leaf, or give back to it, as an administrator decided."""
    budget = state.budgets.by_id[fact.budget]
    sign = 1 if fact.gpu_ms > 0 else -1
    for units, since_ms, until_ms in _levels(fact):
        _correct(state, budget, sign * units, since_ms, until_ms, charged=True)


def _levels(fact: UsageAdjusted) -> list[tuple[int, int, int]]:
    """Return an amount as whole GPUs over time: as even as integers allow, the rest in the first milliseconds."""
    even, rest = divmod(abs(fact.gpu_ms), fact.to_ms - fact.from_ms)
    turn_ms = fact.from_ms + rest
    return (
        [(even + 1, fact.from_ms, turn_ms), (even, turn_ms, fact.to_ms)] if rest else [(even, fact.from_ms, fact.to_ms)]
    )


def _correct(state: ClusterState, leaf: Budget, units: int, since_ms: int, until_ms: int, *, charged: bool) -> None:
    since_ms = max(since_ms, state.budgets.known_from_ms)
    if not units or since_ms >= until_ms:
        return
    state.budgets.correct(leaf, units, since_ms, until_ms, state.now_ms, charged=charged)
    state.effects.corrections.append(Correction(leaf.id, units, since_ms, until_ms, charged=charged))
    for budget in leaf.path:
        state.effects.budgets[budget.id] = None
