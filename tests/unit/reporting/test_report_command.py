"""`streamsched report` on a recorded ledger: the page, the exports, and numbers as JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamsched.cli.tree import app
from streamsched.model.events import WorkloadSubmitted
from streamsched.model.quantities import HOUR
from streamsched.node.virtual_node import sleep_argv
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.history import HistoryKeeper
from streamsched.simulation.simulator import simulate
from streamsched.simulation.virtual_cluster import uniform_cluster
from tests.unit.reporting.runs import TREE


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """One workload of red that holds one node of 8 GPUs for an hour."""
    path = tmp_path / "night.sqlite"
    submitted = WorkloadSubmitted(
        workload="w0",
        budget="red",
        ranks=1,
        gpus_per_rank=8,
        min_runtime_ms=HOUR,
        resumable=True,
        command=sleep_argv(HOUR),
    )
    with HistoryKeeper(path, "night", 0) as keeper:
        simulate(Demand((Submission(0, submitted, HOUR),), TREE), uniform_cluster(1), observers=[keeper])
    return path


def test_everything_is_written_and_told_as_json(ledger: Path, tmp_path: Path) -> None:
    """8 GPU-hours were held of 8; the page, seven pictures twice, a trace and three tables are there."""
    page, pictures, trace, tables = (tmp_path / name for name in ("out.html", "pictures", "trace.json.gz", "tables"))
    exports = ["--pictures", str(pictures), "--perfetto", str(trace), "--tables", str(tables)]

    result = CliRunner().invoke(app, ["report", str(ledger), "--out", str(page), *exports, "--json"])

    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["report"] == str(page)
    (run,) = told["runs"]
    assert run["name"] == "night"
    assert run["outcomes"]["scores"]["occupancy"] == 1
    assert run["outcomes"]["cluster"]["allocated_gpu_ms"] == 8 * HOUR
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert len(list(pictures.iterdir())) == 14
    assert trace.exists()
    assert len(list(tables.iterdir())) == 3


def test_since_is_a_whole_hour(ledger: Path) -> None:
    """Due time is counted by the hour."""
    result = CliRunner().invoke(app, ["report", str(ledger), "--since", "1970-01-01T00:30:00Z"])

    assert result.exit_code == 2
    assert "whole hour" in result.output


def test_a_reader_that_goes_away_is_no_error(ledger: Path, tmp_path: Path) -> None:
    """A table ends as a list does, in `streamsched report ... | head -1`: silently, with the code for it."""
    program = [sys.executable, "-c", "from streamsched.cli import main; main()"]
    process = subprocess.Popen(
        [*program, "report", str(ledger), "--out", str(tmp_path / "out.html")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()

    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), errors) == (141, "")


def test_a_path_is_no_markup(ledger: Path, tmp_path: Path) -> None:
    """A place in brackets is shown as it is."""
    result = CliRunner().invoke(app, ["report", str(ledger), "--out", str(tmp_path / "[b]out.html")])

    assert result.exit_code == 0, result.output
    assert "[b]out.html" in result.stdout
