"""One HTML file that shows what a stretch of scheduling came to. It loads nothing and works offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from streamsched import __version__
from streamsched.model.quantities import format_instant
from streamsched.reporting import figures
from streamsched.reporting.charts import delivery_chart, occupancy_chart, ratio_chart
from streamsched.simulation.outcomes import Outcomes, TeamOutcome, Waits, ratio


@dataclass(frozen=True, slots=True)
class ReportText:
    """What a report says beside its numbers.

    Attributes:
        title: Its heading.
        cluster: What it ran on, such as "40 nodes of 8 GPUs".
        origin: Where the demand comes from, its owner and licence; a paragraph each.
        commands: How to see it again, one line each.
    """

    title: str
    cluster: str
    origin: Sequence[str]
    commands: Sequence[str]


def write_report(path: Path, outcomes: Outcomes, text: ReportText) -> None:
    """Write the report, in place of one that is there.

    Raises:
        OSError: The file cannot be written.
    """
    path.write_text(render_report(outcomes, text), encoding="utf-8")


def render_report(outcomes: Outcomes, text: ReportText) -> str:
    """Return the report as HTML. Equal outcomes give equal pages."""
    environment = Environment(
        loader=PackageLoader("streamsched.reporting", "."),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html.j2").render(
        version=__version__,
        title=text.title,
        cluster=text.cluster,
        origin=text.origin,
        commands=text.commands,
        outcomes=outcomes,
        since=format_instant(outcomes.since_ms),
        until=format_instant(outcomes.until_ms),
        span=figures.days(outcomes.until_ms - outcomes.since_ms),
        headline=headline(outcomes),
        teams=[team_row(team) for team in outcomes.teams if has_anything(team)],
        total=team_row(outcomes.cluster, "whole cluster"),
        waits=wait_rows(outcomes),
        waiting=waiting_line(outcomes),
        # Not escaped: matplotlib has escaped the text in its charts.
        occupancy_svg=Markup(occupancy_chart(outcomes)),
        delivery_svg=Markup(delivery_chart(outcomes)),
        ratio_svg=Markup(ratio_chart(outcomes)),
    )


def headline(outcomes: Outcomes) -> list[tuple[str, str]]:
    """Return the figures that come first, with their names."""
    preemptions = outcomes.preemptions_per_1000_gpu_hours
    return [
        ("occupancy", figures.percent(outcomes.occupancy)),
        ("due time delivered in its hour", figures.percent(outcomes.strict_by_hour)),
        ("on its day", figures.percent(outcomes.strict_by_day)),
        ("at any time", figures.percent(outcomes.capped)),
        ("demand over capacity", figures.percent(outcomes.demand_to_capacity, 0)),
        ("unallocated, of held time", figures.percent(outcomes.unallocated_share)),
        ("median wait of short work", figures.wait(outcomes.waits_by_class["short"].p50_ms)),
        ("preemptions per 1000 GPU-h", figures.NONE if preemptions is None else f"{float(preemptions):.1f}"),
    ]


def has_anything(team: TeamOutcome) -> bool:
    """Whether a team asked for anything: one that did not has nothing to show."""
    return bool(team.use.demand_gpu_ms or team.use.unallocated_gpu_ms or team.waits.count)


def team_row(team: TeamOutcome, name: str | None = None) -> list[str]:
    """Return a team's line of the table of due and delivered time; see the head of the table in the template."""
    return [
        name or team.budget,
        figures.quota(team.quota_nano),
        figures.gpu_hours(team.by_hour.due_gpu_ms),
        figures.gpu_hours(team.by_hour.delivered_gpu_ms),
        figures.percent(ratio(team.by_hour.strict_gpu_ms, team.by_hour.due_gpu_ms)),
        figures.percent(ratio(team.by_day.strict_gpu_ms, team.by_day.due_gpu_ms)),
        figures.gpu_hours(team.use.unallocated_gpu_ms),
        f"{team.waits.count:,}",
        figures.wait(team.waits.p50_ms),
        figures.wait(team.waits.p90_ms),
    ]


def wait_rows(outcomes: Outcomes) -> list[list[str]]:
    """Return the lines of the table of waits: by class, then by gang size."""
    groups = [*outcomes.waits_by_class.items(), *outcomes.waits_by_size.items()]
    return [_wait_row(name, waits) for name, waits in groups if waits.count]


def waiting_line(outcomes: Outcomes) -> str:
    """Return what is to be said of those that have no wait yet."""
    if outcomes.longest_waiting_ms is None:
        return "Everything that was submitted has started."
    return (
        f"{outcomes.waiting:,} have not started by the end and are not counted here; "
        f"the first of them has waited for {figures.wait(outcomes.longest_waiting_ms)}."
    )


def _wait_row(name: str, waits: Waits) -> list[str]:
    shown = (figures.wait(ms) for ms in (waits.p50_ms, waits.p90_ms, waits.p99_ms, waits.max_ms))
    return [name, f"{waits.count:,}", *shown]
