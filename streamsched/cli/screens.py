"""Answers as text: tables, the tree of shares, and one workload on one screen.

Nothing is ever cut: people copy ids from tables, and programs read them. Into a file or a pipe there is no colour.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from pydantic import BaseModel
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from streamsched.model.quantities import WHOLE, counted, format_duration, format_instant, gpu_hours
from streamsched.model.topology import Layer, TopologyRequest, Wish
from streamsched.replay.answers import AsOf, Explanation, Job, Jobs, Machine, Nodes, Share, Shares
from streamsched.replay.story import Happening
from streamsched.scheduling.misfits import Misfit, in_words
from streamsched.scheduling.verdicts import Fit, Standing, Verdict
from streamsched.state.standing import NodeState
from streamsched.state.workloads import Phase

#: Wide enough that no line of a table is ever cut where no terminal limits it.
_UNCUT = 10_000
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_PADDING = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")
#: So many lines of a story fit on one screen with the rest.
STORY_LINES = 20

_PHASE_STYLES = {
    Phase.QUEUED: "yellow",
    Phase.PLANNED: "yellow",
    Phase.BOUND: "cyan",
    Phase.RUNNING: "green",
    Phase.STOPPING: "magenta",
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "red",
    Phase.REJECTED: "red",
    Phase.TIMED_OUT: "red",
    Phase.PREEMPTED: "magenta",
}
_STATE_STYLES = dict.fromkeys(NodeState, "yellow") | {NodeState.HEALTHY: "green", NodeState.LOST: "red"}


def show(screen: RenderableType, *, wraps: bool = False) -> None:
    """Print to standard output.

    Args:
        screen: What to print.
        wraps: Fold long lines at the width of the terminal. Lists are not folded and never cut, since people copy ids
            from them.
    """
    out = console(wraps=wraps)
    with out.capture() as text:
        out.print(screen)
    sys.stdout.write("".join(f"{_without_padding(line)}\n" for line in text.get().splitlines()))


def console(*, stderr: bool = False, wraps: bool = True) -> Console:
    """Return a console that takes all text as it is: ids and reasons come from outside, and are no markup."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if wraps and stream.isatty() else _UNCUT
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `CommandGroup`, which ends every command whose reader went away with the same code."""
        raise BrokenPipeError


def _without_padding(line: str) -> str:
    """Return a line without the spaces at its end, and with the colours that end there."""
    end = _PADDING.search(line)
    return line if end is None else line[: end.start()] + "".join(_ESCAPE.findall(end[0]))


def show_json(answer: BaseModel) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(answer.model_dump_json() + "\n")


# --- lists ------------------------------------------------------------------------------------------------------------


def jobs(answer: Jobs) -> RenderableType:
    """Return workloads as a table."""
    table = table_of(
        ("workload", "phase", "budget", ">GPUs", "pool", "time", ">try", "since", "protected", "where or why"),
        [
            (
                job.workload,
                Text(job.phase, _PHASE_STYLES.get(job.phase, "")),
                job.budget or "",
                "" if job.gpus is None else str(job.gpus),
                job.pool or "",
                "" if job.allocated is None else _contract(job),
                str(job.attempt),
                _clock(_since(job), answer.at_ms),
                _protected(job, answer.at_ms),
                _why(job) or f"{'straddling: ' if job.straddling else ''}{_some(job.nodes)}",
            )
            for job in answer.jobs
        ],
    )
    shown = f"{len(answer.jobs)} of {answer.matching}" if len(answer.jobs) < answer.matching else str(len(answer.jobs))
    count = f"{shown} workload{'s' * (answer.matching != 1)}"
    return Group(table, as_of(answer, count if answer.jobs else f"{count}; --ended lists those that are over too"))


def _kinds(rates: dict[str, int]) -> str:
    """Return what the GPUs of several pools count; nothing where there is one pool."""
    if len(rates) < 2:
        return ""
    if set(rates.values()) == {1}:
        return "\nKinds of GPU are not weighted: one of any pool counts as one."
    card = ", ".join(f"{pool} {rate}" for pool, rate in rates.items())
    return f"\nIn units of the rate card, for each GPU: {card}."


def _why(job: Job) -> str:
    """Return why it waits or ended. The words for waiting are a closed list, so they may lose their underscores."""
    reason = job.reason or ""
    return reason.replace("_", " ") if job.phase == "queued" else reason


def nodes(answer: Nodes) -> RenderableType:
    """Return machines as a table."""
    table = table_of(
        ("node", "pool", "domains", "state", ">GPUs", ">free", "held by"),
        [
            (node.node, node.pool, _located(node), _state(node), str(node.gpus), str(node.free), _held(node))
            for node in answer.nodes
        ],
    )
    total, free = sum(node.gpus for node in answer.nodes), sum(node.free for node in answer.nodes)
    return Group(table, as_of(answer, f"{len(answer.nodes)} nodes, {free} of {total} GPUs free"))


def node(answer: Nodes) -> RenderableType:
    """Return one machine: its state, since when, who or what set it, what it waits for, and who holds its GPUs."""
    (machine,), now_ms = answer.nodes, answer.at_ms
    lines = [
        f"{machine.node}  {machine.state.replace('_', ' ')} since {_clock(machine.since_ms, now_ms)}",
        f"  {machine.gpus} GPUs of {machine.pool}, {machine.free} free; says that it is {machine.health}",
    ]
    if _located(machine):
        lines.append(f"  is in {_located(machine)}")
    if machine.reason is not None or machine.waits_for is not None:
        lines.append(f"  set by {machine.by}: {machine.reason or 'no reason given'}")
    if machine.waits_for is not None:
        lines.append(f"  waits for {machine.waits_for}")
    if machine.held:
        lines.append(f"  held by {_held(machine)}")
    if machine.pinned:
        gangs = _some([f"{gang.workload} ({gang.gpus})" for gang in machine.pinned])
        lines.append(f"  kept for {gangs}, to come back or to move here")
    return Group(*lines, as_of(answer, machine.node))


def shares(answer: Shares) -> RenderableType:
    """Return the budget tree as a table, children indented below their parent."""
    due, now = (
        (">of parent", ">of cluster", ">due GPU-h"),
        (">ratio", ">uncharged GPU-h", ">GPUs now", ">at most", ">waiting"),
    )
    table = table_of(
        ("budget", *due, ">used GPU-h", ">ahead", *now),
        [
            (
                "  " * share.depth + (share.budget.rpartition("/")[2] or "(cluster)"),
                _percent(share.of_parent),
                _percent(share.of_cluster),
                _hours(share.entitled_gpu_ms),
                _hours(share.charged_gpu_ms),
                _hours(share.committed_gpu_ms),
                _ratio(share),
                _hours(share.unallocated_gpu_ms),
                f"{share.allocated_gpus}+{share.unallocated_gpus}",
                _limits(share),
                str(share.queued_gpus),
            )
            for share in answer.shares
        ],
    )
    window = format_duration(answer.window_ms)
    legend = Text(
        f"Over the last {window}: ratio = (used + ahead) / due; below 1, time is owed.\n"
        "ahead = protected time still to come; uncharged = unallocated time; GPUs now = allocated + unallocated."
        f"{_limits_explained(answer)}{_kinds(answer.rates)}",
        "dim",
    )
    return Group(table, legend, as_of(answer, f"{answer.capacity_gpus} GPUs can be scheduled"))


# --- one workload -----------------------------------------------------------------------------------------------------


def explanation(answer: Explanation) -> RenderableType:
    """Return one workload on one screen: what it is, its story, its verdict, and what could be changed."""
    job, verdict = answer.job, answer.verdict
    title = Text.assemble((job.workload, "bold"), "  ", (job.phase, _PHASE_STYLES.get(job.phase, "")))
    if job.attempt:
        title.append(f", attempt {job.attempt}")
    parts: list[RenderableType] = [title, Text(f"  {_what_it_asks(job)}")]
    parts += [
        Text("\nStory", "bold"),
        story_of(answer.story),
        Text("\nVerdict", "bold"),
        Text(f"  {_capital(verdict.sentence)}."),
    ]
    if job.straddling is not None:
        parts.append(Text(f"  It straddles: {job.straddling}. It goes on where it is.", "yellow"))
    if verdict.standings:
        parts.append(_standings(job, verdict))
    if verdict.fit is not None:
        parts.append(_fit(verdict.fit))
    if verdict.misfit is not None:
        parts.append(_misfit(verdict.misfit))
    if verdict.remedies:
        parts.append(Text("\nWhat could be changed", "bold"))
        parts += [Text(f"  - {_capital(remedy)}.") for remedy in verdict.remedies]
    parts.append(as_of(answer, ""))
    return Group(*parts)


def _what_it_asks(job: Job) -> str:
    if job.gpus is None or job.ranks is None or job.gpus_per_rank is None:
        return "its submission is no longer known"
    alike = job.gpus == job.ranks * job.gpus_per_rank
    each = f" × {counted(job.gpus_per_rank, 'GPU')}" if alike else ""
    gang = f"{counted(job.ranks, 'rank')}{each} = {counted(job.gpus, 'GPU')}"
    pool = f" of {job.pool}" if job.pool else ""
    timeout = f", timeout {format_duration(job.timeout_ms)}" if job.timeout_ms is not None else ""
    resumable = ", resumable" if job.resumable else ""
    priority = f", priority {job.priority}" if job.priority else ""
    topology = f"\n  {asked_in_words(job.topology)}" if job.topology is not None else ""
    return f"{job.budget}: {gang}{pool}, {_contract(job)}{timeout}{resumable}{priority}{topology}"


def asked_in_words(topology: TopologyRequest) -> str:
    """Return what a gang asks of the topology, as `submit` takes it."""
    parts = [_layer(layer) for layer in topology.layers]
    for group in topology.groups:
        gpus = "" if group.gpus_per_rank is None else f" × {counted(group.gpus_per_rank, 'GPU')}"
        layers = f" ({', '.join(map(_layer, group.layers))})" if group.layers else ""
        parts.append(f"{group.name}: {counted(group.ranks, 'rank')}{gpus}{layers}")
    words = (topology.preference, topology.recovery and f"recovery {topology.recovery}")
    parts += [word.replace("_", " ") for word in words if word]
    if topology.symmetric:
        parts.append("symmetric")
    return f"topology: {'; '.join(parts)}"


def _layer(layer: Layer) -> str:
    block = "all" if layer.ranks is None else f"each {layer.ranks}"
    return f"{block} in one {layer.level}{' if it can be had' if layer.wish is Wish.PREFERRED else ''}"


def story_of(story: Sequence[Happening]) -> RenderableType:
    """Return what happened to a workload, a line each; what is too much for one screen is left out and counted."""
    if not story:
        return Text("  nothing is known of it up to here")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    # The submission says what was asked for, so it is never the line that is left out.
    first, told = story[0], story[1:][1 - STORY_LINES :]
    left_out = len(story) - 1 - len(told)
    table.add_row(f"  {format_instant(first.at_ms)}", f"#{first.cursor}", first.text)
    if left_out:
        table.add_row("", "", f"({left_out} more are in --json)")
    for line in told:
        table.add_row(f"  {format_instant(line.at_ms)}", f"#{line.cursor}", line.text)
    return table


def _standings(job: Job, verdict: Verdict) -> RenderableType:
    used = ">used" if job.allocated else ">unallocated"
    rows = []
    for level in verdict.standings:
        spent = level.charged_gpu_ms + level.committed_gpu_ms
        rows.append(
            (
                f"  {level.budget}",
                _hours(level.charged_gpu_ms),
                _hours(level.committed_gpu_ms),
                _hours(level.entitled_gpu_ms),
                f"{spent / level.entitled_gpu_ms:.4f}" if level.entitled_gpu_ms else "none due",
                _place(level),
            )
        )
    table = table_of(("  its turn, level by level", used, ">+ ahead", ">/ due GPU-h", ">= ratio", ">place"), rows)
    if verdict.ahead_in_leaf is None:
        return table
    return Group(table, Text(f"  {verdict.ahead_in_leaf} of {job.budget} go before it."))


def _place(level: Standing) -> str:
    return f"{level.place} of {level.siblings}"


def _fit(fit: Fit) -> RenderableType:
    where = f"pool {fit.pool}" if fit.pool else "the roomiest pool"
    counts = fit.nodes
    why = {
        "have room": counts.fits,
        "would have room if unallocated work stopped": counts.fits_if_unallocated_work_stops,
        "would have room if work past its protection stopped": counts.takeable,
        "are held by protected work": counts.protected_work,
        "are held by other work": counts.other_allocated_work,
        "are reserved for others": counts.reserved,
        "are kept for short work": counts.headroom,
        "are drained or cordoned": counts.draining,
        "are not healthy": counts.unhealthy,
        "are too small": counts.too_small,
        "are of another pool": counts.other_pool,
    }
    total = sum(why.values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in why.items() if count)
    possible_from_ms = fit.possible_from_ms
    start = (
        "" if possible_from_ms is None else f"; if the order stays, it can start at {format_instant(possible_from_ms)}"
    )
    needed = f"{counted(fit.ranks_needed, 'rank')} of {counted(fit.gpus_per_rank, 'GPU')}"
    return Text(
        f"  room in {where}: {needed} needed; {fit.ranks_free} fit on free GPUs, "
        f"{fit.ranks_if_unallocated_work_stops} if unallocated work stops, "
        f"{fit.ranks_takeable} if all work past its protection does, {fit.ranks_possible} if all were empty"
        f"{start}\n"
        f"  of {total} nodes, {reasons}"
    )


def _misfit(misfit: Misfit) -> RenderableType:
    return Text("\n".join([f"  topology of {misfit.tree}", *(f"  - {line}" for line in in_words(misfit))]))


# --- small things -----------------------------------------------------------------------------------------------------


def table_of(columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    """Return a table without lines, and without the columns that are empty throughout.

    A column whose name begins with ``>`` is set to the right.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    kept = [index for index in range(len(columns)) if not rows or any(row[index] for row in rows)]
    for index in kept:
        name = columns[index]
        table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[index] for index in kept))
    return table


