"""A state as bytes and back, and its digest.

The bytes are canonical: two folds of one history give the same, on any machine. What is derived (indexes, timers) is
left out and built again, so a snapshot proves the facts and not the data structures.
"""

from __future__ import annotations

import hashlib
from collections import deque
from operator import attrgetter
from typing import Any

import orjson
from pydantic import TypeAdapter

from streamsched.model.commands import AnyCommand, Command, StopReason
from streamsched.model.events import BudgetTreeChanged, Drain, NodeHealth, Seat
from streamsched.model.policy import Policy
from streamsched.model.topology import TopologyRequest
from streamsched.state.cluster import LAYOUT, ClusterState, SourceGap
from streamsched.state.disruption import DisruptionBudget
from streamsched.state.fading import FadingSum
from streamsched.state.inventory import Node
from streamsched.state.recoveries import Recovering
from streamsched.state.reservations import Reservation
from streamsched.state.usage import Budget, BudgetTree, SlidingUse
from streamsched.state.workloads import Commitment, Finished, Phase, Run, Workload, is_unprotected

_COMMAND: TypeAdapter[Command] = TypeAdapter(AnyCommand)


def freeze(state: ClusterState) -> bytes:
    """Return the whole state as canonical JSON: sorted keys, integers and strings only."""
    budgets = _budgets_in_order(state.budgets)
    number = {id(budget): position for position, budget in enumerate(budgets)}
    return orjson.dumps(
        {
            "layout": LAYOUT,
            "next_cursor": state.next_cursor,
            "now_ms": state.now_ms,
            "protocol": state.protocol,
            "policy": state.policy.model_dump(mode="json"),
            "policy_version": state.policy_version,
            "closed_round": state.closed_round,
            "last_tick": state.last_tick,
            "workloads": [
                _workload_out(state.workloads[id_], number[id(state.workloads[id_].budget)])
                for id_ in sorted(state.workloads)
            ],
            "finished": list(map(_finished_out, state.finished.values())),
            "nodes": [_node_out(state.nodes[id_]) for id_ in sorted(state.nodes)],
            "awaited_nodes": [[id_, *state.awaited_nodes[id_]] for id_ in sorted(state.awaited_nodes)],
            "budgets": [_budget_out(budget, number) for budget in budgets],
            "tree": _tree_out(state.budgets, number),
            "sources": [[src, state.sources[src]] for src in sorted(state.sources)],
            "gaps": [[gap.src, gap.expected, gap.found, gap.cursor] for gap in state.gaps],
            "rejected": state.rejected,
            "ignored": [[why, state.ignored[why]] for why in sorted(state.ignored)],
            "void": [[why, state.void[why]] for why in sorted(state.void)],
            "unacknowledged": [command.model_dump(mode="json") for command in state.unanswered_commands()],
            "sent": state.dispatch.resends(),
            "reservations": [
                [r.workload, r.pool, r.nodes, r.start_ms, r.since_ms, r.cursor] for r in state.reservations.values()
            ],
            "recoveries": [_recovery_out(recovery) for recovery in state.recoveries.values()],
            "disruption": [[pool, d.spent, d.as_of_ms] for pool, d in sorted(state.disruption.items())],
            "adjustments": [list(item) for item in state.adjustments.items()],
            "scheduled": [fact.model_dump(mode="json") for fact in state.scheduled],
            "hashed": state.hashed,
            "next_hash": state.next_hash,
        },
        option=orjson.OPT_SORT_KEYS,
    )


def digest(state: ClusterState) -> str:
    """Return the SHA-256 of the frozen state, in hex."""
    return hashlib.sha256(freeze(state)).hexdigest()


