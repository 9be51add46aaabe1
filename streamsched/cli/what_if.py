"""The command that lets recorded demand be served under other rules, beside what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
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

    JSON: `{"workloads", "unseen_ends", "changes", "runs": [{"name", "outcomes"}], "report"}`; the first run is the
    recorded one.

    Examples: `streamsched whatif streamsched-data --set window_ms=3d`,
    `streamsched whatif ledger.sqlite --add-nodes 8x8 --min-runtime 50 --report whatif.html`,
    `streamsched whatif ledger.sqlite --budgets new.toml --lose-node node-003@2026-11-30T09:00:00Z --json`
    """
    import json

    from streamsched.cli.running import folding
    from streamsched.cli.screens import console
    from streamsched.errors import ConfigurationError
    from streamsched.node.virtual_node import IDEAL, USUAL
    from streamsched.reporting.report import ReportText, write_report
    from streamsched.reporting.runs import RunRecorder
    from streamsched.reporting.terminal import comparison_tables

    with folding() as progress:
        recorded, demand = _recorded(ledger, progress)
    chosen, changes = _policy(policy, knobs or [], demand)
    change = _change(demand, chosen, budgets, add_nodes or [], lose_node or [], min_runtime)
    recorder = RunRecorder()
    with folding() as progress:
        state = demand.serve(
            change,
            IDEAL if ideal else USUAL,
            seed=seed,
            observers=(recorder, lambda record, _effects, _state: progress(record.cursor + 1)),
        )
    runs = [recorded, recorder.run("what if", state, until_ms=max(demand.until_ms, state.now_ms))]
    if report is not None:
        try:
            write_report(report, runs, ReportText(title=f"{ledger}: recorded, and what if"))
        except OSError as error:
            raise ConfigurationError(f"{report} cannot be written ({error.strerror}); name another file") from error
    if as_json:
        answer: dict[str, Any] = {
            "workloads": len(demand.submissions),
            "unseen_ends": demand.unseen_ends,
            "changes": changes,
            "runs": [{"name": run.name, "outcomes": run.outcomes.as_json()} for run in runs],
            "report": None if report is None else str(report),
        }
        typer.echo(json.dumps(answer, separators=(",", ":")))
        return
    screen = console()
    screen.print(f"{len(demand.submissions):,} workloads; {demand.unseen_ends:,} were not seen to end by themselves")
    for knob in changes:
        screen.print(f"  {knob['knob']}: {knob['before']} -> {knob['after']}")
    screen.print(comparison_tables(runs))
    if report is not None:
        screen.print(f"report  {report}")


def _recorded(address: str, progress: Progress) -> tuple[ReportedRun, RecordedDemand]:
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


def _policy(name: str | None, knobs: Sequence[str], demand: RecordedDemand) -> tuple[Policy | None, list[Any]]:
    """Return the policy that is asked for, None for what was adopted, and how it differs from the first of those."""
    from streamsched.cli.policy_files import changes, read_policy

    if name is None and not knobs:
        return None, []
    chosen = read_policy(name, knobs, base=demand.policy)
    return chosen, [change.model_dump(mode="json") for change in changes(demand.policy, chosen)]


def _change(
    demand: RecordedDemand,
    policy: Policy | None,
    budgets: Path | None,
    add_nodes: Sequence[str],
    lose_node: Sequence[str],
    min_runtime: int,
) -> Change:
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
        policy=policy,
        budgets=tree,
        added=tuple(
            NodeInventoryReported(node=spec.node, boot="boot-1", pool=spec.pool, gpus=spec.gpus) for spec in specs
        ),
        lost=tuple(lost),
        min_runtime_percent=min_runtime,
    )
