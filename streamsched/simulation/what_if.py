"""Demand from a ledger: what came from outside is kept, decisions and all they caused are dropped.

What a ledger knows of the true length of a workload is what its attempts did: each from the start of its last rank to
the first request to stop it, as `streamsched.simulation.virtual_cluster` counts. A workload that was seen to end by
itself runs as long again, whenever it is placed. One that was not is taken to run as its ``sleep`` says, and else until
somebody cancels it, its timeout comes, or the ledger ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from streamsched.model.commands import Effects
from streamsched.model.events import (
    BudgetTreeChanged,
    Event,
    NodeDrainChanged,
    NodeHealth,
    NodeHealthChanged,
    NodeInventoryReported,
    NodesRelabelled,
    PolicyAdopted,
    Record,
    ReleaseOutcome,
    RunExtended,
    RunReleased,
    RunStarted,
    WorkloadCancelled,
    WorkloadReprioritized,
    WorkloadSubmitted,
)
from streamsched.model.policy import DEFAULT_POLICY, Policy
from streamsched.model.quantities import DAY
from streamsched.node.virtual_node import Delays, VirtualNode, read_sleep, sleep_argv
from streamsched.replay.replayer import Observer
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.simulator import simulate
from streamsched.simulation.virtual_cluster import VirtualCluster
from streamsched.state.cluster import ClusterState

#: A fact and its moment.
_Timed = tuple[int, Event]

#: Longer than any ledger that one looks at: whoever runs so long is still running at its end.
_UNSEEN_END_MS: Final = 366 * DAY

#: What people and machines say, whoever decides. Adjustments of usage correct what was decided: they are dropped.
_OUTSIDE = (
    WorkloadCancelled
    | WorkloadReprioritized
    | RunExtended
    | BudgetTreeChanged
    | PolicyAdopted
    | NodeDrainChanged
    | NodesRelabelled
    | NodeHealthChanged
    | NodeInventoryReported
)


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be other than it was. The default changes nothing.

    Attributes:
        policy: In force from the beginning to the end, whatever was adopted; None to adopt what was.
        budgets: The tree in force from the beginning to the end, whatever was changed; None to change it as it was.
        added: Inventories of nodes that are there from the beginning.
        lost: Nodes that are lost for good, each with the moment; at or before the beginning, they never were.
        min_runtime_percent: Of what people declared, what they declare.
    """

    policy: Policy | None = None
    budgets: BudgetTreeChanged | None = None
    added: tuple[NodeInventoryReported, ...] = ()
    lost: tuple[tuple[str, int], ...] = ()
    min_runtime_percent: int = 100


@dataclass(frozen=True, slots=True)
class RecordedDemand:
    """What a ledger says that came from outside.

    Attributes:
        since_ms: When its first record was appended.
        until_ms: When its last one was.
        policy: The first that was adopted.
        budgets: The first tree.
        nodes: What reported itself in the first moment.
        submissions: With their true lengths.
        facts: All else, each with its moment, in the order of the ledger.
        unseen_ends: How many workloads were not seen to end by themselves.
    """

    since_ms: int
    until_ms: int
    policy: Policy
    budgets: BudgetTreeChanged
    nodes: tuple[NodeInventoryReported, ...]
    submissions: tuple[Submission, ...]
    facts: tuple[_Timed, ...]
    unseen_ends: int

    def serve(
        self, change: Change, delays: Delays, *, seed: int = 0, observers: Iterable[Observer] = ()
    ) -> ClusterState:
        """Let a scheduler serve it, with a change made to it, until the moment at which the ledger ends.

        Nobody declares more than the cap of a policy that is given: it would be refused.

        Args:
            change: What is to be other than it was.
            delays: How long nodes take over things.
            seed: Draws how long they take.
            observers: Called in this order after each record.
        """
        policy = change.policy or self.policy
        never = {node for node, at_ms in change.lost if at_ms <= self.since_ms}
        nodes = [node for node in (*self.nodes, *change.added) if node.node not in never]
        submissions = self.submissions
        if change.min_runtime_percent != 100 or change.policy is not None:
            submissions = tuple(
                replace(submission, workload=_declared(submission.workload, change.min_runtime_percent, policy))
                for submission in submissions
            )
        return simulate(
            Demand(submissions, change.budgets or self.budgets),
            RecordedCluster(nodes, self._facts_under(change), delays, seed),
            policy,
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            observers=observers,
        )

    def _facts_under(self, change: Change) -> list[_Timed]:
        replaced: tuple[type[Event], ...] = ()
        if change.policy is not None:
            replaced += (PolicyAdopted,)
        if change.budgets is not None:
            replaced += (BudgetTreeChanged,)
        gone = dict(change.lost)
        facts = [
            (at_ms, fact)
            for at_ms, fact in self.facts
            if not isinstance(fact, replaced) and at_ms < gone.get(getattr(fact, "node", ""), at_ms + 1)
        ]
        facts += [
            (at_ms, NodeHealthChanged(node=node, health=NodeHealth.LOST, reason="lost in this what-if"))
            for node, at_ms in change.lost
            if at_ms > self.since_ms
        ]
        return sorted(facts, key=lambda timed: timed[0])


