"""Nodes and their GPUs: who holds which, what is free, and an index that finds room without a walk over the nodes.

GPUs of a node are bits of an integer, and so are the nodes of a pool: for each number of GPUs there is one integer
whose bit i says that node i has exactly so many free. Finding the tightest node is a few operations on integers, a
decision copies the index by copying references, and a set that is only read needs no lock and no copy.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from streamsched.model.events import Drain, NodeHealth

if TYPE_CHECKING:
    from collections.abc import Collection

    from streamsched.model.policy import Policy

#: The most GPUs that a node can have.
MAX_GPUS = 16
_SIZES = range(MAX_GPUS + 1)

#: A workload and the number of its attempt.
RunKey = tuple[str, int]


class Node:
    """One machine. Its GPUs are numbered from 0; a set of them is a mask."""

    __slots__ = (
        "boot",
        "claims",
        "domains",
        "drain",
        "drain_by",
        "drain_reason",
        "drain_since_ms",
        "emptied",
        "emptied_ms",
        "falls",
        "fatal",
        "filed_capacity",
        "filed_free",
        "filed_healthy",
        "filed_reclaimable",
        "filed_takeable",
        "free_mask",
        "gpus",
        "health",
        "held",
        "held_down",
        "held_down_until_ms",
        "id",
        "index",
        "labels",
        "orphans",
        "pool",
        "preemptible",
        "reason",
        "repair_since_ms",
        "reported",
        "since_ms",
        "stuck",
        "tree",
        "unprotected",
    )

    def __init__(
        self, id_: str, pool: str, gpus: int, domains: tuple[str, ...], now_ms: int, tree: str | None = None
    ) -> None:
        self.id = id_
        #: The kind of GPU; and the tree that its domains belong to, if trees are named.
        self.pool = pool
        self.tree = tree
        self.gpus = gpus
        #: Coarse to fine, without the node itself.
        self.domains = domains
        #: The tree and the domains that it reports, and those it was given instead; None is as reported.
        self.reported: tuple[str | None, tuple[str, ...]] = (tree, domains)
        self.labels: tuple[str | None, tuple[str, ...] | None] = (None, None)
        self.boot = ""
        self.health = NodeHealth.HEALTHY
        self.reason: str | None = None
        self.since_ms = now_ms
        #: Whether it is so unhealthy that nothing may go on there.
        self.fatal = False
        #: What an administrator ordered last, and who, why and when.
        self.drain = Drain.NONE
        self.drain_by: str | None = None
        self.drain_reason: str | None = None
        self.drain_since_ms = now_ms
        #: When it ceased to be healthy, as far as the flap window reaches.
        self.falls: list[int] = []
        #: Whether it takes no work since it fell too often; and when that ends, while it is healthy.
        self.held_down = False
        self.held_down_until_ms: int | None = None
        #: The record with which it became empty, when that was, and since when it is being repaired.
        self.emptied: int | None = None
        self.emptied_ms: int | None = None
        self.repair_since_ms: int | None = None
        #: GPUs by run that has them.
        self.held: dict[RunKey, int] = {}
        #: GPUs by run that waits for them, free or still held by a victim.
        self.claims: dict[RunKey, int] = {}
        #: GPUs of runs that are over for us, but of which the node has yet to say that they are gone.
        self.orphans: dict[RunKey, int] = {}
        #: Those of them that did not end although they were stopped, by since when.
        self.stuck: dict[RunKey, int] = {}
        #: GPUs of unallocated runs that nobody stops yet.
        self.preemptible: dict[RunKey, int] = {}
        #: GPUs of allocated runs whose protection has ended and that nobody stops yet.
        self.unprotected: dict[RunKey, int] = {}
        self.free_mask = self.all_mask
        #: Its position in its pool, and how it is filed there.
        self.index = 0
        self.filed_free = 0
        self.filed_reclaimable = 0
        self.filed_takeable = 0
        self.filed_capacity = 0
        self.filed_healthy = False

    @property
    def home(self) -> str:
        """The id of the pool in which it is filed: its kind, in its tree."""
        return self.pool if self.tree is None else f"{self.pool}:{self.tree}"

    def find_place(self) -> None:
        """Take the tree and the domains anew from what was reported and what was ordered. Not while it is filed."""
        tree, domains = self.labels
        self.tree = tree if tree is not None else self.reported[0]
        self.domains = domains if domains is not None else self.reported[1]

    @property
    def takes_work(self) -> bool:
        """Whether new work may be given to it."""
        return self.health is NodeHealth.HEALTHY and self.emptying is Drain.NONE

    @property
    def emptying(self) -> Drain:
        """How far it is being emptied, whoever or whatever wants it."""
        if self.drain is Drain.HARD or self.stuck or self.fatal:
            return Drain.HARD
        if self.drain is Drain.SOFT or self.health is NodeHealth.UNHEALTHY:
            return Drain.SOFT
        return Drain.CORDON if self.drain is Drain.CORDON or self.held_down else Drain.NONE

    @property
    def is_draining(self) -> bool:
        """Whether nothing stays there past its protection."""
        return self.emptying in (Drain.SOFT, Drain.HARD)

    @property
    def all_mask(self) -> int:
        """All GPUs of the node."""
        return (1 << self.gpus) - 1

    @property
    def place_key(self) -> tuple[tuple[str, ...], str]:
        """The order of nodes: neighbours in the topology are neighbours here."""
        return (self.domains, self.id)

    @property
    def preemptible_mask(self) -> int:
        """GPUs that an allocated request may take."""
        mask = 0
        for held in self.preemptible.values():
            mask |= held
        return mask

    @property
    def unprotected_mask(self) -> int:
        """GPUs of allocated runs whose protection has ended."""
        mask = 0
        for held in self.unprotected.values():
            mask |= held
        return mask

    @property
    def unheld_mask(self) -> int:
        """GPUs that no run sits on, ours or left behind; somebody may wait for them."""
        taken = 0
        for mask in self.held.values():
            taken |= mask
        for mask in self.orphans.values():
            taken |= mask
        return self.all_mask & ~taken

    @property
    def occupied_gpus(self) -> int:
        """GPUs that runs hold, as far as we charge or believe them."""
        return sum(mask.bit_count() for mask in self.held.values())

    def derive_free(self) -> int:
        """Return the GPUs that nobody holds, claims or has left behind."""
        taken = 0
        for owners in (self.held, self.claims, self.orphans):
            if owners:
                for mask in owners.values():
                    taken |= mask
        return ((1 << self.gpus) - 1) & ~taken


class Sizes:
    """How many nodes have, or offer, each number of GPUs."""

    __slots__ = ("_slots", "counts")

    def __init__(self) -> None:
        self.counts = [0] * (MAX_GPUS + 1)
        #: Answers of `slots` that are still right.
        self._slots: dict[int, int] = {}

    def add(self, gpus: int, nodes: int) -> None:
        """Count so many nodes more, or with a negative number fewer."""
        self.counts[gpus] += nodes
        self._slots.clear()

    def slots(self, gpus_per_rank: int) -> int:
        """Return how many ranks of that size fit, all nodes together."""
        known = self._slots.get(gpus_per_rank)
        if known is None:
            counts = self.counts
            known = 0
            for gpus in range(gpus_per_rank, MAX_GPUS + 1):
                if counts[gpus]:
                    known += counts[gpus] * (gpus // gpus_per_rank)
            self._slots[gpus_per_rank] = known
        return known


class Room(Sizes):
    """What the nodes of a pool offer: for each number of GPUs, the set of nodes that offer exactly so many."""

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        super().__init__()
        self.nodes = [0] * (MAX_GPUS + 1)

    def copy(self) -> Room:
        """Return a room that may be changed without changing this one."""
        other = Room.__new__(Room)
        other.nodes = self.nodes.copy()
        other.counts = self.counts.copy()
        other._slots = self._slots.copy()
        return other

    def slots_on(self, gpus_per_rank: int, nodes: int) -> int:
        """Return how many ranks of that size fit on a set of nodes."""
        if not nodes:
            return 0  # Its key would be that of all nodes.
        key = gpus_per_rank | nodes << 5
        known = self._slots.get(key)
        if known is None:
            known = 0
            for gpus in range(gpus_per_rank, MAX_GPUS + 1):
                if self.counts[gpus] and (here := self.nodes[gpus] & nodes):
                    known += here.bit_count() * (gpus // gpus_per_rank)
            self._slots[key] = known
        return known

    def move(self, index: int, before: int, after: int) -> None:
        """File a node under another number of GPUs."""
        if before == after:
            return
        self._slots.clear()
        bit = 1 << index
        self.nodes[before] ^= bit
        self.counts[before] -= 1
        self.nodes[after] |= bit
        self.counts[after] += 1

    def make_place(self, index: int) -> None:
        """Let a node that offers nothing in at a position; those from there on move up."""
        self._slots.clear()
        below = (1 << index) - 1
        self.nodes = [(nodes & ~below) << 1 | nodes & below for nodes in self.nodes]
        self.nodes[0] |= 1 << index
        self.counts[0] += 1

    def close_place(self, index: int) -> None:
        """Let the node at a position go, which offers nothing; those after it move down."""
        self._slots.clear()
        below = (1 << index) - 1
        self.nodes = [(nodes >> 1) & ~below | nodes & below for nodes in self.nodes]
        self.counts[0] -= 1

    def tightest(self, gpus: int, nodes: int) -> int:
        """Return the smallest number of GPUs, at least `gpus`, that one of these nodes offers; or -1."""
        counts = self.counts
        for offered in range(gpus, MAX_GPUS + 1):
            if counts[offered] and self.nodes[offered] & nodes:
                return offered
        return -1

    def first(self, gpus: int, nodes: int) -> int:
        """Return the first of these nodes that offers exactly so many GPUs. There must be one."""
        nodes &= self.nodes[gpus]
        return (nodes & -nodes).bit_length() - 1


class Pool:
    """The nodes of one kind in one tree, in the order of their places, with what they offer. No gang spans two."""

    __slots__ = ("free", "healthy", "id", "installed", "kind", "nodes", "rate", "reclaimable", "takeable", "working")

    def __init__(self, id_: str, kind: str, rate: int) -> None:
        self.id = id_
        #: What requests name: the kind of GPU.
        self.kind = kind
        #: What one of its GPUs costs, in units of the rate card.
        self.rate = rate
        self.nodes: list[Node] = []
        #: What is free on healthy nodes.
        self.free = Room()
        #: What is free or held by unallocated work on healthy nodes.
        self.reclaimable = Room()
        #: That, and what allocated runs hold whose protection has ended.
        self.takeable = Room()
        #: The nodes that take work, as bits.
        self.working = 0
        #: All nodes, and those that take work, by their size.
        self.installed = Sizes()
        self.healthy = Sizes()

    @property
    def installed_gpus(self) -> int:
        """GPUs of all its nodes."""
        return sum(gpus * nodes for gpus, nodes in enumerate(self.installed.counts))


class Inventory:
    """All nodes of one cluster, their pools, and the schedulable GPUs."""

    __slots__ = ("_by_kind", "_rates", "capacity_gpus", "capacity_units", "gains", "nodes", "pools")

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        #: In the order of their names; and the same by kind.
        self.pools: dict[str, Pool] = {}
        self._by_kind: dict[str, list[Pool]] = {}
        #: Rises whenever a node offers more than before: what did not fit may fit now.
        self.gains = 0
        #: GPUs of healthy nodes, and GPUs still held on unhealthy ones.
        self.capacity_gpus = 0
        #: The same in units of the rate card, and what a GPU costs by pool, where it is not 1.
        self.capacity_units = 0
        self._rates: dict[str, int] = {}

    def set_rates(self, policy: Policy) -> None:
        """Take the rate card of a policy: what the GPUs are worth changes at once."""
        self._rates = {rate.pool: rate.rate for rate in policy.rates}
        self.capacity_units = 0
        for pool in self.pools.values():
            pool.rate = self._rates.get(pool.kind, 1)
            self.capacity_units += pool.rate * sum(node.filed_capacity for node in pool.nodes)

    def candidates(self, pool: str | None) -> Collection[Pool]:
        """Return the pools that a request for `pool` (None: any) may use, by name."""
        if pool is None:
            return self.pools.values()
        return self._by_kind.get(pool, ())

    def add(self, node: Node) -> None:
        """Take a new node into its pool."""
        self.nodes[node.id] = node
        pool = self.pools.get(node.home)
        if pool is None:
            pool = self.pools[node.home] = Pool(node.home, node.pool, self._rates.get(node.pool, 1))
            self._sort_pools()
        index = bisect_left(pool.nodes, node.place_key, key=lambda other: other.place_key)
        for later in pool.nodes[index:]:
            later.index += 1
        pool.nodes.insert(index, node)
        node.index = index
        below = (1 << index) - 1
        for room in (pool.free, pool.reclaimable, pool.takeable):
            room.make_place(index)
        pool.working = (pool.working & ~below) << 1 | pool.working & below
        pool.installed.add(node.gpus, 1)
        node.filed_free = node.filed_reclaimable = node.filed_takeable = node.filed_capacity = 0
        node.filed_healthy = False
        self.refile(node)

    def remove(self, node: Node) -> None:
        """Forget a node."""
        pool = self.pools[node.home]
        pool.free.move(node.index, node.filed_free, 0)
        pool.reclaimable.move(node.index, node.filed_reclaimable, 0)
        pool.takeable.move(node.index, node.filed_takeable, 0)
        self.capacity_gpus -= node.filed_capacity
        self.capacity_units -= node.filed_capacity * pool.rate
        for later in pool.nodes[node.index + 1 :]:
            later.index -= 1
        del pool.nodes[node.index]
        below = (1 << node.index) - 1
        pool.working &= ~(1 << node.index)
        for room in (pool.free, pool.reclaimable, pool.takeable):
            room.close_place(node.index)
        pool.working = (pool.working >> 1) & ~below | pool.working & below
        pool.installed.add(node.gpus, -1)
        if node.filed_healthy:
            pool.healthy.add(node.gpus, -1)
        del self.nodes[node.id]
        if not pool.nodes:
            del self.pools[node.home]
            self._sort_pools()

    def _sort_pools(self) -> None:
        self.pools = dict(sorted(self.pools.items()))
        self._by_kind = {}
        for pool in self.pools.values():
            self._by_kind.setdefault(pool.kind, []).append(pool)

    def refile(self, node: Node) -> None:
        """Bring the index up to date after anything about a node has changed."""
        node.free_mask = free = node.derive_free()
        takes_work = node.takes_work
        if takes_work:
            offered = free.bit_count()
            more = free | node.preemptible_mask if node.preemptible else free
            reclaimable = more.bit_count()
            takeable = (more | node.unprotected_mask).bit_count() if node.unprotected else reclaimable
            capacity = node.gpus
        else:
            offered = reclaimable = takeable = 0
            capacity = node.occupied_gpus if node.health is not NodeHealth.LOST else 0
        if takes_work is not node.filed_healthy:
            self.pools[node.home].healthy.add(node.gpus, 1 if takes_work else -1)
            self.pools[node.home].working ^= 1 << node.index
            node.filed_healthy = takes_work
        if offered > node.filed_free or reclaimable > node.filed_reclaimable or takeable > node.filed_takeable:
            self.gains += 1
        if offered != node.filed_free:
            self.pools[node.home].free.move(node.index, node.filed_free, offered)
            node.filed_free = offered
        if reclaimable != node.filed_reclaimable:
            self.pools[node.home].reclaimable.move(node.index, node.filed_reclaimable, reclaimable)
            node.filed_reclaimable = reclaimable
        if takeable != node.filed_takeable:
            self.pools[node.home].takeable.move(node.index, node.filed_takeable, takeable)
            node.filed_takeable = takeable
        if capacity != node.filed_capacity:
            self.capacity_gpus += capacity - node.filed_capacity
            self.capacity_units += (capacity - node.filed_capacity) * self.pools[node.home].rate
            node.filed_capacity = capacity
