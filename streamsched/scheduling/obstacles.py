"""What keeps a queued workload from being placed: the one obstacle that would have to go first, with its numbers.

It asks the questions of a decision in the same order and by the same functions, of a state in which nobody decides.
What one question costs is shared by all workloads that are asked about at one cursor.

Source: `fair-share.md`, section 7.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streamsched.model.events import TakeRule
from streamsched.model.policy import Scheme
from streamsched.scheduling.affinity import Ask, NoFit, seat_gang
from streamsched.scheduling.draft import Draft, is_short
from streamsched.scheduling.fair_share import comes_before, standing
from streamsched.scheduling.guard import Offer, guard_of, may_take_from, offers_to, passes_after_ms, refusal_of
from streamsched.scheduling.preemption import preempt
from streamsched.scheduling.reservation import Promise, promise, protected_until, spans_nodes
from streamsched.scheduling.reserves import kept_from
from streamsched.state.disruption import DisruptionBudget
from streamsched.state.inventory import as_truths
from streamsched.state.workloads import Phase, is_unprotected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from streamsched.model.events import Comparison
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Pool, Room
    from streamsched.state.reservations import Reservation
    from streamsched.state.usage import Budget
    from streamsched.state.workloads import Shape, Workload

_NEVER = 1 << 62


class VerdictCode(StrEnum):
    """The closed set of outcomes."""

    RUNS = "runs"
    STARTS = "starts"
    STOPS = "stops"
    PLANNED = "planned"
    PROMISED = "promised"
    NEXT_ROUND = "next_round"
    BEHIND = "behind"
    GUARD = "guard"
    PATIENCE = "patience"
    RATE_LIMITED = "rate_limited"
    RESERVED = "reserved"
    PROTECTED = "protected"
    NO_CAPACITY = "no_capacity"
    NO_DOMAIN = "no_domain"
    IMPOSSIBLE_NOW = "impossible_now"
    NO_NODES = "no_nodes"
    NO_BUDGET = "no_budget"
    SLOT_LIMIT = "slot_limit"
    RECOVERS = "recovers"
    HELD = "held"
    ENDED = "ended"


class Obstacle(NamedTuple):
    """Why a queued workload waits.

    Attributes:
        until_ms: When it goes away by itself, if things stay as they are; None where that is never or not known.
        others: The workloads that it is about: whose protection ends, for whom nodes are reserved.
        because: The comparison that failed, as it stands now.
        gpus: GPUs that go first to others, or that would have to be preempted.
    """

    code: VerdictCode
    until_ms: int | None = None
    others: tuple[str, ...] = ()
    because: Comparison | None = None
    gpus: int = 0


class Progress(NamedTuple):
    """How far a reservation has come: how many of its nodes are held for it already, and when the last will be."""

    held: int
    last_ms: int


#: A pool, and the nodes of it that may be used, as bits.
_Place = tuple["Pool", int]


class Obstacles:
    """Why queued workloads wait, at one cursor. Not to be kept beyond it."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.draft = Draft(state)
        self._places: dict[tuple[object, bool, int], list[_Place]] = {}
        self._ahead: dict[bool, dict[Budget, tuple[int, int]]] = {}
        self._offers: dict[tuple[str, int], list[Offer]] = {}
        self._promises: dict[object, Promise | None] = {}
        self._preempted: dict[object, int | None] = {}
        self._seatable: dict[object, bool] = {}

    def of(self, workload: Workload) -> Obstacle:
        """Return what keeps a queued workload waiting."""
        state, allocated = self.state, workload.is_allocated
        if workload.id in state.recoveries:
            if self.draft.is_full(workload.budget, workload.gpus, allocated=allocated):
                return Obstacle(VerdictCode.SLOT_LIMIT)
            return Obstacle(VerdictCode.RECOVERS, state.recoveries[workload.id].widens_ms)
        if workload.queue_key is None:
            return Obstacle(VerdictCode.HELD, workload.held_until_ms)
        if allocated and not workload.budget.quota_nano:
            return Obstacle(VerdictCode.NO_BUDGET)
        pools = state.inventory.candidates(workload.pool)
        if not pools:
            return Obstacle(VerdictCode.NO_NODES)
        size, ranks = workload.gpus_per_rank, workload.ranks
        if not any(self._holds_when_empty(workload.shape, pool) for pool in pools):
            return Obstacle(VerdictCode.IMPOSSIBLE_NOW)
        if self.draft.is_full(workload.budget, workload.gpus, allocated=allocated):
            return Obstacle(VerdictCode.SLOT_LIMIT)
        if workload.id in state.reservations:
            return Obstacle(VerdictCode.PROMISED, self._latest_start(state.reservations[workload.id]))

        def fits(pool: Pool, nodes: int) -> bool:
            return self._fits(workload.shape, pool, nodes, _room(pool, allocated=allocated))

        places = self.places(workload)
        by_priority = state.policy.scheme is Scheme.PRIORITY
        if any(fits(pool, nodes) for pool, nodes in places):
            return Obstacle(VerdictCode.NEXT_ROUND) if by_priority else self._turn(workload, places)
        open_places = [
            (pool, nodes) for pool, nodes in places if self._fits(workload.shape, pool, nodes, pool.takeable)
        ]
        preempts = allocated and not by_priority and bool(open_places)
        taking = self._order(workload, open_places) if preempts else None
        if taking is not None and taking.code not in (VerdictCode.GUARD, VerdictCode.BEHIND):
            return taking
        kept = self._reserved(places, fits)
        if kept is not None:
            return kept
        waits = Obstacle(VerdictCode.NO_CAPACITY)
        if allocated and not by_priority:
            waits = taking or self._protection(workload, places)
        if waits.code is VerdictCode.NO_CAPACITY and any(
            _room(pool, allocated=allocated).slots_on(size, nodes) >= ranks for pool, nodes in places
        ):
            return Obstacle(VerdictCode.NO_DOMAIN)
        return waits

    def places(self, workload: Workload) -> list[_Place]:
        """Return the pools that a workload may use, with the nodes that are kept neither from it nor for others."""
        policy = self.state.policy
        key = (workload.shape, workload.is_allocated, workload.priority if policy.domain_reserves else 0)
        known = self._places.get(key)
        if known is None:
            by_priority = policy.scheme is Scheme.PRIORITY
            known = self._places[key] = [
                (
                    pool,
                    pool.working
                    if by_priority
                    else self.draft.nodes_for(pool, workload.shape, allocated=workload.is_allocated),
                )
                for pool in self.state.inventory.candidates(workload.pool)
            ]
            if policy.domain_reserves and not by_priority:
                known[:] = [
                    (pool, nodes & ~kept_from(policy, self.draft.pool(pool), workload)) for pool, nodes in known
                ]
        return known

    def possible_from_ms(self, workload: Workload) -> int | None:
        """Return when allocated work can start at the earliest as things stand; None for never."""
        if workload.id in self.state.reservations:
            return self.state.reservations[workload.id].start_ms
        found = self._promise(workload, self.places(workload), 0)
        return None if found is None else found.start_ms

    def progress(self, reservation: Reservation) -> Progress:
        """Return how many nodes of a reservation nobody has to leave any more, and when the last one will be so."""
        state, now_ms = self.state, self.state.now_ms
        held, last_ms = 0, now_ms
        for id_ in reservation.nodes:
            leaves: list[int] = []
            for key in state.nodes[id_].held:
                other = state.workloads[key[0]]
                if other.run is None or not other.is_allocated or is_unprotected(other, now_ms):
                    continue
                until_ms = (
                    other.run.deadline_ms if other.phase is Phase.STOPPING else protected_until(other.run, now_ms)
                )
                if until_ms is not None and until_ms <= reservation.start_ms:
                    leaves.append(until_ms)
            held += not leaves and not state.nodes[id_].orphans
            last_ms = max(last_ms, *leaves, last_ms)
        return Progress(held, last_ms)

    def _fits(self, shape: Shape, pool: Pool, nodes: int, room: Room) -> bool:
        """Whether a shape has seats on some nodes, given as bits, of what a room holds there; its layers included."""
        if room.slots_on(shape[1], nodes) < shape[2]:
            return False
        if shape[4] is None:
            return True
        key = (shape, pool.id, nodes, id(room))
        if key not in self._seatable:
            free = np.where(as_truths(nodes, len(pool.nodes)), room.gpus, 0)
            self._seatable[key] = _has_seats(shape, pool, free)
        return self._seatable[key]

    def _holds_when_empty(self, shape: Shape, pool: Pool) -> bool:
        """Whether a shape would have seats if every node that takes work were empty."""
        if pool.healthy.slots(shape[1]) < shape[2]:
            return False
        if shape[4] is None:
            return True
        key = (shape, pool.id)
        if key not in self._seatable:
            gpus = [node.gpus if node.takes_work else 0 for node in pool.nodes]
            self._seatable[key] = _has_seats(shape, pool, np.array(gpus, np.int16))
        return self._seatable[key]

    # --- one question after the other ---

    def _turn(self, workload: Workload, places: Sequence[_Place]) -> Obstacle:
        """What it needs is there. It is placed next, unless work whose turn comes first asks for too much of it."""
        allocated = workload.is_allocated
        waiting = self._waiting(allocated=allocated)
        backlog = self.state.allocated if allocated else self.state.unallocated
        key = workload.queue_key
        ahead = 0
        if key is not None:
            for queue in backlog.queues_of(workload.budget.id):
                if self._fits_somewhere(queue.shape, allocated=allocated):
                    ahead += queue.entries.bisect_left(key) * queue.shape[1] * queue.shape[2]
        first: Budget | None = None
        for vertex in workload.budget.path[:-1]:
            mine = standing(vertex, self.draft, allocated=allocated)
            for sibling in () if vertex.parent is None else vertex.parent.children.values():
                if sibling is vertex or sibling not in waiting:
                    continue
                before = comes_before(standing(sibling, self.draft, allocated=allocated), mine)
                if before is None:
                    before = (waiting[sibling][1], sibling.id) < (waiting[vertex][1], vertex.id)
                if before:
                    ahead += waiting[sibling][0]
                    first = sibling
        room = max(
            sum(gpus * (mask & nodes).bit_count() for gpus, mask in enumerate(_room(pool, allocated=allocated).nodes))
            for pool, nodes in places
        )
        if ahead + workload.gpus <= room:
            return Obstacle(VerdictCode.NEXT_ROUND)
        because = self._compared(workload.budget, first) if first is not None and allocated else None
        return Obstacle(VerdictCode.BEHIND, because=because, gpus=ahead)

    def _waiting(self, *, allocated: bool) -> dict[Budget, tuple[int, int]]:
        """Return the GPUs that fitting work below each budget waits for, and since when the oldest of it waits."""
        known = self._ahead.get(allocated)
        if known is None:
            known = self._ahead[allocated] = {}
            backlog = self.state.allocated if allocated else self.state.unallocated
            for shape, queues in backlog.by_shape.items():
                if not self._fits_somewhere(shape, allocated=allocated):
                    continue
                for queue in queues.values():
                    for budget in queue.leaf.path:
                        gpus, oldest = known.get(budget, (0, _NEVER))
                        asked = len(queue.entries) * shape[1] * shape[2]
                        known[budget] = (gpus + asked, min(oldest, queue.oldest(0)))
        return known

    def _fits_somewhere(self, shape: Shape, *, allocated: bool) -> bool:
        return any(
            self._fits(shape, pool, pool.working, _room(pool, allocated=allocated))
            for pool in self.state.inventory.candidates(shape[0])
        )

    def _reserved(self, places: Iterable[_Place], fits: Callable[[Pool, int], bool]) -> Obstacle | None:
        """Return the reservation without which it would fit, the others before it left aside too."""
        by_pool = {pool.id: (pool, nodes) for pool, nodes in places}
        for kept in sorted(self.state.reservations.values(), key=lambda kept: (kept.start_ms, kept.workload)):
            if kept.pool not in by_pool:
                continue
            pool, nodes = by_pool[kept.pool]
            nodes |= self.draft.reserved(kept) & pool.working
            by_pool[kept.pool] = (pool, nodes)
            if fits(pool, nodes):
                return Obstacle(VerdictCode.RESERVED, self._latest_start(kept), (kept.workload,))
        return None

    def _latest_start(self, kept: Reservation) -> int:
        """Return when reserved nodes are taken, or given up if the last GPUs are late."""
        if kept.start_ms > self.state.now_ms:
            return kept.start_ms
        return kept.start_ms + self.state.policy.reservation_overrun_ms

    def _order(self, workload: Workload, places: Sequence[_Place]) -> Obstacle:
        """Runs past their protection would make room: why may they not be stopped for it?"""
        state, policy, now_ms = self.state, self.state.policy, self.state.now_ms
        limited: tuple[int, int] | None = None
        for pool, nodes in places:
            offers = offers_to(self.draft, workload, guard_of(self.draft, workload, pool.rate))
            gpus = self._would_preempt(workload, pool, nodes, offers)
            if gpus is None:
                continue
            patience_ms = 0 if is_short(workload.shape, policy) else policy.patience_ms
            if now_ms < workload.queued_ms + patience_ms:
                return Obstacle(VerdictCode.PATIENCE, workload.queued_ms + patience_ms, gpus=gpus)
            bucket = state.disruption.get(pool.id) or DisruptionBudget()
            from_ms = bucket.allowed_from_ms(gpus, pool.installed_gpus, policy, now_ms)
            if from_ms == now_ms:
                return Obstacle(VerdictCode.NEXT_ROUND, gpus=gpus)
            soonest = (_NEVER if from_ms is None else from_ms, gpus)
            limited = soonest if limited is None else min(limited, soonest)
        if limited is not None:
            from_ms, gpus = limited
            return Obstacle(VerdictCode.RATE_LIMITED, None if from_ms == _NEVER else from_ms, gpus=gpus)
        for pool, nodes in places:
            guarded = self._guarded(workload, pool, nodes)
            if guarded is not None:
                return guarded
        return self._behind(workload, state.unprotected)

    def _guarded(self, workload: Workload, pool: Pool, nodes: int) -> Obstacle | None:
        """Return the guard that fades last of those that must, when without any the claimant could take enough."""
        every = self._offers_without_guard(workload)
        gpus = self._would_preempt(workload, pool, nodes, every)
        if gpus is None:
            return None
        guard = guard_of(self.draft, workload, pool.rate)
        allowed = {offer.leaf for offer in offers_to(self.draft, workload, guard)}
        barred = sorted(
            (self._passes_after(workload, pool.rate, offer.because(self.draft, workload.budget)), offer.leaf.id, offer)
            for offer in every
            if offer.leaf not in allowed
        )
        for wait_ms, _, offer in barred:
            allowed.add(offer.leaf)
            if self._would_preempt(workload, pool, nodes, [one for one in every if one.leaf in allowed]) is not None:
                return self._guard(workload, wait_ms, offer, guard, gpus)
        return self._guard(workload, _NEVER, every[0], guard, gpus)

    def _offers_without_guard(self, workload: Workload) -> list[Offer]:
        key = (workload.budget.id, workload.priority)
        if key not in self._offers:
            self._offers[key] = offers_to(self.draft, workload, 0)
        return self._offers[key]

    def _passes_after(self, workload: Workload, rate: int, because: Comparison) -> int:
        wait_ms = passes_after_ms(self.state.policy, workload, rate, because)
        return _NEVER if wait_ms is None else wait_ms

    def _guard(self, workload: Workload, wait_ms: int, offer: Offer, guard_gpu_ms: int, gpus: int) -> Obstacle:
        until_ms = None if wait_ms == _NEVER else workload.queued_ms + wait_ms
        because = offer._replace(guard_gpu_ms=guard_gpu_ms).because(self.draft, workload.budget)
        return Obstacle(VerdictCode.GUARD, until_ms, because=because, gpus=gpus)

    def _would_preempt(self, workload: Workload, pool: Pool, nodes: int, offers: Sequence[Offer]) -> int | None:
        """Return how many allocated GPUs a claimant would preempt of what it is offered; None when it does not fit."""
        if not offers:
            return None
        leaves = tuple(offer.leaf.id for offer in offers)
        key = (workload.budget.id, workload.priority, workload.shape, pool.id, nodes, leaves)
        if key not in self._preempted:
            asked: list[int] = []

            def note(gpus: int) -> bool:
                asked.append(gpus)
                return False  # Nothing is taken here.

            preempt(self.draft, self.draft.pool(pool), workload, nodes, offers, affordable=note)
            self._preempted[key] = asked[0] if asked else None
        return self._preempted[key]

    def _protection(self, workload: Workload, places: Sequence[_Place]) -> Obstacle:
        """Not even all that is past its protection would make room: is protection the sole obstacle?"""
        found = self._promise(workload, places, 0)
        if found is None:
            kept = self._reserved(places, lambda pool, nodes: self._promise(workload, [(pool, nodes)], 0) is not None)
            if kept is not None:
                return kept
            if self._promise(workload, places, None) is not None:
                return self._behind(workload, self._holders())
            return Obstacle(VerdictCode.NO_CAPACITY)
        guarded = self._guarded_later(workload, places)
        if guarded is not None:
            return guarded
        if found.start_ms <= self.state.now_ms:
            return Obstacle(VerdictCode.NO_CAPACITY)
        return Obstacle(VerdictCode.PROTECTED, found.start_ms, self._protected_on(found))

    def _guarded_later(self, workload: Workload, places: Sequence[_Place]) -> Obstacle | None:
        """Return the guard that would still stand in the way if nothing were protected; a reservation has none."""
        if any(spans_nodes(pool, workload.ranks, workload.gpus_per_rank) for pool, _ in places):
            return None
        rate = min(pool.rate for pool, _ in places)
        guard = guard_of(self.draft, workload, rate)
        barred: list[tuple[int, str, Offer]] = []
        for leaf in self._holders():
            if leaf is workload.budget or may_take_from(self.draft, workload.budget, leaf, guard):
                continue
            if may_take_from(self.draft, workload.budget, leaf, 0):
                offer = Offer(leaf, {}, TakeRule.FAIR_SHARE)
                because = offer.because(self.draft, workload.budget)
                barred.append((self._passes_after(workload, rate, because), leaf.id, offer))
        if not barred or self._promise(workload, places, guard) is not None:
            return None
        wait_ms, _, offer = min(barred, key=lambda one: one[:2])
        return self._guard(workload, wait_ms, offer, guard, 0)

    def _holders(self) -> list[Budget]:
        """Return the leaves that have allocated runs, closed ones included."""
        leaves = dict.fromkeys((*self.state.budgets.leaves(), *self.state.unprotected))
        return [leaf for leaf in leaves if leaf.allocated_gpus]

    def _behind(self, workload: Workload, leaves: Iterable[Budget]) -> Obstacle:
        """Return the leaf, of those that hold what it needs, that it comes nearest to going before."""
        refused = [
            (missing, leaf.id, leaf)
            for leaf in leaves
            if leaf is not workload.budget and (missing := refusal_of(self.draft, workload.budget, leaf, 0)) is not None
        ]
        nearest = min(refused, key=lambda one: one[:2])[2] if refused else workload.budget
        return Obstacle(VerdictCode.BEHIND, because=self._compared(workload.budget, nearest))

    def _compared(self, claimant: Budget, other: Budget) -> Comparison:
        """Return how two budgets stand where their paths part; one leaf with itself for its own work."""
        rule = TakeRule.PRIORITY if claimant is other else TakeRule.FAIR_SHARE
        return Offer(other, {}, rule).because(self.draft, claimant)

    def _promise(self, workload: Workload, places: Iterable[_Place], guard_gpu_ms: int | None) -> Promise | None:
        """Return the earliest promise that could be made on any of these places."""
        soonest: Promise | None = None
        for pool, nodes in places:
            key = (workload.budget.id, workload.priority, workload.shape, pool.id, nodes, guard_gpu_ms)
            if key not in self._promises:
                found = promise(self.draft, pool, workload, nodes, guard_gpu_ms)
                self._promises[key] = found if isinstance(found, Promise) else None
            promised = self._promises[key]
            if promised is not None and (soonest is None or promised.start_ms < soonest.start_ms):
                soonest = promised
        return soonest

    def _protected_on(self, promised: Promise) -> tuple[str, ...]:
        """Return whose protection on promised nodes must end first, the last to end first."""
        state, now_ms = self.state, self.state.now_ms
        found: dict[str, int] = {}
        for id_ in promised.nodes:
            for key in state.nodes[id_].held:
                other = state.workloads[key[0]]
                if other.run is None or not other.is_allocated or other.phase is Phase.STOPPING:
                    continue
                until_ms = protected_until(other.run, now_ms)
                if now_ms < until_ms <= promised.start_ms:
                    found[other.id] = until_ms
        return tuple(sorted(found, key=lambda id_: (-found[id_], id_)))


def _has_seats(shape: Shape, pool: Pool, free: NDArray[np.int16]) -> bool:
    _, gpus_per_rank, ranks, _, asked = shape
    if asked is None:
        raise AssertionError("without layers, the number of ranks says whether it fits")
    ask = Ask(ranks, gpus_per_rank, asked.layers, asked.groups, symmetric=asked.symmetric)
    return not isinstance(seat_gang(pool.tree, free, ask), NoFit)


def _room(pool: Pool, *, allocated: bool) -> Room:
    """Return what a class of work can have without preempting allocated work."""
    return pool.reclaimable if allocated else pool.free
