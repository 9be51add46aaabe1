"""Who may take from whom: fair share between leaves with a guard against taking turns, priority inside one.

A claimant takes only from those that stand behind it in the order, and only as much as leaves it no further ahead than
they are. A victim is past its protection, so that its end changes nobody's ratio: whoever was compared rightly before
a preemption is compared rightly after it.

Source: `fair-share.md`, section 4.3.
"""

from __future__ import annotations

from functools import cmp_to_key
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from streamsched.model.events import Comparison, TakeRule
from streamsched.model.policy import UsageMode, VictimUnderBudget
from streamsched.model.quantities import WHOLE
from streamsched.scheduling.fair_share import comes_before, stand

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from streamsched.model.policy import Policy
    from streamsched.scheduling.draft import Draft
    from streamsched.scheduling.fair_share import Standing
    from streamsched.state.inventory import RunKey
    from streamsched.state.usage import Budget
    from streamsched.state.workloads import Workload


class Offer(NamedTuple):
    """The runs of one leaf that a claimant may stop, and by what rule."""

    leaf: Budget
    runs: dict[RunKey, Workload]
    rule: TakeRule
    guard_gpu_ms: int = 0

    def because(self, draft: Draft, claimant: Budget) -> Comparison:
        """Return the comparison with the numbers as they are now; what is reserved or of the own leaf asks none."""
        ours, theirs = (claimant, claimant) if self.leaf is claimant else _below_common_ancestor(claimant, self.leaf)
        mine, other = stand(draft, ours), stand(draft, theirs)
        return Comparison(
            rule=self.rule,
            claimant=ours.id,
            claimant_used_gpu_ms=mine.used,
            claimant_entitled_gpu_ms=mine.entitled,
            victim=theirs.id,
            victim_used_gpu_ms=other.used,
            victim_entitled_gpu_ms=other.entitled,
            guard_gpu_ms=self.guard_gpu_ms,
            protected_until_ms=0,
        )


