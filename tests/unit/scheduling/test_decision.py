"""Decisions: gangs whole or not at all, the tightest place, and the fewest victims."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from streamsched.model.commands import Place, Stop
from streamsched.model.events import Event, NodeHealth, ProposedPlacement, ReleaseOutcome, RoundProposed, Seat
from streamsched.model.quantities import HOUR, MINUTE, SECOND
from streamsched.scheduling.decision import decide
from streamsched.scheduling.memory import Memory
from streamsched.scheduling.obstacles import VerdictCode
from streamsched.scheduling.scheduler import Scheduler
from streamsched.scheduling.verdicts import verdict
from streamsched.state.snapshot import digest
from tests.stories import Story, adopted, budgets, health, node, nodes, released, submitted, unallocated


def cluster(*inventory: Event) -> Story:
    return Story(budgets(a=0.5, b=0.5), inventory)


def placed(story: Story) -> dict[str, list[str]]:
    """The nodes of every workload that a decision would place, by rank."""
    proposal = decide(story.state)
    items = () if proposal is None else proposal.placements
    return {item.workload: [seat.node for seat in item.seats] for item in items}


def displaced(story: Story) -> dict[str, list[str]]:
    """The victims of every workload that a decision would place."""
    proposal = decide(story.state)
    items = () if proposal is None else proposal.placements
    return {item.workload: [victim.workload for victim in item.victims] for item in items}


def nodes_of(story: Story, workload: str) -> list[str]:
    """Where a workload holds GPUs."""
    run = story.state.workloads[workload].run
    return [] if run is None else list(run.held)


def test_a_gang_never_starts_in_part() -> None:
    """Three free nodes do not start a gang of four, not even three ranks of it."""
    story = cluster(*nodes(4))
    story.tell(submitted("small", gpus_per_rank=1))
    story.round()
    story.tell(submitted("llama", ranks=4))

    assert placed(story) == {}
    assert verdict(story.state, "llama").code is VerdictCode.PROTECTED


def test_what_does_not_fit_does_not_stand_in_the_way() -> None:
    """Scenario B09: the gang of four waits, the one of three runs, and nobody was stopped for the first."""
    story = cluster(*nodes(3))
    story.tell(submitted("two", gpus_per_rank=1))
    story.round()
    story.tell(submitted("w3", ranks=3), submitted("w2", ranks=2))

    assert placed(story) == {"w2": ["n2", "n3"]}


def test_small_work_fills_the_tightest_node() -> None:
    """A whole node is kept whole while a part of one will do."""
    story = cluster(*nodes(3))
    story.tell(submitted("three", gpus_per_rank=3))
    story.round()
    story.tell(submitted("four", gpus_per_rank=4), submitted("one", gpus_per_rank=1))

    assert placed(story) == {"four": ["n1"], "one": ["n1"]}


def test_a_gang_takes_few_nodes_and_keeps_its_ranks_together() -> None:
    """Neighbours by place come next to each other, and the last rank takes the tightest node."""
    story = cluster(
        node("z", domains=("s1",)), node("a", domains=("s2",)), node("m", domains=("s1",)), node("tight", gpus=4)
    )
    story.tell(submitted("gang", ranks=5, gpus_per_rank=4))

    assert placed(story) == {"gang": ["tight", "m", "m", "z", "z"]}


def test_pools_are_not_mixed() -> None:
    """A request for one kind never sits on another, and a gang without a wish sits in one kind whole."""
    story = cluster(node("b1", pool="big"), node("s1", pool="small"), node("s2", pool="small"))
    story.tell(submitted("big", pool="big", ranks=1), submitted("any", ranks=2))

    assert placed(story) == {"big": ["b1"], "any": ["s1", "s2"]}


@pytest.mark.parametrize("gpus", [0, 1, 16])
def test_nodes_have_up_to_sixteen_gpus(gpus: int) -> None:
    """A node without GPUs takes nothing."""
    story = cluster(node("n1", gpus=gpus))
    story.tell(submitted("w", gpus_per_rank=1, ranks=max(gpus, 1)))

    assert placed(story) == ({"w": ["n1"] * gpus} if gpus else {})


def test_b10a_exactly_as_many_victims_as_needed_on_one_node() -> None:
    """Sixteen runs of one GPU fill two nodes; a request for 4 GPUs of one node stops four on one node."""
    story = cluster(*nodes(2))
    story.tell(unallocated(f"u{n:02}", gpus_per_rank=1) for n in range(16))
    story.round()
    story.tell(submitted("w", gpus_per_rank=4))
    victims = displaced(story)["w"]

    assert len(victims) == 4
    assert len({name for victim in victims for name in nodes_of(story, victim)}) == 1


def test_b10b_an_idle_node_is_used_with_one_victim() -> None:
    """n1 is idle and n2 is full: the gang of two nodes stops the one run on n2."""
    story = cluster(*nodes(2))
    story.tell(unallocated("u"))
    story.round()
    story.tell(submitted("gang", ranks=2))

    assert displaced(story) == {"gang": ["u"]}


def test_b10c_nobody_is_stopped_when_a_node_is_idle() -> None:
    """Free GPUs come first."""
    story = cluster(*nodes(3))
    story.tell(unallocated(f"u{n:02}", gpus_per_rank=1) for n in range(16))
    story.round()
    story.tell(submitted("w", gpus_per_rank=4))

    assert displaced(story) == {"w": []}


def test_a_gang_that_is_stopped_frees_all_its_nodes() -> None:
    """One victim of two nodes is better than two victims of one node each when two nodes are needed."""
    story = cluster(*nodes(4))
    story.tell(unallocated("one"), unallocated("other"), unallocated("pair", ranks=2))
    story.round()
    story.tell(submitted("w", ranks=2))

    assert displaced(story) == {"w": ["pair"]}


def test_the_smaller_run_is_stopped_not_the_gang() -> None:
    """Scenario B11 among unallocated work: 8 GPUs are lost, not 32."""
    story = cluster(*nodes(5))
    story.tell(unallocated("gang", ranks=4), unallocated("small"))
    story.round()
    story.tell(submitted("w"))

    assert displaced(story) == {"w": ["small"]}


def test_inside_a_node_the_less_important_and_the_younger_go_first() -> None:
    """Lower priority, resumable, youngest start, greatest id."""
    story = cluster(*nodes(1))
    story.tell(unallocated("kept", gpus_per_rank=2, priority=1), unallocated("old", gpus_per_rank=2))
    story.round()
    story.start("kept")
    story.start("old")
    story.at(10).tell(unallocated("young", gpus_per_rank=2), unallocated("fragile", gpus_per_rank=2, resumable=False))
    story.round()
    story.start("young")
    story.start("fragile")
    story.tell(submitted("w", gpus_per_rank=2))
    assert displaced(story) == {"w": ["young"]}

    story.round()
    story.tell(submitted("v", gpus_per_rank=2))
    assert displaced(story) == {"v": ["old"]}


def test_allocated_work_is_no_victim() -> None:
    """Neither inside its min runtime nor after it, in this slice; and unallocated requests displace nobody."""
    story = cluster(*nodes(1))
    story.tell(submitted("w"))
    story.round()
    story.start("w")
    story.at(2 * HOUR).tell(submitted("other", budget="b"), unallocated("u", budget="b"))

    assert placed(story) == {}


def test_freed_gpus_are_kept_for_the_claimant() -> None:
    """Scenario B08: the victim does not take back what it has just given up."""
    story = cluster(*nodes(1))
    story.tell(unallocated("u"))
    story.round()
    story.tell(submitted("w", gpus_per_rank=4))
    story.round()
    story.at(SECOND).tell(released("n1", "u", outcome=ReleaseOutcome.STOPPED))

    assert story.phase("w") == "bound"
    assert placed(story) == {}, "u needs 8 GPUs, and 4 of them are taken"
    story.tell(unallocated("half", gpus_per_rank=4))
    assert placed(story) == {"half": ["n1"]}


def test_b08_no_ping_pong() -> None:
    """Six GPUs of unallocated work, two allocated requests: two stops at most, and then a hundred quiet rounds."""
    story = Story(budgets(a=0.0, b=0.0, g=1.0), node("n1", gpus=6))
    for name, budget, gpus in (("a1", "a", 2), ("a2", "a", 2), ("b1", "b", 1), ("b2", "b", 1)):
        story.tell(unallocated(name, budget=budget, gpus_per_rank=gpus))
    story.round()
    stopped: list[str] = []

    def settle() -> None:
        while (proposal := decide(story.state)) is not None:
            commands = story.tell(proposal).commands
            for command in commands:
                if isinstance(command, Stop):
                    stopped.append(command.workload)
                    story.now_ms += SECOND
                    story.tell(released("n1", command.workload, command.attempt, ReleaseOutcome.STOPPED))
            for name in list(story.state.workloads):
                if story.phase(name) == "bound":
                    story.start(name)

    settle()
    story.at(10 * SECOND).tell(submitted("g1", budget="g", gpus_per_rank=1))
    settle()
    story.at(60 * SECOND).tell(submitted("g2", budget="g", gpus_per_rank=2))
    settle()

    assert (story.phase("g1"), story.phase("g2")) == ("running", "running")
    assert len(stopped) <= 2
    assert len(set(stopped)) == len(stopped)
    for _ in range(100):
        story.now_ms += 10 * SECOND
        assert not story.tick().commands
        assert decide(story.state) is None


def test_a_decision_does_not_write() -> None:
    """The digest before is the digest after, and the same state decides the same again."""
    story = cluster(*nodes(3))
    story.tell(unallocated("u", ranks=3))
    story.round()
    story.tell(submitted("w"), submitted("x", budget="b", gpus_per_rank=2), unallocated("v"))
    before = digest(story.state)
    first = decide(story.state)

    assert digest(story.state) == before
    assert decide(story.state) == first


def test_a_proposal_has_a_size_and_the_next_round_follows() -> None:
    """A thousand gangs are placed in rounds of the policy's size."""
    story = cluster(*nodes(4))
    story.tell(adopted(placements_per_round=3))
    story.tell(submitted(f"w{n}", gpus_per_rank=4) for n in range(8))
    sizes = []
    while (proposal := decide(story.state)) is not None:
        sizes.append(len(proposal.placements))
        story.tell(proposal)

    assert sizes == [3, 3, 2]


