"""What nodes report of themselves: their health, and what they are and hold.

Functions over the state, called by its gate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamsched.model.events import NodeHealth
from streamsched.model.identifiers import command_order
from streamsched.state import rounds, runs
from streamsched.state.inventory import Node
from streamsched.state.reasons import Ignored

if TYPE_CHECKING:
    from streamsched.model.events import NodeHealthChanged, NodeInventoryReported
    from streamsched.state.cluster import ClusterState


def set_health(state: ClusterState, fact: NodeHealthChanged) -> None:
    """Take a node into use, out of it, or give up what runs there."""
    node = state.nodes.get(fact.node)
    if node is None:
        state.awaited_nodes[fact.node] = (fact.health, fact.reason)
        return
    if node.health is fact.health:
        state.ignore(Ignored.ALREADY_SO)
        return
    was_lost = node.health is NodeHealth.LOST
    node.health = fact.health
    node.reason = fact.reason
    node.since_ms = state.now_ms
    state.effects.nodes[node.id] = None
    if was_lost:
        state.effects.commands.extend(state.dispatch.resume(node.id, state.now_ms))
    if fact.health is not NodeHealth.HEALTHY:
        rounds.leave_reservations(state, node.id)
        for key in sorted(node.claims):
            rounds.fail_plan(state, state.workloads[key[0]], setback=False)
    if fact.health is NodeHealth.LOST:
        state.dispatch.pause(node.id)
        for key in sorted(node.held):
            node.orphans[key] = node.held[key]
            runs.lose(state, key, node)
    state.inventory.refile(node)


def take_inventory(state: ClusterState, fact: NodeInventoryReported) -> None:
    """Reconcile what a node says with what is known of it: its word on what runs there is final."""
    node = state.nodes.get(fact.node)
    if node is None:
        node = Node(fact.node, fact.pool, fact.gpus, fact.domains, state.now_ms)
        node.health, node.reason = state.awaited_nodes.pop(fact.node, (NodeHealth.HEALTHY, None))
        state.inventory.add(node)
    elif (node.pool, node.gpus, node.domains) != (fact.pool, fact.gpus, fact.domains):
        moved = node.pool != fact.pool
        rounds.leave_reservations(state, node.id)
        state.inventory.remove(node)
        node.pool, node.gpus, node.domains = fact.pool, fact.gpus, fact.domains
        state.inventory.add(node)
        # Whatever had GPUs that are no longer there has lost them.
        for key in sorted(key for key, mask in node.claims.items() if moved or mask & ~node.all_mask):
            rounds.fail_plan(state, state.workloads[key[0]], setback=False)
        for key in sorted(key for key, mask in node.held.items() if moved or mask & ~node.all_mask):
            runs.lose(state, key, node)
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
