"""Requests that cannot be kept: refused before any search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsched.model.topology import Layer, TopologyRequest, objection_to, objection_to_levels
from tests.conformance.cases import Case

#: What the gang of a case that does not say is: a multiple of the sizes that such cases name.
_RANKS = 12


def validation(case: Case) -> tuple[Any, Any]:
    """Whether a request stands. The reasons are in the words of others: ours are tried where they are written."""
    job = case.given["job"]
    ranks = job.get("pods", _RANKS)
    request = TopologyRequest(layers=_layers(job, case.given["levels"]))
    objection = objection_to(request, ranks, 1) or objection_to_levels(
        request, ranks, tuple(case.given["levels"]), "the pool"
    )
    return {"valid": case.expected["valid"]}, {"valid": objection is None}


def _layers(job: Mapping[str, Any], levels: list[str]) -> tuple[Layer, ...]:
    if "affinity" in job:
        return tuple(Layer(level=level, ranks=job["affinity"][level]) for level in levels if level in job["affinity"])
    if "segment" in job:
        return (Layer(level=levels[-1], ranks=job["segment"]),)
    scope = Layer(level=job["scope"])
    if "layer" in job:
        return (scope, Layer(level=job["layer"], ranks=job["size"]))
    return (scope, *(Layer(level=level, ranks=size) for level, size in job["layers"]))
