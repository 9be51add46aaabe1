"""Does the core keep what it promises of its speed, as far as a test can say on a machine that others use too?

Only ratios within one run, of process time measured in turns. `make bench` has the numbers.
"""

from __future__ import annotations

import statistics

import pytest

from streamsched.model.topology import Preference
from tests.benchmarks.core import APPLY_RATE_MIN, BACKLOG_RATIO_MAX, fold_against_decoding, submissions_against_backlog
from tests.benchmarks.histories import philly_history
from tests.benchmarks.measuring import median_ratio
from tests.benchmarks.simulations import JOBS_RATIO_MAX, Case, taken
from tests.benchmarks.topology import GROWTH_MAX, TAKEN, searching


def test_a_record_is_folded_about_as_fast_as_it_is_read() -> None:
    """A replay takes a few times as long as decoding. Half of the promise, since a busy machine's caches are shared."""
    decoding, applying = fold_against_decoding(philly_history(jobs=400), rounds=7)

    assert median_ratio(decoding, applying) >= APPLY_RATE_MIN.value / 2


@pytest.mark.parametrize("fits", [False, True])
def test_a_submission_costs_no_more_when_more_work_waits(fits: bool) -> None:
    """Ten times as many waiting, and a new submission is decided as fast, whether it can be placed or must wait."""
    few, many = submissions_against_backlog(fits=fits, rounds=60)

    assert statistics.median(many) <= BACKLOG_RATIO_MAX.value * statistics.median(few)


def test_a_simulation_takes_time_in_proportion_to_its_records() -> None:
    """Five times the records take at most six times as long; the best of three runs counts.

    By records, since the first thousand jobs meet an empty cluster and leave fewer of them each. `make bench` has the
    same by jobs, of all five weeks.
    """
    fewer, more = (min((taken(Case(jobs)) for _ in range(3)), key=lambda run: run.seconds) for jobs in (1_000, 5_000))

    assert 5 * more.seconds / more.records <= JOBS_RATIO_MAX.value * fewer.seconds / fewer.records


@pytest.mark.parametrize("preference", Preference)
@pytest.mark.parametrize("percent", TAKEN)
def test_a_search_for_seats_takes_less_than_in_proportion_to_the_nodes(percent: int, preference: Preference) -> None:
    """Ten times the nodes take at most eight times as long; `make bench` has whole decisions, too."""
    few, many = (searching(nodes, percent, preference) for nodes in (12_500, 125_000))

    assert many <= GROWTH_MAX.value * few
