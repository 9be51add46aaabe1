"""What people ask of a state, as values: workloads, machines, shares, and why one workload is where it is.

The same values are the JSON of the embedded service, the ``--json`` of the command line, and what its tables are
printed from. Times are milliseconds since 1970 UTC of the ledger's clock, GPU-time is GPU-milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamsched.model.events import Drain, NodeHealth, WorkloadSubmitted
from streamsched.model.identifiers import BudgetId
from streamsched.model.policy import Policy
from streamsched.model.topology import TopologyRequest
from streamsched.replay.story import Chronicle, Happening
from streamsched.scheduling.obstacles import Obstacles
from streamsched.scheduling.verdicts import Verdict, verdict, waiting_code
from streamsched.state import straddling
from streamsched.state.cluster import ClusterState
from streamsched.state.inventory import Node
from streamsched.state.snapshot import digest
from streamsched.state.standing import NodeState, standing
from streamsched.state.usage import Budget
from streamsched.state.workloads import Finished, Phase, Workload, gang_gpus
from streamsched.wire.refusals import refusal_of


class Answer(BaseModel):
    """A frozen part of an answer. Unknown fields are ignored, so that an older client reads a newer service."""

    model_config = ConfigDict(frozen=True)


class AsOf(Answer):
    """An answer about a whole state.

    Attributes:
        cursor: The last record that was folded, -1 before the first: with `--at` it gives the same answer again.
        at_ms: The ledger's time.
    """

    cursor: int
    at_ms: int


class JobFilter(BaseModel):
    """Which workloads are wanted.

    Attributes:
        phase: Only those in one of these phases; empty means every live one.
        budget: Only those of this budget and below.
        ended: Also those that have ended and are still remembered.
        limit: At most so many, the latest submitted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    phase: tuple[Phase, ...] = ()
    budget: BudgetId | None = None
    ended: bool = False
    limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> Self:
        """Return the filter that a query asks for.

        Raises:
            WireError: Naming the field, its value and what it may be.
        """
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise refusal_of(error, cls, "the query", None) from None


EVERY_JOB = JobFilter()


class Job(Answer):
    """A workload, as a line of a list.

    Attributes:
        gpus: GPUs of the whole gang.
        allocated: Whether its time is charged and protected.
        attempt: The present or last attempt; 0 before the first.
        queued_ms: When it was last put in the queue.
        bound_ms: When the present attempt was given its GPUs.
        started_ms: When the whole gang ran.
        protected_until_ms: Nobody may take its GPUs before this time.
        ended_ms: When it came to its end.
        nodes: Where the present attempt sits, in rank order.
        topology: What it asks of the topology.
        straddling: What no longer holds of that where it sits, since nodes were relabelled; None while all does.
        reason: Why it waits, in one word; why it is being stopped; or why it ended.
    """

    workload: str
    phase: Phase
    budget: str | None = None
    pool: str | None = None
    ranks: int | None = None
    gpus_per_rank: int | None = None
    gpus: int | None = None
    allocated: bool | None = None
    min_runtime_ms: int | None = None
    timeout_ms: int | None = None
    resumable: bool | None = None
    priority: int | None = None
    attempt: int
    submitted_ms: int | None = None
    queued_ms: int | None = None
    bound_ms: int | None = None
    started_ms: int | None = None
    protected_until_ms: int | None = None
    ended_ms: int | None = None
    nodes: tuple[str, ...] = ()
    topology: TopologyRequest | None = None
    straddling: str | None = None
    reason: str | None = None


class Jobs(AsOf):
    """Workloads, in the order of their submission.

    Attributes:
        matching: How many there are, when `jobs` was cut at a limit.
    """

    matching: int
    jobs: tuple[Job, ...]


class HeldBy(Answer):
    """A run that holds GPUs of a node."""

    workload: str
    attempt: int
    gpus: int


class PinnedFor(Answer):
    """A gang for which GPUs of a node are kept, until it comes back there or is over it.

    Attributes:
        gpus: What is kept, those included that its last run still holds.
    """

    workload: str
    gpus: int


