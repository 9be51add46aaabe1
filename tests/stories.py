"""Builders of events for tests: everything has a default, so that a test names only what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streamsched.model.commands import Effects
from streamsched.model.events import (
    BudgetShare,
    BudgetTreeChanged,
    CommandAccepted,
    Drain,
    Event,
    Fact,
    HeldRun,
    NodeDrainChanged,
    NodeHealth,
    NodeHealthChanged,
    NodeInventoryReported,
    NodeLabels,
    NodeRepairBegan,
    NodesRelabelled,
    PolicyAdopted,
    Record,
    ReleaseOutcome,
    RunExtended,
    RunReleased,
    RunStarted,
    Tick,
    UsageAdjusted,
    WorkloadCancelled,
    WorkloadReprioritized,
    WorkloadSubmitted,
)
from streamsched.model.policy import Policy
from streamsched.model.quantities import HOUR, WHOLE
from streamsched.scheduling.decision import decide
from streamsched.state.cluster import ClusterState
from streamsched.state.invariants import check


def submitted(workload: str, **fields: Any) -> WorkloadSubmitted:
    """One rank of 8 GPUs for team ``a``, protected for an hour."""
    defaults: dict[str, Any] = {
        "budget": "a",
        "ranks": 1,
        "gpus_per_rank": 8,
        "min_runtime_ms": HOUR,
        "resumable": True,
        "command": ("sleep", "3600"),
    }
    return WorkloadSubmitted(workload=workload, **{**defaults, **fields})


def unallocated(workload: str, **fields: Any) -> WorkloadSubmitted:
    """The same, on unallocated time."""
    return submitted(workload, **{"min_runtime_ms": 0, **fields})


def cancelled(workload: str) -> WorkloadCancelled:
    """Somebody no longer wants it."""
    return WorkloadCancelled(workload=workload)


def reprioritized(workload: str, priority: int) -> WorkloadReprioritized:
    """Its owner moved it."""
    return WorkloadReprioritized(workload=workload, priority=priority)


def budgets(change: str = "b1", previous: str | None = None, /, **fractions: float) -> BudgetTreeChanged:
    """A tree from ``a=0.5, b=0.5`` or ``**{"p/a": 0.5}``; parents that are not named hold all of theirs."""
    shares: dict[str, Any] = {}
    for path, fraction in fractions.items():
        segments = path.split("/")
        for depth in range(1, len(segments)):
            shares.setdefault("/".join(segments[:depth]), WHOLE)
        shares[path] = round(fraction * WHOLE)
    return BudgetTreeChanged(
        change=change,
        previous=previous,
        reason="a test",
        budgets=tuple(BudgetShare(budget=path, fraction_nano=nano) for path, nano in shares.items()),
    )


def adjusted(adjustment: str, gpu_ms: int, from_ms: int, to_ms: int, **fields: Any) -> UsageAdjusted:
    """An administrator corrected what team ``a`` was charged."""
    return UsageAdjusted(
        adjustment=adjustment,
        gpu_ms=gpu_ms,
        from_ms=from_ms,
        to_ms=to_ms,
        reason="a test",
        **{"budget": "a", **fields},
    )


def adopted(**knobs: Any) -> PolicyAdopted:
    """A policy that differs from the default in these knobs."""
    return PolicyAdopted(policy=Policy(**knobs), reason="a test")


def node(name: str, **fields: Any) -> NodeInventoryReported:
    """A node of 8 GPUs that runs nothing."""
    defaults: dict[str, Any] = {"boot": "boot-1", "pool": "h100", "gpus": 8}
    return NodeInventoryReported(node=name, **{**defaults, **fields})


def nodes(count: int, **fields: Any) -> list[NodeInventoryReported]:
    """Nodes n1, n2, ..."""
    return [node(f"n{number}", **fields) for number in range(1, count + 1)]


def holding(workload: str, attempt: int = 1, gpu_mask: int = 0xFF) -> HeldRun:
    """A run in an inventory."""
    return HeldRun(workload=workload, attempt=attempt, gpu_mask=gpu_mask)


def health(name: str, state: NodeHealth, reason: str = "a test", *, fatal: bool = False) -> NodeHealthChanged:
    """A node changed."""
    return NodeHealthChanged(node=name, health=state, reason=reason, fatal=fatal)


def relabelled(*labels: NodeLabels, **fields: Any) -> NodesRelabelled:
    """Nodes are elsewhere in the network than they report."""
    return NodesRelabelled(labels=labels, **{"reason": "a test", **fields})


def drained(name: str, drain: Drain = Drain.SOFT, **fields: Any) -> NodeDrainChanged:
    """An administrator took a node out of use, or put it back."""
    return NodeDrainChanged(node=name, drain=drain, **{"reason": "a test", **fields})


def repair_began(name: str, emptied: int) -> NodeRepairBegan:
    """Somebody took an empty node to repair it."""
    return NodeRepairBegan(node=name, emptied=emptied)


def extended(workload: str, extra_ms: int) -> RunExtended:
    """Whoever sits at a session asked for more time."""
    return RunExtended(workload=workload, extra_ms=extra_ms)


def started(name: str, workload: str, attempt: int = 1) -> RunStarted:
    """The ranks on a node run."""
    return RunStarted(node=name, workload=workload, attempt=attempt)


def released(
    name: str, workload: str, attempt: int = 1, outcome: ReleaseOutcome = ReleaseOutcome.SUCCEEDED
) -> RunReleased:
    """The GPUs on a node are free again."""
    return RunReleased(node=name, workload=workload, attempt=attempt, outcome=outcome)


def accepted(name: str, command: str) -> CommandAccepted:
    """A node has a command."""
    return CommandAccepted(node=name, command=command)


class Story:
    """A ledger in the making: facts at times, rounds when asked for, and the state they lead to.

    Invariants are checked after every record.
    """

    def __init__(self, *events: Event | Iterable[Event], at_ms: int = 0, state: ClusterState | None = None) -> None:
        self.state = ClusterState() if state is None else state
        self.now_ms = at_ms
        self.records: list[Record] = []
        self.effects: list[Effects] = []
        self.tell(*events)

    def at(self, ms: int) -> Story:
        """Go on at another time."""
        self.now_ms = ms
        return self

    def tell(self, *events: Event | Iterable[Event]) -> Effects:
        """Append facts at the present time; return the effects of the last one."""
        effects = Effects()
        for item in events:
            for event in (item,) if isinstance(item, Fact) else item:
                record = Record(self.state.next_cursor, self.now_ms, event)
                effects = self.state.apply(record)
                self.records.append(record)
                self.effects.append(effects)
                check(self.state)
        return effects

    def tick(self) -> Effects:
        """Let time pass up to now."""
        return self.tell(Tick(tick=self.state.last_tick + 1))

    def round(self) -> Effects:
        """Let a scheduler decide once, and fold its proposal; no effects when there is nothing to decide."""
        proposal = decide(self.state)
        return Effects() if proposal is None else self.tell(proposal)

    def start(self, workload: str) -> None:
        """Let every node of a placed workload report its start."""
        run = self.state.workloads[workload].run
        assert run is not None
        for name in list(run.held):
            self.tell(started(name, workload, run.attempt))

    def end(self, workload: str, outcome: ReleaseOutcome = ReleaseOutcome.SUCCEEDED) -> None:
        """Let every node of a workload report its end."""
        run = self.state.workloads[workload].run
        assert run is not None
        for name in list(run.held):
            self.tell(released(name, workload, run.attempt, outcome))

    def phase(self, workload: str) -> str:
        """Where a workload stands, or how it ended."""
        live = self.state.workloads.get(workload)
        return (live.phase if live is not None else self.state.finished[workload].phase).value
