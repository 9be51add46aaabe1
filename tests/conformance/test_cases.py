"""Published and derived cases: each that must hold does, and the table of results is current."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.__main__ import main
from tests.conformance.cases import Case, Relation, load
from tests.conformance.fair_share import FAIR_SHARE
from tests.conformance.fair_share.departures import DEPARTURES
from tests.conformance.running import Departure, Family, Result, first_difference
from tests.conformance.table import page

HERE = Path(__file__).parent
FILE = HERE / "cases" / "fairshare_cases.json"
CASES = load(FILE)
MUST_HOLD = [case for case in CASES if case.relation.must_hold and case.id not in FAIR_SHARE.departures]


@pytest.mark.parametrize("case", MUST_HOLD, ids=[case.id for case in MUST_HOLD])
def test_a_case_that_must_hold_does(case: Case) -> None:
    """What our scheduler finds is what was published, or derived by hand."""
    outcome = FAIR_SHARE.run(case)

    assert outcome.result is Result.PASSED, outcome.detail


def test_derived_and_matching_cases_are_never_departed_from() -> None:
    """Only a case of another way to measure usage cannot hold."""
    by_id = {case.id: case for case in CASES}

    assert all(by_id[id_].relation is Relation.VARIANT for id_ in DEPARTURES)
    assert FAIR_SHARE.departures == DEPARTURES


def test_every_skipped_case_says_why() -> None:
    """A reader of the last line must not have to guess. Where ours departs, it does so as it is argued."""
    skipped = [FAIR_SHARE.run(case) for case in CASES if case not in MUST_HOLD]

    assert skipped
    assert all(outcome.result is Result.SKIPPED and outcome.detail for outcome in skipped)


def test_the_table_is_current() -> None:
    """After a change: `python -m tests.conformance fair-share FILE --table tests/conformance/TABLE.md`."""
    table = page(FILE.name, [FAIR_SHARE.run(case) for case in CASES])

    assert (HERE / "TABLE.md").read_text(encoding="utf-8") == table


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ({"a": "1/2"}, {"a": Fraction(1, 2)}, ""),
        ({"a": "inf"}, {"a": "inf"}, ""),
        (0.333, Fraction(1, 3), ""),
        (0.334, Fraction(1, 3), ": expected 0.334, found 1/3"),
        ([1, 2], [1], ": expected [1, 2], found [1]"),
        ({"a": {"b": [True]}}, {"a": {"b": [False]}}, "a.b[0]: expected True, found False"),
        ({}, {"a": 1}, "a: not expected"),
        ({"a": None}, {}, "a: not found"),
    ],
)
def test_the_first_difference_is_named(expected: Any, found: Any, difference: str) -> None:
    """Numbers are compared exactly; a published decimal stands for what rounds to it."""
    assert first_difference(expected, found) == difference


def _case(kind: str, relation: Relation = Relation.MATCH) -> Case:
    return Case(id="c", kind=kind, title="", given={}, expected={"a": 1}, relation=relation, note="", origin="")


def test_a_case_fails_by_difference_by_error_and_for_want_of_a_way() -> None:
    """Whatever goes wrong with one case is its own result, and no end of the run."""

    def breaks(case: Case) -> tuple[Any, Any]:
        raise ValueError(case.kind)

    runners: Mapping[str, Callable[[Case], tuple[Any, Any]]] = {
        "other": lambda case: (case.expected, {}),
        "breaks": breaks,
    }
    family = Family(runners=runners, departures={})
    details = [family.run(_case(kind)) for kind in ("other", "breaks", "unknown")]

    assert [outcome.result for outcome in details] == [Result.FAILED] * 3
    assert [outcome.detail for outcome in details] == [
        "a: not found",
        "ValueError: breaks",
        "there is no way to run kind 'unknown'",
    ]
    assert family.run(_case("unknown", Relation.HELPER)).result is Result.SKIPPED


def test_a_departure_is_skipped_only_as_long_as_it_is_the_one_that_is_argued() -> None:
    """What ours does instead is compared too."""
    for found, result in ((2, Result.SKIPPED), (3, Result.FAILED)):
        runners: Mapping[str, Callable[[Case], tuple[Any, Any]]] = {"k": lambda case: (case.expected, {"a": 2})}
        family = Family(runners=runners, departures={"c": Departure({"a": found}, "because")})
        assert family.run(_case("k", Relation.VARIANT)).result is result


def test_the_command_counts_and_exits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A line for each case, a count at the end, and 1 for a failure."""
    file = tmp_path / "cases.json"
    file.write_text(
        '{"cases": [{"id": "x", "kind": "nothing we know", "title": "t", "input": {}, "expected": {}, '
        '"ours": {"relation": "match"}}, {"id": "y", "kind": "k", "title": "t", "input": {}, "expected": {}, '
        '"ours": {"relation": "n/a"}}]}',
        encoding="utf-8",
    )

    assert main(["fair-share", str(file), "--table", str(tmp_path / "table.md")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("x ")
    assert lines[-1] == "0 passed, 1 failed, 1 skipped"
    assert "| `y` | t |" in (tmp_path / "table.md").read_text(encoding="utf-8")
