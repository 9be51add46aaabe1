"""Facts: what happened, in the past tense, once and for all; and decisions, which are facts too.

The set is closed. A new fact needs a class here, a case in ``ClusterState.apply``, a builder in
``tests/stories.py`` and a line in ``topics/ledger.toml``. The type checker asks for the second.

Every event carries one envelope. ``src`` and ``seq`` say which record of which source topic it came from: the fold
keeps one high-water mark for each source, so that a repeat is dropped and a gap is seen. ``at_ms`` is the time that
the writer claims; it is data for reports, never the clock of the core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal, NamedTuple, ParamSpec, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from streamsched.model.identifiers import (
    Actor,
    Argument,
    BudgetId,
    CommandId,
    DomainId,
    NodeId,
    PoolId,
    Reason,
    TreeId,
    WorkloadId,
    parent_of,
)
from streamsched.model.policy import Policy
from streamsched.model.quantities import DAY, WHOLE, format_fraction
from streamsched.model.topology import MAX_LEVELS, TopologyRequest, objection_to

#: Milliseconds since 1970 UTC, until the year 9999.
Instant = Annotated[int, Field(ge=0, le=253_402_300_799_999)]
#: At most a year: longer than any contract, short enough that no product of quantities is absurd.
Span = Annotated[int, Field(ge=0, le=366 * DAY)]
#: Attempts of a workload are numbered from 1.
Attempt = Annotated[int, Field(ge=1, le=1_000_000)]
#: Bit i stands for GPU i of the node; a node has at most 16.
GpuMask = Annotated[int, Field(ge=0, le=0xFFFF)]
Cursor = Annotated[int, Field(ge=0, le=2**63 - 1)]
#: GPU-milliseconds.
GpuMs = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]


class Value(BaseModel):
    """A frozen, strict part of an event or command."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


P = ParamSpec("P")
V = TypeVar("V", bound=Value)


def trusted(model: Callable[P, V]) -> Callable[P, V]:
    """Return a maker of values of a model whose parts were checked before: what it makes is not validated again.

    For what the core, or a node, makes of its own: it takes half the time and a fraction of the memory. Whoever calls
    it gives the types that the model declares, tuples for tuples.
    """
    if not (isinstance(model, type) and issubclass(model, Value)):
        raise TypeError(f"{model!r} is no model of a fact or a command")
    kind: type[Value] = model
    defaults = {name: field.default for name, field in kind.model_fields.items() if not field.is_required()}
    all_fields = set(kind.model_fields)

    def make(*_: P.args, **fields: P.kwargs) -> V:
        value = _new(kind)
        _set(value, "__dict__", {**defaults, **fields})
        _set(value, "__pydantic_fields_set__", all_fields)
        _set(value, "__pydantic_extra__", None)
        _set(value, "__pydantic_private__", None)
        return value  # type: ignore[return-value]  # It is of `kind`, which is `model`.

    return make


_new: Final = object.__new__
_set: Final = object.__setattr__


class Fact(Value):
    """The envelope of every event.

    Attributes:
        src: The source record's topic and partition, ``workloads.v1/3``; absent for what was written directly.
        seq: The source record's offset; present exactly when ``src`` is.
        at_ms: When the writer says it happened. For reports only.
        actor: Who caused it.
        corr: A correlation id of the client's choice; it comes back in receipts.
        cause: The id of the event or command that this one answers.
    """

    src: Annotated[str, Field(max_length=300)] | None = None
    seq: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    at_ms: Instant | None = None
    actor: Actor | None = None
    corr: Annotated[str, Field(max_length=200)] | None = None
    cause: Annotated[str, Field(max_length=200)] | None = None


# --- what people and their tools ask for ------------------------------------------------------------------------------


