"""Charts as SVG that stands in a page by itself. What a thing is, its label or pattern says, never its colour alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from html import escape
from io import StringIO

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from streamsched.model.quantities import DAY, HOUR
from streamsched.reporting import figures
from streamsched.simulation.outcomes import Outcomes, ratio

_ALLOCATED, _UNALLOCATED, _FREE = "#2c5f8a", "#e0a458", "#eef1f4"
_INK, _QUIET = "#1c2733", "#7b8794"
#: Higher ratios leave the picture: beside a team at ten times its share, nothing else could be told apart.
_RATIO_SHOWN_MAX = 2.5
#: Panels in a row where each team has its own.
_PANELS = 4


def occupancy_chart(outcomes: Outcomes) -> str:
    """Return who held the GPUs, hour by hour: allocated, unallocated and free, stacked up to what was schedulable."""
    hours = outcomes.cluster.hours
    times = [_time(hour_ms) for hour_ms in hours]
    # The last hour may not be whole: what it holds is shown over the time that it covers.
    spans = [min(HOUR, outcomes.until_ms - hour_ms) or HOUR for hour_ms in hours]
    allocated = [use.allocated_gpu_ms / span for use, span in zip(hours.values(), spans, strict=True)]
    unallocated = [use.unallocated_gpu_ms / span for use, span in zip(hours.values(), spans, strict=True)]
    capacity = [use.quota_gpu_ms / span for use, span in zip(hours.values(), spans, strict=True)]
    free = [max(0.0, all_ - a - u) for all_, a, u in zip(capacity, allocated, unallocated, strict=True)]

    figure = Figure(figsize=(11, 3.6), layout="constrained")
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
    areas[1].set(hatch="////", edgecolor="#ffffff")
    axes.set(ylabel="GPUs held (mean of the hour)", xlabel="time, UTC", ylim=(0, max(capacity, default=1) * 1.02))
    _time_axis(axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3, frameon=False)
    share = figures.percent(outcomes.occupancy)
    return _svg(
        figure, "occupancy", f"Stacked areas of allocated, unallocated and free GPUs by hour; {share} were held."
    )


def delivery_chart(outcomes: Outcomes) -> str:
    """Return what each team was due and what of it was delivered, hour by hour, as two bars."""
    teams = [team for team in outcomes.teams if team.by_hour.due_gpu_ms][::-1]
    rows = range(len(teams))
    figure = Figure(figsize=(11, 0.8 + 0.42 * max(1, len(teams))), layout="constrained")
    axes = figure.subplots()
    due = [team.by_hour.due_gpu_ms / HOUR for team in teams]
    strict = [team.by_hour.strict_gpu_ms / HOUR for team in teams]
    axes.barh(rows, due, height=0.78, color="#ffffff", edgecolor=_INK, label="due")
    axes.barh(rows, strict, height=0.44, color=_ALLOCATED, label="delivered in the hour in which it was due")
    for row, team in zip(rows, teams, strict=True):
        share = figures.percent(ratio(team.by_hour.strict_gpu_ms, team.by_hour.due_gpu_ms))
        axes.annotate(f" {share}", (due[row], row), va="center", fontsize=9, color=_INK)
    axes.set_yticks(list(rows), [team.budget for team in teams])
    axes.set(xlabel="GPU-hours", ylabel="team")
    axes.margins(x=0.09)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    return _svg(figure, "delivery", "For each team a bar of what was due and inside it a bar of what was delivered.")


def ratio_chart(outcomes: Outcomes) -> str:
    """Return the usage ratio of each team over time, one panel for each; above 1 a team has had more than its share."""
    teams = [team for team in outcomes.teams if team.use.demand_gpu_ms and outcomes.ratios.get(team.budget)]
    rows = max(1, -(-len(teams) // _PANELS))
    figure = Figure(figsize=(11, 1.75 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, _PANELS, sharex=True, sharey=True, squeeze=False)
    panels: Sequence[Axes] = list(grid.flat)
    for panel in panels[len(teams) :]:
        panel.set_visible(False)
    highest = 1.0
    for panel, team in zip(panels, teams, strict=False):
        samples = [sample for sample in outcomes.ratios[team.budget] if sample.entitled_gpu_ms]
        ratios = [sample.used_gpu_ms / sample.entitled_gpu_ms for sample in samples]
        highest = max(highest, *ratios)
        panel.axhline(1, color=_QUIET, linewidth=1, linestyle="--")
        panel.plot([_time(sample.at_ms) for sample in samples], ratios, color=_ALLOCATED)
        panel.set_title(f"{team.budget}, quota {figures.quota(team.quota_nano)}", fontsize=9, loc="left")
        panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        _time_axis(panel)
        panel.tick_params(labelsize=8)
    panels[0].set_ylim(0, min(highest * 1.05, _RATIO_SHOWN_MAX))
    figure.supylabel("used and committed, of what is due over the window", fontsize=9)
    figure.supxlabel("time, UTC", fontsize=9)
    return _svg(
        figure,
        "ratios",
        "One panel for each team: its usage ratio over time, with a dashed line at 100 percent.",
    )


def _time(ms: int) -> float:
    """Return a moment as matplotlib counts it: days since 1970 UTC."""
    return ms / DAY


def _time_axis(axes: Axes) -> None:
    locator = AutoDateLocator(maxticks=8, tz=UTC)  # type: ignore[no-untyped-call]  # It has no types.
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]  # Nor has it.
    axes.margins(x=0)
    axes.spines[["top", "right"]].set_visible(False)


def _svg(figure: Figure, name: str, description: str) -> str:
    """Return the figure as one ``<svg>`` element whose ids are its own, so that several stand in one page."""
    out = StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"streamsched-{name}", "font.family": "sans-serif"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(description, quote=True)}" ', 1)
