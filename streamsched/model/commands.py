"""Commands: what nodes must do; and receipts: what clients are told. Both are effects of the fold, never facts.

A command's id is ``cursor/ordinal``, a pure function of the ledger, so every live scheduler issues the same command
with the same id, and a node agent ignores what it has obeyed before.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from streamsched.model.events import Attempt, Cursor, Drain, Instant, Seat, Span, StateHashed, Value
from streamsched.model.identifiers import Actor, Argument, CommandId, NodeId, Reason, WorkloadId


class StopReason(StrEnum):
    """Why a run is stopped."""

    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    START_DEADLINE = "start_deadline"
    GANG_BROKEN = "gang_broken"
    NODE_DRAINED = "node_drained"
    NODE_FAILED = "node_failed"
    UNKNOWN_RUN = "unknown_run"


class Place(Value):
    """Run these ranks of an attempt on these GPUs of this node.

    Attributes:
        command: Its id; larger means later.
        seats: The ranks that sit on this node.
        ranks: The size of the whole gang.
        leader: The node of rank 0, where ranks meet.
        argv: What to run.
        start_by_ms: The start deadline by the ledger's clock; a later start is of no use.
    """

    type: Literal["place"] = "place"
    v: Literal[1] = 1
    command: CommandId
    node: NodeId
    workload: WorkloadId
    attempt: Attempt
    seats: tuple[Seat, ...]
    ranks: int = Field(ge=1, le=100_000)
    leader: NodeId
    argv: tuple[Argument, ...]
    start_by_ms: Instant


class Stop(Value):
    """End the ranks of an attempt on this node: ask at once, kill after the grace.

    Attributes:
        grace_ms: Time between the request and the kill.
        reason: Why.
        beneficiary: The workload that needs the GPUs, when somebody was preempted for it.
    """

    type: Literal["stop"] = "stop"
    v: Literal[1] = 1
    command: CommandId
    node: NodeId
    workload: WorkloadId
    attempt: Attempt
    grace_ms: Span
    reason: StopReason
    beneficiary: WorkloadId | None = None


Command = Place | Stop
AnyCommand = Annotated[Command, Field(discriminator="type")]


class ReceiptStatus(StrEnum):
    """What became of a request; or a notice, which nobody asked for."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    NOTICE = "notice"


class Receipt(Value):
    """An answer to a request about a workload, a node or the budget tree; or a notice about a workload.

    Attributes:
        workload: The workload it is about, if it is about one.
        change: The budget change or the adjustment it is about, if it is about one.
        node: The node it is about, if it is about one.
        cursor: The ledger record that settled it.
        corr: The correlation id of the request; a notice has none.
        reason: For a rejection: the field, the value and the remedy. For a notice: what is going to happen.
    """

    type: Literal["receipt"] = "receipt"
    v: Literal[1] = 1
    workload: WorkloadId | None = None
    change: str | None = None
    node: NodeId | None = None
    status: ReceiptStatus
    cursor: Cursor
    corr: str | None = None
    reason: Reason | None = None


class NodeEmptied(Value):
    """A node that is out of use has become empty: its repair can begin.

    Attributes:
        cursor: The record with which it became empty; with the node's name it tells this time from others.
        emptied_ms: When that was, by the ledger's clock.
        drain: How it was emptied.
        reason: Why it is out of use.
        by: Who took it out of use; absent when its own health did.
    """

    type: Literal["node_emptied"] = "node_emptied"
    v: Literal[1] = 1
    node: NodeId
    cursor: Cursor
    emptied_ms: Instant
    drain: Drain
    reason: Reason | None = None
    by: Actor | None = None


class Correction(NamedTuple):
    """What the budget of a leaf, and all above it, are taken to have held besides over an interval that has passed.

    Attributes:
        units: GPUs, times what each costs; negative where it is given back.
        charged: Whether it is allocated time, or unallocated.
    """

    budget: str
    units: int
    since_ms: int
    until_ms: int
    charged: bool


class Effects:
    """What the shells must do after one record was folded.

    Attributes:
        commands: For the nodes, in order of their ids.
        receipts: For the clients.
        emptied: Nodes that have become empty, for whoever repairs them.
        corrections: Of use that had been counted already.
        hash: The digest to record, when this record completed a stretch that is hashed.
        budgets: Ids of budgets whose use or queue changed, ancestors included; for views.
        nodes: Ids of nodes that changed; for views.
        workloads: Ids of workloads that changed; for views.
    """

    __slots__ = ("budgets", "commands", "corrections", "emptied", "hash", "nodes", "receipts", "workloads")

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.receipts: list[Receipt] = []
        self.emptied: list[NodeEmptied] = []
        self.corrections: list[Correction] = []
        self.hash: StateHashed | None = None
        self.budgets: dict[str, None] = {}
        self.nodes: dict[str, None] = {}
        self.workloads: dict[str, None] = {}