def as_of(answer: AsOf, what: str) -> RenderableType:
    """Return the last line of an answer: what was counted, and the moment it is of."""
    when = (
        f"as of {format_instant(answer.at_ms)}, cursor {answer.cursor}" if answer.cursor >= 0 else "the ledger is empty"
    )
    return Text(f"\n{what}{', ' if what else ''}{when}", "dim")


def _contract(job: Job) -> str:
    return f"allocated {format_duration(job.min_runtime_ms or 0)}" if job.allocated else "unallocated"


def _since(job: Job) -> int | None:
    """Return when the workload came into its phase, as nearly as the job says."""
    match job.phase:
        case Phase.QUEUED | Phase.PLANNED:
            return job.queued_ms
        case Phase.BOUND:
            return job.bound_ms
        case Phase.RUNNING | Phase.STOPPING:
            return job.started_ms if job.started_ms is not None else job.bound_ms
        case _:
            return job.ended_ms


def _protected(job: Job, now_ms: int) -> str:
    until = job.protected_until_ms
    return f"until {_clock(until, now_ms)}" if until is not None and until > now_ms else ""


def _clock(ms: int | None, now_ms: int) -> str:
    """Return a time in UTC; without its date when that is today's."""
    if ms is None:
        return ""
    date, _, time = format_instant(ms).partition("T")
    return time if format_instant(now_ms).startswith(date) else f"{date}T{time}"


