"""Traces as they are found: whatever stands in a field, each row is a job or is dropped with its reason."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamsched.errors import ConfigurationError
from streamsched.model.events import WorkloadSubmitted
from streamsched.model.quantities import HOUR, SECOND
from streamsched.simulation.traces import Format, demand_of, read_trace

OWN = ("submitted_ms", "run_ms", "budget", "gpus", "ranks", "gpus_per_rank", "workload", "pool", "min_runtime_ms")
HEADERS = {
    Format.PHILLY: ("timestamp", "duration", "num_gpus", "cluster"),
    Format.ALIBABA: ("num_gpu", "qos", "creation_time", "deletion_time", "scheduled_time"),
    Format.OWN_CSV: (*OWN, "timeout_ms", "priority"),
}

#: Right values of some column, and what real files and careless people put in their place.
FIELDS = st.sampled_from(
    [
        "1", "8", "16", "3600", "100.5", "2017-10-09 07:01:55", "6214e9", "LS", "BE", "nlp/llama",
        "", "-1", "-3600", "0", "00", "nan", "inf", "1e9", "1e400", "0x10", "9" * 40, "1.5.2", "٣", "²", "None", "NULL",
        "0001-01-01 00:00:00", "9999-12-31 23:59:59", "2017-13-45 99:99:99", "2017-10-09T07:01:55+02:00",
        "a/b/c/d/e/f/g/h", "/", "..", "é", "\0", '"', "a\tb", "x" * 300,
    ]
)  # fmt: skip


@pytest.mark.parametrize("format_", HEADERS)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_row_of_a_table_is_a_job_or_is_dropped(tmp_path: Path, format_: Format, data: st.DataObject) -> None:
    """Missing, negative, absurd and unordered fields; jobs are ones that can be submitted as they are."""
    header = HEADERS[format_]
    table = data.draw(st.lists(st.tuples(*(FIELDS.filter(lambda field: field != '"') for _ in header)), max_size=8))
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(",".join(row) for row in (header, *table)) + "\n", encoding="utf-8")

    trace = read_trace(path, format_)

    assert len(trace.jobs) + len(trace.dropped) == len(table)
    assert all(row.reason and row.kind for row in trace.dropped)
    _can_be_submitted(path, format_)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.lists(FIELDS.filter(lambda field: field.split() == [field]), min_size=1, max_size=20)))
def test_every_line_of_swf_is_a_job_or_is_dropped(tmp_path: Path, lines: list[list[str]]) -> None:
    """So are lines of another number of fields; what begins with a semicolon is a remark."""
    path = tmp_path / "trace.swf"
    path.write_text("; UnixStartTime: 0\n" + "\n".join(" ".join(line) for line in lines) + "\n", encoding="utf-8")

    trace = read_trace(path, Format.SWF)

    assert len(trace.jobs) + len(trace.dropped) == len(lines)
    _can_be_submitted(path, Format.SWF)


@pytest.mark.parametrize("format_", [*HEADERS, Format.SWF, Format.HELIOS, Format.OWN_PARQUET, None])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_what_is_no_trace_is_read_or_refused(tmp_path: Path, format_: Format | None, data: bytes) -> None:
    """Any bytes, behind a right header or alone: there are jobs, or an error that says what is wrong."""
    path = tmp_path / "trace"
    header = ",".join(HEADERS.get(format_, ())) if format_ is not None else ""
    for content in (data, header.encode() + b"\n" + data, gzip.compress(data)[:-3]):
        path.write_bytes(content)

        assert str(path) in _read_or_refused(path, format_)


def test_a_row_is_dropped_with_what_is_wrong_with_it(tmp_path: Path) -> None:
    """Its line, the field, the value; the sound ones are sorted, and it is counted that they were not."""
    path = tmp_path / "trace.csv"
    path.write_text(
        "submitted_ms,run_ms,budget,gpus\n"
        "7200000,1000,nlp,8\n"
        "3600000,1000,nlp,1\n"
        "0,-5,nlp,1\n"
        "0,1000,,1\n"
        "0,1000,nlp,999999999\n"
        "0,1000\n"
    )

    trace = read_trace(path)

    assert [(job.line, job.at_ms) for job in trace.jobs] == [(3, HOUR), (2, 2 * HOUR)]
    assert trace.unordered == 1
    assert [(row.line, row.kind.partition(":")[0]) for row in trace.dropped] == [
        (4, "run_ms"),
        (5, "budget"),
        (6, "gpus"),
        (7, "it has another number of fields than the header"),
    ]
    assert "-5" in trace.dropped[0].reason


def test_the_fields_of_a_swf_line(tmp_path: Path) -> None:
    """By the definition of the format: 2 submitted, 4 ran, 5 used, 8 and 9 asked for, 12 the user, 13 the group."""
    path = tmp_path / "trace.swf"
    path.write_text("; UnixStartTime: 1000\n1 60 5 90 4 -1 -1 8 3600 -1 1 7 2 -1 -1 -1 -1 -1\n")

    (job,) = read_trace(path).jobs

    assert (job.at_ms, job.run_ms, job.gpus) == (1_060 * SECOND, 90 * SECOND, 8)
    assert (job.team, job.timeout_ms) == ("group-2/user-7", HOUR)


def _read_or_refused(path: Path, format_: Format | None) -> str:
    try:
        return str(read_trace(path, format_).path)
    except ConfigurationError as error:
        return str(error)


def _can_be_submitted(path: Path, format_: Format) -> None:
    trace = read_trace(path, format_)
    if trace.jobs:
        for submission in demand_of(trace).submissions:
            WorkloadSubmitted.model_validate(submission.workload.model_dump())