def guard_of(draft: Draft, claimant: Workload, rate: int) -> int:
    """Return what the guard adds to a claimant's usage, in GPU-milliseconds: less the longer it has waited.

    The longer of its min runtime and the policy's floor for all its GPUs, faded by the share of the relaxation that it
    has waited through; rounded up.
    """
    policy = draft.state.policy
    if not policy.guard:
        return 0
    if policy.usage is UsageMode.INSTANT:
        return claimant.budget.held_for_instant(claimant.gpus * rate)
    whole = _whole_guard(policy, claimant, rate)
    fades_over_ms = policy.guard_relaxation_ms
    if fades_over_ms is None:
        return whole
    left_ms = fades_over_ms - (draft.now_ms - claimant.queued_ms)
    return -(-whole * left_ms // fades_over_ms) if left_ms > 0 else 0


def _whole_guard(policy: Policy, claimant: Workload, rate: int) -> int:
    return claimant.gpus * rate * max(claimant.effective_min_ms, policy.guard_floor_ms)


def passes_after_ms(policy: Policy, claimant: Workload, rate: int, because: Comparison) -> int | None:
    """Return after which wait the guard no longer keeps a claimant from a victim, ratios being as they were compared.

    The guard may be no more than what lifts the claimant to the victim's ratio. None when it never fades that far.
    """
    most = because.victim_used_gpu_ms * because.claimant_entitled_gpu_ms // because.victim_entitled_gpu_ms
    most -= because.claimant_used_gpu_ms
    whole = _whole_guard(policy, claimant, rate)
    fades_over_ms = policy.guard_relaxation_ms
    if fades_over_ms is None or policy.usage is UsageMode.INSTANT or not whole or most < 0:
        return None
    return max(0, fades_over_ms - most * fades_over_ms // whole)


def offers_to(draft: Draft, claimant: Workload, guard_gpu_ms: int) -> list[Offer]:
    """Return what a claimant may take from allocated work now, the most over-served leaf first.

    The order is the walk of the tree, mirrored, so that whoever is stopped cannot turn round and stop somebody who
    stands even worse.
    """
    instant = draft.state.policy.usage is UsageMode.INSTANT
    offers: dict[Budget, Offer] = {}
    for leaf, runs in draft.state.unprotected.items():
        if leaf is claimant.budget:
            below = {key: run for key, run in runs.items() if run.priority < claimant.priority}
            if below:
                offers[leaf] = Offer(leaf, below, TakeRule.PRIORITY)
        elif may_take_from(draft, claimant.budget, leaf, guard_gpu_ms):
            fair = _fair_after(draft, claimant.budget, leaf, runs, guard_gpu_ms) if instant else runs
            if fair:
                offers[leaf] = Offer(leaf, fair, TakeRule.FAIR_SHARE, guard_gpu_ms)
    return [offers[leaf] for leaf in _most_served_first(draft, offers)] if len(offers) > 1 else list(offers.values())


def may_take_from(draft: Draft, claimant: Budget, victim: Budget, guard_gpu_ms: int) -> bool:
    """Whether a leaf may take from another past its protection."""
    ours, theirs = _below_common_ancestor(claimant, victim)
    return _is_allowed(draft, stand(draft, ours), stand(draft, theirs), guard_gpu_ms)


def _fair_after(
    draft: Draft, claimant: Budget, victim: Budget, runs: dict[RunKey, Workload], guard_gpu_ms: int
) -> dict[RunKey, Workload]:
    """Return the runs that may be taken where usage is what is held now, so that an end changes who stands where.

    The claimant may then be no further ahead than the victim is left; or else it stays within its quota, and takes from
    one that is above its own.
    """
    ours, theirs = _below_common_ancestor(claimant, victim)
    mine, other = stand(draft, ours), stand(draft, theirs)
    after = mine.used + guard_gpu_ms
    if other.entitled == 0 or (after <= mine.entitled and other.used > other.entitled):
        return runs
    fair: dict[RunKey, Workload] = {}
    for key, workload in runs.items():
        freed = victim.held_for_instant(workload.run.units) if workload.run is not None else 0
        if after * other.entitled <= (other.used - freed) * mine.entitled:
            fair[key] = workload
    return fair


def may_take(mine: Standing, other: Standing, guard_gpu_ms: int) -> bool:
    """Whether a claimant that stands so may take from who stands so; the policy may add conditions.

    One that holds less than its quota, where the order asks for that, takes from one that does not without a guard.
    """
    if comes_before(mine, other) is not True:
        return False
    if other.entitled == 0 or mine.above is not other.above:
        return True
    return (mine.used + guard_gpu_ms) * other.entitled <= other.used * mine.entitled


def refusal_of(draft: Draft, claimant: Budget, victim: Budget, guard_gpu_ms: int) -> int | None:
    """Return how far use must move before a leaf may take from another; None if it may. See `_distance`."""
    return _refusal(draft, *_below_common_ancestor(claimant, victim), (guard_gpu_ms,))


def refusals(draft: Draft, leaf: Budget, guards: Sequence[int]) -> Iterator[tuple[Budget, int]]:
    """Yield each vertex from which a leaf may not take with one of some guards, and how far use must move for that."""
    for ours in leaf.path[:-1]:
        if ours.parent is not None:
            for theirs in ours.parent.children.values():
                if theirs is not ours and (needed := _refusal(draft, ours, theirs, guards)) is not None:
                    yield theirs, needed


def _refusal(draft: Draft, ours: Budget, theirs: Budget, guards: Sequence[int]) -> int | None:
    """Return the distance of two siblings with the first of the guards that keeps one from the other; None if none."""
    mine, other = stand(draft, ours), stand(draft, theirs)
    for guard_gpu_ms in guards:
        if not _is_allowed(draft, mine, other, guard_gpu_ms):
            return _distance(draft, ours, theirs, guard_gpu_ms)
    return None


def _distance(draft: Draft, ours: Budget, theirs: Budget, guard_gpu_ms: int) -> int:
    """Return how far the use of two siblings must move, each, before one may take from the other, which it may not.

    That is D GPU-milliseconds; entitlements then move by at most their quotas of D. With
    ``f = (mine + guard) x E' - theirs x E > 0`` and ``S = E + E' + q'(mine + guard) + q theirs`` the product changes by
    at most ``D S + 2 q D^2``, which is less than f for ``D = 4/5 f/S``.
    """
    mine, other = stand(draft, ours), stand(draft, theirs)
    after = mine.used + guard_gpu_ms
    ahead = after * other.entitled - other.used * mine.entitled
    if ahead > 0:
        by_quota = after * _most_quota(theirs) + other.used * _most_quota(ours)
        return 4 * ahead // (5 * (mine.entitled + other.entitled + by_quota // WHOLE + 1))
    if draft.state.policy.victim_under_budget is VictimUnderBudget.FORBID:
        return max(0, other.entitled - other.used) // 2
    return 0


def _is_allowed(draft: Draft, mine: Standing, other: Standing, guard_gpu_ms: int) -> bool:
    """Whether what is below one sibling may take from what is below another, past its protection."""
    if not may_take(mine, other, guard_gpu_ms):
        return False
    forbids = draft.state.policy.victim_under_budget is VictimUnderBudget.FORBID
    return not (forbids and other.used <= other.entitled)


def rival_of(leaf: Budget, other: Budget) -> Budget:
    """Return the vertex as which another leaf is compared with a leaf."""
    return _below_common_ancestor(leaf, other)[1]


def _most_quota(budget: Budget) -> int:
    """Return the largest quota of a budget inside the window."""
    segments = budget.segments
    if len(segments) == 1:
        return max(budget.quota_nano, segments[0][1])
    return max(budget.quota_nano, *(quota for _, quota in segments))


def _below_common_ancestor(one: Budget, other: Budget) -> tuple[Budget, Budget]:
    """Return the children of the lowest common ancestor towards two different leaves; they stay what they are.

    What still runs in a leaf that has got children is compared as that vertex, with its child towards the other leaf.
    """
    known = one.forks.get(other)
    if known is None:
        paths = list(zip_longest(reversed(one.path), reversed(other.path)))
        depth = next(depth for depth, (mine, theirs) in enumerate(paths) if mine is not theirs)
        mine, theirs = paths[depth]
        known = one.forks[other] = (mine or one, theirs or other)
    return known


def _most_served_first(draft: Draft, leaves: Collection[Budget]) -> list[Budget]:
    """Return leaves in the order of the tree walk, mirrored."""
    below: dict[Budget | None, dict[Budget, None]] = {}
    for leaf in leaves:
        for budget in leaf.path:
            below.setdefault(budget.parent, {})[budget] = None

    def later(one: Budget, other: Budget) -> int:
        before = comes_before(stand(draft, one), stand(draft, other))
        if before is None:
            return -1 if one.id > other.id else 1
        return 1 if before else -1

    ordered: list[Budget] = []
    waiting = list(below[None])
    while waiting:
        budget = waiting.pop()
        if budget in leaves:
            ordered.append(budget)
        waiting.extend(sorted(below.get(budget, ()), key=cmp_to_key(later), reverse=True))
    return ordered
