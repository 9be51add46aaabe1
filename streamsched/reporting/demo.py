"""The demonstration: a real week of a real cluster, scheduled again in seconds, with a ledger and a report to keep."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from streamsched.errors import ConfigurationError
from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.model.commands import Effects
from streamsched.model.events import Record
from streamsched.model.policy import DEFAULT_POLICY
from streamsched.model.quantities import DAY, format_instant
from streamsched.node.virtual_node import USUAL
from streamsched.reporting.report import ReportText, write_report
from streamsched.reporting.runs import RunRecorder
from streamsched.reporting.terminal import outcome_tables
from streamsched.simulation.demand import Demand
from streamsched.simulation.history import HistoryKeeper
from streamsched.simulation.outcomes import Outcomes
from streamsched.simulation.simulator import simulate
from streamsched.simulation.traces import read_philly
from streamsched.simulation.virtual_cluster import uniform_cluster
from streamsched.state.cluster import ClusterState
from streamsched.state.snapshot import digest

#: Where the traces lie: beside the package, in a checkout.
TRACES: Final = Path(__file__).resolve().parents[2] / "replay" / "traces"

#: The week from Monday 2017-10-02 00:00, US Pacific summer time: 11,386 jobs that ask for 1.8 times these GPUs.
SINCE_MS: Final = 1_506_927_600_000
UNTIL_MS: Final = SINCE_MS + 7 * DAY
NODES: Final = 40
GPUS_PER_NODE: Final = 8
#: The few larger gangs of the trace would need most of a cluster of this size.
MAX_GPUS: Final = 64

_CLUSTER: Final = "philly-demo"
_ORIGIN: Final = (
    "Jobs of Microsoft's Philly GPU cluster, as published by M. Jeon et al., “Analysis of Large-Scale Multi-Tenant GPU "
    "Clusters for DNN Training Workloads”, USENIX ATC 2019 (msr-fiddle/philly-traces; data under CC BY 4.0), in the "
    "extract of petuum/adaptdl. Teams are its virtual clusters; their quotas are the sizes given by "
    "S-Lab-System-Group/HeliosArtifact (data under CC BY 4.0).",
    "Submission times, GPUs, run times and teams are the trace's own. It does not say what people would have declared: "
    "here a job's min runtime is its true run time rounded up to a usual value of at most 8 hours, and one job in five "
    "asks for unallocated time instead. The nodes are virtual: they start, run and stop work after delays like those "
    "of real ones.",
)


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demonstration left behind.

    Attributes:
        ledger: The SQLite ledger.
        report: The HTML report.
        outcomes: What it came to.
        digest: Of the last state; a replay of the ledger must have the same.
        dropped_rows: Rows of the trace that were no jobs.
        seconds: How long the scheduling took, on this machine.
    """

    ledger: Path
    report: Path
    outcomes: Outcomes
    digest: str
    dropped_rows: int
    seconds: float

    @property
    def next_commands(self) -> list[str]:
        """What to try next."""
        return _next_commands(self.ledger, self.outcomes)

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "ledger": str(self.ledger),
            "report": str(self.report),
            "digest": self.digest,
            "dropped_rows": self.dropped_rows,
            "seconds": round(self.seconds, 3),
            "outcomes": self.outcomes.as_json(),
            "next_commands": self.next_commands,
        }


def run_demo(
    out_dir: Path = Path("out/demo"), *, quiet: bool = False, console: Console | None = None, traces: Path = TRACES
) -> DemoResult:
    """Schedule a week of the Philly trace, show it, and leave the ledger and a report in a directory.

    A ledger that an earlier demonstration left there is replaced.

    Args:
        out_dir: Created when it is missing.
        quiet: Show nothing; the result says it all.
        console: Where to show it; standard output when None.
        traces: The directory with the trace and the sizes of its virtual clusters.

    Raises:
        ConfigurationError: The trace is not there, or the directory cannot be written or holds another ledger.
    """
    console = Console(quiet=True) if quiet else console or Console()
    demand = _demand(traces)
    ledger, report = _prepared(out_dir)
    console.print(
        f"[bold]streamsched[/] schedules {len(demand.submissions):,} jobs of Microsoft's Philly cluster "
        f"({format_instant(SINCE_MS)[:10]} to {format_instant(UNTIL_MS)[:10]}) on {NODES} virtual nodes of "
        f"{GPUS_PER_NODE} GPUs"
    )
    recorder = RunRecorder()
    began = time.perf_counter()
    with HistoryKeeper(ledger, _CLUSTER, SINCE_MS) as keeper, _progress(console) as progress:
        state = simulate(
            demand,
            uniform_cluster(NODES, GPUS_PER_NODE, delays=USUAL),
            DEFAULT_POLICY,
            since_ms=SINCE_MS,
            until_ms=UNTIL_MS,
            observers=(recorder, keeper, progress),
        )
    seconds = time.perf_counter() - began
    run = recorder.run("the demonstration", state, until_ms=UNTIL_MS)
    outcomes = run.outcomes
    text = ReportText(
        title="A week of the Philly cluster, scheduled by streamsched",
        cluster=f"{NODES} virtual nodes of {GPUS_PER_NODE} GPUs",
        origin=_ORIGIN,
        commands=("streamsched demo", *_next_commands(ledger, outcomes)),
    )
    write_report(report, [run], text)
    result = DemoResult(ledger, report, outcomes, digest(state), len(demand.dropped), seconds)
    _show(console, result)
    return result


