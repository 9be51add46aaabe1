"""Who sat where, as a trace that Perfetto and Chrome's ``about:tracing`` open: a process per node, a track per GPU.

Source: the Trace Event Format, JSON object form; times are microseconds from the beginning of the run.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from streamsched.model.quantities import format_instant
from streamsched.reporting.runs import ReportedRun
from streamsched.reporting.seating import NEVER, Seating, SpellEnd

_ENDS: Final = {SpellEnd.OTHERWISE: "ended", SpellEnd.PREEMPTED: "preempted", SpellEnd.LOST: "lost with its node"}
#: Milliseconds to the microseconds of the format.
_MICROSECONDS: Final = 1_000


def write_perfetto(path: Path, runs: Sequence[ReportedRun]) -> None:
    """Write the trace of some runs, one after the other in one file; deflated where the name ends with ``.gz``.

    Raises:
        OSError: The file cannot be written.
    """
    begins = {run.name: format_instant(run.seating.since_ms) for run in runs}
    packed = path.suffix == ".gz"
    with gzip.open(path, "wt", encoding="utf-8") if packed else path.open("w", encoding="utf-8") as file:
        file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(begins)},"traceEvents":[\n')
        for number, event in enumerate(_events(runs)):
            file.write((",\n" if number else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")


def _events(runs: Sequence[ReportedRun]) -> Iterator[dict[str, Any]]:
    first = 1
    for run in runs:
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        yield from _names(run.seating, first, prefix)
        yield from _spells(run.seating, first)
        first += len(run.seating.nodes)


def _names(seating: Seating, first: int, prefix: str) -> Iterator[dict[str, Any]]:
    for number, (name, gpus) in enumerate(seating.nodes):
        process = first + number
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": prefix + name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
        for gpu in range(gpus):
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": gpu + 1, "args": {"name": f"GPU {gpu}"}}


def _spells(seating: Seating, first: int) -> Iterator[dict[str, Any]]:
    for row in range(len(seating)):
        workload = seating.workload[row]
        team = seating.teams[seating.team[workload]]
        preemptible_ms = seating.preemptible_ms[row]
        event = {
            "ph": "X",
            "name": seating.workloads[workload],
            "cat": team,
            "pid": first + seating.node[row],
            "ts": (seating.from_ms[row] - seating.since_ms) * _MICROSECONDS,
            "dur": (seating.to_ms[row] - seating.from_ms[row]) * _MICROSECONDS,
            "args": {
                "team": team,
                "attempt": seating.attempt[row],
                "preemptible from": None if preemptible_ms == NEVER else format_instant(preemptible_ms),
                "end": _ENDS[SpellEnd(seating.end[row])],
            },
        }
        for gpu in range(seating.gpu_mask[row].bit_length()):
            if seating.gpu_mask[row] >> gpu & 1:
                yield {**event, "tid": gpu + 1}
