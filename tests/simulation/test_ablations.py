"""The study of what each rule is worth: its policies are valid, and a row is made of what was measured."""

import pytest

from replay.studies.ablations import VARIANTS, Stretch, run, table
from streamsched.model.policy import DEFAULT_POLICY, Policy


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant != "the defaults"])
def test_each_policy_is_one_that_can_be_adopted(variant: str) -> None:
    """And differs from the default, or its row would say nothing."""
    assert Policy(**{**dict(DEFAULT_POLICY), **VARIANTS[variant]}) != DEFAULT_POLICY


def test_a_run_becomes_a_row() -> None:
    """One day of the trace under the old priority scheduler."""
    result = run("philly-3x", "old priority scheduler", Stretch(0, 1), seed=1)
    (row,) = [line for line in table([result]).splitlines() if line.startswith("| old priority scheduler ")]

    assert result["outcomes"]["submitted"] > 0
    assert f"| {result['figures']['strict by hour %']:.1f} |" in row
