"""Kinds about protected time, and what happens on nodes that are to be emptied."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from streamsched.model.quantities import SECOND
from tests.conformance.cases import Case
from tests.conformance.fair_share.worlds import BARE, World
from tests.stories import nodes


def min_runtime_protection(case: Case) -> tuple[Any, Any]:
    """Whether a run of that age may be stopped for another team: protection alone decides, so the guard is off."""
    given = case.given
    world = World({**BARE, "guard": False}, nodes(1))
    world.fund({"claimant": Fraction(1, 2), "holder": Fraction(1, 2)})
    world.seat("run", "holder", [("n1", 8)], min_runtime_ms=given["min_runtime_s"] * SECOND)
    world.at(given["age_s"] * SECOND)
    world.ask("claim", "claimant", 1)
    return case.expected, {"may_be_victim": world.victims_of("claim") == ["run"]}
