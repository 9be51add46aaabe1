"""Heartbeats to health transitions: who changed, and who has been silent for a lease. No I/O, no clock of its own.

Silence only counts while we can hear. A worker that was paused, cut off from the broker, behind in its reading or
just given a partition has not heard a node be silent, and a cluster must not be declared lost for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamsched.model.events import NodeHealth

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from streamsched.wire.heartbeats import Heartbeat

#: How often silence is looked for.
SWEEP_MS = 1_000
#: A sweep that comes this late means that the worker did not run, or the broker did not answer it.
LATE_SWEEP_MS = 3_000


@dataclass(frozen=True, slots=True)
class Health:
    """What was last said of one node.

    Attributes:
        partition: Where its heartbeats come, and so which worker watches it.
    """

    health: NodeHealth
    reason: str | None
    partition: int
    fatal: bool = False


class NodeWatch:
    """The leases of the nodes whose heartbeats come to this worker. All times are its monotonic milliseconds."""

    def __init__(self, lease_ms: int) -> None:
        """Start with no partition and no node."""
        self._lease_ms = lease_ms
        self._heard_ms: dict[str, int] = {}
        self._hearing_since_ms: dict[int, int] = {}
        self._read: dict[int, int] = {}
        self._ends: Mapping[int, int] = {}
        self._swept_ms: int | None = None

    def assign(self, partitions: Iterable[int], now_ms: int) -> None:
        """Watch these partitions from now on, each with a fresh lease for its nodes, and no others."""
        self._hearing_since_ms = dict.fromkeys(partitions, now_ms)
        self._read.clear()
        self._ends = {}

    @property
    def unread(self) -> set[int]:
        """The watched partitions of which nothing is known yet, neither a record nor where reading begins."""
        return self._hearing_since_ms.keys() - self._read.keys()

    def begin(self, partition: int, position: int) -> None:
        """Note where reading of a partition begins: what lies before was read by somebody else."""
        self._read.setdefault(partition, position)

    def read(self, partition: int, offset: int) -> None:
        """Note that a record was read, a heartbeat or not."""
        self._read[partition] = offset + 1

    def heard(self, heartbeat: Heartbeat, partition: int, known: Health | None, now_ms: int) -> Health | None:
        """Note a heartbeat; return what to say of the node if that differs from what is `known`."""
        self._heard_ms[heartbeat.node] = now_ms
        said = Health(heartbeat.health, heartbeat.reason, partition, heartbeat.fatal)
        return None if known is not None and _said(known) == _said(said) else said

    def silent(self, known: Mapping[str, Health], ends: Mapping[int, int] | None, now_ms: int) -> list[str]:
        """Return the nodes that have been silent for a lease and are not called lost yet, in order of their names.

        Args:
            known: What was last said of every node.
            ends: The end offsets of the watched partitions as the broker gives them now; None when it does not answer.
            now_ms: Now.
        """
        late = self._swept_ms is not None and now_ms - self._swept_ms > LATE_SWEEP_MS
        for partition in self._hearing_since_ms:
            # What was there a sweep ago must have been read by now, or we are behind.
            behind = partition in self._ends and self._read.get(partition, 0) < self._ends[partition]
            if late or ends is None or behind:
                self._hearing_since_ms[partition] = now_ms
        self._swept_ms = now_ms
        self._ends = {} if ends is None else ends
        return sorted(node for node, health in known.items() if self._is_silent(node, health, now_ms))

    def _is_silent(self, node: str, health: Health, now_ms: int) -> bool:
        since_ms = self._hearing_since_ms.get(health.partition)
        if since_ms is None or health.health is NodeHealth.LOST:
            return False
        return now_ms - max(since_ms, self._heard_ms.get(node, since_ms)) >= self._lease_ms


def _said(health: Health) -> tuple[NodeHealth, str | None, bool]:
    return health.health, health.reason, health.fatal
