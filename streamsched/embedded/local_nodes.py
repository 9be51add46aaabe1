"""Virtual nodes in this process. What they hold is kept in a file, so that their runs outlive the process.

A node's record is written before its reports are appended to the ledger. So whatever the ledger has heard from a
node, the node still knows after ``kill -9``; and a report whose sending was not written down is sent again, which the
fold ignores.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from random import Random

from streamsched.model.commands import Command
from streamsched.model.events import Event, NodeHealth, NodeHealthChanged
from streamsched.node.durable import NodeStore
from streamsched.node.virtual_node import Delays, NodeSpec, Report, VirtualNode
from streamsched.state.inventory import Node

#: Virtual work starts and stops within a moment that a person can see.
DELAYS = Delays(accept_ms=(1, 10), start_ms=(100, 1_000), stop_ms=(100, 1_000))


class LocalNodes:
    """The virtual nodes of an embedded cluster."""

    def __init__(self, store: NodeStore, *, speed: int, clock: Callable[[], int]) -> None:
        """Begin with no node.

        Args:
            store: Where their records are kept.
            speed: How much faster than true their work runs.
            clock: Milliseconds since 1970 UTC.
        """
        self._store = store
        self._speed = speed
        self._clock = clock
        self._nodes: dict[str, VirtualNode] = {}
        self._commands: list[Command] = []
        self._due: list[tuple[int, int, VirtualNode, Report]] = []
        self._planned = 0
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.gpus for node in self._nodes.values())

    def host(self, specs: Iterable[NodeSpec], known: Mapping[str, Node]) -> None:
        """Take nodes up where they were left.

        A node that is another machine than the cluster knows begins empty, under a new boot id: what ran there is lost,
        and its inventory will say so. One that the cluster does not know begins anew: its record is of another ledger,
        and with the watermark of that one it would ignore the commands of this one.

        Raises:
            ConfigurationError: Their records cannot be read.
        """
        records = self._store.records()
        for spec in specs:
            node = spec.as_new(boot=uuid.uuid4().hex, delays=DELAYS, random=Random(spec.node), speed=self._speed)
            record, before = records.get(spec.node), known.get(spec.node)
            if record is not None and before is not None:
                is_same = (before.pool, before.gpus) == (spec.pool, spec.gpus)
                emptied = {"boot": node.boot, "runs": (), "planned": ()}
                # The watermark stays: with it the inventory says that commands were obeyed and nothing is left of them.
                node.restore(record if is_same else record.model_copy(update=emptied))
            self._nodes[spec.node] = node
            self._plan(node, node.planned)
        # A node that has obeyed nothing yet has nothing to remember.
        self._save(node for node in self._nodes.values() if node.watermark is not None)

    def obey(self, commands: Sequence[Command]) -> None:
        """Take commands; `run` hands them to their nodes.

        They wait while reports are on their way: a release may lead to a placement on the same GPUs before its sender
        has heard that it arrived, and to the node those GPUs are taken until then. Commands for a node that is not
        here are dropped, and sent again until it is back.
        """
        self._commands.extend(commands)
        self._changed.set()

    async def report_presence(self, report: Callable[[Event], Awaitable[None]], known: Mapping[str, Node]) -> None:
        """Say what each node holds, and that nodes which the cluster knows and which are not here are lost.

        Args:
            report: Takes a fact to the ledger.
            known: The nodes of the cluster so far.
        """
        facts: list[Event] = [node.inventory() for node in self._nodes.values()]
        for name in sorted(known):
            if name not in self._nodes:
                reason = "the process does not host it any more"
                facts.append(NodeHealthChanged(node=name, health=NodeHealth.LOST, reason=reason))
            elif known[name].health is not NodeHealth.HEALTHY:
                reason = "the process hosts it again"
                facts.append(NodeHealthChanged(node=name, health=NodeHealth.HEALTHY, reason=reason))
        await asyncio.gather(*(report(fact) for fact in facts))

    async def run(self, report: Callable[[Event], Awaitable[None]]) -> None:
        """Let the nodes obey, and send every report when it is due. Ends only by an error, or by being cancelled."""
        while True:
            self._changed.clear()
            self._obey_all()
            due = self._take_due()
            if due:
                # Begun in this order, so the ledger has those of a node in the order in which they became true.
                await asyncio.gather(*(report(sent.fact) for _, sent in due))
                for node, sent in due:
                    node.sent(sent)
                self._save(node for node, _ in due)
                continue
            pause_ms = self._due[0][0] - self._clock() if self._due else None
            try:
                async with asyncio.timeout(None if pause_ms is None else max(pause_ms, 1) / 1_000):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _obey_all(self) -> None:
        now_ms = self._clock()
        obeying: list[VirtualNode] = []
        for command in self._commands:
            node = self._nodes.get(command.node)
            if node is not None:
                self._plan(node, node.obey(command, now_ms))
                obeying.append(node)
        self._commands.clear()
        self._save(obeying)

    def _save(self, nodes: Iterable[VirtualNode]) -> None:
        changed = {node.node: node for node in nodes}
        if changed:
            self._store.save([node.record() for node in changed.values()], {})

    def _plan(self, node: VirtualNode, reports: Iterable[Report]) -> None:
        for report in reports:
            self._planned += 1
            heappush(self._due, (report.due_ms, self._planned, node, report))

    def _take_due(self) -> list[tuple[VirtualNode, Report]]:
        now_ms = self._clock()
        taken: list[tuple[VirtualNode, Report]] = []
        while self._due and self._due[0][0] <= now_ms:
            _, _, node, report = heappop(self._due)
            if not report.withdrawn:
                taken.append((node, report))
        return taken
