"""How a node stands, for people: its state, since when, who or what set it, and what it waits for."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from streamsched.model.events import Drain, NodeHealth
from streamsched.model.quantities import counted, format_duration, format_instant
from streamsched.state.runs import grace_of

if TYPE_CHECKING:
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Node

#: What sets a state that nobody ordered.
_ITS_HEALTH = "its health"
_SCHEDULER = "the scheduler"
_ADMINISTRATOR = "an administrator"


class NodeState(StrEnum):
    """Where a node stands between use and repair."""

    HEALTHY = "healthy"
    CORDONED = "cordoned"
    HELD_DOWN = "held_down"
    DRAINING = "draining"
    EMPTY = "empty"
    REPAIR = "repair"
    LOST = "lost"


class Standing(NamedTuple):
    """How one node stands.

    Attributes:
        drain: How far it is being emptied.
        since_ms: Since when it has been in this state.
        by: Who or what set it.
        reason: Why.
        waits_for: What ends the state, as a phrase; None for a node in use.
        empty_by_ms: When it will be empty at the latest; None where that is not known, or nothing is to leave.
    """

    state: NodeState
    drain: Drain
    since_ms: int
    by: str
    reason: str | None
    waits_for: str | None
    empty_by_ms: int | None


def standing(state: ClusterState, node: Node) -> Standing:
    """Return how a node stands now."""
    drain = node.emptying
    since_ms, by, reason = _cause(state, node)
    if node.repair_since_ms is not None:
        return Standing(NodeState.REPAIR, drain, node.repair_since_ms, by, reason, _return_of(node), None)
    if node.health is NodeHealth.LOST:
        return Standing(NodeState.LOST, drain, node.since_ms, _ITS_HEALTH, node.reason, "a heartbeat", None)
    if node.emptied is not None:
        return Standing(NodeState.EMPTY, drain, node.emptied_ms or 0, by, reason, _return_of(node), None)
    if node.is_draining:
        until_ms = empty_by_ms(state, node)
        return Standing(NodeState.DRAINING, drain, since_ms, by, reason, _leaving(node, until_ms), until_ms)
    if node.drain is Drain.CORDON:
        return Standing(NodeState.CORDONED, drain, since_ms, by, reason, "an undrain", None)
    if node.held_down:
        until_ms = node.held_down_until_ms or 0
        waits_for = f"to have been healthy until {format_instant(until_ms)}, or an undrain"
        return Standing(NodeState.HELD_DOWN, drain, since_ms, by, reason, waits_for, None)
    return Standing(NodeState.HEALTHY, drain, node.since_ms, _ITS_HEALTH, None, None, None)


def empty_by_ms(state: ClusterState, node: Node) -> int | None:
    """Return when the last run will have left a draining node: the end of its protection and its grace, at the latest.

    None where a run does not stop, or none is left.
    """
    if node.orphans or not node.held:
        return None
    latest = 0
    for workload_id, _ in node.held:
        workload = state.workloads[workload_id]
        run = workload.run
        if run is not None:
            leaves_ms = run.protected_until_ms if run.stop_ms is None else run.stop_ms
            latest = max(latest, (leaves_ms or state.now_ms) + grace_of(state, workload))
    return latest


def _cause(state: ClusterState, node: Node) -> tuple[int, str, str | None]:
    """Return since when, by whom and why a node is out of use: an order before anything that happened by itself."""
    if node.drain is not Drain.NONE:
        return node.drain_since_ms, node.drain_by or _ADMINISTRATOR, node.drain_reason
    if node.stuck:
        runs = ", ".join(f"{workload} (attempt {attempt})" for workload, attempt in sorted(node.stuck))
        return min(node.stuck.values()), _SCHEDULER, f"container not stopping: {runs}"
    if node.health is NodeHealth.HEALTHY and node.held_down:
        often = f"ceased to be healthy {counted(len(node.falls), 'time')}"
        return node.falls[-1], _SCHEDULER, f"{often} within {format_duration(state.policy.flap_window_ms)}"
    return node.since_ms, _ITS_HEALTH, node.reason


def _return_of(node: Node) -> str:
    return "an undrain" if node.drain is not Drain.NONE else "a report that it is healthy"


def _leaving(node: Node, until_ms: int | None) -> str:
    if node.stuck:
        return "its agent to say that the run is gone"
    if until_ms is None:
        return "its agent to say what still runs"
    return f"{counted(len(node.held), 'run')} to leave, by {format_instant(until_ms)} at the latest"
