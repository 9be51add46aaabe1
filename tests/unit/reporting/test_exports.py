"""What is written beside the page: traces, tables and pictures that other programs read."""

import gzip
import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pyarrow.parquet
import pytest

from streamsched.model.quantities import HOUR
from streamsched.reporting.perfetto import write_perfetto
from streamsched.reporting.pictures import write_pictures
from streamsched.reporting.tables import write_tables
from tests.unit.reporting.runs import displaced, in_turn

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_keeps_to_the_format(tmp_path: Path, name: str) -> None:
    """Trace Event Format: complete events have ts and dur in microseconds and no two of a thread overlap in part."""
    path = tmp_path / name

    write_perfetto(path, [in_turn(), displaced()])

    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        trace = json.load(file)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    named = set()
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        match event["ph"]:
            case "M":
                assert event["name"] in ("process_name", "process_sort_index", "thread_name")
                named.add((event["pid"], event.get("tid")))
            case "X":
                assert isinstance(event["tid"], int)
                assert isinstance(event["cat"], str)
                assert event["ts"] >= 0
                assert event["dur"] >= 0
                tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
            case other:
                pytest.fail(f"a phase that is not written: {other}")
    assert set(tracks) <= named
    # Two runs, each with one node of 8 GPUs.
    assert len(tracks) == 16
    for spells in tracks.values():
        spells.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spells))


def test_a_trace_says_who_was_preempted(tmp_path: Path) -> None:
    """red's first run on each of the 8 GPUs, and nobody else's."""
    write_perfetto(tmp_path / "trace.json", [displaced()])

    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    ends = [event for event in events if event["ph"] == "X" and event["args"]["end"] == "preempted"]
    assert [(event["name"], event["cat"], event["tid"]) for event in ends] == [
        ("w0", "red", gpu) for gpu in range(1, 9)
    ]


def test_tables_have_a_row_for_each_workload_run_and_hour(tmp_path: Path) -> None:
    """w0 has two runs: it was displaced by w1 and went on. Its second begins as w1's hour ends."""
    paths = write_tables(tmp_path, displaced())

    assert [path.name for path in paths] == ["workloads.parquet", "runs.parquet", "hours.parquet"]
    workloads, runs, hours = (pyarrow.parquet.read_table(path).to_pylist() for path in paths)
    assert [(row["workload"], row["team"], row["gpus"], row["allocated"], row["preempted"]) for row in workloads] == [
        ("w0", "red", 8, False, 1),
        ("w1", "blue", 8, True, 0),
    ]
    assert workloads[0]["submitted"] == datetime(1970, 1, 1, tzinfo=UTC)
    assert [(row["workload"], row["attempt"], row["end"], row["beneficiary"]) for row in runs] == [
        ("w0", 1, "preempted", "w1"),
        ("w1", 1, "succeeded", None),
        ("w0", 2, "succeeded", None),
    ]
    # The whole cluster is the team without a name; its quota is 8 GPUs in each of the 4 hours.
    whole = [row for row in hours if row["team"] == ""]
    assert [row["quota_gpu_ms"] for row in whole] == [8 * HOUR] * 4


def test_each_picture_is_a_png_and_an_svg(tmp_path: Path) -> None:
    """Of one run: who sat where, occupancy, delivery, usage, ratios, waits, fragmentation."""
    paths = write_pictures(tmp_path, [in_turn()])

    pngs = {path.stem for path in paths if path.suffix == ".png"}
    svgs = {path.stem for path in paths if path.suffix == ".svg"}
    assert pngs == svgs
    assert len(pngs) == 7
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(PNG)
        else:
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
