"""The old priority scheduler: what fair share replaces, kept to compare with. A second function of the same kind.

One queue for all teams: larger priority first, then requeued work, then age. What fits is started, wherever it stands
in the queue; what does not fit waits, and nothing is kept for it. Within its team's limit a run is preempted by nobody
until it ends, beyond it by any work of higher priority; unallocated runs by any allocated work. There are no budgets
of GPU-time, so nobody's past counts. See `streamsched.state.limits` for the limits.

A claimant takes free GPUs, or else the lowest priorities that do: unallocated work, then one priority after the other.
There it takes the nodes where it stops the fewest GPUs, and in the end every victim is put back that it can do without.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING

from streamsched.model.events import Comparison, ProposedPlacement, RoundProposed, Seat, TakeRule, Victim
from streamsched.scheduling.placement import Share, lowest_bits, seats_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamsched.state.backlog import Backlog, ShapeQueue
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Node, Pool, RunKey
    from streamsched.state.usage import Budget
    from streamsched.state.workloads import QueueKey, Run, Workload

#: Which runs may be stopped: none, unallocated ones, or also allocated ones below a priority.
_Below = int | None
_NOBODY: _Below = None
#: No priority is so low: unallocated work only.
_UNALLOCATED = -(2**31)


def decide(state: ClusterState) -> RoundProposed | None:
    """Choose what to place, and what to preempt for it, by priority.

    The same contract as `streamsched.scheduling.decision.decide`.
    """
    draft = _Draft(state)
    placements: list[ProposedPlacement] = []
    for backlog, allocated in ((state.allocated, True), (state.unallocated, False)):
        if backlog.size:
            _settle(draft, backlog, placements, allocated=allocated)
    if not placements:
        return None
    return RoundProposed(
        round=state.closed_round + 1,
        based_on=state.next_cursor,
        policy_version=state.policy_version,
        placements=tuple(placements),
    )


def _settle(draft: _Draft, backlog: Backlog, placements: list[ProposedPlacement], *, allocated: bool) -> None:
    """Place what fits of one class, in the order of the one queue, until the proposal is full."""
    queues = [
        queue
        for by_leaf in backlog.by_shape.values()
        for queue in by_leaf.values()
        if (not allocated or queue.leaf.quota_nano) and draft.may_fit(queue, displacing=allocated)
    ]
    heads: list[tuple[QueueKey, int, int]] = [(queue.entries[0], number, 0) for number, queue in enumerate(queues)]
    heapify(heads)
    hopeless: set[tuple[str | None, int, int]] = set()
    #: GPUs that this decision places, for the limits of GPUs at a time.
    placed: dict[Budget, int] = {}
    while heads and len(placements) < draft.state.policy.placements_per_round:
        key, number, position = heads[0]
        queue = queues[number]
        # What found no room leaves none for the same gang at the same or a lower priority, and those come later.
        gang = queue.shape[:3]
        workload = draft.state.workloads[key[3]]
        if workload.budget.full_for(workload.gpus, placed, allocated=allocated) is not None:
            heappop(heads)  # As are those behind it: they are of the same leaf and size.
            continue
        found = None if gang in hopeless else draft.seat(workload, displacing=allocated)
        if found is None:
            hopeless.add(gang)
            heappop(heads)
            continue
        for budget in workload.budget.path:
            placed[budget] = placed.get(budget, 0) + workload.gpus
        seats, victims = found
        placements.append(
            ProposedPlacement(
                workload=workload.id, attempt=workload.attempt + 1, seats=seats, victims=victims, shares=()
            )
        )
        if position + 1 < len(queue.entries):
            heapreplace(heads, (queue.entries[position + 1], number, position + 1))
        else:
            heappop(heads)


class _Draft:
    """What a decision has given away so far: free GPUs, and runs that it stops."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        #: The free GPUs of the nodes that were touched.
        self.free: dict[str, int] = {}
        self.stopped: set[RunKey] = set()
        #: The priorities of allocated runs that may be stopped, lowest first.
        self.priorities = sorted(
            {workload.priority for runs in state.unprotected.values() for workload in runs.values()}
        )
        #: By pool and by who may be stopped: how many GPUs each node offers, in order of their places.
        self._offers: dict[tuple[str, _Below], list[tuple[int, Node]]] = {}

    def may_fit(self, queue: ShapeQueue, *, displacing: bool) -> bool:
        """Whether it is worth a look: what fails this fits nowhere, whatever the priorities."""
        wanted, gpus_per_rank, ranks, _, _ = queue.shape
        return any(
            (pool.takeable if displacing else pool.free).slots(gpus_per_rank) >= ranks
            for pool in self.state.inventory.candidates(wanted)
        )

    def seat(self, workload: Workload, *, displacing: bool) -> tuple[tuple[Seat, ...], tuple[Victim, ...]] | None:
        """Seat a gang and take what it needs; None when it fits nowhere."""
        pools = self.state.inventory.candidates(workload.pool)
        size, ranks = workload.gpus_per_rank, workload.ranks
        for below in self._thresholds(workload, displacing=displacing):
            for pool in pools:
                # A draft only takes away, so what the whole pool cannot hold needs no closer look.
                room = pool.free if below is None else pool.reclaimable if below == _UNALLOCATED else pool.takeable
                if room.slots(size) < ranks:
                    continue
                offers = self._offers_of(pool, below)
                if sum(gpus // size for gpus, _ in offers) >= ranks:
                    return self._take(workload, pool, offers, below)
        return None

    def _thresholds(self, workload: Workload, *, displacing: bool) -> Iterator[_Below]:
        yield _NOBODY
        if displacing:
            yield _UNALLOCATED
            lower = [priority for priority in self.priorities if priority < workload.priority]
            # A threshold takes what is below it: the last one is the claimant's own priority.
            yield from [*lower[1:], workload.priority][: len(lower)]

    def _offers_of(self, pool: Pool, below: _Below) -> list[tuple[int, Node]]:
        known = self._offers.get((pool.id, below))
        if known is None:
            known = self._offers[pool.id, below] = [
                (self._mask(node, below).bit_count() if node.takes_work else 0, node) for node in pool.nodes
            ]
        return known

    def _mask(self, node: Node, below: _Below) -> int:
        mask = self.free.get(node.id, node.free_mask)
        for key in self._victims_on(node, below):
            mask |= node.held[key]
        return mask

    def _victims_on(self, node: Node, below: _Below) -> list[RunKey]:
        """Return the runs of a node that may be stopped: unallocated ones, then lower priority, then youngest."""
        if below is None or not (node.preemptible or node.unprotected):
            return []
        workloads = self.state.workloads
        keys = sorted(key for key in node.preemptible if key not in self.stopped)
        if node.unprotected:
            allocated = [
                key
                for key in sorted(node.unprotected)
                if key not in self.stopped and workloads[key[0]].priority < below
            ]
            allocated.sort(key=lambda key: (workloads[key[0]].priority, -(_run(workloads[key[0]]).started_ms or 0)))
            keys += allocated
        return keys

    def _take(
        self, workload: Workload, pool: Pool, offers: list[tuple[int, Node]], below: _Below
    ) -> tuple[tuple[Seat, ...], tuple[Victim, ...]]:
        """Choose nodes and victims for a gang that fits on these offers."""
        size = workload.gpus_per_rank
        needs = self._nodes_for(workload, offers)
        victims: list[RunKey] = []
        freed: dict[str, int] = {}

        def free_on(node: Node) -> int:
            return self.free.get(node.id, node.free_mask) | freed.get(node.id, 0)

        for node, ranks in needs:
            for key in self._victims_on(node, below):
                if free_on(node).bit_count() >= ranks * size:
                    break
                if key not in victims:
                    victims.append(key)
                    self._free(freed, key, 1)
        for key in victims[:]:
            self._free(freed, key, 0)
            if all(free_on(node).bit_count() >= ranks * size for node, ranks in needs):
                victims.remove(key)
            else:
                self._free(freed, key, 1)

        shares: list[Share] = [(node, lowest_bits(free_on(node), ranks * size)) for node, ranks in needs]
        self.stopped.update(victims)
        for node, mask in shares:
            self.free[node.id] = self.free.get(node.id, node.free_mask) & ~mask
        touched = {node.index: node for node in (self.state.nodes[id_] for id_ in freed)}
        touched.update((node.index, node) for node, _ in shares)
        for (pool_id, threshold), known in self._offers.items():
            if pool_id == pool.id:
                for index, node in touched.items():
                    known[index] = (self._mask(node, threshold).bit_count() if node.takes_work else 0, node)
        return seats_of(shares, size), tuple(self._victim(workload, key) for key in victims)

    def _nodes_for(self, workload: Workload, offers: list[tuple[int, Node]]) -> list[tuple[Node, int]]:
        """Return nodes and how many ranks each takes: where the fewest GPUs are stopped; a single node the tightest."""
        size = workload.gpus_per_rank
        whole = [(gpus, node) for gpus, node in offers if gpus // size >= workload.ranks]

        def stopped(node: Node, ranks: int) -> int:
            return max(0, ranks * size - self.free.get(node.id, node.free_mask).bit_count())

        if whole:
            _, node = min(whole, key=lambda offer: (stopped(offer[1], workload.ranks), offer[0], offer[1].index))
            return [(node, workload.ranks)]
        ranked = sorted(
            ((gpus // size, node) for gpus, node in offers if gpus >= size),
            key=lambda offer: (stopped(offer[1], offer[0]), -offer[0], offer[1].index),
        )
        needs: list[tuple[Node, int]] = []
        left = workload.ranks
        for ranks, node in ranked:
            needs.append((node, min(ranks, left)))
            left -= needs[-1][1]
            if not left:
                break
        return needs

    def _free(self, freed: dict[str, int], key: RunKey, there: int) -> None:
        """Count the GPUs of a run as freed, or (0) as held after all."""
        for node, mask in _run(self.state.workloads[key[0]]).held.items():
            before = freed.get(node, 0)
            freed[node] = before | mask if there else before & ~mask

    def _victim(self, claimant: Workload, key: RunKey) -> Victim:
        other = self.state.workloads[key[0]]
        if not other.is_allocated:
            return Victim(workload=key[0], attempt=key[1])
        now = self.state.now_ms

        def standing(budget: Budget) -> tuple[int, int]:
            return budget.charged_gpu_ms(now), budget.entitled_gpu_ms(now)

        used, entitled = standing(claimant.budget)
        other_used, other_entitled = standing(other.budget)
        because = Comparison(
            rule=TakeRule.PRIORITY,
            claimant=claimant.budget.id,
            claimant_used_gpu_ms=used,
            claimant_entitled_gpu_ms=entitled,
            victim=other.budget.id,
            victim_used_gpu_ms=other_used,
            victim_entitled_gpu_ms=other_entitled,
            guard_gpu_ms=0,
            protected_until_ms=_run(other).protected_until_ms or 0,
        )
        return Victim(workload=key[0], attempt=key[1], because=because)


def _run(workload: Workload) -> Run:
    """Return the run of a workload that holds GPUs."""
    if workload.run is None:
        raise AssertionError(f"{workload.id} holds GPUs and has no run")
    return workload.run
