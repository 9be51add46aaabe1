"""Laws of decisions: against searches that try everything, on clusters small enough for that."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from random import Random
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from streamsched.model.events import PolicyAdopted, ProposedPlacement, Record, RoundProposed, WorkloadCancelled
from streamsched.scheduling.decision import decide
from streamsched.scheduling.scheduler import Scheduler
from streamsched.state.cluster import ClusterState
from streamsched.state.snapshot import freeze, thaw
from tests.properties.by_the_book import fits, may_be_placed, next_by_the_book, nodes_by_the_book, preemptible, room
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
            assert proposal.placements or proposal.reservations
            fold(state, proposal)
            assert state.void == void
            rounds += 1
            assert rounds <= 2 * waiting, "every round places something that waits, or promises it nodes"


@given(histories())
def test_what_waits_in_the_end_fits_nowhere(history: History) -> None:
    """When there is nothing to decide, no workload fits: neither on free GPUs nor with all stopped whom it may stop."""
    for state in some_states(history):
        adopt(state, preemption_burst_percent=10_000)
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


@given(histories(), st.randoms(use_true_random=False))
def test_a_scheduler_that_stops_after_its_own_proposals_has_left_nothing(history: History, random: Random) -> None:
    """Where it proposes no more, `decide` finds nothing either, however long its proposals were on their way."""
    for state in some_states(history):
        scheduler = Scheduler(state)
        now_ms = state.now_ms
        while isinstance(event := scheduler.next_event(now_ms), RoundProposed):
            scheduler.appended(state.next_cursor)
            now_ms += random.choice((0, 0, 1, 60_000, 3_600_000))
            scheduler.take(Record(state.next_cursor, now_ms, event))
        assert decide(state) is None


@given(histories())
def test_the_turn_is_that_of_the_sibling_furthest_behind(history: History) -> None:
    """From the root down to the leaf the smallest used / entitled goes first, then the older candidate, then the id.

    Allocated work before unallocated work; in the leaf priority, requeued work, age and id. Where nodes are promised,
    these come first, so nothing is promised here.
    """
    for state in some_states(history):
        for id_ in list(state.reservations):
            fold(state, WorkloadCancelled(workload=id_))
        adopt(state, placements_per_round=1, preemption_burst_percent=10_000, reservations=0)
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
        adopt(single, placements_per_round=1, reservations=0)
        adopt(state, placements_per_round=200, reservations=0)
        some, all_ = (
            [(item.workload, item.seats, item.victims) for proposal in settle(one) for item in proposal.placements]
            for one in (single, state)
        )
        assert some == all_


@given(histories())
def test_no_victim_can_be_spared(history: History) -> None:
    """With any victim left alone the gang would not fit in its pool; for one rank the victims are the fewest GPUs."""
    for state in some_states(history):
        one_by_one(state)
        while (proposal := decide(state)) is not None:
            if len(proposal.placements) == 1 and not proposal.reservations:
                (item,) = proposal.placements
                if item.victims and item.workload not in state.reservations:
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


# --- checks -----------------------------------------------------------------------------------------------------------


def assert_victims_are_needed(state: ClusterState, item: ProposedPlacement) -> None:
    """Check the victims of an item that stands alone against every other choice."""
    workload = state.workloads[item.workload]
    pool = state.nodes[item.seats[0].node].pool
    victims = tuple(victim.workload for victim in item.victims)
    assert fits(state, workload, pool, victims)
    for spared in victims:
        assert not fits(state, workload, pool, tuple(victim for victim in victims if victim != spared))
    if workload.ranks == 1 and all(victim in preemptible(state) for victim in victims):
        stopped = sum(state.workloads[victim].gpus for victim in victims)
        assert stopped <= min(
            (
                sum(held_gpus(state, id_) for id_ in some)
                for node in nodes_by_the_book(state, workload, pool)
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
    adopt(state, placements_per_round=1)


def adopt(state: ClusterState, **knobs: int) -> None:
    """Change some knobs of the policy."""
    fold(state, PolicyAdopted(policy=state.policy.model_copy(update=knobs), reason="a test"))


def settle(state: ClusterState) -> list[RoundProposed]:
    """Decide and fold until nothing is left to decide."""
    proposals: list[RoundProposed] = []
    while (proposal := decide(state)) is not None:
        fold(state, proposal)
        proposals.append(proposal)
    return proposals


def fold(state: ClusterState, event: RoundProposed | PolicyAdopted | WorkloadCancelled) -> None:
    """Fold an event now."""
    state.apply(Record(state.next_cursor, state.now_ms, event))


def shuffled(items: dict[K, V], random: Random) -> dict[K, V]:
    """Return an equal dict in another order."""
    pairs = list(items.items())
    random.shuffle(pairs)
    return dict(pairs)
