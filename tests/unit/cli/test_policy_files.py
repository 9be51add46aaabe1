"""Policies as people write them: names, files of knobs, and knobs set one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamsched.cli.policy_files import changes, read_policy, written
from streamsched.errors import RequestError
from streamsched.model.policy import (
    BY_PRIORITY,
    DEFAULT_POLICY,
    HOUR_BY_HOUR,
    NAMED_POLICIES,
    Order,
    Policy,
    PoolRate,
    UsageMode,
)
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND


def test_names() -> None:
    """Each name is a policy; none is the base."""
    assert read_policy(None) == DEFAULT_POLICY
    assert read_policy("hour_by_hour") == HOUR_BY_HOUR
    assert read_policy("by_priority") == BY_PRIORITY
    assert read_policy(None, base=HOUR_BY_HOUR) == HOUR_BY_HOUR


@pytest.mark.parametrize(
    ("setting", "knobs"),
    [
        ("window_ms=5d", {"window_ms": 5 * DAY}),
        ("window_ms=432000000", {"window_ms": 5 * DAY}),
        ("grace_ms=1m30s", {"grace_ms": 90 * SECOND}),
        ("grace_ms=0", {"grace_ms": 0}),
        ("reservations=0", {"reservations": 0}),
        ("guard=false", {"guard": False}),
        ("guard=False", {"guard": False}),
        ("guard_relaxation_ms=never", {"guard_relaxation_ms": None}),
        ("over_quota_protection_ms=15m", {"over_quota_protection_ms": 15 * MINUTE}),
        ("order=due_first", {"order": Order.DUE_FIRST}),
        ("rates=h100:2,a100:1", {"rates": (PoolRate(pool="h100", rate=2), PoolRate(pool="a100", rate=1))}),
        ("rates=none", {"rates": ()}),
        ('rates=[{"pool": "h100", "rate": 2}]', {"rates": (PoolRate(pool="h100", rate=2),)}),
    ],
)
def test_a_knob_that_is_set(setting: str, knobs: dict[str, Any]) -> None:
    """Durations with their units, truths, words, numbers, and lists."""
    assert read_policy(None, [setting]) == Policy(**knobs)


def test_knobs_on_top_of_a_name_and_the_last_one_of_a_knob_counts() -> None:
    """As `--policy hour_by_hour --set ...` says it."""
    assert read_policy("hour_by_hour", ["grace_ms=1s", "grace_ms=2s"]) == Policy(
        order=Order.DUE_FIRST, grace_ms=2 * SECOND
    )


def test_a_file_of_knobs(tmp_path: Path) -> None:
    """TOML with the names of the model, and the policy that it begins with."""
    file = tmp_path / "mine.toml"
    file.write_text(
        'base = "hour_by_hour"\nwindow_ms = "5d"\nguard = false\nreservations = 4\n'
        'guard_relaxation_ms = "never"\n[rates]\nh100 = 2\n'
    )

    assert read_policy(str(file), ["reservations=5"]) == Policy(
        order=Order.DUE_FIRST,
        window_ms=5 * DAY,
        guard=False,
        guard_relaxation_ms=None,
        reservations=5,
        rates=(PoolRate(pool="h100", rate=2),),
    )


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("window=5d", ["--set", "'window'", 'did you mean "window_ms"']),
        ("window_ms", ["'window_ms'", "KNOB=VALUE"]),
        ("window_ms=5x", ["window_ms", "'5x'", "30m or 1h30m"]),
        ("window_ms=0", ["window_ms is 0", "from 1 to"]),
        ("window_ms=1h", ["indow_ms (3600000) is shorter than min_runtime_cap_ms"]),
        ("guard=maybe", ['guard is "maybe"', "true or false"]),
        ("usage=instat", ['usage is "instat"', '"instant"']),
        ("reservations=65", ["reservations is 65", "from 0 to 64"]),
        ("reservations=2.5", ['reservations is "2.5"', "whole number"]),
        ("tick_ms=never", ["tick_ms is null", "whole number"]),
        ("guard_relaxation_ms=soon", ["'soon'", "or never"]),
        ("rates=h100", ["rates is 'h100'", "h100:2"]),
        ("rates=h100:two", ["h100:two", "POOL:RATE"]),
        ("rates=[", ["rates", "no JSON"]),
    ],
)
def test_mistakes_name_the_knob_the_value_and_the_remedy(setting: str, words: list[str]) -> None:
    """So that nobody has to guess."""
    with pytest.raises(RequestError) as refused:
        read_policy(None, [setting])

    for word in words:
        assert word in refused.value.reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("window_ms = [", ["no TOML"]),
        ("windw_ms = 5", ["'windw_ms'", 'did you mean "window_ms"']),
        ('base = "hourly"', ["base is 'hourly'", "hour_by_hour"]),
        ("base = 3", ["base is 3"]),
        ("rates = 3", ["rates is 3"]),
        ("guard = 1", ["guard is 1", "true or false"]),
    ],
)
def test_mistakes_in_a_file_name_it(tmp_path: Path, text: str, words: list[str]) -> None:
    """With the knob, the value and the remedy."""
    file = tmp_path / "mine.toml"
    file.write_text(text)

    with pytest.raises(RequestError) as refused:
        read_policy(str(file))

    for word in ["mine.toml", *words]:
        assert word in refused.value.reason


@pytest.mark.parametrize("name", ["by_hour", "nowhere.toml"])
def test_what_is_neither_a_name_nor_a_file(name: str) -> None:
    """Says which there are."""
    with pytest.raises(RequestError, match=name):
        read_policy(name)


def test_changes_are_told_as_they_are_written() -> None:
    """A duration as a duration, a limit that is none as never."""
    after = Policy(window_ms=5 * DAY, guard_relaxation_ms=None, usage=UsageMode.DECAY)

    assert [(change.knob, change.before, change.after) for change in changes(DEFAULT_POLICY, after)] == [
        ("window_ms", "7d", "5d"),
        ("usage", "window", "decay"),
        ("guard_relaxation_ms", "1d", "never"),
    ]


@pytest.mark.parametrize(
    "policy", [*NAMED_POLICIES.values(), Policy(grace_ms=HOUR + 1, rates=(PoolRate(pool="h", rate=3),))]
)
def test_what_is_written_is_read_back(policy: Policy) -> None:
    """Every knob."""
    settings = [f"{knob}={written(knob, getattr(policy, knob))}" for knob in Policy.model_fields]

    assert read_policy(None, settings) == policy


def test_a_list_that_nests_too_deeply_is_told() -> None:
    with pytest.raises(RequestError, match="rates is a list that is no JSON"):
        read_policy(None, ["rates=" + "[" * 100_000])
