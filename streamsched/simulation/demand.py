"""Demand: what people ask for, when, and how long it would truly run. Read from a trace file.

The Philly trace (Microsoft, 2017) says for each job when it was submitted, how many GPUs it took, how long it ran, and
to which virtual cluster (VC) it belonged. What it does not say, and what scheduling needs, is given by these rules:

- **Shape.** Up to 8 GPUs are one rank. More are ranks of 8 GPUs when 8 divides them, else the fewest equal ranks.
- **Contract.** A share of the jobs, 20 % unless said otherwise, asks for unallocated time: min runtime 0. Which ones
  is drawn from the job's id and a seed, so that the same job draws the same in any stretch of the trace. The others
  declare their true run time, rounded up to the next of 5 min, 15 min, 30 min, 1 h, 2 h, 4 h and 8 h, and 8 h when it
  is longer: what people who know their work would say, within the cap of the policy. All work may be resumed, and goes
  on where it was stopped (see `streamsched.simulation.virtual_cluster`).
- **Team.** A VC is a leaf of the budget tree. Its quota is its number of nodes in the list of VC sizes over the sum of
  all; a VC that the list does not name counts as one node.
- **Time.** The trace has US Pacific wall clock times. They become UTC; the hour that the end of summer time repeats is
  taken as its first pass.

Rows that cannot be used are dropped and named. Rows need not be sorted.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from zlib import crc32
from zoneinfo import ZoneInfo

from streamsched.errors import ConfigurationError
from streamsched.model.events import BudgetShare, BudgetTreeChanged, WorkloadSubmitted
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND, WHOLE
from streamsched.node.virtual_node import sleep_argv

if TYPE_CHECKING:
    from streamsched.state.cluster import ClusterState

#: What people write as a min runtime.
USUAL_MIN_RUNTIMES_MS: Final = (5 * MINUTE, 15 * MINUTE, 30 * MINUTE, 1 * HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR)

#: GPUs of one rank at most: the machines of the trace had up to 8.
_GPUS_PER_RANK_MAX: Final = 8
_GPUS_MAX: Final = 10_000
_RUN_MS_MAX: Final = 366 * DAY
_PACIFIC: Final = ZoneInfo("America/Los_Angeles")
_COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")
_NUMBER = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_VC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Submission:
    """One workload, when it is asked for, and how long it would run if nobody stopped it."""

    at_ms: int
    workload: WorkloadSubmitted
    run_ms: int


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """A row of a trace that is no job: its line in the file, counted from 1, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Demand:
    """What a cluster is asked for.

    Attributes:
        submissions: In order of time, those of one moment in the order of the trace.
        budgets: The tree of budgets that pay for it.
        dropped: Rows of the trace that were no jobs.
    """

    submissions: tuple[Submission, ...]
    budgets: BudgetTreeChanged
    dropped: tuple[DroppedRow, ...] = ()


class Source(Protocol):
    """Whoever submits, one workload at a time, in order of time."""

    @property
    def budgets(self) -> BudgetTreeChanged:
        """The tree of budgets that pay."""
        ...

    @property
    def next_due_ms(self) -> int | None:
        """When somebody next thinks of submitting; None when nobody does any more."""
        ...

    def next_submission(self, now_ms: int, state: ClusterState) -> WorkloadSubmitted | None:
        """Take the next submission due by now, or None when there is none yet. People may look at the queue first."""
        ...


@dataclass(slots=True)
class _Listed:
    """A list that is submitted whatever the queue is like."""

    budgets: BudgetTreeChanged
    submissions: tuple[Submission, ...]
    following: int = 0

    @property
    def next_due_ms(self) -> int | None:
        return self.submissions[self.following].at_ms if self.following < len(self.submissions) else None

    def next_submission(self, now_ms: int, state: ClusterState) -> WorkloadSubmitted | None:  # noqa: ARG002
        if self.following == len(self.submissions) or self.submissions[self.following].at_ms > now_ms:
            return None
        self.following += 1
        return self.submissions[self.following - 1].workload


def listed(demand: Demand) -> Source:
    """Return a source that submits what a demand lists."""
    return _Listed(demand.budgets, demand.submissions)


