"""The report is one file that says what happened, and the terminal says the same."""

import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from streamsched.model.events import BudgetShare, BudgetTreeChanged, WorkloadSubmitted
from streamsched.model.quantities import HOUR, MINUTE, WHOLE
from streamsched.node.virtual_node import sleep_argv
from streamsched.reporting.report import ReportText, render_report, write_report
from streamsched.reporting.terminal import outcome_tables
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.outcomes import OutcomeRecorder, Outcomes
from streamsched.simulation.simulator import simulate
from streamsched.simulation.virtual_cluster import uniform_cluster

TEXT = ReportText(
    title="A <small> day & night",
    cluster="1 node of 8 GPUs",
    origin=("Made up for a test.",),
    commands=("streamsched replay x.sqlite",),
)
TREE = BudgetTreeChanged(
    change="c1",
    reason="begin",
    budgets=(
        BudgetShare(budget="blue", fraction_nano=WHOLE // 2),
        BudgetShare(budget="idle", fraction_nano=WHOLE // 4),
        BudgetShare(budget="red", fraction_nano=WHOLE // 4),
    ),
)


def outcomes_of(*asked: tuple[int, str, int, int], until_ms: int = 4 * HOUR) -> Outcomes:
    """Serve (when, budget, run time, min runtime) on one node of 8 GPUs, each asking for all of it."""
    submissions = tuple(
        Submission(
            at_ms,
            WorkloadSubmitted(
                workload=f"w{number}",
                budget=budget,
                ranks=1,
                gpus_per_rank=8,
                min_runtime_ms=min_ms,
                resumable=True,
                command=sleep_argv(run_ms),
            ),
            run_ms,
        )
        for number, (at_ms, budget, run_ms, min_ms) in enumerate(asked)
    )
    recorder = OutcomeRecorder()
    state = simulate(Demand(submissions, TREE), uniform_cluster(1), since_ms=0, until_ms=until_ms, observers=[recorder])
    return recorder.outcomes(state, until_ms=until_ms)


@pytest.fixture
def outcomes() -> Outcomes:
    """red runs 0:00 to 1:00, blue waits from 0:30 and runs to 3:00; a second red waits from 2:00 and runs to 4:00."""
    return outcomes_of((0, "red", HOUR, HOUR), (30 * MINUTE, "blue", 2 * HOUR, 2 * HOUR), (2 * HOUR, "red", HOUR, HOUR))


class Page(HTMLParser):
    """What a browser would load, and the cells of the tables."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {value}" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        self.loads += [tag] if tag in ("script", "link", "iframe", "object", "img") else []
        if tag == "tr":
            self.rows.append([])
        self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass


def test_the_page_loads_nothing(outcomes: Outcomes) -> None:
    """No script, no style sheet, no picture, no font: it works offline and tells nobody that it was opened."""
    html = render_report(outcomes, TEXT)

    assert Page(html).loads == []
    assert "url(http" not in html
    assert "@import" not in html


def test_the_charts_are_well_formed_and_do_not_share_ids(outcomes: Outcomes) -> None:
    """Each has a description, and what one refers to stands in itself and in no other."""
    html = render_report(outcomes, TEXT)

    charts = re.findall(r"<svg .*?</svg>", html, flags=re.DOTALL)
    assert len(charts) == 3
    referred: list[set[str]] = []
    for chart in charts:
        root = ElementTree.fromstring(chart)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        ids = {element.get("id") for element in root.iter()}
        refers = set(re.findall(r'(?:href="#|url\(#)([^")]+)', chart))
        assert refers <= ids
        referred.append(refers)
    assert not referred[0] & referred[1]
    assert not referred[1] & referred[2]
    assert not referred[0] & referred[2]


def test_the_table_of_teams_has_their_numbers(outcomes: Outcomes) -> None:
    """red: due 2 in hour 0, 2 in hour 2 and 2 in hour 3; got 8 and 8. blue: due 4, 4 and 4; got 8 and 8.

    blue got nothing in hour 0, so 8 of its 12 came in time. A team that asked for nothing has no line.
    """
    rows = {row[0]: row[1:] for row in Page(render_report(outcomes, TEXT)).rows if row}

    assert rows["red"] == ["25.0 %", "6", "16", "66.7 %", "100.0 %", "0", "2", "0s", "1h"]
    assert rows["blue"] == ["50.0 %", "12", "16", "66.7 %", "100.0 %", "0", "1", "30m", "30m"]
    assert "idle" not in rows
    assert rows["allocated"] == ["3", "30m", "1h", "1h", "1h"]


def test_text_is_escaped(outcomes: Outcomes) -> None:
    """A title is text, whatever stands in it."""
    html = render_report(outcomes, TEXT)

    assert "<h1>A &lt;small&gt; day &amp; night</h1>" in html


def test_equal_outcomes_give_equal_pages(outcomes: Outcomes) -> None:
    """No clock and no chance: a report can be compared with another."""
    assert render_report(outcomes, TEXT) == render_report(outcomes, TEXT)


def test_nothing_at_all_is_shown_too(tmp_path: Path) -> None:
    """A cluster that nobody asked for anything has a report without scores."""
    path = tmp_path / "report.html"

    write_report(path, outcomes_of(), TEXT)

    html = path.read_text(encoding="utf-8")
    assert "Everything that was submitted has started." in html
    assert "<dt>occupancy</dt><dd>" in html


def test_those_who_still_wait_are_not_forgotten() -> None:
    """They have no wait yet, so they are counted beside the table."""
    outcomes = outcomes_of((0, "red", 8 * HOUR, 8 * HOUR), (30 * MINUTE, "blue", HOUR, HOUR), until_ms=2 * HOUR)

    html = render_report(outcomes, TEXT)

    assert "1 have not started by the end" in html
    assert "has waited for 1h30m" in html


def test_a_terminal_of_80_columns_shows_everything(outcomes: Outcomes) -> None:
    """Nothing is cut off."""
    out = StringIO()

    Console(width=80, file=out).print(outcome_tables(outcomes))

    text = out.getvalue()
    assert "…" not in text
    assert re.search(r"^red +25\.0 % +6 +16 +66\.7 % +100\.0 %", text, flags=re.MULTILINE)
