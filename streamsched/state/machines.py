"""What nodes report of themselves, their health and what they are and hold; and how they leave and enter use.

A node is out of use because an administrator ordered it, because it is not healthy, because it fell too often, or
because a run there does not stop. Each of these is kept for itself and ends by itself; the strongest decides who stays.

Functions over the state, called by its gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamsched.model.commands import NodeEmptied, Receipt, ReceiptStatus, StopReason
from streamsched.model.events import Drain, NodeHealth
from streamsched.model.identifiers import command_order
from streamsched.state import recoveries, rounds, runs, straddling
from streamsched.state.inventory import Node
from streamsched.state.reasons import Ignored
from streamsched.state.workloads import Phase, is_unprotected

if TYPE_CHECKING:
    from streamsched.model.events import (
        NodeDrainChanged,
        NodeHealthChanged,
        NodeInventoryReported,
        NodeRepairBegan,
        NodesRelabelled,
    )
    from streamsched.state.cluster import ClusterState
    from streamsched.state.workloads import Workload


# --- in use and out of it ---------------------------------------------------------------------------------------------


def set_health(state: ClusterState, fact: NodeHealthChanged) -> None:
    """Take a node into use, out of it, or give up what runs there."""
    fatal = fact.fatal and fact.health is NodeHealth.UNHEALTHY
    node = state.nodes.get(fact.node)
    if node is None:
        state.awaited_nodes[fact.node] = (fact.health, fact.reason, fatal)
        return
    if (node.health, node.fatal) == (fact.health, fatal):
        if node.reason == fact.reason:
            state.ignore(Ignored.ALREADY_SO)
        node.reason = fact.reason
        state.effects.nodes[node.id] = None
        return
    was = node.health
    node.health, node.fatal = fact.health, fatal
    node.reason = fact.reason
    node.since_ms = state.now_ms
    if was is NodeHealth.LOST:
        state.effects.commands.extend(state.dispatch.resume(node.id, state.now_ms))
    if was is NodeHealth.HEALTHY:
        _count_fall(state, node)
    node.held_down_until_ms = None
    if node.held_down and node.health is NodeHealth.HEALTHY:
        node.held_down_until_ms = state.now_ms + state.policy.hold_down_ms
        state.timers.hold_down(node)
    if fact.health is NodeHealth.LOST:
        _give_up_plans(state, node)
        state.dispatch.pause(node.id)
        for key in sorted(node.held):
            node.orphans[key] = node.held[key]
            runs.lose(state, key, node)
    _settle(state, node)


def set_drain(state: ClusterState, fact: NodeDrainChanged) -> None:
    """Follow an administrator's order about a node; one to end a drain also ends a hold."""
    node = state.nodes.get(fact.node)
    if node is None:
        state.ignore(Ignored.UNKNOWN_NODE)
        _answer(state, fact, f"node: there is no node {fact.node!r}; `streamsched nodes` lists them")
        return
    is_release = fact.drain is Drain.NONE and node.held_down
    if node.drain is fact.drain and not is_release:
        state.ignore(Ignored.ALREADY_SO)
    else:
        node.drain, node.drain_by, node.drain_reason = fact.drain, fact.actor, fact.reason
        node.drain_since_ms = state.now_ms
        if is_release:
            _let_go(node)
        _settle(state, node)
    _answer(state, fact, None)


def release_hold(state: ClusterState, node: Node) -> None:
    """Let a node take work that has been healthy for long enough."""
    _let_go(node)
    _settle(state, node)


def give_up(state: ClusterState, workload: Workload) -> None:
    """End a run that did not stop in time; its nodes are good for nothing before it is gone."""
    run = workload.run
    if run is None:
        return
    stuck = [state.nodes[id_] for id_ in sorted(run.held)]
    runs.give_up(state, workload)
    for node in stuck:
        _settle(state, node)


def begin_repair(state: ClusterState, fact: NodeRepairBegan) -> None:
    """Note that somebody has begun to repair an empty node."""
    node = state.nodes.get(fact.node)
    if node is None or node.emptied != fact.emptied or node.repair_since_ms is not None:
        state.ignore(Ignored.UNKNOWN_NODE if node is None else Ignored.ALREADY_SO)
        return
    node.repair_since_ms = state.now_ms
    state.effects.nodes[node.id] = None


