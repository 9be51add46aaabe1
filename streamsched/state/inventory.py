"""Nodes and their GPUs: who holds which, what is free, and an index that finds room without a walk over the nodes.

GPUs of a node are bits of an integer, and so are the nodes of a pool: for each number of GPUs there is one integer
whose bit i says that node i has exactly so many free. Finding the tightest node is a few operations on integers, a
decision copies the index by copying references, and a set that is only read needs no lock and no copy. Beside the sets
stands one byte for each node, which is what a search over the topology reads.

Nodes that join or leave are filed when the pools are next looked at, all together: a place in an order of n nodes costs
n, however many find theirs at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streamsched.model.events import Drain, NodeHealth
from streamsched.model.policy import DEFAULT_POLICY
from streamsched.state.topology import PoolTree

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from streamsched.model.policy import Policy

#: The most GPUs that a node can have.
MAX_GPUS = 16
_SIZES = range(MAX_GPUS + 1)
#: The position of a node that has joined its pool and is not filed there yet.
_UNFILED = -1
_place_of = attrgetter("place_key")

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
        "pins",
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
        #: GPUs by workload that recovers and keeps them for its next attempt.
        self.pins: dict[str, int] = {}
        #: GPUs of runs that are over for us, but of which the node has yet to say that they are gone.
        self.orphans: dict[RunKey, int] = {}
        #: Those of them that did not end although they were stopped, by since when.
        self.stuck: dict[RunKey, int] = {}
        #: GPUs of unallocated runs that nobody stops yet.
        self.preemptible: dict[RunKey, int] = {}
        #: GPUs of allocated runs whose protection has ended and that nobody stops yet.
        self.unprotected: dict[RunKey, int] = {}
        self.free_mask = self.all_mask
        #: Its position in its pool, once it is filed; and what it is, or will be, filed under.
        self.index = _UNFILED
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
        is_wanted_empty = self.stuck or self.fatal or self.held_down or self.drain is not Drain.NONE
        return self.health is NodeHealth.HEALTHY and not is_wanted_empty

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
        """Return the GPUs that nobody holds, claims, keeps for its recovery or has left behind."""
        taken = 0
        for owners in (self.held, self.claims, self.orphans):
            if owners:
                for mask in owners.values():
                    taken |= mask
        if self.pins:
            for mask in self.pins.values():
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

    @property
    def largest(self) -> int:
        """The most GPUs that one of them has; 0 when there are no nodes."""
        gpus = MAX_GPUS
        while gpus and not self.counts[gpus]:
            gpus -= 1
        return gpus

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

    __slots__ = ("nodes", "offers")

    def __init__(self) -> None:
        super().__init__()
        self.nodes = [0] * (MAX_GPUS + 1)
        #: How many GPUs each node offers, in the order of their places.
        self.offers = bytearray()

    def copy(self) -> Room:
        """Return a room that may be changed without changing this one."""
        other = Room.__new__(Room)
        other.nodes = self.nodes.copy()
        other.offers = self.offers.copy()
        other.counts = self.counts.copy()
        other._slots = self._slots.copy()
        return other

    @property
    def gpus(self) -> NDArray[np.int16]:
        """How many GPUs each node offers, in the order of their places: an array of its own."""
        return np.frombuffer(self.offers, np.uint8).astype(np.int16)

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
        self.offers[index] = after

    def rearrange(self, gone: Sequence[int], places: Sequence[int], offered: Sequence[int]) -> None:
        """Let nodes go, and then others in: at `places` among those that stay, offering so many GPUs each."""
        self._slots.clear()
        stay = np.delete(np.frombuffer(self.offers, np.uint8), gone)
        now = np.insert(stay, places, np.array(offered, np.uint8))
        self.offers = bytearray(now.tobytes())
        self.counts = np.bincount(now, minlength=MAX_GPUS + 1).tolist()
        self.nodes = [as_bits(now == gpus) if nodes else 0 for gpus, nodes in enumerate(self.counts)]

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

    __slots__ = (
        "_gone",
        "_joining",
        "_tree",
        "free",
        "healthy",
        "id",
        "installed",
        "kind",
        "levels",
        "nodes",
        "rate",
        "reclaimable",
        "takeable",
        "working",
    )

    def __init__(self, id_: str, kind: str, rate: int, levels: tuple[str, ...]) -> None:
        self.id = id_
        #: What requests name: the kind of GPU.
        self.kind = kind
        #: What one of its GPUs costs, in units of the rate card.
        self.rate = rate
        #: What the levels of its tree are called, coarse to fine, without the node.
        self.levels = levels
        self._tree: PoolTree | None = None
        self.nodes: list[Node] = []
        #: Positions of nodes that have left, and nodes that have joined, since the pool was last put in order.
        self._gone: list[int] = []
        self._joining: dict[str, Node] = {}
        #: What is free on healthy nodes.
        self.free = Room()
        #: What is free or held by unallocated work on healthy nodes.
        self.reclaimable = Room()
        #: That, and what allocated runs hold whose protection has ended.
        self.takeable = Room()
        #: The nodes that take work, as bits.
        self.working = 0
        #: All nodes, and those that take work, by their size. These are right at any time.
        self.installed = Sizes()
        self.healthy = Sizes()

    @property
    def installed_gpus(self) -> int:
        """GPUs of all its nodes."""
        return sum(gpus * nodes for gpus, nodes in enumerate(self.installed.counts))

    @property
    def tree(self) -> PoolTree:
        """Its nodes by domain; built when it is first asked for since nodes came or went."""
        if self._tree is None or self._tree.levels != self.levels:
            self._tree = PoolTree(self.levels, self.nodes)
        return self._tree

    @property
    def is_empty(self) -> bool:
        """Whether it has no nodes, filed or not."""
        return len(self.nodes) == len(self._gone) and not self._joining

    def join(self, node: Node) -> None:
        """Take a node in; it gets its position with the next `put_in_order`."""
        node.index = _UNFILED
        self._joining[node.id] = node

    def leave(self, node: Node) -> None:
        """Let a node go; its position is closed with the next `put_in_order`."""
        if node.index == _UNFILED:
            del self._joining[node.id]
        else:
            self._gone.append(node.index)

    def put_in_order(self) -> None:
        """File the nodes that have joined, and close the places of those that have left."""
        gone = sorted(self._gone)
        joining = sorted(self._joining.values(), key=_place_of)
        self._gone, self._joining, self._tree = [], {}, None
        stay = self.nodes
        if gone:
            left = set(gone)
            stay = [node for index, node in enumerate(stay) if index not in left]
        places: list[int] = []
        nodes: list[Node] = []
        filed = 0
        for node in joining:
            place = bisect_left(stay, node.place_key, lo=filed, key=_place_of)
            nodes += stay[filed:place]
            nodes.append(node)
            places.append(place)
            filed = place
        nodes += stay[filed:]
        self.nodes = nodes
        for index in range(min([*gone[:1], *places[:1]], default=len(nodes)), len(nodes)):
            nodes[index].index = index
        self.free.rearrange(gone, places, [node.filed_free for node in joining])
        self.reclaimable.rearrange(gone, places, [node.filed_reclaimable for node in joining])
        self.takeable.rearrange(gone, places, [node.filed_takeable for node in joining])
        self.working = as_bits(np.fromiter((node.filed_healthy for node in nodes), np.bool_, len(nodes)))


def as_bits(chosen: NDArray[np.bool_]) -> int:
    """Return a set of nodes, given as one truth value for each, as bits.

    >>> as_bits(np.array([True, False, True]))
    5
    """
    return int.from_bytes(np.packbits(chosen, bitorder="little").tobytes(), "little")


def as_truths(nodes: int, count: int) -> NDArray[np.bool_]:
    """Return a set of nodes, given as bits, as one truth value for each of so many nodes.

    >>> as_truths(5, 4).tolist()
    [True, False, True, False]
    """
    packed = np.frombuffer(nodes.to_bytes(-(-count // 8), "little"), np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").astype(bool)


class Inventory:
    """All nodes of one cluster, their pools, and the schedulable GPUs."""

    __slots__ = (
        "_by_kind",
        "_policy",
        "_pools",
        "_unordered",
        "capacity_gpus",
        "capacity_units",
        "gains",
        "nodes",
    )

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        #: In the order of their names; and the same by kind.
        self._pools: dict[str, Pool] = {}
        self._by_kind: dict[str, list[Pool]] = {}
        #: Pools with nodes that have come or gone and are not filed yet.
        self._unordered: dict[str, Pool] = {}
        #: Rises whenever a node offers more than before: what did not fit may fit now.
        self.gains = 0
        #: GPUs of healthy nodes, and GPUs still held on unhealthy ones.
        self.capacity_gpus = 0
        #: The same in units of the rate card.
        self.capacity_units = 0
        self._policy = DEFAULT_POLICY

    def follow(self, policy: Policy) -> None:
        """Take the rate card of a policy, and the names of its levels: what GPUs are worth changes at once."""
        self._policy = policy
        self.capacity_units = 0
        for pool in self.pools.values():
            pool.rate = policy.rate_of(pool.kind)
            pool.levels = policy.levels_of(pool.kind)
            self.capacity_units += pool.rate * sum(node.filed_capacity for node in pool.nodes)

    @property
    def pools(self) -> Mapping[str, Pool]:
        """All pools by name, in the order of their names, with their nodes in order."""
        if self._unordered:
            self._put_in_order()
        return self._pools

    def healthy_counts(self) -> list[list[int]]:
        """Return how many nodes that take work have each number of GPUs, for each pool by name."""
        return [pool.healthy.counts for pool in self._pools.values()]

    def candidates(self, pool: str | None) -> Collection[Pool]:
        """Return the pools that a request for `pool` (None: any) may use, by name."""
        if self._unordered:
            self._put_in_order()
        if pool is None:
            return self._pools.values()
        return self._by_kind.get(pool, ())

    def add(self, node: Node) -> None:
        """Take a new node into its pool."""
        self.nodes[node.id] = node
        pool = self._pools.get(node.home)
        if pool is None:
            rate, levels = self._policy.rate_of(node.pool), self._policy.levels_of(node.pool)
            pool = self._pools[node.home] = Pool(node.home, node.pool, rate, levels)
            self._sort_pools()
        pool.join(node)
        self._unordered[pool.id] = pool
        pool.installed.add(node.gpus, 1)
        node.filed_free = node.filed_reclaimable = node.filed_takeable = node.filed_capacity = 0
        node.filed_healthy = False
        self.refile(node)

    def remove(self, node: Node) -> None:
        """Forget a node."""
        pool = self._pools[node.home]
        self.capacity_gpus -= node.filed_capacity
        self.capacity_units -= node.filed_capacity * pool.rate
        pool.leave(node)
        pool.installed.add(node.gpus, -1)
        if node.filed_healthy:
            pool.healthy.add(node.gpus, -1)
        del self.nodes[node.id]
        if pool.is_empty:
            del self._pools[pool.id]
            self._unordered.pop(pool.id, None)
            self._sort_pools()
        else:
            self._unordered[pool.id] = pool

    def _put_in_order(self) -> None:
        for pool in self._unordered.values():
            pool.put_in_order()
        self._unordered = {}

    def _sort_pools(self) -> None:
        self._pools = dict(sorted(self._pools.items()))
        self._by_kind = {}
        for pool in self._pools.values():
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
        if (
            takes_work is node.filed_healthy
            and offered == node.filed_free
            and reclaimable == node.filed_reclaimable
            and takeable == node.filed_takeable
            and capacity == node.filed_capacity
        ):
            return
        pool = self._pools[node.home]
        is_filed = node.index != _UNFILED
        if takes_work is not node.filed_healthy:
            pool.healthy.add(node.gpus, 1 if takes_work else -1)
            if is_filed:
                pool.working ^= 1 << node.index
            node.filed_healthy = takes_work
        if offered > node.filed_free or reclaimable > node.filed_reclaimable or takeable > node.filed_takeable:
            self.gains += 1
        if offered != node.filed_free:
            if is_filed:
                pool.free.move(node.index, node.filed_free, offered)
            node.filed_free = offered
        if reclaimable != node.filed_reclaimable:
            if is_filed:
                pool.reclaimable.move(node.index, node.filed_reclaimable, reclaimable)
            node.filed_reclaimable = reclaimable
        if takeable != node.filed_takeable:
            if is_filed:
                pool.takeable.move(node.index, node.filed_takeable, takeable)
            node.filed_takeable = takeable
        if capacity != node.filed_capacity:
            self.capacity_gpus += capacity - node.filed_capacity
            self.capacity_units += (capacity - node.filed_capacity) * pool.rate
            node.filed_capacity = capacity
