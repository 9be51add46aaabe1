"""Virtual nodes in one simulated time: commands go in, and reports come out when they are due.

Work that is stopped and placed again goes on where it was: the cluster knows what earlier attempts have done, and hands
the nodes of the next one only what is left of the ``sleep``. A gang has done what all its ranks have done together:
from the start of the last one to the first request to stop. Work saves itself when it is asked to stop, or at whole
checkpoint intervals of each attempt only; what it had not saved, it does again. A run that is lost with its node was
asked nothing, and leaves what was saved before it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from random import Random

from streamsched.model.commands import Command, Place, Stop
from streamsched.model.events import Event, NodeInventoryReported
from streamsched.node.virtual_node import IDEAL, Delays, Report, VirtualNode, read_sleep, sleep_argv


class VirtualCluster:
    """Some virtual nodes and the moments at which they have something to say.

    Reports that are due at the same moment come in the order in which they were planned, so a run is the same each
    time it is repeated.

    Args:
        nodes: They must run their work at its true speed.
        checkpoint_ms: How often work saves itself; None when it does so as it is asked to stop.
    """

    def __init__(self, nodes: Iterable[VirtualNode], checkpoint_ms: int | None = None) -> None:
        self.nodes = {node.node: node for node in nodes}
        self._checkpoint_ms = checkpoint_ms
        self._progress: dict[str, _Progress] = {}
        self._due: list[tuple[int, int, VirtualNode, Report]] = []
        self._planned = 0

    def inventories(self) -> list[NodeInventoryReported]:
        """Return what every node is: what their agents say when they start."""
        return [node.inventory() for node in self.nodes.values()]

    def obey(self, commands: Sequence[Command], now_ms: int) -> None:
        """Hand each command to its node. A command for a node that is not here is lost, as it would be."""
        for command in commands:
            node = self.nodes.get(command.node)
            if node is None:
                continue
            if command.type == "place":
                self._place(node, command, now_ms)
            else:
                self._note_stop(command, now_ms)
                self.plan(node, node.obey(command, now_ms))

    def _place(self, node: VirtualNode, place: Place, now_ms: int) -> None:
        """Let a node run what is left of a workload, and note when it starts there."""
        progress = self._progress.get(place.workload)
        if progress is None:
            progress = self._progress[place.workload] = _Progress()
        if place.attempt > progress.attempt:
            progress.begin(place.attempt)
        work = read_sleep(place.argv) if progress.saved_ms and place.attempt == progress.attempt else None
        if work is not None:
            left = sleep_argv(max(1, work[0] - progress.saved_ms))
            place = place.model_copy(update={"argv": (*left, *place.argv[2:])})
        reports = node.obey(place, now_ms)
        for report in reports:
            if report.fact.type == "run_started" and place.attempt == progress.attempt:
                progress.started += len(place.seats)
                progress.whole_since_ms = max(progress.whole_since_ms, report.due_ms)
                progress.ranks = place.ranks
        self.plan(node, reports)

    def _note_stop(self, stop: Stop, now_ms: int) -> None:
        """Keep what a gang has done, at the first request to stop it."""
        progress = self._progress.get(stop.workload)
        if progress is None or progress.attempt != stop.attempt or progress.stopped:
            return
        progress.stopped = True
        if progress.started == progress.ranks and now_ms > progress.whole_since_ms:
            done_ms = now_ms - progress.whole_since_ms
            progress.saved_ms += done_ms - done_ms % (self._checkpoint_ms or 1)

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


class _Progress:
    """What a workload has done: saved by earlier attempts, and since when the present one runs as a whole."""

    __slots__ = ("attempt", "ranks", "saved_ms", "started", "stopped", "whole_since_ms")

    def __init__(self) -> None:
        self.saved_ms = 0
        self.begin(0)

    def begin(self, attempt: int) -> None:
        """Follow another attempt."""
        self.attempt = attempt
        #: Ranks of the gang, and those of them whose start is known. Equal once it runs as a whole.
        self.ranks = -1
        self.started = 0
        self.whole_since_ms = 0
        self.stopped = False


def uniform_cluster(
    nodes: int,
    gpus: int = 8,
    *,
    pool: str = "gpu",
    delays: Delays = IDEAL,
    seed: int = 0,
    checkpoint_ms: int | None = None,
) -> VirtualCluster:
    """Return a cluster of equal nodes, ``node-000`` and on, with names of equal length so that they sort as they count.

    Each node draws its delays from its own seed: what one node does never changes another's.
    """
    width = max(3, len(str(nodes - 1)))
    names = (f"node-{number:0{width}d}" for number in range(nodes))
    return VirtualCluster(
        (
            VirtualNode(name, pool=pool, gpus=gpus, delays=delays, random=Random(f"{seed}/{number}"))
            for number, name in enumerate(names)
        ),
        checkpoint_ms,
    )
