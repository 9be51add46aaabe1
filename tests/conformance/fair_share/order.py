"""Kinds about whose turn it is."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from streamsched.model.events import RoundProposed
from streamsched.model.quantities import HOUR
from streamsched.scheduling.decision import decide
from streamsched.scheduling.draft import Draft
from streamsched.scheduling.fair_share import comes_before, standing
from tests.conformance.cases import Case
from tests.conformance.fair_share.accounting import past_use
from tests.conformance.fair_share.worlds import BARE, Spell, World, hours, number
from tests.stories import nodes


def tree_order(case: Case) -> tuple[Any, Any]:
    """The order of leaves by the walk from the root, and what the leaves' ratios alone would give."""
    given = case.given
    window_ms, pool = hours(given["window_h"]), given["pool_gpus"]
    fractions: dict[str, Fraction] = {}
    used: dict[str, Fraction] = {}
    for programme, inside in given["tree"].items():
        fractions[programme] = number(inside["w"])
        for team, leaf in inside.items():
            if team != "w":
                fractions[f"{programme}/{team}"] = number(leaf["w"])
                used[f"{programme}/{team}"] = number(leaf["used"])
    world = World({**BARE, "window_ms": window_ms}, nodes(pool, gpus=1))
    world.fund(fractions)
    # Everybody's use lies in the same hours, in which the pool is shared out in proportion to it.
    length = -(-sum(used.values()) // pool)
    while any((use / length).denominator > 1 for use in used.values()):
        length += 1
    end_ms = window_ms - HOUR
    world.play(Spell(leaf, int(use / length), end_ms - hours(length), end_ms) for leaf, use in used.items())
    world.at(window_ms)
    for leaf in used:
        world.ask(f"next-of-{leaf.rsplit('/', 1)[-1]}", leaf, 1, gpus_per_rank=1)

    draft = Draft(world.state)
    left = {leaf: standing(world.state.budgets.by_id[leaf], draft, allocated=True) for leaf in used}
    flat: list[str] = []
    while left:
        first = next(leaf for leaf in left if not any(comes_before(other, left[leaf]) for other in left.values()))
        flat.append(first.rsplit("/", 1)[-1])
        del left[first]
    return case.expected, {
        "leaf_order": [name.removeprefix("next-of-") for name in _turns(world)],
        "flat_order": flat,
    }


def order_with_commitment(case: Case) -> tuple[Any, Any]:
    """A burst of two teams in one decision, with what is promised counted as used and without."""
    return case.expected, {
        "sequence": _burst(case, commitment=True),
        "without_commitment": _burst(case, commitment=False),
    }


def _burst(case: Case, *, commitment: bool) -> list[str]:
    given = case.given
    pool = given["free_gpus"]
    worth = {team: number(value) for team, value in given["entitlement_gpu_h"].items()}
    window_ms = hours(sum(worth.values()) / pool)
    world = World({**BARE, "window_ms": window_ms, "commitment": commitment}, nodes(pool // 8))
    world.fund({team: value / sum(worth.values()) for team, value in worth.items()})
    spells = [
        past_use(team, number(use) * HOUR, pool, end_ms=window_ms - HOUR)
        for team, use in given["used_gpu_h"].items()
        if number(use)
    ]
    world.play(spells)
    world.at(window_ms)
    for place, sizes in enumerate(zip(*given["queue"].values(), strict=True)):
        for team, size in zip(given["queue"], sizes, strict=True):
            world.ask(f"{team}-{place}", team, 1, gpus_per_rank=size, min_runtime_ms=hours(given["min_runtime_h"]))
    return [name.split("-")[0] for name in _turns(world)]


def _turns(world: World) -> list[str]:
    proposal: RoundProposed | None = decide(world.state)
    return [] if proposal is None else [item.workload for item in proposal.placements]
