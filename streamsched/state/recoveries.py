"""Gangs that have lost nodes: what is kept for them meanwhile, and how far they may move by now.

When an allocated gang with layers loses nodes, its run is stopped as a whole and the GPUs of its healthy nodes are
*pinned*: nobody else is put there. What is pinned is charged to nobody, as what a plan claims is: no rank runs on it.
The next attempt is the whole gang again, its survivors where they were, on the same ranks.

Ranks form **blocks** within blocks: the gang, its groups, the blocks of each layer, and single ranks. The lost blocks
are the largest of which every rank is lost. A lost block is replaced inside the domain of the block around it; as long
as that is in vain, one more block around it may move each time a step is over, and each step moves more ranks than the
last. The last step is the whole gang: nothing is pinned any more, and it waits as any other requeued work.

A run that is moved, so that another gang fits, goes the same way: it is stopped, what is pinned for it lies elsewhere,
and its next attempt starts there.

Functions over the state, called by its gate and by those who fold.

Source: `topology.md`, sections 4.3 and 9.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from streamsched.model.commands import Receipt, ReceiptStatus, StopReason
from streamsched.model.policy import Scheme
from streamsched.model.quantities import counted, format_instant
from streamsched.model.topology import NODE, Recovery, TopologyRequest, Wish
from streamsched.state.workloads import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from streamsched.model.events import Seat
    from streamsched.model.topology import Layer, LevelName
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Node
    from streamsched.state.workloads import Workload

#: Stops that a lost or failing node brings about.
_BY_A_NODE = (StopReason.GANG_BROKEN, StopReason.NODE_FAILED, StopReason.NODE_DRAINED)

_free_mask = attrgetter("free_mask")


class Block(NamedTuple):
    """Consecutive ranks that belong together: the gang, a group, a block of a layer, or one rank.

    Attributes:
        layers: What all of them share, coarse to fine.
    """

    first: int
    end: int
    layers: tuple[Layer, ...] = ()


#: Blocks from the whole gang inwards, each inside the one before it and smaller.
Chain = tuple[Block, ...]


@dataclass(slots=True)
class Recovering:
    """A gang that has lost nodes, from then until its next attempt is placed or it gives up what is kept for it.

    Attributes:
        seats: Those of the run that lost nodes, in rank order.
        since_ms: When that was.
        pins: GPUs by node that are kept for it.
        step: How many times a lost block may give way to the block around it.
        widens_ms: When that becomes one more; None while its run still stops, and where it may not move at all.
    """

    workload: str
    seats: tuple[Seat, ...]
    since_ms: int
    pins: dict[str, int] = field(default_factory=dict)
    step: int = 0
    widens_ms: int | None = None


# --- blocks of ranks --------------------------------------------------------------------------------------------------


def blocks_around(topology: TopologyRequest, ranks: int, rank: int) -> Chain:
    """Return the blocks that a rank of a gang belongs to, from the whole gang down to the rank alone.

    Layers of a gang with groups count if they hold the whole of it; others may cut groups, and no block of such a layer
    moves as one.
    """
    chain = [Block(0, ranks, tuple(layer for layer in topology.layers if (layer.ranks or ranks) == ranks))]
    first, size = 0, ranks
    layers = tuple(layer for layer in topology.layers if (layer.ranks or ranks) < ranks)
    for group in topology.groups:
        size, layers = group.ranks, group.layers
        if rank < first + size:
            _append(chain, Block(first, first + size))
            break
        first += size
    for layer in layers:
        block = layer.ranks or size
        start = rank - (rank - first) % block
        _append(chain, Block(start, start + block, (layer,)))
    _append(chain, Block(rank, rank + 1))
    return tuple(chain)


def _append(chain: list[Block], block: Block) -> None:
    """Add a block inside the last one, or what it shares to the last one where it is the same."""
    last = chain[-1]
    if (last.first, last.end) == (block.first, block.end):
        chain[-1] = last._replace(layers=(*last.layers, *block.layers))
    else:
        chain.append(block)


def lost_blocks(topology: TopologyRequest, ranks: int, lost: Collection[int]) -> list[Chain]:
    """Return the largest blocks of which every rank is lost, in rank order, each at the end of its chain."""
    before = [0]
    for rank in range(ranks):
        before.append(before[-1] + (rank in lost))
    found: list[Chain] = []
    for rank in sorted(lost):
        if found and rank < found[-1][-1].end:
            continue
        chain = blocks_around(topology, ranks, rank)
        depth = next(
            depth for depth, block in enumerate(chain) if before[block.end] - before[block.first] == _size(block)
        )
        found.append(chain[: depth + 1])
    return found


def _size(block: Block) -> int:
    return block.end - block.first


# --- what is kept -----------------------------------------------------------------------------------------------------


def begin(state: ClusterState, workload: Workload, reason: StopReason) -> None:
    """Pin what is healthy of a run that is being stopped because of a node; where there is such a thing as recovery."""
    run = workload.run
    topology = workload.topology
    if run is None or topology is None or reason not in _BY_A_NODE or run.failed:
        return
    layers = topology.layers or any(group.layers for group in topology.groups)
    if not layers or not workload.is_allocated or state.policy.scheme is not Scheme.FAIR_SHARE:
        return
    if run.started_ms is None and all(state.nodes[seat.node].takes_work for seat in run.seats):
        return  # No node is lost: it could not start there, and may not be able to at once.
    if run.started_ms is not None and not workload.resumable:
        return
    recovery = Recovering(workload.id, run.seats, state.now_ms)
    key = (workload.id, run.attempt)
    for seat in run.seats:
        node = state.nodes[seat.node]
        if node.takes_work and not seat.gpu_mask & ~(node.free_mask | node.held.get(key, 0)):
            recovery.pins[node.id] = recovery.pins.get(node.id, 0) | seat.gpu_mask
    if not recovery.pins:
        return
    _pin(state, recovery)


def move(state: ClusterState, workload: Workload, seats: tuple[Seat, ...]) -> None:
    """Keep seats for the next attempt of a run that is being stopped only to move there."""
    recovery = Recovering(workload.id, seats, state.now_ms)
    for seat in seats:
        recovery.pins[seat.node] = recovery.pins.get(seat.node, 0) | seat.gpu_mask
    _pin(state, recovery)


def _pin(state: ClusterState, recovery: Recovering) -> None:
    state.recoveries[recovery.workload] = recovery
    for id_, mask in recovery.pins.items():
        node = state.nodes[id_]
        node.pins[recovery.workload] = mask
        state.inventory.refile(node)
        state.effects.nodes[id_] = None


def kept_ranks(
    state: ClusterState, recovery: Recovering, free_mask: Callable[[Node], int] = _free_mask
) -> dict[int, Node]:
    """Return the ranks that can be where they were, with their nodes: pinned or free again, and still together.

    They are in one pool. A block that must share a domain and no longer does, since its nodes are in others by now, is
    lost whole.

    Args:
        free_mask: What is free of a node; a decision has given away some of it.
    """
    kept: dict[int, Node] = {}
    home = state.nodes[next(iter(recovery.pins))].home
    for seat in recovery.seats:
        node = state.nodes.get(seat.node)
        if node is None or not node.takes_work or node.home != home:
            continue
        pinned = node.pins.get(recovery.workload, 0) & node.unheld_mask
        if not seat.gpu_mask & ~(pinned | free_mask(node)):
            kept[seat.rank] = node
    topology = state.workloads[recovery.workload].topology
    if topology is None:
        return kept
    known: set[Block] = set()
    for rank in sorted(kept):
        for block in blocks_around(topology, len(recovery.seats), rank):
            if block in known:
                continue
            known.add(block)
            here = [other for other in range(block.first, block.end) if other in kept]
            required = [layer for layer in block.layers if layer.wish is Wish.REQUIRED]
            if here and any(_shared(state, [kept[other] for other in here], layer.level) is None for layer in required):
                for other in here:
                    del kept[other]
    return kept


class Domain(NamedTuple):
    """A domain of a level: its own name, and one of its nodes."""

    level: LevelName
    name: str
    node: Node


def _shared(state: ClusterState, nodes: Sequence[Node], level: LevelName) -> Domain | None:
    """Return the domain of a level that some nodes share; None if they share none."""
    levels = state.policy.levels_of(nodes[0].pool)
    depth = levels.index(level) + 1 if level in levels else len(levels) + 1
    paths = {
        node.domains[:depth] if level != NODE and len(node.domains) >= depth else (*node.domains, node.id)
        for node in nodes
    }
    return Domain(level, paths.pop()[-1], nodes[0]) if len(paths) == 1 else None


def domain_around(state: ClusterState, kept: Mapping[int, Node], chain: Chain) -> Domain | None:
    """Return the narrowest domain that a block shares with those around it.

    None where it may be anywhere in the pool.

    Args:
        kept: The ranks that stay, with their nodes.
        chain: From the gang inwards, without the block itself.
    """
    for block in reversed(chain):
        nodes = [kept[rank] for rank in range(block.first, block.end) if rank in kept]
        for layer in reversed(block.layers):
            domain = _shared(state, nodes, layer.level) if nodes else None
            if domain is not None:
                return domain
    return None


def unpin(state: ClusterState, node: Node) -> None:
    """Keep nothing on a node that takes no work any more, or is not what it was."""
    for id_ in sorted(node.pins):
        recovery = state.recoveries[id_]
        del node.pins[id_], recovery.pins[node.id]
        if not recovery.pins:
            restart(state, id_)
        else:
            state.touch(state.workloads[id_])
    state.inventory.refile(node)


def end(state: ClusterState, workload: str) -> None:
    """Forget a recovery: what was pinned is as free as anything."""
    recovery = state.recoveries.pop(workload, None)
    if recovery is None:
        return
    for id_ in recovery.pins:
        node = state.nodes[id_]
        del node.pins[workload]
        state.inventory.refile(node)
        state.effects.nodes[id_] = None


# --- its steps --------------------------------------------------------------------------------------------------------


def waits(state: ClusterState, workload: Workload) -> bool:
    """Whether a workload recovers and has stopped everywhere, so that it can be placed."""
    return workload.id in state.recoveries and workload.phase is Phase.QUEUED


def how_far(state: ClusterState, workload: Workload) -> Recovery:
    """Return how far a gang may move, as itself or the policy says."""
    topology = workload.topology
    return (None if topology is None else topology.recovery) or state.policy.recovery


def wait(state: ClusterState, workload: Workload) -> None:
    """Let a recovery wait for its places, once the run has stopped everywhere."""
    recovery = state.recoveries[workload.id]
    most = _steps(state, recovery)
    if most == 0:
        restart(state, workload.id)
        return
    if most is not None and how_far(state, workload) is Recovery.ANYWHERE:
        recovery.step = most - 1
    _set_step(state, workload)


def _steps(state: ClusterState, recovery: Recovering) -> int | None:
    """Return after how many steps the whole gang moves; None while nothing is lost."""
    lost = _lost_blocks(state, recovery)
    return max(len(chain) - 1 for chain in lost) if lost else None


def _set_step(state: ClusterState, workload: Workload) -> None:
    """Set when a recovery that waits widens, and tell its owner how it stands."""
    recovery = state.recoveries[workload.id]
    may_widen = how_far(state, workload) is not Recovery.IN_PLACE
    recovery.widens_ms = state.now_ms + state.policy.recovery_step_ms if may_widen else None
    state.timers.recover(recovery, workload.attempt)
    state.matured += 1
    state.touch(workload)
    _notify(state, workload, recovering_in_words(state, recovery))


def widen(state: ClusterState, workload: Workload) -> None:
    """Let a recovery in vain move more of the gang; in the end all of it."""
    recovery = state.recoveries[workload.id]
    recovery.step += 1
    most = _steps(state, recovery)
    if most is not None and recovery.step >= most:
        restart(state, workload.id)
    else:
        _set_step(state, workload)


def follow_policy(state: ClusterState) -> None:
    """Let recoveries go on as another policy says; where it has no such thing, they end."""
    for id_ in list(state.recoveries):
        workload = state.workloads[id_]
        if state.policy.scheme is not Scheme.FAIR_SHARE:
            restart(state, id_)
        elif workload.phase is Phase.QUEUED:
            wait(state, workload)


def restart(state: ClusterState, workload_id: str) -> None:
    """Give up a recovery: what was pinned is free, and the gang waits as any other requeued work."""
    end(state, workload_id)
    workload = state.workloads[workload_id]
    state.matured += 1
    state.touch(workload)
    if workload.phase is Phase.QUEUED:
        state.queue(workload)
        _notify(state, workload, "no longer recovers: nothing is pinned for it, and the whole gang starts anew")


# --- in words ---------------------------------------------------------------------------------------------------------


def recovering_in_words(state: ClusterState, recovery: Recovering) -> str:
    """Return how a recovery stands: what it keeps, what it waits for and where, and when it widens."""
    kept = kept_ranks(state, recovery)
    lost = _lost_blocks(state, recovery)
    keeps = f"recovers: keeps {counted(len({node.id for node in kept.values()}), 'node')}"
    if not lost:
        return f"all its places are kept for it, on {counted(len({node.id for node in kept.values()}), 'node')}"
    gone = _some(sorted({recovery.seats[rank].node for chain in lost for rank in _ranks(chain[-1])}))
    waits = f"{keeps}, waits for room in {_places(state, kept, lost, recovery.step)} to replace {gone}"
    if recovery.widens_ms is None:
        return f"{waits}, and goes nowhere else"
    if recovery.step + 1 >= max(len(chain) - 1 for chain in lost):
        return f"{waits}; starts anew as a whole at {format_instant(recovery.widens_ms)}"
    wider = _places(state, kept, lost, recovery.step + 1)
    return f"{waits}; widens to {wider} at {format_instant(recovery.widens_ms)}"


def _places(state: ClusterState, kept: Mapping[int, Node], lost: Sequence[Chain], step: int) -> str:
    """Return where lost blocks may be replaced after so many steps, in words."""
    places: dict[str, None] = {}
    for chain in lost:
        depth = max(1, len(chain) - 1 - step)
        domain = domain_around(state, kept, chain[:depth])
        whole = "" if depth == len(chain) - 1 else f", {_size(chain[depth])} ranks at once,"
        where = "the whole pool" if domain is None else f"{domain.level} {domain.name}"
        places[f"{where}{whole}"] = None
    return _some(list(places))


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _ranks(block: Block) -> range:
    return range(block.first, block.end)


def _lost_blocks(state: ClusterState, recovery: Recovering) -> list[Chain]:
    topology = state.workloads[recovery.workload].topology or TopologyRequest()
    kept = kept_ranks(state, recovery)
    lost = [seat.rank for seat in recovery.seats if seat.rank not in kept]
    return lost_blocks(topology, len(recovery.seats), lost)


def _notify(state: ClusterState, workload: Workload, text: str) -> None:
    state.effects.receipts.append(
        Receipt(workload=workload.id, status=ReceiptStatus.NOTICE, cursor=state.next_cursor - 1, reason=text)
    )
