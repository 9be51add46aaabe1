"""The loop: event, fold, decide, respond. Time jumps from one event to the next.

The scheduler in the loop is the one of the live service, so that what is proposed here is what would be proposed there
on the same facts. All facts of one moment are folded before it is asked, as a live scheduler folds what has arrived
before it proposes. Nothing goes through bytes on the way; `streamsched.simulation.history` keeps the ledger when it
is wanted.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from streamsched.model.events import Event, PolicyAdopted, Record
from streamsched.model.policy import DEFAULT_POLICY, Policy
from streamsched.replay.replayer import Observer
from streamsched.scheduling.scheduler import Scheduler
from streamsched.simulation.demand import Demand, Source, listed
from streamsched.simulation.virtual_cluster import VirtualCluster
from streamsched.state.cluster import ClusterState


def simulate(
    demand: Demand | Source,
    cluster: VirtualCluster,
    policy: Policy = DEFAULT_POLICY,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    scheduler: Scheduler | None = None,
    observers: Iterable[Observer] = (),
) -> ClusterState:
    """Let a scheduler serve a demand on a virtual cluster; return the state at the end.

    The ledger begins with the policy, the budgets and the nodes. Equal arguments give equal records.

    Args:
        demand: What is submitted, and the budgets that pay: a list, or a source that sees how full the queue is.
        cluster: Answers the commands. It is used up by this.
        policy: Adopted by the first record.
        since_ms: When the cluster comes up; the first submission's time when None.
        until_ms: Nothing after this moment happens. When None, the simulation ends when nothing is left to do.
        scheduler: The one that decides, when it is to be a special one.
        observers: Called in this order after each record.

    Raises:
        ValueError: The cluster comes up after the first submission.
    """
    source = listed(demand) if isinstance(demand, Demand) else demand
    first_ms = source.next_due_ms
    now_ms = since_ms if since_ms is not None else (first_ms or 0)
    if first_ms is not None and first_ms < now_ms:
        raise ValueError(f"since_ms is {now_ms}, after the first submission at {first_ms}")
    loop = _Loop(scheduler or Scheduler(), cluster, tuple(observers))
    for event in _beginning(source, cluster, policy):
        loop.append(event, now_ms)
    loop.propose(now_ms)

    with _no_search_for_cycles():
        _serve(source, cluster, loop, now_ms, until_ms)
    return loop.scheduler.state


def _serve(source: Source, cluster: VirtualCluster, loop: _Loop, now_ms: int, until_ms: int | None) -> None:
    """Go from moment to moment until nothing is left to do."""
    state = loop.scheduler.state
    while True:
        demand_ms, cluster_ms = source.next_due_ms, cluster.next_due_ms
        if demand_ms is None and cluster_ms is None and not state.workloads:
            break
        due_ms = _earliest(demand_ms, _earliest(cluster_ms, loop.wakeup_ms(now_ms)))
        if due_ms is None or (until_ms is not None and due_ms > until_ms):
            break
        now_ms = max(now_ms, due_ms)
        while (workload := source.next_submission(now_ms, state)) is not None:
            loop.append(workload, now_ms)
        while (fact := cluster.next_fact(now_ms)) is not None:
            loop.append(fact, now_ms)
        loop.propose(now_ms)


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Let Python free what nothing refers to, and not search for rings of references that nothing else refers to.

    The only rings are those of the state, which lives on. The search looks at every object that is alive, again and
    again: a seventh of the time of a simulation.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Loop:
    """A ledger that is written by one hand and folded at once."""

    __slots__ = ("_cluster", "_next_cursor", "_observers", "scheduler")

    def __init__(self, scheduler: Scheduler, cluster: VirtualCluster, observers: Sequence[Observer]) -> None:
        self.scheduler = scheduler
        self._cluster = cluster
        self._observers = observers
        self._next_cursor = scheduler.state.next_cursor

    def append(self, event: Event, now_ms: int) -> None:
        """Make an event the next record, fold it, and hand its commands to the cluster."""
        record = Record(self._next_cursor, now_ms, event)
        self._next_cursor += 1
        effects = self.scheduler.take(record)
        if effects.commands:
            self._cluster.obey(effects.commands, now_ms)
        for observer in self._observers:
            observer(record, effects, self.scheduler.state)

    def wakeup_ms(self, now_ms: int) -> int | None:
        """Return when time alone changes something; None for never. A tick that is withheld now is due later."""
        wakeup_ms = self.scheduler.next_due_ms
        if wakeup_ms is None or wakeup_ms > now_ms:
            return wakeup_ms
        return max(self.scheduler.wakeup_ms(now_ms), now_ms + 1)

    def propose(self, now_ms: int) -> None:
        """Append what the scheduler wants appended, until it wants nothing more at this moment."""
        while (event := self.scheduler.next_event(now_ms)) is not None:
            self.scheduler.appended(self._next_cursor)
            self.append(event, now_ms)
            while (fact := self._cluster.next_fact(now_ms)) is not None:
                self.append(fact, now_ms)


def _beginning(source: Source, cluster: VirtualCluster, policy: Policy) -> Iterable[Event]:
    return chain(
        [PolicyAdopted(policy=policy, reason="the policy of this simulation"), source.budgets],
        cluster.inventories(),
    )


def _earliest(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