class WorkloadSubmitted(Fact):
    """A budget asked for a gang of GPUs under a scheduling contract.

    Attributes:
        workload: Chosen by the client, never reused. A requeued workload keeps its id.
        budget: The leaf that asks, and that pays if the time is allocated.
        pool: The kind of GPU it needs; absent means any one pool.
        ranks: Gang size, at least 1. All ranks start together or none does.
        gpus_per_rank: GPUs each rank needs on one node, 1 to 16.
        min_runtime_ms: Protected time. Zero asks for unallocated occupancy.
        timeout_ms: The run is stopped this long after its start; absent means never.
        resumable: Whether a preempted run may be requeued.
        priority: Orders work inside the leaf only; larger goes first.
        command: What the nodes run. Virtual nodes understand ``sleep SECONDS``.
        interactive: Somebody sits at it: warned before its protection ends, and may extend it once. Allocated only.
        topology: Which ranks must or should share a topology domain; absent if any nodes will do.
    """

    type: Literal["workload_submitted"] = "workload_submitted"
    v: Literal[1] = 1
    workload: WorkloadId
    budget: BudgetId
    pool: PoolId | None = None
    ranks: int = Field(ge=1, le=100_000)
    gpus_per_rank: int = Field(ge=1, le=16)
    min_runtime_ms: Span
    timeout_ms: Annotated[int, Field(ge=1, le=366 * DAY)] | None = None
    resumable: bool
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)
    command: Annotated[tuple[Argument, ...], Field(max_length=1_024)] = ()
    interactive: bool = False
    topology: TopologyRequest | None = None

    @model_validator(mode="after")
    def _layers_fit_the_gang(self) -> Self:
        if self.topology is None:
            return self
        objection = objection_to(self.topology, self.ranks, self.gpus_per_rank)
        if objection is not None:
            raise ValueError(f"topology.{objection}")
        return self


class WorkloadCancelled(Fact):
    """Somebody no longer wants it, queued or running."""

    type: Literal["workload_cancelled"] = "workload_cancelled"
    v: Literal[1] = 1
    workload: WorkloadId
    reason: Reason | None = None


class WorkloadReprioritized(Fact):
    """Its owner moved it inside its leaf."""

    type: Literal["workload_reprioritized"] = "workload_reprioritized"
    v: Literal[1] = 1
    workload: WorkloadId
    priority: int = Field(ge=-1_000_000, le=1_000_000)


class RunExtended(Fact):
    """Whoever sits at an interactive session asked for more protected time: once for each run, and it is charged.

    Attributes:
        extra_ms: By how much the end of its protection moves; at most the longest min runtime.
    """

    type: Literal["run_extended"] = "run_extended"
    v: Literal[1] = 1
    workload: WorkloadId
    extra_ms: Annotated[int, Field(ge=1, le=366 * DAY)]


class BudgetShare(Value):
    """One vertex of the budget tree.

    Attributes:
        fraction_nano: Its fraction of its parent, in parts of 1,000,000,000.
        managers: Who may change it and what is below it, by the names of actors. Where neither a vertex nor any above
            it has managers, anybody may.
        max_allocated_gpus: How many GPUs its allocated runs may have at a time, those of its children included; absent
            for no limit. A lower one stops nobody: no more is placed before enough has ended.
        max_unallocated_gpus: The same of its unallocated runs.
    """

    budget: BudgetId
    fraction_nano: int = Field(ge=0, le=WHOLE)
    managers: Annotated[tuple[Actor, ...], Field(max_length=100)] = ()
    max_allocated_gpus: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    max_unallocated_gpus: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None


