"""Charts of outcomes. What a thing is, its label, dash or pattern says, never its colour alone.

A chart is a matplotlib figure: in a page it is an SVG whose colours are those of the page, light or dark; beside it, a
PNG or SVG file of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND, WHOLE, format_duration
from streamsched.reporting import figures
from streamsched.reporting.runs import ReportedRun
from streamsched.simulation.lives import ALIVE, NEVER
from streamsched.simulation.outcomes import Outcomes, TeamOutcome, is_short, ratio
from streamsched.state.hours import Use

#: Colours with the names that the page gives them: there a theme decides.
_COLOURS: Final = {
    "#1c2733": "ink",
    "#52606e": "quiet",
    "#fefefe": "paper",
    "#2c5f8a": "run-1",
    "#b3541e": "run-2",
    "#2f7d4f": "run-3",
    "#7a4fa3": "run-4",
    "#e0a458": "unallocated",
    "#e9edf1": "free",
    "#d4dae0": "line",
}
_INK, _QUIET, _PAPER, *_RUN_COLOURS, _UNALLOCATED, _FREE, _LINE = _COLOURS
_ALLOCATED = _RUN_COLOURS[0]
#: Runs differ by dash as well as by colour.
_RUN_DASHES: Final = ("-", (0, (5, 2)), "-.", ":")
#: Higher ratios leave the picture: beside a team at ten times its share, nothing else could be told apart.
RATIO_SHOWN_MAX: Final = 2.5
#: Panels in a row where each team has its own, and the most that are drawn.
_PANELS: Final = 3
PANELS_MAX: Final = 24
#: Points of a curve of waits.
_QUANTILES: Final = 200

#: How all pictures look, whatever the reader's own settings of matplotlib are.
STYLE: Final[dict[Any, Any]] = {  # Its keys are a list of literals.
    "font.family": "sans-serif",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _QUIET,
    "axes.titlecolor": _INK,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "hatch.linewidth": 0.8,
    "svg.fonttype": "none",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture.

    Attributes:
        name: For file names and anchors.
        title: Its heading.
        figure: The picture itself.
        description: What a reader who does not see it should know.
    """

    name: str
    title: str
    figure: Figure
    description: str

    def svg(self) -> str:
        """Return one ``<svg>`` element for a page: its ids are its own, and its colours are the page's."""
        out = StringIO()
        with mpl.rc_context({**STYLE, "svg.hashsalt": f"streamsched-{self.name}"}):
            self.figure.savefig(
                out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
            )
        svg = out.getvalue()
        svg = re.sub("|".join(_COLOURS), lambda found: f"var(--{_COLOURS[found[0]]})", svg[svg.index("<svg") :])
        described = f'<svg role="img" aria-label="{escape(self.description, quote=True)}" '
        return svg.replace("<svg ", described, 1)

    def save(self, directory: Path) -> list[Path]:
        """Write it as PNG and SVG files; return them."""
        paths = [directory / f"{self.name}.{suffix}" for suffix in ("png", "svg")]
        with mpl.rc_context({**STYLE, "svg.hashsalt": f"streamsched-{self.name}"}):
            self.figure.savefig(paths[0], dpi=150, facecolor="white", metadata={"Software": None})
            self.figure.savefig(paths[1], facecolor="white", metadata={"Date": None})
        return paths


def charts(runs: Sequence[ReportedRun]) -> Iterator[Chart]:
    """Return the pictures of a report, in its order: those of each run, and those that show all runs together."""
    for number, run in enumerate(runs):
        yield occupancy_chart(run, number if len(runs) > 1 else None)
    for draw in (delivery_chart, usage_chart, ratio_chart, wait_chart, fragmentation_chart):
        yield draw(runs)


def _drawn(draw: Callable[..., Chart]) -> Callable[..., Chart]:
    """Let a chart be drawn in our style, whatever the reader's own settings of matplotlib are."""

    def styled(*arguments: object) -> Chart:
        with mpl.rc_context({**mpl.rcParamsDefault, "backend": mpl.rcParams["backend"], **STYLE}):
            return draw(*arguments)

    return styled


