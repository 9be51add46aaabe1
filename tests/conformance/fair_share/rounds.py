"""Kind `rounds`: work arrives in rounds; what is placed and what is preempted in each, by queue."""

from __future__ import annotations

from typing import Any

from streamsched.model.events import Drain
from streamsched.model.quantities import HOUR, SECOND
from tests.conformance.cases import Case, Relation
from tests.conformance.fair_share.worlds import BARE, INSTANT, World, number
from tests.stories import drained, node


def rounds(case: Case) -> tuple[Any, Any]:
    """CPUs of a case are GPUs here, each on a node of its own; a node of the case is a group of them.

    Everything is past its protection when the next round begins. The time between rounds doubles, so that what arrived
    in a round has used more by the next one than what it displaced.
    """
    given = case.given
    groups = [[f"n{place}-{cpu:02}" for cpu in range(cpus)] for place, cpus in enumerate(given["node_cpus"])]
    mode = INSTANT if case.relation is Relation.VARIANT else BARE
    world = World(mode, [node(name, gpus=1) for group in groups for name in group])
    weights = {queue: 1 / number(factor) for queue, factor in given["priority_factor"].items()}
    world.fund({queue: weight / sum(weights.values()) for queue, weight in weights.items()})
    expected: list[Any] = []
    found: list[Any] = []
    gap_ms = HOUR
    sizes: dict[str, int] = {}
    for place, step in enumerate(given["rounds"]):
        placed, preempted = len(world.placed), len(world.preempted)
        for group in step.get("cordon", ()):
            world.tell(drained(name, Drain.CORDON) for name in groups[group])
        for queue, count in step.get("submit_1cpu_jobs", {}).items():
            for job in range(count):
                name = f"{queue}-{place}-{job:02}"
                sizes[name] = 1
                world.ask(name, queue, 1, gpus_per_rank=1, min_runtime_ms=SECOND)
        for queue, gang in step.get("submit_gang", {}).items():
            name = f"{queue}-{place}"
            sizes[name] = gang["members"] * gang["cpus"]
            world.ask(name, queue, gang["members"], gpus_per_rank=gang["cpus"], min_runtime_ms=SECOND)
        world.settle()
        expected.append(step["expect"])
        found.append(
            {
                "placed": _by_queue(world.placed[placed:], sizes),
                "preempted": _by_queue(world.preempted[preempted:], sizes),
            }
        )
        world.pass_time(gap_ms)
        gap_ms *= 2
    return {"rounds": expected}, {"rounds": found}


def _by_queue(names: list[str], sizes: dict[str, int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        queue = name.split("-", maxsplit=1)[0]
        counts[queue] = counts.get(queue, 0) + sizes[name]
    return counts
