"""The commands on a recorded ledger: what they print, as text and as JSON, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamsched import __version__
from streamsched.cli.tree import app
from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.model.events import (
    BudgetShare,
    BudgetTreeChanged,
    NodeHealth,
    ProposedPlacement,
    RoundProposed,
    Seat,
    Unreadable,
)
from streamsched.model.policy import Levels
from streamsched.model.quantities import HOUR, MINUTE
from streamsched.model.topology import Layer, TopologyRequest
from streamsched.state.snapshot import digest
from streamsched.wire import codec
from tests import stories
from tests.stories import Story, budgets, submitted

Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    """Runs a command; gives its result, with `.exit_code`, `.stdout` and `.stderr`."""
    runner = CliRunner(env={"STREAMSCHED_FROM": None, "NO_COLOR": "1"})
    return lambda *arguments: runner.invoke(app, [str(argument) for argument in arguments], prog_name="streamsched")


def a_day() -> Story:
    """Two nodes; a gang that runs, and one that waits for it."""
    story = Story(*stories.nodes(2), budgets(a=0.6, b=0.4))
    story.at(1 * MINUTE).tell(submitted("llama", ranks=2, actor="ada"))
    story.round()
    story.at(2 * MINUTE).start("llama")
    story.at(1 * HOUR).tell(submitted("wide", budget="b", ranks=2))
    return story


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """The day in an SQLite file."""
    return written(tmp_path / "day.sqlite", a_day())


def written(file: Path, story: Story) -> Path:
    """Put a story into an SQLite file."""

    async def write() -> None:
        now_ms = 0
        ledger = await SqliteLedger.open(file, clock=lambda: now_ms)
        for record in story.records:
            assert not isinstance(record.event, Unreadable)
            now_ms = record.append_ms
            await ledger.append(codec.encode(record.event))
        await ledger.close()

    asyncio.run(write())
    return file


def test_jobs(run: Run, ledger: Path) -> None:
    """One line for each workload, and JSON for programs."""
    text, machine = run("jobs", "--from", ledger), run("jobs", "--from", ledger, "--json")

    assert text.exit_code == machine.exit_code == 0
    lines = text.stdout.splitlines()
    assert lines[0].split()[:3] == ["workload", "phase", "budget"]
    assert lines[1].split()[:4] == ["llama", "running", "a", "16"]
    assert lines[2].split()[:4] == ["wide", "queued", "b", "16"]
    assert lines[-1] == "2 workloads, as of 1970-01-01T01:00:00Z, cursor 7"
    answer = json.loads(machine.stdout)
    assert machine.stdout.count("\n") == 1
    assert [(job["workload"], job["phase"]) for job in answer["jobs"]] == [("llama", "running"), ("wide", "queued")]


@pytest.mark.parametrize(
    ("at", "phases"),
    [
        ("4", {"llama": "bound"}),
        ("6", {"llama": "running"}),
        ("7", {"llama": "running", "wide": "queued"}),
        ("1970-01-01T00:01:30Z", {"llama": "bound"}),
        ("1970-01-01T00:00:30Z", {}),
    ],
)
def test_jobs_as_of_then(run: Run, ledger: Path, at: str, phases: dict[str, str]) -> None:
    """After the record at a cursor, or at a time."""
    answer = json.loads(run("jobs", "--from", ledger, "--json", "--at", at).stdout)

    assert {job["workload"]: job["phase"] for job in answer["jobs"]} == phases


def test_explain(run: Run, ledger: Path) -> None:
    """The phase, the story, the verdict with its numbers, and what could be changed, on one screen."""
    result = run("explain", "wide", "--from", ledger)

    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) <= 24
    for words in (
        "wide  queued",
        "b: 2 ranks × 8 GPUs = 16 GPUs, allocated 1h, resumable",
        "#7  Submitted to b",
        "Asks for 2 x 8 GPUs; only protected runs are in the way: llama, the last of them until",
        "2 are held by protected work",
        "0 of b go before it",
    ):
        assert words in result.stdout
    # Entitled: 0.4 of 16 GPUs for 8 hours; nothing used.
    line = next(line for line in result.stdout.splitlines() if line.startswith("  b "))
    assert line.split() == ["b", "0.0", "0.0", "51.2", "0.0000", "1", "of", "2"]


def test_explain_a_stranger(run: Run, ledger: Path) -> None:
    """Not found is the answer no: exit code 1, on standard error."""
    result = run("explain", "stranger", "--from", ledger)

    assert (result.exit_code, result.stdout) == (1, "")
    assert "'stranger'" in result.stderr


def test_shares(run: Run, ledger: Path) -> None:
    """The tree, and the same through `budgets show`."""
    result = run("shares", "--from", ledger)

    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.strip()}
    # 16 GPUs since minute 1 of 60, and protected until minute 62: 15.7 used and 0.5 ahead of 0.6 x 16 x 8 = 76.8 due.
    assert rows["a"] == ["a", "60", "%", "60", "%", "76.8", "15.7", "0.533", "0.2118", "0.0", "16+0", "0"]
    assert rows["b"][-1] == "16"
    assert run("budgets", "show", "--from", ledger).stdout == result.stdout


def test_limits_stand_beside_what_counts_towards_them(run: Run, tmp_path: Path) -> None:
    """The gang holds 16 of the 24 GPUs that `a` may have at a time; without limits there is no such column."""
    story = a_day()
    a, b = story.state.budgets.by_id["a"], story.state.budgets.by_id["b"]
    limited = (
        BudgetShare(budget="a", fraction_nano=a.fraction_nano, max_allocated_gpus=24, max_unallocated_gpus=0),
        BudgetShare(budget="b", fraction_nano=b.fraction_nano),
    )
    story.tell(BudgetTreeChanged(change="limits", previous="b1", budgets=limited, reason="a test"))

    shown = run("shares", "--from", written(tmp_path / "limited.sqlite", story)).stdout

    assert "16+0  16 of 24 allocated, 0 of 0 unallocated" in shown
    assert "at most = GPUs that its runs have" in shown


def test_a_node_says_what_is_kept_for_whom(run: Run, tmp_path: Path) -> None:
    """Its half of a gang that lost the other node."""
    story = Story(*stories.nodes(2, domains=("A",)), stories.adopted(levels=(Levels(names=("sp",)),)), budgets(a=1))
    story.tell(submitted("llama", ranks=2, topology=TopologyRequest(layers=(Layer(level="sp"),))))
    story.round()
    story.start("llama")
    story.tell(stories.health("n2", NodeHealth.UNHEALTHY, fatal=True))
    ledger = written(tmp_path / "lost.sqlite", story)

    shown = run("node", "show", "n1", "--from", ledger).stdout.splitlines()
    as_json = json.loads(run("node", "show", "n1", "--from", ledger, "--json").stdout)

    assert shown[3:5] == ["  held by llama (8)", "  kept for llama (8), to come back or to move here"]
    assert as_json["nodes"][0]["pinned"] == [{"workload": "llama", "gpus": 8}]


def test_nodes(run: Run, ledger: Path) -> None:
    """Who holds what."""
    result = run("nodes", "--from", ledger)

    assert result.stdout.splitlines()[1].split() == ["n1", "h100", "healthy", "8", "0", "llama", "(8)"]
    assert "2 nodes, 0 of 16 GPUs free" in result.stdout


def test_one_node(run: Run, tmp_path: Path) -> None:
    """Its state, since when, who set it, what it waits for, and who holds its GPUs."""
    story = a_day()
    story.tell(stories.drained("n1", actor="ana", reason="new fans"))
    ledger = written(tmp_path / "drained.sqlite", story)

    result = run("node", "show", "n1", "--from", ledger)

    assert result.stdout.splitlines()[:5] == [
        "n1  draining since 01:00:00Z",
        "  8 GPUs of h100, 0 free; says that it is healthy",
        "  set by ana: new fans",
        # The gang is protected until minute 62, and has a minute of grace.
        "  waits for 1 run to leave, by 1970-01-01T01:03:00Z at the latest",
        "  held by llama (8)",
    ]
    shown = json.loads(run("node", "show", "n1", "--from", ledger, "--json").stdout)["nodes"]
    assert [(node["node"], node["state"], node["drain"], node["by"]) for node in shown] == [
        ("n1", "draining", "soft", "ana")
    ]
    assert "draining (new fans)" in run("nodes", "--from", ledger).stdout
    missing = run("node", "show", "n9", "--from", ledger)
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "there is no node 'n9'" in missing.stderr


def test_replay_and_archive(run: Run, ledger: Path, tmp_path: Path) -> None:
    """A ledger and its archived copy lead to the state that was, digest for digest."""
    archived = run("archive", ledger, tmp_path / "archive", "--json")
    original = json.loads(run("replay", ledger, "--json").stdout)
    copy = json.loads(run("replay", tmp_path / "archive", "--json").stdout)

    assert json.loads(archived.stdout)["records"] == 8
    assert original == copy
    assert original["audit"]["digest"] == original["state"]["digest"] == digest(a_day().state)
    assert original["audit"]["gaps"] == []


def test_replay_in_words(run: Run, ledger: Path) -> None:
    """The digest of the state at a cursor is that of the state that was there."""
    half = a_day()
    result = run("replay", ledger, "--at", "3")

    assert result.exit_code == 0
    assert "records     4," in result.stdout
    assert "live        queued 1" in result.stdout
    assert len(half.records) == 8


def test_a_ledger_with_a_gap_is_not_whole(run: Run, tmp_path: Path) -> None:
    """It is shown, and the exit code says so."""
    lossy = Story(submitted("w0", src="workloads.v1/0", seq=0), submitted("w2", src="workloads.v1/0", seq=2))

    result = run("replay", written(tmp_path / "gap.sqlite", lossy))

    assert result.exit_code == 1
    assert "workloads.v1/0 jumps from 1 to 2 at cursor 1" in result.stdout


def test_verify(run: Run, tmp_path: Path) -> None:
    """Decided again, all is equal and the exit code 0; a forged decision is shown with its story, and the code is 1."""
    story = a_day()
    equal = run("replay", written(tmp_path / "equal.sqlite", story), "--verify")
    story.tell(RoundProposed(round=2, based_on=story.state.next_cursor, policy_version=0, placements=(seated("wide"),)))
    other = written(tmp_path / "other.sqlite", story)
    forged, machine = run("replay", other, "--verify"), run("replay", other, "--verify", "--json")

    assert equal.exit_code == 0
    assert "1 accepted proposals decided again, none otherwise" in equal.stdout
    assert forged.exit_code == machine.exit_code == 1
    for words in (
        "2 accepted proposals decided again, 1 otherwise",
        "round 2 at cursor 8",
        "wide, attempt 1, on n1, n2",
    ):
        assert words in forged.stdout
    assert "#7  Submitted to b" in forged.stdout
    assert json.loads(machine.stdout)["verification"]["first"]["derived"] is None
    assert run("replay", other, "--verify", "--until", 7).exit_code == 0
    assert json.loads(run("replay", other, "--json").stdout)["verification"] is None


def seated(workload: str) -> ProposedPlacement:
    """A gang of two on two nodes."""
    seats = tuple(Seat(rank=rank, node=f"n{rank + 1}", gpu_mask=0xFF) for rank in range(2))
    return ProposedPlacement(workload=workload, attempt=1, seats=seats, shares=())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["jobs", "--from", "nowhere.sqlite"], 2, "nowhere.sqlite"),
        (["jobs", "--from", "gopher://x"], 2, "gopher://x"),
        (["jobs", "--from", "http://127.0.0.1:9"], 3, "streamsched up"),
        (["jobs", "--at", "3", "--from", "http://127.0.0.1:9"], 2, "--at needs a ledger"),
        (["jobs", "--from", "LEDGER", "--at", "99"], 1, "the last is at 7"),
        (["jobs", "--from", "LEDGER", "--at", "noon"], 2, "for --at: 'noon'"),
        (["jobs", "--from", "LEDGER", "--phase", "asleep"], 2, "asleep"),
        (["jobs", "--from", "LEDGER", "--budget", "a b"], 2, "a b"),
        (["submit", "-b", "a", "--to", "LEDGER", "--", "true"], 2, "takes no requests"),
        (["submit", "-b", "a", "-r", "0", "--", "true"], 2, "ranks is 0"),
        (["submit", "-b", "a", "--min-runtime", "soon", "--", "true"], 2, "for --min-runtime: 'soon'"),
        (["submit", "-b", "a", "--timeout", "never", "--", "true"], 2, "for --timeout: 'never'"),
        (["submit", "--", "true"], 2, "--budget"),
        (["submit", "-b", "a"], 2, "-- COMMAND..."),
        (["cancel", "w", "--to", "http://127.0.0.1:9"], 3, "127.0.0.1:9"),
        (["budgets", "apply", "nowhere.toml"], 2, "nowhere.toml"),
        (["up", "--nodes", "lots"], 2, "lots"),
        (["up", "--budget", "a=1", "--budgets", "x.toml"], 2, "one of them"),
        (["replay", "nowhere"], 2, "nowhere"),
        (["replay", "kafka://127.0.0.1:1"], 3, "kafka://127.0.0.1:1/streamsched.ledger.v1/0"),
        (["archive", "kafka://127.0.0.1:1/lab.", "x"], 3, "kafka://127.0.0.1:1/lab.ledger.v1/0"),
        (["topics", "apply", "--bootstrap", "127.0.0.1:1"], 3, "127.0.0.1:1 did not answer"),
        (["topics", "check", "--bootstrap", "127.0.0.1:1"], 3, "127.0.0.1:1 did not answer"),
        (["no-such-command"], 2, "no-such-command"),
    ],
)
def test_mistakes_end_with_their_code_and_a_remedy(
    run: Run, ledger: Path, arguments: list[str], code: int, words: str
) -> None:
    """Never with a traceback, and never on standard output."""
    result = run(*(str(ledger) if argument == "LEDGER" else argument for argument in arguments))

    assert result.exit_code == code
    assert result.stdout == ""
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_the_place_comes_from_the_environment(ledger: Path) -> None:
    """One variable for all commands."""
    runner = CliRunner(env={"STREAMSCHED_FROM": str(ledger)})

    assert "llama" in runner.invoke(app, ["jobs"]).stdout


def test_version(run: Run) -> None:
    """The package's own."""
    assert run("version").stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        "up", "serve", "demo", "submit", "cancel", "jobs", "explain", "shares", "nodes", "replay", "archive",
        "budgets apply", "budgets adjust", "topics apply", "topics check", "node virtual",
    ],
)  # fmt: skip
def test_every_command_has_an_example(run: Run, command: str) -> None:
    """Help that is worth reading shows how it is used."""
    result = run(*command.split(), "--help")

    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"streamsched {command}" in " ".join(result.stdout.split())


def test_help_documents_the_exit_codes(run: Run) -> None:
    """Scripts rely on them."""
    text = " ".join(run("--help").stdout.split())

    for words in (
        "0 done, yes",
        "1 done, and the answer is no",
        "3 nobody answered",
        "70 stopped rather than go on",
    ):
        assert words in text
