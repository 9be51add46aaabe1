"""Whole simulations of the Philly trace, full policy, ledger kept: how long, how large, and how that grows.

Each runs in a process of its own, so that its peak of memory is its own. Called as a module with a case as JSON, it
runs that one and prints what it took; without one it prints all results, as rows of a table. The nodes are ideal, as
they are in the simulators that are compared with: work starts when it is placed and stops when it is asked to.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from streamsched.model.commands import Effects
from streamsched.model.events import Record
from streamsched.model.quantities import DAY, HOUR
from streamsched.scheduling.scheduler import Scheduler
from streamsched.simulation.demand import Demand
from streamsched.simulation.history import HistoryKeeper
from streamsched.simulation.simulator import simulate
from streamsched.simulation.traces import read_philly
from streamsched.simulation.virtual_cluster import uniform_cluster
from streamsched.state.cluster import ClusterState
from tests.benchmarks.histories import MAX_GPUS, NODES, SINCE_MS, TRACES
from tests.benchmarks.measuring import Bound, Limit, Result
from tests.benchmarks.results import rows

#: 2017-11-06 in California: five weeks, and the hour that the end of summer time repeats.
UNTIL_MS = SINCE_MS + 35 * DAY + HOUR
JOBS = 49_875

#: Five times the jobs, and a fifth more than that is allowed.
JOBS_RATIO_MAX = Limit(Bound.AT_MOST, 6)
#: A candidate that was looked at in vain is not looked at again before that may have changed.
LOOKS_MAX = Limit(Bound.AT_MOST, 2)
MEMORY_MB_MAX = Limit(Bound.AT_MOST, 200)


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation.

    Attributes:
        jobs: How many of the trace, from the first on.
        nodes: Of 8 GPUs each.
        haste: How much faster than in the trace they are submitted, in hundredths.
    """

    jobs: int
    nodes: int = NODES
    haste: int = 100


@dataclass(frozen=True, slots=True)
class Taken:
    """What one simulation took: process time without the reading of the trace, and memory with it.

    Attributes:
        records: Those of its ledger.
        looks: How often a candidate was looked at beyond what its size alone tells.
        waiting: The most that waited at a time.
        peak_mb: Resident memory at its peak, in millions of bytes, the interpreter and all modules included.
    """

    seconds: float
    records: int
    looks: int
    waiting: int
    peak_mb: float

    @property
    def us_per_record(self) -> float:
        """Microseconds of each record: made, folded, decided on, encoded and written."""
        return 1e6 * self.seconds / self.records


def measure() -> Iterator[Result]:
    """Measure all of them; yield each result when it is known."""
    fewer, whole = taken(Case(10_000)), taken(Case(JOBS))
    what = f"five weeks of Philly, {JOBS:,} jobs, {8 * NODES} GPUs, {whole.records:,} records"
    yield Result(f"{what}: process time", whole.seconds, "s")
    yield Result(f"{what}: each record", whole.us_per_record, "us")
    yield Result(f"{what}: each submission and each end", 1e6 * whole.seconds / (2 * JOBS), "us")
    yield Result(f"{what}: looks for each submission and each end", whole.looks / (2 * JOBS), limit=LOOKS_MAX)
    yield Result(f"{what}: peak memory", whole.peak_mb, "MB", MEMORY_MB_MAX)
    yield Result(f"{what}: time / that of 10,000 jobs", whole.seconds / fewer.seconds, limit=JOBS_RATIO_MAX)
    for haste in (100, 200, 400):
        case = taken(Case(10_000, haste=haste))
        what = f"10,000 Philly jobs, {8 * NODES} GPUs, up to {case.waiting:,} waiting: each record"
        yield Result(what, case.us_per_record, "us")
    for gpus in (1_024, 4_096, 16_384):
        # As many jobs for each GPU and hour, so that the clusters are as full.
        case = taken(Case(10_000, nodes=gpus // 8, haste=100 * gpus // (8 * NODES)))
        what = f"10,000 Philly jobs, {gpus:,} GPUs, up to {case.waiting:,} waiting: each record"
        yield Result(what, case.us_per_record, "us")


def taken(case: Case) -> Taken:
    """Run a case in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.simulations", json.dumps(asdict(case))]
    root = Path(__file__).parents[2]
    return Taken(**json.loads(subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout))


def run(case: Case) -> Taken:
    """Run a case here."""
    demand = _demand(case)
    scheduler = Scheduler()
    most = records = 0

    def count(_record: Record, _effects: Effects, state: ClusterState) -> None:
        nonlocal most, records
        records += 1
        most = max(most, state.allocated.size + state.unallocated.size)

    with tempfile.TemporaryDirectory() as directory:
        began = time.process_time()
        with HistoryKeeper(Path(directory) / "ledger.sqlite", "philly", SINCE_MS) as keeper:
            simulate(demand, uniform_cluster(case.nodes), scheduler=scheduler, observers=[keeper, count])
        seconds = time.process_time() - began
    return Taken(seconds, records, scheduler.memory.looks, most, _peak_mb())


def _peak_mb() -> float:
    """Return the peak of this process alone: `getrusage` begins with what the process that started it had."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (peak_kib,) = (int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return peak_kib * 1_024 / 1e6


def _demand(case: Case) -> Demand:
    demand = read_philly(
        TRACES / "philly_2017_jobs.csv.gz",
        TRACES / "philly_2017_vc_nodes.csv",
        since_ms=SINCE_MS,
        until_ms=UNTIL_MS,
        max_gpus=MAX_GPUS,
    )
    submissions = tuple(
        replace(submission, at_ms=SINCE_MS + (submission.at_ms - SINCE_MS) * 100 // case.haste)
        for submission in demand.submissions[: case.jobs]
    )
    return replace(demand, submissions=submissions)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(asdict(run(Case(**json.loads(sys.argv[1]))))))
    else:
        for row in rows(measure()):
            print(row, flush=True)
