"""Five weeks of a real trace, first in, first out: the waits are those of a simulator that shares nothing with ours."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from streamsched.model.commands import Effects
from streamsched.model.events import Record, RunStarted
from streamsched.model.policy import Policy, Scheme
from streamsched.model.quantities import DAY, SECOND
from streamsched.reporting.demo import TRACES
from streamsched.simulation.simulator import simulate
from streamsched.simulation.traces import Contract, Selection, demand_of, read_trace
from streamsched.simulation.virtual_cluster import uniform_cluster
from streamsched.state.cluster import ClusterState

#: 2017-10-02, 00:00 by the clock on the wall, which is not moved for summer time; 2017-11-05 is the last day.
SINCE_MS = 17_441 * DAY
UNTIL_MS = SINCE_MS + 35 * DAY
GPUS = 640
#: Of an independent simulator, in seconds.
PUBLISHED_MEAN_WAIT = 8_685.83


def test_five_weeks_of_philly_in_one_pool() -> None:
    """49,875 jobs of at most 64 GPUs on 640: the head of the queue blocks, and GPUs are taken anywhere."""
    trace = read_trace(TRACES / "philly_2017_jobs.csv.gz", zone="UTC")
    demand = demand_of(trace, Selection(SINCE_MS, UNTIL_MS, 64), Contract(one_pool=True))
    submitted = {asked.workload.workload: asked.at_ms for asked in demand.submissions}
    waits: dict[str, int] = {}

    def note(record: Record, _effects: Effects, _state: ClusterState) -> None:
        event = record.event
        if isinstance(event, RunStarted) and event.workload not in waits:
            waits[event.workload] = record.append_ms - submitted[event.workload]

    simulate(demand, uniform_cluster(GPUS // 8), Policy(scheme=Scheme.FIFO), observers=[note])

    expected = waits_by_hand([(asked.at_ms, asked.workload.ranks, asked.run_ms) for asked in demand.submissions])
    assert len(waits) == 49_875
    assert [waits[workload] for workload in submitted] == expected
    assert round(sum(expected) / len(expected) / SECOND, 2) == PUBLISHED_MEAN_WAIT


def waits_by_hand(jobs: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return how long each job waits, of (submitted, GPUs, length): it starts once those before it have started."""
    free, now_ms = GPUS, 0
    ends: list[tuple[int, int]] = []
    waits = []
    for at_ms, gpus, run_ms in jobs:
        now_ms = max(now_ms, at_ms)
        while ends and (ends[0][0] <= now_ms or free < gpus):
            end_ms, released = heappop(ends)
            now_ms, free = max(now_ms, end_ms), free + released
        free -= gpus
        heappush(ends, (now_ms + run_ms, gpus))
        waits.append(now_ms - at_ms)
    return waits
