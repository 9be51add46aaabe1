"""Published cases of topology-aware placement: what can be asked of our scheduler holds, the rest says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.cases import Case, Relation, load
from tests.conformance.running import Result
from tests.conformance.table import page
from tests.conformance.topology import TOPOLOGY
from tests.conformance.topology.departures import DEPARTURES

HERE = Path(__file__).parent
FILE = HERE / "cases" / "topology_cases.json"
CASES = load(FILE)
RUN = [case for case in CASES if case.id not in DEPARTURES and not TOPOLOGY.left_out(case)]


@pytest.mark.parametrize("case", RUN, ids=[case.id for case in RUN])
def test_a_case_holds(case: Case) -> None:
    """Our scheduler finds what was published."""
    outcome = TOPOLOGY.run(case)

    assert outcome.result is Result.PASSED, outcome.detail


def test_only_two_hard_cases_are_departed_from() -> None:
    """Where a gang fits depends on no policy. Two of the hard cases name no request that ours could refuse."""
    departed = {case.id: case for case in CASES if case.id in DEPARTURES}

    hard = {id_: case.kind for id_, case in departed.items() if case.relation is Relation.HARD}
    assert hard == {"mc-04b": "validation", "kq-24b": "validation"}
    assert not [case.id for case in CASES if case.relation is Relation.HARD and TOPOLOGY.left_out(case)]


def test_every_skipped_case_says_why() -> None:
    """Where ours departs, it does so as it is argued."""
    skipped = [TOPOLOGY.run(case) for case in CASES if case not in RUN]

    assert skipped
    assert all(outcome.result is Result.SKIPPED and outcome.detail for outcome in skipped)


def test_the_table_is_current() -> None:
    """After a change: `python -m tests.conformance topology FILE --table tests/conformance/TOPOLOGY_TABLE.md`."""
    table = page(FILE.name, [TOPOLOGY.run(case) for case in CASES])

    assert (HERE / "TOPOLOGY_TABLE.md").read_text(encoding="utf-8") == table
