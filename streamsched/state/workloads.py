"""One workload from its submission to its end, and the run it may have."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamsched.model.commands import StopReason
    from streamsched.model.events import Seat, WorkloadSubmitted
    from streamsched.model.topology import TopologyRequest
    from streamsched.state.usage import Budget


class Phase(StrEnum):
    """Where a workload stands.

    A planned one has its seats, and waits for the runs that still sit there; a bound one has been given to its nodes;
    a running one has started on all of them.
    """

    QUEUED = "queued"
    PLANNED = "planned"
    BOUND = "bound"
    RUNNING = "running"
    STOPPING = "stopping"

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    TIMED_OUT = "timed_out"
    REJECTED = "rejected"

    @property
    def is_final(self) -> bool:
        """Whether nothing can follow."""
        return self in _FINAL


_FINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.PREEMPTED, Phase.TIMED_OUT, Phase.REJECTED})

#: Pool (or None for any), GPUs per rank, ranks, effective min runtime, topology: workloads of one shape fit alike.
Shape = tuple[str | None, int, int, int, "TopologyRequest | None"]

#: Orders one leaf: priority (larger first), requeued before new, present enqueue, id.
QueueKey = tuple[int, int, int, str]


class Workload:
    """A live workload: its contract as it was submitted, and what has become of it so far."""

    __slots__ = (
        "attempt",
        "budget",
        "cancelled",
        "command",
        "evictions",
        "gpus",
        "gpus_per_rank",
        "held_until_ms",
        "id",
        "interactive",
        "is_allocated",
        "min_runtime_ms",
        "phase",
        "pool",
        "priority",
        "queue_key",
        "queued_ms",
        "ranks",
        "requeued",
        "resumable",
        "run",
        "setbacks",
        "submitted_ms",
        "timeout_ms",
        "topology",
    )

    def __init__(self, fact: WorkloadSubmitted, budget: Budget, now_ms: int) -> None:
        self.id = fact.workload
        self.budget = budget
        self.pool = fact.pool
        self.ranks = fact.ranks
        self.gpus_per_rank = fact.gpus_per_rank
        #: The GPUs of the whole gang.
        self.gpus = gang_gpus(fact.ranks, fact.gpus_per_rank, fact.topology)
        self.min_runtime_ms = fact.min_runtime_ms
        #: Whether its time is charged to its budget and protected; otherwise any such request displaces it.
        self.is_allocated = fact.min_runtime_ms > 0
        self.timeout_ms = fact.timeout_ms
        self.resumable = fact.resumable
        self.priority = fact.priority
        self.command = fact.command
        self.interactive = fact.interactive
        self.topology = fact.topology
        self.phase = Phase.QUEUED
        #: The number of the present or last attempt; 0 before the first.
        self.attempt = 0
        self.submitted_ms = now_ms
        #: The present enqueue: waiting counts from here.
        self.queued_ms = now_ms
        #: Whether it came back to the queue; such work goes before new work of its priority.
        self.requeued = False
        #: Infrastructure failures in a row; each doubles the back-off before the next attempt.
        self.setbacks = 0
        #: Times in a row that it was displaced while unallocated; each doubles the back-off before the next attempt.
        self.evictions = 0
        #: While in the future, it is queued but not looked at.
        self.held_until_ms = 0
        #: Somebody cancelled it while it ran: it ends cancelled, whatever else happens.
        self.cancelled = False
        self.run: Run | None = None
        #: Its key in the backlog, while it is there.
        self.queue_key: QueueKey | None = None

    @classmethod
    def restored(cls, fields: Mapping[str, Any], budget: Budget) -> Self:
        """Return a workload as it was frozen: `fields` are what is written of it, the rest is derived."""
        workload = cls.__new__(cls)
        for name, value in fields.items():
            setattr(workload, name, value)
        workload.budget = budget
        workload.gpus = gang_gpus(workload.ranks, workload.gpus_per_rank, workload.topology)
        workload.is_allocated = workload.min_runtime_ms > 0
        workload.queue_key = None
        return workload

    @property
    def shape(self) -> Shape:
        """What decides where it fits."""
        return (self.pool, self.gpus_per_rank, self.ranks, self.effective_min_ms, self.topology)

    @property
    def effective_min_ms(self) -> int:
        """The protected time of a run: the min runtime, and never more than the timeout."""
        return self.min_runtime_ms if self.timeout_ms is None else min(self.min_runtime_ms, self.timeout_ms)

    def count_queued(self, gpus: int) -> None:
        """Add GPUs to (or with a negative number: take them from) what its budgets wait for; allocated work only."""
        if self.is_allocated:
            for budget in self.budget.path:
                budget.queued_gpus += gpus

    def fingerprint(self) -> str:
        """Return a short digest of what was submitted, to tell a retry from another request of the same id."""
        return contract_fingerprint(self)


def gang_gpus(ranks: int, gpus_per_rank: int, topology: TopologyRequest | None) -> int:
    """Return the GPUs of a whole gang, whose groups may differ in them."""
    if topology is None or not topology.groups:
        return ranks * gpus_per_rank
    return sum(group.ranks * (group.gpus_per_rank or gpus_per_rank) for group in topology.groups)


def contract_fingerprint(contract: Workload | WorkloadSubmitted) -> str:
    """Return 16 hex digits over the contract. Priority is left out: it may be changed after the submission."""
    budget = contract.budget if isinstance(contract.budget, str) else contract.budget.id
    content = (
        budget,
        contract.pool,
        contract.ranks,
        contract.gpus_per_rank,
        contract.min_runtime_ms,
        contract.timeout_ms,
        contract.resumable,
        contract.command,
        contract.interactive,
        *(() if contract.topology is None else (contract.topology.model_dump_json(exclude_defaults=True),)),
    )
    return hashlib.blake2b(repr(content).encode(), digest_size=8).hexdigest()


class Commitment(StrEnum):
    """How a run's protected time counts as committed: not, whole because it has not started, or what is left."""

    NONE = "none"
    WHOLE = "whole"
    REST = "rest"


