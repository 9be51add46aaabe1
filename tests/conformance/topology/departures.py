"""Cases that ours departs from, with what it does instead, and those that ask for what it does not have."""

from __future__ import annotations

from collections.abc import Mapping

from tests.conformance.cases import Case, Relation
from tests.conformance.running import Departure

DEPARTURES: Mapping[str, Departure] = {
    "mc-04b": Departure(
        {"valid": True},
        "a matter of how requests are written, not of what they ask. MindCluster numbers its levels and wants each "
        "from the finest up; ours names them, and blocks of 4 in one level2, without a word on level1, can be kept",
    ),
    "kq-24b": Departure(
        {"valid": True},
        "a matter of how requests are written, not of what they ask. Kueue wants a size with each slice; in ours a "
        "layer without one means the whole gang, here on one node",
    ),
    "kq-34": Departure(
        {"feasible": True, "pods_per_node": {"x2": 4, "x4": 4}},
        "best fit cuts the last rack into the smallest nodes that do: 2 + 2 on x3 and x4. Bandwidth first counts "
        "nodes before what is left over: x4 takes 4 of its 4, so two nodes instead of three",
    ),
    "vc-06": Departure(
        {"feasible": True, "role_nodes": {"p1": {"s0-n1": 1}, "p2": {"s0-n2": 1}}, "scores": {}},
        "the seats are the published ones; the score of used and requested over allocatable is not one of ours",
    ),
    "vc-09": Departure(
        {"feasible": True, "domains_set": {"tier1": ["s2"]}},
        "packing fills the fullest switch, s1: 2 ranks on each of its two nodes, 7 of 8 GPUs free. Under tier2 and "
        "pairs under tier1, ours takes one node for all 4 ranks of 2 GPUs, and only n4 to n7 hold 8: n4 in s2",
    ),
}

#: Policies of other schedulers that ours does not have.
_POLICIES: Mapping[str, str] = {
    "balanced": "the policy spreads evenly over few domains: the most ranks in the domain with the fewest. Ours asks "
    "for equal numbers (`symmetric`) or does not",
    "idlest": "the policy takes the emptiest domain, for serving. Ours packs under either preference",
}


def left_out(case: Case) -> str:
    """Return why a case is not run; empty when it is."""
    policy = case.given["job"].get("policy", "")
    if case.kind == "metric" and "counts" not in case.given["job"]:
        return "a figure of another scheduler, which ours neither decides by nor reports"
    if case.relation is Relation.POLICY and policy in _POLICIES:
        return f"policy {policy}: {_POLICIES[policy]}"
    return ""
