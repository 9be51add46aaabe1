"""Virtual nodes in one simulated time: commands go in, and reports come out when they are due."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from random import Random

from streamsched.model.commands import Command
from streamsched.model.events import Event, NodeInventoryReported
from streamsched.node.virtual_node import IDEAL, Delays, Report, VirtualNode


class VirtualCluster:
    """Some virtual nodes and the moments at which they have something to say.

    Reports that are due at the same moment come in the order in which they were planned, so a run is the same each
    time it is repeated.
    """

    def __init__(self, nodes: Iterable[VirtualNode]) -> None:
        self.nodes = {node.node: node for node in nodes}
        self._due: list[tuple[int, int, VirtualNode, Report]] = []
        self._planned = 0

    def inventories(self) -> list[NodeInventoryReported]:
        """Return what every node is: what their agents say when they start."""
        return [node.inventory() for node in self.nodes.values()]

    def obey(self, commands: Sequence[Command], now_ms: int) -> None:
        """Hand each command to its node. A command for a node that is not here is lost, as it would be."""
        for command in commands:
            node = self.nodes.get(command.node)
            if node is not None:
                self.plan(node, node.obey(command, now_ms))

    def plan(self, node: VirtualNode, reports: Iterable[Report]) -> None:
        """Bring these reports out when they are due."""
        for report in reports:
            self._planned += 1
            heappush(self._due, (report.due_ms, self._planned, node, report))

    @property
    def next_due_ms(self) -> int | None:
        """When the next report is due; None while nothing is planned."""
        due = self._due
        while due and due[0][3].withdrawn:
            heappop(due)
        return due[0][0] if due else None

    def next_fact(self, now_ms: int) -> Event | None:
        """Take the next fact that is due by now, or None when there is none yet.

        One at a time: what follows from one report may withdraw another of the same moment.
        """
        due = self._due
        while due and due[0][0] <= now_ms:
            _, _, node, report = heappop(due)
            if not report.withdrawn:
                node.sent(report)
                return report.fact
        return None


def uniform_cluster(
    nodes: int, gpus: int = 8, *, pool: str = "gpu", delays: Delays = IDEAL, seed: int = 0
) -> VirtualCluster:
    """Return a cluster of equal nodes, ``node-000`` and on, with names of equal length so that they sort as they count.

    Each node draws its delays from its own seed: what one node does never changes another's.
    """
    width = max(3, len(str(nodes - 1)))
    return VirtualCluster(
        VirtualNode(
            f"node-{number:0{width}d}",
            pool=pool,
            gpus=gpus,
            delays=delays,
            random=Random(f"{seed}/{number}"),
        )
        for number in range(nodes)
    )
