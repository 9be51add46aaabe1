"""The report in a real headless Chromium, from a file, with the network off."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page

from streamsched.reporting.report import write_report
from streamsched.reporting.runs import ReportedRun
from tests.unit.reporting.browser import chromium
from tests.unit.reporting.runs import displaced, in_turn


@dataclass
class Opened:
    """A page, and what went wrong with it."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @property
    def gantt(self) -> Locator:
        return self.page.locator("#gantt canvas").first

    def view(self) -> list[int]:
        """Return what the Gantt chart shows: first and last second, first and last row."""
        self.page.wait_for_timeout(100)  # It is drawn in the next frame.
        return [int(edge) for edge in (self.gantt.get_attribute("data-view") or "").split()]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def runs() -> list[ReportedRun]:
    return [in_turn(), displaced()]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, runs: list[ReportedRun]) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, runs)
    return path


@pytest.fixture
def opened(browser: Browser, path: Path) -> Iterator[Opened]:
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    opened = Opened(context.new_page())
    opened.page.on("console", lambda message: opened.complaints.append(message.text))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.goto(path.as_uri())
    opened.page.wait_for_selector("#gantt[data-ready=yes]")
    yield opened
    context.close()


def test_it_opens_offline_and_asks_for_nothing_else(opened: Opened, path: Path) -> None:
    """One file, no word on the console."""
    assert opened.complaints == []
    assert opened.requests == [path.as_uri()]


def test_the_gantt_is_drawn(opened: Opened) -> None:
    """Within the bar of the first run, which holds all GPUs from 0:00 to 1:00, no pixel has the colour of the panel."""
    colours = opened.gantt.evaluate(
        """canvas => {
            const pen = canvas.getContext("2d"), ratio = canvas.width / canvas.clientWidth;
            const at = (x, y) => [...pen.getImageData(x * ratio, y * ratio, 1, 1).data].join(" ");
            const hour = (canvas.clientWidth - 76 - 8) / 4, row = (canvas.clientHeight - 2 - 22) / 8;
            return {panel: at(2, 2), bars: [0, 1, 2, 3].map(number => at(76 + hour * (number + 0.5), 2 + row * 4.4))};
        }"""
    )

    red, blue, blue_still, red_again = colours["bars"]
    assert colours["panel"] not in colours["bars"]
    assert blue == blue_still
    assert red != blue
    assert red_again != blue


@pytest.mark.parametrize(("key", "longer"), [("+", False), ("-", True)])
def test_keys_zoom_the_time(opened: Opened, key: str, longer: bool) -> None:
    """From the middle, so that both ends can move."""
    opened.gantt.focus()
    opened.page.keyboard.press("+")
    first, last, *rows = opened.view()

    opened.page.keyboard.press(key)

    first_after, last_after, *rows_after = opened.view()
    assert (last_after - first_after > last - first) is longer
    assert rows_after == rows


def test_the_wheel_zooms_where_the_chart_has_the_focus(opened: Opened) -> None:
    """Before, the wheel scrolls the page: nobody is caught in a picture."""
    opened.gantt.scroll_into_view_if_needed()
    whole = opened.view()
    opened.gantt.hover()
    opened.page.mouse.wheel(0, -40)
    assert opened.view() == whole

    opened.gantt.focus()
    opened.gantt.hover()
    opened.page.mouse.wheel(0, -200)

    first, last, *_ = opened.view()
    assert whole[:2] == [0, 4 * 3600]
    assert last - first < 4 * 3600


def test_the_middle_is_told_in_words(opened: Opened) -> None:
    """Who uses no mouse reads who sits at the cross: at 2:00 it is blue's run, which began at 1:00."""
    opened.gantt.focus()

    told = opened.page.locator("#gantt-info").text_content() or ""

    assert "w1 of blue" in told
    assert "protected" in told


def test_its_tables_have_the_numbers_of_the_outcomes(opened: Opened, runs: list[ReportedRun]) -> None:
    """As a reader sees them, in the text of the page."""
    rows = opened.page.locator("#compared ~ .scroll table").first.locator("tbody tr")
    cells = {row[0]: row[1:] for row in (text.split("\t") for text in rows.all_inner_texts())}
    before, after = (run.outcomes for run in runs)

    assert cells["unallocated runs preempted"][:2] == ["0", "1"]
    assert (before.preempted_unallocated, after.preempted_unallocated) == (0, 1)
    assert cells["unallocated runs preempted"][2] == "+1 ▼ worse"
    for name, score in (("occupancy: held GPU-time", "occupancy"), ("unallocated, of held time", "unallocated_share")):
        shown = [f"{float(getattr(outcomes, score)) * 100:.1f} %" for outcomes in (before, after)]
        assert cells[name][:2] == shown


def test_a_narrow_screen_scrolls_tables_and_not_the_page(opened: Opened) -> None:
    """360 pixels are a telephone."""
    opened.page.set_viewport_size({"width": 360, "height": 700})

    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_it_is_dark_where_the_reader_wants_that(opened: Opened) -> None:
    """Ink and paper change places, and text keeps a contrast of 4.5 to 1 at least."""
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        ink, paper, quiet = opened.page.evaluate(
            """() => [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor,
                      getComputedStyle(document.querySelector(".quiet")).color]"""
        )
        assert contrast(ink, paper) >= 7
        assert contrast(quiet, paper) >= 4.5
        assert (luminance(paper) < 0.1) is (scheme == "dark")


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it, of "rgb(r, g, b)"."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.2."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
