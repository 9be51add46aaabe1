"""Does a refusal say what is wrong and what to change?"""

from __future__ import annotations

from typing import Any

import pytest

from streamsched.errors import WireError
from streamsched.wire.codec import admit
from tests.unit.wire.messages import as_json, submission

REQUESTS = frozenset({"workload_submitted", "workload_cancelled", "budget_tree_changed", "policy_adopted"})


def refused(data: bytes) -> WireError:
    with pytest.raises(WireError) as caught:
        admit(data, allowed=REQUESTS, src="workloads.v1/0", seq=1)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        (submission(ranks=0), "invalid_field", "ranks is 0; it must be a whole number from 1 to 100000."),
        (submission(ranks=1.5), "invalid_field", "ranks is 1.5; it must be a whole number from 1 to 100000."),
        (submission(ranks="2"), "invalid_field", 'ranks is "2"; it must be a whole number from 1 to 100000.'),
        (submission(resumable=1), "invalid_field", "resumable is 1; it must be true or false."),
        (
            submission(budget="nlp//llama"),
            "invalid_field",
            "budget is \"nlp//llama\"; it must be a path of 1 to 12 names joined by '/', each 1 to 63 letters, digits, "
            "'.', '_' and '-', starting with a letter or digit.",
        ),
        (
            submission(pool=""),
            "invalid_field",
            "pool is \"\"; it must be 1 to 63 letters, digits, '.', '_' and '-', starting with a letter or digit.",
        ),
        (
            submission(corr="x" * 201),
            "invalid_field",
            f'corr is "{"x" * 78}…; it must be text of at most 200 characters.',
        ),
        (
            submission(command=["sleep", 3]),
            "invalid_field",
            "command[1] is 3; it must be text of at most 8192 characters without NUL.",
        ),
        (
            submission(gpus_per_ranks=4),
            "unknown_field",
            '"gpus_per_ranks" is no field of workload_submitted; did you mean "gpus_per_rank"?',
        ),
        (submission(budget=None, ranks=None, rank=1), "missing_field", None),
        (
            submission(v=True),
            "invalid_field",
            "v is true; it must be a whole number, and 1 is the newest of workload_submitted.",
        ),
        (
            submission(v=0),
            "invalid_field",
            "v is 0, and workload_submitted cannot be raised from it to 1: "
            "there is no version 0 of workload_submitted.",
        ),
        (submission(v=2), "unsupported_version", None),
        (
            submission(src="workloads.v1/0"),
            "reserved_field",
            'src is "workloads.v1/0", but it is intake that sets src; leave it out.',
        ),
        (submission() | {"seq": None}, "reserved_field", "seq is null, but it is intake that sets seq; leave it out."),
        (
            {"type": "tick", "v": 1, "tick": 1},
            "wrong_type_for_topic",
            'type is "tick", which is not expected here; known are budget_tree_changed, policy_adopted, '
            "workload_cancelled, workload_submitted.",
        ),
        (
            submission(type="workload_submited"),
            "unknown_type",
            'type is "workload_submited", which is not expected here; did you mean "workload_submitted"?',
        ),
        (submission(type=["workload_submitted"]), "invalid_field", None),
        (submission(type=None), "missing_field", None),
        ([submission()], "not_an_object", None),
        (
            {"type": "policy_adopted", "v": 1, "reason": "r", "policy": {"windowms": 1}},
            "unknown_field",
            '"policy.windowms" is no field of policy; did you mean "window_ms"?',
        ),
        (
            {"type": "policy_adopted", "v": 1, "reason": "r", "policy": {"window_ms": 1}},
            "invalid_field",
            None,
        ),
        (
            {"type": "budget_tree_changed", "v": 1, "reason": "r", "change": "c", "budgets": [{"budget": "a"}]},
            "missing_field",
            "budgets[0].fraction_nano is missing; it must be a whole number from 0 to 1000000000.",
        ),
        (
            {
                "type": "budget_tree_changed",
                "v": 1,
                "reason": "r",
                "change": "c",
                "budgets": [{"budget": "a/b", "fraction_nano": 1}],
            },
            "invalid_field",
            None,
        ),
    ],
)
def test_a_refusal_names_the_field_the_value_and_the_remedy(fields: Any, code: str, reason: str | None) -> None:
    """Whoever reads the reason knows what to change, without opening the source."""
    refusal = refused(as_json(fields))

    assert refusal.code == code
    assert reason is None or refusal.reason == reason


def test_a_refusal_tells_of_several_mistakes_at_once() -> None:
    """Three in words, the others as a count; one round trip is enough for most."""
    fields = submission(ranks=0, gpus_per_rank=17, min_runtime_ms=-1, resumable="yes", priority=True)

    assert refused(as_json(fields)).reason == (
        "ranks is 0; it must be a whole number from 1 to 100000. "
        "gpus_per_rank is 17; it must be a whole number from 1 to 16. "
        "min_runtime_ms is -1; it must be a whole number from 0 to 31622400000. "
        "There are 2 more mistakes."
    )


@pytest.mark.parametrize(("workload", "readable"), [("llama", "llama"), ("", None), (7, None), ("a b", None)])
def test_a_refusal_knows_its_workload_if_that_can_be_read(workload: Any, readable: str | None) -> None:
    """So that whoever waits for this workload's receipt gets one."""
    assert refused(as_json(submission(workload=workload, ranks=0))).workload == readable


@pytest.mark.parametrize(
    ("fields", "beginning"),
    [
        ({"type": "policy_adopted", "policy": {"window_ms": 1}}, "policy: window_ms (1) is "),
        (
            {"type": "budget_tree_changed", "change": "c", "budgets": [{"budget": "a/b", "fraction_nano": 1}]},
            "Budget 'a/b' ",
        ),
    ],
)
def test_a_rule_about_several_fields_is_told_in_its_own_words(fields: dict[str, Any], beginning: str) -> None:
    """A model knows best what its fields must be together; where that is inside a message goes before it."""
    refusal = refused(as_json(fields | {"v": 1, "reason": "r"}))

    assert refusal.code == "invalid_field"
    assert refusal.reason.startswith(beginning)
    assert refusal.reason.endswith(".")