def thaw(data: bytes) -> ClusterState:
    """Return the state that `freeze` wrote. It goes on exactly as the frozen one would have.

    Raises:
        ValueError: The bytes are no snapshot of this layout.
    """
    fields: dict[str, Any] = orjson.loads(data)
    if fields.get("layout") != LAYOUT:
        raise ValueError(f"the snapshot has layout {fields.get('format')!r}, not {LAYOUT}; fold the ledger instead")
    state = ClusterState(Policy.model_validate_json(orjson.dumps(fields["policy"])))
    state.next_cursor = fields["next_cursor"]
    state.now_ms = fields["now_ms"]
    state.protocol = fields["protocol"]
    state.policy_version = fields["policy_version"]
    state.closed_round = fields["closed_round"]
    state.last_tick = fields["last_tick"]
    budgets = _tree_in(state.budgets, fields["tree"], fields["budgets"])
    for item in fields["nodes"]:
        node = _node_in(item)
        state.inventory.add(node)
        state.timers.hold_down(node)
        if node.is_draining:
            state.draining[node.id] = None
    for id_, health, reason, fatal in fields["awaited_nodes"]:
        state.awaited_nodes[id_] = (NodeHealth(health), reason, fatal)
    for item in fields["recoveries"]:
        recovery = _recovery_in(item)
        state.recoveries[recovery.workload] = recovery
    for item in fields["workloads"]:
        _restore_workload(state, _workload_in(item, budgets))
    for id_, phase, reason, cursor, at_ms, attempts, fingerprint in fields["finished"]:
        state.remember(Finished(id_, Phase(phase), reason, cursor, at_ms, attempts, fingerprint))
    state.sources = dict(fields["sources"])
    state.gaps = [SourceGap(*gap) for gap in fields["gaps"]]
    state.rejected = fields["rejected"]
    state.ignored = dict(fields["ignored"])
    state.void = dict(fields["void"])
    for item in fields["unacknowledged"]:
        command = _COMMAND.validate_json(orjson.dumps(item))
        state.dispatch.unacknowledged.setdefault(command.node, {})[command.command] = command
    state.dispatch.sent = deque((when, node, command) for when, node, command in fields["sent"])
    for id_, pool, names, start_ms, since_ms, cursor in fields["reservations"]:
        state.reservations[id_] = Reservation(id_, pool, tuple(names), start_ms, since_ms, cursor)
        state.timers.reserve(state.reservations[id_], state.policy.reservation_overrun_ms)
    for pool, spent, as_of_ms in fields["disruption"]:
        state.disruption[pool] = DisruptionBudget(spent, as_of_ms)
    state.adjustments = dict(fields["adjustments"])
    state.scheduled = [BudgetTreeChanged.model_validate_json(orjson.dumps(item)) for item in fields["scheduled"]]
    state.hashed = fields["hashed"]
    state.next_hash = fields["next_hash"]
    return state


# --- budgets ----------------------------------------------------------------------------------------------------------


def _budgets_in_order(tree: BudgetTree) -> list[Budget]:
    """Return every budget that something refers to, parents first: open ones by path, then closed ones."""
    known = [*tree.root.below()]
    seen = {id(budget) for budget in known}
    for budget in tree.closed_in_use:
        for ancestor in reversed(budget.path):
            if id(ancestor) not in seen:
                seen.add(id(ancestor))
                known.append(ancestor)
    return known


def _use_out(use: SlidingUse) -> list[int]:
    return [use.gpu_ms, use.as_of_ms, use.held, use.trailing]


def _use_in(values: list[int]) -> SlidingUse:
    use = SlidingUse()
    use.gpu_ms, use.as_of_ms, use.held, use.trailing = values
    return use


# Integers that may come to be larger than the 64 bits of a number here are written as text: sums of a rate card's units
# times the time since 1970, and fixed point.


def _fading_out(fading: FadingSum) -> list[str]:
    return [str(fading.amount), str(fading.as_of_ms)]


def _fading_in(values: list[str]) -> FadingSum:
    fading = FadingSum()
    fading.amount, fading.as_of_ms = map(int, values)
    return fading


