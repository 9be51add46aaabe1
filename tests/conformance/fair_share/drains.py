"""Kinds about nodes that are emptied: for a gang that waits, or because something is wrong with them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from streamsched.model.commands import Stop
from streamsched.model.events import ReleaseOutcome
from streamsched.model.quantities import HOUR, MINUTE
from streamsched.scheduling.decision import decide
from tests.conformance.cases import Case
from tests.conformance.fair_share.worlds import BARE, World
from tests.stories import drained as drain_changed
from tests.stories import node


def drain_reservation(case: Case) -> tuple[Any, Any]:
    """When a gang can start that must wait for protections, where, and what may run there meanwhile."""
    given = case.given
    world = _drained(case)
    (promise,) = world.state.reservations.values()
    return case.expected, {
        "start_min": Fraction(promise.start_ms, MINUTE),
        "nodes": sorted(promise.nodes),
        "allowed": [_is_backfilled(_drained(case), **request) for request in given["backfill"]],
    }


def _drained(case: Case) -> World:
    """Return a world whose nodes become takeable one by one, with a promise to a gang."""
    given = case.given
    policy = {**BARE, "reservations": 1, "reserve_after_ms": 0}
    world = World(policy, [node(name) for name in given["node_reclaimable_min"]])
    world.fund({"claimant": Fraction(1, 2), "holder": Fraction(1, 4), "other": Fraction(1, 4)})
    for name, minutes in given["node_reclaimable_min"].items():
        if minutes:
            world.seat(f"on-{name}", "holder", [(name, 8)], min_runtime_ms=minutes * MINUTE)
    world.ask("gang", "claimant", given["nodes_needed"])
    world.settle()
    return world


def _is_backfilled(world: World, *, node: str, at_min: int, min_runtime_min: int) -> bool:
    world.at(at_min * MINUTE)
    world.ask("small", "other", 1, min_runtime_ms=min_runtime_min * MINUTE)
    proposal = decide(world.state)
    placements = () if proposal is None else proposal.placements
    return [seat.node for item in placements if item.workload == "small" for seat in item.seats] == [node]


def drain_host(case: Case) -> tuple[Any, Any]:
    """When each run leaves a node that is drained softly, and when the node can be repaired."""
    given = case.given
    flagged_ms = _clock(given["flagged"])
    grace_ms = given["grace_s"] * 1_000
    names = sorted({name for run in given["runs"] for name in run.get("gang_nodes", ())}) or ["n5"]
    drained, quarter = names[0], 2
    world = World({**BARE, "grace_ms": grace_ms}, [node(name) for name in names])
    world.fund({"a": Fraction(1)})
    for run in sorted(given["runs"], key=lambda run: _clock(run.get("started", given["flagged"]))):
        world.at(_clock(run.get("started", given["flagged"])) - (0 if "started" in run else HOUR // 2))
        where = [(name, quarter) for name in run.get("gang_nodes", [drained])]
        least_ms = run["min_runtime_h"] * HOUR
        world.seat(run["id"], "a", where, min_runtime_ms=least_ms, resumable=False)
    world.at(flagged_ms)
    evicted, emptied_ms = _empty(world, drained, grace_ms)
    return case.expected, {
        "evict_at": {run: _time(moment) for run, moment in evicted.items()},
        "repair_from": _time(emptied_ms),
    }


def _empty(world: World, name: str, grace_ms: int) -> tuple[dict[str, int], int]:
    """Drain a node, each run taking the whole grace to stop; return when each was stopped, and when it was empty."""
    effects = world.tell(drain_changed(name))
    stopped: dict[str, int] = {}
    for _ in range(24 * 60):
        for command in effects.commands:
            if isinstance(command, Stop):
                stopped.setdefault(command.workload, world.now_ms)
        for run, since_ms in stopped.items():
            if since_ms + grace_ms == world.now_ms:
                world.end(run, ReleaseOutcome.STOPPED)
        if not world.state.nodes[name].held:
            return stopped, world.now_ms
        effects = world.at(world.now_ms + MINUTE).tick()
    raise AssertionError(f"{name} was not empty after a day")


def _clock(text: str) -> int:
    hour, minute = text.split(":")
    return int(hour) * HOUR + int(minute) * MINUTE


def _time(moment_ms: int) -> str:
    return f"{moment_ms // HOUR:02}:{moment_ms % HOUR // MINUTE:02}"