def _held(node: Machine) -> str:
    return _some([f"{run.workload} ({run.gpus})" for run in node.held])


def _located(node: Machine) -> str:
    """Return where a node is in the network: its domains, coarse to fine, after the tree where that has a name."""
    domains = "/".join(node.domains)
    return domains if node.tree is None else f"{node.tree}: {domains}"


def _state(node: Machine) -> Text:
    text = Text(node.state.replace("_", " "), _STATE_STYLES[node.state])
    return text.append(f" ({node.reason})") if node.reason else text


def _percent(nano: int) -> str:
    return f"{100 * nano / WHOLE:.4g} %"


def _hours(gpu_ms: int) -> str:
    hours = gpu_hours(gpu_ms)
    return f"{hours:.3f}" if 0 < hours < 10 else f"{hours:,.1f}"


def _ratio(share: Share) -> str:
    return "none due" if share.usage_ratio is None else f"{share.usage_ratio:.4f}"


def _limits(share: Share) -> str:
    """Return what a budget has of what it may have at a time, by class; nothing where it has no limit."""
    classes = (
        ("allocated", share.allocated_slots, share.max_allocated_gpus),
        ("unallocated", share.unallocated_slots, share.max_unallocated_gpus),
    )
    return ", ".join(f"{used} of {most} {name}" for name, used, most in classes if most is not None)


def _limits_explained(answer: Shares) -> str:
    if not any(_limits(share) for share in answer.shares):
        return ""
    return "\nat most = GPUs that its runs have of those they may have at a time, those of its children included."


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def counts_of(counts: dict[str, int] | dict[Phase, int]) -> str:
    """Return how many there are of each."""
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:].removesuffix(".")
