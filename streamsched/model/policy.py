"""The knobs of scheduling, validated together. A policy is a fact: it is adopted by an event and has a version.

Only knobs that something reads are here; a field without an effect would be a promise nobody keeps.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from streamsched.model.identifiers import DomainId, PoolId
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND
from streamsched.model.topology import MAX_LEVELS, NODE, LevelName, Preference, Recovery

Positive = Annotated[int, Field(ge=1, le=366 * DAY)]
Duration = Annotated[int, Field(ge=0, le=366 * DAY)]


class Scheme(StrEnum):
    """Who decides: hierarchical fair share; or, for comparison, the priority scheduler that it replaces, or one queue.

    One queue of all teams in the order of arrival: whose first blocks all others, in which what fits may pass, or in
    which it may pass without making the first wait (`streamsched.scheduling.yardsticks`).
    """

    FAIR_SHARE = "fair_share"
    PRIORITY = "priority"
    FIFO = "fifo"
    FIFO_SKIP = "fifo_skip"
    EASY_BACKFILL = "easy_backfill"


class Order(StrEnum):
    """How siblings are ordered: by the use of the whole window, or those that hold less than their quota now first."""

    WINDOW = "window"
    DUE_FIRST = "due_first"


class UsageMode(StrEnum):
    """What usage is: GPU-time in the window, the same with old time fading out, or the GPUs held at the moment.

    The last one forgets the past; it is there to compare with schedulers that do.
    """

    WINDOW = "window"
    DECAY = "decay"
    INSTANT = "instant"


class VictimUnderBudget(StrEnum):
    """Whether allocated work of a budget that has used less than its entitlement may be preempted."""

    ALLOW = "allow"
    FORBID = "forbid"


class PoolRate(BaseModel):
    """What a GPU of one pool costs: so many units of GPU-time for each unit of time."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    pool: PoolId
    rate: Annotated[int, Field(ge=0, le=10_000)]


class Levels(BaseModel):
    """What the levels of the topology trees of a pool are called, coarse to fine, without the node.

    Attributes:
        pool: The pool; absent for all that are not named.
        names: Names of the domains that nodes report, by position.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    pool: PoolId | None = None
    names: Annotated[tuple[LevelName, ...], Field(max_length=MAX_LEVELS)]


class ReserveUse(StrEnum):
    """Who may use reserved nodes when nothing else fits: any gang, or only one that recovers from a lost node."""

    ANY = "any"
    RECOVERY_ONLY = "recovery_only"


class DomainReserve(BaseModel):
    """Nodes that are left free in each domain of a level, the last by name, as long as gangs fit beside them.

    Attributes:
        level: The level whose domains each keep a reserve.
        domain: Only the domain of this name; absent for all.
        nodes: How many nodes that take work are kept free in each.
        use: Who may use them when nothing else fits.
        priority: Allocated work of this priority or above may, too; absent for no such exception.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    level: LevelName
    domain: DomainId | None = None
    nodes: Annotated[int, Field(ge=1, le=10_000)]
    use: ReserveUse = ReserveUse.ANY
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] | None = None


class FragmentScore(StrEnum):
    """How strays count: in nodes, ten times as much for each level they lie deeper; or the deepest first."""

    WEIGHTED = "weighted"
    LEXICOGRAPHIC = "lexicographic"


