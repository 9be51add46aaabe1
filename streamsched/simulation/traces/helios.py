"""Helios VC sequences: how many GPUs run and wait in each virtual cluster (VC), every so many minutes. No jobs.

Jobs are made up so that the sequence comes out again. For each VC there are three running totals of GPUs: those that
have started, ``S``, which grows by each rise of ``running_gpu_num``; those that have ended, ``E``, which grows by each
fall; and those that were asked for, ``A = S + pending_gpu_num``, or what it was before if that is more. The n-th GPU is
asked for when ``A`` reaches n, starts when ``S`` does and ends when ``E`` does. GPUs with the same three moments are
one job: its submission is the first of them, its run time the difference of the other two.

So waits in the cluster that was are no part of a run time. What begins and ends between two samples is not seen; what
runs at the first sample was submitted then; what runs at the last ends one sample later; and what has not started by
then is left out, because nobody knows how long it would run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from streamsched.model.quantities import MINUTE
from streamsched.simulation.demand import DroppedRow
from streamsched.simulation.traces import rows
from streamsched.simulation.traces.rows import BadRowError, Job, Rows

#: How far apart samples are where there is only one.
_SAMPLE_MS: Final = 10 * MINUTE


@dataclass(slots=True)
class _Cluster:
    """What is known of a VC so far. A queue holds how many GPUs came to a point, and with which moments."""

    running: int = 0
    asked: int = 0
    started: int = 0
    #: Asked for and not started: the line, when, how many.
    waiting: deque[tuple[int, ...]] = field(default_factory=deque)
    #: Started and not ended: the line, when asked for, when started, how many.
    held: deque[tuple[int, ...]] = field(default_factory=deque)


def read_sequences(table: Iterable[tuple[int, Mapping[str, str] | DroppedRow]], zone: str) -> Rows:
    """Yield the jobs of a sequence by the rules at the head of this module.

    Args:
        table: The rows by column, in order of time.
        zone: The IANA name of the zone of its wall clock times.
    """
    clusters: dict[str, _Cluster] = {}
    now_ms, sample_ms = -1, _SAMPLE_MS
    for line, row in table:
        if isinstance(row, DroppedRow):
            yield row
            continue
        try:
            at_ms = rows.wall_clock_ms("time", row["time"], zone)
            name = rows.team("vc", row["vc"])
            running = _gpus("running_gpu_num", row["running_gpu_num"])
            pending = _gpus("pending_gpu_num", row["pending_gpu_num"])
            if at_ms < now_ms:
                raise BadRowError("time", row["time"], "which is before the row above")
        except BadRowError as error:
            yield error.at(line)
            continue
        if at_ms > now_ms >= 0:
            sample_ms = at_ms - now_ms
        now_ms = at_ms
        yield from _take(clusters.setdefault(name, _Cluster()), name, line, at_ms, running, pending)
    for name in sorted(clusters):
        yield from _end(clusters[name], name, clusters[name].running, now_ms + sample_ms)


def _take(cluster: _Cluster, name: str, line: int, at_ms: int, running: int, pending: int) -> Iterator[Job]:
    """Take a sample: bring the three totals up to it."""
    rise = running - cluster.running
    cluster.running = running
    started = cluster.started + max(0, rise)
    if started + pending > cluster.asked:
        cluster.waiting.append((line, at_ms, started + pending - cluster.asked))
        cluster.asked = started + pending
    for asked_line, asked_ms, gpus in _first(cluster.waiting, started - cluster.started):
        cluster.held.append((asked_line, asked_ms, at_ms, gpus))
    cluster.started = started
    yield from _end(cluster, name, max(0, -rise), at_ms)


def _end(cluster: _Cluster, name: str, gpus: int, at_ms: int) -> Iterator[Job]:
    """Let so many GPUs end, those that started first."""
    for line, asked_ms, started_ms, count in _first(cluster.held, gpus):
        run_ms = at_ms - started_ms
        if 0 < run_ms <= rows.LENGTH_MAX_MS:
            yield Job(line=line, at_ms=asked_ms, run_ms=run_ms, gpus=count, team=name)


def _first(queue: deque[tuple[int, ...]], gpus: int) -> Iterator[tuple[int, ...]]:
    """Take so many GPUs from the front of a queue, whose items end in how many they are."""
    while gpus > 0 and queue:
        *moments, count = queue[0]
        taken = min(gpus, count)
        if taken == count:
            queue.popleft()
        else:
            queue[0] = (*moments, count - taken)
        gpus -= taken
        yield (*moments, taken)


def _gpus(name: str, text: str) -> int:
    return 0 if text == "0" else rows.count(name, text)
