"""A trace file becomes demand: which of its jobs, under which contracts, and who pays.

A trace says when work was submitted, how many GPUs it took and how long it ran. What it does not say, and what
scheduling needs, is given by these rules, for every format alike:

- **Shape.** Where the trace says no ranks, work of up to a node's GPUs (8 unless said otherwise) is one rank, and more
  the fewest equal ranks that fit on nodes.
- **Contract.** Where the trace says no min runtime, a share of the jobs, 20 % unless said otherwise, asks for
  unallocated time: min runtime 0. Which ones is drawn from the job's line and a seed, so that the same job draws the
  same in any stretch of the trace. The others declare their true run time, rounded up to the next of 5 min, 15 min,
  30 min, 1 h, 2 h, 4 h and 8 h, and 8 h when it is longer: what people who know their work would say, within the cap
  of the policy. All work may be resumed, and goes on where it was stopped (see
  `streamsched.simulation.virtual_cluster`).
- **Timeout.** What people requested, where the trace says it; else none.
- **Quota.** Philly: the number of nodes of a virtual cluster (VC) in a published list over the sum of all; a VC that is
  not listed counts as one node. Helios: the GPUs of a VC in its first sample. All others: what a team asks for of all
  GPU-time asked for, in the jobs that are read. Or any tree that is given.

Rows that cannot be used are dropped and named. Rows need not be sorted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from streamsched.errors import ConfigurationError
from streamsched.model.events import BudgetShare, BudgetTreeChanged, WorkloadSubmitted, trusted
from streamsched.model.quantities import HOUR
from streamsched.node.virtual_node import sleep_argv
from streamsched.simulation.demand import Demand, DroppedRow, Submission, declared_min_runtime_ms, gang_of, shares_of
from streamsched.simulation.traces.formats import ZONES, Format, recognise, rows_of
from streamsched.simulation.traces.quotas import PHILLY_VC_NODES, first_sizes, read_sizes
from streamsched.simulation.traces.rows import BadRowError, Job

_submitted = trusted(WorkloadSubmitted)  # The readers of the formats have checked every field.

#: GPUs of a node where nothing is said of the nodes: what Philly had.
_GPUS_PER_NODE: Final = 8


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace file as it was read.

    Attributes:
        path: The file.
        format: What it was read as.
        zone: The zone of its wall clock times.
        jobs: In order of time, those of one moment in the order of the file.
        dropped: Rows that are no jobs.
        unordered: How many jobs were submitted before the job in the row above.
        sizes: What the quotas of teams are in proportion to; None where it is what they ask for.
        quota_rule: The same in words.
    """

    path: Path
    format: Format
    zone: str
    jobs: Sequence[Job]
    dropped: Sequence[DroppedRow]
    unordered: int
    sizes: Mapping[str, int] | None
    quota_rule: str

    def as_json(self) -> dict[str, Any]:
        """Return what was read, and what was dropped: by reason the number of rows and the first of them."""
        first: dict[str, DroppedRow] = {}
        for row in self.dropped:
            first.setdefault(row.kind, row)
        counts = Counter(row.kind for row in self.dropped)
        return {
            "path": str(self.path),
            "format": self.format.value,
            "zone": self.zone,
            "jobs": len(self.jobs),
            "unordered": self.unordered,
            "dropped": [
                {"reason": kind, "rows": rows, "first_line": first[kind].line, "first": first[kind].reason}
                for kind, rows in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            ],
            "quotas": self.quota_rule,
        }


@dataclass(frozen=True, slots=True)
class Selection:
    """Which jobs of a trace are asked for.

    Attributes:
        since_ms: Those submitted before this are left out.
        until_ms: So are those submitted then or later.
        max_gpus: So are those of more GPUs.
    """

    since_ms: int = 0
    until_ms: int | None = None
    max_gpus: int | None = None

    def takes(self, job: Job) -> bool:
        """Whether a job is among them."""
        return (
            job.at_ms >= self.since_ms
            and (self.until_ms is None or job.at_ms < self.until_ms)
            and (self.max_gpus is None or job.gpus <= self.max_gpus)
        )


