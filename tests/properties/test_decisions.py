"""Laws of decisions: against searches that try everything, on clusters small enough for that."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from random import Random
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from streamsched.model.events import PolicyAdopted, ProposedPlacement, Record, RoundProposed
from streamsched.scheduling.decision import decide
from streamsched.scheduling.scheduler import Scheduler
from streamsched.state.cluster import ClusterState
from streamsched.state.inventory import Node
from streamsched.state.snapshot import freeze, thaw
from streamsched.state.usage import Budget
from streamsched.state.workloads import Workload
from tests.properties.histories import History, histories

K = TypeVar("K")
V = TypeVar("V")


@given(histories())
def test_a_proposal_that_is_folded_at_once_is_never_void(history: History) -> None:
    """What was decided at a state can be done at that state, all of it; and after some rounds nothing is left to do."""
    for state in some_states(history):
        void = dict(state.void)
        waiting = len(state.workloads)
        rounds = 0
        while (proposal := decide(state)) is not None:
            assert proposal.placements
            fold(state, proposal)
            assert state.void == void
            rounds += 1
            assert rounds <= waiting, "every round places something that waits"


@given(histories())
def test_what_waits_in_the_end_fits_nowhere(history: History) -> None:
    """When there is nothing to decide, no workload fits: on free GPUs, or with all unallocated work stopped."""
    for state in some_states(history):
        settle(state)
        for workload in state.workloads.values():
            assert not may_be_placed(state, workload), workload.id


@given(histories())
def test_a_scheduler_that_looks_only_when_something_stirred_misses_nothing(history: History) -> None:
    """Whenever `decide` would place something, `next_event` gives that proposal, however often it was asked before."""
    scheduler = Scheduler()
    random = Random(len(history.records))
    for record in history.records:
        scheduler.take(record)
        if random.random() < 0.6:
            event = scheduler.next_event(record.append_ms)
            proposal = decide(scheduler.state)
            assert event == proposal or (proposal is None and not isinstance(event, RoundProposed))


@given(histories())
def test_the_turn_is_that_of_the_sibling_furthest_behind(history: History) -> None:
    """From the root down to the leaf the smallest used / entitled goes first, then the older candidate, then the id.

    Allocated work before unallocated work; in the leaf priority, requeued work, age and id.
    """
    for state in some_states(history):
        one_by_one(state)
        while (proposal := decide(state)) is not None:
            (item,) = proposal.placements
            assert item.workload == next_by_the_book(state)
            fold(state, proposal)
        assert next_by_the_book(state) is None


@given(histories())
def test_a_proposal_of_many_is_many_proposals_of_one(history: History) -> None:
    """What a proposal takes away, the items after it do not see, just as if it had been folded."""
    for state in some_states(history):
        single = thaw(freeze(state))
        one_by_one(single)
        items = [item for proposal in settle(state) for item in proposal.placements]
        for item in items:
            proposal = decide(single)
            assert proposal is not None
            (alone,) = proposal.placements
            assert (alone.workload, alone.seats, alone.victims) == (item.workload, item.seats, item.victims)
            fold(single, proposal)


@given(histories())
def test_no_victim_can_be_spared(history: History) -> None:
    """With any victim left alone the gang would not fit in its pool; for one rank the victims are the fewest GPUs."""
    for state in some_states(history):
        one_by_one(state)
        while (proposal := decide(state)) is not None:
            (item,) = proposal.placements
            if item.victims:
                assert_victims_are_needed(state, item)
            fold(state, proposal)


@given(histories(), st.randoms(use_true_random=False))
def test_the_order_of_dicts_does_not_matter(history: History, random: Random) -> None:
    """Two folds may have met the same things in another order of insertion; they decide the same.

    Pools are the exception: they are kept in the order of their names, whatever came first.
    """
    state = history.state
    assert list(state.inventory.pools) == sorted(state.inventory.pools)
    proposal = decide(state)
    for workload in state.workloads.values():
        if workload.run is not None:
            workload.run.held = shuffled(workload.run.held, random)
    for node in state.nodes.values():
        node.held = shuffled(node.held, random)
        node.preemptible = shuffled(node.preemptible, random)
    for budget in (state.budgets.root, *state.budgets.by_id.values()):
        budget.children = shuffled(budget.children, random)
    state.budgets.by_id = shuffled(state.budgets.by_id, random)
    state.workloads = shuffled(state.workloads, random)
    state.inventory.nodes = shuffled(state.inventory.nodes, random)
    for backlog in (state.allocated, state.unallocated):
        backlog.by_shape = {
            shape: shuffled(queues, random) for shape, queues in shuffled(backlog.by_shape, random).items()
        }
    assert decide(state) == proposal


# --- by the book ------------------------------------------------------------------------------------------------------


def next_by_the_book(state: ClusterState) -> str | None:
    """Return whose turn it is, by trying every workload and comparing ratios as fractions."""
    for allocated in (True, False):
        waiting = [w for w in state.workloads.values() if w.is_allocated is allocated and may_be_placed(state, w)]
        if not waiting:
            continue
        budget = state.budgets.root
        while budget.children:
            budget = min(
                (child for child in budget.children.values() if below(waiting, child)),
                key=lambda child: (*ratio(state, child, allocated=allocated), oldest(below(waiting, child)), child.id),
            )
        first = min(below(waiting, budget), key=lambda w: (-w.priority, 0 if w.requeued else 1, w.queued_ms, w.id))
        return first.id
    return None


def ratio(state: ClusterState, budget: Budget, *, allocated: bool) -> tuple[bool, Fraction]:
    """Return used / entitled, in a form in which nothing entitled is more than anything else."""
    now = state.now_ms
    if allocated:
        used = budget.charged_gpu_ms(now) + budget.committed_gpu_ms(now)
        entitled = budget.entitled_gpu_ms(now)
    else:
        used, entitled = budget.unallocated_gpu_ms(now), budget.quota_nano
    return (True, Fraction(0)) if not entitled else (False, Fraction(used, entitled))


def below(workloads: list[Workload], budget: Budget) -> list[Workload]:
    """Return those of a budget and of all below it."""
    return [workload for workload in workloads if budget in workload.budget.path]


def oldest(workloads: list[Workload]) -> int:
    """Return since when the first of them waits."""
    return min(workload.queued_ms for workload in workloads)


def may_be_placed(state: ClusterState, workload: Workload) -> bool:
    """Whether a workload waits, may be looked at, and would fit into some pool now."""
    if workload.run is not None or workload.held_until_ms > state.now_ms:
        return False
    if workload.is_allocated and not workload.budget.quota_nano:
        return False
    pools = sorted({node.pool for node in state.nodes.values()})
    return any(
        slots(state, pool, workload.gpus_per_rank, stopped=preemptible(state) if workload.is_allocated else ())
        >= workload.ranks
        for pool in pools
        if workload.pool in (None, pool)
    )


def preemptible(state: ClusterState) -> tuple[str, ...]:
    """Return the unallocated workloads that run and that nobody stops."""
    return tuple(
        id_ for id_, w in state.workloads.items() if not w.is_allocated and w.run is not None and w.run.stop is None
    )


def slots(state: ClusterState, pool: str, gpus_per_rank: int, stopped: tuple[str, ...]) -> int:
    """Count the ranks that fit into a pool once some workloads have released their GPUs."""
    return sum(
        room(node, stopped).bit_count() // gpus_per_rank
        for node in state.nodes.values()
        if node.pool == pool and node.takes_work
    )


def room(node: Node, stopped: tuple[str, ...]) -> int:
    """Return the GPUs of a node that nobody else has, waits for or left behind."""
    taken = 0
    for owners in (node.held, node.claims, node.orphans):
        for (workload, _), mask in owners.items():
            if workload not in stopped or owners is not node.held:
                taken |= mask
    return node.all_mask & ~taken


def assert_victims_are_needed(state: ClusterState, item: ProposedPlacement) -> None:
    """Check the victims of an item that stands alone against every other choice."""
    workload = state.workloads[item.workload]
    pool = state.nodes[item.seats[0].node].pool
    victims = tuple(victim.workload for victim in item.victims)
    assert slots(state, pool, workload.gpus_per_rank, victims) >= workload.ranks
    for spared in victims:
        others = tuple(victim for victim in victims if victim != spared)
        assert slots(state, pool, workload.gpus_per_rank, others) < workload.ranks
    if workload.ranks == 1:
        stopped = sum(state.workloads[victim].gpus for victim in victims)
        assert stopped <= min(
            (
                sum(held_gpus(state, id_) for id_ in some)
                for node in state.nodes.values()
                if node.pool == pool and node.takes_work
                for some in subsets([key[0] for key in node.held if key[0] in preemptible(state)])
                if room(node, some).bit_count() >= workload.gpus_per_rank
            ),
            default=stopped,
        )


def held_gpus(state: ClusterState, workload: str) -> int:
    """Return the GPUs of the whole gang."""
    return state.workloads[workload].gpus


def subsets(items: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield every choice of at most six of the items: there are few reasons to try more, and there would be many."""
    for size in range(min(len(items), 6) + 1):
        yield from combinations(items, size)


# --- states -----------------------------------------------------------------------------------------------------------


def some_states(history: History) -> Iterator[ClusterState]:
    """Yield copies of a few states of a history, the last among them."""
    every = max(1, len(history.records) // 6)
    for state, record, _ in history.folded():
        if (len(history.records) - 1 - record.cursor) % every == 0:
            yield thaw(freeze(state))


def one_by_one(state: ClusterState) -> None:
    """Let each proposal place one gang only."""
    policy = state.policy.model_copy(update={"placements_per_round": 1})
    fold(state, PolicyAdopted(policy=policy, reason="a test"))


def settle(state: ClusterState) -> list[RoundProposed]:
    """Decide and fold until nothing is left to decide."""
    proposals: list[RoundProposed] = []
    while (proposal := decide(state)) is not None:
        fold(state, proposal)
        proposals.append(proposal)
    return proposals


def fold(state: ClusterState, event: RoundProposed | PolicyAdopted) -> None:
    """Fold an event now."""
    state.apply(Record(state.next_cursor, state.now_ms, event))


def shuffled(items: dict[K, V], random: Random) -> dict[K, V]:
    """Return an equal dict in another order."""
    pairs = list(items.items())
    random.shuffle(pairs)
    return dict(pairs)