def test_no_node_that_is_ill_is_chosen() -> None:
    """Neither for what is free there nor for whom it could stop."""
    story = cluster(*nodes(2))
    story.tell(unallocated("u"), unallocated("v"))
    story.round()
    story.tell(health("n1", NodeHealth.UNHEALTHY), submitted("w"))

    assert displaced(story) == {"w": ["v"]}


# --- the scheduler's side of the rounds -------------------------------------------------------------------------------


def test_one_proposal_is_in_flight() -> None:
    """Until the ledger has given back what was appended, nothing else is proposed."""
    story = cluster(*nodes(1))
    story.tell(submitted("w"))
    scheduler = Scheduler(story.state)
    first = scheduler.next_event(0)
    assert first is not None
    scheduler.appended(story.state.next_cursor + 1)
    assert scheduler.next_event(0) is None

    record = story.records[-1]
    assert not scheduler.take(record).commands, "a repeat has no effects"
    story.tell(submitted("another"))
    assert scheduler.next_event(0) is None
    effects = scheduler.take(type(record)(story.state.next_cursor, 0, first))
    assert [command.workload for command in effects.commands if isinstance(command, Place)] == ["w"]


def test_a_tick_comes_when_time_alone_changes_something_and_at_the_longest_pause() -> None:
    """The resend of an unanswered command is due at 15 s; when nothing is due, a tick comes after 10 s of quiet."""
    story = cluster(*nodes(1))
    scheduler = Scheduler(story.state)
    assert scheduler.next_event(1_000) is None
    assert scheduler.wakeup_ms(1_000) == 11_000
    tick = scheduler.next_event(11_000)
    assert tick is not None
    assert tick.type == "tick"

    busy = cluster(*nodes(1))
    busy.at(8 * SECOND).tell(submitted("w"))
    busy.round()
    eager = Scheduler(busy.state)
    assert eager.wakeup_ms(20 * SECOND) == 23 * SECOND


