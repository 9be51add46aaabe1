"""A gang of 64 nodes, 8 to a rack and 64 to a leaf, in trees of up to 125,000 nodes: the search, and a whole decision.

Racks have 32 nodes and leaves 16 racks, so that such a gang fits with 70 % of the nodes taken at random. With 95 %
taken it does not, and that must be found out. The tree of a pool is kept from one decision to the next.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator
from functools import cache, partial
from random import Random

import numpy as np

from streamsched.model.events import Drain
from streamsched.model.policy import Levels
from streamsched.model.topology import Layer, Preference, TopologyRequest
from streamsched.scheduling.affinity import Ask, Seating, seat_gang
from streamsched.scheduling.decision import decide
from streamsched.scheduling.memory import Memory
from streamsched.state.cluster import ClusterState
from streamsched.state.inventory import Node
from streamsched.state.topology import PoolTree
from tests.benchmarks.clusters import LEAVES, budget_tree, fold
from tests.benchmarks.measuring import Bound, Limit, Result, seconds
from tests.stories import adopted, cancelled, drained, node, submitted

RACK, RACKS = 32, 16
LEVELS = ("leaf", "rack")
RANKS = 64
LAYERS = (Layer(level="leaf", ranks=64), Layer(level="rack", ranks=8))
#: Percent of the nodes that are taken; with the last, the gang has no room.
TAKEN = (0, 30, 70, 95)

#: Milliseconds by number of nodes, and how much longer ten times as many nodes may take.
MILLISECONDS_MAX = {1_250: None, 12_500: Limit(Bound.AT_MOST, 10), 125_000: Limit(Bound.AT_MOST, 60)}
GROWTH_MAX = Limit(Bound.AT_MOST, 8)


def measure() -> Iterator[Result]:
    """Measure the search for both preferences, then whole decisions; yield each result when it is known."""
    for preference in Preference:
        for percent in TAKEN:
            what = f"64 nodes, {preference.replace('_', ' ')}, {_in_words(percent)}"
            yield from _rows(what, {nodes: searching(nodes, percent, preference) for nodes in MILLISECONDS_MAX})
    taken: dict[str, dict[int, float]] = {}
    changes: dict[str, dict[int, float]] = {}
    for nodes in MILLISECONDS_MAX:
        world = World(nodes)
        for percent in TAKEN:
            world.take(percent)
            for preference in Preference:
                what = (
                    f"a submission of that gang and its decision, {preference.replace('_', ' ')}, {_in_words(percent)}"
                )
                taken.setdefault(what, {})[nodes] = world.deciding(preference)
            what = f"a node taken out and put back, {_in_words(percent)}"
            changes.setdefault(what, {})[nodes] = world.changing_a_node()
    for what, times in taken.items():
        yield from _rows(what, times)
    for what, times in changes.items():
        for nodes, time in times.items():
            yield Result(f"{what}, {nodes:,} nodes", 1e6 * time, "us")
    for nodes in MILLISECONDS_MAX:
        yield Result(f"the tree built anew, {nodes:,} nodes", 1e3 * building(nodes), "ms")


def searching(nodes: int, percent: int, preference: Preference, rounds: int = 9) -> float:
    """Return the median time of a search, in seconds, with so much taken of so many nodes."""
    tree = _tree(nodes)
    free = np.where([_fate(number) < percent for number in range(nodes)], 0, 8).astype(np.int16)
    ask = Ask(RANKS, 8, LAYERS, preference=preference)
    if isinstance(seat_gang(tree, free, ask), Seating) is (percent == TAKEN[-1]):
        raise AssertionError(f"of {nodes} nodes {percent} % are taken, and the gang fits otherwise than is said")
    return statistics.median(seconds(partial(seat_gang, tree, free, ask), collect=False) for _ in range(rounds))


def building(nodes: int) -> float:
    """Return the time to cut so many nodes into domains, in seconds: after nodes came, went or were relabelled."""
    filed = _nodes(nodes)
    return statistics.median(seconds(partial(PoolTree, LEVELS, filed)) for _ in range(3))


class World:
    """A cluster of so many nodes, of which some take no work."""

    def __init__(self, nodes: int) -> None:
        self._state = ClusterState()
        self._memory = Memory()
        self._submissions = 0
        self._nodes = nodes
        self._percent = 0
        fold(self._state, 0, [budget_tree(), adopted(levels=(Levels(names=LEVELS),), nodes_per_headroom_node=0)])
        fold(self._state, 0, (node(one.id, domains=one.domains) for one in _nodes(nodes)))

    def take(self, percent: int) -> None:
        """Take more nodes out of use, until it is that many in a hundred."""
        taken = (number for number in range(self._nodes) if self._percent <= _fate(number) < percent)
        fold(self._state, 0, (drained(_name(number), Drain.SOFT) for number in taken))
        self._percent = percent
        gc.collect()

    def deciding(self, preference: Preference, rounds: int = 9) -> float:
        """Return the median time to fold a submission of the gang and to decide, in seconds."""
        return statistics.median(self._submission(preference) for _ in range(rounds))

    def changing_a_node(self, rounds: int = 50) -> float:
        """Return the median time to fold that one node takes no work, and takes work again, in seconds."""
        spare = next(number for number in range(self._nodes) if _fate(number) >= self._percent)
        changes = [drained(_name(spare), drain) for drain in (Drain.SOFT, Drain.NONE)]
        work = partial(fold, self._state, 0, changes)
        return statistics.median(seconds(work, collect=False) for _ in range(rounds))

    def _submission(self, preference: Preference) -> float:
        self._submissions += 1
        name = f"gang-{self._submissions}"
        topology = TopologyRequest(layers=LAYERS, preference=preference)
        request = submitted(name, budget=LEAVES[0], ranks=RANKS, topology=topology)
        proposals: list[object] = []

        def submit_and_decide() -> None:
            fold(self._state, 0, [request])
            proposals.append(decide(self._state, self._memory))

        taken = seconds(submit_and_decide, collect=False)
        if (proposals[0] is None) is not (self._percent == TAKEN[-1]):
            raise AssertionError(f"{name} is decided otherwise than it fits: {proposals[0]}")
        fold(self._state, 0, [cancelled(name)])
        return taken


def _rows(what: str, taken: dict[int, float]) -> Iterator[Result]:
    for nodes, time in taken.items():
        yield Result(f"{what}, {nodes:,} nodes", 1e3 * time, "ms", limit=MILLISECONDS_MAX[nodes])
    yield Result(f"{what}: 125,000 / 12,500 nodes", taken[125_000] / taken[12_500], limit=GROWTH_MAX)


def _in_words(percent: int) -> str:
    return "empty" if not percent else f"{percent} % taken{', no room' if percent == TAKEN[-1] else ''}"


@cache
def _fate(number: int) -> int:
    """Return from which percentage on a node is among the taken ones, exclusively."""
    return Random(number).randrange(100)


def _name(number: int) -> str:
    return f"node-{number:06d}"


@cache
def _tree(nodes: int) -> PoolTree:
    return PoolTree(LEVELS, _nodes(nodes))


def _nodes(count: int) -> list[Node]:
    """Return nodes in the order of their places."""
    return [
        Node(_name(number), "gpu", 8, (f"leaf-{number // (RACK * RACKS):04d}", f"rack-{number // RACK:05d}"), now_ms=0)
        for number in range(count)
    ]
