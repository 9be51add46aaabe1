"""The demonstration on a trace of its own size: what it leaves behind is whole."""

import asyncio
import gzip
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from streamsched.errors import ConfigurationError
from streamsched.ledgers.sqlite import SqliteHistoryWriter, SqliteLedger
from streamsched.replay.replayer import fold
from streamsched.reporting.demo import TRACES, run_demo
from streamsched.simulation.traces import read_philly
from streamsched.state.snapshot import digest


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A day of the real trace, cut short: 300 jobs of 2017-10-04."""
    folder = tmp_path / "traces"
    folder.mkdir()
    with gzip.open(TRACES / "philly_2017_jobs.csv.gz", "rt", encoding="ascii") as file:
        header, *rows = file.read().splitlines()
    day = sorted(row for row in rows if row.startswith("2017-10-04"))[:300]
    with gzip.open(folder / "philly_2017_jobs.csv.gz", "wt", encoding="ascii") as file:
        file.write("\n".join([header, *day, "2017-10-04 12:00:00,-5,1,-5,6214e9"]) + "\n")
    (folder / "philly_2017_vc_nodes.csv").write_bytes((TRACES / "philly_2017_vc_nodes.csv").read_bytes())
    return folder


async def _folded_digest(path: Path) -> str:
    ledger = await SqliteLedger.open(path, readonly=True)
    try:
        return digest(await fold(ledger))
    finally:
        await ledger.close()


def test_the_demo_leaves_a_ledger_and_a_report(traces: Path, tmp_path: Path) -> None:
    """The ledger folds to the digest that the demo names; the report is there; the paths and next steps are shown."""
    out = StringIO()

    result = run_demo(tmp_path / "out", console=Console(file=out, width=200), traces=traces)

    assert result.outcomes.submitted == 300
    assert result.dropped_rows == 1
    assert asyncio.run(_folded_digest(result.ledger)) == result.digest
    assert result.report.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    shown = out.getvalue()
    assert all(text in shown for text in (str(result.ledger), str(result.report), *result.next_commands))
    assert json.loads(json.dumps(result.as_json()))["outcomes"]["submitted"] == 300


@pytest.mark.parametrize(("on_the_path", "typed"), [(True, "streamsched"), (False, ".venv/bin/streamsched")])
def test_what_to_try_next_can_be_typed(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_the_path: bool, typed: str
) -> None:
    """Also where only make knows where the program is."""
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if on_the_path else None)
    monkeypatch.setattr("sys.argv", [".venv/bin/streamsched", "demo"])
    out = StringIO()

    run_demo(tmp_path / "out", console=Console(file=out, width=200), traces=traces)

    assert f"  {typed} replay {tmp_path / 'out' / 'ledger.sqlite'}\n" in out.getvalue()


def test_the_demo_decides_the_same_each_time(traces: Path, tmp_path: Path) -> None:
    """A second run replaces the first and reaches the same digest."""
    first = run_demo(tmp_path / "out", quiet=True, traces=traces)
    second = run_demo(tmp_path / "out", quiet=True, traces=traces)

    assert first.digest == second.digest
    assert first.outcomes == second.outcomes


def test_another_ledger_is_not_overwritten(traces: Path, tmp_path: Path) -> None:
    """Somebody's own ledger under that name is refused and left as it is."""
    SqliteHistoryWriter(tmp_path / "ledger.sqlite", "production", 0).close()
    before = (tmp_path / "ledger.sqlite").read_bytes()

    with pytest.raises(ConfigurationError, match="production"):
        run_demo(tmp_path, quiet=True, traces=traces)
    assert (tmp_path / "ledger.sqlite").read_bytes() == before


def test_a_directory_that_cannot_be_written_is_named(traces: Path, tmp_path: Path) -> None:
    """Before anything is computed."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigurationError, match="name another directory"):
        run_demo(tmp_path / "file" / "out", quiet=True, traces=traces)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    """With where it should be."""
    with pytest.raises(ConfigurationError, match="replay/traces"):
        run_demo(tmp_path / "out", quiet=True, traces=tmp_path)


def test_the_trace_is_whole() -> None:
    """All 82,247 jobs are read, and none is dropped; five weeks of them with at most 64 GPUs are 49,875."""
    jobs, sizes = TRACES / "philly_2017_jobs.csv.gz", TRACES / "philly_2017_vc_nodes.csv"

    everything = read_philly(jobs, sizes)
    weeks = read_philly(jobs, sizes, since_ms=1_506_927_600_000, until_ms=1_509_955_200_000, max_gpus=64)

    assert (len(everything.submissions), everything.dropped) == (82_247, ())
    assert len(weeks.submissions) == 49_875