def read_philly(
    jobs: Path,
    vc_nodes: Path,
    *,
    since_ms: int = 0,
    until_ms: int | None = None,
    max_gpus: int | None = None,
    unallocated_percent: int = 20,
    seed: int = 0,
    min_runtime_cap_ms: int = 8 * HOUR,
) -> Demand:
    """Read the Philly trace by the rules at the head of this module.

    Args:
        jobs: The job list, CSV or gzipped CSV.
        vc_nodes: The list of VC sizes, CSV with a name and a number of nodes.
        since_ms: Jobs submitted before this are left out.
        until_ms: So are those submitted then or later.
        max_gpus: So are those of more GPUs.
        unallocated_percent: The share of the jobs that asks for unallocated time, 0 to 100.
        seed: Draws which ones those are.
        min_runtime_cap_ms: The longest min runtime that the policy admits.

    Raises:
        ConfigurationError: A file cannot be read, or is no such list.
    """
    if not 0 <= unallocated_percent <= 100:
        raise ConfigurationError(f"unallocated_percent is {unallocated_percent}; give a percentage from 0 to 100")
    sizes = _vc_sizes(vc_nodes)
    submissions: list[Submission] = []
    dropped: list[DroppedRow] = []
    rows = _rows(jobs)
    _, header = next(rows, (1, []))
    if isinstance(header, str) or any(column not in header for column in _COLUMNS):
        raise ConfigurationError(f"{jobs} has the columns {header}; a Philly trace has {', '.join(_COLUMNS)}")
    columns = [header.index(column) for column in _COLUMNS]
    for line, row in rows:
        try:
            if isinstance(row, str):
                raise ValueError(row)
            if len(row) != len(header):
                raise ValueError(f"it has {len(row)} fields where the header has {len(header)}")
            submitted, duration, num_gpus, vc = (row[column].strip() for column in columns)
            at_ms, run_ms, gpus = _utc_ms(submitted), _run_ms(duration), _gpus(num_gpus)
            if not _VC.fullmatch(vc):
                raise ValueError(f"cluster is {vc!r}, which is no name of a budget")
            sizes.setdefault(vc, 1)
            if at_ms < since_ms or (until_ms is not None and at_ms >= until_ms):
                continue
            if max_gpus is not None and gpus > max_gpus:
                continue
            unallocated = crc32(f"{seed}/{line}".encode()) % 100 < unallocated_percent
            ranks, gpus_per_rank = gang_of(gpus)
            workload = WorkloadSubmitted(
                workload=f"philly-{line}",
                budget=vc,
                ranks=ranks,
                gpus_per_rank=gpus_per_rank,
                min_runtime_ms=0 if unallocated else declared_min_runtime_ms(run_ms, min_runtime_cap_ms),
                resumable=True,
                command=sleep_argv(run_ms),
            )
            submissions.append(Submission(at_ms, workload, run_ms))
        except ValueError as error:
            dropped.append(DroppedRow(line, str(error)))
    submissions.sort(key=lambda submission: submission.at_ms)
    budgets = BudgetTreeChanged(
        change="philly-vc-sizes",
        reason="the sizes of the virtual clusters of the trace",
        budgets=tuple(BudgetShare(budget=vc, fraction_nano=nano) for vc, nano in shares_of(sizes)),
    )
    return Demand(tuple(submissions), budgets, tuple(dropped))


def declared_min_runtime_ms(run_ms: int, cap_ms: int) -> int:
    """Return the usual min runtime that covers a run, or the longest within the cap when none does.

    >>> declared_min_runtime_ms(20 * MINUTE, 8 * HOUR) == 30 * MINUTE
    True
    >>> declared_min_runtime_ms(9 * DAY, 8 * HOUR) == 8 * HOUR
    True
    """
    within = [usual for usual in USUAL_MIN_RUNTIMES_MS if usual <= cap_ms] or [cap_ms]
    return next((usual for usual in within if usual >= run_ms), within[-1])


