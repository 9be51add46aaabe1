"""Faults to search with: nodes lost, ill, drained and back, facts late and repeated, rival and dying schedulers.

All from one seed.

What a fault does is what the world around a real cluster does. Commands and reports lie in topics, so they are never
lost; they come late, and they come twice. A node that is lost is silent: it may have gone down with its runs, or it may
only have been cut off and run on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from streamsched.model.commands import Command, Effects
from streamsched.model.events import (
    Drain,
    Event,
    NodeDrainChanged,
    NodeHealth,
    NodeHealthChanged,
    Record,
    RoundProposed,
    StateHashed,
    Tick,
)
from streamsched.model.quantities import MINUTE, SECOND
from streamsched.node.virtual_node import VirtualNode
from streamsched.scheduling.scheduler import Scheduler
from streamsched.simulation.virtual_cluster import VirtualCluster
from streamsched.state.snapshot import freeze, thaw

#: After this silence the health agent calls a node lost.
_LEASE_MS = 30 * SECOND


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What goes wrong, and until when. Times are milliseconds.

    Attributes:
        until_ms: Nothing new goes wrong from then on.
        outage_gap_ms: Between the beginnings of two outages, on average.
        outage_ms: How long a node is away, both ends included.
        illness_gap_ms: Between the moments at which a node falls ill or is drained, on average.
        illness_ms: How long it stays so, both ends included.
        late_ms: How long a report is under way, both ends included. The reports of one node keep their order.
        repeat_percent: Of the reports, how many come a second time.
        numbered: Whether reports carry their source and sequence number, as those from a topic do. Without, a repeat
            can only be told by what it says.
    """

    until_ms: int
    outage_gap_ms: int = 20 * MINUTE
    outage_ms: tuple[int, int] = (1 * MINUTE, 30 * MINUTE)
    illness_gap_ms: int = 30 * MINUTE
    illness_ms: tuple[int, int] = (1 * MINUTE, 60 * MINUTE)
    late_ms: tuple[int, int] = (0, 5 * SECOND)
    repeat_percent: int = 10
    numbered: bool = True


