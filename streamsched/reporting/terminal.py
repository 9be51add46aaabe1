"""The same outcomes on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from streamsched.reporting.report import has_anything, headline, team_row, wait_rows, waiting_line
from streamsched.simulation.outcomes import Outcomes


def outcome_tables(outcomes: Outcomes) -> RenderableType:
    """Return the headline, the waits and the teams as tables."""
    return Group(
        _headline(outcomes),
        Text(),
        _waits(outcomes),
        Text(waiting_line(outcomes), style="dim"),
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
    rows = [team_row(team) for team in outcomes.teams if has_anything(team)]
    table = _table("GPU-hours due and delivered, by team", names, rows)
    table.add_section()
    table.add_row(*team_row(outcomes.cluster, "all"), style="bold")
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
