"""What each rule of the policy is worth: the same demand under policies that differ in one thing.

    python -m replay.studies.ablations                    # everything, some hours on two cores
    python -m replay.studies.ablations --quick            # shorter stretches, less than an hour
    python -m replay.studies.ablations --only "no guard" --on ai2-H

Each run writes its outcomes to a file of its own, so that what was interrupted goes on where it was. The table is made
from what is there. Runs are deterministic: the same commit gives the same figures on any machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from streamsched.model.policy import DEFAULT_POLICY, Order, Policy, Scheme, VictimUnderBudget
from streamsched.model.quantities import DAY, HOUR
from streamsched.simulation.demand import Demand, Source
from streamsched.simulation.institute import GPUS_PER_NODE, LOADS, NODES, Institute
from streamsched.simulation.outcomes import OutcomeRecorder, Outcomes
from streamsched.simulation.simulator import simulate
from streamsched.simulation.traces import read_philly
from streamsched.simulation.virtual_cluster import uniform_cluster

#: What differs from the default policy, by the name of the row.
VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "the defaults": {},
    "old priority scheduler": {"scheme": Scheme.PRIORITY},
    "no commitment": {"commitment": False},
    "no guard": {"guard": False},
    "no relaxation of the guard": {"guard_relaxation_ms": None},
    "no victims under budget": {"victim_under_budget": VictimUnderBudget.FORBID},
    "no reservation": {"reservations": 0},
    "1 reservation": {"reservations": 1},
    "4 reservations": {"reservations": 4},
    "reserve after 8 h": {"reserve_after_ms": 8 * HOUR},
    "no headroom": {"nodes_per_headroom_node": 0},
    "headroom 1 of 128 nodes": {"nodes_per_headroom_node": 128},
    "headroom 4 of 128 nodes": {"nodes_per_headroom_node": 32},
    "order due_first": {"order": Order.DUE_FIRST},
    "over-quota protection 2 h": {"over_quota_protection_ms": 2 * HOUR},
    "window 1 d": {"window_ms": 1 * DAY},
    "window 3 d": {"window_ms": 3 * DAY},
    "window 14 d": {"window_ms": 14 * DAY},
    "cap 4 h": {"min_runtime_cap_ms": 4 * HOUR},
    "due_first, 4 reservations": {"order": Order.DUE_FIRST, "reservations": 4},
    "the same, window 3 d, protection 2 h": {
        "order": Order.DUE_FIRST,
        "reservations": 4,
        "window_ms": 3 * DAY,
        "over_quota_protection_ms": 2 * HOUR,
    },
}

_TRACES: Final = Path(__file__).resolve().parents[1] / "traces"
#: Monday 2017-10-02 00:00, US Pacific summer time. Five weeks from here ask for 569 GPUs on average.
_PHILLY_SINCE_MS: Final = 1_506_927_600_000
_PHILLY_MAX_GPUS: Final = 64
#: Nodes of 8 GPUs on which that demand is so many times the capacity.
_PHILLY_NODES: Final = {"philly-1.5x": 47, "philly-2x": 36, "philly-3x": 24}
#: A Friday, 00:00 UTC.
_INSTITUTE_SINCE_MS: Final = 20_004 * DAY
DEMANDS: Final = (*(f"ai2-{load}" for load in LOADS), *_PHILLY_NODES)


@dataclass(frozen=True, slots=True)
class Stretch:
    """How long a run is: so many days that count, after some in which the cluster fills."""

    warm_up_days: int
    days: int


FULL: Final = {"ai2": Stretch(8, 30), "philly": Stretch(7, 28)}
QUICK: Final = {"ai2": Stretch(4, 10), "philly": Stretch(3, 7)}


def run(demand: str, variant: str, stretch: Stretch, seed: int) -> dict[str, Any]:
    """Simulate one row and return what it came to, as JSON values."""
    policy = Policy(**{**dict(DEFAULT_POLICY), **VARIANTS[variant]})
    since_ms = _PHILLY_SINCE_MS if demand in _PHILLY_NODES else _INSTITUTE_SINCE_MS
    from_ms = since_ms + stretch.warm_up_days * DAY
    until_ms = from_ms + stretch.days * DAY
    recorder = OutcomeRecorder(from_ms)
    began = perf_counter()
    state = simulate(
        _source(demand, policy, since_ms, until_ms, seed),
        uniform_cluster(_PHILLY_NODES.get(demand, NODES), GPUS_PER_NODE),
        policy,
        since_ms=since_ms,
        until_ms=until_ms,
        observers=[recorder],
    )
    outcomes = recorder.outcomes(state, until_ms=until_ms)
    return {
        "demand": demand,
        "variant": variant,
        "seed": seed,
        "warm_up_days": stretch.warm_up_days,
        "days": stretch.days,
        "records": state.next_cursor,
        "seconds": round(perf_counter() - began, 1),
        "figures": _figures(outcomes),
        "outcomes": outcomes.as_json(),
    }


def _source(demand: str, policy: Policy, since_ms: int, until_ms: int, seed: int) -> Demand | Source:
    cap_ms = policy.min_runtime_cap_ms
    if demand not in _PHILLY_NODES:
        load = LOADS[demand.removeprefix("ai2-")]
        return Institute(load, seed, since_ms=since_ms, until_ms=until_ms, min_runtime_cap_ms=cap_ms)
    return read_philly(
        _TRACES / "philly_2017_jobs.csv.gz",
        _TRACES / "philly_2017_vc_nodes.csv",
        since_ms=since_ms,
        until_ms=until_ms,
        max_gpus=_PHILLY_MAX_GPUS,
        seed=seed,
        min_runtime_cap_ms=cap_ms,
    )


#: Columns: the name, and how the figure is shown.
_COLUMNS: Final = {
    "strict by hour %": "{:.1f}",
    "by day %": "{:.1f}",
    "worst team capped %": "{:.1f}",
    "occupancy %": "{:.1f}",
    "unallocated %": "{:.1f}",
    "demand %": "{:.0f}",
    "debug p50 s": "{:.0f}",
    "p90 s": "{:.0f}",
    "p99 min": "{:.0f}",
    "2-8 GPUs p90 h": "{:.1f}",
    "9-64 p90 h": "{:.1f}",
    "> 64 p50 h": "{:.1f}",
    "> 64 p90 h": "{:.1f}",
    "> 64 that started": "{:.0f}",
    "evictions /1000 GPU-h": "{:.1f}",
    "all preemptions": "{:.1f}",
    "swap-backs": "{:.0f}",
}


def _figures(outcomes: Outcomes) -> dict[str, float | None]:
    """Return the columns, in the units that their names say."""
    debug = outcomes.waits_by_class["short"]
    sizes = outcomes.waits_by_size
    large = sizes["over 64 GPUs"]
    return {
        "strict by hour %": _times(outcomes.strict_by_hour, 100),
        "by day %": _times(outcomes.strict_by_day, 100),
        "worst team capped %": _times(outcomes.worst_capped, 100),
        "occupancy %": _times(outcomes.occupancy, 100),
        "unallocated %": _times(outcomes.unallocated_share, 100),
        "demand %": _times(outcomes.demand_to_capacity, 100),
        "debug p50 s": _times(debug.p50_ms, 1 / 1_000),
        "p90 s": _times(debug.p90_ms, 1 / 1_000),
        "p99 min": _times(debug.p99_ms, 1 / 60_000),
        "2-8 GPUs p90 h": _times(sizes["2 to 8 GPUs"].p90_ms, 1 / HOUR),
        "9-64 p90 h": _times(sizes["9 to 64 GPUs"].p90_ms, 1 / HOUR),
        "> 64 p50 h": _times(large.p50_ms, 1 / HOUR),
        "> 64 p90 h": _times(large.p90_ms, 1 / HOUR),
        "> 64 that started": large.count,
        "evictions /1000 GPU-h": _times(outcomes.evictions_per_1000_gpu_hours, 1),
        "all preemptions": _times(outcomes.preemptions_per_1000_gpu_hours, 1),
        "swap-backs": outcomes.swap_backs,
    }


def _times(value: Any, factor: float) -> float | None:
    return None if value is None else round(float(value) * factor, 3)


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as Markdown: one table for each demand and seed."""
    lines = []
    for demand in DEMANDS:
        rows = [result for result in results if result["demand"] == demand]
        for seed, days, warm_up in sorted({(row["seed"], row["days"], row["warm_up_days"]) for row in rows}):
            lines += [f"## {demand}, seed {seed}, {days} days after {warm_up}", ""]
            lines += ["| policy | " + " | ".join(_COLUMNS) + " |", "|---" + "|--:" * len(_COLUMNS) + "|"]
            for variant in VARIANTS:
                for row in rows:
                    if (row["variant"], row["seed"], row["days"]) == (variant, seed, days):
                        cells = (
                            "-" if (figure := row["figures"][name]) is None else shown.format(figure)
                            for name, shown in _COLUMNS.items()
                        )
                        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
            lines.append("")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for, and write the table of all that was run."""
    parser = argparse.ArgumentParser(prog="python -m replay.studies.ablations", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="shorter stretches: hints, not results")
    parser.add_argument("--on", action="append", choices=DEMANDS, help="only this demand; may be repeated")
    parser.add_argument("--only", action="append", choices=list(VARIANTS), help="only this policy; may be repeated")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds of each (default: 1)")
    parser.add_argument("--processes", type=int, default=2, help="how many runs at a time (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("out/ablations"), help="where results go")
    asked = parser.parse_args(arguments)
    stretches = QUICK if asked.quick else FULL
    asked.out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    jobs = []
    for variant in asked.only or VARIANTS:
        for demand in asked.on or DEMANDS:
            for seed in range(1, asked.seeds + 1):
                stretch = stretches[demand.partition("-")[0]]
                path = asked.out / f"{demand}.{variant.replace(' ', '-').replace(',', '')}.{stretch.days}d.{seed}.json"
                if not path.exists():
                    jobs.append((path, (demand, variant, stretch, seed)))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, ProcessPoolExecutor(asked.processes) as pool:
        task = progress.add_task("ablations", total=len(jobs))
        running = {pool.submit(run, *job): (path, job) for path, job in jobs}
        for future in as_completed(running):
            path, (demand, variant, _, _) = running[future]
            progress.advance(task)
            if (error := future.exception()) is not None:
                console.print(f"[red]{demand}, {variant}: {type(error).__name__}: {error}")
                continue
            result = future.result()
            path.write_text(json.dumps(result, indent=1) + "\n")
            console.print(f"{demand}, {variant}: {result['records']:,} records in {result['seconds']} s")
    results = [json.loads(path.read_text()) for path in sorted(asked.out.glob("*.json"))]
    (asked.out / "table.md").write_text(table(results))
    console.print(f"{asked.out / 'table.md'}: {len(results)} runs")


if __name__ == "__main__":
    main()
