"""Virtual nodes in this process. What they hold is kept in a file, so that their runs outlive the process.

A node's record is written before its reports are appended to the ledger. So whatever the ledger has heard from a
node, the node still knows after ``kill -9``; and a report whose sending was not written down is sent again, which the
fold ignores.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from streamsched.errors import ConfigurationError
from streamsched.model.commands import Command
from streamsched.model.events import Event, NodeHealth, NodeHealthChanged
from streamsched.model.identifiers import PoolId
from streamsched.node.virtual_node import Delays, NodeRecord, Report, VirtualNode
from streamsched.state.inventory import Node

#: Virtual work starts and stops within a moment that a person can see.
DELAYS = Delays(accept_ms=(1, 10), start_ms=(100, 1_000), stop_ms=(100, 1_000))

_FLEET = re.compile(r"([1-9]\d{0,4})x([1-9]\d?)(?::(.+))?")
_POOL: TypeAdapter[str] = TypeAdapter(PoolId)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Some equal virtual nodes: how many, GPUs of each, and their kind."""

    count: int
    gpus: int
    pool: str

    @staticmethod
    def parse(text: str, pool: str) -> Fleet:
        """Read ``4x8`` or ``4x8:h100``.

        Args:
            text: What a person wrote.
            pool: The kind of GPU where the text names none.

        Raises:
            ValueError: Saying what would be right.
        """
        match = _FLEET.fullmatch(text)
        if match is None or int(match[2]) > 16:
            raise ValueError(
                f"{text!r} names no nodes; write COUNTxGPUS or COUNTxGPUS:POOL with 1 to 16 GPUs, such as 4x8"
            )
        try:
            kind = _POOL.validate_python(match[3] or pool)
        except ValidationError as error:
            raise ValueError(f"{match[3] or pool!r} is no name of a pool; write one like h100") from error
        return Fleet(int(match[1]), int(match[2]), kind)


class _Machine(BaseModel):
    """What a node is, in its file."""

    model_config = ConfigDict(frozen=True)

    node: str
    pool: str
    gpus: int


class LocalNodes:
    """The virtual nodes of an embedded cluster."""

    def __init__(self, path: Path, fleets: Sequence[Fleet] | None, *, speed: int, clock: Callable[[], int]) -> None:
        """Open the file and restore what it holds.

        Args:
            path: The file; it is created when it does not exist.
            fleets: The nodes that shall be there, or None for those that the file knows.
            speed: How much faster than true their work runs.
            clock: Milliseconds since 1970 UTC.

        Raises:
            ConfigurationError: The file cannot be used.
        """
        self._clock = clock
        self._path = path
        try:
            self._file = sqlite3.connect(path, isolation_level=None)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS nodes (node TEXT PRIMARY KEY, machine TEXT, record TEXT)")
            rows = self._file.execute("SELECT node, machine, record FROM nodes ORDER BY node").fetchall()
        except sqlite3.Error as error:
            raise ConfigurationError(
                f"the virtual nodes' file {path} cannot be used: {error}. Check the directory, or move the file away; "
                "what ran on them is then requeued."
            ) from error
        known = {name: (_Machine.model_validate_json(machine), record) for name, machine, record in rows}
        wanted = [machine for machine, _ in known.values()] if fleets is None else _machines(fleets)
        self._nodes: dict[str, _Hosted] = {}
        for machine in wanted:
            node = VirtualNode(
                machine.node,
                pool=machine.pool,
                gpus=machine.gpus,
                boot=f"boot-{clock()}",
                delays=DELAYS,
                random=Random(machine.node),
                speed=speed,
            )
            # Where the machine is another than before, its runs are gone, and the inventory says so.
            if machine.node in known and known[machine.node][0] == machine and known[machine.node][1] is not None:
                node.restore(NodeRecord.model_validate_json(known[machine.node][1]))
            self._nodes[machine.node] = _Hosted(node)
        self._transact(
            [("DELETE FROM nodes WHERE node = ?", (name,)) for name in known if name not in self._nodes]
            + [
                (
                    "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?)",
                    (machine.node, machine.model_dump_json(), self._record(machine.node)),
                )
                for machine in wanted
            ]
        )

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(hosted.node.gpus for hosted in self._nodes.values())

    def obey(self, commands: Sequence[Command]) -> None:
        """Hand commands to their nodes. Those for a node that is not here wait for its return."""
        now_ms = self._clock()
        touched: dict[str, None] = {}
        for command in commands:
            hosted = self._nodes.get(command.node)
            if hosted is None:
                continue
            hosted.node.obey(command, now_ms)
            touched[command.node] = None
        self._save(touched)
        for name in touched:
            self._nodes[name].changed.set()

    async def report_presence(self, report: Callable[[Event], Awaitable[None]], known: Mapping[str, Node]) -> None:
        """Say what each node holds, and that nodes which the cluster knows and which are not here are lost.

        Args:
            report: Takes a fact to the ledger.
            known: The nodes of the cluster so far.
        """
        facts: list[Event] = [hosted.node.inventory() for hosted in self._nodes.values()]
        for name in sorted(known):
            if name not in self._nodes:
                reason = "the process does not host it any more"
                facts.append(NodeHealthChanged(node=name, health=NodeHealth.LOST, reason=reason))
            elif known[name].health is not NodeHealth.HEALTHY:
                facts.append(
                    NodeHealthChanged(node=name, health=NodeHealth.HEALTHY, reason="the process hosts it again")
                )
        await asyncio.gather(*(report(fact) for fact in facts))

    async def run(self, report: Callable[[Event], Awaitable[None]]) -> None:
        """Send every report when it is due. Ends only by an error, or by being cancelled."""
        async with asyncio.TaskGroup() as group:
            for hosted in self._nodes.values():
                group.create_task(self._report(hosted, report))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    async def _report(self, hosted: _Hosted, report: Callable[[Event], Awaitable[None]]) -> None:
        while True:
            hosted.changed.clear()
            due = hosted.next_report()
            pause_ms = None if due is None else due.due_ms - self._clock()
            if due is None or (pause_ms is not None and pause_ms > 0):
                try:
                    async with asyncio.timeout(None if pause_ms is None else pause_ms / 1_000):
                        await hosted.changed.wait()
                except TimeoutError:
                    pass
                continue
            await report(due.fact)
            if not due.withdrawn:  # A stop may have come while it was on its way; its own report then follows.
                hosted.node.sent(due)
            self._save([hosted.node.node])

    def _save(self, names: Iterable[str]) -> None:
        self._transact([("UPDATE nodes SET record = ? WHERE node = ?", (self._record(name), name)) for name in names])

    def _record(self, name: str) -> str:
        return self._nodes[name].node.record().model_dump_json(exclude_none=True)

    def _transact(self, statements: Sequence[tuple[str, tuple[object, ...]]]) -> None:
        if not statements:
            return
        self._file.execute("BEGIN")
        for statement, values in statements:
            self._file.execute(statement, values)
        self._file.execute("COMMIT")


class _Hosted:
    """A node and what wakes its reporter."""

    def __init__(self, node: VirtualNode) -> None:
        self.node = node
        self.changed = asyncio.Event()

    def next_report(self) -> Report | None:
        return min(self.node.planned, key=lambda report: report.due_ms, default=None)


def _machines(fleets: Sequence[Fleet]) -> list[_Machine]:
    machines: list[_Machine] = []
    for fleet in fleets:
        for _ in range(fleet.count):
            machines.append(_Machine(node=f"node-{len(machines) + 1}", pool=fleet.pool, gpus=fleet.gpus))
    return machines
