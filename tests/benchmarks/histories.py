"""A recorded history to measure with: a stretch of the Philly trace, scheduled on a virtual cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from streamsched.model.commands import Effects
from streamsched.model.events import Record, Unreadable
from streamsched.model.ledger import Entry
from streamsched.node.virtual_node import USUAL
from streamsched.simulation.simulator import simulate
from streamsched.simulation.traces import read_philly
from streamsched.simulation.virtual_cluster import uniform_cluster
from streamsched.state.cluster import ClusterState
from streamsched.wire.codec import encode

TRACES = Path(__file__).parents[2] / "replay" / "traces"
#: 2017-10-02 in California.
SINCE_MS = 1_506_927_600_000
#: 80 nodes of 8 GPUs take jobs of up to 64.
NODES, MAX_GPUS = 80, 64


def philly_history(jobs: int) -> list[Entry]:
    """Return the ledger of a simulated cluster that serves so many jobs of the trace, from the first to the last."""
    demand = read_philly(
        TRACES / "philly_2017_jobs.csv.gz",
        TRACES / "philly_2017_vc_nodes.csv",
        since_ms=SINCE_MS,
        max_gpus=MAX_GPUS,
    )
    entries: list[Entry] = []

    def keep(record: Record, _effects: Effects, _state: ClusterState) -> None:
        if isinstance(record.event, Unreadable):
            raise TypeError(f"cursor {record.cursor} was made by a simulation and has no event")
        entries.append(Entry(record.cursor, record.append_ms, encode(record.event)))

    demand = replace(demand, submissions=demand.submissions[:jobs])
    simulate(demand, uniform_cluster(NODES, delays=USUAL), observers=[keep])
    return entries
