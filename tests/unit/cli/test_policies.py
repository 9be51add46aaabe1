"""`streamsched policy`: what is in force, what has a name, and what another one would change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamsched.cli.tree import app
from streamsched.model.quantities import DAY, MINUTE
from tests.stories import Story, adopted
from tests.unit.cli.test_commands import written

Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    """Runs a command; gives its result, with `.exit_code`, `.stdout` and `.stderr`."""
    runner = CliRunner(env={"STREAMSCHED_FROM": None, "NO_COLOR": "1"})
    return lambda *arguments: runner.invoke(app, [str(argument) for argument in arguments], prog_name="streamsched")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger in which the window became shorter in minute 1."""
    story = Story(adopted())
    story.at(1 * MINUTE).tell(adopted(window_ms=5 * DAY))
    return written(tmp_path / "two.sqlite", story)


def test_the_policy_in_force(run: Run, ledger: Path) -> None:
    """Knob by knob, with a star where it differs from the default; and as it was at any moment."""
    now, then = run("policy", "show", "--from", ledger), run("policy", "show", "--from", ledger, "--at", 0)

    window = next(line for line in now.stdout.splitlines() if "window_ms" in line)
    assert window.split()[:3] == ["*", "window_ms", "5d"]
    assert "policy 2, as of 1970-01-01T00:01:00Z, cursor 1" in now.stdout
    assert "*" not in then.stdout
    answer = json.loads(run("policy", "show", "--from", ledger, "--json").stdout)
    assert (answer["version"], answer["policy"]["window_ms"]) == (2, 5 * DAY)


def test_a_policy_by_its_name(run: Run) -> None:
    """Without asking anybody."""
    shown = run("policy", "show", "hour_by_hour")

    assert shown.exit_code == 0
    assert [line.split()[:3] for line in shown.stdout.splitlines() if line.startswith("*")] == [
        ["*", "order", "due_first"]
    ]
    assert "hour_by_hour   order=due_first" in run("policy", "list").stdout


def test_a_dry_run_shows_what_would_change(run: Run, ledger: Path) -> None:
    """On top of what is in force where no name is given; else against the named one."""
    knob = run("policy", "adopt", "--to", ledger, "--set", "guard=false", "--dry-run")
    name = run("policy", "adopt", "hour_by_hour", "--to", ledger, "--dry-run", "--json")
    same = run("policy", "adopt", "--to", ledger, "--set", "window_ms=5d", "--dry-run")

    assert [line.split() for line in knob.stdout.splitlines()[1:]] == [["guard", "true", "false"]]
    assert [tuple(change.values()) for change in json.loads(name.stdout)["changes"]] == [
        ("window_ms", "5d", "7d"),
        ("order", "window", "due_first"),
    ]
    assert "nothing would change" in same.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--reason", "r"], "nothing to adopt"),
        (["hour_by_hour"], "--reason is missing"),
        (["hourly", "--reason", "r"], "'hourly' is no named policy"),
        (["--set", "window_ms=soon", "--reason", "r"], "window_ms: 'soon'"),
        (["hour_by_hour", "--reason", "r"], "takes no requests"),
    ],
)
def test_mistakes(run: Run, ledger: Path, arguments: list[str], words: str) -> None:
    """Exit code 2, and nothing was adopted."""
    result = run("policy", "adopt", *arguments, "--to", ledger)

    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


@pytest.mark.parametrize("command", ["policy show", "policy list", "policy adopt"])
def test_every_command_has_an_example(run: Run, command: str) -> None:
    """Help that is worth reading shows how it is used."""
    text = " ".join(run(*command.split(), "--help").stdout.split())

    assert "Example" in text
    assert f"streamsched {command}" in text