@_drawn
def occupancy_chart(run: ReportedRun, number: int | None = None) -> Chart:
    """Return who held the GPUs of a run, hour by hour: allocated, unallocated, free; up to what was schedulable."""
    outcomes = run.outcomes
    times, (allocated, unallocated, capacity) = _by_hour(
        outcomes,
        outcomes.cluster,
        lambda use: use.allocated_gpu_ms,
        lambda use: use.unallocated_gpu_ms,
        lambda use: use.quota_gpu_ms,
    )
    free = [max(0.0, all_ - a - u) for all_, a, u in zip(capacity, allocated, unallocated, strict=True)]
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axes = figure.subplots()
    areas = axes.stackplot(
        times,
        allocated,
        unallocated,
        free,
        labels=("allocated: charged and protected", "unallocated: free of charge, may be displaced", "free"),
        colors=(_ALLOCATED, _UNALLOCATED, _FREE),
        step="post",
        linewidth=0,
    )
    areas[1].set(hatch="////", edgecolor=_PAPER)
    areas[2].set(hatch="..", edgecolor=_LINE)
    axes.set(ylabel="GPUs held (mean of the hour)", xlabel="time, UTC", ylim=(0, max(capacity, default=1) * 1.02))
    time_axis(axes)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
    share = figures.percent(outcomes.occupancy)
    return Chart(
        "occupancy" if number is None else f"occupancy-{number + 1}",
        f"Who held the GPUs{'' if number is None else f': {run.name}'}",
        figure,
        f"Stacked areas of allocated, unallocated and free GPUs by hour; {share} were held.",
    )


