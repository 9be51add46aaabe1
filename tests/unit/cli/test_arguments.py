"""What people type: budgets, nodes, moments and durations; each mistake is named with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from streamsched.cli.budget_files import parse_budgets, read_budgets
from streamsched.cli.fleets import parse_fleets
from streamsched.cli.moments import Moment, duration_ms, gpu_ms, instant_ms, parse_moment
from streamsched.cli.tree import app
from streamsched.errors import RequestError
from streamsched.model.events import BudgetShare

TOML = """
product = "40%"

[research]
fraction = "60%"
llama = "1/2"
vision = 0.35

[research.small]
fraction = 0.15
probes = 1
"""

TREE = {
    "product": 400_000_000,
    "research": 600_000_000,
    "research/llama": 500_000_000,
    "research/vision": 350_000_000,
    "research/small": 150_000_000,
    "research/small/probes": 1_000_000_000,
}


def by_name(shares: tuple[BudgetShare, ...]) -> dict[str, int]:
    return {share.budget: share.fraction_nano for share in shares}


def test_a_tree_is_read_from_toml(tmp_path: Path) -> None:
    """Percents, fractions and decimals, exactly: 0.35 and 0.15 are what they say."""
    file = tmp_path / "budgets.toml"
    file.write_text(TOML)

    assert by_name(read_budgets(file)) == TREE


def test_a_tree_is_read_from_json(tmp_path: Path) -> None:
    """The same shape."""
    file = tmp_path / "budgets.json"
    file.write_text('{"a": 0.1, "b": {"fraction": "9/10", "c": 1}}')

    assert by_name(read_budgets(file)) == {"a": 100_000_000, "b": 900_000_000, "b/c": 1_000_000_000}


def test_managers_are_read_with_their_budget(tmp_path: Path) -> None:
    """They are no budget, and those of a budget are not those of its children."""
    file = tmp_path / "budgets.toml"
    file.write_text('[a]\nfraction = 1\nmanagers = ["ana@example.org", "ben"]\nb = "50%"\n')

    assert {share.budget: share.managers for share in read_budgets(file)} == {
        "a": ("ana@example.org", "ben"),
        "a/b": (),
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("budgets.toml", "[a]\nfraction = 1\nmax_allocated_gpus = 64\n[a.b]\nfraction = 1\nmax_unallocated_gpus = 0\n"),
        (
            "budgets.json",
            '{"a": {"fraction": 1, "max_allocated_gpus": 64, "b": {"fraction": 1, "max_unallocated_gpus": 0}}}',
        ),
    ],
)
def test_limits_are_read_with_their_budget(tmp_path: Path, name: str, text: str) -> None:
    """They are no budgets either; and a limit of none is not one of 0."""
    file = tmp_path / name
    file.write_text(text)

    assert [(share.budget, share.max_allocated_gpus, share.max_unallocated_gpus) for share in read_budgets(file)] == [
        ("a", 64, None),
        ("a/b", None, 0),
    ]


def test_b28_a_local_time_is_no_instant() -> None:
    """2026-10-25 02:30 comes twice in Berlin, and 2026-03-29 02:30 does not come at all: only an offset says which."""
    for local in ("2026-10-25T02:30", "2026-03-29T02:30:00", "tomorrow"):
        with pytest.raises(typer.BadParameter, match="no time with an offset"):
            instant_ms(local, "--effective")
    first, second = instant_ms("2026-10-25T02:30+02:00", "-"), instant_ms("2026-10-25T02:30+01:00", "-")
    assert second - first == 3_600_000
    assert first == instant_ms("2026-10-25T00:30Z", "-") == 1_792_888_200_000


def test_gpu_hours_are_read_exactly() -> None:
    """A tenth is a tenth, and what is no number is told."""
    assert [gpu_ms(text, "--gpu-hours") for text in ("-2.5", "0.1", "1/3")] == [-9_000_000, 360_000, 1_200_000]
    for text in ("much", "nan", "1/0"):
        with pytest.raises(typer.BadParameter, match="is no number; write GPU-hours"):
            gpu_ms(text, "--gpu-hours")


def test_a_tree_is_read_from_options() -> None:
    """Parents before children."""
    assert by_name(parse_budgets(["a=60%", "a/b=1/2"])) == {"a": 600_000_000, "a/b": 500_000_000}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no budget"),
        ("a = ", "neither TOML nor JSON"),
        ('a = "120%"', "outside 0 to 1"),
        ('a = "much"', "'much' is no fraction"),
        ("a = true", "holds True"),
        ("a = [1]", "budget 'a' holds"),
        ("[a]\nb = 1", "budget 'a' has children and no fraction"),
        ('"a b" = 1', "'a b' is no name of a budget"),
        ('a = "60%"\nb = "60%"', "lower their fractions"),
        ('[a]\nfraction = 1\nmanagers = "ana"', "has the managers 'ana'; write a list"),
        ("[a]\nfraction = 1\nmax_allocated_gpus = -1", "has max_allocated_gpus = -1; write a whole number"),
        ("[a]\nfraction = 1\nmax_allocated_gpus = true", "has max_allocated_gpus = True; write a whole number"),
        ('[a]\nfraction = 1\nmax_unallocated_gpus = "many"', "has max_unallocated_gpus = 'many'; write a whole number"),
    ],
)
def test_a_wrong_tree_is_told(tmp_path: Path, text: str, words: str) -> None:
    """Naming the file and the place."""
    file = tmp_path / "budgets.toml"
    file.write_text(text)

    with pytest.raises(RequestError) as refused:
        read_budgets(file)

    assert words in str(refused.value)
    assert "budgets.toml" in str(refused.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """With what was looked for."""
    with pytest.raises(RequestError, match="nowhere"):
        read_budgets(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a"], "write NAME=FRACTION"),
        (["a=2"], "outside 0 to 1"),
        (["a/b=1"], "parent"),
        (["a=1", "a=1"], "named twice"),
    ],
)
def test_wrong_budget_options_are_told(texts: list[str], words: str) -> None:
    """As the file's mistakes are."""
    with pytest.raises(RequestError, match=words):
        parse_budgets(texts)