def _declared(workload: WorkloadSubmitted, percent: int, policy: Policy) -> WorkloadSubmitted:
    min_runtime_ms = min(workload.min_runtime_ms * percent // 100, policy.min_runtime_cap_ms)
    return workload.model_copy(update={"min_runtime_ms": min_runtime_ms})


@dataclass(slots=True)
class _Life:
    """What was seen of a workload: the attempt that runs, and what it and those before it did."""

    at_ms: int
    workload: WorkloadSubmitted
    attempt: int = 0
    waiting_for: set[str] = field(default_factory=set)
    whole_since_ms: int | None = None
    done_ms: int = 0
    run_ms: int = 0
    ended: RunReleased | None = None

    def begin(self, attempt: int) -> None:
        """Follow another attempt. What was thought to be the end was none."""
        self.attempt, self.whole_since_ms, self.ended = attempt, None, None
        self.waiting_for.clear()

    def stop(self, now_ms: int) -> None:
        """Count what the attempt has done, once."""
        if self.whole_since_ms is not None:
            self.done_ms += now_ms - self.whole_since_ms
            self.whole_since_ms = None

    def end(self, event: RunReleased, now_ms: int) -> None:
        """Note that a rank has ended by itself. A gang has ended when its last rank has, or its first has failed."""
        if self.ended is not None and self.ended.outcome is ReleaseOutcome.FAILED:
            return
        self.ended = event
        self.run_ms = self.done_ms + (0 if self.whole_since_ms is None else now_ms - self.whole_since_ms)

    def submission(self) -> Submission:
        """Return it as it was asked for, with its true length as its command."""
        slept = read_sleep(self.workload.command)
        code = 0
        if self.ended is not None:
            run_ms, code = self.run_ms, self.ended.exit_code or 0
            if self.ended.outcome is ReleaseOutcome.FAILED and not code:
                code = 1
        elif slept is not None:
            run_ms, code = slept
        else:
            run_ms = _UNSEEN_END_MS
        argv = (*sleep_argv(run_ms), *(("exit", str(code & 255 or 1)) if code else ()))
        asked = self.workload.model_copy(update={"command": argv, "src": None, "seq": None})
        return Submission(self.at_ms, asked, run_ms)


class DemandRecorder:
    """Takes the demand from a ledger while it is folded. Pass `observe` to `fold`, then call `demand`."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        self._facts: list[_Timed] = []
        self._boots: dict[str, tuple[str, str, int, tuple[str, ...], str | None]] = {}
        self._since_ms: int | None = None
        self._until_ms = 0

    def observe(self, record: Record, effects: Effects, state: ClusterState) -> None:
        """Look at one record and what it caused."""
        event, now_ms = record.event, state.now_ms
        if self._since_ms is None:
            self._since_ms = now_ms
        self._until_ms = now_ms
        if isinstance(event, WorkloadSubmitted):
            self._lives.setdefault(event.workload, _Life(now_ms, event))
        elif isinstance(event, RunReleased):
            self._release(event, now_ms)
        elif isinstance(event, RunStarted):
            self._start(event, now_ms)
        elif isinstance(event, NodeInventoryReported):
            self._join(event, now_ms)
        elif isinstance(event, _OUTSIDE):
            if isinstance(event, NodeHealthChanged) and event.health is NodeHealth.LOST:
                self._boots.pop(event.node, None)  # What it says when it is back is new, in the same boot or not.
            self._facts.append((now_ms, event.model_copy(update={"src": None, "seq": None})))
        for command in effects.commands:
            life = self._lives.get(command.workload)
            if life is None:
                continue
            if command.type == "place":
                if command.attempt > life.attempt:
                    life.begin(command.attempt)
                life.waiting_for.add(command.node)
            elif command.attempt == life.attempt:
                life.stop(now_ms)

    def _start(self, event: RunStarted, now_ms: int) -> None:
        life = self._lives.get(event.workload)
        if life is not None and event.attempt == life.attempt and event.node in life.waiting_for:
            life.waiting_for.discard(event.node)
            if not life.waiting_for:
                life.whole_since_ms = now_ms

    def _release(self, event: RunReleased, now_ms: int) -> None:
        life = self._lives.get(event.workload)
        if life is None or event.attempt != life.attempt:
            return
        if event.outcome in (ReleaseOutcome.SUCCEEDED, ReleaseOutcome.FAILED):
            life.end(event, now_ms)

    def _join(self, event: NodeInventoryReported, now_ms: int) -> None:
        """Keep what a node says of itself when it is new; what it holds was decided."""
        told = (event.boot, event.pool, event.gpus, event.domains, event.tree)
        if self._boots.get(event.node) != told:
            self._boots[event.node] = told
            bare = event.model_copy(update={"runs": (), "watermark": None, "src": None, "seq": None})
            self._facts.append((now_ms, bare))

    def demand(self) -> RecordedDemand:
        """Return what was recorded.

        Raises:
            ValueError: There is no budget tree, or nothing was submitted.
        """
        since_ms = self._since_ms or 0
        facts = self._facts
        budgets = next((fact for _, fact in facts if isinstance(fact, BudgetTreeChanged)), None)
        if budgets is None or not self._lives:
            raise ValueError("the ledger has no budget tree or no workload; name one in which something was asked for")
        first = next((fact for at_ms, fact in facts if at_ms == since_ms and isinstance(fact, PolicyAdopted)), None)
        nodes = tuple(fact for at_ms, fact in facts if at_ms == since_ms and isinstance(fact, NodeInventoryReported))
        began = {id(fact) for fact in (first, budgets, *nodes)}
        lives = list(self._lives.values())
        return RecordedDemand(
            since_ms=since_ms,
            until_ms=self._until_ms,
            policy=DEFAULT_POLICY if first is None else first.policy,
            budgets=budgets,
            nodes=nodes,
            submissions=tuple(life.submission() for life in lives),
            facts=tuple(timed for timed in facts if id(timed[1]) not in began),
            unseen_ends=sum(life.ended is None for life in lives),
        )


class RecordedCluster(VirtualCluster):
    """Virtual nodes among which the outside facts of a ledger come at their recorded moments.

    A node that reports itself anew has lost what it held; one that is lost answers no more.

    Args:
        first: Those that are there from the beginning.
        facts: What comes later, in order of time.
        delays: How long nodes take over things.
        seed: Draws how long they take.
    """

    def __init__(
        self, first: Sequence[NodeInventoryReported], facts: Sequence[_Timed], delays: Delays, seed: int
    ) -> None:
        self._delays, self._seed, self._made = delays, seed, 0
        super().__init__(self._node(inventory) for inventory in first)
        self._first = list(first)
        self._facts = deque(facts)

    def _node(self, inventory: NodeInventoryReported) -> VirtualNode:
        number, self._made = self._made, self._made + 1
        return VirtualNode(
            inventory.node,
            pool=inventory.pool,
            gpus=inventory.gpus,
            domains=inventory.domains,
            boot=inventory.boot,
            delays=self._delays,
            random=Random(f"{self._seed}/{number}"),
        )

    def inventories(self) -> list[NodeInventoryReported]:
        """Return what the first nodes said of themselves."""
        return self._first

    @property
    def next_due_ms(self) -> int | None:
        """When a node or somebody outside next has something to say; None for never."""
        reports_ms = super().next_due_ms
        facts_ms = self._facts[0][0] if self._facts else None
        if reports_ms is None or facts_ms is None:
            return facts_ms if reports_ms is None else reports_ms
        return min(reports_ms, facts_ms)

    def next_fact(self, now_ms: int) -> Event | None:
        """Take the next fact that is due by now: what comes from outside first."""
        if self._facts and self._facts[0][0] <= now_ms:
            fact = self._facts.popleft()[1]
            if isinstance(fact, NodeInventoryReported):
                self._leave(fact.node)
                self.nodes[fact.node] = self._node(fact)
            elif isinstance(fact, NodeHealthChanged) and fact.health is NodeHealth.LOST:
                self._leave(fact.node)
            return fact
        return super().next_fact(now_ms)

    def _leave(self, node: str) -> None:
        """Let nothing more be heard of a node."""
        left = self.nodes.pop(node, None)
        if left is not None:
            for report in left.planned:
                report.withdrawn = True