def test_choosing_many_victims_costs_no_more_for_each_of_them() -> None:
    """A gang of whole nodes displaces single GPUs on every node of the cluster."""

    def seconds(count: int) -> float:
        story = Story(budgets(a=1.0), nodes(count, gpus=2))
        story.tell(unallocated(f"u{number}", gpus_per_rank=1) for number in range(2 * count))
        while decide(story.state) is not None:
            story.round()
        story.tell(submitted("gang", ranks=count, gpus_per_rank=2))
        began = time.process_time()
        victims = displaced(story)["gang"]
        assert len(victims) == 2 * count
        return time.process_time() - began

    # Four times the nodes: four times the time if each choice looks at what changed, sixteen if it looks at all.
    assert seconds(400) < 8 * max(seconds(100), 0.01)


def test_an_offer_is_weighed_again_once_a_neighbour_was_chosen() -> None:
    """Six ranks of 8: `z` gives one for 8 GPUs, then `p` two for 20, that is 10 each.

    As long as `p` runs, n7 seems to give three ranks for the 32 GPUs of `p` and `b`, which is 10.7 each. Once it is
    chosen, n7 gives one for the 12 of `b`, and three that cost 11 each are better.
    """
    story = cluster(
        *(node(name) for name in ("n0", "n1", "n2", "n3", "n4", "n5", "n7")),
        *(node(name, gpus=4) for name in ("s8", "s9")),
        *(node(name, gpus=3) for name in ("t3", "t4", "t5")),
    )
    halves = (0x0F, 0xF0)
    singles = tuple(1 << bit for bit in range(8))
    seat_by_hand(story, "z", [("n0", 0xFF)])
    seat_by_hand(story, "p", [*(("n1", mask) for mask in halves), *(("n2", mask) for mask in halves), ("n7", 0x0F)])
    seat_by_hand(story, "b", [("n7", 0xF0), ("s8", 0x0F), ("s9", 0x0F)])
    for number, name in enumerate("efg", start=3):
        here, there = [(f"n{number}", mask) for mask in singles], [(f"t{number}", mask) for mask in singles[:3]]
        seat_by_hand(story, name, [*here, *there])
    story.tell(submitted("w", ranks=6))

    assert displaced(story) == {"w": ["e", "f", "g", "p", "z"]}


