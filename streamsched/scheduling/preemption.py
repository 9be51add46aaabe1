"""Which runs end so that an allocated gang fits: as few GPUs as will do, whole gangs, and none in vain.

Greedy over the nodes, exact on each: the cheapest runs that make room for one more rank there are a small knapsack.
Whoever is stopped frees GPUs on every node of its gang, and that counts for the next choice. In the end every victim
is put back that the gang can do without.

Source: `fair-share.md`, section 4.4.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from streamsched.model.events import Comparison, Seat, Victim, trusted
from streamsched.scheduling.domains import ALLOCATED_PRICE, ways_to_seat
from streamsched.scheduling.placement import lowest_bits, seats_in_order, seats_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from streamsched.scheduling.domains import Part, Way
    from streamsched.scheduling.draft import Draft, DraftPool
    from streamsched.scheduling.guard import Offer
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Node, RunKey
    from streamsched.state.workloads import Run, Workload

_victim = trusted(Victim)

#: What stopping some runs costs: allocated GPUs, all GPUs, gangs, and how much they are preferred to be left alone.
Cost = tuple[int, int, int, int]
#: The cheapest runs for something, with what they cost.
Choice = tuple[Cost, list["RunKey"]]
#: When a node is looked at: the emptiest first, then by index. Free GPUs, negative, and the index.
Place = tuple[int, int]


def displace(
    state: ClusterState, pool: DraftPool, gang: Workload, nodes: int
) -> tuple[tuple[Seat, ...], tuple[Victim, ...]] | None:
    """Seat a gang on free GPUs and on those of unallocated runs, and take both; None when it does not fit.

    Args:
        state: Read for the runs.
        pool: Where to look; changed when the gang fits.
        gang: Who asks.
        nodes: The nodes that may be used, as bits.
    """
    if pool.reclaimable.slots_on(gang.gpus_per_rank, nodes) < gang.ranks:
        return None
    best = cheapest(state, pool, gang, nodes)
    return None if best is None else (best.seats(), best.victims())


def cheapest(
    state: ClusterState,
    pool: DraftPool,
    gang: Workload,
    nodes: int,
    allocated: Mapping[int, dict[RunKey, int]] | None = None,
    ranking: Mapping[RunKey, int] | None = None,
) -> _Search | None:
    """Return the search with the fewest allocated GPUs to be stopped, and then the fewest of all; None for no way.

    A gang without layers is one search. One that wants a single domain is tried in one domain after the other, as long
    as it may be had there for less than in the best so far.
    """
    best: _Search | None = None
    least = 0
    for way in ways_to_seat(state.policy, pool, gang, nodes, allocated):
        if best is not None and way.price >= least:
            break
        search = _Search(
            state,
            pool,
            way,
            None if allocated is None else {index: dict(runs) for index, runs in allocated.items()},
            ranking,
        )
        search.fill()
        cost = search.allocated_gpus * ALLOCATED_PRICE + search.gpus
        if best is None or cost < least:
            best, least = search, cost
    return best


class Shortage(NamedTuple):
    """How many ranks of a gang have no place, whoever is stopped; 0 when it is not for want of places."""

    ranks: int


class Preemption(NamedTuple):
    """A gang's seats, and everybody who is stopped for it."""

    seats: tuple[Seat, ...]
    victims: tuple[Victim, ...]
    allocated_gpus: int
    over_cap: bool


