"""The command that lets recorded demand be served under other rules, beside what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamsched.cli.options import AsJson, Knobs, PolicyName, RecordedLedger

if TYPE_CHECKING:
    from streamsched.model.policy import Policy
    from streamsched.replay.replayer import Progress
    from streamsched.reporting.runs import ReportedRun
    from streamsched.simulation.what_if import Change, RecordedDemand


def what_if(
    ledger: RecordedLedger,
    policy: PolicyName = None,
    knobs: Knobs = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KNOB=VALUE[,KNOB=VALUE...]",
            help="Knobs of one more run beside the others, such as window_ms=5d; may be repeated.",
        ),
    ] = None,
    budgets: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The budget tree from the beginning, as for `budgets apply`.")
    ] = None,
    add_nodes: Annotated[
        list[str] | None,
        typer.Option(metavar="COUNTxGPUS[:POOL]", help="Nodes that are there from the beginning; may be repeated."),
    ] = None,
    lose_node: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE[@TIME]", help="A node that never was, or that is lost for good at a time; may be repeated."
        ),
    ] = None,
    min_runtime: Annotated[
        int, typer.Option(metavar="PERCENT", min=0, max=10_000, help="Of what people declared, what they declare.")
    ] = 100,
    ideal: Annotated[bool, typer.Option("--ideal", help="Nodes that start and stop work at once.")] = False,
    seed: Annotated[int, typer.Option(help="Draws how long nodes take.")] = 0,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML page.")] = None,
    as_json: AsJson = False,
) -> None:
    """Serve what a ledger records as asked for under other rules, and show it beside what was recorded.

    What people asked for, what became of nodes and how long work truly ran are kept; decisions and all that they
    caused are made anew, on virtual nodes, until the moment at which the ledger ends. Without a change, and with nodes
    that take as long as those recorded did, the same is decided again. Work that was not seen to end by itself is taken
    to run until it is cancelled or the ledger ends, unless its command is a `sleep`.

    All other options hold for every variant; several are served in processes of their own.

    JSON: `{"workloads", "unseen_ends", "runs": [{"name", "changes", "outcomes"}], "report"}`; the first run is the
    recorded one.

    Examples: `streamsched whatif streamsched-data --set window_ms=3d`,
    `streamsched whatif streamsched-data --variant window_ms=3d --variant window_ms=14d,min_runtime_cap_ms=4h`,
    `streamsched whatif ledger.sqlite --add-nodes 8x8 --min-runtime 50 --report whatif.html`,
    `streamsched whatif ledger.sqlite --budgets new.toml --lose-node node-003@2026-11-30T09:00:00Z --json`
    """
    import json

    from streamsched.cli.running import folding
    from streamsched.cli.screens import console
    from streamsched.cli.simulate import refuse_target, written_to
    from streamsched.reporting.report import ReportText, write_report
    from streamsched.reporting.terminal import comparison_tables

    refuse_target(report)
    with folding() as progress:
        recorded, demand = recorded_demand(ledger, progress)
    changed = change_of(demand, budgets, add_nodes or [], lose_node or [], min_runtime)
    names, changes = ["recorded"], [list[Any]()]
    asked: list[Change] = []
    for text in variant or [""]:
        chosen, differing = _policy(policy, [*(knobs or []), *_knobs_of(text)], demand)
        asked.append(replace(changed, policy=chosen))
        names.append(text or "what if")
        changes.append(differing)
    if len(set(names)) < len(names):
        raise typer.BadParameter("one is given twice; give each once.", param_hint="--variant")
    runs = [recorded, *_served(demand, asked, names[1:], ideal=ideal, seed=seed)]
    if report is not None:
        heading = ReportText(title=f"{ledger}: recorded, and what if")
        written_to(report, lambda: write_report(report, runs, heading))
    if as_json:
        answer: dict[str, Any] = {
            "workloads": len(demand.submissions),
            "unseen_ends": demand.unseen_ends,
            "runs": [
                {"name": run.name, "changes": differing, "outcomes": run.outcomes.as_json()}
                for run, differing in zip(runs, changes, strict=True)
            ],
            "report": None if report is None else str(report),
        }
        typer.echo(json.dumps(answer, separators=(",", ":")))
        return
    screen = console()
    screen.print(f"{len(demand.submissions):,} workloads; {demand.unseen_ends:,} were not seen to end by themselves")
    for name, differing in zip(names, changes, strict=True):
        for knob in differing:
            screen.print(f"  {name}: {knob['knob']} {knob['before']} -> {knob['after']}", markup=False)
    screen.print(comparison_tables(runs))
    if report is not None:
        screen.print(f"report  {report}")


def recorded_demand(address: str, progress: Progress) -> tuple[ReportedRun, RecordedDemand]:
    """Fold a ledger once, for what it came to and for what was asked."""
    import asyncio

    from streamsched.cli.places import open_recorded
    from streamsched.errors import RequestError
    from streamsched.model.commands import Effects
    from streamsched.model.events import Record
    from streamsched.replay.replayer import fold
    from streamsched.reporting.runs import RunRecorder
    from streamsched.simulation.what_if import DemandRecorder
    from streamsched.state.cluster import ClusterState

    recorder, asked = RunRecorder(), DemandRecorder()

    def observe(record: Record, effects: Effects, state: ClusterState) -> None:
        recorder(record, effects, state)
        asked.observe(record, effects, state)

    async def folded() -> ClusterState:
        ledger = await open_recorded(address)
        try:
            return await fold(ledger, observe=observe, progress=progress)
        finally:
            await ledger.close()

    state = asyncio.run(folded())
    try:
        demand = asked.demand()
    except ValueError as error:
        raise RequestError("not_found", f"{address}: {error}.") from None
    return recorder.run("recorded", state, until_ms=state.now_ms), demand


def _served(
    demand: RecordedDemand, changes: Sequence[Change], names: Sequence[str], *, ideal: bool, seed: int
) -> list[ReportedRun]:
    """Serve the demand under each change, side by side."""
    import os
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    if len(changes) == 1:
        return [_serve(demand, changes[0], names[0], ideal, seed)]
    workers = min(len(changes), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [
            pool.submit(_serve, demand, change, name, ideal, seed) for change, name in zip(changes, names, strict=True)
        ]
        return [future.result() for future in futures]


def _serve(demand: RecordedDemand, change: Change, name: str, ideal: bool, seed: int) -> ReportedRun:
    from streamsched.cli.running import folding
    from streamsched.node.virtual_node import IDEAL, USUAL
    from streamsched.reporting.runs import RunRecorder

    recorder = RunRecorder()
    with folding() as progress:
        state = demand.serve(
            change,
            IDEAL if ideal else USUAL,
            seed=seed,
            observers=(recorder, lambda record, _effects, _state: progress(record.cursor + 1)),
        )
    return recorder.run(name, state, until_ms=max(demand.until_ms, state.now_ms))


def _knobs_of(text: str) -> list[str]:
    """Cut a variant into knobs. A part without a sign belongs to the value before it: that is a list.

    >>> _knobs_of("window_ms=3d,rates=h100:2,a100:1")
    ['window_ms=3d', 'rates=h100:2,a100:1']
    """
    knobs: list[str] = []
    for part in text.split(",") if text else []:
        if knobs and "=" not in part:
            knobs[-1] += f",{part}"
        else:
            knobs.append(part)
    return knobs


def _policy(name: str | None, knobs: Sequence[str], demand: RecordedDemand) -> tuple[Policy | None, list[Any]]:
    """Return the policy that is asked for, None for what was adopted, and how it differs from the first of those."""
    from streamsched.cli.policy_files import changes, read_policy

    if name is None and not knobs:
        return None, []
    chosen = read_policy(name, knobs, base=demand.policy)
    return chosen, [change.model_dump(mode="json") for change in changes(demand.policy, chosen)]


def change_of(
    demand: RecordedDemand,
    budgets: Path | None,
    add_nodes: Sequence[str],
    lose_node: Sequence[str],
    min_runtime: int,
) -> Change:
    """Read what is to be other than it was, but for the policy; the arguments are options of `what_if`."""
    from streamsched.cli.budget_files import read_budgets
    from streamsched.cli.fleets import parse_fleets
    from streamsched.cli.moments import instant_ms
    from streamsched.model.events import BudgetTreeChanged, NodeInventoryReported
    from streamsched.simulation.what_if import Change

    known = {node.node for node in demand.nodes} | {getattr(fact, "node", "") for _, fact in demand.facts}
    lost = []
    for text in lose_node:
        node, _, at = text.partition("@")
        if node not in known:
            raise typer.BadParameter(f"{node!r} is no node of this ledger.", param_hint="--lose-node")
        lost.append((node, instant_ms(at, "--lose-node") if at else demand.since_ms))
    # The pool of nodes that name none is that of the first node: most clusters have one.
    pool = demand.nodes[0].pool if demand.nodes else "gpu"
    specs = parse_fleets(add_nodes, pool, "added") if add_nodes else ()
    tree = None
    if budgets is not None:
        tree = BudgetTreeChanged(change="what-if", reason=f"as in {budgets.name}", budgets=read_budgets(budgets))
    return Change(
        budgets=tree,
        added=tuple(
            NodeInventoryReported(node=spec.node, boot="boot-1", pool=spec.pool, gpus=spec.gpus) for spec in specs
        ),
        lost=tuple(lost),
        min_runtime_percent=min_runtime,
    )