def seat_by_hand(story: Story, workload: str, where: Sequence[tuple[str, int]]) -> None:
    """Let an unallocated gang run on these GPUs, a node and a mask for each rank."""
    story.tell(unallocated(workload, ranks=len(where), gpus_per_rank=where[0][1].bit_count()))
    seats = tuple(Seat(rank=rank, node=name, gpu_mask=mask) for rank, (name, mask) in enumerate(where))
    item = ProposedPlacement(workload=workload, attempt=1, seats=seats, victims=(), shares=())
    state = story.state
    story.tell(
        RoundProposed(round=state.closed_round + 1, based_on=state.next_cursor, policy_version=0, placements=(item,))
    )
    assert story.phase(workload) == "bound"


def test_what_is_given_away_is_not_promised_in_the_same_decision() -> None:
    """`first` takes the free node for 4 hours at 1:00, so the gang cannot have it at 2:00; it is promised 5:30."""
    story = Story(adopted(reserve_after_ms=0), budgets(a=0.3, b=0.3, c=0.3), nodes(2))
    story.tell(submitted("busy", budget="b", min_runtime_ms=2 * HOUR))
    story.round()
    story.start("busy")
    story.at(1 * HOUR).tell(submitted("first", min_runtime_ms=4 * HOUR), submitted("gang", budget="c", ranks=2))
    story.round()
    assert story.state.reservations == {}

    story.round()
    assert story.state.reservations["gang"].start_ms == 5 * HOUR + 30 * MINUTE


def test_what_a_decision_gives_away_may_open_what_was_blocked_before_it() -> None:
    """Who remembers that it stood behind looks again once the one before it has won something in the same decision."""
    story = Story(adopted(guard=False), budgets(a=0.5, b=0.5), nodes(2), node("n3", gpus=1))
    # Equal holders on n1 and n2 past their protection, and a, which waits, has used a millisecond more.
    story.tell(submitted("mine", min_runtime_ms=5 * MINUTE, resumable=False))
    story.round()
    story.at(1).tell(submitted("theirs", budget="b", min_runtime_ms=5 * MINUTE, resumable=False))
    story.round()
    story.start("mine")
    story.start("theirs")
    story.at(1 * HOUR).tell(submitted("waits"))
    memory = Memory()
    story.at(1 * HOUR + 1 * MINUTE).tick()
    assert decide(story.state, memory) is None
    # On n3 there is room for what b asks; protected for hours, it puts b behind a.
    story.tell(submitted("small", budget="b", gpus_per_rank=1, min_runtime_ms=8 * HOUR))

    proposal = decide(story.state, memory)

    assert proposal == decide(story.state)
    assert proposal is not None
    assert [(item.workload, [victim.workload for victim in item.victims]) for item in proposal.placements] == [
        ("small", []),
        ("waits", ["theirs"]),
    ]