@lru_cache(maxsize=1_024)
def gang_of(gpus: int) -> tuple[int, int]:
    """Return ranks and GPUs of each for a number of GPUs: the fewest equal ranks of at most 8.

    >>> gang_of(4), gang_of(32), gang_of(12), gang_of(11)
    ((1, 4), (4, 8), (2, 6), (11, 1))
    """
    ranks = next(ranks for ranks in range(1, gpus + 1) if gpus % ranks == 0 and gpus // ranks <= _GPUS_PER_RANK_MAX)
    return ranks, gpus // ranks


def shares_of(sizes: dict[str, int]) -> list[tuple[str, int]]:
    """Return each size as parts of `WHOLE`, by largest remainder, so that they add up to the whole; sorted by name.

    >>> shares_of({"b": 1, "a": 1, "c": 1})
    [('a', 333333334), ('b', 333333333), ('c', 333333333)]
    """
    total = sum(sizes.values())
    names = sorted(sizes)
    if not total:
        return [(name, 0) for name in names]
    parts = {name: divmod(sizes[name] * WHOLE, total) for name in names}
    missing = WHOLE - sum(whole for whole, _ in parts.values())
    rounded_up = sorted(names, key=lambda name: (-parts[name][1], name))[:missing]
    return [(name, parts[name][0] + (name in rounded_up)) for name in names]


def _vc_sizes(path: Path) -> dict[str, int]:
    rows = _rows(path)
    _, header = next(rows, (1, []))
    if isinstance(header, str) or len(header) != 2:
        raise ConfigurationError(
            f"{path} has the columns {header}; a list of VC sizes has a name and a number of nodes"
        )
    sizes: dict[str, int] = {}
    for line, row in rows:
        if isinstance(row, str) or len(row) != 2 or not _VC.fullmatch(row[0]) or not _is_count(row[1]):
            raise ConfigurationError(f"{path}, line {line}: {row!r} is no VC and number of nodes, such as 6214e9,64")
        sizes[row[0]] = int(row[1])
    return sizes


def _rows(path: Path) -> Iterator[tuple[int, list[str] | str]]:
    """Yield the line number and the fields of each row of a CSV file, or what is wrong instead of the fields.

    Raises:
        ConfigurationError: The file cannot be opened.
    """
    try:
        opened = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # noqa: SIM115  closed by the `with` below
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}); name a trace file") from error
    with opened as file:
        reader = csv.reader(_text_lines(file))
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield reader.line_num, str(error)
                continue
            except (EOFError, OSError) as error:
                yield reader.line_num + 1, f"the file is damaged from here on ({error})"
                return
            if row:
                yield reader.line_num, row


def _text_lines(lines: Iterable[bytes]) -> Iterator[str]:
    """Bytes that are no UTF-8 become a character that no field may have, so that their row is dropped."""
    return (line.decode("utf-8", errors="replace") for line in lines)


def _run_ms(text: str) -> int:
    read = _NUMBER.fullmatch(text)
    if read is None:
        raise ValueError(f"duration is {text!r}, which is no number of seconds")
    whole, part = read.groups()
    run_ms = int(whole) * SECOND + int((part or "")[:3].ljust(3, "0"))
    if not 0 < run_ms <= _RUN_MS_MAX:
        raise ValueError(f"duration is {text!r}; a job runs for more than nothing and at most 366 days")
    return run_ms


def _gpus(text: str) -> int:
    if not _is_count(text) or not 1 <= int(text) <= _GPUS_MAX:
        raise ValueError(f"num_gpus is {text!r}, which is no number from 1 to {_GPUS_MAX}")
    return int(text)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _utc_ms(text: str) -> int:
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"timestamp is {text!r}, which is no date and time such as 2017-10-09 07:01:55") from None
    if local.tzinfo is not None or not 1971 <= local.year <= 9000:
        raise ValueError(f"timestamp is {text!r}; it must be a wall clock time, without an offset, after 1970")
    past_the_hour_ms = (local.minute * 60 + local.second) * SECOND
    return _hour_utc_ms(local.replace(minute=0, second=0, microsecond=0)) + past_the_hour_ms


@lru_cache(maxsize=1_024)
def _hour_utc_ms(local: datetime) -> int:
    """Return when an hour of Pacific wall clock begins."""
    return int(local.replace(tzinfo=_PACIFIC).timestamp()) * SECOND
