"""A node that obeys commands as a real one would, without a clock and without processes.

Every report it will ever make is planned when the command arrives, with the time at which it becomes due. A shell
keeps the clock: it hands in commands, waits until a report is due, sends it, and says so. What is planned and not yet
sent is part of the node's durable record, so a shell that is killed loses no report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Final

from pydantic import Field

from streamsched.model.commands import Command, Place, Stop
from streamsched.model.events import (
    CommandAccepted,
    HeldRun,
    Instant,
    NodeInventoryReported,
    ReleaseOutcome,
    RunReleased,
    RunStarted,
    Value,
    trusted,
)
from streamsched.model.identifiers import CommandId, NodeId, command_order
from streamsched.model.quantities import SECOND

ReportedFact = CommandAccepted | RunStarted | RunReleased

# What a node says of a command repeats the command's own words.
_accepted, _started, _released = trusted(CommandAccepted), trusted(RunStarted), trusted(RunReleased)

#: How many ended runs a node remembers, so that a command about one of them is answered with how it ended.
_ENDED_REMEMBERED: Final = 64

_SECONDS = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,3})[0-9]*)?")

#: What a shell says of a program that it cannot find.
_COMMAND_NOT_FOUND: Final = 127


@dataclass(frozen=True, slots=True)
class Delays:
    """How long a node takes, in milliseconds: each a range, both ends included, drawn evenly.

    Attributes:
        accept_ms: From a command to its acknowledgement.
        start_ms: From the acknowledgement of a placement to running ranks: images, mounts, devices.
        stop_ms: From the request to stop to free GPUs; the grace cuts it short.
    """

    accept_ms: tuple[int, int] = (0, 0)
    start_ms: tuple[int, int] = (0, 0)
    stop_ms: tuple[int, int] = (0, 0)


#: Everything happens at once.
IDEAL: Final = Delays()

#: What a healthy cluster does: a broker hop, a cached image, work that writes a checkpoint when it is asked to stop.
USUAL: Final = Delays(accept_ms=(5, 50), start_ms=(2_000, 20_000), stop_ms=(1_000, 30_000))


@dataclass(eq=False, slots=True)
class Report:
    """A fact that this node will report.

    Attributes:
        due_ms: When it becomes true, by the clock that `VirtualNode.obey` was given.
        fact: What will be said.
        withdrawn: Something else happened first; it will not become true and must not be sent.
    """

    due_ms: int
    fact: ReportedFact
    withdrawn: bool = False


@dataclass(eq=False, slots=True)
class _Held:
    """A run that holds GPUs: its mask, and the reports that are planned for it."""

    gpu_mask: int
    started: Report | None
    released: Report


class PlannedReport(Value):
    """A `Report` in the durable record."""

    due_ms: Instant
    fact: Annotated[ReportedFact, Field(discriminator="type")]


class NodeRecord(Value):
    """All that a virtual node must not forget. JSON in and out by pydantic.

    Attributes:
        boot: The boot in which the runs were started.
        watermark: The last command obeyed.
        runs: Those that hold GPUs.
        planned: Reports not yet sent, in the order in which they were planned; each held run has its release here.
        ended: How the last runs ended, oldest first.
    """

    node: NodeId
    boot: Annotated[str, Field(min_length=1, max_length=128)]
    watermark: CommandId | None = None
    runs: tuple[HeldRun, ...]
    planned: tuple[PlannedReport, ...]
    ended: tuple[RunReleased, ...]


class VirtualNode:
    """One node: its GPUs, what runs on them, and what it has still to report.

    Deterministic: equal commands, times and seeds give equal reports.

    Args:
        node: Its name.
        pool: Its kind of GPU.
        gpus: How many, 0 to 16.
        domains: The topology domains it sits in, coarse to fine.
        boot: The agent's boot id.
        delays: How long it takes over things.
        random: What the delays are drawn from; needed unless every range is one value.
        speed: How much faster than true its work runs. Delays are not accelerated.
    """

    __slots__ = (
        "_delays",
        "_ended",
        "_free_mask",
        "_held",
        "_obeyed",
        "_planned",
        "_random",
        "_speed",
        "boot",
        "domains",
        "gpus",
        "node",
        "pool",
        "watermark",
    )

    def __init__(
        self,
        node: NodeId,
        *,
        pool: str = "gpu",
        gpus: int = 8,
        domains: Sequence[str] = (),
        boot: str = "boot-1",
        delays: Delays = IDEAL,
        random: Random | None = None,
        speed: int = 1,
    ) -> None:
        if speed < 1:
            raise ValueError(f"speed is {speed}; give 1 for true run times, or more to shorten them")
        self.node, self.pool, self.gpus, self.domains, self.boot = node, pool, gpus, tuple(domains), boot
        self.watermark: str | None = None
        self._obeyed = (-1, -1)
        self._delays, self._random, self._speed = delays, random or Random(0), speed
        self._free_mask = (1 << gpus) - 1
        self._held: dict[tuple[str, int], _Held] = {}
        self._planned: list[Report] = []
        self._ended: dict[tuple[str, int], RunReleased] = {}

    @property
    def planned(self) -> Sequence[Report]:
        """The reports not yet sent, in the order in which they were planned."""
        return self._planned

    def obey(self, command: Command, now_ms: int) -> list[Report]:
        """Take one command; return the reports that it newly leads to.

        A command at or below the watermark has been obeyed before and leads to nothing. Reports that will no longer
        come true are marked as withdrawn. A command is acknowledged by its own report, unless what it causes is
        reported at the same moment and says as much.
        """
        order = command_order(command.command)
        if order <= self._obeyed:
            return []
        self._obeyed, self.watermark = order, command.command
        reports = self._place(command, now_ms) if isinstance(command, Place) else self._stop(command, now_ms)
        self._planned += reports
        return reports

    def sent(self, report: Report) -> None:
        """Forget a report that has reached its readers; a release frees the GPUs here.

        Until then a run counts as held, so that an inventory never runs ahead of the reports.
        """
        self._planned.remove(report)
        fact = report.fact
        if fact.type == "run_released":
            key = (fact.workload, fact.attempt)
            held = self._held.get(key)
            if held is not None and held.released is report:
                del self._held[key]
                self._free_mask |= held.gpu_mask
                self._remember(key, fact)

    def inventory(self) -> NodeInventoryReported:
        """Return what this node is and holds now."""
        runs = tuple(
            HeldRun(workload=workload, attempt=attempt, gpu_mask=held.gpu_mask)
            for (workload, attempt), held in self._held.items()
        )
        return NodeInventoryReported(
            node=self.node,
            boot=self.boot,
            pool=self.pool,
            gpus=self.gpus,
            domains=self.domains,
            runs=runs,
            watermark=self.watermark,
        )

    def record(self) -> NodeRecord:
        """Return what must be kept so that `restore` can go on from here."""
        return NodeRecord(
            node=self.node,
            boot=self.boot,
            watermark=self.watermark,
            runs=self.inventory().runs,
            planned=tuple(PlannedReport(due_ms=report.due_ms, fact=report.fact) for report in self._planned),
            ended=tuple(self._ended.values()),
        )

    def restore(self, record: NodeRecord) -> None:
        """Go on from a record of this node, as if the agent had never stopped: runs are kept and end when they would.

        Raises:
            ValueError: The record is another node's, or is not whole.
        """
        if record.node != self.node:
            raise ValueError(f"the record is of node {record.node!r}, not of {self.node!r}; give it to that node")
        self.boot, self.watermark = record.boot, record.watermark
        self._obeyed = command_order(record.watermark) if record.watermark is not None else (-1, -1)
        self._planned = [Report(planned.due_ms, planned.fact) for planned in record.planned]
        self._ended = {(fact.workload, fact.attempt): fact for fact in record.ended}
        started: dict[tuple[str, int], Report] = {}
        released: dict[tuple[str, int], Report] = {}
        for report in self._planned:
            if isinstance(report.fact, RunStarted):
                started[report.fact.workload, report.fact.attempt] = report
            elif isinstance(report.fact, RunReleased):
                released.setdefault((report.fact.workload, report.fact.attempt), report)
        self._held = {}
        self._free_mask = (1 << self.gpus) - 1
        for run in record.runs:
            key = (run.workload, run.attempt)
            if key not in released:
                raise ValueError(f"the record of node {self.node!r} holds {key} and plans no end of it")
            self._held[key] = _Held(run.gpu_mask, started.get(key), released[key])
            self._free_mask &= ~run.gpu_mask

    def lose_runs(self, boot: str, now_ms: int) -> None:
        """Start again with empty GPUs under a new boot id: the machine went down.

        What was due before is still reported, since it happened; what was to come is withdrawn.
        """
        self.boot = boot
        for report in self._planned:
            report.withdrawn = report.due_ms > now_ms
        self._planned = [report for report in self._planned if not report.withdrawn]
        for key, held in list(self._held.items()):
            if held.released.withdrawn:
                del self._held[key]
                self._free_mask |= held.gpu_mask

    def _place(self, place: Place, now_ms: int) -> list[Report]:
        key = (place.workload, place.attempt)
        accept_ms = now_ms + self._draw(self._delays.accept_ms)
        if key in self._held:
            return [self._acceptance(place, accept_ms)]
        if key in self._ended:
            return [Report(accept_ms, self._ended[key])]

        mask = 0
        for seat in place.seats:
            mask |= seat.gpu_mask
        if now_ms >= place.start_by_ms:
            return [self._refusal(place, accept_ms, "it arrived after its start deadline")]
        if mask & ~self._free_mask:
            return [self._refusal(place, accept_ms, f"GPUs {mask & ~self._free_mask:#x} of this node are not free")]

        start_ms = accept_ms + self._draw(self._delays.start_ms)
        started = Report(start_ms, _started(node=self.node, workload=place.workload, attempt=place.attempt))
        released = self._natural_end(place, start_ms)
        self._held[key] = _Held(mask, started, released)
        self._free_mask &= ~mask
        if start_ms == accept_ms:
            return [started, released]
        return [self._acceptance(place, accept_ms), started, released]

    def _stop(self, stop: Stop, now_ms: int) -> list[Report]:
        key = (stop.workload, stop.attempt)
        accept_ms = now_ms + self._draw(self._delays.accept_ms)
        held = self._held.get(key)
        if held is None:
            fact = self._ended.get(key) or self._released(
                stop, ReleaseOutcome.STOPPED, detail="this node holds no such run"
            )
            return [Report(accept_ms, fact)]

        end_ms = max(accept_ms, now_ms + min(self._draw(self._delays.stop_ms), stop.grace_ms))
        if held.released.due_ms <= end_ms:
            return [self._acceptance(stop, accept_ms)]
        self._withdraw(held.released)
        if held.started is not None and held.started.due_ms > end_ms:
            self._withdraw(held.started)
        held.released = Report(end_ms, self._released(stop, ReleaseOutcome.STOPPED))
        return [held.released] if end_ms == accept_ms else [self._acceptance(stop, accept_ms), held.released]

    def _natural_end(self, place: Place, start_ms: int) -> Report:
        """Return the release of a run that nobody stops. Its arguments say how long it runs and how it ends."""
        work = read_sleep(place.argv)
        if work is None:
            fact = self._released(
                place,
                ReleaseOutcome.FAILED,
                exit_code=_COMMAND_NOT_FOUND,
                detail="a virtual node runs only: sleep SECONDS [exit CODE]",
            )
            return Report(start_ms, fact)
        run_ms, exit_code = work
        outcome = ReleaseOutcome.FAILED if exit_code else ReleaseOutcome.SUCCEEDED
        return Report(start_ms + run_ms // self._speed, self._released(place, outcome, exit_code=exit_code))

    def _acceptance(self, command: Command, due_ms: int) -> Report:
        return Report(due_ms, _accepted(node=self.node, command=command.command))

    def _refusal(self, place: Place, due_ms: int, why: str) -> Report:
        return Report(due_ms, self._released(place, ReleaseOutcome.REFUSED, detail=why))

    def _released(
        self, command: Command, outcome: ReleaseOutcome, *, exit_code: int | None = None, detail: str | None = None
    ) -> RunReleased:
        return _released(
            node=self.node,
            workload=command.workload,
            attempt=command.attempt,
            outcome=outcome,
            exit_code=exit_code,
            detail=detail,
        )

    def _withdraw(self, report: Report) -> None:
        """A report that was sent already is left as it is."""
        report.withdrawn = True
        if report in self._planned:
            self._planned.remove(report)

    def _remember(self, key: tuple[str, int], fact: RunReleased) -> None:
        self._ended[key] = fact
        if len(self._ended) > _ENDED_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _draw(self, limits: tuple[int, int]) -> int:
        low, high = limits
        if low == high:
            return low
        # What `randint` does, and draws the same, without its checks: this is most of what a report costs.
        span = high - low + 1
        bits = span.bit_length()
        drawn = self._random.getrandbits(bits)
        while drawn >= span:
            drawn = self._random.getrandbits(bits)
        return low + drawn


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What a virtual node is: its name, kind of GPU, number of GPUs, and topology domains from coarse to fine."""

    node: str
    pool: str = "gpu"
    gpus: int = 8
    domains: tuple[str, ...] = ()

    def as_new(self, *, boot: str, delays: Delays, random: Random, speed: int) -> VirtualNode:
        """Return such a node with nothing on it; the arguments are those of `VirtualNode`."""
        return VirtualNode(
            self.node,
            pool=self.pool,
            gpus=self.gpus,
            domains=self.domains,
            boot=boot,
            delays=delays,
            random=random,
            speed=speed,
        )


def read_sleep(argv: Sequence[str]) -> tuple[int, int] | None:
    """Read ``sleep SECONDS [exit CODE]`` as milliseconds and an exit code, or return None when it is something else.

    >>> read_sleep(["sleep", "1.5"])
    (1500, 0)
    >>> read_sleep(["sleep", "60", "exit", "3"])
    (60000, 3)
    >>> read_sleep(["python", "train.py"]) is None
    True
    """
    match argv:
        case ["sleep", seconds]:
            code = "0"
        case ["sleep", seconds, "exit", code]:
            pass
        case _:
            return None
    read = _SECONDS.fullmatch(seconds)
    if read is None or not code.isascii() or not code.isdigit() or len(code) > 3:
        return None
    whole, part = read.groups()
    return int(whole) * SECOND + int((part or "").ljust(3, "0")), int(code)


def sleep_argv(run_ms: int) -> tuple[str, ...]:
    """Return the arguments that make a virtual node run this long; `read_sleep` reads them.

    >>> sleep_argv(66_000), sleep_argv(1_500)
    (('sleep', '66'), ('sleep', '1.500'))
    """
    seconds, rest = divmod(run_ms, SECOND)
    return ("sleep", f"{seconds}.{rest:03d}" if rest else str(seconds))
