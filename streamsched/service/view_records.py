"""Views: what schedulers publish for queries, dashboards and reports, as absolute values. No decision ever reads them.

Each value carries ``as_of``, how many ledger records it is the outcome of. Every scheduler publishes; a reader keeps
the value with the highest ``as_of`` for each key, so that replicas, restarts and repeats do no harm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from streamsched.model.quantities import HOUR
from streamsched.state.hours import HourlyUse
from streamsched.state.standing import standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from streamsched.model.commands import Effects
    from streamsched.state.cluster import ClusterState
    from streamsched.state.inventory import Node

USAGE_TOPIC = "usage.v1"
TOPOLOGY_TOPIC = "topology.v1"
#: Hours of budgets that are published at once; the others follow a second later. A start may have years of them.
HOURS_AT_ONCE = 1_000


class ViewRecord(BaseModel):
    """One absolute value.

    Attributes:
        as_of: How many ledger records it is the outcome of.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    as_of: int


class BudgetHour(ViewRecord):
    """GPU-milliseconds of one budget, children included, in one hour, as far as that hour has come.

    Attributes:
        budget: Its path; empty for the whole cluster.
        hour_ms: When the hour begins, in milliseconds since 1970 UTC, by the ledger's clock.
    """

    budget: str
    hour_ms: int
    allocated_gpu_ms: int
    unallocated_gpu_ms: int
    queued_gpu_ms: int
    quota_gpu_ms: int

    @property
    def key(self) -> str:
        """What the record is kept under."""
        return f"{self.budget}|{self.hour_ms}"


class NodeRun(BaseModel):
    """GPUs that one attempt has on a node."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    workload: str
    attempt: int
    gpu_mask: int


class NodeTopology(ViewRecord):
    """One node: where it is, how it is, and who has its GPUs.

    Attributes:
        domains: The topology domains it sits in, coarse to fine.
        state: Where it stands between use and repair.
        drain: How far it is being emptied.
        since_ms: Since when it is in this state.
        by: Who or what set it, for the reason given.
        waits_for: What ends the state; absent for a node in use.
        empty_by_ms: When a draining node will be empty at the latest; absent where that is not known.
        free_mask: GPUs that nobody holds, claims or has left behind.
        orphans: GPUs of runs that are over, but of which the node has yet to say that they are gone.
    """

    node: str
    pool: str
    domains: tuple[str, ...]
    gpus: int
    health: str
    state: str
    drain: str
    since_ms: int
    by: str
    reason: str | None
    waits_for: str | None
    empty_by_ms: int | None
    free_mask: int
    runs: tuple[NodeRun, ...]
    orphans: tuple[NodeRun, ...]

    @property
    def key(self) -> str:
        """What the record is kept under."""
        return self.node


class Views:
    """What has changed since it was last published; follows the fold record by record."""

    def __init__(self) -> None:
        """Start at the beginning of a ledger."""
        self._hours = HourlyUse()
        self._hour_ms = 0
        self._budgets: dict[str, None] = {}
        self._nodes: dict[str, None] = {}
        self._published_hour_ms: dict[str, int] = {}

    def note(self, state: ClusterState, effects: Effects) -> None:
        """Follow one record: call it after each fold, with what that returned."""
        self._hours.note(state, effects)
        self._budgets.update(effects.budgets)
        self._nodes.update(effects.nodes)

    def changed(self, state: ClusterState) -> Iterator[BudgetHour | NodeTopology]:
        """Yield what is to be published now, and take it as published.

        A budget is published when its use or queue changed, and each time an hour has ended.
        """
        as_of = state.next_cursor
        hour_ms = state.now_ms - state.now_ms % HOUR
        if hour_ms != self._hour_ms:
            self._hour_ms = hour_ms
            self._budgets.update(dict.fromkeys(self._hours.budgets))
        if self._budgets:
            self._hours.settle(state.now_ms)
        room = HOURS_AT_ONCE
        while self._budgets and room > 0:
            budget = next(iter(self._budgets))
            since_ms = self._published_hour_ms.get(budget, 0)
            hours = [(start_ms, use) for start_ms, use in self._hours.hours(budget).items() if start_ms >= since_ms]
            for start_ms, use in hours[:room]:
                yield BudgetHour(
                    as_of=as_of,
                    budget=budget,
                    hour_ms=start_ms,
                    allocated_gpu_ms=use.allocated_gpu_ms,
                    unallocated_gpu_ms=use.unallocated_gpu_ms,
                    queued_gpu_ms=use.queued_gpu_ms,
                    quota_gpu_ms=use.quota_gpu_ms,
                )
            if len(hours) > room:
                self._published_hour_ms[budget] = hours[room][0]
                break
            # The present hour has not come to its end, so it is published again.
            self._published_hour_ms[budget] = hour_ms
            del self._budgets[budget]
            room -= max(1, len(hours))
        if not self._budgets:
            self._hours.forget(hour_ms)  # Hours that are over have been published and do not change any more.
        changed_nodes, self._nodes = self._nodes, {}
        for name in changed_nodes:
            if (node := state.nodes.get(name)) is not None:
                yield _topology(state, node, as_of)


def _topology(state: ClusterState, node: Node, as_of: int) -> NodeTopology:
    stands = standing(state, node)
    return NodeTopology(
        as_of=as_of,
        node=node.id,
        pool=node.pool,
        domains=node.domains,
        gpus=node.gpus,
        health=node.health.value,
        state=stands.state.value,
        drain=stands.drain.value,
        since_ms=stands.since_ms,
        by=stands.by,
        reason=stands.reason,
        waits_for=stands.waits_for,
        empty_by_ms=stands.empty_by_ms,
        free_mask=node.free_mask,
        runs=_runs(node.held.items()),
        orphans=_runs(node.orphans.items()),
    )


def _runs(held: Iterable[tuple[tuple[str, int], int]]) -> tuple[NodeRun, ...]:
    return tuple(NodeRun(workload=workload, attempt=attempt, gpu_mask=mask) for (workload, attempt), mask in held)
