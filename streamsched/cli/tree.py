"""The command tree. Each command imports what it needs when it runs, so that ``--help`` answers at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamsched.cli import exits, policies, report, simulate, study, topology, what_if
from streamsched.cli.answering import asking, moment_of, place_at, print_answer, print_receipt
from streamsched.cli.command_group import CommandGroup
from streamsched.cli.options import ASK, DEFAULT_PLACE, PAST, RUN, WHAT_IF, AsJson, At, From, RecordedLedger, To

if TYPE_CHECKING:
    from streamsched.model.events import Drain
    from streamsched.node.virtual_node import NodeSpec

HELP = """
Schedule GPU clusters from a ledger of facts.

Try it: `streamsched up --nodes 4x8 --budget research=60% --budget product=40%` in one terminal, and in another
`streamsched submit --budget research --gpus 8 --min-runtime 10m -- sleep 60`, `streamsched jobs`,
`streamsched explain WORKLOAD`.

Commands that ask take --from: a service (http://127.0.0.1:7070), a cluster on Kafka (kafka://HOST:PORT/PREFIX), or a
recorded ledger (a file, an archive, or the data directory of `streamsched up`). STREAMSCHED_FROM sets it for all.
With --json each prints one JSON document on one line, the same that the service gives over HTTP; times are
milliseconds since 1970 UTC.

Exit codes: 0 done, yes. 1 done, and the answer is no: rejected, not found, not whole, different. 2 the request or a
setting is wrong, nothing was done. 3 nobody answered. 70 stopped rather than go on: a bug, or a ledger that is not
whole. 130 interrupted. 141 the reader of the output went away. `serve` ends with 78 where 2 is meant, as service
managers know it.
"""

app = typer.Typer(
    cls=CommandGroup,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
topics_app = typer.Typer(help="Create and verify the topics of a cluster on Kafka.", no_args_is_help=True)
budgets_app = typer.Typer(help="Show and change the budget tree.", no_args_is_help=True)
node_app = typer.Typer(help="Take nodes out of use and back, and run node agents.", no_args_is_help=True)
app.add_typer(budgets_app, name="budgets")
app.add_typer(policies.app, name="policy")
app.add_typer(topics_app, name="topics")
app.add_typer(node_app, name="node")

Kafka = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        envvar="STREAMSCHED_BOOTSTRAP",
        metavar="HOST:PORT[,...]",
        help="Kafka brokers to begin with.",
    ),
]
Prefix = Annotated[
    str,
    typer.Option("--prefix", envvar="STREAMSCHED_TOPIC_PREFIX", help="What the names of the topics begin with."),
]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COUNTxGPUS[:POOL][@DOMAIN/...]",
        help="Virtual nodes, such as 4x8, 2x4:a100 or 2x8@s1/r1; may be repeated. Without it, those of the last time.",
    ),
]
Pool = Annotated[str, typer.Option(help="The kind of GPU of nodes that name none.")]
Speed = Annotated[
    int, typer.Option(min=1, max=100_000, help="How much faster than true the work of virtual nodes runs.")
]
BOOTSTRAP = "127.0.0.1:9092"
PREFIX = "streamsched."


# --- run --------------------------------------------------------------------------------------------------------------


@app.command(rich_help_panel=RUN)
def up(
    data: Annotated[Path, typer.Option(help="The directory of the ledger. Made when it is not there.")] = Path(
        "streamsched-data"
    ),
    host: Annotated[
        str, typer.Option(help="The address to listen at. Who reaches it may do everything.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port; 0 for any free one.")] = 7070,
    nodes: Nodes = None,
    pool: Pool = "gpu",
    speed: Speed = 1,
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FRACTION", help="A budget of a new cluster, such as research=60%; may be repeated."),
    ] = None,
    budgets: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The budget tree of a new cluster, as for `budgets apply`.")
    ] = None,
    repair_webhook: Annotated[
        str | None,
        typer.Option(
            envvar="STREAMSCHED_REPAIR_WEBHOOK",
            metavar="URL",
            help="Where to POST that a node out of use has become empty, so that its repair begins.",
        ),
    ] = None,
) -> None:
    """Run a whole cluster in one process: ledger, scheduler, HTTP intake, virtual nodes.

    The ledger is one SQLite file, and what was answered is in it: a restart, also after `kill -9`, goes on where it
    stopped. Virtual nodes run `sleep SECONDS` and keep what they hold in the same directory.

    Paths: POST /v1/workloads, POST /v1/workloads/ID/cancel, DELETE /v1/workloads/ID, POST /v1/events, GET /v1/jobs,
    /v1/jobs/ID, /v1/shares, /v1/nodes, /v1/policy, /v1/state, /healthz, /metrics. Bodies are the events of
    `topics/schemas`.

    Example: `streamsched up --nodes 4x8:h100 --budget research=60% --budget product=40% --speed 60`
    """
    from streamsched.cli.budget_files import parse_budgets, read_budgets
    from streamsched.cli.running import folded, told_up
    from streamsched.embedded.app import Settings
    from streamsched.embedded.app import up as run
    from streamsched.errors import LedgerError, ReplayDivergenceError, RequestError

    if budget and budgets is not None:
        raise RequestError("invalid", "--budget and --budgets are both given; give one of them.")
    tree = parse_budgets(budget) if budget else read_budgets(budgets) if budgets is not None else None
    settings = Settings(
        data=data,
        host=host,
        port=port,
        nodes=None if nodes is None else _node_specs(nodes, pool, "node"),
        speed=speed,
        budgets=tree,
        repair_webhook=repair_webhook,
    )
    try:
        run(settings, started=told_up, progress=folded)
    except (LedgerError, ReplayDivergenceError) as error:
        typer.echo(f"streamsched: stopped: {error}", err=True)
        raise typer.Exit(exits.HALTED) from None


@app.command(rich_help_panel=RUN)
def serve(
    config: Annotated[
        Path | None, typer.Option(envvar="STREAMSCHED_CONFIG", help="A TOML file of settings; the environment wins.")
    ] = None,
) -> None:
    """Run the service on Kafka: intake, health, scheduler and views, or those that STREAMSCHED_ROLES names.

    Settings are environment variables (STREAMSCHED_BOOTSTRAP, ...) and keys of the file; they are printed at the start.

    Example: `STREAMSCHED_BOOTSTRAP=broker:9092 STREAMSCHED_REPLICA=b streamsched serve`
    """
    import os

    from streamsched.service.app import serve as run
    from streamsched.service.settings import load_settings

    # STREAMSCHED_FROM is ours, and says nothing to the service.
    environment = {name: value for name, value in os.environ.items() if name != "STREAMSCHED_FROM"}
    raise typer.Exit(run(load_settings(config, environment)))


@node_app.command("virtual")
def node_virtual(
    state: Annotated[Path, typer.Option(help="A directory of this agent's own; with it a restart goes on.")],
    nodes: Annotated[
        list[str], typer.Option(metavar="COUNTxGPUS[:POOL][@DOMAIN/...]", help="The nodes to be; may be repeated.")
    ],
    name: Annotated[str, typer.Option(help="What the names of the nodes begin with; no two agents may share one.")],
    bootstrap: Kafka = BOOTSTRAP,
    prefix: Prefix = PREFIX,
    pool: Pool = "gpu",
    speed: Speed = 1,
    seed: Annotated[int, typer.Option(help="Draws how long the nodes take to start and stop.")] = 0,
) -> None:
    """Be virtual nodes of a cluster on Kafka: obey commands and report, as real agents do. They run `sleep SECONDS`.

    Example: `streamsched node virtual --nodes 100x8:h100 --name rack-a --state agent-a --bootstrap broker:9092`
    """
    from streamsched.cli.running import until_stopped
    from streamsched.node.agent import run_virtual_nodes

    specs = _node_specs(nodes, pool, name)
    until_stopped(run_virtual_nodes(bootstrap, prefix, specs, state, speed=speed, seed=seed))


# --- ask --------------------------------------------------------------------------------------------------------------


@app.command(rich_help_panel=ASK)
def submit(
    budget: Annotated[str, typer.Option("--budget", "-b", help="The leaf that asks, and pays for allocated time.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="What the nodes run, after `--`.")],
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks", "-r", help="Gang size; all ranks start together or none. 1, or what the groups add up to."
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", "-g", help="GPUs of each rank, on one node, 1 to 16. 1, or the least of the groups."),
    ] = None,
    pool: Annotated[str | None, typer.Option(help="The kind of GPU; any one kind when absent.")] = None,
    min_runtime: Annotated[
        str, typer.Option(metavar="TIME", help="Protected time, such as 1h30m. 0 asks for unallocated time.")
    ] = "0",
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Stop the run this long after its start.")] = None,
    resumable: Annotated[bool, typer.Option("--resumable", help="A preempted run may be queued again.")] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Warn before the protection ends; it can be extended once.")
    ] = False,
    priority: Annotated[int, typer.Option(help="Orders work inside the budget only; larger goes first.")] = 0,
    layer: topology.Layers = None,
    group: topology.Groups = None,
    preference: topology.Preferred = None,
    symmetric: topology.Symmetric = False,
    recovery: topology.RecoveryOption = None,
    topology_file: topology.TopologyFile = None,
    workload: Annotated[
        str | None, typer.Option("--id", help="Its id, never reused. The same request twice is one workload.")
    ] = None,
    actor: Annotated[str | None, typer.Option(help="Who asks.")] = None,
    to: To = DEFAULT_PLACE,
    as_json: AsJson = False,
) -> None:
    """Ask for GPUs, and wait until it is settled whether the request is in the queue.

    Priority orders work inside one budget; between budgets the usage ratio decides.

    Where nodes report their place in the network, --layer says which ranks must share a domain, coarse to fine:
    `--layer supernode --layer rack=8` keeps the whole gang in one supernode and each 8 consecutive ranks in one rack.
    It waits until that can be had; with `:preferred` behind it, the next coarser level does as well. `streamsched
    topology` shows the levels and their domains. --group cuts the gang into roles with GPUs and layers of their own.

    Examples: `streamsched submit -b research -g 8 -r 4 --min-runtime 1h -- sleep 3600`,
    `streamsched submit -b research --id probe-7 -- sleep 5`,
    `streamsched submit -b research -g 8 -r 64 --layer supernode --layer rack=8:preferred -- sleep 3600`,
    `streamsched submit -b serving --group prefill=4x8@rack --group decode=16x2@rack=4 -- sleep 3600`
    """
    from streamsched.cli.moments import duration_ms
    from streamsched.cli.topology_requests import topology_of
    from streamsched.client.requests import submission

    asked = topology_of(
        topology_file,
        layers=layer or (),
        groups=group or (),
        preference=preference,
        symmetric=symmetric,
        recovery=recovery,
    )
    roles = asked.groups if asked is not None else ()
    if ranks is None:
        ranks = sum(role.ranks for role in roles) or 1
    if gpus is None:
        gpus = min((role.gpus_per_rank for role in roles if role.gpus_per_rank is not None), default=1)

    request = submission(
        budget=budget,
        ranks=ranks,
        gpus_per_rank=gpus,
        min_runtime_ms=duration_ms(min_runtime, "--min-runtime"),
        workload=workload,
        pool=pool,
        timeout_ms=None if timeout is None else duration_ms(timeout, "--timeout"),
        resumable=resumable,
        interactive=interactive,
        priority=priority,
        command=tuple(command),
        topology=asked,
        actor=actor,
    )
    print_receipt(place_at(to).submit(request), f"workload {request.workload}", as_json)


@app.command(rich_help_panel=ASK)
def cancel(
    workload: Annotated[str, typer.Argument(help="Its id.")],
    reason: Annotated[str | None, typer.Option(help="Why; it becomes part of the story.")] = None,
    actor: Annotated[str | None, typer.Option(help="Who asks.")] = None,
    to: To = DEFAULT_PLACE,
    as_json: AsJson = False,
) -> None:
    """Take a workload back, queued or running.

    Example: `streamsched cancel probe-7 --reason "wrong data"`
    """
    print_receipt(place_at(to).cancel(workload, reason=reason, actor=actor), f"cancellation of {workload}", as_json)


@app.command(rich_help_panel=ASK)
def extend(
    workload: Annotated[str, typer.Argument(help="The id of a running interactive session.")],
    by: Annotated[str, typer.Option(metavar="TIME", help="How much longer it is protected, such as 1h.")],
    actor: Annotated[str | None, typer.Option(help="Who asks.")] = None,
    to: To = DEFAULT_PLACE,
    as_json: AsJson = False,
) -> None:
    """Protect an interactive session for longer: once for each run, and the time is charged.

    Example: `streamsched extend notebook-3 --by 1h`
    """
    from streamsched.cli.moments import duration_ms
    from streamsched.client.requests import checked, new_id
    from streamsched.model.events import RunExtended

    fields = {"workload": workload, "extra_ms": duration_ms(by, "--by"), "actor": actor, "corr": new_id()}
    print_receipt(place_at(to).control(checked(RunExtended, fields)), f"extension of {workload} by {by}", as_json)


@app.command(rich_help_panel=ASK)
def jobs(
    phase: Annotated[
        list[str] | None,
        typer.Option(
            help="Only those in this phase: queued, planned, bound, running, stopping, succeeded, failed, cancelled, "
            "preempted, timed_out, rejected. May be repeated."
        ),
    ] = None,
    budget: Annotated[str | None, typer.Option("--budget", "-b", help="Only those of this budget and below.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that have ended.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many, the latest submitted.")] = None,
    source: From = DEFAULT_PLACE,
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """List workloads in the order of their submission.

    JSON: `{"cursor", "at_ms", "matching", "jobs": [...]}`.

    Examples: `streamsched jobs --phase queued`, `streamsched jobs --ended --budget research --json`,
    `streamsched jobs --from streamsched-data --at 2026-11-30T09:00:00Z`
    """
    from streamsched.cli import screens
    from streamsched.replay.answers import JobFilter
    from streamsched.state.workloads import Phase

    phases = []
    for text in phase or ():
        if text not in set(Phase):
            raise typer.BadParameter(f"{text!r} is no phase; write one of {', '.join(Phase)}.", param_hint="--phase")
        phases.append(Phase(text))
    wanted = JobFilter.of({"phase": tuple(phases), "budget": budget, "ended": ended, "limit": limit})
    with asking(source, at) as place:
        answer = place.jobs(wanted)
    print_answer(answer, screens.jobs(answer), as_json)


@app.command(rich_help_panel=ASK)
def explain(
    workload: Annotated[str, typer.Argument(help="Its id.")],
    source: From = DEFAULT_PLACE,
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """Show what happened to a workload, why it waits or runs, with the arithmetic, and what could be changed.

    JSON: `{"cursor", "at_ms", "job", "story": [...], "verdict"}`.

    Examples: `streamsched explain probe-7`, `streamsched explain probe-7 --from streamsched-data --at 4711`
    """
    from streamsched.cli import screens

    with asking(source, at) as place:
        answer = place.explain(workload)
    print_answer(answer, screens.explanation(answer), as_json, wraps=True)


@app.command(rich_help_panel=ASK)
def shares(source: From = DEFAULT_PLACE, at: At = None, as_json: AsJson = False) -> None:
    """Show the budget tree: what each part of it is due, has used and holds.

    JSON: `{"cursor", "at_ms", "change", "capacity_gpus", "rates", "window_ms", "shares": [...]}`, parents first.

    Example: `streamsched shares --from streamsched-data --at 2026-11-30T09:00:00Z`
    """
    from streamsched.cli import screens

    with asking(source, at) as place:
        answer = place.shares()
    print_answer(answer, screens.shares(answer), as_json)


@app.command(rich_help_panel=ASK)
def nodes(source: From = DEFAULT_PLACE, at: At = None, as_json: AsJson = False) -> None:
    """List the machines and who holds their GPUs.

    JSON: `{"cursor", "at_ms", "nodes": [...]}`.

    Example: `streamsched nodes --json`
    """
    from streamsched.cli import screens

    with asking(source, at) as place:
        answer = place.nodes()
    print_answer(answer, screens.nodes(answer), as_json)


@node_app.command("show")
def node_show(
    node: Annotated[str, typer.Argument(help="Its name.")],
    source: From = DEFAULT_PLACE,
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """Show how a node stands: its state, since when, who or what set it, and what it waits for.

    JSON: that of `streamsched nodes`, with this node alone.

    Example: `streamsched node show rack-a-7`
    """
    from streamsched.cli import screens
    from streamsched.errors import RequestError

    with asking(source, at) as place:
        answer = place.nodes()
    answer = answer.model_copy(update={"nodes": tuple(machine for machine in answer.nodes if machine.node == node)})
    if not answer.nodes:
        raise RequestError("not_found", f"there is no node {node!r}; `streamsched nodes` lists them.")
    print_answer(answer, screens.node(answer), as_json, wraps=True)


@node_app.command("cordon")
def node_cordon(
    node: Annotated[str, typer.Argument(help="Its name.")],
    reason: Annotated[str, typer.Option(help="Why; everybody can see it.")],
    actor: Annotated[str | None, typer.Option(help="Who says so.")] = None,
    to: To = DEFAULT_PLACE,
    as_json: AsJson = False,
) -> None:
    """Give a node no new work. What has started there goes on, and what has not is placed elsewhere.

    Example: `streamsched node cordon rack-a-7 --reason "odd fan noise"`
    """
    from streamsched.model.events import Drain

    _order(node, Drain.CORDON, reason, actor, to, as_json)


@node_app.command("drain")
def node_drain(
    node: Annotated[str, typer.Argument(help="Its name.")],
    reason: Annotated[str, typer.Option(help="Why; everybody can see it.")],
    hard: Annotated[bool, typer.Option("--hard", help="Stop everything now, protected or not.")] = False,
    actor: Annotated[str | None, typer.Option(help="Who says so.")] = None,
    to: To = DEFAULT_PLACE,
    as_json: AsJson = False,
) -> None:
    """Empty a node: unallocated work leaves at once, allocated work as its protection ends. It stays out of use.

    Example: `streamsched node drain rack-a-7 --reason "replace the power supply"`
    """
    from streamsched.model.events import Drain

    _order(node, Drain.HARD if hard else Drain.SOFT, reason, actor, to, as_json)


node_app.command("relabel")(topology.relabel)
app.command("topology", rich_help_panel=ASK)(topology.topology)


@node_app.command("undrain")
def node_undrain(
    node: Annotated[str, typer.Argument(help="Its name.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.")],
    actor: Annotated[str | None, typer.Option(help="Who says so.")] = None,
    to: To = DEFAULT_PLACE,
    as_json: AsJson = False,
) -> None:
    """End a cordon or a drain, and a hold that the scheduler put on a node that fell too often.

    Example: `streamsched node undrain rack-a-7 --reason "repaired"`
    """
    from streamsched.model.events import Drain

    _order(node, Drain.NONE, reason, actor, to, as_json)


@budgets_app.command("show")
def budgets_show(source: From = DEFAULT_PLACE, at: At = None, as_json: AsJson = False) -> None:
    """Show the budget tree; the same as `streamsched shares`."""
    shares(source, at, as_json)


@budgets_app.command("apply")
def budgets_apply(
    file: Annotated[Path, typer.Argument(help="TOML, or JSON where the name ends in .json.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.")] = "applied from a file",
    change: Annotated[str | None, typer.Option(help="The id of the change; the same id twice is one change.")] = None,
    actor: Annotated[str | None, typer.Option(help="Who changes it; if it has managers, one of them.")] = None,
    effective: Annotated[
        str | None, typer.Option(metavar="TIME", help="When, as a time with its offset; otherwise at once.")
    ] = None,
    to: To = DEFAULT_PLACE,
    as_json: AsJson = False,
) -> None:
    """Make the budget tree what a file says, whole and at one instant. What it does not name is closed.

    A budget holds a fraction of its parent: `product = "40%"`. One with children is a table with its own
    `fraction`: `[research]`, then `fraction = "60%"`, `llama = "1/2"`, `vision = 0.35`. With
    `managers = ["ana@example.org"]` only she may change it and what is below it. With `max_allocated_gpus = 64` or
    `max_unallocated_gpus = 64` it has no more GPUs at a time.

    The change is refused when somebody else has changed the tree since it was read.

    Example: `streamsched budgets apply budgets.toml --reason "new team" --effective 2027-01-01T00:00:00+01:00`
    """
    from streamsched.cli.budget_files import read_budgets
    from streamsched.cli.moments import instant_ms
    from streamsched.client.requests import checked, new_id
    from streamsched.model.events import BudgetTreeChanged

    tree = read_budgets(file)
    effective_ms = None if effective is None else instant_ms(effective, "--effective")
    place = place_at(to)
    fields = {
        "change": change or new_id(),
        "previous": place.shares().change,
        "reason": reason,
        "actor": actor,
        "corr": new_id(),
        "effective_ms": effective_ms,
        "budgets": tree,
    }
    event = checked(BudgetTreeChanged, fields)
    print_receipt(place.control(event), f"budget tree of {len(tree)} budgets (change {event.change})", as_json)


@budgets_app.command("adjust")
def budgets_adjust(
    budget: Annotated[str, typer.Argument(help="The leaf.")],
    gpu_hours: Annotated[
        str, typer.Option(metavar="NUMBER", help="What it is charged besides; negative where it is given back.")
    ],
    since: Annotated[str, typer.Option(metavar="TIME", help="The interval begins then; a time with its offset.")],
    until: Annotated[str, typer.Option(metavar="TIME", help="And ends then.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.")],
    workload: Annotated[str | None, typer.Option(help="The workload it is about.")] = None,
    adjustment: Annotated[str | None, typer.Option(help="Its id; the same id twice is one adjustment.")] = None,
    actor: Annotated[str | None, typer.Option(help="Who adjusts it.")] = None,
    to: To = DEFAULT_PLACE,
    as_json: AsJson = False,
) -> None:
    """Correct what a leaf was charged over an interval that has passed. What was recorded stays as it is.

    The correction is spread evenly over the interval and leaves the window with it. No more can be given back than was
    charged at any moment of it.

    Example: `streamsched budgets adjust research/llama --gpu-hours=-16 --since 2026-11-30T09:00Z --until
    2026-11-30T11:00Z --reason "node-7 hung"`
    """
    from streamsched.cli.moments import gpu_ms, instant_ms
    from streamsched.client.requests import checked, new_id
    from streamsched.model.events import UsageAdjusted

    fields = {
        "adjustment": adjustment or new_id(),
        "budget": budget,
        "workload": workload,
        "gpu_ms": gpu_ms(gpu_hours, "--gpu-hours"),
        "from_ms": instant_ms(since, "--since"),
        "to_ms": instant_ms(until, "--until"),
        "reason": reason,
        "actor": actor,
        "corr": new_id(),
    }
    event = checked(UsageAdjusted, fields)
    print_receipt(
        place_at(to).control(event), f"{gpu_hours} GPU-hours for {budget} (adjustment {event.adjustment})", as_json
    )


# --- look back --------------------------------------------------------------------------------------------------------


@app.command(rich_help_panel=PAST)
def replay(
    ledger: RecordedLedger,
    at: Annotated[
        str | None,
        typer.Option("--at", "--until", metavar="CURSOR|TIME", help="Stop there, and show the state as it was."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also decide again at every accepted proposal, and compare.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fold a recorded ledger and prove it: no source has a gap, and every recorded digest comes out again.

    With --verify each accepted proposal is also decided again, on the records that it was made on and under the policy
    of that moment, and compared with what is recorded. The first that differs is shown: both proposals item by item,
    where they part, and the story of the workload that is decided about otherwise. Late proposals, which closed no
    round, are counted.

    Exit code 1 when it is not whole, or when a digest or a decision differs.

    JSON: `{"audit", "state", "verification"}`; the last is null without --verify.

    Examples: `streamsched replay streamsched-data`, `streamsched replay archive/ --at 4711 --json`,
    `streamsched replay kafka://broker:9092/lab. --verify --until 2026-11-30T09:00:00Z`
    """
    import asyncio

    from streamsched.cli import replay_screens
    from streamsched.cli.running import folding, replayed

    with folding() as progress:
        result = asyncio.run(replayed(ledger, moment_of(at), progress, verify=verify))
    screen = replay_screens.replay(result.audit, result.state, result.verification)
    print_answer(result, screen, as_json, wraps=True)
    if not result.audit.is_whole or not (result.verification is None or result.verification.is_equal):
        raise typer.Exit(exits.NEGATIVE)


@app.command(rich_help_panel=PAST)
def archive(
    ledger: RecordedLedger,
    directory: Annotated[Path, typer.Argument(help="The archive; begun when it is not there, else continued.")],
    as_json: AsJson = False,
) -> None:
    """Copy a ledger into compressed, hash-chained files, byte for byte. Again, to add what came since.

    JSON: `{"records", "directory"}`.

    Example: `streamsched archive streamsched-data backup/`
    """
    import asyncio

    from streamsched.cli.running import Archived, archived

    end = asyncio.run(archived(ledger, directory))
    print_answer(Archived(records=end, directory=str(directory)), f"{end} records are in {directory}", as_json)


@app.command(rich_help_panel=PAST)
def demo(
    out: Annotated[Path, typer.Option(help="Where the ledger and the report go.")] = Path("out/demo"),
    as_json: AsJson = False,
) -> None:
    """Schedule a week of a real trace on a virtual cluster, faster than time; leave a report and the ledger behind.

    JSON: the outcomes, and where the ledger and the report are.

    Example: `streamsched demo --out /tmp/demo`
    """
    import json

    from streamsched.reporting.demo import run_demo

    result = run_demo(out, quiet=as_json)
    if as_json:
        typer.echo(json.dumps(result.as_json()))


app.command(rich_help_panel=PAST)(report.report)
app.command(rich_help_panel=WHAT_IF)(simulate.simulate)
app.command("whatif", rich_help_panel=WHAT_IF)(what_if.what_if)
app.command(rich_help_panel=WHAT_IF)(study.study)


# --- topics and version -----------------------------------------------------------------------------------------------


@topics_app.command("apply")
def topics_apply(
    bootstrap: Kafka = BOOTSTRAP,
    prefix: Prefix = PREFIX,
    replication: Annotated[int | None, typer.Option(min=1, help="Replicas of each new topic.")] = None,
) -> None:
    """Create the topics that are missing. Existing ones are never changed; one that is wrong refuses all.

    Example: `streamsched topics apply --bootstrap broker:9092`
    """
    import asyncio

    from streamsched.cli.places import hush_kafka
    from streamsched.service import topic_administration

    hush_kafka()
    created = asyncio.run(topic_administration.apply(bootstrap, prefix, replication=replication))
    typer.echo("\n".join(f"created {name}" for name in created) or "every topic is there already")


@topics_app.command("check")
def topics_check(bootstrap: Kafka = BOOTSTRAP, prefix: Prefix = PREFIX) -> None:
    """Compare a broker's topics with what they must be. Exit code 1 when they differ.

    Example: `streamsched topics check --bootstrap broker:9092`
    """
    import asyncio

    from streamsched.cli.places import hush_kafka
    from streamsched.service import topic_administration

    hush_kafka()
    differences = asyncio.run(topic_administration.check(bootstrap, prefix))
    typer.echo("\n".join(map(str, differences)) or "every topic is as it must be")
    if differences:
        raise typer.Exit(exits.NEGATIVE)


@app.command(rich_help_panel=RUN)
def version() -> None:
    """Print the version."""
    from streamsched import __version__

    typer.echo(__version__)


# --- what commands share ----------------------------------------------------------------------------------------------


def _node_specs(texts: list[str], pool: str, prefix: str) -> tuple[NodeSpec, ...]:
    from streamsched.cli.fleets import parse_fleets

    return parse_fleets(texts, pool, prefix)


def _order(node: str, drain: Drain, reason: str, actor: str | None, to: str, as_json: bool) -> None:
    """Order that a node be taken out of use or put back, and print what became of it."""
    from streamsched.client.requests import checked, new_id
    from streamsched.model.events import NodeDrainChanged

    fields = {"node": node, "drain": drain, "reason": reason, "actor": actor, "corr": new_id()}
    print_receipt(place_at(to).control(checked(NodeDrainChanged, fields)), f"drain {drain} of node {node}", as_json)
