"""Gangs seated by the search, in a tree that is built from the nodes of the case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from streamsched.model.topology import Preference
from streamsched.scheduling.affinity import Ask, NoFit, Seating, domain_counts, reserve_places, seat_gang, violations
from streamsched.scheduling.fragmentation import Counts, Nesting, blocks_that_fit, fragment_scores, strays_of
from streamsched.state.inventory import Node
from streamsched.state.topology import PoolTree
from tests.conformance.cases import Case
from tests.conformance.topology.requests import PREFERENCES, ask_of


@dataclass(frozen=True, slots=True)
class Found:
    """A gang, where it was looked for, and what was found.

    Attributes:
        gpus: What each node has.
        free: What each node offers.
        reserve: The place of each node among the reserved ones of its domain.
    """

    tree: PoolTree
    names: tuple[str, ...]
    gpus: Counts
    free: Counts
    reserve: Counts | None
    ask: Ask
    seating: Seating | NoFit

    @property
    def seats(self) -> tuple[tuple[int, int], ...]:
        """Nodes and ranks there, in rank order; none where the gang has no room."""
        return self.seating.seats if isinstance(self.seating, Seating) else ()

    @property
    def nodes(self) -> list[int]:
        """The node of each rank."""
        return [index for index, here in self.seats for _ in range(here)]

    def name(self, level: str, domain: int) -> str:
        """The name of a domain at its own level."""
        return self.tree.paths[self.tree.levels.index(level)][domain][-1]

    def by_domain(self, level: str) -> dict[str, int]:
        """How many ranks are in each domain of a level that has some."""
        counts = domain_counts(self.tree, self.seats)[level]
        return {self.name(level, domain): ranks for domain, ranks in counts.items()}

    def by_node(self, nodes: list[int]) -> dict[str, int]:
        """How many of some ranks are on each node."""
        return {self.names[index]: nodes.count(index) for index in nodes}

    def room(self, level: str) -> dict[str, int]:
        """How many ranks each domain of a level has room for, alone."""
        slots = self.free // self.ask.gpus_per_rank
        sums = np.add.reduceat(slots, self.tree.starts[self.tree.levels.index(level)][:-1])
        return {self.name(level, domain): int(ranks) for domain, ranks in enumerate(sums)}


def placement(case: Case) -> tuple[Any, Any]:
    """Seat a gang, and answer what the case asks of the seats. What the gang requires must hold in any case."""
    expected = {question: answer for question, answer in case.expected.items() if question != "note"}
    by_policy = expected.pop("by_policy", None)
    if by_policy is not None:
        for policy, answers in by_policy.items():
            expected[policy] = {"feasible": expected["feasible"], **answers}
        del expected["feasible"]
        return expected, {
            policy: _answers(_search(case.given, Preference(policy)), answers) for policy, answers in expected.items()
        }
    preference = PREFERENCES[case.given["job"].get("policy") or "bandwidth_first"]
    return expected, _answers(_search(case.given, preference), expected)


def _search(given: Mapping[str, Any], preference: Preference) -> Found:
    job = given["job"]
    entries = _synthetic(given["levels"], given["synthetic"]) if "synthetic" in given else given["nodes"]
    nodes = sorted(
        ((Node(entry["name"], "gpu", entry["gpus"], tuple(entry["path"]), now_ms=0), entry) for entry in entries),
        key=lambda pair: pair[0].place_key,
    )
    tree = PoolTree(tuple(given["levels"]), [node for node, _ in nodes])
    gpus = np.array([entry["gpus"] for _, entry in nodes], np.int64)
    free = np.array([_offer(entry, is_whole=job.get("whole_node", False)) for _, entry in nodes], np.int64)
    kept = [(level, None, number) for level, number in given.get("reserve", {}).items()]
    reserve = reserve_places(tree, free == gpus, kept) if kept else None
    ask = ask_of(job, preference)
    seating = seat_gang(tree, free, ask, reserve)
    found = Found(tree, tuple(node.id for node, _ in nodes), gpus, free, reserve, ask, seating)
    if isinstance(seating, Seating) and (broken := violations(tree, ask, seating.seats)):
        raise AssertionError(f"a layer is not kept: {broken[0]}")
    return found


def _offer(entry: Mapping[str, Any], *, is_whole: bool) -> int:
    if entry["state"] != "healthy" or (is_whole and entry["used"]):
        return 0
    return int(entry["gpus"] - entry["used"])


def _synthetic(levels: list[str], shape: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a regular tree, all of them free."""
    paths: list[list[str]] = [[]]
    for level in (*levels, "node"):
        paths = [
            [*path, f"{'-'.join(path[-1:])}{number:03}"] for path in paths for number in range(shape["fanout"][level])
        ]
    return [
        {"name": path[-1], "path": path[:-1], "gpus": shape["gpus"], "used": 0, "state": "healthy"} for path in paths
    ]