class Machine(Answer):
    """A node and what runs there.

    Attributes:
        tree: The tree that its domains belong to; None where trees have no names.
        domains: Coarse to fine, as it reports them or was relabelled.
        free: GPUs that nobody holds and that are kept for nobody.
        health: What it last said of itself, or that it is silent.
        state: Where it stands between use and repair.
        drain: How far it is being emptied.
        since_ms: Since when it is in this state.
        by: Who or what set it.
        reason: Why.
        waits_for: What ends the state; None for a node in use.
        empty_by_ms: When a draining node will be empty at the latest; None where that is not known.
        held: The runs that hold GPUs.
        pinned: The gangs that recover or move, and for which GPUs are kept.
    """

    node: str
    pool: str
    tree: str | None = None
    domains: tuple[str, ...]
    health: NodeHealth
    state: NodeState
    drain: Drain
    since_ms: int
    by: str
    reason: str | None
    waits_for: str | None
    empty_by_ms: int | None
    gpus: int
    free: int
    held: tuple[HeldBy, ...]
    pinned: tuple[PinnedFor, ...] = ()


class Nodes(AsOf):
    """The machines, in the order of their names."""

    nodes: tuple[Machine, ...]


class Share(Answer):
    """A budget and what it used inside the lookback window.

    The usage ratio is (charged + committed) / entitled: below 1, time is owed. It is None where nothing is entitled.

    Attributes:
        budget: Its path; empty for the whole cluster.
        depth: How far below the root it stands.
        is_leaf: Whether work may be submitted to it.
        of_parent: Its fraction of its parent, in parts of 1,000,000,000.
        of_cluster: Its quota: its fraction of the cluster, in parts of 1,000,000,000.
        charged_gpu_ms: Allocated time.
        committed_gpu_ms: Protected time still ahead of its runs.
        entitled_gpu_ms: What its quota was worth.
        unallocated_gpu_ms: Unallocated time, which nobody is charged for.
        allocated_gpus: GPUs that its allocated runs hold now.
        unallocated_gpus: GPUs that its unallocated runs hold now.
        queued_gpus: GPUs that its waiting allocated requests ask for.
        max_allocated_gpus: How many GPUs its allocated runs may have at a time, whatever the rates; None where there
            is no limit.
        max_unallocated_gpus: The same of its unallocated runs.
        allocated_slots: GPUs that count towards the first: held or claimed, whatever the rates.
        unallocated_slots: GPUs that count towards the second: held.
    """

    budget: str
    depth: int
    is_leaf: bool
    of_parent: int
    of_cluster: int
    charged_gpu_ms: int
    committed_gpu_ms: int
    entitled_gpu_ms: int
    usage_ratio: float | None
    unallocated_gpu_ms: int
    allocated_gpus: int
    unallocated_gpus: int
    queued_gpus: int
    max_allocated_gpus: int | None = None
    max_unallocated_gpus: int | None = None
    allocated_slots: int = 0
    unallocated_slots: int = 0


class Shares(AsOf):
    """The budget tree, parents before children; the first is the whole cluster.

    Attributes:
        change: The id of the tree's last change; name it as ``previous`` of the next one. None before the first.
        capacity_gpus: GPUs that can be scheduled now.
        rates: What a GPU of each pool counts, by the policy's rate card. Times and numbers of the shares are in these
            units: GPUs where every rate is 1.
        window_ms: The lookback window over which use counts.
    """

    change: str | None
    capacity_gpus: int
    rates: dict[str, int]
    window_ms: int
    shares: tuple[Share, ...]


class PolicyInForce(AsOf):
    """How the cluster is scheduled.

    Attributes:
        version: How many policies have been adopted; 0 for the default, before the first.
    """

    version: int
    policy: Policy


class Explanation(AsOf):
    """Everything about one workload.

    Attributes:
        job: What it is and where it stands.
        story: What happened to it, oldest first.
        verdict: Why it waits or runs or how it ended, with the arithmetic.
    """

    job: Job
    story: tuple[Happening, ...]
    verdict: Verdict


class Summary(AsOf):
    """A state in a few numbers; two folds of the same ledger give equal ones.

    Attributes:
        digest: SHA-256 of the whole state, in hex.
        closed_round: The last round that a proposal closed.
        live: Workloads by phase.
        ended: Ended workloads that are still remembered, by phase.
        unacknowledged: Commands that no node has answered yet.
        sources: The high-water mark of each source.
        gaps: How many times a source jumped.
        ignored: Facts that changed nothing, by reason.
    """

    digest: str
    policy_version: int
    closed_round: int
    live: dict[Phase, int]
    ended: dict[Phase, int]
    unacknowledged: int
    sources: dict[str, int]
    gaps: int
    ignored: dict[str, int]