@dataclass(frozen=True, slots=True)
class Contract:
    """What is supplied where a trace does not say it; see the head of this module.

    Attributes:
        unallocated_percent: The share of the jobs that asks for unallocated time, 0 to 100.
        seed: Draws which ones those are.
        min_runtime_cap_ms: The longest min runtime that the policy admits.
        gpus_per_node: GPUs of one rank at most.
        one_pool: Whether the cluster is one pool of GPUs: every gang has ranks of one GPU, which take GPUs anywhere.
    """

    unallocated_percent: int = 20
    seed: int = 0
    min_runtime_cap_ms: int = 8 * HOUR
    gpus_per_node: int = _GPUS_PER_NODE
    one_pool: bool = False


def read_trace(path: Path, format_: Format | None = None, zone: str | None = None) -> Trace:
    """Read a trace file.

    Args:
        path: The file, gzipped or not.
        format_: What it is; None to see by what is in it.
        zone: The IANA name of the zone of its wall clock times; None for that of the format's owner.

    Raises:
        ConfigurationError: It cannot be read, or is no trace that is known.
    """
    known = recognise(path) if format_ is None else format_
    in_zone = zone or ZONES.get(known, "UTC")
    jobs: list[Job] = []
    dropped: list[DroppedRow] = []
    unordered = 0
    for row in rows_of(path, known, in_zone):
        if isinstance(row, Job):
            unordered += bool(jobs) and row.at_ms < jobs[-1].at_ms
            jobs.append(row)
        else:
            dropped.append(row)
    jobs.sort(key=lambda job: (job.at_ms, job.line))
    sizes: Mapping[str, int] | None = None
    rule = "in proportion to the GPU-time that each team asks for"
    if known is Format.PHILLY:
        sizes, rule = _philly_sizes(PHILLY_VC_NODES, jobs), "the published sizes of the virtual clusters"
    elif known is Format.HELIOS:
        sizes, rule = first_sizes(path), "the GPUs of each virtual cluster in its first sample"
    return Trace(path, known, in_zone, jobs, dropped, unordered, sizes, rule)


def demand_of(
    trace: Trace,
    selection: Selection = Selection(),
    contract: Contract = Contract(),
    budgets: Sequence[BudgetShare] | None = None,
) -> Demand:
    """Return what a trace asks for.

    Args:
        trace: As it was read.
        selection: Which of its jobs.
        contract: What it does not say.
        budgets: The tree that pays, in place of the rule of the format. Jobs of teams that are no leaf are dropped.

    Raises:
        ConfigurationError: No job is left.
    """
    jobs = [job for job in trace.jobs if selection.takes(job)]
    dropped = list(trace.dropped)
    shares = _shares(trace, jobs) if budgets is None else tuple(budgets)
    leaves = {share.budget for share in shares} - {share.budget.rpartition("/")[0] for share in shares}
    dropped += [_homeless(job) for job in jobs if job.team not in leaves]
    jobs = [job for job in jobs if job.team in leaves]
    if not jobs:
        raise ConfigurationError(f"{trace.path} has no job in this stretch; choose another one")
    names = _Names(trace.format)
    submissions = tuple(Submission(job.at_ms, _submission(job, names.of(job), contract), job.run_ms) for job in jobs)
    tree = BudgetTreeChanged(change=f"{trace.format}-teams", reason=trace.quota_rule, budgets=shares)
    return Demand(submissions, tree, tuple(dropped))


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
    """Read the Philly trace with a list of VC sizes. The arguments are those of `Selection` and `Contract`.

    Args:
        jobs: The job list.
        vc_nodes: CSV with the name and the number of nodes of each VC.

    Raises:
        ConfigurationError: A file cannot be read, or is no such list.
    """
    if not 0 <= unallocated_percent <= 100:
        raise ConfigurationError(f"unallocated_percent is {unallocated_percent}; give a percentage from 0 to 100")
    listed = read_sizes(vc_nodes)
    trace = read_trace(jobs, Format.PHILLY)
    sizes = _philly_sizes(listed, trace.jobs)
    tree = tuple(BudgetShare(budget=vc, fraction_nano=nano) for vc, nano in shares_of(sizes))
    contract = Contract(unallocated_percent, seed, min_runtime_cap_ms)
    return demand_of(trace, Selection(since_ms, until_ms, max_gpus), contract, tree)


