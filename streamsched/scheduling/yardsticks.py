"""The schedulers that everybody knows, to measure others by: first in, first out; the same with skipping; and EASY.

All three take one queue for all teams, in the order in which work came to it; what is requeued comes anew. There are no
turns, no priorities, no preemption, no reservations on the ledger and no room kept for short work, and what a gang asks
of the topology is not looked at. What the fold insists on stays: allocated work needs a budget with a quota, and limits
of GPUs at a time hold; whoever they stop stands aside and blocks nobody.

- `fifo`: the first of the queue starts as soon as it fits. Until then nobody does.
- `fifo_skip`: each in its turn starts if it fits. Nothing is kept for those that do not.
- `easy_backfill`: the first that does not fit is promised the GPUs that are free soonest, by what is declared of the
  runs that hold them. Each of the others in its turn starts if it fits now and keeps nobody from that promise: it is
  declared to end before, or it takes GPUs that are not promised. The promise is made anew in each decision.

**What is declared of a run** is its timeout; without one, its min runtime; and without either, the policy's shortest
min runtime. True run times are nobody's knowledge. A run that goes on for longer than declared is taken to last twice
as long, and twice that if it must be.

A gang that fits on one node takes the node where it leaves the least, a larger one the emptiest nodes, as elsewhere. A
cluster as one pool of GPUs is one whose gangs have ranks of one GPU.

Source: D. G. Feitelson and A. Mu'alem Weil, "Utilization and Predictability in Scheduling the IBM SP2 with
Backfilling", IPPS 1998, for EASY; D. Tsafrir et al., "Backfilling Using System-Generated Predictions", IEEE TPDS 2007,
for the correction of what was declared too short.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING

from sortedcontainers import SortedList

from streamsched.model.events import ProposedPlacement, RoundProposed
from streamsched.scheduling.placement import lowest_bits, seats_of
from streamsched.state.inventory import MAX_GPUS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from streamsched.model.policy import Policy
    from streamsched.scheduling.memory import Memory
    from streamsched.scheduling.placement import Share
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Node, Pool, Room, RunKey
    from streamsched.state.usage import Budget
    from streamsched.state.workloads import Run, Workload

#: One that waits: when it came to the queue, and its id.
Entry = tuple[int, str]
#: Pool (or None for any), GPUs per rank, ranks, declared length in milliseconds: those of one kind fare alike.
Kind = tuple[str | None, int, int, int]
#: All nodes of a pool, as bits.
_ALL = -1


def fifo(state: ClusterState, memory: Memory | None = None) -> RoundProposed | None:
    """Place from the head of the queue until one does not fit. The contract of `scheduling.decision.decide`."""
    draft = _Draft(state, memory)
    draft.place_in_order()
    return draft.proposal()


def fifo_skip(state: ClusterState, memory: Memory | None = None) -> RoundProposed | None:
    """Place all that fits, in the order of the queue. The contract of `scheduling.decision.decide`."""
    draft = _Draft(state, memory)
    hopeless: set[Kind] = set()
    for kind, workload in draft.in_turn(hopeless):
        if draft.is_full:
            break
        pool = draft.pool_for(kind)
        if pool is None:
            hopeless.add(kind)
        else:
            draft.give(workload, draft.take(pool, draft.room(pool), kind))
    return draft.proposal()


def easy_backfill(state: ClusterState, memory: Memory | None = None) -> RoundProposed | None:
    """Place from the head of the queue, promise the first that does not fit a time, and fill up around that.

    The contract of `scheduling.decision.decide`.
    """
    draft = _Draft(state, memory)
    blocked = draft.place_in_order()
    if blocked is None:
        return draft.proposal()
    hopeless: set[Kind] = set()
    promise: _Promise | None = None
    for kind, workload in draft.in_turn(hopeless):
        if draft.is_full:
            break
        if workload is blocked:
            continue
        if promise is None:
            promise = _Promise(draft, blocked)
        shares = promise.take_beside(kind)
        if shares is None:
            hopeless.add(kind)
        else:
            draft.give(workload, shares)
    return draft.proposal()


def declared_ms(workload: Workload, policy: Policy) -> int:
    """Return how long a run of it is said to last, in milliseconds: see the head of this module."""
    if workload.timeout_ms is not None:
        return workload.timeout_ms
    return workload.min_runtime_ms or policy.min_runtime_floor_ms


def expected_end_ms(workload: Workload, run: Run, state: ClusterState) -> int:
    """Return when a run is taken to end: as declared from its start, or twice as long where it has gone on for longer.

    One that has not started yet counts from now. The end is always later than now.
    """
    started_ms = state.now_ms if run.started_ms is None else run.started_ms
    declared = declared_ms(workload, state.policy)
    lasted = (state.now_ms - started_ms) // declared
    return started_ms + (declared << lasted.bit_length())


class WaitingLine:
    """All that waits, in the order in which it came, kept from one decision to the next.

    It spares the walk through the backlog and changes no decision: with a new one each would be the same.
    """

    __slots__ = ("_additions", "_kind_of", "_looked_ms", "_perhaps_gone", "_policy_version", "ends", "entries", "kinds")

    def __init__(self) -> None:
        self.entries: SortedList[Entry] = SortedList()
        self.kinds: dict[Kind, SortedList[Entry]] = {}
        #: When runs are expected to end, as far as that was asked. It holds until then.
        self.ends: dict[RunKey, int] = {}
        self._kind_of: dict[Entry, Kind] = {}
        self._perhaps_gone: list[Entry] = []
        #: Of which state this is: how often something had been filed, under which policy, and when.
        self._additions = 0
        self._policy_version = -1
        self._looked_ms = -1

    def catch_up(self, state: ClusterState) -> None:
        """Take in what has come since the last decision, and let go of what was placed."""
        for entry in self._perhaps_gone:
            if waiting(state, entry) is None:
                self._remove(entry)
        self._perhaps_gone.clear()
        additions = state.allocated.additions + state.unallocated.additions
        if additions != self._additions or state.policy_version != self._policy_version:
            came = self._latest(state)
            # Each has been filed once since, at least. If that is as often as anything was, nothing else was.
            if len(came) != additions - self._additions or state.policy_version != self._policy_version:
                came = self._all(state)
                self.ends.clear()
            for entry in came:
                workload = state.workloads[entry[1]]
                length = declared_ms(workload, state.policy)
                kind = (workload.pool, workload.gpus_per_rank, workload.ranks, length)
                self._kind_of[entry] = kind
                self.entries.add(entry)
                of_kind = self.kinds.get(kind)
                if of_kind is None:
                    of_kind = self.kinds[kind] = SortedList()
                of_kind.add(entry)
            self._additions, self._policy_version = additions, state.policy_version
        self._looked_ms = state.now_ms

    def kind_of(self, entry: Entry) -> Kind:
        """Return the kind of one that waits."""
        return self._kind_of[entry]

    def leave(self, entry: Entry) -> None:
        """Note that one may have gone. It is let go when the state says so too."""
        self._perhaps_gone.append(entry)

    def _latest(self, state: ClusterState) -> list[Entry]:
        """Return what waits and was submitted since the last decision: who came last is last among the workloads."""
        came: list[Entry] = []
        for workload in reversed(state.workloads.values()):
            if workload.submitted_ms < self._looked_ms:
                break
            entry = (workload.queued_ms, workload.id)
            if workload.queue_key is not None and entry not in self._kind_of:
                came.append(entry)
        return came

    def _all(self, state: ClusterState) -> list[Entry]:
        """Forget what is known, and return all that waits."""
        self.entries.clear()
        self.kinds.clear()
        self._kind_of.clear()
        return [
            key[2:]
            for backlog in (state.allocated, state.unallocated)
            for queues in backlog.by_shape.values()
            for queue in queues.values()
            for key in queue.entries
        ]

    def _remove(self, entry: Entry) -> None:
        kind = self._kind_of.pop(entry, None)
        if kind is not None:
            self.entries.remove(entry)
            of_kind = self.kinds[kind]
            of_kind.remove(entry)
            if not of_kind:
                del self.kinds[kind]


def waiting(state: ClusterState, entry: Entry) -> Workload | None:
    """Return the workload of an entry, if it still waits as it did when it was entered."""
    workload = state.workloads.get(entry[1])
    if workload is None or workload.queue_key is None or workload.queue_key[2] != entry[0]:
        return None
    return workload


class _Draft:
    """A decision in the making: what it has given away, laid over a state that it only reads."""

    def __init__(self, state: ClusterState, memory: Memory | None) -> None:
        self.state = state
        self.line = WaitingLine() if memory is None else memory.line
        self.line.catch_up(state)
        #: What it has given away, each with its nodes and GPUs.
        self.given: list[tuple[Workload, list[Share]]] = []
        #: What is free, of pools that were touched, and the GPUs that are free, of nodes that were.
        self._rooms: dict[str, Room] = {}
        self._free_masks: dict[str, int] = {}
        #: GPUs that it places, by class (allocated or not) and budget: what counts against limits of GPUs at a time.
        self._placed: dict[bool, dict[Budget, int]] = {True: {}, False: {}}

    @property
    def is_full(self) -> bool:
        """Whether it is as large as a proposal may be."""
        return len(self.given) >= self.state.policy.placements_per_round

    def proposal(self) -> RoundProposed | None:
        """Return what was given away as a proposal; None when that is nothing."""
        if not self.given:
            return None
        return RoundProposed(
            round=self.state.closed_round + 1,
            based_on=self.state.next_cursor,
            policy_version=self.state.policy_version,
            placements=tuple(
                ProposedPlacement(
                    workload=workload.id,
                    attempt=workload.attempt + 1,
                    seats=seats_of(shares, workload.gpus_per_rank),
                    shares=(),
                )
                for workload, shares in self.given
            ),
        )

    # --- the queue ---

    def place_in_order(self) -> Workload | None:
        """Place from the head of the queue; return the first that does not fit, or None when all have been placed."""
        for entry, workload in self._open(self.line.entries):
            if self.is_full:
                return None
            if self._is_at_limit(workload):
                continue
            kind = self.line.kind_of(entry)
            pool = self.pool_for(kind)
            if pool is None:
                return workload
            self.give(workload, self.take(pool, self.room(pool), kind))
        return None

    def in_turn(self, hopeless: set[Kind]) -> Iterator[tuple[Kind, Workload]]:
        """Yield what waits, in its order, of the kinds that fit as the decision stands now.

        Args:
            hopeless: Nothing more of these kinds is yielded; the caller adds to it.
        """
        firsts: list[tuple[Entry, int]] = []
        known: list[tuple[Kind, Iterator[tuple[Entry, Workload]], Workload]] = []
        room: dict[tuple[str | None, int, int], bool] = {}
        for kind, entries in self.line.kinds.items():
            gang = kind[:3]
            if gang not in room:
                room[gang] = self.pool_for(kind) is not None
            if room[gang]:
                rest = self._open(entries)
                first = next(rest, None)
                if first is not None:
                    firsts.append((first[0], len(known)))
                    known.append((kind, rest, first[1]))
        heapify(firsts)
        while firsts:
            number = firsts[0][1]
            kind, rest, workload = known[number]
            if not self._is_at_limit(workload):
                yield kind, workload
            following = None if kind in hopeless else next(rest, None)
            if following is None:
                heappop(firsts)
            else:
                known[number] = (kind, rest, following[1])
                heapreplace(firsts, (following[0], number))

    def _open(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Workload]]:
        """Yield those that wait and were not given anything yet, except allocated work without a quota."""
        given = {workload.id for workload, _ in self.given}
        for entry in entries:
            workload = waiting(self.state, entry)
            if workload is None:
                self.line.leave(entry)
                continue
            if workload.id not in given and (workload.budget.quota_nano or not workload.is_allocated):
                yield entry, workload

    def _is_at_limit(self, workload: Workload) -> bool:
        """Whether its leaf or one above it would have more GPUs at a time than it may."""
        allocated = workload.is_allocated
        return workload.budget.full_for(workload.gpus, self._placed[allocated], allocated=allocated) is not None

    # --- the nodes ---

    def room(self, pool: Pool) -> Room:
        """Return what is left free of a pool."""
        return self._rooms.get(pool.id, pool.free)

    def free_mask(self, node: Node) -> int:
        """Return the GPUs that are left free of a node."""
        return self._free_masks.get(node.id, node.free_mask)

    def free_by_node(self, pool: Pool) -> list[int]:
        """Return how many GPUs are left free of each node of a pool that takes work, and 0 of the others."""
        free = [node.filed_free for node in pool.nodes]
        for id_, mask in self._free_masks.items():
            node = self.state.nodes[id_]
            if node.home == pool.id:
                free[node.index] = mask.bit_count()
        return free

    def pool_for(self, kind: Kind) -> Pool | None:
        """Return the first pool in which a gang fits now; None where it fits nowhere."""
        wanted, size, ranks, _ = kind
        for pool in self.state.inventory.candidates(wanted):
            if self.room(pool).slots(size) >= ranks:
                return pool
        return None

    def take(self, pool: Pool, room: Room, kind: Kind) -> list[Share]:
        """Take GPUs of a pool for a gang that fits in a room: what is free there, or a part of it."""
        _, size, left, _ = kind
        if pool.id not in self._rooms:
            copied = self._rooms[pool.id] = pool.free.copy()
            room = copied if room is pool.free else room
        free = self._rooms[pool.id]
        shares: list[Share] = []
        while left:
            offered = room.tightest(left * size, _ALL) if left * size <= MAX_GPUS else -1
            if offered < 0:
                offered = next(gpus for gpus in range(MAX_GPUS, 0, -1) if room.nodes[gpus])
            node = pool.nodes[room.first(offered, _ALL)]
            here = min(left, offered // size)
            before = self.free_mask(node)
            mask = lowest_bits(before, here * size)
            self._free_masks[node.id] = before & ~mask
            free.move(node.index, before.bit_count(), before.bit_count() - here * size)
            if room is not free:
                room.move(node.index, offered, offered - here * size)
            shares.append((node, mask))
            left -= here
        return shares

    def give(self, workload: Workload, shares: list[Share]) -> None:
        """Place a workload on what was taken for it."""
        self.given.append((workload, shares))
        placed = self._placed[workload.is_allocated]
        for budget in workload.budget.path:
            placed[budget] = placed.get(budget, 0) + workload.gpus
        self.line.leave((workload.queued_ms, workload.id))


class _Promise:
    """When and where the first that is blocked can start at the latest, by what is declared of the runs."""

    def __init__(self, draft: _Draft, workload: Workload) -> None:
        self._draft = draft
        self.pool: Pool | None = None
        #: When; None where no declared end makes room for it.
        self.start_ms: int | None = None
        #: Of the promised pool at that time, by node: GPUs that are left beside the promise.
        self._spare: list[int] = []
        #: What is free of the pool now and may be held for longer than that.
        self._beside: Room | None = None
        for pool in draft.state.inventory.candidates(workload.pool):
            found = self._soonest(pool, workload)
            if found is not None and (self.start_ms is None or found[0] < self.start_ms):
                self.pool = pool
                self.start_ms, self._spare = found
        if self.pool is not None:
            self._beside = self._promised(self.pool, workload)

    def take_beside(self, kind: Kind) -> list[Share] | None:
        """Take GPUs for a gang that leaves the promise as it is; None where there are none."""
        wanted, size, ranks, length = kind
        draft = self._draft
        is_longer = self.start_ms is not None and draft.state.now_ms + length > self.start_ms
        for pool in draft.state.inventory.candidates(wanted):
            beside = self._beside if pool is self.pool else None
            room = draft.room(pool) if beside is None or not is_longer else beside
            if room.slots(size) < ranks:
                continue
            shares = draft.take(pool, room, kind)
            if beside is not None:
                for node, mask in shares:
                    free = draft.free_mask(node).bit_count()
                    before = min(free + mask.bit_count(), self._spare[node.index])
                    if is_longer:
                        self._spare[node.index] -= mask.bit_count()
                    else:
                        beside.move(node.index, before, min(free, self._spare[node.index]))
            return shares
        return None

    def _soonest(self, pool: Pool, workload: Workload) -> tuple[int, list[int]] | None:
        """Return when a gang fits in a pool, and how many GPUs of each node are free then; None for never."""
        draft, state = self._draft, self._draft.state
        size, ranks = workload.gpus_per_rank, workload.ranks
        free = draft.free_by_node(pool)
        slots = draft.room(pool).slots(size)
        ends: list[tuple[int, int, int]] = []
        known, draft.line.ends = draft.line.ends, {}
        for node in pool.nodes:
            if not node.filed_healthy:
                continue
            for key, mask in node.held.items():
                end_ms = known.get(key, 0)
                if end_ms <= state.now_ms:
                    holder = state.workloads[key[0]]
                    if holder.run is None:
                        raise AssertionError(f"{holder.id} holds GPUs and has no run")
                    end_ms = expected_end_ms(holder, holder.run, state)
                    known[key] = end_ms if holder.run.started_ms is not None else 0
                draft.line.ends[key] = known[key]
                ends.append((end_ms, node.index, mask.bit_count()))
        for given, shares in draft.given:
            end_ms = state.now_ms + declared_ms(given, state.policy)
            ends += [(end_ms, node.index, mask.bit_count()) for node, mask in shares if node.home == pool.id]
        heapify(ends)
        start_ms: int | None = None
        while ends and (slots < ranks or ends[0][0] == start_ms):
            start_ms, index, gpus = heappop(ends)
            slots += (free[index] + gpus) // size - free[index] // size
            free[index] += gpus
        return (start_ms, free) if start_ms is not None and slots >= ranks else None

    def _promised(self, pool: Pool, workload: Workload) -> Room:
        """Seat the gang at its time, on GPUs that are not free now where that can be, and return what is left now."""
        size, left, spare = workload.gpus_per_rank, workload.ranks, self._spare
        free = self._draft.free_by_node(pool)
        for index, now in enumerate(free):
            ranks = min(left, (spare[index] - now) // size)
            spare[index] -= ranks * size
            left -= ranks
        for index in sorted(range(len(free)), key=free.__getitem__):
            ranks = min(left, spare[index] // size)
            spare[index] -= ranks * size
            left -= ranks
        room = self._draft.room(pool).copy()
        for index, now in enumerate(free):
            if spare[index] < now:
                room.move(index, now, spare[index])
        return room
