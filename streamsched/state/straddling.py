"""Runs that straddle: their nodes are no longer where the gang needs them, because the network was relabelled.

Such a run goes on where it is, with all that it was promised. It is marked until its nodes are together again, or until
it ends; its next attempt is placed by the network as it is then.

Functions over the state, called by its gate and by those who fold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamsched.model.commands import Receipt, ReceiptStatus
from streamsched.model.topology import NODE, Wish

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamsched.model.topology import Layer, TopologyRequest
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Node
    from streamsched.state.workloads import Workload


class Breach(NamedTuple):
    """Ranks that must share a domain and do not, or a gang that lies in more than one tree.

    Attributes:
        level: The level of the domain that they must share; None for the tree.
        first: The first of the ranks.
        last: The last of them.
        places: The domains, or the pools, that they lie in, in rank order.
    """

    level: str | None
    first: int
    last: int
    places: tuple[str, ...]

    def in_words(self) -> str:
        """Return what is not as it must be."""
        shown = ", ".join(self.places[:4]) + (f" and {len(self.places) - 4} more" if len(self.places) > 4 else "")
        if self.level is None:
            return f"its nodes lie in {len(self.places)} trees ({shown}), and no gang may span two"
        return f"ranks {self.first} to {self.last} must share one {self.level}, and lie in {len(self.places)}: {shown}"


def breach(state: ClusterState, workload: Workload) -> Breach | None:
    """Return what does not hold any more of what a gang needs where its run sits; None where all does."""
    if workload.run is None:
        return None
    nodes = [state.nodes[seat.node] for seat in workload.run.seats]
    return breach_of(workload.topology, state.policy.levels_of(nodes[0].pool), nodes)


def breach_of(request: TopologyRequest | None, levels: Sequence[str], nodes: Sequence[Node]) -> Breach | None:
    """Return the first thing that nodes, one for each rank in rank order, do not give of what a gang requires.

    Preferred layers are wishes, and a level that the policy no longer names cannot be asked for: neither is looked at.
    """
    homes = tuple(dict.fromkeys(node.home for node in nodes))
    if len(homes) > 1:
        return Breach(None, 0, len(nodes) - 1, homes)
    if request is None:
        return None
    found = _breach_of_layers(request.layers, levels, nodes, 0, len(nodes))
    first = 0
    for group in request.groups:
        found = found or _breach_of_layers(group.layers, levels, nodes, first, group.ranks)
        first += group.ranks
    return found


def _breach_of_layers(
    layers: Sequence[Layer], levels: Sequence[str], nodes: Sequence[Node], first: int, ranks: int
) -> Breach | None:
    for layer in layers:
        if layer.wish is not Wish.REQUIRED or (layer.level != NODE and layer.level not in levels):
            continue
        depth = None if layer.level == NODE else levels.index(layer.level) + 1
        size = layer.ranks or ranks
        for begin in range(first, first + ranks, size):
            places = tuple(dict.fromkeys(_domain(node, depth) for node in nodes[begin : begin + size]))
            if len(places) > 1:
                return Breach(layer.level, begin, begin + size - 1, places)
    return None


def _domain(node: Node, depth: int | None) -> str:
    """Return the path of the domain of a node at a depth; without one, and where it names no domain, its own."""
    if depth is None:
        return node.id
    return "/".join(node.domains[:depth] if len(node.domains) >= depth else (*node.domains, f"({node.id})"))


def on(node: Node) -> dict[str, None]:
    """Return the workloads that hold GPUs of a node, or claim some."""
    return dict.fromkeys(workload for workload, _ in (*node.held, *node.claims))


def straddling_runs(workloads: Iterable[Workload]) -> int:
    """Return how many of some workloads have a run that straddles."""
    return sum(workload.run is not None and workload.run.straddling for workload in workloads)


def recheck(state: ClusterState, workloads: Iterable[str]) -> None:
    """See which of some workloads have a run that straddles by now, or no longer; tell those whom it befalls."""
    for id_ in sorted(set(workloads)):
        workload = state.workloads.get(id_)
        if workload is None or workload.run is None:
            continue
        found = breach(state, workload)
        if workload.run.straddling is (found is not None):
            continue
        workload.run.straddling = found is not None
        state.touch(workload)
        if found is not None:
            state.effects.receipts.append(
                Receipt(
                    workload=id_,
                    status=ReceiptStatus.NOTICE,
                    cursor=state.next_cursor - 1,
                    reason=f"straddling: {found.in_words()}; it goes on where it is",
                )
            )