def _answers(found: Found, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {question: _ANSWERS[question](found, answer) for question, answer in asked.items()}


def _rank_blocks(found: Found, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of some levels and sizes of which each block of consecutive ranks shares one domain."""
    kept = []
    for entry in asked:
        domains = found.tree.domain_of[found.tree.levels.index(entry["level"])][found.nodes]
        blocks = [
            set(domains[first : first + entry["block"]].tolist()) for first in range(0, len(domains), entry["block"])
        ]
        if all(len(block) == 1 for block in blocks):
            kept.append(entry)
    return kept


def _scores(found: Found, asked: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return the fragment scores and the blocks that fit, of the domains that are asked for; no other kind of score."""
    tree, ask = found.tree, found.ask
    slots = found.free // ask.gpus_per_rank
    nesting = Nesting(tree.levels, ask.ranks, ask.layers)
    blocks = blocks_that_fit(tree, nesting, slots)
    fragments = [rows[0] for rows in fragment_scores(tree, nesting, strays_of(tree, nesting, slots, blocks), ask.score)]
    values = {"fragment": fragments, "allocatable_groups": blocks}
    return {
        kind: {name: value for name, value in _by_name(found, values[kind]).items() if name in domains}
        for kind, domains in asked.items()
        if kind in values
    }


def _by_name(found: Found, by_depth: list[Counts]) -> dict[str, int]:
    named = {"root": int(by_depth[0][0])}
    for level, values in zip(found.tree.levels, by_depth[1:], strict=False):
        named |= {found.name(level, domain): int(value) for domain, value in enumerate(values)}
    return named


def _roles(found: Found) -> dict[str, list[int]]:
    """Return the nodes of the ranks of each group."""
    nodes: dict[str, list[int]] = {}
    first = 0
    for group in found.ask.groups:
        nodes[group.name] = found.nodes[first : first + group.ranks]
        first += group.ranks
    return nodes


def _group_domains(found: Found, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    domains: dict[str, dict[str, list[str]]] = {}
    for group, levels in asked.items():
        nodes = _roles(found)[group]
        domains[group] = {
            level: sorted({found.name(level, domain) for domain in found.tree.domain_of[depth][nodes].tolist()})
            for depth, level in enumerate(found.tree.levels)
            if level in levels
        }
    return domains


def _on_capacity(found: Found, _: Any) -> dict[str, list[int]]:
    """Return how many ranks each node that is used takes, by how many GPUs it has."""
    taken: dict[str, list[int]] = {}
    for index, ranks in sorted(found.seats, key=lambda seat: seat[1]):
        taken.setdefault(str(found.gpus[index]), []).append(ranks)
    return taken


def _ring_edges(found: Found, asked: Mapping[str, int]) -> dict[str, int]:
    """Return how many neighbours in the ring of ranks are in different domains."""
    edges = {}
    for level in asked:
        domains = found.tree.domain_of[found.tree.levels.index(level)][found.nodes].tolist()
        edges[level] = sum(one != other for one, other in pairwise([*domains, domains[0]]))
    return edges


def _fit_groups(found: Found, asked: Mapping[str, Any]) -> dict[str, list[int]]:
    fits = found.seating.fits if isinstance(found.seating, NoFit) else ()
    return {fit.level: [fit.fit, fit.asked] for fit in fits if fit.level in asked}


def _reserve_used(found: Found, _: Any) -> int:
    return 0 if found.reserve is None else sum(1 for index, _ in found.seats if found.reserve[index])


def _sufficient(found: Found, asked: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether domains have a node beside those that are reserved."""
    if found.reserve is None:
        return {}
    beside = found.free * (found.reserve == 0)
    sums = np.add.reduceat(beside, found.tree.starts[0][:-1])
    names = {found.name(found.tree.levels[0], domain): bool(gpus) for domain, gpus in enumerate(sums)}
    return {name: names[name] for name in asked}


#: What cases ask of a placement; each is given what was found and what is expected, which says which domains matter.
_ANSWERS: Mapping[str, Callable[[Found, Any], Any]] = {
    "feasible": lambda found, _: isinstance(found.seating, Seating),
    "bound": lambda found, _: len(found.nodes),
    "passes": lambda found, _: found.seating.passes if isinstance(found.seating, Seating) else None,
    "pods_per_domain": lambda found, levels: {level: found.by_domain(level) for level in levels},
    "pods_per_node": lambda found, _: found.by_node(found.nodes),
    "domains_used": lambda found, levels: {level: len(found.by_domain(level)) for level in levels},
    "domains_set": lambda found, levels: {level: sorted(found.by_domain(level)) for level in levels},
    "fit_groups": _fit_groups,
    "best_fit_pods": lambda found, _: max(found.room(found.ask.layers[0].level).values()),
    "per_domain_fit": lambda found, _: found.room(found.ask.layers[0].level),
    "rank_blocks": _rank_blocks,
    "rank_order": lambda found, _: [found.names[index] for index in found.nodes],
    "role_nodes": lambda found, _: {role: found.by_node(nodes) for role, nodes in _roles(found).items()},
    "group_domains": _group_domains,
    "pods_on_capacity": _on_capacity,
    "cross_domain_ring_edges": _ring_edges,
    "reserve_used_min": _reserve_used,
    "sufficient_reserve": _sufficient,
    "scores": _scores,
}
