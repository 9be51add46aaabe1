"""Kinds about who makes room: who may take from whom, and which runs are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from streamsched.model.quantities import HOUR, MINUTE, SECOND
from tests.conformance.cases import Case, Relation
from tests.conformance.fair_share.worlds import (
    BARE,
    INSTANT,
    World,
    exact_size,
    fractions_of_parents,
    hours,
    number,
    scale_of,
    single_gpus,
)
from tests.stories import node

#: Published cases do not say how long their runs have run. Here they ask for the shortest min runtime and have run for
#: twice that: past their protection, and with less behind them than the guard's floor, for which a claimant is counted.
#: With the same runs a few hours old `kueue-preempt-08` would be allowed: the lead would be large enough by then.
_LEAST = 5 * MINUTE
_AGE = 10 * MINUTE

#: A leaf that owns what a case leaves over of a pool, and holds it under protection, so that it is not to be had.
_REST = "rest"


def swap_times(case: Case) -> tuple[Any, Any]:
    """When two teams with one job each for the whole pool take it from each other."""
    given = case.given
    policy = {**BARE, "guard_floor_ms": hours(number(given["hysteresis_floor_h"]))}
    window_ms = hours(number(given["entitlement_gpu_h"]) * 2 / given["gpus"])
    world = World({**policy, "window_ms": window_ms}, [node("n1", gpus=given["gpus"])])
    world.fund({"X": Fraction(1, 2), "Y": Fraction(1, 2)})
    world.at(window_ms)
    for team in "XY":
        least = hours(number(given["min_runtime_h"]))
        world.ask(team, team, 1, gpus_per_rank=given["gpus"], min_runtime_ms=least, resumable=True)
    world.settle()
    swaps: list[Fraction] = []
    holder = "X"
    while world.now_ms - window_ms < hours(case.expected["swaps_at_h"][-1] + 1):
        world.pass_time(MINUTE)
        world.settle()
        now = next(team for team in "XY" if world.nodes_of(team))
        if now != holder:
            swaps.append(Fraction(world.now_ms - window_ms, HOUR))
            holder = now
    return case.expected, {"swaps_at_h": swaps}


def gang_victims(case: Case) -> tuple[Any, Any]:
    """Which runs go for a gang, and where it sits then. Ratios come from five hours of use against fitting quotas."""
    window_ms, ran_ms, longest_ms = 10 * HOUR, 5 * HOUR, 8 * HOUR
    runs: dict[str, dict[str, Any]] = {}
    for name, held in case.given["nodes"].items():
        for entry in held:
            runs.setdefault(entry["run"], {**entry, "where": []})["where"].append((name, entry["gpus"]))
    inventory = [node(name) for name in case.given["nodes"]]
    capacity = 8 * len(inventory)
    quotas = {
        f"of-{run}": Fraction(_gpus(facts) * ran_ms, capacity * window_ms) / number(facts["ratio"])
        for run, facts in runs.items()
        if "ratio" in facts
    }
    left = (1 - sum(quotas.values(), Fraction(0))) / 3
    world = World({**BARE, "window_ms": window_ms}, inventory)
    world.fund({**quotas, "claimant": left, "protected": left, "spare": left})
    starts: list[tuple[int, str, str, int]] = []
    for run, facts in runs.items():
        if "ratio" in facts:
            starts.append((window_ms - ran_ms, run, f"of-{run}", HOUR))
        elif "protected_until_h" in facts:
            starts.append((window_ms - longest_ms + hours(facts["protected_until_h"]), run, "protected", longest_ms))
        else:
            starts.append((window_ms - ran_ms, run, "spare", 0))
    for start_ms, run, leaf, least_ms in sorted(starts):
        world.at(start_ms)
        world.seat(run, leaf, runs[run]["where"], min_runtime_ms=least_ms)
    world.at(window_ms)
    request = case.given["request"]
    world.ask("claim", "claimant", request["nodes"], gpus_per_rank=request["gpus"])
    world.settle()
    return case.expected, {"nodes": world.nodes_of("claim"), "victims": world.preempted}


def _gpus(facts: Mapping[str, Any]) -> int:
    return sum(gpus for _, gpus in facts["where"])


def reclaim_check(case: Case) -> tuple[Any, Any]:
    """Whether a claimant may take what the named victims hold; whatever else is held cannot be had."""
    vertices = {vertex["id"]: vertex for vertex in case.given["nodes"]}
    parents = {vertex["parent"] for vertex in vertices.values()}

    def path_of(id_: str) -> str:
        parent = vertices[id_]["parent"]
        return id_ if parent is None else f"{path_of(parent)}/{id_}"

    claimant, victims = case.given["claimant"], case.given["victims"]
    scale = scale_of(
        [vertex[field] for vertex in vertices.values() for field in ("deserved", "allocated")]
        + [entry["gpus"] for entry in (claimant, *victims)]
    )
    deserved = {path_of(id_): number(vertex["deserved"]) * scale for id_, vertex in vertices.items()}
    deserved = dict(sorted(deserved.items()))
    held = {path_of(id_): int(number(vertices[id_]["allocated"]) * scale) for id_ in vertices if id_ not in parents}
    promised = sum(amount for path, amount in deserved.items() if "/" not in path)
    pool = exact_size(max(int(promised), sum(held.values())))
    world = World(INSTANT, single_gpus(pool))
    _fund_all(world, [*held, _REST])
    for place, victim in enumerate(victims):
        leaf, gpus = path_of(victim["queue"]), int(number(victim["gpus"]) * scale)
        held[leaf] -= gpus
        world.spread(f"victim-{place}", leaf, gpus, min_runtime_ms=_LEAST)
    world.at(_AGE)
    for leaf, gpus in held.items():
        if gpus:
            world.spread(f"other-of-{leaf.replace('/', '-')}", leaf, gpus, min_runtime_ms=8 * HOUR)
    _fill_up(world)
    world.fund({**fractions_of_parents(deserved, pool), _REST: Fraction(0)})
    world.ask("claim", path_of(claimant["queue"]), int(number(claimant["gpus"]) * scale), gpus_per_rank=1)
    return case.expected, {"allowed": world.victims_of("claim") is not None}


def victim_selection(case: Case) -> tuple[Any, Any]:
    """Which runs on nodes are stopped for what waits, and where that is placed."""
    given = case.given
    deserved = {queue["id"]: Fraction(queue["deserved"]) for queue in given["queues"]}
    shares = {queue: amount / sum(deserved.values()) for queue, amount in deserved.items()}
    world = _with_running(case, shares)
    for job in given["pending"]:
        _submit(world, job)
    world.settle()
    placed = {job["id"]: world.nodes_of(job["id"]) for job in given["pending"]}
    found = {name: where[0] for name, where in placed.items() if where}
    return case.expected, {"victims": world.preempted, "placed": found}


def consolidation(case: Case) -> tuple[Any, Any]:
    """Which runs are moved so that a request fits, though nobody has to go."""
    given = case.given
    deserved = {queue["id"]: queue["deserved"] for queue in given.get("queues", ())} or {"queue0": 1}
    shares = {queue: Fraction(amount, sum(deserved.values())) for queue, amount in deserved.items()}
    world = _with_running(case, shares, resumable=True, consolidation=True)
    for job in given["pending"]:
        _submit(world, job)
    world.settle()
    if "final" in case.expected:
        final = {name: next(iter(world.nodes_of(name)), None) for name in case.expected["final"]}
        return case.expected, {"final": final, "evictions": len(world.preempted)}
    moved = {name: world.nodes_of(name)[0] for name in world.preempted if world.nodes_of(name)}
    placed = {job["id"]: world.nodes_of(job["id"]) for job in given["pending"]}
    return case.expected, {
        "moved": moved,
        "placed": {name: where[0] for name, where in placed.items() if where},
        "still_pending": [name for name, where in placed.items() if not where],
        "evictions": len(world.preempted),
    }


def _with_running(case: Case, shares: Mapping[str, Fraction], *, resumable: bool = False, **policy: Any) -> World:
    """Return the nodes of a case with its runs on them, past their protection."""
    mode = INSTANT if case.relation is Relation.VARIANT else BARE
    world = World({**mode, **policy}, [node(name, gpus=gpus) for name, gpus in case.given["nodes"].items()])
    funded = all(shares[job["queue"]] for job in case.given["running"])
    if funded:
        world.fund(shares)
    else:
        _fund_all(world, shares)
    for job in case.given["running"]:
        where = [(job["node"], job["gpus_per_task"])] * job["tasks"]
        contract = {"min_runtime_ms": _LEAST, "priority": job["priority"], "resumable": resumable}
        world.seat(job["id"], job["queue"], where, **contract)
    if not funded:
        world.fund(shares)
    world.at(_AGE)
    return world


def _submit(world: World, job: Mapping[str, Any]) -> None:
    world.ask(
        job["id"],
        job["queue"],
        job["tasks"],
        gpus_per_rank=job["gpus_per_task"],
        priority=job["priority"],
        min_runtime_ms=_LEAST,
    )


def victim_selection_quota(case: Case) -> tuple[Any, Any]:
    """Which runs are stopped where only numbers of GPUs count; or what each queue holds after each request."""
    if "sequence" in case.given:
        return _containers(case)
    return _cohort(case) if "cluster_queues" in case.given else _cohort_tree(case)


def _cohort(case: Case) -> tuple[Any, Any]:
    given = case.given
    queues, admitted, incoming = given["cluster_queues"], given["admitted"], given["incoming"]
    scale = scale_of([queue["nominal"] for queue in queues] + [job["req"] for job in (*admitted, incoming)])
    nominal = {queue["id"]: number(queue["nominal"]) * scale for queue in queues}
    whole = int(sum(nominal.values()))
    pool = exact_size(whole)
    # A queue of weight nothing may borrow and is owed nothing back.
    shares = {queue["id"]: nominal[queue["id"]] / pool if queue["weight"] else Fraction(0) for queue in queues}
    shares[_REST] = Fraction(pool - whole, pool)
    world = World(INSTANT if case.relation is Relation.VARIANT else BARE, single_gpus(pool))
    funded = all(shares[job["cq"]] for job in admitted) and pool > whole
    if funded:
        world.fund(shares)
    else:
        _fund_all(world, shares)
    if pool > whole:
        world.spread("other", _REST, pool - whole, min_runtime_ms=8 * HOUR)
    _admit(world, [{**job, "gpus": int(number(job["req"]) * scale)} for job in admitted])
    if not funded:
        world.fund(shares)
    return case.expected, {"victims": _victims_of(world, {**incoming, "gpus": int(number(incoming["req"]) * scale)})}


def _cohort_tree(case: Case) -> tuple[Any, Any]:
    """Weights share out a pool that is just what is held."""
    tree, admitted, incoming = case.given["tree"], case.given["admitted"], case.given["incoming"]

    def path_of(id_: str) -> str:
        parent = tree[id_]["parent"]
        return id_ if "parent" not in tree[parent] else f"{path_of(parent)}/{id_}"

    weights: dict[str, Fraction] = {}
    for id_ in tree:
        if "parent" in tree[id_]:
            siblings = [other for other in tree.values() if other.get("parent") == tree[id_]["parent"]]
            weights[path_of(id_)] = number(tree[id_]["weight"]) / sum(number(other["weight"]) for other in siblings)
    world = World(INSTANT, single_gpus(sum(job["req"] for job in admitted)))
    world.fund(dict(sorted(weights.items())))
    _admit(world, [{**job, "cq": path_of(job["cq"]), "gpus": job["req"]} for job in admitted])
    return case.expected, {
        "victims": _victims_of(world, {**incoming, "cq": path_of(incoming["cq"]), "gpus": incoming["req"]})
    }


def _admit(world: World, jobs: Iterable[Mapping[str, Any]]) -> None:
    """Let jobs run. Of equal ones the cases take the first by id and ours the youngest: the first by id starts last."""
    for late, job in enumerate(sorted(jobs, key=lambda job: str(job["id"]), reverse=True)):
        world.at(late * SECOND)
        world.spread(job["id"], job["cq"], job["gpus"], min_runtime_ms=_LEAST, priority=job["priority"])


def _victims_of(world: World, job: Mapping[str, Any]) -> list[str]:
    """Submit a job once what runs is past its protection; return whom it displaces."""
    world.at(_AGE)
    contract = {"gpus_per_rank": 1, "priority": job["priority"], "min_runtime_ms": _LEAST}
    world.ask(job["id"], job["cq"], job["gpus"], **contract)
    world.settle()
    return sorted(world.preempted)


def _containers(case: Case) -> tuple[Any, Any]:
    """A queue with small containers has everything; two others ask, one after the other, for twice the size."""
    world = World(INSTANT, [node(f"n{place}", gpus=size) for place, size in enumerate(case.given["nodes_gb"])])
    half = Fraction(1, 2)
    leaves = {"child-1": "parent/child-1", "child-2": "parent/child-2", "sibling": "sibling"}
    world.fund({"parent": half, "parent/child-1": half, "parent/child-2": half, "sibling": half})

    def arrive(leaf: str, count: int, size: int) -> dict[str, int]:
        world.pass_time(HOUR)
        for place in range(count):
            world.ask(f"{leaf}-{place}", leaves[leaf], 1, gpus_per_rank=size, min_runtime_ms=_LEAST)
        world.settle()
        held = {leaf: world.state.budgets.by_id[path].allocated_gpus for leaf, path in leaves.items()}
        return {f"{leaf}_gb": gpus for leaf, gpus in held.items() if gpus}

    arrive("child-1", sum(case.given["nodes_gb"]), 1)
    return case.expected, {"after_second": arrive("sibling", 4, 2), "after_third": arrive("child-2", 4, 2)}


def _fund_all(world: World, leaves: Iterable[str]) -> None:
    """Let every leaf have a quota for now: runs of a leaf that has none were started before it lost it."""
    names = list(leaves)
    paths = sorted({"/".join(leaf.split("/")[:depth]) for leaf in names for depth in range(1, leaf.count("/") + 2)})
    world.fund({path: Fraction(1, len(paths)) for path in paths})


def _fill_up(world: World) -> None:
    """Let the rest hold every free GPU, under protection."""
    free = sum(vertex.free_mask.bit_count() for vertex in world.state.nodes.values())
    if free:
        world.spread("other", _REST, free, min_runtime_ms=8 * HOUR)
