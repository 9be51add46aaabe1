"""Rows of a trace file, whatever it is: where they come from, what a job is, and why a row is none."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from streamsched.errors import ConfigurationError
from streamsched.model.quantities import DAY, SECOND
from streamsched.simulation.demand import DroppedRow

#: Larger numbers are taken for mistakes.
GPUS_MAX: Final = 100_000
LENGTH_MAX_MS: Final = 366 * DAY

_NUMBER = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,9}))?")
_TEAM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_GZIP: Final = b"\x1f\x8b"
#: Values are shown up to this length.
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Job:
    """A row of a trace: what somebody asked for, and how long it truly ran.

    Attributes:
        line: Where it stands in the file, counted from 1; rows of a Parquet file count from 1 too.
        at_ms: When it was submitted.
        run_ms: How long it ran.
        gpus: The GPUs of all its ranks.
        team: Who pays, as a path of the budget tree.
        gpus_per_rank: Where the trace says it; ranks are made up where it is None.
        timeout_ms: Where people said when to stop it.
        min_runtime_ms: Where they declared it; 0 asks for unallocated time. None: a rule must say it.
        priority: Larger goes first inside its team.
        pool: The kind of GPU; None for any.
        name: Its id, where it has one that a workload may have.
    """

    line: int
    at_ms: int
    run_ms: int
    gpus: int
    team: str
    gpus_per_rank: int | None = None
    timeout_ms: int | None = None
    min_runtime_ms: int | None = None
    priority: int = 0
    pool: str | None = None
    name: str | None = None


#: What a reader of one format makes of a file.
Rows = Iterator[Job | DroppedRow]


class BadRowError(ValueError):
    """A row that is no job: which field has which value, and what it is not."""

    def __init__(self, field: str, value: object, why: str) -> None:
        shown = repr(value)
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}..."
        super().__init__(f"{field} is {shown}, {why}")
        self.kind = f"{field}: {why.removeprefix('which ')}"

    def at(self, line: int) -> DroppedRow:
        """Return it as a row that was dropped."""
        return DroppedRow(line, str(self), self.kind)


def raw_lines(path: Path) -> Iterator[bytes | OSError]:
    """Yield the lines of a file, unpacked where it is gzipped; and last, what broke off, if something did.

    Raises:
        ConfigurationError: The file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == _GZIP
        opened = gzip.open(path, "rb") if is_packed else path.open("rb")  # noqa: SIM115  closed by the `with` below
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}); name a trace file") from error
    with opened as file:
        lines = iter(file)
        while True:
            try:
                yield next(lines)
            except StopIteration:
                return
            except (EOFError, OSError, zlib.error) as error:
                yield OSError(str(error))
                return


def table_rows(path: Path) -> Iterator[tuple[int, list[str] | DroppedRow]]:
    """Yield the line number and the fields of each row of a CSV file, or why it has none. The first is its header.

    Raises:
        ConfigurationError: The file cannot be opened.
    """
    broken: list[OSError] = []
    reader = csv.reader(_texts(raw_lines(path), broken))
    width = 0
    while True:
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            yield reader.line_num, DroppedRow(reader.line_num, str(error), "it is no row of CSV")
            continue
        if not row:
            continue
        width = width or len(row)
        if len(row) != width:
            reason = f"it has {len(row)} fields where the header has {width}"
            yield (
                reader.line_num,
                DroppedRow(reader.line_num, reason, "it has another number of fields than the header"),
            )
        else:
            yield reader.line_num, [field.strip() for field in row]
    for damage in broken:
        line = reader.line_num + 1
        yield line, DroppedRow(line, f"the file is damaged from here on ({damage})", "the file is damaged from here on")


def _texts(lines: Iterable[bytes | OSError], broken: list[OSError]) -> Iterator[str]:
    """Bytes that are no UTF-8 become a character that no field may have, and so does NUL: their row is dropped."""
    for line in lines:
        if isinstance(line, OSError):
            broken.append(line)
        else:
            yield line.decode("utf-8", errors="replace").replace("\0", "\ufffd")


def length_ms(field: str, text: str) -> int:
    """Read a run time in seconds; it must be more than nothing."""
    run_ms = moment_ms(field, text)
    if not 0 < run_ms <= LENGTH_MAX_MS:
        raise BadRowError(field, text, "which is not more than nothing and at most 366 days")
    return run_ms


def moment_ms(field: str, text: str) -> int:
    """Read a number of seconds, with or without a fraction, as milliseconds."""
    read = _NUMBER.fullmatch(text)
    if read is None:
        raise BadRowError(field, text, "which is no number of seconds")
    whole, part = read.groups()
    return int(whole) * SECOND + int((part or "")[:3].ljust(3, "0"))


def count(field: str, text: str, most: int = GPUS_MAX) -> int:
    """Read a number from 1 to `most`."""
    if not is_count(text) or not 1 <= int(text) <= most:
        raise BadRowError(field, text, f"which is no number from 1 to {most}")
    return int(text)


def is_count(text: str) -> bool:
    """Whether a text is a whole number that is not absurd."""
    return text.isascii() and text.isdigit() and len(text) <= 9


def team(field: str, text: str) -> str:
    """Read the name of a team: one level of the budget tree."""
    if not _TEAM.fullmatch(text):
        raise BadRowError(field, text, "which is no name of a budget")
    return text


def wall_clock_ms(field: str, text: str, zone: str) -> int:
    """Read a local time, such as ``2017-10-09 07:01:55``, of a zone as milliseconds since 1970."""
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        raise BadRowError(field, text, "which is no date and time such as 2017-10-09 07:01:55") from None
    if local.tzinfo is not None or not 1971 <= local.year <= 9000:
        raise BadRowError(field, text, "which is no wall clock time, without an offset, after 1970")
    past_the_hour_ms = (local.minute * 60 + local.second) * SECOND
    return _hour_utc_ms(local.replace(minute=0, second=0, microsecond=0), zone) + past_the_hour_ms


@lru_cache(maxsize=4_096)
def _hour_utc_ms(local: datetime, zone: str) -> int:
    """Return when an hour of wall clock begins; of one that comes twice, the first."""
    return int(local.replace(tzinfo=ZoneInfo(zone)).timestamp()) * SECOND
