"""Outcomes as Parquet files, for those who go on with them in a notebook or a database.

Needs pyarrow: ``pip install 'streamsched[parquet]'``. Times are milliseconds since 1970 UTC as timestamps, and absent
where a thing has not happened; GPU-times are whole GPU-milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamsched.errors import ConfigurationError
from streamsched.reporting.runs import ReportedRun
from streamsched.simulation.lives import ALIVE, NEVER, NOBODY, PHASES, RUN_ENDS

if TYPE_CHECKING:
    from types import ModuleType

#: The files that are written.
TABLES: Final = ("workloads", "runs", "hours")


def write_tables(directory: Path, run: ReportedRun) -> list[Path]:
    """Write ``workloads.parquet``, ``runs.parquet`` and ``hours.parquet``; return their paths.

    A workload that was submitted before the stretch is left out, and so are its runs.

    Raises:
        ConfigurationError: pyarrow is not installed.
        OSError: The directory cannot be written.
    """
    arrow, parquet = _pyarrow()
    directory.mkdir(parents=True, exist_ok=True)
    tables = {
        "workloads": _workloads(arrow, run),
        "runs": _runs(arrow, run),
        "hours": _hours(arrow, run),
    }
    paths = []
    for name in TABLES:
        path = directory / f"{name}.parquet"
        parquet.write_table(tables[name], path, compression="zstd")
        paths.append(path)
    return paths


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigurationError(
            "Parquet needs pyarrow, which is not installed; install it with: pip install 'streamsched[parquet]'"
        ) from error
    return pyarrow, pyarrow.parquet


def _workloads(arrow: Any, run: ReportedRun) -> Any:
    table, since_ms = run.outcomes.workloads, run.outcomes.since_ms
    rows = [row for row, at_ms in enumerate(table.submitted_ms) if at_ms >= since_ms]

    def times(column: Any) -> Any:
        return _times(arrow, (column[row] for row in rows))

    return arrow.table(
        {
            "workload": [table.ids[row] for row in rows],
            "team": [table.budgets[table.budget[row]] for row in rows],
            "gpus": _integers(arrow, (table.gpus[row] for row in rows)),
            "allocated": [table.min_runtime_ms[row] > 0 for row in rows],
            "min_runtime_ms": _integers(arrow, (table.min_runtime_ms[row] for row in rows)),
            "submitted": times(table.submitted_ms),
            "started": times(table.started_ms),
            "ended": times(table.ended_ms),
            "phase": [None if table.phase[row] == ALIVE else PHASES[table.phase[row]].value for row in rows],
            "preempted": _integers(arrow, (table.preempted[row] for row in rows)),
            "served_ms": _integers(arrow, (table.served_ms[row] for row in rows)),
        }
    )


def _runs(arrow: Any, run: ReportedRun) -> Any:
    workloads, table, since_ms = run.outcomes.workloads, run.outcomes.runs, run.outcomes.since_ms
    rows = [row for row, workload in enumerate(table.workload) if workloads.submitted_ms[workload] >= since_ms]

    def times(column: Any) -> Any:
        return _times(arrow, (column[row] for row in rows))

    return arrow.table(
        {
            "workload": [workloads.ids[table.workload[row]] for row in rows],
            "team": [workloads.budgets[workloads.budget[table.workload[row]]] for row in rows],
            "attempt": _integers(arrow, (table.attempt[row] for row in rows)),
            "gpus": _integers(arrow, (workloads.gpus[table.workload[row]] for row in rows)),
            "bound": times(table.bound_ms),
            "started": times(table.started_ms),
            "protected_until": times(table.protected_until_ms),
            "stopped": times(table.stopped_ms),
            "released": times(table.released_ms),
            "end": [RUN_ENDS[table.end[row]].value for row in rows],
            "beneficiary": [
                None if table.beneficiary[row] == NOBODY else workloads.ids[table.beneficiary[row]] for row in rows
            ],
            "lost_gpu_ms": _integers(arrow, (table.lost_gpu_ms[row] for row in rows)),
        }
    )


def _hours(arrow: Any, run: ReportedRun) -> Any:
    rows = [
        (team.budget, hour_ms, use)
        for team in (run.outcomes.cluster, *run.outcomes.teams)
        for hour_ms, use in team.hours.items()
    ]
    return arrow.table(
        {
            "team": [name for name, _, _ in rows],
            "hour": _times(arrow, (hour_ms for _, hour_ms, _ in rows)),
            "allocated_gpu_ms": _integers(arrow, (use.allocated_gpu_ms for _, _, use in rows)),
            "unallocated_gpu_ms": _integers(arrow, (use.unallocated_gpu_ms for _, _, use in rows)),
            "queued_gpu_ms": _integers(arrow, (use.queued_gpu_ms for _, _, use in rows)),
            "quota_gpu_ms": _integers(arrow, (use.quota_gpu_ms for _, _, use in rows)),
            "due_gpu_ms": _integers(arrow, (use.due_gpu_ms for _, _, use in rows)),
            "strict_gpu_ms": _integers(arrow, (use.strict_gpu_ms for _, _, use in rows)),
        }
    )


def _times(arrow: Any, moments: Iterable[int]) -> Any:
    return arrow.array((None if ms == NEVER else ms for ms in moments), type=arrow.timestamp("ms", tz="UTC"))


def _integers(arrow: Any, values: Iterable[int]) -> Any:
    return arrow.array(values, type=arrow.int64())
