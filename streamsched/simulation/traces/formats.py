"""The formats of trace files, each as a reader that yields jobs and dropped rows, and what a file is recognised by."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from streamsched.errors import ConfigurationError
from streamsched.model.identifiers import BudgetId, PoolId, WorkloadId
from streamsched.model.quantities import SECOND
from streamsched.simulation.demand import DroppedRow
from streamsched.simulation.traces import rows
from streamsched.simulation.traces.helios import read_sequences
from streamsched.simulation.traces.rows import BadRowError, Job, Rows, table_rows


class Format(StrEnum):
    """What a trace file is."""

    PHILLY = "philly"
    HELIOS = "helios"
    SWF = "swf"
    ALIBABA = "alibaba"
    OWN_CSV = "csv"
    OWN_PARQUET = "parquet"


PHILLY_COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")
ALIBABA_COLUMNS: Final = ("num_gpu", "qos", "creation_time", "deletion_time", "scheduled_time")
HELIOS_COLUMNS: Final = ("time", "vc", "total_gpu_num", "running_gpu_num", "pending_gpu_num")
#: Of our own form, these must be there; and one of `gpus` and `gpus_per_rank`.
OWN_COLUMNS: Final = ("submitted_ms", "run_ms", "budget")

#: The local time of each format that has wall clock times, unless the user says otherwise. The owners of Helios name
#: none; its clusters stand in China.
ZONES: Final[Mapping[Format, str]] = {Format.PHILLY: "America/Los_Angeles", Format.HELIOS: "Asia/Shanghai"}


def recognise(path: Path) -> Format:
    """Return the format of a file by what is in it.

    Raises:
        ConfigurationError: It cannot be read, or is of no format that is known.
    """
    first = b""
    for line in rows.raw_lines(path):
        if isinstance(line, OSError) or line.strip():
            first = b"" if isinstance(line, OSError) else line.strip()
            break
    if first.startswith(b"PAR1"):
        return Format.OWN_PARQUET
    fields = first.split()
    if first.startswith(b";") or (
        len(fields) >= _SWF_FIELDS and all(_is_number(field) for field in fields[:_SWF_FIELDS])
    ):
        return Format.SWF
    header = {field.strip() for field in first.decode("utf-8", errors="replace").split(",")}
    for format_, columns in (
        (Format.PHILLY, PHILLY_COLUMNS),
        (Format.ALIBABA, ALIBABA_COLUMNS),
        (Format.HELIOS, HELIOS_COLUMNS),
        (Format.OWN_CSV, OWN_COLUMNS),
    ):
        if header.issuperset(columns):
            return format_
    raise ConfigurationError(
        f"{path} is no trace that is known: it begins with {first[:80]!r}. Known are Philly (columns "
        f"{', '.join(PHILLY_COLUMNS)}), Helios VC sequences ({', '.join(HELIOS_COLUMNS)}), Alibaba pods "
        f"({', '.join(ALIBABA_COLUMNS)}), SWF, and our own form ({', '.join(OWN_COLUMNS)}, ...) as CSV or Parquet; "
        "replay/traces/FORMATS.md describes them"
    )


def rows_of(path: Path, format_: Format, zone: str) -> Rows:
    """Yield what a file of one format holds.

    Args:
        path: The file.
        format_: What it is read as.
        zone: The IANA name of the zone of its wall clock times; unused where it has none.

    Raises:
        ConfigurationError: The file cannot be read, or is no such file.
    """
    match format_:
        case Format.PHILLY:
            return _table(path, PHILLY_COLUMNS, lambda line, row: _philly(line, row, zone))
        case Format.ALIBABA:
            return _table(path, ALIBABA_COLUMNS, _alibaba)
        case Format.HELIOS:
            return read_sequences(_table_of(path, HELIOS_COLUMNS), zone)
        case Format.SWF:
            return _read_swf(path)
        case Format.OWN_CSV:
            return _table(path, OWN_COLUMNS, _own)
        case Format.OWN_PARQUET:
            return _read_parquet(path)


# --- tables -----------------------------------------------------------------------------------------------------------

#: A row by the names of the columns.
_Row = Mapping[str, str]


def _table_of(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, _Row | DroppedRow]]:
    """Yield the rows of a CSV file by the names of its columns, which may stand in any order."""
    lines = table_rows(path)
    _, header = next(lines, (1, []))
    if isinstance(header, DroppedRow) or not set(columns) <= set(header):
        there = header.reason if isinstance(header, DroppedRow) else ", ".join(header) or "none"
        raise ConfigurationError(f"{path} has the columns {there}; it must have {', '.join(columns)}")
    for line, row in lines:
        yield line, row if isinstance(row, DroppedRow) else dict(zip(header, row, strict=True))


def _table(path: Path, columns: Sequence[str], read: Callable[[int, _Row], Job]) -> Rows:
    for line, row in _table_of(path, columns):
        if isinstance(row, DroppedRow):
            yield row
        else:
            yield _read(line, row, read)


def _read(line: int, row: Any, read: Callable[[int, Any], Job]) -> Job | DroppedRow:
    try:
        return read(line, row)
    except BadRowError as error:
        return error.at(line)


def _philly(line: int, row: _Row, zone: str) -> Job:
    return Job(
        line=line,
        at_ms=rows.wall_clock_ms("timestamp", row["timestamp"], zone),
        run_ms=rows.length_ms("duration", row["duration"]),
        gpus=rows.count("num_gpus", row["num_gpus"]),
        team=rows.team("cluster", row["cluster"]),
    )


def _alibaba(line: int, row: _Row) -> Job:
    """Pods: a part of a GPU is a whole one, and best effort is unallocated time."""
    if row["num_gpu"] == "0":
        raise BadRowError("num_gpu", "0", "so it asks for no GPU")
    gpus = rows.count("num_gpu", row["num_gpu"])
    created_ms = rows.moment_ms("creation_time", row["creation_time"])
    if not row["scheduled_time"]:
        raise BadRowError("scheduled_time", "", "so it never ran, and how long it would have is not known")
    scheduled_ms = rows.moment_ms("scheduled_time", row["scheduled_time"])
    deleted_ms = rows.moment_ms("deletion_time", row["deletion_time"])
    if scheduled_ms < created_ms:
        raise BadRowError("scheduled_time", row["scheduled_time"], "which is before creation_time")
    if deleted_ms <= scheduled_ms:
        raise BadRowError("deletion_time", row["deletion_time"], "which is not after scheduled_time")
    return Job(
        line=line,
        at_ms=created_ms,
        run_ms=_within(deleted_ms - scheduled_ms, "deletion_time", row["deletion_time"]),
        gpus=gpus,
        team=rows.team("qos", row["qos"]),
        min_runtime_ms=0 if row["qos"] == "BE" else None,
    )


def _within(run_ms: int, field: str, value: object) -> int:
    if run_ms > rows.LENGTH_MAX_MS:
        raise BadRowError(field, value, "so it ran for more than 366 days")
    return run_ms


# --- the Standard Workload Format -------------------------------------------------------------------------------------

_SWF_FIELDS: Final = 18
_UNKNOWN: Final = "-1"
_UNIX_TIME = re.compile(r"[0-9]{1,10}")


def _read_swf(path: Path) -> Rows:
    start_ms = 0
    for number, line in enumerate(rows.raw_lines(path), start=1):
        if isinstance(line, OSError):
            yield DroppedRow(number, f"the file is damaged from here on ({line})", "the file is damaged from here on")
            return
        text = line.decode("utf-8", errors="replace").strip()
        if text.startswith(";"):
            name, _, value = text[1:].partition(":")
            if name.strip() == "UnixStartTime" and _UNIX_TIME.fullmatch(value.strip()):
                start_ms = int(value) * SECOND
        elif text:
            fields = text.split()
            if len(fields) < _SWF_FIELDS:
                why = f"it has {len(fields)} fields where a job has {_SWF_FIELDS}"
                yield DroppedRow(number, why, "it has fewer than 18 fields")
            else:
                yield _read(number, (fields, start_ms), _swf)


def _swf(line: int, row: tuple[Sequence[str], int]) -> Job:
    """Processors count as GPUs; the requested time is the timeout; users are the teams, below their groups."""
    fields, start_ms = row
    submitted, run, used, requested, time, status, user, group = (
        fields[index] for index in (1, 3, 4, 7, 8, 10, 11, 12)
    )
    if status in ("2", "3", "4"):
        raise BadRowError("status", status, "so it is a part of a job that has a line of its own")
    if run in (_UNKNOWN, "0"):
        raise BadRowError("run time", run, "so it held nothing, or nobody knows for how long")
    wanted = requested if requested not in (_UNKNOWN, "0") else used
    return Job(
        line=line,
        at_ms=start_ms + rows.moment_ms("submit time", submitted),
        run_ms=rows.length_ms("run time", run),
        gpus=rows.count("processors", wanted),
        team=f"{_named('group', group)}/{_named('user', user)}",
        timeout_ms=None if time in (_UNKNOWN, "0") else rows.length_ms("requested time", time),
    )


def _named(kind: str, number: str) -> str:
    return f"no-{kind}" if number == _UNKNOWN else f"{kind}-{rows.count(kind, number, 999_999_999)}"


def _is_number(field: bytes) -> bool:
    return field.removeprefix(b"-").replace(b".", b"", 1).isdigit()


# --- our own form -----------------------------------------------------------------------------------------------------

_BUDGET: TypeAdapter[str] = TypeAdapter(BudgetId)
_POOL: TypeAdapter[str] = TypeAdapter(PoolId)
_NAME: TypeAdapter[str] = TypeAdapter(WorkloadId)
_MOMENT_MAX_MS: Final = 253_402_300_800_000  # The year 10,000.


def _own(line: int, row: Mapping[str, Any]) -> Job:
    """One column for each field of a job; `FORMATS.md` says which. Empty is the same as no such column."""
    size = _number(row, "gpus_per_rank", 1, 16)
    ranks = _number(row, "ranks", 1, rows.GPUS_MAX)
    gpus = _number(row, "gpus", 1, rows.GPUS_MAX)
    if gpus is None:
        if size is None:
            raise BadRowError("gpus", "", "and so is gpus_per_rank; one of them must be given")
        gpus = size * (ranks or 1)
    elif size is not None and gpus != size * (ranks or 1):
        raise BadRowError("gpus", gpus, "which is not ranks times gpus_per_rank")
    at_ms = _number(row, "submitted_ms", 0, _MOMENT_MAX_MS)
    run_ms = _number(row, "run_ms", 1, rows.LENGTH_MAX_MS)
    if at_ms is None or run_ms is None:
        raise BadRowError("submitted_ms" if at_ms is None else "run_ms", "", "and must be given")
    return Job(
        line=line,
        at_ms=at_ms,
        run_ms=run_ms,
        gpus=gpus,
        team=_text(row, "budget", _BUDGET) or _missing("budget"),
        gpus_per_rank=size,
        timeout_ms=_number(row, "timeout_ms", 1, rows.LENGTH_MAX_MS),
        min_runtime_ms=_number(row, "min_runtime_ms", 0, rows.LENGTH_MAX_MS),
        priority=_number(row, "priority", -1_000_000, 1_000_000) or 0,
        pool=_text(row, "pool", _POOL),
        name=_text(row, "workload", _NAME),
    )


def _missing(field: str) -> str:
    raise BadRowError(field, "", "and must be given")


def _number(row: Mapping[str, Any], field: str, least: int, most: int) -> int | None:
    value = row.get(field)
    if value is None or value == "":
        return None
    if isinstance(value, str) and len(value) <= 18 and value.isascii() and value.removeprefix("-").isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadRowError(field, value, f"which is no whole number from {least} to {most}")
    return value


def _text(row: Mapping[str, Any], field: str, known: TypeAdapter[str]) -> str | None:
    value = row.get(field)
    if value is None or value == "":
        return None
    try:
        return known.validate_python(value)
    except ValidationError:
        raise BadRowError(field, value, f"which is no name of a {field}") from None


def _read_parquet(path: Path) -> Rows:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError:
        raise ConfigurationError(
            f"{path} is a Parquet file, and pyarrow is not installed: pip install 'streamsched[parquet]'"
        ) from None
    try:
        table = read_table(path)
    except (ArrowException, OSError) as error:
        raise ConfigurationError(f"{path} is no Parquet file that can be read: {error}") from None
    if not set(OWN_COLUMNS) <= set(table.column_names):
        there = ", ".join(table.column_names) or "none"
        raise ConfigurationError(f"{path} has the columns {there}; it must have {', '.join(OWN_COLUMNS)}")
    for number, row in enumerate(table.to_pylist(), start=1):
        yield _read(number, row, _own)