def test_nodes_are_numbered_across_kinds() -> None:
    """Two of one kind and one of another."""
    specs = parse_fleets(["2x8", "1x4:a100"], "h100", "node")

    assert [(spec.node, spec.pool, spec.gpus) for spec in specs] == [
        ("node-1", "h100", 8),
        ("node-2", "h100", 8),
        ("node-3", "a100", 4),
    ]


def test_nodes_are_where_they_are_said_to_be() -> None:
    """Domains, coarse to fine, behind the kind if there is one."""
    specs = parse_fleets(["1x8@s1/r1", "1x4:a100@s2"], "h100", "node")

    assert [(spec.pool, spec.domains) for spec in specs] == [("h100", ("s1", "r1")), ("a100", ("s2",))]


@pytest.mark.parametrize(
    "text",
    ["8", "x8", "0x8", "4x0", "4x17", "4x8:", "4x8:no pool", "-1x8", "4*8", "4x8@", "4x8@s1//r1", "4x8@no domain"],
)
def test_nodes_that_are_none_are_told(text: str) -> None:
    """With the form that would be right."""
    with pytest.raises(RequestError, match="write"):
        parse_fleets([text], "gpu", "node")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("0", Moment(cursor=0)),
        ("4711", Moment(cursor=4711)),
        ("1970-01-01T00:00:01Z", Moment(at_ms=1_000)),
        ("1970-01-01T01:00:01+01:00", Moment(at_ms=1_000)),
    ],
)
def test_a_moment_is_a_cursor_or_a_time(text: str, moment: Moment) -> None:
    """Times carry their offset, so that nobody's zone is guessed."""
    assert parse_moment(text) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "2026-11-30T09:00:00", "2026-11-30", "4711.5"])
def test_a_moment_that_is_none_is_told(text: str) -> None:
    """With both forms."""
    with pytest.raises(typer.BadParameter, match="4711"):
        parse_moment(text)


def test_durations_are_milliseconds() -> None:
    """And a bare 0 needs no unit."""
    assert [duration_ms(text, "--timeout") for text in ("0", "1h30m", "250ms")] == [0, 5_400_000, 250]
    with pytest.raises(typer.BadParameter, match="30m") as told:
        duration_ms("30", "--timeout")
    assert told.value.param_hint == "--timeout"


def test_a_tree_that_nests_too_deeply_is_told(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(RequestError, match=r"deep\.json is neither TOML nor JSON"):
        read_budgets(path)


@pytest.mark.parametrize("zone", ["Foo/Bar", "../zone", ""])
def test_a_zone_that_is_none_is_told(zone: str) -> None:
    told = CliRunner().invoke(app, ["simulate", "trace.csv", "--zone", zone], prog_name="streamsched")
    assert told.exit_code == 2
    assert "is no zone" in told.output


@pytest.mark.parametrize("command", ["simulate", "whatif", "study"])
@pytest.mark.parametrize(("name", "words"), [("gone/page.html", "there is no directory"), (".", "is a directory")])
def test_a_report_that_cannot_be_written_is_refused_before_the_work(
    command: str, name: str, words: str, tmp_path: Path
) -> None:
    """Nothing was looked at before: what should be read is not there either."""
    told = CliRunner().invoke(app, [command, str(tmp_path / "nothing"), "--report", str(tmp_path / name)])

    assert told.exit_code == 2
    assert words in " ".join(told.output.split())