def preempt(
    draft: Draft,
    pool: DraftPool,
    claimant: Workload,
    nodes: int,
    offers: Sequence[Offer],
    *,
    affordable: Callable[[int], bool],
) -> Preemption | Shortage:
    """Seat a gang where allocated runs past their protection make room too, and take it; or say what is missing.

    Leaf by leaf, the most over-served first, their runs are added to what may be stopped, until the whole gang fits:
    that spares the leaf that is least over-served. A later leaf is let in only when the victims are too many otherwise.

    Args:
        draft: The decision in the making.
        pool: Where to look; changed when the gang fits.
        claimant: The gang.
        nodes: The nodes that may be used, as bits.
        offers: Who may be stopped, in this order.
        affordable: Whether so many allocated GPUs may be preempted at this moment.
    """
    state = draft.state
    ranks, gpus_per_rank = claimant.ranks, claimant.gpus_per_rank
    cap = state.policy.disruption_cap * ranks * gpus_per_rank
    extra: dict[int, dict[RunKey, int]] = {}
    offer_of: dict[RunKey, Offer] = {}
    #: Who is stopped first among those that cost the same: leaf by leaf, and in a leaf as `spare_last` says.
    ranking: dict[RunKey, int] = {}
    room: dict[int, int] = {}
    slots = pool.reclaimable.slots_on(gpus_per_rank, nodes)
    best: _Search | None = None
    for offer in offers:
        gained = 0
        for key, workload in offer.runs.items():
            run = workload.run
            if run is None or key in pool.victims:
                continue
            offer_of[key] = offer
            for node_id, mask in run.held.items():
                node = state.nodes[node_id]
                if node.home != pool.pool.id or not nodes >> node.index & 1 or not node.takes_work:
                    continue
                extra.setdefault(node.index, {})[key] = mask
                before = room.get(node.index)
                if before is None:
                    before = pool.free_mask(node).bit_count()
                    before += sum(held.bit_count() for held in pool.preemptible(node).values())
                after = room[node.index] = before + mask.bit_count()
                gained += after // gpus_per_rank - before // gpus_per_rank
        slots += gained
        for key in sorted(sorted(offer.runs, reverse=True), key=lambda key: spare_last(offer.runs[key])):
            ranking[key] = len(ranking)
        if slots < ranks or not gained:
            continue
        search = cheapest(state, pool, claimant, nodes, extra, ranking)
        if search is None:
            continue  # There are places enough, but not in the domains that it needs.
        if best is None or search.allocated_gpus <= cap:
            best = search
        if best.allocated_gpus <= cap:
            break
    if best is None:
        return Shortage(max(1, ranks - slots))
    if not affordable(best.allocated_gpus):
        return Shortage(0)
    over_cap = best.allocated_gpus > cap
    reasons = {key: offer_of[key].because(draft, claimant.budget) for key in best.chosen if key in offer_of}
    return Preemption(best.seats(), best.victims(reasons), best.allocated_gpus, over_cap)


class _Offer:
    """Runs that could be stopped, what that costs, and for how many ranks it makes room."""

    __slots__ = ("cost", "keys", "place", "ranks")

    def __init__(self, cost: Cost, keys: list[RunKey], ranks: int, place: Place = (0, 0)) -> None:
        self.cost = cost
        self.keys = keys
        self.ranks = ranks
        self.place = place

    def __lt__(self, other: _Offer) -> bool:
        """Whether it is taken first: the better one, and of equal ones the one on the earlier node."""
        return self.is_better_than(other) or (not other.is_better_than(self) and self.place < other.place)

    def is_better_than(self, other: _Offer) -> bool:
        """Whether it costs less for each rank: allocated GPUs, all GPUs, gangs, and whom it is better to leave alone.

        Equal offers keep the order in which they were found, which is that of the nodes.
        """
        for mine, theirs in zip(self.cost, other.cost, strict=True):
            if mine * other.ranks != theirs * self.ranks:
                return mine * other.ranks < theirs * self.ranks
        return False