class FaultyCluster(VirtualCluster):
    """A virtual cluster behind bad luck."""

    def __init__(self, nodes: Iterable[VirtualNode], plan: FaultPlan, random: Random, since_ms: int) -> None:
        """Plan the first outage; the cluster comes up at `since_ms`."""
        super().__init__(nodes)
        self._plan, self._random = plan, random
        #: What has left its node and is under way: when it arrives, a number for the order, and the event.
        self._under_way: list[tuple[int, int, Event]] = []
        self._numbers = 0
        self._last_arrival_ms: dict[str, int] = {}
        self._last_seq: dict[str, int] = {}
        #: Nodes that are cut off, and the reports and commands that wait until they are back.
        self._silent: dict[str, list[Event]] = {}
        self._waiting: dict[str, list[Command]] = {}
        self._boots = 1
        #: When nodes come back, and when the next one goes.
        self._returns: list[tuple[int, str]] = []
        self._next_outage_ms: int | None = None
        self._plan_outage(since_ms)
        #: When nodes that are ill or drained are well, and when the next one falls ill.
        self._recoveries: list[tuple[int, str]] = []
        self._next_illness_ms: int | None = None
        self._plan_illness(since_ms)
        self.outages = 0
        self.illnesses = 0
        self.repeats = 0

    def obey(self, commands: Sequence[Command], now_ms: int) -> None:
        """Hand each command to its node, or keep it until the node is back."""
        for command in commands:
            if command.node in self._silent:
                self._waiting[command.node].append(command)
            else:
                super().obey([command], now_ms)

    @property
    def next_due_ms(self) -> int | None:
        """When something arrives, happens or goes wrong next."""
        moments = [
            super().next_due_ms,
            self._under_way[0][0] if self._under_way else None,
            self._returns[0][0] if self._returns else None,
            self._next_outage_ms,
            self._recoveries[0][0] if self._recoveries else None,
            self._next_illness_ms,
        ]
        return min((moment for moment in moments if moment is not None), default=None)

    def next_fact(self, now_ms: int) -> Event | None:
        """Let happen what is due, then take the next event that has arrived."""
        if self._next_outage_ms is not None and self._next_outage_ms <= now_ms:
            self._begin_outage(now_ms)
        while self._returns and self._returns[0][0] <= now_ms:
            self._end_outage(heappop(self._returns)[1], now_ms)
        if self._next_illness_ms is not None and self._next_illness_ms <= now_ms:
            self._begin_illness(now_ms)
        while self._recoveries and self._recoveries[0][0] <= now_ms:
            self._end_illness(heappop(self._recoveries)[1], now_ms)
        while (fact := super().next_fact(now_ms)) is not None:
            self._send(fact, now_ms)
        if self._under_way and self._under_way[0][0] <= now_ms:
            return heappop(self._under_way)[2]
        return None

    def _send(self, fact: Event, now_ms: int) -> None:
        """Put a report on its way, late and perhaps twice; a silent node keeps it."""
        node: str = getattr(fact, "node")  # noqa: B009  every report has one, and the union of events does not
        if node in self._silent:
            self._silent[node].append(fact)
            return
        if self._plan.numbered:
            seq = self._last_seq[node] = self._last_seq.get(node, -1) + 1
            fact = fact.model_copy(update={"src": f"node-reports.v1/{node}", "seq": seq})
        is_calm = now_ms >= self._plan.until_ms
        late_ms = 0 if is_calm else self._random.randint(*self._plan.late_ms)
        arrival_ms = max(now_ms + late_ms, self._last_arrival_ms.get(node, 0))
        self._last_arrival_ms[node] = arrival_ms
        self._arrive(fact, arrival_ms)
        if not is_calm and self._random.randrange(100) < self._plan.repeat_percent:
            self.repeats += 1
            self._arrive(fact, arrival_ms + self._random.randint(0, 10 * MINUTE))

    def _arrive(self, event: Event, arrival_ms: int) -> None:
        self._numbers += 1
        heappush(self._under_way, (arrival_ms, self._numbers, event))

    def _plan_outage(self, now_ms: int) -> None:
        outage_ms = now_ms + self._random.randint(1, 2 * self._plan.outage_gap_ms)
        self._next_outage_ms = outage_ms if outage_ms < self._plan.until_ms else None

    def _begin_outage(self, now_ms: int) -> None:
        self._plan_outage(now_ms)
        up = [node for node in self.nodes if node not in self._silent]
        if not up:
            return
        node = self._random.choice(up)
        self.outages += 1
        self._silent[node], self._waiting[node] = [], []
        self._arrive(
            NodeHealthChanged(node=node, health=NodeHealth.LOST, reason="no heartbeat for 30 s"), now_ms + _LEASE_MS
        )
        heappush(self._returns, (now_ms + self._random.randint(*self._plan.outage_ms), node))

    def _end_outage(self, node_id: str, now_ms: int) -> None:
        """Bring a node back, with its runs or without: it says what it had to, what it holds, and that it is well."""
        node = self.nodes[node_id]
        if self._random.randrange(2):
            self._boots += 1
            node.lose_runs(f"boot-{self._boots}", now_ms)
        for fact in self._silent.pop(node_id):
            self._send(fact, now_ms)
        self._send(node.inventory(), now_ms)
        self._arrive(
            NodeHealthChanged(node=node_id, health=NodeHealth.HEALTHY), max(now_ms, self._last_arrival_ms[node_id])
        )
        self.obey(self._waiting.pop(node_id), now_ms)

    def _plan_illness(self, now_ms: int) -> None:
        illness_ms = now_ms + self._random.randint(1, 2 * self._plan.illness_gap_ms)
        self._next_illness_ms = illness_ms if illness_ms < self._plan.until_ms else None

    def _begin_illness(self, now_ms: int) -> None:
        """Let a node say that it is ill, or an administrator drain it."""
        self._plan_illness(now_ms)
        node = self._random.choice(list(self.nodes))
        drain = self._random.choice((Drain.CORDON, Drain.SOFT, Drain.HARD))
        if node in self._silent or self._random.randrange(2):
            self._arrive(NodeDrainChanged(node=node, drain=drain, reason="maintenance"), now_ms)
        else:
            fatal = drain is Drain.HARD
            ill = NodeHealthChanged(node=node, health=NodeHealth.UNHEALTHY, reason="a slow GPU", fatal=fatal)
            self._arrive(ill, now_ms)
        self.illnesses += 1
        heappush(self._recoveries, (now_ms + self._random.randint(*self._plan.illness_ms), node))

    def _end_illness(self, node: str, now_ms: int) -> None:
        self._arrive(NodeDrainChanged(node=node, drain=Drain.NONE, reason="maintenance is over"), now_ms)
        if node not in self._silent:  # One that is silent says that it is well when it is back.
            self._arrive(NodeHealthChanged(node=node, health=NodeHealth.HEALTHY), now_ms)


class FaultyScheduler(Scheduler):
    """A scheduler with a rival that proposes for the same rounds, and which dies and comes back from a snapshot."""

    def __init__(self, random: Random, *, rival_percent: int = 30, restart_percent: int = 1) -> None:
        """Begin at an empty ledger.

        Args:
            random: Draws when which fault happens.
            rival_percent: How often the rival's event is appended too.
            restart_percent: After how many of the records the scheduler starts again from a snapshot.
        """
        super().__init__()
        self._rival = Scheduler()
        self._random = random
        self._rival_percent, self._restart_percent = rival_percent, restart_percent
        self._late: RoundProposed | Tick | StateHashed | None = None
        self._is_rivals_turn = False
        self.rival_proposals = 0
        self.restarts = 0

    def take(self, record: Record) -> Effects:
        """Fold the record into both; now and then go on from a snapshot, and repeat what was not acknowledged."""
        effects = super().take(record)
        self._rival.take(record)
        if self._random.randrange(100) < self._restart_percent:
            self.restarts += 1
            Scheduler.__init__(self, thaw(freeze(self.state)))
            effects.commands.extend(self.state.unanswered_commands())
        return effects

    def next_event(self, clock_ms: int) -> RoundProposed | Tick | StateHashed | None:
        """Give this one's event, and sometimes after it what the rival had thought of at the same moment."""
        late, self._late = self._late, None
        self._is_rivals_turn = late is not None
        if late is not None:
            return late
        event = super().next_event(clock_ms)
        if event is not None and self._random.randrange(100) < self._rival_percent:
            rival = self._late = self._rival.next_event(clock_ms)
            self.rival_proposals += isinstance(rival, RoundProposed)
        return event

    def appended(self, cursor: int) -> None:
        """Tell the one whose event it was."""
        if self._is_rivals_turn:
            self._rival.appended(cursor)
        else:
            super().appended(cursor)
