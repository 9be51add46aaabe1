"""Who sat on which GPUs, from when until when: what the Gantt chart and the trace export are drawn from.

A projection for pictures only. It is kept apart from the outcomes, which are counted on every simulation.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from streamsched.model.commands import Effects, StopReason
from streamsched.model.events import Record
from streamsched.state.cluster import ClusterState
from streamsched.state.workloads import Phase, Run

#: In a column of times: it has not happened.
NEVER: Final = -1


class SpellEnd(IntEnum):
    """How a spell ended, as far as a picture tells it."""

    #: By itself, by its owner, or with the stretch.
    OTHERWISE = 0
    PREEMPTED = 1
    #: Its node was drained, or the machinery failed.
    LOST = 2


def _times() -> array[int]:
    return array("q")


def _numbers() -> array[int]:
    return array("l")


@dataclass(slots=True)
class Seating:
    """The spells of a stretch: one for each node of each run. Times are milliseconds since 1970 UTC.

    Attributes:
        since_ms: When the stretch begins.
        until_ms: When it ends.
        nodes: Names of the nodes with their GPUs, in the order of their places.
        teams: Names of the budgets that held any.
        workloads: Ids of the workloads that held any.
        team: Of each workload, its place in `teams`.
        node: Of each spell, its place in `nodes`; and so on for what follows.
        gpu_mask: Which GPUs of the node.
        workload: Its place in `workloads`.
        attempt: The number of the run.
        from_ms: When the GPUs were given to it, or the stretch began.
        preemptible_ms: From when on it could be displaced; `NEVER` where it could not before it ended.
        to_ms: When it gave them back, or the stretch ended.
        end: A `SpellEnd`.
        outage_node: Nodes that took no work for a time, and when.
    """

    since_ms: int
    until_ms: int
    nodes: list[tuple[str, int]] = field(default_factory=list)
    teams: list[str] = field(default_factory=list)
    workloads: list[str] = field(default_factory=list)
    team: array[int] = field(default_factory=_numbers)
    node: array[int] = field(default_factory=_numbers)
    gpu_mask: array[int] = field(default_factory=_numbers)
    workload: array[int] = field(default_factory=_numbers)
    attempt: array[int] = field(default_factory=_numbers)
    from_ms: array[int] = field(default_factory=_times)
    preemptible_ms: array[int] = field(default_factory=_times)
    to_ms: array[int] = field(default_factory=_times)
    end: array[int] = field(default_factory=_numbers)
    outage_node: array[int] = field(default_factory=_numbers)
    outage_from_ms: array[int] = field(default_factory=_times)
    outage_to_ms: array[int] = field(default_factory=_times)

    def __len__(self) -> int:
        return len(self.node)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(gpus for _, gpus in self.nodes)


class _Open:
    """A run that has GPUs: which on which node, as far as it has not given them back."""

    __slots__ = ("allocated", "masks", "run", "since_ms", "workload")

    def __init__(self, run: Run, workload: int, *, allocated: bool, now_ms: int) -> None:
        self.run = run
        self.workload = workload
        self.allocated = allocated
        self.since_ms = now_ms
        self.masks = dict(run.held)


class SeatingRecorder:
    """Observes every record from the beginning of a ledger, as `OutcomeRecorder` does.

    Args:
        from_ms: What ended before this is not kept.
    """

    def __init__(self, from_ms: int = 0) -> None:
        self._from_ms = from_ms
        self._seating = Seating(0, 0)
        self._open: dict[str, _Open] = {}
        self._workloads: dict[tuple[str, int], int] = {}
        self._teams: dict[str, int] = {}
        #: Every node seen, with its place in the order in which they came, its GPUs and its domains.
        self._nodes: dict[str, tuple[int, int, tuple[str, ...]]] = {}
        self._out: dict[str, int] = {}

    def __call__(self, _record: Record, effects: Effects, state: ClusterState) -> None:
        """Take one folded record."""
        for name in effects.nodes:
            self._note_node(name, state)
        for name in effects.workloads:
            workload = state.workloads.get(name)
            run = workload.run if workload is not None else None
            if run is not None and run.bound_ms is None:
                run = None
            known = self._open.get(name)
            if known is not None and (run is not known.run or len(run.held) < len(known.masks)):
                kept = run.held if run is known.run and run is not None else {}
                for node in [node for node in known.masks if node not in kept]:
                    self._close(known, node, state, state.now_ms)
                if not known.masks:
                    del self._open[name]
            if workload is not None and run is not None and run.held and name not in self._open:
                row = self._row(name, workload.submitted_ms, workload.budget.id)
                self._open[name] = _Open(run, row, allocated=workload.is_allocated, now_ms=state.now_ms)

    def seating(self, state: ClusterState, *, until_ms: int, since_ms: int) -> Seating:
        """Return the spells of a stretch, those that go on cut at its end. Call it once, at the end."""
        for known in self._open.values():
            for node in list(known.masks):
                self._close(known, node, state, until_ms)
        self._open.clear()
        for name in list(self._out):
            self._end_outage(name, until_ms)
        seating = self._seating
        seating.since_ms, seating.until_ms = since_ms, until_ms
        places = sorted(self._nodes, key=lambda name: (self._nodes[name][2], name))
        place = {self._nodes[name][0]: number for number, name in enumerate(places)}
        seating.nodes = [(name, self._nodes[name][1]) for name in places]
        seating.node = array("l", (place[number] for number in seating.node))
        seating.outage_node = array("l", (place[number] for number in seating.outage_node))
        return seating

    def _row(self, name: str, submitted_ms: int, team: str) -> int:
        seating = self._seating
        row = self._workloads.get((name, submitted_ms))
        if row is None:
            row = self._workloads[name, submitted_ms] = len(seating.workloads)
            seating.workloads.append(name)
            if team not in self._teams:
                self._teams[team] = len(seating.teams)
                seating.teams.append(team)
            seating.team.append(self._teams[team])
        return row

    def _note_node(self, name: str, state: ClusterState) -> None:
        node = state.nodes.get(name)
        if node is None:
            return
        known = self._nodes.get(name)
        if known is None or known[1] < node.gpus:
            self._nodes[name] = (len(self._nodes) if known is None else known[0], node.gpus, node.domains)
        if node.takes_work:
            if name in self._out:
                self._end_outage(name, state.now_ms)
        elif name not in self._out:
            self._out[name] = state.now_ms

    def _end_outage(self, name: str, now_ms: int) -> None:
        since_ms = max(self._out.pop(name), self._from_ms)
        if now_ms > since_ms:
            self._seating.outage_node.append(self._nodes[name][0])
            self._seating.outage_from_ms.append(since_ms)
            self._seating.outage_to_ms.append(now_ms)

    def _close(self, known: _Open, node: str, state: ClusterState, now_ms: int) -> None:
        mask = known.masks.pop(node)
        since_ms = max(known.since_ms, self._from_ms)
        if now_ms <= since_ms:
            return
        run, seating = known.run, self._seating
        preemptible_ms = since_ms
        if known.allocated:
            # What is not known to be protected has not started, and is protected until it has.
            until_ms = run.protected_until_ms
            preemptible_ms = NEVER if until_ms is None or until_ms >= now_ms else max(until_ms, since_ms)
        seating.node.append(self._nodes[node][0])
        seating.gpu_mask.append(mask)
        seating.workload.append(known.workload)
        seating.attempt.append(run.attempt)
        seating.from_ms.append(since_ms)
        seating.preemptible_ms.append(preemptible_ms)
        seating.to_ms.append(now_ms)
        seating.end.append(_end_of(run, seating.workloads[known.workload], state))


def _end_of(run: Run, name: str, state: ClusterState) -> SpellEnd:
    if run.stop is StopReason.PREEMPTED:
        finished = state.finished.get(name)
        return SpellEnd.OTHERWISE if finished is not None and finished.phase is Phase.SUCCEEDED else SpellEnd.PREEMPTED
    by_machine = (StopReason.NODE_DRAINED, StopReason.NODE_FAILED, StopReason.GANG_BROKEN, StopReason.START_DEADLINE)
    return SpellEnd.LOST if run.infrastructure or run.stop in by_machine else SpellEnd.OTHERWISE