@_drawn
def delivery_chart(runs: Sequence[ReportedRun]) -> Chart:
    """Return what each team was due and what of it was delivered, hour by hour: two bars for each run."""
    names = _teams(runs, lambda team: team.by_hour.due_gpu_ms)[::-1]
    count = len(runs)
    figure = Figure(figsize=(11, 1.0 + max(1, len(names)) * (0.3 + 0.16 * count)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / count
    for number, run in enumerate(runs):
        teams = {team.budget: team for team in run.outcomes.teams}
        rows, due, strict, scores = [], [], [], []
        for row, name in enumerate(names):
            if name in teams:
                delivery = teams[name].by_hour
                rows.append(row + 0.4 - height * (number + 0.5))
                due.append(delivery.due_gpu_ms / HOUR)
                strict.append(delivery.strict_gpu_ms / HOUR)
                scores.append(figures.percent(ratio(delivery.strict_gpu_ms, delivery.due_gpu_ms)))
        axes.barh(rows, due, height=height * 0.92, color=_PAPER, edgecolor=_INK, linewidth=0.8, label=None)
        colour = _RUN_COLOURS[number % len(_RUN_COLOURS)]
        axes.barh(rows, strict, height=height * 0.55, color=colour, label=run.name)
        for at, end, score in zip(rows, due, scores, strict=True):
            which = f" {number + 1}:" if count > 1 else ""
            axes.annotate(f"{which} {score}", (end, at), va="center", fontsize=9 if count < 3 else 7)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="GPU-hours; frame: due, bar: of that delivered in the hour in which it was due")
    axes.margins(x=0.09, y=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    if count > 1:
        handles, labels = axes.get_legend_handles_labels()
        labels = [f"{number}: {label}" for number, label in enumerate(labels, 1)]
        axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=count, frameon=False)
    return Chart(
        "delivery",
        "What each team was due, and got",
        figure,
        "For each team and run a frame of what was due, and inside it a bar of what was delivered in its hour.",
    )


@_drawn
def usage_chart(runs: Sequence[ReportedRun]) -> Chart:
    """Return the allocated GPUs of each team over time against its quota, one panel for each."""
    names = _teams(runs, lambda team: team.use.demand_gpu_ms + team.use.unallocated_gpu_ms)[:PANELS_MAX]
    figure, panels = _grid(len(names))
    for panel, name in zip(panels, names, strict=False):
        quota_nano = 0
        for number, run in enumerate(runs):
            team = next((team for team in run.outcomes.teams if team.budget == name), None)
            if team is None:
                continue
            quota_nano = quota_nano or team.quota_nano
            times, (held, worth) = _by_hour(
                run.outcomes, team, lambda use: use.allocated_gpu_ms, lambda use: use.quota_gpu_ms
            )
            if len(runs) == 1:
                panel.fill_between(times, held, step="post", color=_ALLOCATED, alpha=0.25, linewidth=0)
            panel.step(times, held, where="post", **_line(number), linewidth=1.1, label=run.name)
            if number == 0:
                panel.step(times, worth, where="post", color=_INK, linewidth=1.4, linestyle=(0, (1, 1)), label="quota")
        panel.set_title(f"{name}, quota {figures.quota(quota_nano)}", fontsize=9, loc="left")
        panel.set_ylim(bottom=0)
        time_axis(panel)
        panel.tick_params(labelsize=8)
    figure.supylabel("allocated GPUs, mean of the hour", fontsize=9)
    _legend(figure, panels)
    return Chart(
        "usage",
        "What each team held, against its quota",
        figure,
        "One panel for each team: its allocated GPUs hour by hour, one line for each run, and a dotted line at its "
        "quota.",
    )


@_drawn
def ratio_chart(runs: Sequence[ReportedRun]) -> Chart:
    """Return the usage ratio of each team over time, one panel for each; above 1 a team has had more than its share."""
    names = _teams(runs, lambda team: team.use.demand_gpu_ms)[:PANELS_MAX]
    figure, panels = _grid(len(names), sharey=True)
    highest = 1.0
    for panel, name in zip(panels, names, strict=False):
        panel.axhline(1, color=_INK, linewidth=1.2, linestyle=(0, (1, 1)), label="its share")
        beyond = 0.0
        for number, run in enumerate(runs):
            series = run.outcomes.ratios.get(name)
            if series is None:
                continue
            points = [
                (at_ms, used / entitled)
                for at_ms, used, entitled in zip(series.at_ms, series.used_gpu_ms, series.entitled_gpu_ms, strict=True)
                if entitled
            ]
            ratios = [value for _, value in points]
            highest, beyond = max([highest, *ratios]), max([beyond, *ratios])
            times = [time_of(at_ms) for at_ms, _ in points]
            panel.plot(times, ratios, **_line(number), linewidth=1.2, label=run.name)
            cut = [(at, RATIO_SHOWN_MAX) for at, value in zip(times, ratios, strict=True) if value > RATIO_SHOWN_MAX]
            if cut:
                colour = _RUN_COLOURS[number % len(_RUN_COLOURS)]
                panel.plot(*zip(*cut, strict=True), "^", color=colour, markersize=4, clip_on=False, linestyle="none")
        title = f"{name}, quota {figures.quota(_quota(runs, name))}"
        if beyond > RATIO_SHOWN_MAX:
            title += f"  ▲ beyond this: up to {beyond * 100:,.0f} %"
        panel.set_title(title, fontsize=9, loc="left")
        panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        time_axis(panel)
        panel.tick_params(labelsize=8)
    panels[0].set_ylim(0, min(highest * 1.05, RATIO_SHOWN_MAX))
    figure.supylabel("used and committed, of what is due over the window", fontsize=9)
    _legend(figure, panels)
    return Chart(
        "ratios",
        "Who had how much of a share",
        figure,
        "One panel for each team: its usage ratio over time, one line for each run, with a dotted line at 100 percent. "
        f"What is above {RATIO_SHOWN_MAX:.0%} is marked by triangles at the edge.",
    )


@_drawn
def wait_chart(runs: Sequence[ReportedRun]) -> Chart:
    """Return how many of the workloads had started after how long: one panel for each kind, one curve for each run."""
    kinds: Sequence[tuple[str, Callable[[int, int], bool]]] = (
        ("short work", is_short),
        ("allocated work", lambda _gpus, min_ms: min_ms > 0),
        ("over 64 GPUs, allocated", lambda gpus, min_ms: gpus > 64 and min_ms > 0),
        ("unallocated work", lambda _gpus, min_ms: min_ms == 0),
    )
    shown = [(title, belongs) for title, belongs in kinds if any(_waits_of(run, belongs)[1] for run in runs)]
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    panels: Sequence[Axes] = list(figure.subplots(1, max(1, len(shown)), sharey=True, squeeze=False).flat)
    for panel, (title, belongs) in zip(panels, shown, strict=False):
        for number, run in enumerate(runs):
            waits, count = _waits_of(run, belongs)
            if not waits:
                continue
            steps = min(_QUANTILES, len(waits))
            ranks = [len(waits) * step // steps for step in range(1, steps + 1)]
            seconds = [max(1.0, waits[rank - 1] / SECOND) for rank in ranks]
            panel.step(
                [1.0, *seconds], [0.0, *(rank / count for rank in ranks)], where="post", **_line(number), label=run.name
            )
        panel.set_title(title, fontsize=9, loc="left")
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(FixedLocator([tick / SECOND for tick in _WAIT_TICKS]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_duration(round(value * SECOND))))
        panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        panel.set(xlim=(1, 7 * DAY / SECOND), ylim=(0, 1.02))
        panel.grid(color=_LINE, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
    figure.supxlabel("wait from submission to the first start; less than a second is shown as one", fontsize=9)
    figure.supylabel("started, of all submitted", fontsize=9)
    _legend(figure, panels)
    return Chart(
        "waits",
        "How long work waited",
        figure,
        "Curves of the share of workloads that had started after a wait, one panel for each kind of work.",
    )


@_drawn
def fragmentation_chart(runs: Sequence[ReportedRun]) -> Chart:
    """Return the GPUs that allocated work could take at once, and the largest gang of whole nodes that they hold."""
    figure = Figure(figsize=(11, 0.6 + 2.3 * len(runs)), layout="constrained")
    panels: Sequence[Axes] = list(figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False).flat)
    for panel, run in zip(panels, runs, strict=True):
        samples = run.outcomes.fragmentation
        times = [time_of(sample.at_ms) for sample in samples]
        panel.fill_between(
            times,
            [sample.reclaimable_gpus for sample in samples],
            step="post",
            facecolor=_UNALLOCATED,
            edgecolor=_PAPER,
            hatch="////",
            linewidth=0,
            label="free, or held by unallocated work",
        )
        panel.fill_between(
            times, [sample.free_gpus for sample in samples], step="post", color=_QUIET, linewidth=0, label="free"
        )
        panel.step(
            times,
            [sample.largest_reclaimable_gpus for sample in samples],
            where="post",
            color=_INK,
            linewidth=1.3,
            label="largest gang of whole nodes that fits on both",
        )
        if len(runs) > 1:
            panel.set_title(run.name, fontsize=9, loc="left")
        panel.set(ylabel="GPUs")
        panel.set_ylim(bottom=0)
        time_axis(panel)
    panels[-1].set_xlabel("time, UTC; sampled after the first proposal of each hour")
    _legend(figure, panels)
    return Chart(
        "fragmentation",
        "How far free GPUs lie scattered",
        figure,
        "Areas of the GPUs that are free or held by unallocated work, by hour, and a line of the largest gang of whole "
        "nodes that could start on them.",
    )


_WAIT_TICKS: Final = (SECOND, 10 * SECOND, MINUTE, 10 * MINUTE, HOUR, 10 * HOUR, 4 * DAY)


def _line(number: int) -> dict[str, Any]:
    return {
        "color": _RUN_COLOURS[number % len(_RUN_COLOURS)],
        "linestyle": _RUN_DASHES[number % len(_RUN_DASHES)],
    }


def _waits_of(run: ReportedRun, belongs: Callable[[int, int], bool]) -> tuple[list[int], int]:
    """Return the sorted waits of the workloads of a kind, and how many have started or wait."""
    outcomes = run.outcomes
    table = outcomes.workloads
    rows = [
        row
        for row, submitted_ms in enumerate(table.submitted_ms)
        if submitted_ms >= outcomes.since_ms and belongs(table.gpus[row], table.min_runtime_ms[row])
    ]
    waits = [table.started_ms[row] - table.submitted_ms[row] for row in rows if table.started_ms[row] != NEVER]
    waiting = sum(table.started_ms[row] == NEVER and table.phase[row] == ALIVE for row in rows)
    return sorted(waits), len(waits) + waiting


def _teams(runs: Sequence[ReportedRun], weight: Callable[[TeamOutcome], int]) -> list[str]:
    """Return the teams that have any of something in any run, by their quota and then their name."""
    weighed = {team.budget: -team.quota_nano for run in runs for team in run.outcomes.teams if weight(team)}
    return sorted(weighed, key=lambda name: (weighed[name], name))


def _quota(runs: Sequence[ReportedRun], name: str) -> int:
    return next((team.quota_nano for run in runs for team in run.outcomes.teams if team.budget == name), WHOLE)


def _by_hour(
    outcomes: Outcomes, team: TeamOutcome, *amounts: Callable[[Use], int]
) -> tuple[list[float], list[list[float]]]:
    """Return GPU-times by hour as mean GPUs, to be drawn as steps: the last value stands twice, at its hour's end too.

    The last hour may not be whole: what it holds is shown over the time that it covers.
    """
    hours = [(hour_ms, use) for hour_ms, use in team.hours.items() if hour_ms < outcomes.until_ms]
    if not hours:
        return [], [[] for _ in amounts]
    times = [time_of(hour_ms) for hour_ms, _ in hours]
    means = [[amount(use) / min(HOUR, outcomes.until_ms - hour_ms) for hour_ms, use in hours] for amount in amounts]
    return [*times, time_of(outcomes.until_ms)], [[*values, values[-1]] for values in means]


def _grid(count: int, *, sharey: bool = False) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with a panel for each team; those that are left over are hidden."""
    rows = max(1, -(-count // _PANELS))
    figure = Figure(figsize=(11, 1.75 * rows + 0.7), layout="constrained")
    panels: Sequence[Axes] = list(figure.subplots(rows, _PANELS, sharex=True, sharey=sharey, squeeze=False).flat)
    for panel in panels[count:]:
        panel.set_visible(False)
    figure.supxlabel("time, UTC", fontsize=9)
    return figure, panels


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Name every line that any panel has, once, above all of them."""
    named: dict[str, Artist] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if named:
        figure.legend(list(named.values()), list(named), loc="outside upper left", ncols=4, frameon=False, fontsize=9)


def time_of(ms: int) -> float:
    """Return a moment as matplotlib counts it: days since 1970 UTC."""
    return ms / DAY


def time_axis(axes: Axes) -> None:
    """Label the x axis as moments in UTC."""
    # With more than three ticks at least, it knows no interval for some spans: for four days by the hour.
    locator = AutoDateLocator(minticks=3, maxticks=8, tz=UTC)  # type: ignore[no-untyped-call]  # It has no types.
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]  # Nor has it.
    axes.margins(x=0)
    axes.spines[["top", "right"]].set_visible(False)
