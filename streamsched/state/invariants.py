"""What must hold after every record. Asserted in tests and simulations; it walks over everything and is not cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamsched.errors import InvariantError
from streamsched.model.events import Drain, NodeHealth
from streamsched.state.inventory import Room, Sizes
from streamsched.state.straddling import breach
from streamsched.state.workloads import Commitment, Phase

if TYPE_CHECKING:
    from streamsched.state.cluster import ClusterState
    from streamsched.state.usage import Budget


def check(state: ClusterState) -> None:
    """Check that the state contradicts itself nowhere.

    Raises:
        InvariantError: It does; the message says where.
    """
    _check_nodes(state)
    _check_drains(state)
    _check_rooms(state)
    _check_gangs(state)
    _check_recoveries(state)
    _check_budgets(state)
    _check_backlog(state)


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(what)


def _check_nodes(state: ClusterState) -> None:
    """No GPU has two owners, and what is free is what nobody has."""
    for node in state.nodes.values():
        taken = 0
        for owners in (node.held, node.orphans, node.claims):
            for key, mask in owners.items():
                # A claim may lie on GPUs that a victim or an unknown run still holds, but on no other claim's.
                others = 0 if owners is node.claims else taken
                _demand(not mask & others, f"node {node.id}: GPUs {mask & others:b} of {key} have another owner")
                taken |= mask
        claimed = 0
        for key, mask in node.claims.items():
            _demand(not mask & claimed, f"node {node.id}: GPUs {mask & claimed:b} are claimed twice, by {key} too")
            claimed |= mask
            awaited = state.workloads[key[0]].run
            waits = awaited.awaited.get(node.id, 0) if awaited is not None else 0
            held = 0
            for other in (*node.held.values(), *node.orphans.values()):
                held |= other
            _demand(mask & held == waits, f"node {node.id}: {key} waits for {waits:b}, but {mask & held:b} is held")
        pinned = 0
        for id_, mask in node.pins.items():
            recovery = state.recoveries.get(id_)
            _demand(
                recovery is not None and recovery.pins.get(node.id) == mask,
                f"node {node.id}: {mask:b} is pinned for {id_}, which does not recover with it",
            )
            own = sum(held for key, held in node.held.items() if key[0] == id_)
            others = sum(node.held.values()) - own | claimed
            _demand(node.takes_work, f"node {node.id}: GPUs are pinned for {id_}, and it takes no work")
            _demand(not mask & (pinned | others), f"node {node.id}: GPUs {mask:b} pinned for {id_} have another owner")
            pinned |= mask
        taken |= pinned
        _demand(node.free_mask == node.all_mask & ~taken, f"node {node.id}: {node.free_mask:b} is not what is free")
        for key, mask in node.preemptible.items():
            _demand(node.held.get(key) == mask, f"node {node.id}: preemptible {key} does not hold what it should")
            workload = state.workloads[key[0]]
            _demand(not workload.is_allocated, f"node {node.id}: allocated {key} is marked preemptible")
        for key, mask in node.unprotected.items():
            _demand(node.held.get(key) == mask, f"node {node.id}: unprotected {key} does not hold what it should")
        for key in node.held:
            workload = state.workloads[key[0]]
            run = workload.run
            until = run.protected_until_ms if run is not None else None
            open_ = workload.phase is Phase.RUNNING and until is not None and until <= state.now_ms
            _demand(
                open_ is (key in node.unprotected), f"node {node.id}: {key} is protected, or not, and filed wrongly"
            )


def _check_drains(state: ClusterState) -> None:
    """Nothing stays on a node for longer than the node stays in use, and an empty one is empty."""
    draining = sorted(node.id for node in state.nodes.values() if node.is_draining)
    _demand(sorted(state.draining) == draining, f"{sorted(state.draining)} are draining, not {draining}")
    for node in state.nodes.values():
        for key in () if node.takes_work else node.held:
            workload = state.workloads[key[0]]
            run = workload.run
            until = run.protected_until_ms if run is not None else None
            leaves = workload.phase is Phase.STOPPING
            begun = workload.phase is Phase.RUNNING
            protected = begun and workload.is_allocated and (until or 0) > state.now_ms
            may_stay = {Drain.SOFT: protected, Drain.HARD: False}.get(node.emptying, begun)
            _demand(leaves or may_stay, f"node {node.id}: {key} stays, and the node is to be emptied: {node.emptying}")
        _demand(node.stuck.keys() <= node.orphans.keys(), f"node {node.id}: {node.stuck} is not there any more")
        waits = node.held_down and node.health is NodeHealth.HEALTHY
        _demand((node.held_down_until_ms is not None) is waits, f"node {node.id}: held down, and nothing ends it")
        is_out = node.is_draining or node.health is NodeHealth.LOST
        _demand(node.emptied is None or is_out, f"node {node.id}: in use, and noted as emptied")
        if node.emptied is not None and node.health is not NodeHealth.LOST:
            _demand(not node.held and not node.orphans, f"node {node.id}: noted as emptied, and holds runs")
        elif node.is_draining and node.health is not NodeHealth.LOST:
            _demand(bool(node.held or node.orphans), f"node {node.id}: empty, and not noted as such")


def _check_rooms(state: ClusterState) -> None:
    """The index says what the nodes say."""
    capacity = 0
    for pool in state.inventory.pools.values():
        free, reclaimable, takeable = Room(), Room(), Room()
        installed, well = Sizes(), Sizes()
        working = 0
        for index, node in enumerate(pool.nodes):
            _demand(node.index == index, f"node {node.id} believes to be at {node.index}, and is at {index}")
            healthy = node.takes_work
            offered = node.free_mask.bit_count() if healthy else 0
            more = (node.free_mask | node.preemptible_mask).bit_count() if healthy else 0
            most = (node.free_mask | node.preemptible_mask | node.unprotected_mask).bit_count() if healthy else 0
            for room, gpus in ((free, offered), (reclaimable, more), (takeable, most)):
                room.nodes[gpus] |= 1 << index
                room.counts[gpus] += 1
                room.offers.append(gpus)
            installed.add(node.gpus, 1)
            if healthy:
                working |= 1 << index
                well.add(node.gpus, 1)
                capacity += node.gpus * pool.rate
            elif node.health is not NodeHealth.LOST:
                capacity += node.occupied_gpus * pool.rate
        _demand(pool.installed.counts == installed.counts, f"pool {pool.id}: the sizes differ from the nodes")
        _demand(pool.working == working, f"pool {pool.id}: the nodes that take work differ from the nodes")
        _demand(pool.healthy.counts == well.counts, f"pool {pool.id}: the healthy sizes differ from the nodes")
        for name, room, derived in (
            ("free", pool.free, free),
            ("reclaimable", pool.reclaimable, reclaimable),
            ("takeable", pool.takeable, takeable),
        ):
            _demand(room.nodes == derived.nodes, f"pool {pool.id}: the {name} index differs from the nodes")
            _demand(room.counts == derived.counts, f"pool {pool.id}: the {name} counts differ from the nodes")
            _demand(room.offers == derived.offers, f"pool {pool.id}: the {name} GPUs by place differ from the nodes")
        places = [node.place_key for node in pool.nodes]
        _demand(places == sorted(places), f"pool {pool.id}: its nodes are not in the order of their places")
    _demand(capacity == state.budgets.capacity_units, f"capacity is {state.budgets.capacity_units}, not {capacity}")


def _check_gangs(state: ClusterState) -> None:
    """A gang has all its seats or none, and nodes and runs agree on who holds what."""
    held: dict[tuple[str, int], dict[str, int]] = {}
    for node in state.nodes.values():
        for key, mask in node.held.items():
            held.setdefault(key, {})[node.id] = mask
    for workload in state.workloads.values():
        run = workload.run
        key = (workload.id, workload.attempt)
        _demand((run is None) == (workload.phase is Phase.QUEUED), f"{workload.id}: {workload.phase} with run {run}")
        _demand(not workload.phase.is_final, f"{workload.id}: {workload.phase} and still among the living")
        if run is None:
            continue
        _demand(run.attempt == workload.attempt, f"{workload.id}: run of attempt {run.attempt}")
        _demand(len(run.seats) == workload.ranks, f"{workload.id}: {len(run.seats)} seats for {workload.ranks} ranks")
        _demand(run.held == held.pop(key, {}), f"{workload.id}: run and nodes disagree on its GPUs")
        if workload.phase in (Phase.BOUND, Phase.RUNNING) and not run.failed and not run.infrastructure:
            whole: dict[str, int] = {}
            for seat in run.seats:
                whole[seat.node] = whole.get(seat.node, 0) | seat.gpu_mask
            present = {node: mask for node, mask in whole.items() if node in run.held}
            _demand(present == run.held, f"{workload.id}: holds GPUs outside its seats")
            if workload.phase is Phase.BOUND and not run.started_on:
                _demand(whole == run.held, f"{workload.id}: a gang in part")
            if whole == run.held:
                straddles = breach(state, workload) is not None
                _demand(run.straddling is straddles, f"{workload.id}: straddles or not, and is marked otherwise")
        if workload.phase is Phase.PLANNED:
            _demand(bool(run.awaited) and not run.held, f"{workload.id}: planned, and waits for nothing")
    _demand(not held, f"nodes hold GPUs for runs that do not exist: {sorted(held)}")


def _check_recoveries(state: ClusterState) -> None:
    """Who recovers is stopping or waits outside the backlog, keeps something, and all of it lies on nodes."""
    for id_, recovery in state.recoveries.items():
        workload = state.workloads[id_]
        waits = workload.phase is Phase.QUEUED
        _demand(waits or workload.phase is Phase.STOPPING, f"{id_}: recovers, and is {workload.phase}")
        _demand(workload.queue_key is None, f"{id_}: recovers, and waits in the backlog too")
        _demand(bool(recovery.pins), f"{id_}: recovers, and keeps nothing")
        for node, mask in recovery.pins.items():
            _demand(state.nodes[node].pins.get(id_) == mask, f"{id_}: {mask:b} of {node} are not pinned for it there")


def _check_budgets(state: ClusterState) -> None:
    """What a budget holds, has claimed, has committed and waits for is the sum of what its workloads do."""
    sums: dict[int, list[int]] = {}
    budgets: dict[int, Budget] = {}
    for budget in (*state.budgets.root.below(), *state.budgets.closed_in_use):
        budgets[id(budget)] = budget
        sums[id(budget)] = [0] * 9
    for workload in state.workloads.values():
        run = workload.run
        has = sum(mask.bit_count() for mask in run.held.values()) if run is not None else 0
        held = has * run.rate if run is not None else 0
        is_planned = run is not None and workload.phase is Phase.PLANNED
        for budget in workload.budget.path:
            mine = sums.get(id(budget))
            _demand(mine is not None, f"{workload.id}: its budget {budget.id} is forgotten")
            if mine is None:
                continue
            mine[0 if workload.is_allocated else 1] += held
            mine[6 if workload.is_allocated else 7] += workload.gpus if is_planned else has
            mine[8] += run.units if run is not None and is_planned else 0
            if run is None and workload.is_allocated:
                mine[2] += workload.gpus
            if run is not None and run.commitment is Commitment.WHOLE:
                mine[3] += run.units * run.min_ms
            if run is not None and run.commitment is Commitment.REST:
                mine[4] += run.units
                mine[5] += run.units * (run.protected_until_ms or 0)
    for key, budget in budgets.items():
        actual = [
            budget.charged.held,
            budget.uncharged.held,
            budget.queued_gpus,
            budget.commitment_fixed,
            budget.commitment_gpus,
            budget.commitment_sum,
            budget.allocated_slots,
            budget.unallocated_slots,
            budget.planned_units,
        ]
        _demand(actual == sums[key], f"budget {budget.id or 'root'}: {actual} instead of {sums[key]}")
        _demand(budget.charged.at(state.now_ms) >= 0, f"budget {budget.id}: negative use")
        _demand(budget.committed_gpu_ms(state.now_ms) >= 0, f"budget {budget.id}: negative commitment")


def _check_backlog(state: ClusterState) -> None:
    """What waits is in the backlog once, and nothing else is."""
    for backlog, allocated in ((state.allocated, True), (state.unallocated, False)):
        filed: dict[str, tuple[int, int, int, str]] = {}
        for shape, queues in backlog.by_shape.items():
            for leaf, queue in queues.items():
                _demand(bool(queue.entries), f"an empty queue of {leaf} for {shape} is kept")
                orders: dict[tuple[int, int], int] = {}
                for key in queue.entries:
                    filed[key[3]] = key
                    orders[key[:2]] = orders.get(key[:2], 0) + 1
                    _demand(state.workloads[key[3]].shape == shape, f"{key[3]}: filed under the shape {shape}")
                _demand(orders == queue.ranks_of_order, f"the counts of {leaf} for {shape} are wrong")
        _demand(len(filed) == backlog.size, f"the backlog counts {backlog.size}, and holds {len(filed)}")
        waiting = {
            workload.id: workload.queue_key
            for workload in state.workloads.values()
            if workload.queue_key is not None and workload.is_allocated is allocated
        }
        _demand(waiting == filed, "the backlog and the workloads disagree on what waits")
