"""The same outcomes on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from streamsched.reporting.measures import ComparedRow, Verdict, compared_rows, compared_teams
from streamsched.reporting.report import (
    disruption_rows,
    has_anything,
    headline,
    team_row,
    wait_rows,
    waiting_line,
)
from streamsched.reporting.runs import ReportedRun
from streamsched.simulation.outcomes import Outcomes


def outcome_tables(outcomes: Outcomes) -> RenderableType:
    """Return the headline, the waits and the teams as tables."""
    return Group(
        _headline(outcomes),
        Text(),
        _waits(outcomes),
        Text(waiting_line(outcomes), style="dim"),
        Text(),
        _disruption(outcomes),
        Text(),
        _teams(outcomes),
        Text("got: allocated time; in hour, on day: of what was due, delivered in its hour or on its day", style="dim"),
    )


def _headline(outcomes: Outcomes) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in headline(outcomes):
        table.add_row(Text(name, style="dim"), Text(value, style="bold"))
    return table


def _waits(outcomes: Outcomes) -> Table:
    table = _table("waits", ("work", "started", "median", "p90", "p99", "longest"), wait_rows(outcomes))
    return table


def _teams(outcomes: Outcomes) -> Table:
    names = ("team", "quota", "due", "got", "in hour", "on day", "unalloc", "started", "median", "p90")
    rows = [_narrow(team_row(team)) for team in outcomes.teams if has_anything(team)]
    table = _table("GPU-hours due and delivered, by team", names, rows)
    table.add_section()
    table.add_row(*_narrow(team_row(outcomes.cluster, "all")), style="bold")
    return table


def _narrow(row: Sequence[str]) -> list[str]:
    """Leave out the capped score, so that a line fits on 80 columns: over a week it is near 100 % for anybody."""
    return [*row[:6], *row[7:]]


def _disruption(outcomes: Outcomes) -> Table:
    return _table("preemptions and losses", ("", ""), disruption_rows(outcomes))


def comparison_tables(runs: Sequence[ReportedRun]) -> RenderableType:
    """Return how runs differ from the first of them, by all measures and team by team."""
    outcomes = [run.outcomes for run in runs]
    return Group(
        _compared("measure", compared_rows(outcomes), runs),
        Text(),
        _compared("due, delivered in its hour", compared_teams(outcomes), runs),
    )


_STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.OTHER: "", Verdict.SAME: "dim"}


def _compared(what: str, rows: Sequence[ComparedRow], runs: Sequence[ReportedRun]) -> Table:
    table = _table("", (what, runs[0].name), ())
    for run in runs[1:]:
        table.add_column(run.name, justify="right", no_wrap=True)
        table.add_column("difference", justify="right", no_wrap=True)
    for row in rows:
        cells: list[str | Text] = [row.name, row.baseline]
        for value, difference in row.others:
            said = f"{difference.text} {difference.mark}".strip()
            cells += [value, Text(said, style=_STYLES[difference.verdict])]
        table.add_row(*cells)
    return table


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