def _demand(traces: Path) -> Demand:
    jobs, sizes = traces / "philly_2017_jobs.csv.gz", traces / "philly_2017_vc_nodes.csv"
    if not jobs.is_file() or not sizes.is_file():
        raise ConfigurationError(
            f"the Philly trace is not in {traces}; run the demo from a checkout, which has it in replay/traces"
        )
    return read_philly(jobs, sizes, since_ms=SINCE_MS, until_ms=UNTIL_MS, max_gpus=MAX_GPUS)


def _prepared(out_dir: Path) -> tuple[Path, Path]:
    """Make room for the ledger and the report. Only a ledger of an earlier demonstration is removed."""
    ledger, report = out_dir / "ledger.sqlite", out_dir / "report.html"
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        if ledger.exists():
            asyncio.run(_check_ours(ledger))
            for suffix in ("", "-wal", "-shm"):
                ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)
        report.touch()
    except OSError as error:
        raise ConfigurationError(
            f"the demo cannot write to {out_dir} ({error.strerror}); name another directory"
        ) from error
    return ledger, report


async def _check_ours(ledger: Path) -> None:
    opened = await SqliteLedger.open(ledger, readonly=True, cluster=_CLUSTER)
    await opened.close()


class _Progress:
    """An observer that shows how far the simulation is, ten times a second at most."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=UNTIL_MS - SINCE_MS, clock="", status="")
        self._began = time.perf_counter()
        self._shown = 0.0
        self._records = 0

    def __call__(self, _record: Record, _effects: Effects, state: ClusterState) -> None:
        self._records += 1
        if self._records % 200:
            return
        now = time.perf_counter()
        if now >= self._shown + 0.1:
            self._shown = now
            self.show(state)

    def show(self, state: ClusterState) -> None:
        """Bring the line up to date."""
        running = sum(workload.run is not None for workload in state.workloads.values())
        root = state.budgets.root
        held, capacity = root.allocated_gpus + root.unallocated_gpus, state.budgets.capacity_units
        per_second = self._records / max(1e-3, time.perf_counter() - self._began)
        self._progress.update(
            self._task,
            completed=state.now_ms - SINCE_MS,
            clock=format_instant(state.now_ms)[:16].replace("T", " "),
            status=(
                f"{per_second:,.0f} events/s  {running:,} running  {len(state.workloads) - running:,} queued  "
                f"{held / max(1, capacity):.0%} occupied"
            ),
        )


@contextmanager
def _progress(console: Console) -> Iterator[_Progress]:
    columns = (TextColumn("{task.fields[clock]}"), BarColumn(bar_width=20), TextColumn("{task.fields[status]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Progress(progress)


def _show(console: Console, result: DemoResult) -> None:
    outcomes = result.outcomes
    console.print(
        f"{outcomes.records:,} events in {result.seconds:.1f} s ({outcomes.records / result.seconds:,.0f}/s); "
        f"state digest {result.digest[:16]}\n"
    )
    console.print(outcome_tables(outcomes))
    console.print("\nledger  ", str(result.ledger), soft_wrap=True, highlight=False)
    console.print("report  ", str(result.report), soft_wrap=True, highlight=False)
    console.print("\ntry next:")
    for command in result.next_commands:
        typed = command.replace("streamsched", _program(), 1)
        console.print(f"  {typed}", soft_wrap=True, highlight=False)


def _program() -> str:
    """Return what must be typed to run streamsched again: after `make demo` it is in `.venv` and not on the path."""
    started = sys.argv[0]
    return started if shutil.which("streamsched") is None and Path(started).name == "streamsched" else "streamsched"


def _next_commands(ledger: Path, outcomes: Outcomes) -> list[str]:
    commands = [
        f"streamsched replay {ledger}",
        f"streamsched shares --from {ledger}",
        f"streamsched jobs --from {ledger} --at {format_instant(SINCE_MS + 2 * DAY)}",
    ]
    if outcomes.longest_waiting is not None:
        commands.append(f"streamsched explain {outcomes.longest_waiting} --from {ledger}")
    return commands
