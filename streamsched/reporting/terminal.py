"""The same outcomes on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
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


def _waits(outcomes: Outcomes) -> RenderableType:
    return _Columns("waits", ("work", "started", "median", "p90", "p99", "longest"), wait_rows(outcomes))


def _teams(outcomes: Outcomes) -> RenderableType:
    names = ("team", "quota", "due", "got", "in hour", "on day", "unalloc", "started", "median", "p90")
    rows = [_narrow(team_row(team)) for team in outcomes.teams if has_anything(team)]
    total = _narrow(team_row(outcomes.cluster, "all"))
    return _Columns("GPU-hours due and delivered, by team", names, rows, total)


def _narrow(row: Sequence[str]) -> list[str]:
    """Leave out the capped score, so that a line fits on 80 columns: over a week it is near 100 % for anybody."""
    return [*row[:6], *row[7:]]


def _disruption(outcomes: Outcomes) -> RenderableType:
    return _Columns("preemptions and losses", ("", ""), disruption_rows(outcomes))


def comparison_tables(runs: Sequence[ReportedRun]) -> RenderableType:
    """Return how runs differ from the first of them, by all measures and team by team."""
    outcomes = [run.outcomes for run in runs]
    return Group(
        _compared("measure", compared_rows(outcomes), runs),
        Text(),
        _compared("due, delivered in its hour", compared_teams(outcomes), runs),
    )


_STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.OTHER: "", Verdict.SAME: "dim"}


def _compared(what: str, rows: Sequence[ComparedRow], runs: Sequence[ReportedRun]) -> RenderableType:
    names = [what, runs[0].name]
    for run in runs[1:]:
        names += [run.name, "difference"]
    lines = []
    for row in rows:
        cells: list[str | Text] = [row.name, row.baseline]
        for value, difference in row.others:
            said = f"{difference.text} {difference.mark}".strip()
            cells += [value, Text(said, style=_STYLES[difference.verdict])]
        lines.append(cells)
    return _Columns("", names, lines)


@dataclass(frozen=True, slots=True)
class _Columns:
    """A table that loses nothing on a narrow terminal: names wrap, and columns that find no room come below.

    Attributes:
        title: Above it.
        names: Of the columns. The first says what a row is about, and stands before each part.
        rows: Their cells.
        total: A last row, set off.
    """

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    total: Sequence[str] = ()

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [self.names, *self.rows, *([self.total] if self.total else [])]
        widths = [max(cell_len(str(line[column])) for line in lines) for column in range(len(self.names))]
        others = sum(width + 1 for width in widths[1:])
        first = max(min(widths[0], options.max_width - others), min(widths[0], options.max_width * 2 // 5))
        parts: list[list[int]] = [[]]
        room = options.max_width - first
        for column, width in enumerate(widths[1:], start=1):
            if parts[-1] and width + 1 > room:
                parts.append([])
                room = options.max_width - first
            parts[-1].append(column)
            room -= width + 1
        for number, part in enumerate(parts):
            yield self._table("" if number else self.title, first, part)

    def _table(self, title: str, first: int, columns: Sequence[int]) -> Table:
        table = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            header_style="dim",
            box=None,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        table.add_column(self.names[0], max_width=first, overflow="fold")
        for column in columns:
            table.add_column(self.names[column], justify="right", overflow="fold")
        for row in self.rows:
            table.add_row(row[0], *(row[column] for column in columns))
        if self.total:
            table.add_section()
            table.add_row(self.total[0], *(self.total[column] for column in columns), style="bold")
        return table