class BudgetTreeChanged(Fact):
    """The whole tree, as it is from now on.

    The tree is given whole, so that one event is one atomic change. A budget that is no longer named is closed: its
    running work goes on and is charged to what is left of its path.

    Attributes:
        change: The id of this change, chosen by its author; the same id twice is one change.
        previous: The change it was made on; a stale one is refused. Absent for the first tree.
        effective_ms: When the tree changes; absent, or in the past, means at once. It is checked again then: another
            change that comes before it makes it stale, unless that is the one it was made on.
        reason: Why.
        budgets: Every vertex below the root, parents before children.
    """

    type: Literal["budget_tree_changed"] = "budget_tree_changed"
    v: Literal[1] = 1
    change: Annotated[str, Field(min_length=1, max_length=128)]
    previous: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    effective_ms: Instant | None = None
    reason: Reason
    budgets: Annotated[tuple[BudgetShare, ...], Field(max_length=20_000)]

    @model_validator(mode="after")
    def _is_a_tree(self) -> Self:
        promised: dict[str | None, int] = {None: 0}
        for share in self.budgets:
            parent = parent_of(share.budget)
            if share.budget in promised:
                raise ValueError(f"budget {share.budget!r} is named twice")
            if parent not in promised:
                raise ValueError(f"budget {share.budget!r} comes before its parent {parent!r}, or that is missing")
            promised[share.budget] = 0
            promised[parent] += share.fraction_nano
            if promised[parent] > WHOLE:
                whose = "the root" if parent is None else repr(parent)
                over = format_fraction(promised[parent])
                raise ValueError(
                    f"the children of {whose} hold more than the whole of it ({over}, counted up to "
                    f"{share.budget!r}); lower their fractions"
                )
        return self


class UsageAdjusted(Fact):
    """An administrator corrected what a leaf was charged. It leaves the window as the time it corrects does.

    Attributes:
        adjustment: The id of this correction, chosen by its author; the same id twice is one correction.
        budget: The leaf.
        workload: The workload it is about, if it is about one, and which attempt of it.
        gpu_ms: What it is charged besides, in units of the rate card; negative where it is given back. It is spread
            evenly over the interval, and no more can be given back than was charged at any moment of it.
        from_ms: The interval begins with this, and ends before `to_ms`.
        reason: Why.
    """

    type: Literal["usage_adjusted"] = "usage_adjusted"
    v: Literal[1] = 1
    adjustment: Annotated[str, Field(min_length=1, max_length=128)]
    budget: BudgetId
    workload: WorkloadId | None = None
    attempt: Attempt | None = None
    gpu_ms: GpuMs
    from_ms: Instant
    to_ms: Instant
    reason: Reason

    @model_validator(mode="after")
    def _is_an_interval(self) -> Self:
        if self.from_ms >= self.to_ms:
            raise ValueError(f"from_ms ({self.from_ms}) is not before to_ms ({self.to_ms}): name an interval")
        return self


class PolicyAdopted(Fact):
    """The policy from now on; protection already given is kept."""

    type: Literal["policy_adopted"] = "policy_adopted"
    v: Literal[1] = 1
    policy: Policy
    reason: Reason


class Drain(StrEnum):
    """How far a node is being emptied.

    A cordoned node takes no new work, and what has started there goes on. A soft drain ends it as its protection ends,
    a hard one ends it now.
    """

    NONE = "none"
    CORDON = "cordon"
    SOFT = "soft"
    HARD = "hard"


class NodeDrainChanged(Fact):
    """An administrator took a node out of use, or put it back. It stays so until the next such order.

    Attributes:
        reason: Why.
    """

    type: Literal["node_drain_changed"] = "node_drain_changed"
    v: Literal[1] = 1
    node: NodeId
    drain: Drain
    reason: Reason


# --- what nodes report ------------------------------------------------------------------------------------------------


class NodeLabels(Value):
    """Where a node sits, whatever it reports.

    Attributes:
        tree: The tree; absent for the one that it reports.
        domains: Coarse to fine; absent for those that it reports.
    """

    node: NodeId
    tree: DomainId | None = None
    domains: Annotated[tuple[DomainId, ...], Field(max_length=MAX_LEVELS)] | None = None


