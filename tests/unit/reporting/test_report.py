"""The report is one file that says what happened, and the terminal says the same."""

import re
from html.parser import HTMLParser
from io import StringIO
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from streamsched.model.quantities import HOUR, MINUTE
from streamsched.reporting.report import ReportText, render_report, write_report
from streamsched.reporting.runs import ReportedRun
from streamsched.reporting.terminal import comparison_tables, outcome_tables
from tests.unit.reporting.runs import displaced, in_turn, run_of

TEXT = ReportText(
    title="A <small> day & night",
    cluster="1 node of 8 GPUs",
    origin=("Made up for a test.",),
    commands=("streamsched replay x.sqlite",),
)


@pytest.fixture
def run() -> ReportedRun:
    return in_turn()


class Page(HTMLParser):
    """What a browser would load, and the cells of the tables."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        refers = [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        self.loads += [f"{tag} {value}" for value in refers if not value.startswith("#")]
        self.loads += [tag] if tag in ("link", "iframe", "object", "img") else []
        if tag == "tr":
            self.rows.append([])
        self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass


def test_the_page_loads_nothing(run: ReportedRun) -> None:
    """No script from elsewhere, style sheet, picture or font: it works offline and tells nobody of its readers."""
    html = render_report([run], TEXT)

    assert Page(html).loads == []
    assert "url(http" not in html
    assert "@import" not in html


def test_the_charts_are_well_formed_and_do_not_share_ids(run: ReportedRun) -> None:
    """Each has a description, and what one refers to stands in itself and in no other."""
    html = render_report([run], TEXT)

    charts = re.findall(r"<svg .*?</svg>", html, flags=re.DOTALL)
    # Occupancy, delivery, usage, ratios, waits, fragmentation.
    assert len(charts) == 6
    referred: list[set[str]] = []
    for chart in charts:
        root = ElementTree.fromstring(chart)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        ids = {element.get("id") for element in root.iter()}
        refers = set(re.findall(r'(?:href="#|url\(#)([^")]+)', chart))
        assert refers <= ids
        referred.append(refers)
    assert all(not one & other for one, other in combinations(referred, 2))


def test_the_table_of_teams_has_their_numbers(run: ReportedRun) -> None:
    """red: due 2 in hour 0, 2 in hour 2 and 2 in hour 3; got 8 and 8. blue: due 4, 4 and 4; got 8 and 8.

    Each got nothing in one hour: 4 of 6 and 8 of 12 came in the hour, and all of it on the day.

    A team that asked for nothing has no line.
    """
    rows = {row[0]: row[1:] for row in Page(render_report([run], TEXT)).rows if row}

    assert rows["red"] == ["25.0 %", "6", "16", "66.7 %", "100.0 %", "100.0 %", "0", "2", "0s", "1h"]
    assert rows["blue"] == ["50.0 %", "12", "16", "66.7 %", "100.0 %", "100.0 %", "0", "1", "30m", "30m"]
    assert "idle" not in rows
    assert rows["allocated"] == ["3", "30m", "1h", "1h", "1h"]


def test_text_is_escaped(run: ReportedRun) -> None:
    """A title is text, whatever stands in it."""
    html = render_report([run], TEXT)

    assert "<h1>A &lt;small&gt; day &amp; night</h1>" in html


def test_equal_outcomes_give_equal_pages(run: ReportedRun) -> None:
    """No clock and no chance: a report can be compared with another."""
    assert render_report([run], TEXT) == render_report([run], TEXT)


def test_nothing_at_all_is_shown_too(tmp_path: Path) -> None:
    """A cluster that nobody asked for anything has a report without scores."""
    path = tmp_path / "report.html"

    write_report(path, [run_of()], TEXT)

    html = path.read_text(encoding="utf-8")
    assert "Everything that was submitted has started." in html
    assert "<dt>occupancy</dt><dd>" in html


def test_those_who_still_wait_are_not_forgotten() -> None:
    """They have no wait yet, so they are counted beside the table."""
    run = run_of((0, "red", 8 * HOUR, 8 * HOUR), (30 * MINUTE, "blue", HOUR, HOUR), until_ms=2 * HOUR)

    html = render_report([run], TEXT)

    assert "1 have not started by the end" in html
    assert "has waited for 1h30m" in html


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_a_narrow_terminal_shows_everything(run: ReportedRun, columns: int) -> None:
    """Nothing is cut off, and no number is broken in two: columns without room come below, after the names again."""
    other = displaced()
    out = StringIO()
    console = Console(width=columns, file=out)

    console.print(outcome_tables(run.outcomes))
    console.print(comparison_tables([run, other]))

    text = out.getvalue()
    assert "…" not in text
    assert all(len(line) <= columns for line in text.splitlines())
    assert re.search(r"^red +25\.0 % +6 +16 +66\.7 %", text, flags=re.MULTILINE)
    assert "+1 ▼ worse" in text
    assert "+66.7 points ◆ other" in text
