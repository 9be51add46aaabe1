"""What to do now: a function of the state alone.

Allocated work first, in fair-share order, each workload meeting what the ones before it left. It takes free GPUs, else
those of unallocated runs, else also those of allocated runs that it may take from; and a gang of several nodes for
which all that is too little gets nodes reserved. Then unallocated work, on what is free. Nothing here asks a clock, and
nothing writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from streamsched.model.events import (
    ProposedPlacement,
    ProposedReservation,
    RoundProposed,
    Seat,
    TakeRule,
    Victim,
    trusted,
)
from streamsched.model.policy import UsageMode
from streamsched.scheduling.consolidation import consolidate
from streamsched.scheduling.draft import Draft, is_short
from streamsched.scheduling.fair_share import Turns, share_lines
from streamsched.scheduling.guard import Offer, guard_of, offers_to
from streamsched.scheduling.placement import place
from streamsched.scheduling.preemption import Preemption, Shortage, displace, preempt
from streamsched.scheduling.recovery import seat_again
from streamsched.scheduling.reservation import promise, spans_nodes
from streamsched.scheduling.reserves import kept_from
from streamsched.state.disruption import DisruptionBudget
from streamsched.state.recoveries import waits

if TYPE_CHECKING:
    from streamsched.scheduling.draft import DraftPool
    from streamsched.scheduling.memory import Memory
    from streamsched.state.backlog import Backlog, ShapeQueue
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Pool, RunKey
    from streamsched.state.recoveries import Recovering
    from streamsched.state.reservations import Reservation
    from streamsched.state.usage import Budget
    from streamsched.state.workloads import Shape, Workload

_placement = trusted(ProposedPlacement)
_proposal = trusted(RoundProposed)


def decide(state: ClusterState, memory: Memory | None = None) -> RoundProposed | None:
    """Choose what to place, whom to preempt for it, and what to reserve.

    Equal states give equal proposals on any machine, so a decision can be checked years later.

    Args:
        state: The cluster at one cursor, policy included. Not modified.
        memory: What was looked at in vain before, on earlier states of the same history. It spares work and changes
            nothing else.

    Returns:
        The proposal for the open round, each item with its arithmetic; None when there is nothing to do.
    """
    decision = _Decision(state, memory)
    for recovery in state.recoveries.values():
        decision.recover(recovery)
    for reservation in state.reservations.values():
        decision.keep_promise(reservation)
    for backlog, allocated in ((state.allocated, True), (state.unallocated, False)):
        if backlog.size:
            decision.settle(backlog, allocated=allocated)
    if not decision.placements and not decision.reservations:
        return None
    if memory is not None:
        memory.leaves_nothing = not (decision.passed_over or state.reservations or state.recoveries)
    return _proposal(
        round=state.closed_round + 1,
        based_on=state.next_cursor,
        policy_version=state.policy_version,
        placements=tuple(decision.placements),
        reservations=tuple(decision.reservations),
    )


@dataclass(slots=True)
class _Found:
    """Where a gang can sit, and whom that stops."""

    seats: tuple[Seat, ...]
    victims: tuple[Victim, ...] = ()
    over_cap: bool = False


@dataclass(slots=True)
class _Decision:
    """A decision in the making."""

    state: ClusterState
    memory: Memory | None
    draft: Draft = field(init=False)
    placements: list[ProposedPlacement] = field(default_factory=list)
    reservations: list[ProposedReservation] = field(default_factory=list)
    #: Claimants that were seated by their reservation.
    seated: set[str] = field(default_factory=set)
    #: Whether something still waits for which there may be room.
    passed_over: bool = False
    #: When a preemption that came too soon after others may be tried again.
    retries_ms: list[int] = field(default_factory=list)
    #: By how many ranks each way to seat the candidate of this turn failed.
    shortages: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draft = Draft(self.state)

    # --- gangs that have lost nodes ---

    def recover(self, recovery: Recovering) -> None:
        """Seat a gang that has lost nodes where the others of its nodes are; it takes no turn for that."""
        workload = self.state.workloads[recovery.workload]
        if not waits(self.state, workload) or self._is_full(workload):
            return
        if self.memory is not None and self.memory.recovers_in_vain(self.state, workload.id):
            self.passed_over = True
            return
        found = seat_again(self.draft, recovery)
        if found is not None:
            self._give(workload, _Found(*found))
            return
        self.passed_over = True
        if self.memory is not None and not self.placements:
            self.memory.note_recovery(self.state, workload.id)

    # --- reserved work ---

    def keep_promise(self, reservation: Reservation) -> None:
        """Seat a gang on its reserved nodes once everybody there is past protection; ratios are not asked again."""
        state, draft = self.state, self.draft
        workload = state.workloads[reservation.workload]
        pool = state.inventory.pools.get(reservation.pool)
        if pool is None or workload.queue_key is None or self._is_full(workload):
            return
        nodes = draft.reserved(reservation) & pool.working
        drafted = draft.pool(pool)
        size, ranks = workload.gpus_per_rank, workload.ranks
        if drafted.takeable.slots_on(size, nodes) < ranks:
            return
        seats = place(state.policy, drafted, workload, nodes)
        found = _Found(seats) if seats is not None else None
        if found is None and (displaced := displace(state, drafted, workload, nodes)) is not None:
            found = _Found(*displaced)
        if found is None:
            offers = [Offer(leaf, runs, TakeRule.RESERVATION) for leaf, runs in self._on(pool, nodes)]
            preempted = preempt(draft, drafted, workload, nodes, offers, affordable=lambda _: True)
            if isinstance(preempted, Shortage):
                return
            found = _Found(preempted.seats, preempted.victims, preempted.over_cap)
        self.seated.add(workload.id)
        self._give(workload, found)

    def _on(self, pool: Pool, nodes: int) -> list[tuple[Budget, dict[RunKey, Workload]]]:
        """Return the runs past protection on some nodes, by leaf."""
        by_leaf: dict[Budget, dict[RunKey, Workload]] = {}
        for node in self.draft.each(pool, nodes):
            for key in node.unprotected:
                workload = self.state.workloads[key[0]]
                by_leaf.setdefault(workload.budget, {})[key] = workload
        return sorted(by_leaf.items(), key=lambda item: item[0].id)

    # --- the walk ---

    def settle(self, backlog: Backlog, *, allocated: bool) -> None:
        """Serve one class in its order, until nothing more can be done for anybody or the proposal is full."""
        draft = self.draft
        limit = self.state.policy.placements_per_round
        hopeful: dict[Shape, list[ShapeQueue]] = {}
        for shape, queues in backlog.by_shape.items():
            if self._is_hopeful(shape, allocated=allocated):
                open_ones = [queue for queue in queues.values() if self._is_open(queue, allocated=allocated)]
                if open_ones:
                    hopeful[shape] = open_ones
                self.passed_over |= len(open_ones) < len(queues)
        # A queue that is blocked now keeps its turn where another is not: what is given before it may open it.
        if allocated and not any(self._is_worth_a_look(queue) for queues in hopeful.values() for queue in queues):
            self.passed_over |= bool(hopeful)
            return
        turns: Turns | None = None
        while hopeful and len(self.placements) < limit:
            if turns is None:
                turns = Turns(draft, (queue for queues in hopeful.values() for queue in queues), allocated=allocated)
            turn = turns.next()
            if turn is None:
                break
            queue, key = turn
            workload = self.state.workloads[key[3]]
            is_idle = (
                workload.id in self.seated
                or self._is_full(workload)
                or (allocated and self.memory is not None and self.memory.still_blocks(draft, workload))
            )
            found = None if is_idle else self._seat(workload, queue.shape)
            if found is not None:
                self._give(workload, found)
                taken = draft.taken[queue] = draft.taken.get(queue, 0) + 1
            else:
                self.passed_over = True
                if not allocated and not is_idle:
                    # There are GPUs enough, but no domain, or none that is not reserved: so it is for all of its shape.
                    del hopeful[queue.shape]
                    turns = None
                    continue
                taken = draft.taken[queue] = queue.next_order(draft.taken.get(queue, 0))
            if taken == len(queue.entries):
                hopeful[queue.shape].remove(queue)
                turns.drop(queue)
            if found is not None:
                still = {
                    shape: queues
                    for shape, queues in hopeful.items()
                    if queues and self._is_hopeful(shape, allocated=allocated)
                }
                if len(still) < len(hopeful) or (found.victims and self.state.policy.usage is UsageMode.INSTANT):
                    hopeful, turns = still, None  # Victims that hold less stand otherwise, too.
        self.passed_over |= bool(hopeful)

    def _is_full(self, workload: Workload) -> bool:
        """Whether its leaf or one above it has as many GPUs as it may at a time, or has too few left for it.

        What was passed over for that is not remembered: it costs no look, and may change with anything that ends.
        """
        return self.draft.is_full(workload.budget, workload.gpus, allocated=workload.is_allocated)

    def _is_open(self, queue: ShapeQueue, *, allocated: bool) -> bool:
        """Whether the budget of a queue lets it take a turn."""
        _, gpus_per_rank, ranks, _, _ = queue.shape
        if self.draft.is_full(queue.leaf, gpus_per_rank * ranks, allocated=allocated):
            return False
        return not allocated or queue.leaf.quota_nano > 0

    def _is_worth_a_look(self, queue: ShapeQueue) -> bool:
        """Whether a queue has a candidate at which a look may not be in vain, as things stand."""
        if self.memory is None:
            return True
        position, entries = 0, queue.entries
        while position < len(entries):
            if not self.memory.still_blocks(self.draft, self.state.workloads[entries[position][3]]):
                return True
            position = queue.next_order(position)
        return False

    def _give(self, workload: Workload, found: _Found) -> None:
        self.placements.append(
            _placement(
                workload=workload.id,
                attempt=workload.attempt + 1,
                seats=found.seats,
                victims=found.victims,
                shares=share_lines(self.draft, workload.budget, allocated=workload.is_allocated),
                over_cap=found.over_cap,
            )
        )
        self.draft.place(workload.budget, workload.gpus, allocated=workload.is_allocated)
        if workload.is_allocated:
            rate = self.state.policy.rate_of(self.state.nodes[found.seats[0].node].pool)
            self.draft.commit(workload.budget, workload.gpus * rate * workload.effective_min_ms)
            self.draft.give(workload.budget, workload.gpus * rate)
        if self.state.policy.usage is UsageMode.INSTANT:
            for victim in found.victims:
                stopped = self.state.workloads[victim.workload]
                if stopped.is_allocated and stopped.run is not None:
                    self.draft.give(stopped.budget, -stopped.run.units)

    def _is_hopeful(self, shape: Shape, *, allocated: bool) -> bool:
        """Whether something may be done for a shape: it fits where work past its protection can be made to go.

        Exact for unallocated work. For gangs that need several nodes, a reservation may be possible in any case.
        """
        wanted, gpus_per_rank, ranks, _, _ = shape
        draft = self.draft
        may_reserve = allocated and self._may_reserve()
        for pool in self.state.inventory.candidates(wanted):
            if may_reserve and spans_nodes(pool, ranks, gpus_per_rank):
                return True
            source = draft.pools.get(pool.id, pool)
            room = source.takeable if allocated else source.free
            if room.slots(gpus_per_rank) < ranks:
                continue
            # A claimant may use the nodes that are reserved for it, so with reservations this is only a first look.
            if allocated and self.state.reservations:
                return True
            if room.slots_on(gpus_per_rank, draft.nodes_for(pool, shape, allocated=allocated)) >= ranks:
                return True
        return False

    def _may_reserve(self) -> bool:
        return len(self.state.reservations) + len(self.reservations) < self.state.policy.reservations

    def _seat(self, workload: Workload, shape: Shape) -> _Found | None:
        """Seat a gang on the first pool where it can be done with the least harm; else, perhaps, reserve for it."""
        wanted, gpus_per_rank, ranks, _, _ = shape
        state, draft, allocated = self.state, self.draft, workload.is_allocated
        pools = [
            (draft.pool(pool), draft.nodes_for(pool, shape, allocated=allocated, claimant=workload.id))
            for pool in state.inventory.candidates(wanted)
        ]
        if state.policy.domain_reserves:
            pools = [(pool, nodes & ~kept_from(state.policy, pool, workload)) for pool, nodes in pools]
        for pool, nodes in pools:
            seats = place(state.policy, pool, workload, nodes)
            if seats is not None:
                return _Found(seats)
        if not allocated:
            return None
        for pool, nodes in pools:
            displaced = displace(state, pool, workload, nodes)
            if displaced is not None:
                return _Found(*displaced)
        self.shortages.clear()
        if self.memory is not None:
            self.memory.looks += 1
        waited_ms = draft.now_ms - workload.queued_ms
        patience_ms = 0 if is_short(shape, state.policy) else state.policy.patience_ms
        reserves = workload.id not in state.reservations and any(
            spans_nodes(pool.pool, ranks, gpus_per_rank) for pool, _ in pools
        )
        is_patient = waited_ms >= patience_ms
        if is_patient:
            for pool, nodes in pools:
                found = self._preempt(workload, pool, nodes)
                if found is not None:
                    return found
            for pool, nodes in pools if state.policy.consolidation else ():
                found = self._consolidate(workload, pool, nodes)
                if found is not None:
                    return found
        asks = reserves and waited_ms >= state.policy.reserve_after_ms and self._may_reserve()
        if asks and any(self._reserve(workload, pool, nodes) for pool, nodes in pools):
            return None
        if self.memory is not None and not self.placements and not self.reservations:
            self.memory.note(
                draft,
                workload,
                until_ms=self._waits_until(workload, patience_ms, reserves=reserves),
                guard_gpu_ms=self._guard(workload, pools) if is_patient or asks else None,
                helped_by_any=asks or state.policy.consolidation,
                missing=1 if state.policy.consolidation else min(self.shortages, default=0),
            )
        return None

    def _guard(self, workload: Workload, pools: list[tuple[DraftPool, int]]) -> int:
        """Return the guard where it asks for least."""
        rates = [pool.pool.rate for pool, _ in pools]
        return guard_of(self.draft, workload, min(rates, default=1))

    def _waits_until(self, workload: Workload, patience_ms: int, *, reserves: bool) -> int | None:
        """Return when the wait of a candidate lets something be tried that was not; None for never."""
        policy, now_ms = self.state.policy, self.draft.now_ms
        moments = [workload.queued_ms + patience_ms]
        if reserves and self._may_reserve():
            moments.append(workload.queued_ms + policy.reserve_after_ms)
        moments.extend(self.retries_ms)
        self.retries_ms.clear()
        return min((moment for moment in moments if moment > now_ms), default=None)

    def _preempt(self, workload: Workload, pool: DraftPool, nodes: int) -> _Found | None:
        state, draft = self.state, self.draft
        size, ranks = workload.gpus_per_rank, workload.ranks
        if not state.unprotected or pool.takeable.slots_on(size, nodes) < ranks:
            self.shortages.append(ranks - pool.takeable.slots_on(size, nodes))
            return None
        offers = offers_to(draft, workload, guard_of(draft, workload, pool.pool.rate))
        if not offers:
            self.shortages.append(ranks - pool.reclaimable.slots_on(size, nodes))
            return None
        preempted = preempt(draft, pool, workload, nodes, offers, affordable=partial(self._is_affordable, pool.pool))
        if isinstance(preempted, Shortage):
            self.shortages.append(preempted.ranks)
            return None
        return self._spent(pool.pool, preempted)

    def _consolidate(self, workload: Workload, pool: DraftPool, nodes: int) -> _Found | None:
        affordable = partial(self._is_affordable, pool.pool)
        moved = consolidate(self.draft, pool, workload, nodes, affordable=affordable)
        return None if moved is None else self._spent(pool.pool, moved)

    def _is_affordable(self, pool: Pool, gpus: int) -> bool:
        """Whether so many more allocated GPUs of a pool may be disturbed now; if not, it is noted when they may."""
        state, now_ms = self.state, self.draft.now_ms
        bucket = state.disruption.get(pool.id) or DisruptionBudget()
        gpus += self.draft.preempted.get(pool.id, 0)
        if bucket.allows(gpus, pool.installed_gpus, state.policy, now_ms):
            return True
        allowed_ms = bucket.allowed_from_ms(gpus, pool.installed_gpus, state.policy, now_ms)
        if allowed_ms is not None:
            self.retries_ms.append(allowed_ms)
        return False

    def _spent(self, pool: Pool, found: Preemption) -> _Found:
        preempted = self.draft.preempted
        preempted[pool.id] = preempted.get(pool.id, 0) + found.allocated_gpus
        return _Found(found.seats, found.victims, found.over_cap)

    def _reserve(self, workload: Workload, pool: DraftPool, nodes: int) -> bool:
        """Reserve nodes for a gang that needs several, if enough of them can be had at all."""
        draft = self.draft
        if not spans_nodes(pool.pool, workload.ranks, workload.gpus_per_rank):
            return False
        for kept in draft.kept.get(pool.pool.id, ()):
            nodes &= ~kept
        nodes &= ~self._promised(pool.pool)
        promised = promise(draft, pool.pool, workload, nodes)
        if isinstance(promised, Shortage):
            self.shortages.append(promised.ranks)
            return False
        mask = 0
        for id_ in promised.nodes:
            mask |= 1 << self.state.nodes[id_].index
        draft.keep(pool.pool, mask)
        self.reservations.append(
            ProposedReservation(
                workload=workload.id,
                pool=pool.pool.id,
                nodes=promised.nodes,
                start_ms=promised.start_ms,
                evicted_gpus=promised.evicted_gpus,
                shares=share_lines(draft, workload.budget, allocated=True),
            )
        )
        return True

    def _promised(self, pool: Pool) -> int:
        """Return the nodes of a pool that are promised to somebody, as bits."""
        nodes = 0
        for reservation in self.state.reservations.values():
            if reservation.pool == pool.id:
                nodes |= self.draft.reserved(reservation)
        return nodes
