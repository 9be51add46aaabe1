"""Simulations of one demand under several policies, in processes of their own, each with what it came to.

A simulation is a value that can be pickled: a worker gets it, runs it, and sends back the run for a table or a report.
It tells how far it is a few times a second. Equal simulations give equal ledgers, in whatever process they run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from random import Random
from typing import TYPE_CHECKING, Any, Final

from streamsched.model.commands import Effects
from streamsched.model.events import BudgetShare, BudgetTreeChanged, Record, WorkloadSubmitted
from streamsched.model.policy import Policy
from streamsched.node.virtual_node import IDEAL, USUAL, NodeSpec
from streamsched.reporting.runs import ReportedRun, RunRecorder
from streamsched.simulation.demand import Demand, Source
from streamsched.simulation.history import HistoryKeeper
from streamsched.simulation.institute import LOADS, Institute
from streamsched.simulation.simulator import simulate
from streamsched.simulation.traces import Contract, Selection, Trace, demand_of
from streamsched.simulation.virtual_cluster import VirtualCluster
from streamsched.simulation.what_if import Change, RecordedDemand
from streamsched.state.cluster import ClusterState
from streamsched.state.snapshot import digest

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

#: Between two reports of how far a simulation is, in seconds, and in records.
_TELL_SECONDS: Final = 0.2
_TELL_RECORDS: Final = 200


@dataclass(frozen=True, slots=True)
class TraceDemand:
    """What a trace asks for; each policy has its own cap of min runtimes. The fields are arguments of `demand_of`."""

    trace: Trace
    selection: Selection
    contract: Contract
    budgets: Sequence[BudgetShare] | None = None

    def under(self, policy: Policy) -> Demand:
        """Return the demand as people would declare it under a policy."""
        contract = replace(self.contract, min_runtime_cap_ms=policy.min_runtime_cap_ms)
        return demand_of(self.trace, self.selection, contract, self.budgets)


@dataclass(frozen=True, slots=True)
class InstituteDemand:
    """What an institute asks for: one of `LOADS`, and the arguments of `Institute`."""

    load: str
    seed: int
    since_ms: int
    until_ms: int
    one_pool: bool = False

    def under(self, policy: Policy) -> Source:
        """Return the people who submit."""
        people = Institute(
            LOADS[self.load],
            self.seed,
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            min_runtime_cap_ms=policy.min_runtime_cap_ms,
        )
        return _InOnePool(people) if self.one_pool else people


@dataclass(frozen=True, slots=True)
class _InOnePool:
    """A source whose gangs have ranks of one GPU."""

    source: Source

    @property
    def budgets(self) -> BudgetTreeChanged:
        return self.source.budgets

    @property
    def next_due_ms(self) -> int | None:
        return self.source.next_due_ms

    def next_submission(self, now_ms: int, state: ClusterState) -> WorkloadSubmitted | None:
        asked = self.source.next_submission(now_ms, state)
        gpus = 0 if asked is None else asked.ranks * asked.gpus_per_rank
        return None if asked is None else asked.model_copy(update={"ranks": gpus, "gpus_per_rank": 1})


@dataclass(frozen=True, slots=True)
class Simulation:
    """One demand under one policy on one cluster.

    Attributes:
        name: What readers tell it by.
        policy: In force from the beginning to the end.
        demand: What is asked for.
        nodes: What the cluster consists of.
        since_ms: When it comes up.
        last_ms: When the last submission comes, as far as that is known: progress is measured by it.
        until_ms: Nothing after this happens; None to go on until all has ended.
        from_ms: What happens earlier counts for nothing: the cluster must first fill. A whole hour.
        ideal: Whether nodes take no time to start and stop work.
        seed: Draws how long they take.
        ledger: Where the ledger is kept; nothing may be there yet.
    """

    name: str
    policy: Policy
    demand: TraceDemand | InstituteDemand
    nodes: Sequence[NodeSpec]
    since_ms: int
    last_ms: int
    until_ms: int | None = None
    from_ms: int = 0
    ideal: bool = False
    seed: int = 0
    ledger: Path | None = None

    def run(self, tell: Callable[[Stage], None]) -> Simulated:
        """Run it here.

        Args:
            tell: Called now and then with how far it is.

        Raises:
            ConfigurationError: There is no such demand, or the ledger cannot be kept there.
        """
        demand = self.demand.under(self.policy)
        delays = IDEAL if self.ideal else USUAL
        cluster = VirtualCluster(
            spec.as_new(boot="boot-1", delays=delays, random=Random(f"{self.seed}/{number}"), speed=1)
            for number, spec in enumerate(self.nodes)
        )
        recorder = RunRecorder(self.from_ms)
        observers: list[Callable[[Record, Effects, ClusterState], None]] = [recorder, _Teller(self, tell)]
        began = time.process_time()
        with ExitStack() as stack:
            if self.ledger is not None:
                observers.append(stack.enter_context(HistoryKeeper(self.ledger, "simulated", self.since_ms)))
            state = simulate(
                demand,
                cluster,
                self.policy,
                since_ms=self.since_ms,
                until_ms=self.until_ms,
                observers=observers,
            )
        seconds = time.process_time() - began
        until_ms = state.now_ms if self.until_ms is None else max(self.until_ms, state.now_ms)
        run = recorder.run(self.name, state, until_ms=until_ms)
        return Simulated(run, state.next_cursor, seconds, digest(state), self.ledger)


@dataclass(frozen=True, slots=True)
class RecordedSimulation:
    """What a ledger says was asked for, served with a change, until the moment at which that ledger ends.

    Attributes:
        name: What readers tell it by.
        demand: What was asked for.
        change: What is to be other than it was.
        from_ms: What happens earlier counts for nothing. A whole hour.
        ideal: Whether nodes take no time to start and stop work.
        seed: Draws how long they take.
    """

    name: str
    demand: RecordedDemand
    change: Change
    from_ms: int = 0
    ideal: bool = False
    seed: int = 0

    @property
    def since_ms(self) -> int:
        """When the cluster comes up."""
        return self.demand.since_ms

    @property
    def last_ms(self) -> int:
        """When the last submission comes, at the latest."""
        return self.demand.until_ms

    def run(self, tell: Callable[[Stage], None]) -> Simulated:
        """Run it here.

        Args:
            tell: Called now and then with how far it is.
        """
        recorder = RunRecorder(self.from_ms)
        began = time.process_time()
        state = self.demand.serve(
            self.change,
            IDEAL if self.ideal else USUAL,
            seed=self.seed,
            observers=(recorder, _Teller(self, tell)),
        )
        seconds = time.process_time() - began
        run = recorder.run(self.name, state, until_ms=max(self.demand.until_ms, state.now_ms))
        return Simulated(run, state.next_cursor, seconds, digest(state), None)


@dataclass(frozen=True, slots=True)
class Stage:
    """How far a simulation is: its clock in ms, how much of its demand has come (0 to 1), and its records."""

    at_ms: int
    fraction: float
    records: int
    running: int
    queued: int


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a simulation came to: the run, its records, the CPU seconds it took, the last state's digest, its ledger."""

    run: ReportedRun
    records: int
    seconds: float
    digest: str
    ledger: Path | None

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values. All but the seconds are the same each time."""
        return {
            "policy": self.run.name,
            "records": self.records,
            "cpu_seconds": round(self.seconds, 3),
            "digest": self.digest,
            "ledger": None if self.ledger is None else str(self.ledger),
            "outcomes": self.run.outcomes.as_json(),
        }


class _Teller:
    """An observer that tells how far a simulation is."""

    def __init__(self, simulation: Simulation | RecordedSimulation, tell: Callable[[Stage], None]) -> None:
        self._since_ms, self._span_ms = simulation.since_ms, max(1, simulation.last_ms - simulation.since_ms)
        self._tell = tell
        self._records = 0
        self._told = 0.0

    def __call__(self, _record: Record, _effects: Effects, state: ClusterState) -> None:
        self._records += 1
        if self._records % _TELL_RECORDS or time.monotonic() < self._told + _TELL_SECONDS:
            return
        self._told = time.monotonic()
        queued = state.allocated.size + state.unallocated.size
        fraction = min(1.0, (state.now_ms - self._since_ms) / self._span_ms)
        self._tell(Stage(state.now_ms, fraction, self._records, len(state.workloads) - queued, queued))


def run_all(
    simulations: Sequence[Simulation | RecordedSimulation],
    processes: int,
    tell: Callable[[int, Stage | Simulated], None],
) -> list[Simulated]:
    """Run simulations side by side; return what they came to, in their order.

    Args:
        simulations: At least one.
        processes: How many run at a time. A single one runs in this process.
        tell: Called with the number of a simulation and how far it is, and at last with what it came to.

    Raises:
        StreamschedError: What one of them raised; the others are given up.
    """
    if len(simulations) == 1 or processes == 1:
        found = []
        for number, simulation in enumerate(simulations):
            found.append(simulation.run(lambda stage, number=number: tell(number, stage)))  # type: ignore[misc]
            tell(number, found[-1])
        return found
    context = get_context("spawn")
    stages: Queue[tuple[int, Stage]] = context.Queue()
    workers = ProcessPoolExecutor(
        min(processes, len(simulations)), mp_context=context, initializer=_listen, initargs=(stages,)
    )
    try:
        futures = [workers.submit(_run, number, simulation) for number, simulation in enumerate(simulations)]
        for number, stage in _heard(stages, futures):
            tell(number, stage)
        return [future.result() for future in futures]
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
        stages.close()


def _heard(
    stages: Queue[tuple[int, Stage]], futures: Sequence[Future[Simulated]]
) -> Iterator[tuple[int, Stage | Simulated]]:
    """Yield what workers tell, until all are done or one has failed."""
    going = dict(enumerate(futures))
    while going:
        try:
            number, stage = stages.get(timeout=_TELL_SECONDS)
            if number in going:
                yield number, stage
        except Empty:
            pass
        for number in [number for number, future in going.items() if future.done()]:
            yield number, going.pop(number).result()


#: Where a worker tells how far it is.
_told: list[Queue[tuple[int, Stage]]] = []


def _listen(stages: Queue[tuple[int, Stage]]) -> None:
    _told.append(stages)


def _run(number: int, simulation: Simulation | RecordedSimulation) -> Simulated:
    return simulation.run(lambda stage: _told[0].put((number, stage)))