def summary(state: ClusterState) -> Summary:
    """Return the state in a few numbers. Costs a digest of all of it."""
    return Summary(
        cursor=state.next_cursor - 1,
        at_ms=state.now_ms,
        digest=digest(state),
        policy_version=state.policy_version,
        closed_round=state.closed_round,
        live=dict(sorted(Counter(workload.phase for workload in state.workloads.values()).items())),
        ended=dict(sorted(Counter(finished.phase for finished in state.finished.values()).items())),
        unacknowledged=sum(len(waiting) for waiting in state.dispatch.unacknowledged.values()),
        sources=dict(sorted(state.sources.items())),
        gaps=len(state.gaps),
        ignored=dict(sorted(state.ignored.items())),
    )


def jobs(state: ClusterState, chronicle: Chronicle, wanted: JobFilter = EVERY_JOB) -> Jobs:
    """Return the workloads that pass the filter."""
    found = [
        job
        for job in _every_job(state, chronicle, ended=wanted.ended or _asks_for_ended(wanted))
        if _passes(job, wanted)
    ]
    found.sort(key=lambda job: (job.submitted_ms or 0, job.workload))
    obstacles = Obstacles(state)
    shown = [_with_reason(job, obstacles) for job in found[-(wanted.limit or len(found)) :]]
    return Jobs(cursor=state.next_cursor - 1, at_ms=state.now_ms, matching=len(found), jobs=tuple(shown))


def nodes(state: ClusterState) -> Nodes:
    """Return the machines."""
    return Nodes(
        cursor=state.next_cursor - 1,
        at_ms=state.now_ms,
        nodes=tuple(_machine(state, state.nodes[name]) for name in sorted(state.nodes)),
    )


def shares(state: ClusterState) -> Shares:
    """Return the budget tree with what each part of it used."""
    tree = state.budgets
    return Shares(
        cursor=state.next_cursor - 1,
        at_ms=state.now_ms,
        change=tree.change,
        capacity_gpus=state.inventory.capacity_gpus,
        rates={pool.id: pool.rate for pool in state.inventory.pools.values()},
        window_ms=state.policy.window_ms,
        shares=tuple(_share(budget, state.now_ms) for budget in tree.root.below()),
    )


def policy(state: ClusterState) -> PolicyInForce:
    """Return how the cluster is scheduled."""
    return PolicyInForce(
        cursor=state.next_cursor - 1, at_ms=state.now_ms, version=state.policy_version, policy=state.policy
    )


def explain(state: ClusterState, chronicle: Chronicle, workload: str) -> Explanation | None:
    """Return everything about one workload, or None when the state does not know it."""
    live, ended = state.workloads.get(workload), state.finished.get(workload)
    if live is not None:
        job = _with_reason(_live_job(state, live), Obstacles(state))
    elif ended is not None:
        job = _ended_job(ended, chronicle)
    else:
        return None
    return Explanation(
        cursor=state.next_cursor - 1,
        at_ms=state.now_ms,
        job=job,
        story=tuple(chronicle.story(workload)),
        verdict=verdict(state, workload),
    )


def unknown_workload(workload: str) -> str:
    """Return why there is no answer about a workload, and what to do."""
    return (
        f"workload is {workload!r}, and there is none of that id: it was never submitted here, or ended so long ago "
        "that it is forgotten. Look at `streamsched jobs --ended`, or replay the ledger at an earlier time."
    )


def _asks_for_ended(wanted: JobFilter) -> bool:
    return any(phase.is_final for phase in wanted.phase)


def _every_job(state: ClusterState, chronicle: Chronicle, *, ended: bool) -> Iterator[Job]:
    for workload in state.workloads.values():
        yield _live_job(state, workload)
    if ended:
        for finished in state.finished.values():
            yield _ended_job(finished, chronicle)


def _passes(job: Job, wanted: JobFilter) -> bool:
    if wanted.phase and job.phase not in wanted.phase:
        return False
    return wanted.budget is None or (job.budget is not None and f"{job.budget}/".startswith(f"{wanted.budget}/"))


