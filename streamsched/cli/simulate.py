"""The command that schedules a trace on virtual nodes, under one policy or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from streamsched.cli.options import AsJson
from streamsched.model.quantities import DAY, HOUR

if TYPE_CHECKING:
    from streamsched.model.events import BudgetShare
    from streamsched.model.policy import Policy
    from streamsched.node.virtual_node import NodeSpec
    from streamsched.reporting.simulations import InstituteDemand, Simulated, Simulation, Stage, TraceDemand
    from streamsched.simulation.traces import Format, Trace


def simulate(
    trace: Annotated[
        str,
        typer.Argument(
            help="A trace file (Philly, Helios VC sequences, Alibaba pods, SWF, or our own form; gzipped or not), or a "
            "made-up institute: ai2-M, ai2-H."
        ),
    ],
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Leave out what was submitted before: 2017-10-02 (wall clock of the trace), 2017-10-02T07:00:00Z, or "
            "7d after its first job.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Leave out what was submitted then or later; as --since.")
    ] = None,
    max_gpus: Annotated[int | None, typer.Option(min=1, help="Leave out larger gangs.")] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COUNTxGPUS[:POOL]", help="Virtual nodes; may be repeated. 80x8; for an institute its own 128x8."
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="Policies that have a name (`streamsched policy list`), schemes (fifo, fifo-skip, easy-backfill, "
            "priority), or TOML files of knobs. The first is the baseline of the table.",
        ),
    ] = "over-the-week",
    knobs: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KNOB=VALUE", help="A knob of every policy, such as window_ms=5d; repeatable."),
    ] = None,
    one_pool: Annotated[
        bool, typer.Option("--one-pool", help="No node borders: each gang is ranks of 1 GPU, which sit anywhere.")
    ] = False,
    ideal: Annotated[bool, typer.Option("--ideal", help="Nodes that start and stop work at once.")] = False,
    budgets: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Who pays: a tree as for `budgets apply`, or CSV of teams and sizes. Else by the rule of the format.",
        ),
    ] = None,
    unallocated: Annotated[
        int, typer.Option(min=0, max=100, help="Percent of the jobs that ask for unallocated time, where none say it.")
    ] = 20,
    seed: Annotated[int, typer.Option(help="Draws those, the delays of nodes, and the people of an institute.")] = 0,
    stop: Annotated[
        bool, typer.Option("--stop", help="End at --until, whatever waits or runs then; else when all has ended.")
    ] = False,
    warm_up: Annotated[
        str | None, typer.Option(metavar="TIME", help="Count nothing in this first stretch, such as 7d.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="philly, helios, alibaba, swf, csv or parquet; else seen by what is in it."),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(help="The zone of its wall clock, such as America/Los_Angeles; UTC leaves it as it stands."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Policies simulated at a time; one for each CPU.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML page.")] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the ledger; of several, FILE with the policy before its suffix."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Schedule a trace on virtual nodes, faster than time, and show what it came to; several policies side by side.

    The scheduler is the live one: what is decided here would be decided there on the same facts. Two calls with the
    same arguments give the same ledgers. Rows of the trace that are no jobs are counted by reason, and never stop it.

    What is supplied where a trace says nothing (min runtimes, unallocated work, shapes, quotas):
    `replay/traces/FORMATS.md`. fifo, fifo-skip and easy-backfill know no budgets and preempt nobody; what they take as
    the length of a run is its timeout, else its min runtime.

    JSON: `{"demand", "nodes", "ideal", "one_pool", "runs": [{"policy", "records", "cpu_seconds", "digest", "ledger",
    "outcomes"}], "report"}`; `demand` has what was read and dropped.

    Examples: `streamsched simulate philly.csv.gz --since 2017-10-02 --until 2017-11-06 --max-gpus 64 --nodes 80x8`,
    `streamsched simulate philly.csv.gz --policy fifo,easy-backfill,over-the-week --one-pool --ideal --json`,
    `streamsched simulate ai2-H --seed 3 --until 14d --policy priority,over-the-week --report compared.html`
    """
    import json
    import os

    from streamsched.cli.screens import console
    from streamsched.reporting.report import ReportText, write_report
    from streamsched.reporting.simulations import run_all
    from streamsched.reporting.terminal import comparison_tables, outcome_tables

    refuse_target(report)
    if trace.lower() in INSTITUTES:
        asked = asked_of_institute(trace.lower(), since, until, nodes, seed, one_pool)
        _refuse({"--max-gpus": max_gpus, "--budgets": budgets, "--format": format_, "--zone": zone})
    else:
        asked = asked_of_trace(
            Path(trace), since, until, max_gpus, nodes, budgets, unallocated, seed, one_pool, format_, zone
        )
    simulations = [
        asked.under(name, chosen, stop=stop, warm_up=warm_up, ideal=ideal, seed=seed)
        for name, chosen in _policies(policy, knobs or []).items()
    ]
    if ledger is not None:
        simulations = _with_ledgers(simulations, ledger)
    with simulation_progress([simulation.name for simulation in simulations]) as tell:
        found = run_all(simulations, jobs or os.cpu_count() or 1, tell)
    runs = [simulated.run for simulated in found]
    if report is not None:
        names = ", ".join(simulation.name for simulation in simulations)
        written_to(report, lambda: write_report(report, runs, ReportText(f"{asked.what}: {names}", asked.cluster)))
    if as_json:
        answer = {
            "demand": asked.told,
            "nodes": asked.cluster,
            "ideal": ideal,
            "one_pool": one_pool,
            "runs": [simulated.as_json() for simulated in found],
            "report": None if report is None else str(report),
        }
        typer.echo(json.dumps(answer, separators=(",", ":")))
        return
    screen = console()
    for line in _in_words(asked.told):
        screen.print(line)
    for simulated in found:
        rate = simulated.records / max(simulated.seconds, 1e-3)
        screen.print(
            f"{simulated.run.name}: {simulated.records:,} events in {simulated.seconds:.1f} s ({rate:,.0f}/s); "
            f"state digest {simulated.digest[:16]}"
        )
    screen.print()
    screen.print(outcome_tables(runs[0].outcomes) if len(runs) == 1 else comparison_tables(runs))
    for what, path in [("ledger", simulated.ledger) for simulated in found] + [("report", report)]:
        if path is not None:
            screen.print(f"{what}  {path}")