def _philly_sizes(listed: Mapping[str, int], jobs: Sequence[Job]) -> dict[str, int]:
    """Return the sizes of the VCs, and of those that are not listed one node."""
    return {**{job.team: 1 for job in jobs}, **listed}


def _shares(trace: Trace, jobs: Sequence[Job]) -> tuple[BudgetShare, ...]:
    sizes = trace.sizes
    if sizes is None:
        asked: dict[str, int] = {}
        for job in jobs:
            asked[job.team] = asked.get(job.team, 0) + job.gpus * job.run_ms
        sizes = asked
    shares = [BudgetShare(budget=team, fraction_nano=nano) for team, nano in _in_tree(sizes)]
    return tuple(shares)


def _in_tree(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the share of each team and, where names are paths, of those above it, each of its parent."""
    children: dict[str, dict[str, int]] = {}
    for team, size in sizes.items():
        path = team.split("/")
        for depth in range(1, len(path) + 1):
            parent, name = "/".join(path[: depth - 1]), "/".join(path[:depth])
            of_parent = children.setdefault(parent, {})
            of_parent[name] = of_parent.get(name, 0) + size
    return [share for parent in sorted(children) for share in shares_of(children[parent])]


def _homeless(job: Job) -> DroppedRow:
    return BadRowError("team", job.team, "which is no leaf of the budgets").at(job.line)


class _Names:
    """Ids of workloads: those of the trace, or the format and the line, so that they sort as the rows come."""

    def __init__(self, format_: Format) -> None:
        self._format = format_
        #: How often each was asked for.
        self._taken: dict[str, int] = {}

    def of(self, job: Job) -> str:
        """Return the id of a job; one that was there before gets a number after it."""
        name = job.name or f"{self._format}-{job.line:06}"
        while name in self._taken:
            self._taken[name] += 1
            name = f"{name[:110]}.{self._taken[name]}"
        self._taken[name] = 1
        return name


def _submission(job: Job, name: str, contract: Contract) -> WorkloadSubmitted:
    if job.min_runtime_ms is not None:
        min_runtime_ms = job.min_runtime_ms
    elif crc32(f"{contract.seed}/{job.line}".encode()) % 100 < contract.unallocated_percent:
        min_runtime_ms = 0
    else:
        min_runtime_ms = declared_min_runtime_ms(job.run_ms, contract.min_runtime_cap_ms)
    if contract.one_pool:
        ranks, gpus_per_rank = job.gpus, 1
    elif job.gpus_per_rank is not None:
        ranks, gpus_per_rank = job.gpus // job.gpus_per_rank, job.gpus_per_rank
    else:
        ranks, gpus_per_rank = gang_of(job.gpus, contract.gpus_per_node)
    return _submitted(
        workload=name,
        budget=job.team,
        pool=job.pool,
        ranks=ranks,
        gpus_per_rank=gpus_per_rank,
        min_runtime_ms=min_runtime_ms,
        timeout_ms=job.timeout_ms,
        resumable=True,
        priority=job.priority,
        command=_sleep(job.run_ms),
    )


@lru_cache(maxsize=65_536)
def _sleep(run_ms: int) -> tuple[str, ...]:
    return sleep_argv(run_ms)
