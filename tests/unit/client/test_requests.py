"""Requests are checked before they leave the client."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from streamsched.client.requests import cancellation, checked, new_id, submission
from streamsched.errors import RequestError
from streamsched.model.events import BudgetShare, BudgetTreeChanged


def test_an_id_is_a_uuid_of_version_7_with_the_time_in_front() -> None:
    """So ids sort as they were made, whoever made them."""
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_id())
    after = time.time_ns() // 1_000_000

    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= after


def test_ids_are_unique() -> None:
    """Also within a millisecond."""
    assert len({new_id() for _ in range(10_000)}) == 10_000


def test_a_submission_has_an_id_and_a_correlation_of_its_own() -> None:
    """Unless the caller chose the id, to be able to repeat the request."""
    first, second = submission(budget="a"), submission(budget="a")

    assert first.workload != second.workload
    assert first.corr != second.corr
    assert submission(budget="a", workload="mine").workload == "mine"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ranks": 0}, "ranks is 0; it must be a whole number from 1 to 100000"),
        ({"gpus_per_rank": 17}, "gpus_per_rank is 17"),
        ({"budget": "a b"}, 'budget is "a b"; it must be a path'),
        ({"workload": ""}, 'workload is ""'),
        ({"min_runtime_ms": -1}, "min_runtime_ms is -1"),
        ({"timeout_ms": 0}, "timeout_ms is 0"),
        ({"command": ("x" * 9_000,)}, "command"),
    ],
)
def test_a_wrong_field_never_leaves_the_client(fields: dict[str, Any], words: str) -> None:
    """The error says what intake would have said."""
    with pytest.raises(RequestError) as refused:
        submission(**{"budget": "a", **fields})

    assert words in str(refused.value)
    assert refused.value.code == "invalid_field"


def test_a_cancellation_is_checked() -> None:
    """As a submission is."""
    assert cancellation("w", reason="done").reason == "done"
    with pytest.raises(RequestError, match="workload"):
        cancellation("no spaces please")


def test_a_rule_about_several_fields_is_told() -> None:
    """Children that hold more than the whole of their parent."""
    shares = (BudgetShare(budget="a", fraction_nano=600_000_000), BudgetShare(budget="b", fraction_nano=600_000_000))

    with pytest.raises(RequestError, match=r"The children of the root .* \(120 %, counted up to 'b'\); lower"):
        checked(BudgetTreeChanged, {"change": "c", "reason": "r", "budgets": shares})
