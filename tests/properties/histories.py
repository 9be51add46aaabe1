"""Hostile but well-formed histories: whatever clients, nodes, admins and schedulers may write, in any order.

A history is played from a list of small numbers. Each number stands for one move of somebody, and the move looks at the
state that the ones before it led to, so that most of what is told is about workloads and nodes that exist. Invariants
are checked after every record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from hypothesis import strategies as st

from streamsched.model.commands import Command, Effects
from streamsched.model.events import (
    BudgetShare,
    BudgetTreeChanged,
    CommandAccepted,
    Drain,
    Event,
    HeldRun,
    LedgerSkipped,
    NodeDrainChanged,
    NodeHealth,
    NodeHealthChanged,
    NodeInventoryReported,
    NodeRepairBegan,
    PolicyAdopted,
    ProposedPlacement,
    ProtocolActivated,
    Record,
    Rejected,
    ReleaseOutcome,
    RoundProposed,
    RunExtended,
    RunReleased,
    RunStarted,
    Seat,
    StateHashed,
    Tick,
    Unreadable,
    UsageAdjusted,
    Victim,
    WorkloadCancelled,
    WorkloadReprioritized,
    WorkloadSubmitted,
)
from streamsched.model.identifiers import command_order
from streamsched.model.policy import Levels, Order, Policy, VictimUnderBudget
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND, WHOLE
from streamsched.model.topology import NODE, Layer, Recovery, TopologyRequest, Wish
from streamsched.scheduling.decision import decide
from streamsched.state.cluster import ClusterState
from streamsched.state.invariants import check
from streamsched.state.workloads import Phase, Workload

POOLS = ("a100", "h100", "t4")
NODES = tuple(f"n{number}" for number in range(1, 8))
WORKLOADS = tuple(f"w{number:02}" for number in range(40))
#: Trees of depth 1 to 4; with fractions of zero, and in all kinds of order one after the other: leaves become inner
#: vertices and leaves again, budgets go and come back.
TREES: tuple[dict[str, int], ...] = (
    {"a": WHOLE // 2, "b": WHOLE // 2},
    {"a": WHOLE // 3, "b": WHOLE // 3, "c": WHOLE // 3 + 1},
    {"a": WHOLE // 2, "a/x": WHOLE // 3, "a/y": WHOLE // 7, "b": WHOLE // 4},
    {"a": WHOLE // 10, "a/x": WHOLE, "a/x/u": WHOLE // 3, "a/x/u/d": WHOLE // 7, "a/x/v": 0, "b": WHOLE // 3},
    {"b": WHOLE, "c": 0},
    {"a": 0, "a/x": WHOLE, "b": 1, "b/z": 1},
    {},
)
MIN_RUNTIMES = (0, 0, 5 * MINUTE, HOUR, HOUR, 8 * HOUR)
#: Some of them fit no gang of some sizes, or name levels that the cluster may not have.
TOPOLOGIES = (
    TopologyRequest(layers=(Layer(level="rack"),)),
    TopologyRequest(layers=(Layer(level="rack", wish=Wish.PREFERRED),)),
    TopologyRequest(layers=(Layer(level="rack", ranks=1),)),
    TopologyRequest(layers=(Layer(level=NODE, ranks=1),)),
    TopologyRequest(layers=(Layer(level="rack"), Layer(level="chassis", ranks=1)), recovery=Recovery.IN_PLACE),
)
SPANS = (
    0,
    0,
    0,
    1,
    999,
    5 * SECOND,
    15 * SECOND,
    15 * SECOND,
    MINUTE,
    5 * MINUTE,
    30 * MINUTE,
    HOUR,
    8 * HOUR,
    DAY,
    7 * DAY,
    20 * DAY,
)


class History:
    """What was told so far, and the state that it led to."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.records: list[Record] = []
        self.effects: list[Effects] = []
        self.append_ms = 1_000 * DAY
        #: Every command that was ever issued, by node, in order.
        self.issued: dict[str, list[Command]] = {}
        #: Proposals that somebody computed and has not written yet.
        self.late: list[RoundProposed] = []
        self.sequences: dict[str, int] = {}

    def tell(self, event: Event | Unreadable) -> Effects:
        """Append a record and fold it; nothing about the state may be contradictory afterwards."""
        record = Record(self.state.next_cursor, self.append_ms, event)
        effects = self.state.apply(record)
        check(self.state)
        self.records.append(record)
        self.effects.append(effects)
        for command in effects.commands:
            mine = self.issued.setdefault(command.node, [])
            if not mine or command_order(mine[-1].command) < command_order(command.command):
                mine.append(command)
        return effects

    def settle(self) -> None:
        """Let an honest scheduler decide until there is nothing left to decide."""
        while (proposal := decide(self.state)) is not None:
            self.tell(proposal)

    def folded(self) -> Iterator[tuple[ClusterState, Record, Effects]]:
        """Fold the records once more, from the start; give the state after each of them."""
        state = ClusterState()
        for record in self.records:
            yield state, record, state.apply(record)


