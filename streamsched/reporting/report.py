"""One HTML file that shows what one or several runs came to. It loads nothing and works offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from streamsched import __version__
from streamsched.model.quantities import format_instant
from streamsched.reporting import figures
from streamsched.reporting.charts import PANELS_MAX, charts
from streamsched.reporting.gantt import gantt_data
from streamsched.reporting.measures import HEADLINE, compared_rows, compared_teams
from streamsched.reporting.runs import ReportedRun
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
    cluster: str = ""
    origin: Sequence[str] = ()
    commands: Sequence[str] = ()


_PLAIN: Final = ReportText("What the scheduling came to")


def write_report(path: Path, runs: Sequence[ReportedRun], text: ReportText = _PLAIN) -> None:
    """Write the report of one run, or of several beside the first, in place of one that is there.

    Raises:
        ValueError: There is no run, or two have one name.
        OSError: The file cannot be written.
    """
    path.write_text(render_report(runs, text), encoding="utf-8")


def render_report(runs: Sequence[ReportedRun], text: ReportText = _PLAIN) -> str:
    """Return the report as HTML. Equal runs give equal pages.

    Raises:
        ValueError: There is no run, or two have one name.
    """
    names = [run.name for run in runs]
    if not runs or len(set(names)) < len(names):
        raise ValueError(f"a report is of one run or more, with different names; these are {names}")
    environment = Environment(
        loader=PackageLoader("streamsched.reporting", "."),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    # Not escaped: matplotlib has escaped the text in its charts.
    svg = {chart.name: Markup(chart.svg()) for chart in charts(runs)}
    outcomes = [run.outcomes for run in runs]
    several = len(runs) > 1
    teams = len({team.budget for run in outcomes for team in run.teams if has_anything(team)})
    return environment.get_template("report.html.j2").render(
        version=__version__,
        title=text.title,
        cluster=text.cluster,
        origin=text.origin,
        commands=text.commands,
        compared=compared_rows(outcomes) if several else (),
        compared_teams=compared_teams(outcomes) if several else (),
        runs=[
            {
                **_run(run),
                "occupancy_svg": svg[f"occupancy-{number}" if several else "occupancy"],
            }
            for number, run in enumerate(runs, 1)
        ],
        svg=svg,
        panels_max=PANELS_MAX,
        left_out=max(0, teams - PANELS_MAX),
        gantt_data=gantt_data(runs),
        gantt_script=Markup(files("streamsched.reporting").joinpath("gantt.js").read_text(encoding="utf-8")),
    )


def _run(run: ReportedRun) -> dict[str, Any]:
    """Return what the template shows of a run by itself."""
    outcomes = run.outcomes
    return {
        "name": run.name,
        "outcomes": outcomes,
        "seating": run.seating,
        "since": format_instant(outcomes.since_ms),
        "until": format_instant(outcomes.until_ms),
        "span": figures.days(outcomes.until_ms - outcomes.since_ms),
        "headline": headline(outcomes),
        "teams": [team_row(team) for team in outcomes.teams if has_anything(team)],
        "total": team_row(outcomes.cluster, "whole cluster"),
        "waits": wait_rows(outcomes),
        "waiting": waiting_line(outcomes),
        "disruption": disruption_rows(outcomes),
        "taken_by": taken_by(outcomes),
    }


def headline(outcomes: Outcomes) -> list[tuple[str, str]]:
    """Return the figures that come first, with their names."""
    return [(measure.name, measure.unit.show(measure.of(outcomes))) for measure in HEADLINE]


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
        figures.percent(ratio(team.by_hour.capped_gpu_ms, team.by_hour.due_gpu_ms)),
        figures.gpu_hours(team.use.unallocated_gpu_ms),
        f"{team.waits.count:,}",
        figures.wait(team.waits.p50_ms),
        figures.wait(team.waits.p90_ms),
    ]


def wait_rows(outcomes: Outcomes) -> list[list[str]]:
    """Return the lines of the table of waits: by class, then by gang size, then of reservations."""
    groups = [*outcomes.waits_by_class.items(), *outcomes.waits_by_size.items()]
    groups.append(("from a reservation to the start", outcomes.reservation_waits))
    return [_wait_row(name, waits) for name, waits in groups if waits.count]


def waiting_line(outcomes: Outcomes) -> str:
    """Return what is to be said of those that have no wait yet."""
    if outcomes.longest_waiting_ms is None:
        return "Everything that was submitted has started."
    return (
        f"{outcomes.waiting:,} have not started by the end and are not counted here; "
        f"the first of them has waited for {figures.wait(outcomes.longest_waiting_ms)}."
    )


def disruption_rows(outcomes: Outcomes) -> list[tuple[str, str]]:
    """Return what preemption and the failure of nodes came to."""
    slowdown = outcomes.slowdowns_by_class["allocated"]
    rows = [
        ("allocated runs preempted", f"{outcomes.preempted_allocated:,}"),
        ("unallocated runs preempted", f"{outcomes.preempted_unallocated:,}"),
        ("swap-backs: taken back from whom it was taken", f"{outcomes.swap_backs:,}"),
        ("GPUs stopped for each GPU needed", figures.number(outcomes.evicted_for_claimed, 2)),
        ("lost to preemption, GPU-hours", figures.gpu_hours(outcomes.lost_to_preemption_gpu_ms)),
        ("lost with nodes, GPU-hours", figures.gpu_hours(outcomes.lost_to_nodes_gpu_ms)),
        ("lost, of held time", figures.percent(outcomes.lost_share, 2)),
        ("availability: nodes that took work", figures.percent(outcomes.availability)),
        ("reservations that came to nothing", f"{outcomes.reservations_given_up:,}"),
    ]
    if slowdown.p50_milli is not None and slowdown.p90_milli is not None:
        shown = f"{slowdown.p50_milli / 1_000:,.2f}, {slowdown.p90_milli / 1_000:,.2f}"
        rows.append(("bounded slowdown of allocated work, median and p90", shown))
    return rows


def taken_by(outcomes: Outcomes) -> tuple[list[str], list[list[str]]] | None:
    """Return the table of who took from whom: its columns and its rows; None where nobody did."""
    if not outcomes.taken_by:
        return None
    victims = sorted({victim for _, victim in outcomes.taken_by})
    claimants = sorted({claimant for claimant, _ in outcomes.taken_by})
    rows = [
        [claimant, *(f"{outcomes.taken_by.get((claimant, victim), 0) or ''}" for victim in victims)]
        for claimant in claimants
    ]
    return victims, rows


def _wait_row(name: str, waits: Waits) -> list[str]:
    shown = (figures.wait(ms) for ms in (waits.p50_ms, waits.p90_ms, waits.p99_ms, waits.max_ms))
    return [name, f"{waits.count:,}", *shown]
