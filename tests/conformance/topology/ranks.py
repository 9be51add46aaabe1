"""What follows from where ranks sit: their block, their number in it, and how even a placement is."""

from __future__ import annotations

from typing import Any

from streamsched.model.topology import Layer
from streamsched.scheduling.affinity import Ask, symmetric_counts
from tests.conformance.cases import Case
from tests.topologies import forest


def rank(case: Case) -> tuple[Any, Any]:
    """Seat a gang on exactly the nodes of its groups, and find the block of one rank and its number there."""
    groups = case.given["job"]["groups"]
    size = len(groups[0])
    place = forest("sp", {f"g{number}": [8] * len(group) for number, group in enumerate(groups)})
    seating = place.seated(Ask(size * len(groups), 8, (Layer(level="sp", ranks=size),)))
    domains = [int(place.tree.domain_of[0][index]) for index, here in seating.seats for _ in range(here)]
    asked = case.given["job"]["rank"]
    group = domains[asked]
    return case.expected, {"group": group, "local": asked - domains.index(group), "error": False}


def logical_groups(case: Case) -> tuple[Any, Any]:
    """How large the groups are that collective communication may use, and how many."""
    group, groups = symmetric_counts(case.given["job"]["counts"])
    return case.expected, {"logical_group": group, "logical_groups": groups}