def play(moves: Sequence[int]) -> History:
    """Play a history from its moves."""
    history = History()
    for number, name in enumerate(NODES[:3]):
        history.tell(NodeInventoryReported(node=name, boot="boot-0", pool="h100" if number else "a100", gpus=8))
    history.tell(_tree(history, TREES[0]))
    for move in filter(None, moves):
        random = Random(move)
        mover = random.choices(MOVERS, WEIGHTS)[0]
        mover(history, random)
    return history


def histories(max_size: int = 120) -> st.SearchStrategy[History]:
    """Histories of up to so many moves; for one that breaks a law, as few as show it are found."""
    return move_lists(max_size).map(play)


def move_lists(max_size: int = 120) -> st.SearchStrategy[list[int]]:
    """The moves of such histories, for a test that plays them itself.

    Lists without a least length are short by far; so the length is held, and what matters not is made 0, no move.
    """
    return st.lists(st.integers(0, 0xFFFFF), min_size=max_size // 2, max_size=max_size)


# --- time -------------------------------------------------------------------------------------------------------------


def _pass_time(history: History, random: Random) -> None:
    history.append_ms += random.choice(SPANS)
    if random.random() < 0.5:
        history.tell(Tick(tick=max(1, history.state.last_tick + random.choice((0, 1, 1, 1, 5)))))


def _step_back(history: History, random: Random) -> None:
    """A new leader of the ledger has a clock that is behind."""
    history.append_ms = max(0, history.append_ms - random.choice((1, SECOND, HOUR)))


# --- requests ---------------------------------------------------------------------------------------------------------


def _submit(history: History, random: Random) -> None:
    leaves = [leaf.id for leaf in history.state.budgets.leaves()] or ["nowhere"]
    min_runtime_ms = random.choice(MIN_RUNTIMES)
    gpus = random.choice((1, 1, 2, 3, 4, 8, 8, 16))
    fact = WorkloadSubmitted(
        workload=random.choice(WORKLOADS),
        budget=random.choice(leaves) if random.random() < 0.95 else random.choice(("a", "a/x", "nowhere")),
        pool=random.choice((None, None, *POOLS)),
        ranks=random.choice((1, 1, 1, 2, 2, 3, 5)),
        gpus_per_rank=gpus,
        min_runtime_ms=min_runtime_ms,
        timeout_ms=random.choice((None, None, 1, MINUTE, 2 * HOUR)),
        resumable=random.random() < 0.5,
        priority=random.choice((0, 0, 0, 5, -5)),
        command=("sleep", "60"),
        interactive=random.random() < 0.2,
        topology=random.choice((None, None, *TOPOLOGIES)),
    )
    history.tell(_sourced(history, random, fact, "workloads.v1/0"))


def _crowd(history: History, random: Random) -> None:
    """Unallocated work takes up what is free, so that whoever comes next has to displace it."""
    leaves = [leaf.id for leaf in history.state.budgets.leaves()] or ["nowhere"]
    for _ in range(random.randrange(2, 8)):
        fact = WorkloadSubmitted(
            workload=random.choice(WORKLOADS),
            budget=random.choice(leaves),
            ranks=random.choice((1, 1, 2, 3)),
            gpus_per_rank=random.choice((1, 2, 3, 4, 8)),
            min_runtime_ms=0,
            resumable=random.random() < 0.7,
            priority=random.choice((0, 0, 1)),
        )
        history.tell(_sourced(history, random, fact, "workloads.v1/0"))
    history.settle()


def _cancel(history: History, random: Random) -> None:
    fact = WorkloadCancelled(workload=_some_workload(history, random), reason=random.choice((None, "enough")))
    history.tell(_sourced(history, random, fact, "workloads.v1/0"))


def _reprioritize(history: History, random: Random) -> None:
    fact = WorkloadReprioritized(workload=_some_workload(history, random), priority=random.choice((-9, 0, 7)))
    history.tell(_sourced(history, random, fact, "workloads.v1/0"))


def _change_tree(history: History, random: Random) -> None:
    history.tell(_sourced(history, random, _tree(history, random.choice(TREES), random), "control.v1/0"))


def _schedule_tree(history: History, random: Random) -> None:
    """Another tree takes effect later; one at a time, so that a record brings at most one."""
    if not history.state.scheduled:
        fact = _tree(history, random.choice(TREES), random)
        effective_ms = history.state.now_ms + random.choice(SPANS)
        history.tell(_sourced(history, random, fact.model_copy(update={"effective_ms": effective_ms}), "control.v1/0"))


def _adjust(history: History, random: Random) -> None:
    """A leaf is charged for more or less than was recorded; more than there was to give back, now and then."""
    leaves = [leaf.id for leaf in history.state.budgets.leaves()] or ["nowhere"]
    to_ms = max(2, history.state.now_ms - random.choice((-1, 0, 0, 0, MINUTE, HOUR)))
    from_ms = max(0, to_ms - random.choice((1, 7, MINUTE, HOUR, DAY)))
    fact = UsageAdjusted(
        adjustment=f"adjustment-{random.randrange(20)}",
        budget=random.choice(leaves),
        gpu_ms=random.choice((-8, -2, -1, 1, 3)) * (to_ms - from_ms) + random.choice((0, 0, 1, 5)),
        from_ms=from_ms,
        to_ms=to_ms,
        reason="a test",
    )
    history.tell(_sourced(history, random, fact, "control.v1/0"))


def _tree(history: History, fractions: dict[str, int], random: Random | None = None) -> BudgetTreeChanged:
    previous = history.state.budgets.change
    if random is not None and random.random() < 0.1:
        previous = random.choice((None, "change-4", "another"))
    return BudgetTreeChanged(
        change=f"change-{history.state.next_cursor}",
        previous=previous,
        reason="a test",
        budgets=tuple(BudgetShare(budget=path, fraction_nano=nano) for path, nano in fractions.items()),
    )


def _adopt(history: History, random: Random) -> None:
    policy = Policy(
        window_ms=random.choice((8 * HOUR, DAY, 7 * DAY, 7 * DAY, 14 * DAY)),
        placements_per_round=random.choice((1, 2, 200)),
        start_deadline_ms=random.choice((MINUTE, 30 * MINUTE)),
        unallocated_grace_ms=random.choice((0, 10 * SECOND)),
        finished_kept_ms=random.choice((0, MINUTE, 30 * DAY)),
        min_runtime_cap_ms=random.choice((2 * HOUR, 8 * HOUR)),
        flap_limit=random.choice((1, 3)),
        hold_down_ms=random.choice((MINUTE, HOUR)),
        warning_ms=random.choice((0, 15 * MINUTE)),
        order=random.choice((Order.WINDOW, Order.WINDOW, Order.DUE_FIRST)),
        guard=random.random() < 0.7,
        guard_relaxation_ms=random.choice((None, HOUR, DAY)),
        victim_under_budget=random.choice((*[VictimUnderBudget.ALLOW] * 3, VictimUnderBudget.FORBID)),
        over_quota_protection_ms=random.choice((None, None, 5 * MINUTE)),
        patience_ms=random.choice((0, 15 * SECOND, 5 * MINUTE)),
        disruption_cap=random.choice((1, 2)),
        preemption_burst_percent=random.choice((0, 50, 100, 10_000)),
        preemption_refill_percent=random.choice((0, 25)),
        reservations=random.choice((0, 1, 2, 2)),
        reserve_after_ms=random.choice((0, 0, 2 * MINUTE)),
        nodes_per_headroom_node=random.choice((0, 2, 64)),
        levels=random.choice(((), (Levels(names=("rack",)),), (Levels(names=("rack", "chassis")),))),
        recovery=random.choice(tuple(Recovery)),
        recovery_step_ms=random.choice((MINUTE, HOUR)),
        consolidation=random.random() < 0.3,
    )
    history.tell(_sourced(history, random, PolicyAdopted(policy=policy, reason="a test"), "control.v1/0"))


# --- nodes ------------------------------------------------------------------------------------------------------------


def _report_node(history: History, random: Random) -> None:
    """A node says what it is, what it runs and what it has obeyed; now and then it is wrong or has become another."""
    name = random.choice(NODES)
    node = history.state.nodes.get(name)
    if node is None or random.random() < 0.1:
        pool = random.choice(POOLS)
        gpus = random.choice((0, 1, 4, 7, 8, 8, 8, 16, 16))
        domains: tuple[str, ...] = random.choice(((), ("rack-1",), ("rack-1", "chassis-2"), ("rack-0",)))
    else:
        pool, gpus, domains = node.pool, node.gpus, node.domains
    runs: list[HeldRun] = []
    taken = 0
    for owners in (node.held, node.orphans) if node is not None else ():
        for key, mask in sorted(owners.items()):
            if random.random() < 0.85:
                runs.append(HeldRun(workload=key[0], attempt=key[1], gpu_mask=mask))
                taken |= mask
    if random.random() < 0.3:
        unknown = random.choice(("ghost", *WORKLOADS[:10]))
        attempt = random.choice((1, 2, 9))
        if all((run.workload, run.attempt) != (unknown, attempt) for run in runs):
            mask = random.randrange(1, 1 << 16) if random.random() < 0.5 else (1 << gpus) - 1 & ~taken
            live = history.state.workloads.get(unknown)
            # A node cannot hold an attempt that nobody has made yet.
            if live is None or attempt < live.attempt:
                runs.append(HeldRun(workload=unknown, attempt=attempt, gpu_mask=mask))
    issued = history.issued.get(name)
    watermark = None
    if issued and random.random() < 0.8:
        watermark = (issued[-1] if random.random() < 0.7 else random.choice(issued)).command
    fact = NodeInventoryReported(
        node=name,
        boot=random.choice(("boot-0", "boot-0", "boot-1")),
        pool=pool,
        gpus=gpus,
        domains=domains,
        runs=tuple(runs),
        watermark=watermark,
    )
    history.tell(_sourced(history, random, fact, f"node-reports.v1/{name}"))


def _change_health(history: History, random: Random) -> None:
    health = random.choice((*[NodeHealth.HEALTHY] * 3, NodeHealth.UNHEALTHY, NodeHealth.LOST))
    fatal = random.random() < 0.2
    history.tell(NodeHealthChanged(node=random.choice(NODES), health=health, reason="a test", fatal=fatal))


def _order_drain(history: History, random: Random) -> None:
    drain = random.choice((Drain.NONE, *Drain))
    fact = NodeDrainChanged(node=random.choice((*NODES, "nobody")), drain=drain, reason="a test")
    history.tell(_sourced(history, random, fact, "control.v1/0"))


def _begin_repair(history: History, random: Random) -> None:
    node = history.state.nodes.get(random.choice(NODES))
    if node is not None:
        emptied = node.emptied if node.emptied is not None and random.random() < 0.8 else 3
        history.tell(NodeRepairBegan(node=node.id, emptied=emptied))


def _wait_for_stops(history: History, random: Random) -> None:
    """Nobody confirms a stop in time."""
    history.append_ms += history.state.policy.grace_ms + history.state.policy.stop_timeout_ms
    history.tell(Tick(tick=history.state.last_tick + 1))
    if random.random() < 0.5:
        _release_orphans(history, random)


def _contend(history: History, random: Random) -> None:
    """One leaf fills the cluster with allocated work and keeps it past its protection; then another asks for some."""
    leaves = [leaf.id for leaf in history.state.budgets.leaves() if leaf.quota_nano]
    if not leaves:
        return
    mine, other = random.choice(leaves), random.choice(leaves)
    least_ms = random.choice((5 * MINUTE, HOUR))
    _ask(history, random, mine, least_ms, random.randrange(4, 10))
    history.settle()
    for workload, node, attempt in _held(history):
        if random.random() < 0.95:
            history.tell(RunStarted(node=node, workload=workload, attempt=attempt))
    history.append_ms = max(history.append_ms, history.state.now_ms) + least_ms + random.choice((-1, 0, HOUR))
    _ask(history, random, other, random.choice((5 * MINUTE, HOUR, 8 * HOUR)), random.randrange(1, 4))
    for wait_ms in (0, history.state.policy.patience_ms, random.choice((0, 2 * MINUTE, HOUR))):
        history.append_ms += wait_ms
        history.tell(Tick(tick=history.state.last_tick + 1))
        history.settle()


def _break_a_gang(history: History, random: Random) -> None:
    """A gang with layers runs, loses a node or two, and stops on most of the others; some take its place meanwhile."""
    gangs = [
        (workload.run, workload.id)
        for workload in history.state.workloads.values()
        if workload.topology is not None and workload.run is not None and len(workload.run.held) > 1
    ]
    if not gangs:
        leaves = [leaf.id for leaf in history.state.budgets.leaves() if leaf.quota_nano]
        for ranks in (2, 2, 3) if leaves else ():
            fact = WorkloadSubmitted(
                workload=random.choice(WORKLOADS),
                budget=random.choice(leaves),
                ranks=ranks,
                gpus_per_rank=random.choice((4, 8)),
                min_runtime_ms=HOUR,
                resumable=True,
                topology=random.choice(TOPOLOGIES),
            )
            history.tell(_sourced(history, random, fact, "workloads.v1/0"))
        history.settle()
        return
    run, workload = random.choice(gangs)
    names = sorted(run.held)
    if random.random() < 0.8:
        for name in names:
            history.tell(RunStarted(node=name, workload=workload, attempt=run.attempt))
    for name in names[: random.choice((1, 1, 2))]:
        health = random.choice((NodeHealth.UNHEALTHY, NodeHealth.LOST))
        history.tell(NodeHealthChanged(node=name, health=health, reason="a test", fatal=True))
    for name in names:
        if random.random() < 0.9:
            fact_of_end = RunReleased(node=name, workload=workload, attempt=run.attempt, outcome=ReleaseOutcome.STOPPED)
            history.tell(fact_of_end)
    if random.random() < 0.7:
        history.settle()
    history.append_ms = max(history.append_ms, history.state.now_ms) + random.choice((0, MINUTE, HOUR))


def _ask(history: History, random: Random, leaf: str, min_runtime_ms: int, times: int) -> None:
    for _ in range(times):
        fact = WorkloadSubmitted(
            workload=random.choice(WORKLOADS),
            budget=leaf,
            ranks=random.choice((1, 1, 1, 2, 3)),
            gpus_per_rank=random.choice((2, 4, 8, 8)),
            min_runtime_ms=min_runtime_ms,
            resumable=random.random() < 0.7,
            priority=random.choice((0, 0, 1)),
        )
        history.tell(_sourced(history, random, fact, "workloads.v1/0"))


def _extend(history: History, random: Random) -> None:
    fact = RunExtended(workload=_some_workload(history, random), extra_ms=random.choice((1, HOUR, 8 * HOUR)))
    history.tell(_sourced(history, random, fact, "workloads.v1/0"))


def _accept(history: History, random: Random) -> None:
    name = random.choice(NODES)
    issued = history.issued.get(name)
    command = random.choice(issued).command if issued else "3/1"
    history.tell(_sourced(history, random, CommandAccepted(node=name, command=command), f"node-reports.v1/{name}"))


def _start(history: History, random: Random) -> None:
    held = _held(history)
    if not held:
        return
    workload, node, attempt = random.choice(held)
    nodes = [node]
    run = history.state.workloads[workload].run
    if random.random() < 0.7 and run is not None:
        nodes = list(run.held)
    for name in nodes:
        fact = RunStarted(node=name, workload=workload, attempt=attempt)
        history.tell(_sourced(history, random, fact, f"node-reports.v1/{name}"))


def _release(history: History, random: Random) -> None:
    held = _held(history)
    if not held:
        return
    stopping = [item for item in held if history.state.workloads[item[0]].phase is Phase.STOPPING]
    workload, node, attempt = random.choice(stopping if stopping and random.random() < 0.6 else held)
    run = history.state.workloads[workload].run
    nodes = list(run.held) if random.random() < 0.6 and run is not None else [node]
    outcome = random.choice((*ReleaseOutcome, ReleaseOutcome.SUCCEEDED, ReleaseOutcome.STOPPED))
    for name in nodes:
        fact = RunReleased(node=name, workload=workload, attempt=attempt, outcome=outcome)
        history.tell(_sourced(history, random, fact, f"node-reports.v1/{name}"))


def _say_something_stale(history: History, random: Random) -> None:
    """A report about an attempt that is over, a run that never was, a node nobody knows."""
    workload = random.choice(("ghost", _some_workload(history, random)))
    live = history.state.workloads.get(workload)
    attempt = max(1, (live.attempt if live is not None else 1) - random.choice((0, 1)))
    node = random.choice(("nobody", *NODES))
    fact: Event = RunStarted(node=node, workload=workload, attempt=attempt)
    if random.random() < 0.5:
        fact = RunReleased(node=node, workload=workload, attempt=attempt, outcome=random.choice(tuple(ReleaseOutcome)))
    history.tell(fact)


def _release_orphans(history: History, random: Random) -> None:
    """A node gets rid of what is over for us, of some of it or of all."""
    nodes = sorted(node.id for node in history.state.nodes.values() if node.orphans)
    if nodes:
        node = random.choice(nodes)
        orphans = sorted(history.state.nodes[node].orphans)
        for workload, attempt in orphans[: random.choice((1, len(orphans)))]:
            history.tell(RunReleased(node=node, workload=workload, attempt=attempt, outcome=ReleaseOutcome.STOPPED))


def _held(history: History) -> list[tuple[str, str, int]]:
    """Every (workload, node, attempt) that holds GPUs."""
    return sorted(
        (workload.id, name, workload.attempt)
        for workload in history.state.workloads.values()
        if workload.run is not None
        for name in workload.run.held
    )


# --- rounds -----------------------------------------------------------------------------------------------------------


def _decide(history: History, random: Random) -> None:
    proposal = decide(history.state)
    if proposal is None:
        return
    if random.random() < 0.2:
        history.late.append(proposal)
        return
    history.tell(proposal)
    if random.random() < 0.1:
        history.tell(proposal)


def _be_late(history: History, random: Random) -> None:
    """A paused scheduler wakes up and writes what it decided long ago, perhaps as if for the open round."""
    if history.late:
        proposal = history.late.pop(random.randrange(len(history.late)))
        if random.random() < 0.7:
            proposal = proposal.model_copy(update={"round": history.state.closed_round + 1})
        history.tell(proposal)


def _propose_badly(history: History, random: Random) -> None:
    """A scheduler that is mad: seats at random, victims at random, anything the types allow."""
    state = history.state
    items: list[ProposedPlacement] = []
    for _ in range(random.choice((1, 1, 2))):
        live = sorted(state.workloads)
        id_ = random.choice(live) if live and random.random() < 0.9 else "ghost"
        workload = state.workloads.get(id_)
        names = sorted(state.nodes) + (["nobody"] if random.random() < 0.1 else [])
        seats = _bad_seats(state, random, workload, names)
        victims: list[Victim] = []
        for name in sorted({seat.node for seat in seats}):
            node = state.nodes.get(name)
            held = sorted(node.held) if node is not None else []
            victims.extend(Victim(workload=key[0], attempt=key[1]) for key in held if random.random() < 0.7)
        if random.random() < 0.2 and live:
            victims.append(Victim(workload=random.choice((id_, *live)), attempt=random.choice((1, 2))))
        if random.random() < 0.2 and victims:
            victims.append(victims[0])
        attempt = (workload.attempt if workload is not None else 0) + random.choice((1, 1, 1, 1, 2))
        items.append(ProposedPlacement(workload=id_, attempt=attempt, seats=seats, victims=tuple(victims), shares=()))
    history.tell(
        RoundProposed(
            round=max(1, state.closed_round + random.choice((0, 1, 1, 1, 1, 1, 2))),
            based_on=state.next_cursor,
            policy_version=state.policy_version,
            placements=tuple(items),
        )
    )


def _bad_seats(state: ClusterState, random: Random, workload: Workload | None, names: list[str]) -> tuple[Seat, ...]:
    ranks = workload.ranks if workload is not None else 1
    gpus = workload.gpus_per_rank if workload is not None else 1
    if random.random() < 0.1:
        ranks = random.choice((1, ranks + 1))
    seats: list[Seat] = []
    used: dict[str, int] = {}
    for rank in range(ranks):
        name = random.choice(names) if names else "nobody"
        node = state.nodes.get(name)
        room = node.all_mask & ~used.get(name, 0) if node is not None else 0xFF
        bits = [bit for bit in range(16) if room >> bit & 1]
        if random.random() < 0.1:
            bits = list(range(16))
        if random.random() < 0.6:
            bits.sort(key=lambda bit: node is not None and not node.free_mask >> bit & 1)
        else:
            random.shuffle(bits)
        mask = sum(1 << bit for bit in bits[:gpus]) if random.random() < 0.95 else random.randrange(1 << 16)
        used[name] = used.get(name, 0) | mask
        seats.append(Seat(rank=rank if random.random() < 0.98 else 0, node=name, gpu_mask=mask))
    return tuple(seats)


# --- the machinery ----------------------------------------------------------------------------------------------------


def _make_noise(history: History, random: Random) -> None:
    history.tell(
        random.choice(
            (
                Unreadable("no JSON"),
                Rejected(code="malformed", reason="field 'x':\tno number\x00", workload="w00"),
                StateHashed(folded=1, digest="0" * 64, build="0"),
                ProtocolActivated(protocol=1),
                LedgerSkipped(cursor=0, reason="a test"),
            )
        )
    )


def _repeat(history: History, random: Random) -> None:
    """Something that was said before is said again, with its old source position or without any."""
    event = random.choice(history.records).event
    if isinstance(event, Unreadable | StateHashed):
        return
    if random.random() < 0.3:
        event = event.model_copy(update={"src": None, "seq": None})
    if isinstance(event, NodeInventoryReported):
        return  # Its order is kept by its topic; an old one is not a repeat but a lie about what runs there.
    history.tell(event)


def _sourced(history: History, random: Random, fact: Event, src: str) -> Event:
    """Say where a fact came from, most of the time; now and then with a gap."""
    if random.random() < 0.3:
        return fact
    seq = history.sequences.get(src, -1) + random.choice((1, 1, 1, 1, 1, 1, 1, 3))
    history.sequences[src] = seq
    return fact.model_copy(update={"src": src, "seq": seq})


def _some_workload(history: History, random: Random) -> str:
    live = sorted(history.state.workloads)
    return random.choice(live) if live and random.random() < 0.8 else random.choice(WORKLOADS)


Mover = Callable[[History, Random], None]

MOVERS: tuple[Mover, ...]
WEIGHTS: tuple[int, ...]
MOVERS, WEIGHTS = zip(
    (_submit, 20),
    (_crowd, 5),
    (_decide, 22),
    (_start, 12),
    (_release, 12),
    (_pass_time, 9),
    (_report_node, 7),
    (_change_health, 4),
    (_order_drain, 3),
    (_begin_repair, 1),
    (_wait_for_stops, 1),
    (_contend, 6),
    (_break_a_gang, 3),
    (_extend, 3),
    (_accept, 3),
    (_change_tree, 3),
    (_schedule_tree, 2),
    (_adjust, 3),
    (_adopt, 4),
    (_cancel, 3),
    (_reprioritize, 2),
    (_propose_badly, 5),
    (_be_late, 2),
    (_release_orphans, 9),
    (_say_something_stale, 2),
    (_repeat, 2),
    (_make_noise, 1),
    (_step_back, 1),
    strict=True,
)