# --- what is asked for ------------------------------------------------------------------------------------------------

#: Made-up institutes by their names, with their loads.
INSTITUTES: Final[Mapping[str, str]] = {"ai2-m": "M", "ai2-h": "H"}
_TRACE_NODES: Final = "80x8"
_INSTITUTE_NODES: Final = "128x8"
#: A Friday, 00:00 UTC; and for how long people of an institute work.
_INSTITUTE_SINCE_MS: Final = 20_004 * DAY
_INSTITUTE_MS: Final = 30 * DAY


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for, whatever decides.

    Attributes:
        what: Its name, for a heading.
        demand: What people submit.
        told: What was read of it, as JSON values.
        cluster: The nodes, as they are typed.
        specs: The nodes.
        since_ms: When the cluster comes up.
        last_ms: When the last submission comes.
        until_ms: The end of what is asked for, where there is one.
    """

    what: str
    demand: TraceDemand | InstituteDemand
    told: Mapping[str, Any]
    cluster: str
    specs: Sequence[NodeSpec]
    since_ms: int
    last_ms: int
    until_ms: int | None

    def under(
        self, name: str, policy: Policy, *, stop: bool, warm_up: str | None, ideal: bool, seed: int
    ) -> Simulation:
        """Return its simulation under a policy."""
        from streamsched.cli.moments import duration_ms
        from streamsched.reporting.simulations import Simulation

        if stop and self.until_ms is None:
            raise typer.BadParameter("give --until, at which it is to end.", param_hint="--stop")
        warm_ms = 0 if warm_up is None else duration_ms(warm_up, "--warm-up")
        return Simulation(
            name=name,
            policy=policy,
            demand=self.demand,
            nodes=self.specs,
            since_ms=self.since_ms,
            last_ms=self.last_ms,
            until_ms=self.until_ms if stop else None,
            # Due time is counted by the hour.
            from_ms=-(-(self.since_ms + warm_ms) // HOUR) * HOUR if warm_ms else 0,
            ideal=ideal,
            seed=seed,
        )


def asked_of_trace(
    path: Path,
    since: str | None,
    until: str | None,
    max_gpus: int | None,
    nodes: Sequence[str] | None,
    budgets: Path | None,
    unallocated: int,
    seed: int,
    one_pool: bool,
    format_: str | None,
    zone: str | None,
) -> Asked:
    """Read what a trace asks for; the arguments are options of `simulate`.

    Raises:
        typer.BadParameter: One of them is none such.
        StreamschedError: The trace cannot be read, or has nothing in this stretch.
    """
    from streamsched.errors import ConfigurationError
    from streamsched.reporting.simulations import TraceDemand
    from streamsched.simulation.traces import Contract, Selection, demand_of, read_trace

    read = read_trace(path, _format(format_), _zone(zone))
    if not read.jobs:
        raise ConfigurationError(f"{path} has no job: {len(read.dropped)} rows were dropped, {_first(read.as_json())}")
    first_ms = read.jobs[0].at_ms
    since_ms = None if since is None else _moment(since, "--since", read.zone, first_ms)
    until_ms = None if until is None else _moment(until, "--until", read.zone, first_ms)
    selection = Selection(since_ms or 0, until_ms, max_gpus)
    chosen = replace(read, jobs=[job for job in read.jobs if selection.takes(job)])
    if not chosen.jobs:
        raise ConfigurationError(f"{path} has {len(read.jobs)} jobs, and none in this stretch; choose another one")
    specs, cluster = _nodes(nodes, _TRACE_NODES)
    contract = Contract(unallocated, seed, gpus_per_node=max(spec.gpus for spec in specs), one_pool=one_pool)
    demand = TraceDemand(chosen, selection, contract, None if budgets is None else _tree(budgets, chosen))
    asked = demand_of(chosen, selection, contract, demand.budgets)
    told = replace(chosen, dropped=asked.dropped).as_json()
    told |= {"jobs": len(asked.submissions), "jobs_in_file": len(read.jobs)}
    if budgets is not None:
        told["quotas"] = f"as in {budgets}"
    return Asked(
        what=path.name,
        demand=demand,
        told=told,
        cluster=cluster,
        specs=specs,
        since_ms=chosen.jobs[0].at_ms if since_ms is None else since_ms,
        last_ms=chosen.jobs[-1].at_ms,
        until_ms=until_ms,
    )


def asked_of_institute(
    name: str, since: str | None, until: str | None, nodes: Sequence[str] | None, seed: int, one_pool: bool
) -> Asked:
    """Make up what an institute asks for; the arguments are options of `simulate`.

    Raises:
        typer.BadParameter: One of them is none such.
        StreamschedError: These are no nodes.
    """
    from streamsched.reporting.simulations import InstituteDemand

    since_ms = _INSTITUTE_SINCE_MS if since is None else _moment(since, "--since", "UTC", _INSTITUTE_SINCE_MS)
    until_ms = since_ms + _INSTITUTE_MS if until is None else _moment(until, "--until", "UTC", since_ms)
    specs, cluster = _nodes(nodes, _INSTITUTE_NODES)
    return Asked(
        what=name,
        demand=InstituteDemand(INSTITUTES[name], seed, since_ms, until_ms, one_pool),
        told={"institute": name, "seed": seed, "since_ms": since_ms, "until_ms": until_ms},
        cluster=cluster,
        specs=specs,
        since_ms=since_ms,
        last_ms=until_ms,
        until_ms=until_ms,
    )


def _refuse(options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if value is not None:
            raise typer.BadParameter("an institute has no such thing; leave it out.", param_hint=option)


def _policies(text: str, knobs: Sequence[str]) -> dict[str, Policy]:
    """Read names and files of policies, each with the same knobs set."""
    policies: dict[str, Policy] = {}
    for part in text.split(","):
        name = part.strip()
        read = policy_called(name, knobs)
        if name in policies:
            raise typer.BadParameter(f"{name!r} is named twice; name each policy once.", param_hint="--policy")
        policies[name] = read
    return policies


def policy_called(name: str, knobs: Sequence[str]) -> Policy:
    """Read the name or the file of a policy, with knobs set besides; a scheme is the default policy with it.

    Raises:
        RequestError: There is no such policy, or no such knob.
    """
    from streamsched.cli.policy_files import read_policy
    from streamsched.model.policy import NAMED_POLICIES, Policy, Scheme

    known = name.replace("-", "_")
    if known in NAMED_POLICIES:
        return read_policy(known, knobs)
    if known in set(Scheme):
        return read_policy(None, knobs, base=Policy(scheme=Scheme(known)))
    return read_policy(name, knobs)


def _nodes(texts: Sequence[str] | None, default: str) -> tuple[Sequence[NodeSpec], str]:
    """Return the nodes, with names of equal length so that they sort as they count."""
    from streamsched.cli.fleets import parse_fleets

    typed = list(texts or [default])
    specs = parse_fleets(typed, "gpu", "node")
    width = max(3, len(str(len(specs) - 1)))
    return [replace(spec, node=f"node-{number:0{width}d}") for number, spec in enumerate(specs)], ", ".join(typed)


def _tree(path: Path, trace: Trace) -> Sequence[BudgetShare]:
    """Read who pays: a list of sizes where the name ends in .csv, else a tree."""
    from datetime import UTC, datetime

    from streamsched.cli.budget_files import read_budgets
    from streamsched.model.events import BudgetShare
    from streamsched.simulation.demand import shares_of
    from streamsched.simulation.traces import read_sizes

    if path.suffix != ".csv":
        return read_budgets(path)
    day = datetime.fromtimestamp(trace.jobs[0].at_ms / 1_000, UTC).date().isoformat()
    return [BudgetShare(budget=team, fraction_nano=nano) for team, nano in shares_of(read_sizes(path, day))]


def _format(text: str | None) -> Format | None:
    from streamsched.simulation.traces import Format

    if text is None:
        return None
    if text not in set(Format):
        raise typer.BadParameter(f"{text!r} is none; write one of {', '.join(Format)}.", param_hint="--format")
    return Format(text)


def _zone(text: str | None) -> str | None:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        if text is not None:
            ZoneInfo(text)
    except (OSError, ValueError, ZoneInfoNotFoundError):
        raise typer.BadParameter(
            f"{text!r} is no zone; write a name such as America/Los_Angeles, or UTC.", param_hint="--zone"
        ) from None
    return text


def _moment(text: str, option: str, zone: str, first_ms: int) -> int:
    """Read a time with an offset, a wall clock time of a zone, or how long after a first moment."""
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from streamsched.model.quantities import parse_duration

    try:
        return first_ms + parse_duration(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=ZoneInfo(zone))
        return max(0, int(moment.timestamp() * 1_000))
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no time; write a date of the trace's wall clock such as 2017-10-02, a time with its offset "
            "such as 2017-10-02T07:00:00Z, or a stretch after the first job such as 7d.",
            param_hint=option,
        ) from None


def _with_ledgers(simulations: Sequence[Simulation], path: Path) -> list[Simulation]:
    """Give each simulation a ledger: the file that is named, or with several one beside it for each."""
    if len(simulations) == 1:
        return [replace(simulations[0], ledger=path)]
    return [
        replace(simulation, ledger=path.with_name(f"{path.stem}-{Path(simulation.name).stem}{path.suffix}"))
        for simulation in simulations
    ]


def refuse_target(path: Path | None) -> None:
    """Refuse a file that cannot be written, before the work for it is done.

    Raises:
        ConfigurationError: It is a directory, its directory is not there, or one may not write there.
    """
    import os

    from streamsched.errors import ConfigurationError

    if path is None:
        return
    if path.is_dir():
        raise ConfigurationError(f"{path} is a directory; name a file")
    if not path.parent.is_dir():
        raise ConfigurationError(f"{path} cannot be written, since there is no directory {path.parent}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"{path} may not be written by you; name another file")


def written_to(path: Path, write: Callable[[], None]) -> None:
    """Write a file, or say in words why that cannot be."""
    from streamsched.errors import ConfigurationError

    try:
        write()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written ({error.strerror}); name another file") from error


# --- what is shown ----------------------------------------------------------------------------------------------------


@contextmanager
def simulation_progress(names: Sequence[str]) -> Iterator[Callable[[int, Stage | Simulated], None]]:
    """Show on a terminal how far each simulation is; in a pipe, only that one is done."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from streamsched.cli.screens import console
    from streamsched.model.quantities import format_instant
    from streamsched.reporting.simulations import Simulated

    terminal = console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        tasks = [bar.add_task(name, total=1.0, status="") for name in names]

        def tell(number: int, stage: Stage | Simulated) -> None:
            if isinstance(stage, Simulated):
                bar.update(tasks[number], completed=1.0, status="done")
                if not terminal.is_terminal:
                    terminal.print(f"{names[number]}: {stage.records:,} events in {stage.seconds:.1f} s")
                return
            status = (
                f"{format_instant(stage.at_ms)[:16].replace('T', ' ')}  {stage.records:,} events  "
                f"{stage.running:,} running  {stage.queued:,} queued"
            )
            bar.update(tasks[number], completed=stage.fraction, status=status)

        yield tell


def _in_words(told: Mapping[str, Any]) -> Iterator[str]:
    """Say what was read, and what was dropped and why."""
    if "institute" in told:
        yield f"{told['institute']}: people of an institute, seed {told['seed']}"
        return
    yield f"{told['path']} ({told['format']}): {told['jobs']:,} of {told['jobs_in_file']:,} jobs"
    yield f"  quotas: {told['quotas']}"
    if told["unordered"]:
        yield f"  {told['unordered']:,} jobs stand below one that was submitted later; they were sorted"
    for dropped in told["dropped"]:
        rows = f"{dropped['rows']:,} row{'s' * (dropped['rows'] != 1)}"
        yield f"  dropped {rows}: {dropped['reason']} (line {dropped['first_line']}: {dropped['first']})"


def _first(told: Mapping[str, Any]) -> str:
    dropped = told["dropped"]
    return f"the first at line {dropped[0]['first_line']}: {dropped[0]['first']}" if dropped else "it is empty"