def note_empty(state: ClusterState) -> None:
    """See which of the nodes that changed with this record have become empty, or are so no longer."""
    for id_ in [id_ for id_ in state.effects.nodes if id_ in state.draining]:
        node = state.nodes[id_]
        if not node.is_draining:  # What did not stop has gone.
            _file(state, node)
        elif node.health is NodeHealth.LOST:
            continue  # It may have been switched off for its repair, and what it holds is not known.
        elif node.held or node.orphans:
            node.emptied = node.emptied_ms = node.repair_since_ms = None
        elif node.emptied is None:
            node.emptied, node.emptied_ms = state.next_cursor - 1, state.now_ms
            state.effects.emptied.append(emptied(node))


def emptied(node: Node) -> NodeEmptied:
    """Return what is told of a node that has become empty."""
    ordered = node.drain is not Drain.NONE
    return NodeEmptied(
        node=node.id,
        cursor=node.emptied or 0,
        emptied_ms=node.emptied_ms or 0,
        drain=node.emptying,
        reason=node.drain_reason if ordered else node.reason,
        by=node.drain_by if ordered else None,
    )


def awaiting_repair(state: ClusterState) -> list[NodeEmptied]:
    """Return the empty nodes whose repair has not begun, by name: a shell that starts tells of them again."""
    waiting = [state.nodes[id_] for id_ in sorted(state.draining)]
    return [emptied(node) for node in waiting if node.emptied is not None and node.repair_since_ms is None]


def awaits_repair(state: ClusterState, emptied: NodeEmptied) -> bool:
    """Whether a node is still empty since then, and its repair has not begun."""
    node = state.nodes.get(emptied.node)
    return node is not None and node.emptied == emptied.cursor and node.repair_since_ms is None


def _count_fall(state: ClusterState, node: Node) -> None:
    """Count that a node ceased to be healthy; after too often it takes no work before it was healthy for a while."""
    node.falls = [fall for fall in node.falls if fall + state.policy.flap_window_ms > state.now_ms]
    node.falls.append(state.now_ms)
    if len(node.falls) >= state.policy.flap_limit:
        node.held_down = True


def _let_go(node: Node) -> None:
    node.held_down, node.held_down_until_ms = False, None
    node.falls = []


def _settle(state: ClusterState, node: Node) -> None:
    """Let everything leave a node that may not stay there as it is now."""
    state.effects.nodes[node.id] = None
    _file(state, node)
    if not node.takes_work:
        _give_up_plans(state, node)
        for key in sorted(node.held):
            _let_leave(state, state.workloads[key[0]], node)
    state.inventory.refile(node)


def _file(state: ClusterState, node: Node) -> None:
    """Note whether a node is draining; back in use, it was neither emptied nor repaired."""
    if node.is_draining:
        state.draining[node.id] = None
        return
    state.draining.pop(node.id, None)
    if node.health is not NodeHealth.LOST:
        node.emptied = node.emptied_ms = node.repair_since_ms = None


def _give_up_plans(state: ClusterState, node: Node) -> None:
    """Give up what waits for a node that takes no work any more."""
    rounds.leave_reservations(state, node.id)
    recoveries.unpin(state, node)
    for key in sorted(node.claims):
        rounds.fail_plan(state, state.workloads[key[0]], setback=False)


def _let_leave(state: ClusterState, workload: Workload, node: Node) -> None:
    """Stop a run that may not stay on a node: it has not begun, is not protected, or nothing is."""
    run = workload.run
    if run is None or run.stop is not None:
        return
    if node.emptying is Drain.HARD:
        runs.stop(state, workload, StopReason.NODE_FAILED)
    elif workload.phase is Phase.BOUND:  # Nothing has been done yet that protection could keep.
        runs.stop(state, workload, StopReason.NODE_DRAINED)
    elif node.is_draining:
        if not workload.is_allocated or is_unprotected(workload, state.now_ms):
            runs.stop(state, workload, StopReason.NODE_DRAINED)
        else:
            state.touch(workload)  # It can be told now when it will be stopped.


def _answer(state: ClusterState, fact: NodeDrainChanged, objection: str | None) -> None:
    state.effects.receipts.append(
        Receipt(
            node=fact.node,
            status=ReceiptStatus.ACCEPTED if objection is None else ReceiptStatus.REJECTED,
            cursor=state.next_cursor - 1,
            corr=fact.corr,
            reason=objection,
        )
    )


# --- what they are and hold -------------------------------------------------------------------------------------------