class NodesRelabelled(Fact):
    """The network is not what nodes report of it: a tree was split, merged or cut another way. All at once.

    A node keeps these labels until the next such fact names it. Runs go on where they are; one whose layers no longer
    hold, or that has nodes in two trees, is straddling.

    Attributes:
        labels: One for each node concerned.
        reason: Why.
    """

    type: Literal["nodes_relabelled"] = "nodes_relabelled"
    v: Literal[1] = 1
    labels: Annotated[tuple[NodeLabels, ...], Field(min_length=1, max_length=100_000)]
    reason: Reason

    @model_validator(mode="after")
    def _names_each_once(self) -> Self:
        seen: set[str] = set()
        for label in self.labels:
            if label.node in seen:
                raise ValueError(f"labels: node {label.node!r} is named twice; give it one place")
            seen.add(label.node)
        return self


class NodeHealth(StrEnum):
    """What a node is good for.

    A healthy node takes work. An unhealthy one takes none, and empties as the protection of what runs there ends. A
    lost one is silent: what ran there is lost, and its GPUs are not given out before its agent has said what is left.
    """

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    LOST = "lost"


class NodeHealthChanged(Fact):
    """The health agent saw a node change, by its heartbeats or by their absence.

    Attributes:
        fatal: An unhealthy node on which nothing may go on, protected or not.
    """

    type: Literal["node_health_changed"] = "node_health_changed"
    v: Literal[1] = 1
    node: NodeId
    health: NodeHealth
    reason: Reason | None = None
    fatal: bool = False


class HeldRun(Value):
    """A run that a node agent holds GPUs for."""

    workload: WorkloadId
    attempt: Attempt
    gpu_mask: GpuMask


class NodeInventoryReported(Fact):
    """A node agent said what its machine is and what runs there: on its start, and from time to time.

    Attributes:
        boot: The agent's boot id; it changes when the machine restarts.
        pool: The kind of GPU.
        gpus: How many it has, 0 to 16.
        domains: The topology domains it sits in, coarse to fine, without the node itself.
        tree: The tree of those domains; absent for the only one of its pool. No gang spans two trees.
        runs: Every run that holds GPUs there.
        watermark: The last command that the agent has obeyed; absent before the first.
    """

    type: Literal["node_inventory_reported"] = "node_inventory_reported"
    v: Literal[1] = 1
    node: NodeId
    boot: Annotated[str, Field(min_length=1, max_length=128)]
    pool: PoolId
    gpus: int = Field(ge=0, le=16)
    domains: Annotated[tuple[DomainId, ...], Field(max_length=MAX_LEVELS)] = ()
    tree: DomainId | None = None
    runs: Annotated[tuple[HeldRun, ...], Field(max_length=16)] = ()
    watermark: CommandId | None = None


class CommandAccepted(Fact):
    """A node agent has a command and will obey it."""

    type: Literal["command_accepted"] = "command_accepted"
    v: Literal[1] = 1
    node: NodeId
    command: CommandId


class RunStarted(Fact):
    """The ranks of one attempt that sit on this node are running."""

    type: Literal["run_started"] = "run_started"
    v: Literal[1] = 1
    node: NodeId
    workload: WorkloadId
    attempt: Attempt