class _Search:
    """The room for one gang while victims are chosen."""

    def __init__(
        self,
        state: ClusterState,
        pool: DraftPool,
        way: Way,
        allocated: Mapping[int, dict[RunKey, int]] | None = None,
        ranking: Mapping[RunKey, int] | None = None,
    ) -> None:
        self.state = state
        self.pool = pool
        self.way = way
        #: Of the part that is being filled.
        self.gpus_per_rank = way.parts[0].gpus_per_rank
        #: All nodes that may be used, as bits, and those of the part that is being filled.
        self.usable = 0
        for part in way.parts:
            self.usable |= part.nodes
        self.nodes = self.usable
        #: Allocated runs that may be stopped, by node index, with their GPUs there.
        self.allocated = allocated or {}
        self.ranking_of: Mapping[RunKey, int] = ranking or {}
        self.chosen: dict[RunKey, Run] = {}
        #: GPUs that the chosen free, by node index, on nodes that may be used.
        self.freed: dict[int, int] = {}
        #: How many ranks fit on the nodes of the part that is being filled.
        self.slots = 0
        #: From the second choice on: the best offer of each node, by node index, and all of them with the best first,
        #: among some that no longer hold.
        self.offers: dict[int, _Offer] = {}
        self.ranking: list[_Offer] | None = None

    @property
    def allocated_gpus(self) -> int:
        """Allocated GPUs of everybody chosen, wherever they are."""
        return sum(run.gpus for key, run in self.chosen.items() if self.state.workloads[key[0]].is_allocated)

    @property
    def gpus(self) -> int:
        """GPUs of everybody chosen, wherever they are."""
        return sum(run.gpus for run in self.chosen.values())

    def fill(self) -> None:
        """Choose victims until the gang fits, and leave alone those that it can do without."""
        for part in self.way.parts:
            self.nodes, self.gpus_per_rank, self.slots = part.nodes, part.gpus_per_rank, self._slots_of(part)
            self.offers, self.ranking = {}, None
            while self.slots < part.ranks:
                self.stop_cheapest(part.ranks)
        self.put_back()

    def stop_cheapest(self, ranks: int) -> None:
        """Add the victims that make room for more ranks at the least cost for each rank."""
        missing = ranks - self.slots
        few = not self.chosen and not self.allocated
        best = self._best_of_few(missing) if few else self._best_of_all(missing)
        if best is None:
            raise AssertionError("the gang fits on what can be reclaimed, so there is something left to reclaim")
        for key in best.keys:
            self._choose(key)
        missing = ranks - self.slots
        if self.ranking is not None and missing > 0:
            for node in self._nodes_beside(best.keys):
                if self.nodes >> node.index & 1:
                    self._rank(node, missing)

    def _best_of_few(self, missing: int) -> _Offer | None:
        """Return the best offer before anything was chosen, having looked at no more nodes than it takes to know."""
        best: _Offer | None = None
        for free in range(len(self.pool.free.nodes) - 1, -1, -1):
            nodes = self._nodes_with_more(free)
            # What a node with so many free GPUs can offer at the very best: one gang of just what a rank lacks there.
            ideal = _Offer((0, self.gpus_per_rank - free % self.gpus_per_rank, 1, 0), [], missing)
            while nodes:
                if best is not None and not ideal.is_better_than(best):
                    break
                bit = nodes & -nodes
                nodes ^= bit
                found = self._cheapest_on(self.pool.nodes[bit.bit_length() - 1])
                if found is None:
                    continue
                cost, keys = found
                if best is not None and cost[1] * best.ranks > best.cost[1] * missing:
                    continue  # Too dear even if it made room for all that are missing.
                offer = _Offer(cost, keys, self._gain(keys, missing))
                if best is None or offer.is_better_than(best):
                    best = offer
            # A node with fewer free GPUs must give up at least so many for a rank to fit there.
            if best is not None and best.cost[1] <= self._least_for(free - 1) * best.ranks:
                break
        return best

    def _best_of_all(self, missing: int) -> _Offer | None:
        """Return the best offer of all nodes. Each choice changes few of them, so they are ranked once and kept."""
        if self.ranking is None:
            self.ranking = []
            for free in range(len(self.pool.free.nodes)):
                nodes = self._nodes_with_more(free)
                while nodes:
                    bit = nodes & -nodes
                    nodes ^= bit
                    self._rank(self.pool.nodes[bit.bit_length() - 1], missing)
            for index in self.allocated:
                if index not in self.offers and self.nodes >> index & 1:
                    self._rank(self.pool.nodes[index], missing)
        while self.ranking:
            best = self.ranking[0]
            if self.offers.get(best.place[1]) is not best:
                heappop(self.ranking)
            elif best.ranks > missing:
                # It makes room for more than is missing by now, which makes it worth less, never more.
                fewer = self.offers[best.place[1]] = _Offer(best.cost, best.keys, missing, best.place)
                heapreplace(self.ranking, fewer)
            else:
                return best
        return None

    def _rank(self, node: Node, missing: int) -> None:
        """Put what a node has to offer now in its place among the others."""
        if self.ranking is None:
            return
        found = self._cheapest_on(node)
        if found is None:
            self.offers.pop(node.index, None)
            return
        cost, keys = found
        place = (-self.pool.free_mask(node).bit_count(), node.index)
        offer = self.offers[node.index] = _Offer(cost, keys, self._gain(keys, missing), place)
        heappush(self.ranking, offer)

    def put_back(self) -> None:
        """Leave every victim alone that the gang can do without, the last chosen first."""
        parts = self.way.parts
        spare = [self._slots_of(part) - part.ranks for part in parts]
        for key in reversed(list(self.chosen)):
            run = self.chosen[key]
            kept = [0] * len(parts)
            nodes = self._nodes_of(run)
            for node in nodes:
                at = next(at for at, part in enumerate(parts) if part.nodes >> node.index & 1)
                free, freed = self.pool.free_mask(node), self.freed[node.index]
                size = parts[at].gpus_per_rank
                kept[at] += (free | freed).bit_count() // size
                kept[at] -= (free | freed & ~run.held[node.id]).bit_count() // size
            if all(few <= left for few, left in zip(kept, spare, strict=True)):
                del self.chosen[key]
                spare = [left - few for few, left in zip(kept, spare, strict=True)]
                for node in nodes:
                    self.freed[node.index] &= ~run.held[node.id]

    def _slots_of(self, part: Part) -> int:
        """Return how many ranks of a part fit on its nodes once the chosen have ended."""
        slots = self.pool.free.slots_on(part.gpus_per_rank, part.nodes)
        for index in self.freed:
            if part.nodes >> index & 1:
                node = self.pool.nodes[index]
                free = self.pool.free_mask(node).bit_count()
                slots += self._room(node) // part.gpus_per_rank - free // part.gpus_per_rank
        return slots

    def seats(self) -> tuple[Seat, ...]:
        """Seat the gang where the fewest of its GPUs have to be waited for, and take the GPUs."""
        for key, run in self.chosen.items():
            nodes = [self.state.nodes[id_] for id_ in run.held]
            self.pool.stop(key, [node for node in nodes if node.takes_work and node.home == self.pool.pool.id])
        shares: list[tuple[Node, int]] = []
        for part in self.way.parts:
            self.nodes, self.gpus_per_rank, left = part.nodes, part.gpus_per_rank, part.ranks
            for node in self._nodes_by_use():
                here = min(left, self._room(node) // self.gpus_per_rank)
                if not here:
                    continue
                free = self.pool.free_mask(node)
                wanted = here * self.gpus_per_rank
                mask = lowest_bits(free, min(wanted, free.bit_count()))
                mask |= lowest_bits(self.freed.get(node.index, 0), wanted - mask.bit_count())
                self.pool.take(node, mask)
                shares.append((node, mask))
                left -= here
                if not left:
                    break
        if self.way.order is not None:
            return seats_in_order(self.way.order, {node.index: (node, mask) for node, mask in shares})
        return seats_of(shares, self.gpus_per_rank)

    def victims(self, reasons: Mapping[RunKey, Comparison] | None = None) -> tuple[Victim, ...]:
        """Return the chosen runs by id, the allocated ones with the reason why they may be stopped."""
        victims: list[Victim] = []
        for key in sorted(self.chosen):
            because = None if reasons is None else reasons.get(key)
            until_ms = self.chosen[key].protected_until_ms
            if because is not None and until_ms is not None:
                because = because.model_copy(update={"protected_until_ms": until_ms})
            victims.append(_victim(workload=key[0], attempt=key[1], because=because))
        return tuple(victims)

    # --- steps ---

    def _nodes_with_more(self, free: int) -> int:
        """Return the nodes with so many free GPUs on which more ranks fit once unallocated runs have ended, as bits."""
        more = 0
        reclaimable = self.pool.reclaimable.nodes
        for offered in range((free // self.gpus_per_rank + 1) * self.gpus_per_rank, len(reclaimable)):
            more |= reclaimable[offered]
        return self.pool.free.nodes[free] & more & self.nodes

    def _nodes_by_use(self) -> list[Node]:
        """Return the nodes that have room: those of victims first, as they were stopped for it, then the emptiest."""
        stopped = [self.pool.nodes[index] for index in self.freed if self.freed[index] and self.nodes >> index & 1]
        stopped.sort(key=lambda node: (-(self._room(node) // self.gpus_per_rank), node.index))
        others: list[Node] = []
        for free in range(len(self.pool.free.nodes) - 1, self.gpus_per_rank - 1, -1):
            nodes = self.pool.free.nodes[free] & self.nodes
            while nodes:
                bit = nodes & -nodes
                nodes ^= bit
                index = bit.bit_length() - 1
                if not self.freed.get(index):
                    others.append(self.pool.nodes[index])
        return stopped + others

    def _room(self, node: Node) -> int:
        return (self.pool.free_mask(node) | self.freed.get(node.index, 0)).bit_count()

    def _least_for(self, free: int) -> int:
        """Return how many GPUs a node with at most so many free must get back for one more rank, at the least."""
        return self.gpus_per_rank - min(max(free, 0), self.gpus_per_rank - 1)

    def _gain(self, keys: list[RunKey], missing: int) -> int:
        """Return how many of the missing ranks fit, on all nodes, once these runs have ended: at least one does."""
        if missing == 1:
            return 1
        freed: dict[int, int] = {}
        gain = 0
        for key in keys:
            run = self.state.workloads[key[0]].run
            if run is None:
                continue
            for node in self._nodes_of(run):
                if not self.nodes >> node.index & 1:
                    continue
                room = self._room(node) if node.index not in freed else freed[node.index]
                more = room + run.held[node.id].bit_count()
                gain += more // self.gpus_per_rank - room // self.gpus_per_rank
                freed[node.index] = more
        return min(gain, missing)

    def _nodes_of(self, run: Run) -> list[Node]:
        """Return the nodes of a run that may be used."""
        nodes = [self.state.nodes[id_] for id_ in run.held]
        pool = self.pool.pool.id
        return [node for node in nodes if node.home == pool and self.usable >> node.index & 1 and node.takes_work]

    def _nodes_beside(self, keys: list[RunKey]) -> Iterable[Node]:
        """Return the nodes whose offers may have changed with these choices: theirs, and those of their neighbours."""
        beside: dict[int, Node] = {}
        for key in keys:
            for node in self._nodes_of(self.chosen[key]):
                beside[node.index] = node
                for other in (*self.pool.preemptible(node), *self.allocated.get(node.index, ())):
                    run = self.state.workloads[other[0]].run
                    if run is not None and other not in self.chosen:
                        beside.update((node.index, node) for node in self._nodes_of(run))
        return beside.values()

    def _choose(self, key: RunKey) -> None:
        run = self.state.workloads[key[0]].run
        if run is None:
            raise AssertionError("a preemptible run exists")
        self.chosen[key] = run
        for node in self._nodes_of(run):
            before = self._room(node)
            self.freed[node.index] = self.freed.get(node.index, 0) | run.held[node.id]
            if self.nodes >> node.index & 1:
                self.slots += self._room(node) // self.gpus_per_rank - before // self.gpus_per_rank

    def _cheapest_on(self, node: Node) -> Choice | None:
        """Return the cheapest runs of a node whose end lets one more rank fit there; None when no end of any does."""
        if node.index in self.freed or node.index in self.allocated:
            return self._knapsack(node)
        # As long as neither this search nor the draft takes anything there, the answer stays what it was.
        known = self.pool.cheapest.setdefault(self.gpus_per_rank, {})
        if node.index not in known:
            known[node.index] = self._knapsack(node)
        return known[node.index]

    def _knapsack(self, node: Node) -> Choice | None:
        """Choose the cheapest runs of a node: an exact small knapsack."""
        room = self._room(node)
        need = self.gpus_per_rank - room % self.gpus_per_rank
        offered = (*self.pool.preemptible(node).items(), *self.allocated.get(node.index, {}).items())
        runs = [(key, mask.bit_count()) for key, mask in offered if key not in self.chosen]
        if sum(gpus for _, gpus in runs) < need:
            return None
        runs.sort(key=lambda item: item[0], reverse=True)
        runs.sort(key=lambda item: spare_last(self.state.workloads[item[0][0]]))
        best: list[Choice | None] = [((0, 0, 0, 0), []), *[None] * need]
        for position, (key, gpus) in enumerate(runs):
            workload = self.state.workloads[key[0]]
            allocated = workload.gpus if workload.is_allocated else 0
            for covered in range(need, 0, -1):
                before = best[max(0, covered - gpus)]
                if before is None:
                    continue
                cost = (
                    before[0][0] + allocated,
                    before[0][1] + workload.gpus,
                    before[0][2] + 1,
                    before[0][3] + self.ranking_of.get(key, position),
                )
                known = best[covered]
                if known is None or cost < known[0]:
                    best[covered] = (cost, [*before[1], key])
        return best[need]


def spare_last(workload: Workload) -> tuple[int, int, int]:
    """Order runs of one node by who goes first: lower priority, resumable, youngest."""
    run = workload.run
    started = run.started_ms if run is not None and run.started_ms is not None else 1 << 62
    return (workload.priority, 0 if workload.resumable else 1, -started)