class Run:
    """One attempt of a workload on its seats."""

    __slots__ = (
        "attempt",
        "awaited",
        "beneficiary",
        "bound_ms",
        "commitment",
        "deadline_ms",
        "decided_at",
        "extended_ms",
        "failed",
        "failure",
        "gpus",
        "held",
        "infrastructure",
        "min_ms",
        "places",
        "planned_ms",
        "protected_until_ms",
        "rate",
        "returned",
        "seats",
        "started_ms",
        "started_on",
        "stop",
        "stop_ms",
        "stopped",
        "straddling",
        "warn_ms",
    )

    def __init__(self, attempt: int, seats: tuple[Seat, ...], gpus: int, decided_at: int, now_ms: int) -> None:
        self.attempt = attempt
        #: One for each rank, in rank order.
        self.seats = seats
        self.gpus = gpus
        #: What a GPU of its pool costs, and its protected time: both fixed when it was placed.
        self.rate = 1
        self.min_ms = 0
        #: The cursor of the proposal that placed it.
        self.decided_at = decided_at
        self.planned_ms = now_ms
        #: GPUs by node that it has, or claims while it is planned; a node leaves when it has released them.
        self.held: dict[str, int] = {}
        #: While planned: GPUs by node that a victim still holds.
        self.awaited: dict[str, int] = {}
        #: The Place command by node.
        self.places: dict[str, str] = {}
        self.bound_ms: int | None = None
        #: When its present phase must be over: the plan's end, the start deadline, the timeout.
        self.deadline_ms: int | None = None
        #: How its protected time is committed at present; none for unallocated work and once it is over.
        self.commitment = Commitment.NONE
        #: Nodes whose ranks run.
        self.started_on: dict[str, None] = {}
        #: The start of the gang: when the last node had started.
        self.started_ms: int | None = None
        self.protected_until_ms: int | None = None
        #: When whoever sits at it is to be warned; None once that is done, and where nobody sits.
        self.warn_ms: int | None = None
        #: By how much its protection was extended.
        self.extended_ms = 0
        #: Why it is being stopped, and since when, and for whom.
        self.stop: StopReason | None = None
        self.stop_ms: int | None = None
        self.beneficiary: str | None = None
        #: Whether the network was relabelled so that its nodes are no longer together as the gang needs them.
        self.straddling = False
        #: Of a run that has not started: the units it gave back, and when; to be refunded if that was not its fault.
        self.returned: list[tuple[int, int]] = []
        #: How its nodes ended so far: own failures, ends by our stop, and infrastructure failures.
        self.failed = 0
        #: What the first node that failed or refused said.
        self.failure: str | None = None
        self.stopped = 0
        self.infrastructure = 0

    @property
    def units(self) -> int:
        """What it is charged for each unit of time."""
        return self.gpus * self.rate


class Finished:
    """What is remembered of a workload that has ended, so that a retry or a late report is recognised."""

    __slots__ = ("at_ms", "attempts", "cursor", "fingerprint", "phase", "reason", "workload")

    def __init__(
        self, workload: str, phase: Phase, reason: str, cursor: int, at_ms: int, attempts: int, fingerprint: str
    ) -> None:
        self.workload = workload
        self.phase = phase
        self.reason = reason
        self.cursor = cursor
        self.at_ms = at_ms
        self.attempts = attempts
        self.fingerprint = fingerprint


def is_unprotected(workload: Workload, now_ms: int) -> bool:
    """Whether its allocated run is past its protection. At the very end of the protected time it is."""
    until_ms = workload.run.protected_until_ms if workload.run is not None else None
    return workload.phase is Phase.RUNNING and until_ms is not None and until_ms <= now_ms