def _budget_out(budget: Budget, number: dict[int, int]) -> dict[str, Any]:
    return {
        "id": budget.id,
        "parent": None if budget.parent is None else number[id(budget.parent)],
        "fraction": budget.fraction_nano,
        "quota": budget.quota_nano,
        "closed": budget.closed,
        "managers": list(budget.managers),
        "limits": [budget.max_allocated_gpus, budget.max_unallocated_gpus],
        "charged": _use_out(budget.charged),
        "uncharged": _use_out(budget.uncharged),
        "commitment": [budget.commitment_fixed, budget.commitment_gpus, str(budget.commitment_sum)],
        "queued": budget.queued_gpus,
        "segments": [[str(begin), quota] for begin, quota in budget.segments],
        "fading": [
            _fading_out(fading) for fading in (budget.fading_charged, budget.fading_uncharged, budget.fading_quota)
        ],
    }


def _tree_out(tree: BudgetTree, number: dict[int, int]) -> dict[str, Any]:
    return {
        "change": tree.change,
        "closed_in_use": [number[id(budget)] for budget in tree.closed_in_use],
        "changes": [(when, number[id(leaf)], gpus, charged) for when, leaf, gpus, charged in tree.changes],
        "capacity": [tree.capacity_units, str(tree.capacity_integral), tree.capacity_as_of_ms],
        "trailing": [tree.trailing_gpus, str(tree.trailing_integral), tree.trailing_as_of_ms],
        "capacity_changes": [list(change) for change in tree.capacity_changes],
        "fading_capacity": _fading_out(tree.fading_capacity),
        "known_from_ms": tree.known_from_ms,
    }


def _tree_in(tree: BudgetTree, fields: dict[str, Any], items: list[dict[str, Any]]) -> list[Budget]:
    budgets: list[Budget] = []
    for item in items:
        if item["parent"] is None:
            budget = tree.root
        else:
            budget = Budget(tree, item["id"], budgets[item["parent"]])
            if not item["closed"]:
                tree.by_id[budget.id] = budget
                budgets[item["parent"]].children[budget.id] = budget
        budget.fraction_nano, budget.quota_nano, budget.closed = item["fraction"], item["quota"], item["closed"]
        budget.charged, budget.uncharged = _use_in(item["charged"]), _use_in(item["uncharged"])
        budget.commitment_fixed, budget.commitment_gpus, summed = item["commitment"]
        budget.commitment_sum = int(summed)
        budget.queued_gpus = item["queued"]
        budget.managers = tuple(item["managers"])
        budget.max_allocated_gpus, budget.max_unallocated_gpus = item["limits"]
        budget.segments = [(int(begin), quota) for begin, quota in item["segments"]]
        budget.fading_charged, budget.fading_uncharged, budget.fading_quota = map(_fading_in, item["fading"])
        budgets.append(budget)
    tree.change = fields["change"]
    tree.closed_in_use = [budgets[position] for position in fields["closed_in_use"]]
    tree.changes = deque((when, budgets[leaf], gpus, charged) for when, leaf, gpus, charged in fields["changes"])
    tree.capacity_units, integral, tree.capacity_as_of_ms = fields["capacity"]
    tree.peak_units = max(
        tree.capacity_units, fields["trailing"][0], *(units for _, units in fields["capacity_changes"])
    )
    tree.capacity_integral = int(integral)
    tree.trailing_gpus, integral, tree.trailing_as_of_ms = fields["trailing"]
    tree.trailing_integral = int(integral)
    tree.capacity_changes = deque((when, gpus) for when, gpus in fields["capacity_changes"])
    tree.fading_capacity = _fading_in(fields["fading_capacity"])
    tree.known_from_ms = fields["known_from_ms"]
    return budgets


# --- nodes ------------------------------------------------------------------------------------------------------------


def _node_out(node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "pool": node.pool,
        "reported": [node.reported[0], list(node.reported[1])],
        "labels": [node.labels[0], None if node.labels[1] is None else list(node.labels[1])],
        "gpus": node.gpus,
        "boot": node.boot,
        "health": node.health,
        "reason": node.reason,
        "since_ms": node.since_ms,
        "fatal": node.fatal,
        "drain": [node.drain, node.drain_by, node.drain_reason, node.drain_since_ms],
        "falls": node.falls,
        "held_down": [node.held_down, node.held_down_until_ms],
        "emptied": [node.emptied, node.emptied_ms, node.repair_since_ms],
        "orphans": [[*key, node.orphans[key]] for key in sorted(node.orphans)],
        "stuck": [[*key, node.stuck[key]] for key in sorted(node.stuck)],
    }