class ReleaseOutcome(StrEnum):
    """How the ranks on one node came to their end."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    REFUSED = "refused"


class RunReleased(Fact):
    """The GPUs that one attempt held on this node are free again.

    Attributes:
        outcome: ``succeeded`` and ``failed`` are the work's own end, ``stopped`` obeys a stop, and ``refused`` means
            that the node could not take the placement: an infrastructure failure.
        exit_code: Of the work, when it ended by itself.
        detail: For people.
    """

    type: Literal["run_released"] = "run_released"
    v: Literal[1] = 1
    node: NodeId
    workload: WorkloadId
    attempt: Attempt
    outcome: ReleaseOutcome
    exit_code: Annotated[int, Field(ge=-1_000, le=1_000)] | None = None
    detail: Reason | None = None


# --- what the machinery writes ----------------------------------------------------------------------------------------


class Tick(Fact):
    """Time passes. A tick carries no time: its append time is the time."""

    type: Literal["tick"] = "tick"
    v: Literal[1] = 1
    tick: Annotated[int, Field(ge=1, le=2**63 - 1)]


class NodeRepairBegan(Fact):
    """Whoever repairs nodes was told that this one is empty, and has taken it.

    Attributes:
        emptied: The cursor of the record with which the node had become empty.
    """

    type: Literal["node_repair_began"] = "node_repair_began"
    v: Literal[1] = 1
    node: NodeId
    emptied: Cursor


class Rejected(Fact):
    """Intake could not make an event of a source record; the bytes are in the dead-letter topic.

    Attributes:
        code: A word from a closed list of intake's, for metrics.
        reason: The field, the value and the remedy.
        workload: The workload it spoke of, as far as that could be read, so that a receipt can be sent.
    """

    type: Literal["rejected"] = "rejected"
    v: Literal[1] = 1
    code: Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,63}$")]
    reason: Annotated[str, Field(max_length=4_000)]
    workload: WorkloadId | None = None


class StateHashed(Fact):
    """A scheduler recorded the digest of its state; every other fold must have the same.

    Attributes:
        folded: How many records were in the state: all with a cursor below this.
        digest: SHA-256 of the frozen state, in hex.
        build: The version that computed it.
        layout: The layout of the frozen state. Digests of another layout say nothing about ours.
    """

    type: Literal["state_hashed"] = "state_hashed"
    v: Literal[1] = 1
    folded: Cursor
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    build: Annotated[str, Field(max_length=128)]
    layout: int = Field(default=1, ge=1, le=1_000_000)


class ProtocolActivated(Fact):
    """From here on ``apply`` follows this version of the protocol."""

    type: Literal["protocol_activated"] = "protocol_activated"
    v: Literal[1] = 1
    protocol: int = Field(ge=1, le=1_000_000)


class LedgerSkipped(Fact):
    """An admin decided that the record at this cursor is not folded. The only way past a record that halts us."""

    type: Literal["ledger_skipped"] = "ledger_skipped"
    v: Literal[1] = 1
    cursor: Cursor
    reason: Reason


# --- decisions --------------------------------------------------------------------------------------------------------


class Seat(Value):
    """Where one rank sits: a node, and which of its GPUs."""

    rank: int = Field(ge=0, le=99_999)
    node: NodeId
    gpu_mask: GpuMask


class TakeRule(StrEnum):
    """What lets a claimant take the GPUs of an allocated run whose protection has ended."""

    FAIR_SHARE = "fair_share"
    PRIORITY = "priority"
    RESERVATION = "reservation"


class Comparison(Value):
    """Why a claimant may take from an allocated run, in numbers that anyone can check.

    The two budgets are the children of the lowest common ancestor towards the claimant and towards the victim. By fair
    share, ``used / entitled`` of the claimant is below the victim's, and with the guard added it is not above it:
    ``(claimant_used + guard) x victim_entitled <= victim_used x claimant_entitled``. Used is charged and committed.
    Source: `fair-share.md`, section 4.3.

    Attributes:
        guard_gpu_ms: What the guard adds to the claimant; 0 once it has faded out.
        protected_until_ms: When the victim's protection ended.
    """

    rule: TakeRule
    claimant: BudgetId
    claimant_used_gpu_ms: GpuMs
    claimant_entitled_gpu_ms: GpuMs
    victim: BudgetId
    victim_used_gpu_ms: GpuMs
    victim_entitled_gpu_ms: GpuMs
    guard_gpu_ms: GpuMs
    protected_until_ms: Instant


class Victim(Value):
    """A run to be stopped so that a placement fits.

    Attributes:
        because: Why it may be, if it is allocated and gives up its GPUs.
        moves_to: Where else it goes, if it is allocated and only moves: these seats are kept for its next attempt.
    """

    workload: WorkloadId
    attempt: Attempt
    because: Comparison | None = None
    moves_to: Annotated[tuple[Seat, ...], Field(min_length=1, max_length=100_000)] | None = None


class ShareLine(Value):
    """One level of the comparison that gave a workload its turn.

    The usage ratio is ``(charged_gpu_ms + committed_gpu_ms) / entitled_gpu_ms``. For unallocated work the charge is the
    unallocated time, and the entitlement is the quota itself.

    Attributes:
        budget: The vertex of the tree.
        siblings: How many children its parent has; it was the first of those for which something could be done.
    """

    budget: BudgetId
    charged_gpu_ms: GpuMs
    committed_gpu_ms: GpuMs
    entitled_gpu_ms: GpuMs
    siblings: int = Field(ge=1, le=1_000_000)


class ProposedPlacement(Value):
    """One gang, all or nothing: its seats, and the runs that must end before it can sit there.

    Attributes:
        workload: A queued workload.
        attempt: The number this attempt would have.
        seats: One for each rank, in rank order.
        victims: Runs to be stopped; empty when the seats are free.
        shares: Why it was its turn: one line for each level, from the root down.
        over_cap: More allocated GPUs are preempted than the disruption cap allows, since no other choice was there.
    """

    workload: WorkloadId
    attempt: Attempt
    seats: Annotated[tuple[Seat, ...], Field(min_length=1, max_length=100_000)]
    victims: tuple[Victim, ...] = ()
    shares: tuple[ShareLine, ...]
    over_cap: bool = False


class ProposedReservation(Value):
    """Nodes that are drained for a gang that cannot be seated yet: a promise of its start.

    Attributes:
        pool: The kind of GPU, and the tree if it is named.
        nodes: The nodes, in the order of their places.
        start_ms: When the last protection on them ends.
        evicted_gpus: Allocated GPUs that would have to be preempted then.
    """

    workload: WorkloadId
    pool: TreeId
    nodes: Annotated[tuple[NodeId, ...], Field(min_length=1, max_length=100_000)]
    start_ms: Instant
    evicted_gpus: int = Field(ge=0, le=10_000_000)
    shares: tuple[ShareLine, ...]


class RoundProposed(Fact):
    """What one scheduler would do now. The first proposal of a round to be folded closes it; later ones are ignored.

    Attributes:
        round: The round it would close: one more than the last closed one.
        based_on: How many records had been folded when it was computed.
        policy_version: How many policies had been adopted.
        placements: In the order in which they were decided.
        reservations: New ones, in the order in which they were decided.
    """

    type: Literal["round_proposed"] = "round_proposed"
    v: Literal[1] = 1
    round: int = Field(ge=1, le=2**63 - 1)
    based_on: Cursor
    policy_version: int = Field(ge=0, le=2**63 - 1)
    placements: tuple[ProposedPlacement, ...] = ()
    reservations: tuple[ProposedReservation, ...] = ()


Event = (
    WorkloadSubmitted
    | WorkloadCancelled
    | WorkloadReprioritized
    | RunExtended
    | BudgetTreeChanged
    | UsageAdjusted
    | PolicyAdopted
    | NodeDrainChanged
    | NodesRelabelled
    | NodeHealthChanged
    | NodeInventoryReported
    | CommandAccepted
    | RunStarted
    | RunReleased
    | Tick
    | NodeRepairBegan
    | Rejected
    | StateHashed
    | ProtocolActivated
    | LedgerSkipped
    | RoundProposed
)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A ledger record whose bytes are no event of ours. It folds to a counted nothing."""

    reason: str


class Record(NamedTuple):
    """One ledger record as the fold takes it. See `streamsched.model.ledger.Entry` for its first two fields."""

    cursor: int
    append_ms: int
    event: Event | Unreadable