def relabel(state: ClusterState, fact: NodesRelabelled) -> None:
    """Put nodes where somebody says that they are; what runs or is planned there stays."""
    there: dict[str, None] = {}
    unknown: list[str] = []
    for label in fact.labels:
        node = state.nodes.get(label.node)
        if node is None:
            state.ignore(Ignored.UNKNOWN_NODE)
            unknown.append(label.node)
            continue
        if node.labels == (label.tree, label.domains):
            state.ignore(Ignored.ALREADY_SO)
            continue
        rounds.leave_reservations(state, node.id)
        state.inventory.remove(node)
        node.labels = (label.tree, label.domains)
        node.find_place()
        state.inventory.add(node)
        state.effects.nodes[node.id] = None
        there.update(straddling.on(node))
    straddling.recheck(state, there)
    objection = None
    if unknown:
        named = ", ".join(map(repr, unknown[:10])) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
        objection = f"labels: there is no node {named}; `streamsched nodes` lists them"
    is_refused = len(unknown) == len(fact.labels)
    state.effects.receipts.append(
        Receipt(
            node=fact.labels[0].node if len(fact.labels) == 1 else None,
            status=ReceiptStatus.REJECTED if is_refused else ReceiptStatus.ACCEPTED,
            cursor=state.next_cursor - 1,
            corr=fact.corr,
            reason=objection if objection is None or is_refused else f"{objection}; the others are relabelled",
        )
    )


def take_inventory(state: ClusterState, fact: NodeInventoryReported) -> None:
    """Reconcile what a node says with what is known of it: its word on what runs there is final."""
    node = state.nodes.get(fact.node)
    if node is None:
        node = Node(fact.node, fact.pool, fact.gpus, fact.domains, state.now_ms, fact.tree)
        known = state.awaited_nodes.pop(fact.node, (NodeHealth.HEALTHY, None, False))
        node.health, node.reason, node.fatal = known
        state.inventory.add(node)
        _file(state, node)
    elif (node.pool, node.gpus, node.reported) != (fact.pool, fact.gpus, (fact.tree, fact.domains)):
        moved = node.pool != fact.pool
        rounds.leave_reservations(state, node.id)
        state.inventory.remove(node)
        node.pool, node.gpus, node.reported = fact.pool, fact.gpus, (fact.tree, fact.domains)
        node.find_place()
        state.inventory.add(node)
        # Whatever had GPUs that are no longer there has lost them.
        if any(moved or mask & ~node.all_mask for mask in node.pins.values()):
            recoveries.unpin(state, node)
        for key in sorted(key for key, mask in node.claims.items() if moved or mask & ~node.all_mask):
            rounds.fail_plan(state, state.workloads[key[0]], setback=False)
        for key in sorted(key for key, mask in node.held.items() if moved or mask & ~node.all_mask):
            runs.lose(state, key, node)
        straddling.recheck(state, straddling.on(node))
    # An agent of a new boot that knows of no command has forgotten what its predecessor had acknowledged.
    has_forgotten = fact.watermark is None and fact.boot != node.boot
    node.boot = fact.boot
    state.effects.nodes[node.id] = None
    if fact.watermark is not None:
        state.dispatch.acknowledge(node.id, fact.watermark)

    obeyed = command_order(fact.watermark) if fact.watermark is not None else (-1, -1)
    reported = {(held.workload, held.attempt): held.gpu_mask for held in fact.runs}
    for key in sorted(key for key in node.held if key not in reported):
        run = state.workloads[key[0]].run
        if run is None:
            continue
        place = run.places[node.id]
        if command_order(place) <= obeyed or (has_forgotten and state.dispatch.is_acknowledged(place, node.id)):
            runs.lose(state, key, node)
    # A node that does not list a run may yet be given it by a command that is on its way; the stop is on its way too.
    gone = [key for key in node.orphans if key not in reported and not state.dispatch.concerns(node.id, key)]
    for key in sorted(gone):
        runs.forget_orphan(state, node, key)
    for key in sorted(key for key in reported if key not in node.held and key not in node.orphans):
        node.orphans[key] = orphaned = reported[key] & node.unheld_mask
        for (claimant, _), mask in node.claims.items():
            run = state.workloads[claimant].run
            if run is not None and mask & orphaned:
                run.awaited[node.id] = run.awaited.get(node.id, 0) | mask & orphaned
    for key in sorted(node.orphans):
        if not state.dispatch.concerns(node.id, key):
            runs.send_away(state, key, node)
    state.inventory.refile(node)