def _with_reason(job: Job, obstacles: Obstacles) -> Job:
    """Return a job with the word for why it waits, if it does; that costs more than the rest, so only where shown."""
    if job.phase is not Phase.QUEUED:
        return job
    workload = obstacles.state.workloads[job.workload]
    return job.model_copy(update={"reason": str(waiting_code(obstacles.state, workload, obstacles))})


def _live_job(state: ClusterState, workload: Workload) -> Job:
    run = workload.run
    breach = straddling.breach(state, workload) if run is not None and run.straddling else None
    return Job(
        workload=workload.id,
        phase=workload.phase,
        budget=workload.budget.id,
        pool=workload.pool,
        ranks=workload.ranks,
        gpus_per_rank=workload.gpus_per_rank,
        gpus=workload.gpus,
        allocated=workload.is_allocated,
        min_runtime_ms=workload.min_runtime_ms,
        timeout_ms=workload.timeout_ms,
        resumable=workload.resumable,
        priority=workload.priority,
        attempt=workload.attempt,
        submitted_ms=workload.submitted_ms,
        queued_ms=workload.queued_ms,
        bound_ms=run.bound_ms if run is not None else None,
        started_ms=run.started_ms if run is not None else None,
        protected_until_ms=run.protected_until_ms if run is not None else None,
        nodes=tuple(dict.fromkeys(seat.node for seat in run.seats)) if run is not None else (),
        topology=workload.topology,
        straddling=breach.in_words() if breach is not None else None,
        reason=None if run is None or run.stop is None else str(run.stop),
    )


def _ended_job(ended: Finished, chronicle: Chronicle) -> Job:
    story = chronicle.story(ended.workload)
    job = Job(
        workload=ended.workload,
        phase=ended.phase,
        attempt=ended.attempts,
        ended_ms=ended.at_ms,
        reason=ended.reason or None,
        submitted_ms=story[0].at_ms if story else None,
    )
    submitted = chronicle.submission(ended.workload)
    return job if submitted is None else job.model_copy(update=_contract(submitted))


def _contract(submitted: WorkloadSubmitted) -> dict[str, object]:
    fields = (
        *("budget", "pool", "ranks", "gpus_per_rank", "min_runtime_ms", "timeout_ms", "resumable", "priority"),
        "topology",
    )
    return {
        **{field: getattr(submitted, field) for field in fields},
        "gpus": gang_gpus(submitted.ranks, submitted.gpus_per_rank, submitted.topology),
        "allocated": submitted.min_runtime_ms > 0,
    }


def _machine(state: ClusterState, node: Node) -> Machine:
    return Machine(
        **standing(state, node)._asdict(),
        node=node.id,
        pool=node.pool,
        tree=node.tree,
        domains=tuple(node.domains),
        health=node.health,
        gpus=node.gpus,
        free=node.free_mask.bit_count(),
        held=tuple(
            HeldBy(workload=workload, attempt=attempt, gpus=mask.bit_count())
            for (workload, attempt), mask in sorted((*node.held.items(), *node.orphans.items()))
        ),
        pinned=tuple(
            PinnedFor(workload=workload, gpus=mask.bit_count()) for workload, mask in sorted(node.pins.items())
        ),
    )


def _share(budget: Budget, now_ms: int) -> Share:
    charged, committed = budget.charged_gpu_ms(now_ms), budget.committed_gpu_ms(now_ms)
    entitled = budget.entitled_gpu_ms(now_ms)
    return Share(
        budget=budget.id,
        depth=len(budget.path) - 1,
        is_leaf=budget.is_leaf(),
        of_parent=budget.fraction_nano,
        of_cluster=budget.quota_nano,
        charged_gpu_ms=charged,
        committed_gpu_ms=committed,
        entitled_gpu_ms=entitled,
        usage_ratio=round((charged + committed) / entitled, 6) if entitled else None,
        unallocated_gpu_ms=budget.unallocated_gpu_ms(now_ms),
        allocated_gpus=budget.allocated_gpus,
        unallocated_gpus=budget.unallocated_gpus,
        queued_gpus=budget.queued_gpus,
        max_allocated_gpus=budget.max_allocated_gpus,
        max_unallocated_gpus=budget.max_unallocated_gpus,
        allocated_slots=budget.allocated_slots,
        unallocated_slots=budget.unallocated_slots,
    )
