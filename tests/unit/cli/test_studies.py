"""`streamsched study`: what a study file may say, what is said of a bad one, and a study that can be done by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from streamsched.cli.study_files import Study, read_study, schema
from streamsched.cli.tree import app
from tests.unit.cli.test_commands import a_day, written

Run = Callable[..., Any]
STUDIES = Path(__file__).parents[3] / "replay" / "studies"

#: On 8 GPUs at second 0 half of them for an hour, at 1 all for an hour, at 2 half for half an hour.
TRACE = """submitted_ms,run_ms,budget,gpus,min_runtime_ms
1506927600000,3600000,nlp,4,3600000
1506927601000,3600000,nlp,8,3600000
1506927602000,1800000,nlp,4,3600000
"""
#: One queue makes the last wait for the second: 0, 3,599 and 7,198 s. Passing lets it start: 0, 3,599 and 0 s.
STUDY = """
title: Passing
hypothesis: Who fits passes.
demand: {trace: jobs.csv}
nodes: [1x8]
ideal: true
variants:
  - {name: strict, policy: fifo}
  - {name: passing, policy: fifo-skip}
measures: ["allocated: median wait", "allocated: p90 wait"]
confirmed_if:
  - {measure: "allocated: p90 wait", variant: passing, must_be: <=, baseline: strict, times: 0.5}
  - {measure: "allocated: median wait", variant: passing, must_be: ==, value: 0s}
  - {measure: p90 wait, team: nlp, variant: strict, must_be: ">", value: 1h59m57s}
"""


@pytest.fixture
def run() -> Run:
    """Runs a command; gives its result, with `.exit_code`, `.stdout` and `.stderr`."""
    runner = CliRunner(env={"NO_COLOR": "1"})
    return lambda *arguments: runner.invoke(app, [str(argument) for argument in arguments], prog_name="streamsched")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The study, with its trace beside it."""
    (tmp_path / "jobs.csv").write_text(TRACE)
    path = tmp_path / "passing.yaml"
    path.write_text(STUDY)
    return path


def test_a_study_done_by_hand(run: Run, file: Path, tmp_path: Path) -> None:
    """Half of 7,198 s is 3,599 s, to the millisecond: the comparison is exact."""
    out, report = tmp_path / "result.md", tmp_path / "study.html"
    result = run("study", file, "--out", out, "--report", report, "--jobs", "1", "--json")

    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["confirmed"] is True
    assert [claim["by_seed"][0]["value"] for claim in answer["claims"]] == [3_599_000, 0, 7_198_000]
    assert answer["claims"][0]["by_seed"][0]["compared_with"] == 3_599_000
    page = out.read_text()
    assert "**Confirmed**: 3 of 3 claims hold." in page
    assert "| allocated: p90 wait | 1h59m | 59m59s |" in page
    assert f"streamsched study {file}" in page
    assert report.read_text().startswith("<!DOCTYPE html>")


def test_one_claim_that_fails_with_one_seed_is_enough(run: Run, file: Path) -> None:
    """The answer is no, and so is the exit code."""
    file.write_text(STUDY.replace("must_be: ==", "must_be: '>'") + "seeds: [1, 2]\n")
    result = run("study", file, "--jobs", "1")

    assert result.exit_code == 1
    assert "**Not confirmed**: 2 of 3 claims hold." in result.stdout
    assert "A claim must hold with each." in result.stdout


def test_a_ledger_with_a_change(run: Run, tmp_path: Path) -> None:
    """Two nodes and a gang that waits for both of them: with two more it starts."""
    written(tmp_path / "day.sqlite", a_day())
    path = tmp_path / "more.yaml"
    path.write_text(
        """
title: More nodes
hypothesis: The second gang starts.
demand: {ledger: day.sqlite}
ideal: true
variants: [{name: as it was}, {name: more, add_nodes: [2x8]}]
measures: [never started by the end]
confirmed_if:
  - {measure: never started by the end, variant: as it was, must_be: ==, value: 1}
  - {measure: never started by the end, variant: more, must_be: ==, value: 0}
"""
    )
    result = run("study", path, "--jobs", "1")

    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("title: Passing", "titel: Passing", '"titel" is no field of a study; did you mean "title"?'),
        ("title: Passing\n", "", "title is missing"),
        ("must_be: ==", "must_be: =", 'confirmed_if[1].must_be is "="; it must be'),
        ("times: 0.5", "times: half", 'confirmed_if[0].times is "half"; it must be'),
        ("{trace: jobs.csv}", "{}", "demand: name one of trace, institute and ledger."),
        ("{trace: jobs.csv}", "{institute: ai2-x}", "demand.institute is 'ai2-x'; did you mean \"ai2-m\"?"),
        ("{trace: jobs.csv}", "{institute: ai2-M, zone: UTC}", "zone has no meaning for an institute; drop it"),
        ("{trace: jobs.csv}", "{trace: gone.csv}", "gone.csv"),
        ("{trace: jobs.csv}", "{trace: jobs.csv, since: soon}", "demand: since: 'soon' is no time; write"),
        ("policy: fifo}", "policy: fife}", "variants[0]: 'fife' is no named policy"),
        ("policy: fifo}", "knobs: {windw_ms: 3d}}", 'did you mean "window_ms"?'),
        (
            "policy: fifo}",
            "lose_nodes: [node-1]}",
            "field lose_nodes of variants[0] has no meaning for a trace; drop it",
        ),
        ("name: passing", "name: strict", "variants name 'strict' twice; name each once"),
        ("baseline: strict", "baseline: strickt", "baseline of confirmed_if[0] is 'strickt'; did you mean \"strict\"?"),
        ("team: nlp, ", "", "measure is 'p90 wait'; "),
        ("ideal: true", "ideal: true\nideal: false", "line 7: 'ideal' stands here for the second time; write it once"),
        ("ideal: true", "ideal: [true", "is no YAML"),
        ("{trace: jobs.csv}", "&a {trace: *a}", "line 4: an alias points here"),
        ("[1x8]", "&n [1x8]\nseeds: *n", "an alias points here; write it out"),
        ("[1x8]", "[" * 30 + "]" * 30, "nested too deeply"),
        ("[1x8]", "[" * 30_000 + "]" * 30_000, "nested too deeply"),
        ("[1x8]", "[many]", "--nodes is 'many'; write COUNTxGPUS"),
    ],
)
def test_what_is_wrong_is_said(run: Run, file: Path, before: str, after: str, message: str) -> None:
    """The field, its value and the remedy, and never a traceback."""
    assert before in STUDY
    file.write_text(STUDY.replace(before, after, 1))
    result = run("study", file)

    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_committed_study_can_be_read(path: Path) -> None:
    """And its files are there."""
    study = read_study(path)

    named = {study.demand.trace, study.demand.ledger, *(v.trace for v in study.variants)}
    named |= {v.budgets for v in study.variants}
    assert all((STUDIES / name).exists() for name in named if name is not None)


def test_the_committed_schema_is_what_the_model_says() -> None:
    """On failure run ``python -m streamsched.cli.study_files``, if you meant the change."""
    committed = (STUDIES / "study.schema.json").read_text("utf-8")

    assert committed == schema()
    Draft202012Validator.check_schema(json.loads(committed))
    assert set(json.loads(committed)["properties"]) == set(Study.model_fields)