def _node_in(item: dict[str, Any]) -> Node:
    tree, domains = item["reported"]
    node = Node(item["id"], item["pool"], item["gpus"], tuple(domains), item["since_ms"], tree)
    tree, domains = item["labels"]
    node.labels = (tree, None if domains is None else tuple(domains))
    node.find_place()
    node.boot, node.health, node.reason = item["boot"], NodeHealth(item["health"]), item["reason"]
    drain, node.drain_by, node.drain_reason, node.drain_since_ms = item["drain"]
    node.fatal, node.drain, node.falls = item["fatal"], Drain(drain), item["falls"]
    node.held_down, node.held_down_until_ms = item["held_down"]
    node.emptied, node.emptied_ms, node.repair_since_ms = item["emptied"]
    node.stuck = {(workload, attempt): since_ms for workload, attempt, since_ms in item["stuck"]}
    node.orphans = {(workload, attempt): mask for workload, attempt, mask in item["orphans"]}
    return node


# --- workloads --------------------------------------------------------------------------------------------------------


#: What is written of a workload that has ended, in this order.
_finished_out = attrgetter("workload", "phase", "reason", "cursor", "at_ms", "attempts", "fingerprint")

#: What is written of a workload as it stands, in this order; its phase, budget, place in the backlog and run go before.
_PLAIN = (
    "id",
    "pool",
    "ranks",
    "gpus_per_rank",
    "min_runtime_ms",
    "timeout_ms",
    "resumable",
    "priority",
    "command",
    "interactive",
    "topology",
    "attempt",
    "submitted_ms",
    "queued_ms",
    "requeued",
    "setbacks",
    "evictions",
    "held_until_ms",
    "cancelled",
)
_plain_of = attrgetter(*_PLAIN)
_TOPOLOGY = _PLAIN.index("topology")


def _workload_out(workload: Workload, budget: int) -> list[Any]:
    """Return a workload as a list: there may be many, and names would be most of the bytes."""
    run = None if workload.run is None else _run_out(workload.run)
    plain = list(_plain_of(workload))
    if workload.topology is not None:
        plain[_TOPOLOGY] = workload.topology.model_dump(mode="json")
    return [workload.phase, budget, workload.queue_key is not None, run, *plain]


def _workload_in(item: list[Any], budgets: list[Budget]) -> tuple[Workload, bool]:
    phase, budget, filed, run, *plain = item
    fields = dict(zip(_PLAIN, plain, strict=True))
    fields["command"] = tuple(fields["command"])
    if fields["topology"] is not None:
        fields["topology"] = TopologyRequest.model_validate_json(orjson.dumps(fields["topology"]))
    workload = Workload.restored(fields, budgets[budget])
    workload.phase = Phase(phase)
    workload.run = None if run is None else _run_in(run)
    return workload, filed


def _run_out(run: Run) -> dict[str, Any]:
    return {
        "attempt": run.attempt,
        "seats": [[seat.rank, seat.node, seat.gpu_mask] for seat in run.seats],
        "gpus": run.gpus,
        "rate": run.rate,
        "min_ms": run.min_ms,
        "decided_at": run.decided_at,
        "planned_ms": run.planned_ms,
        "held": [[node, mask] for node, mask in run.held.items()],
        "awaited": [[node, run.awaited[node]] for node in sorted(run.awaited)],
        "places": [[node, command] for node, command in run.places.items()],
        "bound_ms": run.bound_ms,
        "deadline_ms": run.deadline_ms,
        "commitment": run.commitment,
        "started_on": sorted(run.started_on),
        "started_ms": run.started_ms,
        "protected_until_ms": run.protected_until_ms,
        "warn_ms": run.warn_ms,
        "extended_ms": run.extended_ms,
        "straddling": run.straddling,
        "stop": run.stop,
        "stop_ms": run.stop_ms,
        "beneficiary": run.beneficiary,
        "failure": run.failure,
        "ends": [run.failed, run.stopped, run.infrastructure],
        "returned": [list(part) for part in run.returned],
    }