class Policy(BaseModel):
    """How one cluster is scheduled. All times are milliseconds.

    Source: `fair-share.md`, sections 3 and 4; the defaults are the ones it gives.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    scheme: Scheme = Field(
        default=Scheme.FAIR_SHARE,
        description="Fair share by budgets; priorities across teams, each with some GPUs that nobody preempts; or one "
        "queue: strict, with passing, or with passing beside a promise to the first.",
    )
    window_ms: Positive = Field(default=7 * DAY, description="The lookback window over which usage counts.")
    min_runtime_floor_ms: Positive = Field(
        default=5 * MINUTE, description="The shortest min runtime that allocated work may ask for."
    )
    min_runtime_cap_ms: Positive = Field(
        default=8 * HOUR, description="The longest min runtime; also the floor of an entitlement, in time."
    )
    start_deadline_ms: Positive = Field(
        default=30 * MINUTE, description="A run that has not started this long after it was placed has failed."
    )
    grace_ms: Duration = Field(default=60 * SECOND, description="Time between a stop and the kill, allocated work.")
    unallocated_grace_ms: Duration = Field(
        default=10 * SECOND, description="Time between a stop and the kill, unallocated work."
    )
    stop_timeout_ms: Positive = Field(
        default=60 * SECOND,
        description="Time after the grace in which a stop must be confirmed; a placement that waits for it then fails.",
    )
    resend_ms: Positive = Field(
        default=15 * SECOND, description="A command that no node has acknowledged is sent again after this time."
    )
    tick_ms: Positive = Field(default=10 * SECOND, description="The longest time between two ticks of a live ledger.")
    order: Order = Field(default=Order.WINDOW, description="What orders the children of a budget.")
    usage: UsageMode = Field(default=UsageMode.WINDOW, description="What counts as usage.")
    half_life_ms: Positive = Field(
        default=3 * DAY, description="Usage mode decay: GPU-time this old counts half. Unused in the other modes."
    )
    commitment: bool = Field(
        default=True, description="Whether protected time that is still ahead counts as used already."
    )
    guard: bool = Field(
        default=True,
        description="Whether a preemption of allocated work must leave its claimant no further ahead than the victim.",
    )
    guard_floor_ms: Duration = Field(
        default=30 * MINUTE,
        description="The guard counts a claimant's GPUs for its min runtime, or for this if longer.",
    )
    guard_relaxation_ms: Positive | None = Field(
        default=DAY, description="The guard fades out over this wait; null means that it never does."
    )
    victim_under_budget: VictimUnderBudget = Field(
        default=VictimUnderBudget.ALLOW, description="Whether those below their entitlement can be victims."
    )
    over_quota_protection_ms: Positive | None = Field(
        default=None, description="The most protection of a start that lifts its leaf above its quota; null: no limit."
    )
    patience_ms: Duration = Field(
        default=15 * SECOND, description="Allocated work is preempted only for what has waited so long."
    )
    disruption_cap: Annotated[int, Field(ge=1, le=1_000)] = Field(
        default=2, description="Allocated GPUs to be preempted for each GPU requested, where a choice allows it."
    )
    preemption_burst_percent: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=100, description="Allocated GPUs that may be preempted at once, in percent of the pool."
    )
    preemption_refill_percent: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=25, description="How much of that comes back in an hour, in percent of the pool."
    )
    reservations: Annotated[int, Field(ge=0, le=64)] = Field(
        default=2, description="The most gangs of more than one node for which nodes are drained at a time."
    )
    reserve_after_ms: Duration = Field(default=2 * MINUTE, description="How long such a gang waits before that.")
    reservation_overrun_ms: Duration = Field(
        default=10 * MINUTE, description="A reservation is kept so long after its start, for GPUs still being released."
    )
    backfill_margin_ms: Duration = Field(
        default=2 * MINUTE, description="Time to start that is allowed for when a reserved node is used meanwhile."
    )
    nodes_per_headroom_node: Annotated[int, Field(ge=0, le=100_000)] = Field(
        default=64, description="Of so many healthy nodes one takes only short and unallocated work; 0: none does."
    )
    short_gpus: Annotated[int, Field(ge=0, le=1_600_000)] = Field(
        default=8, description="Short work asks for at most so many GPUs,"
    )
    short_min_runtime_ms: Duration = Field(default=15 * MINUTE, description="and for at most this min runtime.")
    review_ms: Positive = Field(
        default=30 * SECOND, description="Shortest time after which blocked work is looked at because usage has moved."
    )
    flap_limit: Annotated[int, Field(ge=1, le=1_000)] = Field(
        default=3, description="A node that became unhealthy so often within the flap window is held down."
    )
    flap_window_ms: Positive = Field(default=HOUR, description="See flap_limit.")
    hold_down_ms: Positive = Field(
        default=30 * MINUTE, description="A held-down node takes work again after it was healthy for so long."
    )
    warning_ms: Duration = Field(
        default=15 * MINUTE, description="How long before its protection ends an interactive session is warned."
    )
    rates: Annotated[tuple[PoolRate, ...], Field(max_length=1_000)] = Field(
        default=(), description="The rate card: what a GPU of a pool costs; 1 where nothing is said."
    )
    levels: Annotated[tuple[Levels, ...], Field(max_length=1_000)] = Field(
        default=(), description="What the levels of the topology trees are called, coarse to fine, by pool."
    )
    preference: Preference = Field(
        default=Preference.UTILIZATION_FIRST,
        description="What is better among the placements that a gang's layers allow, unless it says so itself.",
    )
    fragment_score: FragmentScore = Field(
        default=FragmentScore.WEIGHTED, description="How strays of a placement are weighed against each other."
    )
    domain_reserves: Annotated[tuple[DomainReserve, ...], Field(max_length=1_000)] = Field(
        default=(), description="Nodes kept free in topology domains, for recovery above all."
    )
    recovery: Recovery = Field(
        default=Recovery.WIDENING, description="How far a gang with layers that lost a node may move to recover."
    )
    recovery_step_ms: Positive = Field(
        default=MINUTE, description="A recovery in vain widens by one step after each such time."
    )
    consolidation: bool = Field(
        default=False,
        description="Whether allocated runs past their protection that can resume are moved to free GPUs elsewhere, so "
        "that a gang fits that could take its room from nobody.",
    )
    placements_per_round: Annotated[int, Field(ge=1, le=1_000)] = Field(
        default=200, description="The most gangs one proposal may place; the next round follows at once."
    )
    finished_kept_ms: Duration = Field(
        default=30 * DAY, description="How long the id of a finished workload is remembered, so that a retry is seen."
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.min_runtime_floor_ms > self.min_runtime_cap_ms:
            raise ValueError(
                f"min_runtime_floor_ms ({self.min_runtime_floor_ms}) is above min_runtime_cap_ms "
                f"({self.min_runtime_cap_ms}): no allocated work could be submitted"
            )
        if self.window_ms < self.min_runtime_cap_ms:
            raise ValueError(
                f"window_ms ({self.window_ms}) is shorter than min_runtime_cap_ms ({self.min_runtime_cap_ms}): "
                "a run could leave the window before its protection ends"
            )
        named: list[str | None] = [levels.pool for levels in self.levels]
        for levels in self.levels:
            whose = "of all other pools" if levels.pool is None else f"of pool {levels.pool!r}"
            if named.count(levels.pool) > 1:
                raise ValueError(f"levels: those {whose} are named twice; name them once")
            if NODE in levels.names:
                raise ValueError(f"levels: those {whose} name {NODE!r}, which is below all of them; leave it out")
            if len(set(levels.names)) < len(levels.names):
                raise ValueError(f"levels: those {whose} name one twice ({', '.join(levels.names)})")
        known = {name for levels in self.levels for name in levels.names}
        known_names = ", ".join(sorted(known)) or "none"
        for reserve in self.domain_reserves:
            if reserve.level not in known:
                raise ValueError(f"domain_reserves: level {reserve.level!r} is not among levels ({known_names})")
        pools = [rate.pool for rate in self.rates]
        twice = sorted({pool for pool in pools if pools.count(pool) > 1})
        if twice:
            raise ValueError(f"rates: pool {twice[0]!r} is named twice; give each pool one rate")
        if self.short_min_runtime_ms > self.min_runtime_cap_ms:
            raise ValueError(
                f"short_min_runtime_ms ({self.short_min_runtime_ms}) is above min_runtime_cap_ms "
                f"({self.min_runtime_cap_ms}): all work of few GPUs would be short"
            )
        if self.order is Order.DUE_FIRST and self.usage is UsageMode.INSTANT:
            raise ValueError("order due_first and usage instant say the same twice; choose order window with instant")
        return self

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write a guard that never fades out as null: what is left out is read as the default."""
        fields: dict[str, Any] = write(self)
        return fields if self.guard_relaxation_ms is not None else {**fields, "guard_relaxation_ms": None}

    def rate_of(self, pool: str) -> int:
        """Return what a GPU of a pool costs."""
        return next((rate.rate for rate in self.rates if rate.pool == pool), 1)

    def levels_of(self, pool: str) -> tuple[str, ...]:
        """Return the names of the topology levels of a pool, coarse to fine, without the node."""
        names = {levels.pool: levels.names for levels in self.levels}
        return names.get(pool, names.get(None, ()))


#: Ai2's order: siblings by their use of the whole window, so that a team catches up over the week.
OVER_THE_WEEK = Policy()
#: Those that hold less than their quota now come first, so that more of what is due is delivered in each hour.
HOUR_BY_HOUR = Policy(order=Order.DUE_FIRST)
#: The scheduler that fair share replaces, by priorities and limits, to compare with.
BY_PRIORITY = Policy(scheme=Scheme.PRIORITY)
#: One queue for all, without budgets: what everybody knows, to measure others by.
FIFO = Policy(scheme=Scheme.FIFO)
FIFO_SKIP = Policy(scheme=Scheme.FIFO_SKIP)
EASY_BACKFILL = Policy(scheme=Scheme.EASY_BACKFILL)
#: Policies by the name they can be asked for.
NAMED_POLICIES = {
    "over_the_week": OVER_THE_WEEK,
    "hour_by_hour": HOUR_BY_HOUR,
    "by_priority": BY_PRIORITY,
    "fifo": FIFO,
    "fifo_skip": FIFO_SKIP,
    "easy_backfill": EASY_BACKFILL,
}
DEFAULT_POLICY = OVER_THE_WEEK