#: What is read back of a run as it was written.
_PLAIN_OF_RUN = (
    "bound_ms",
    "deadline_ms",
    "started_ms",
    "protected_until_ms",
    "warn_ms",
    "extended_ms",
    "straddling",
    "stop_ms",
    "beneficiary",
    "failure",
)


def _run_in(item: dict[str, Any]) -> Run:
    run = Run(item["attempt"], _seats_in(item["seats"]), item["gpus"], item["decided_at"], item["planned_ms"])
    run.rate, run.min_ms = item["rate"], item["min_ms"]
    run.held = dict(item["held"])
    run.awaited = dict(item["awaited"])
    run.places = dict(item["places"])
    run.commitment = Commitment(item["commitment"])
    run.started_on = dict.fromkeys(item["started_on"])
    run.stop = None if item["stop"] is None else StopReason(item["stop"])
    for name in _PLAIN_OF_RUN:
        setattr(run, name, item[name])
    run.failed, run.stopped, run.infrastructure = item["ends"]
    run.returned = [(units, until_ms) for units, until_ms in item["returned"]]
    return run


def _recovery_out(recovery: Recovering) -> list[Any]:
    return [
        recovery.workload,
        [[seat.rank, seat.node, seat.gpu_mask] for seat in recovery.seats],
        recovery.since_ms,
        [[node, mask] for node, mask in recovery.pins.items()],
        recovery.step,
        recovery.widens_ms,
    ]


def _recovery_in(item: list[Any]) -> Recovering:
    workload, seats, since_ms, pins, step, widens_ms = item
    return Recovering(workload, _seats_in(seats), since_ms, dict(pins), step, widens_ms)


def _seats_in(items: list[list[Any]]) -> tuple[Seat, ...]:
    return tuple(Seat(rank=rank, node=node, gpu_mask=mask) for rank, node, mask in items)


def _restore_workload(state: ClusterState, restored: tuple[Workload, bool]) -> None:
    """Put a workload back, with all that is derived from it: its place in the backlog, its GPUs, its timers."""
    workload, filed = restored
    state.workloads[workload.id] = workload
    if filed:
        state.backlog_of(workload).add(workload)
        state.timers.await_patience(workload, state.policy, state.now_ms)
    run = workload.run
    key = (workload.id, workload.attempt)
    recovery = state.recoveries.get(workload.id)
    if recovery is not None:
        state.timers.recover(recovery, workload.attempt)
        for node_id, mask in recovery.pins.items():
            state.nodes[node_id].pins[workload.id] = mask
            state.inventory.refile(state.nodes[node_id])
    if run is None:
        if not filed and recovery is None:
            state.timers.set(workload)
        return
    has = run.gpus if workload.phase is Phase.PLANNED else sum(mask.bit_count() for mask in run.held.values())
    state.budgets.take_slots(workload.budget, has, allocated=workload.is_allocated)
    if workload.phase is Phase.PLANNED:
        state.budgets.plan(workload.budget, run.units)
        for seat in run.seats:
            claims = state.nodes[seat.node].claims
            claims[key] = claims.get(key, 0) | seat.gpu_mask
    for node_id, mask in run.held.items():
        node = state.nodes[node_id]
        node.held[key] = mask
        if run.stop is None and not workload.is_allocated:
            node.preemptible[key] = mask
    if is_unprotected(workload, state.now_ms):
        state.expose(workload)
    for node_id in dict.fromkeys(seat.node for seat in run.seats):
        if node_id in state.nodes:
            state.inventory.refile(state.nodes[node_id])
    state.timers.set(workload)
    state.timers.warn(workload)
    if workload.phase is Phase.RUNNING and (run.protected_until_ms or 0) > state.now_ms:
        state.timers.protect(workload, run.protected_until_ms or 0)
