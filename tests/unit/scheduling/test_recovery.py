"""Gangs that lose nodes: who stays, who moves and where to, and when more of them may.

Source: `topology.md`, section 4.3; the published cases mc-21 to mc-29 and mc-31.
"""

from __future__ import annotations

import pytest

from streamsched.model.commands import Place
from streamsched.model.events import (
    NodeHealth,
    NodeInventoryReported,
    ProposedPlacement,
    ReleaseOutcome,
    RoundProposed,
    Seat,
)
from streamsched.model.policy import Levels
from streamsched.model.quantities import MINUTE
from streamsched.model.topology import Layer, Recovery, TopologyRequest
from streamsched.scheduling.decision import decide
from streamsched.scheduling.memory import Memory
from streamsched.scheduling.obstacles import VerdictCode
from streamsched.scheduling.recovery import stay_put
from streamsched.scheduling.verdicts import verdict
from streamsched.state.recoveries import blocks_around
from streamsched.state.snapshot import digest, freeze, thaw
from tests.stories import (
    Story,
    adopted,
    budgets,
    cancelled,
    drained,
    health,
    node,
    released,
    submitted,
    unallocated,
)

LEVELS = (Levels(names=("sp",)),)
IN_ZONES = (Levels(names=("zone", "sp")),)


def in_groups(ranks: int, recovery: Recovery | None = None) -> TopologyRequest:
    """Each so many ranks share a supernode."""
    return TopologyRequest(layers=(Layer(level="sp", ranks=ranks),), recovery=recovery)


def cluster(**sizes: int) -> list[NodeInventoryReported]:
    """Supernodes A, B, ... with nodes a0, a1, ..."""
    return [node(f"{name.lower()}{number}", domains=(name,)) for name, size in sizes.items() for number in range(size)]


def seat(story: Story, workload: str, *nodes: str) -> None:
    """Give a gang whole nodes, in rank order, and start it."""
    seats = tuple(Seat(rank=rank, node=name, gpu_mask=0xFF) for rank, name in enumerate(nodes))
    placement = ProposedPlacement(workload=workload, attempt=1, seats=seats, shares=())
    story.tell(RoundProposed(round=story.state.closed_round + 1, based_on=0, policy_version=0, placements=(placement,)))
    assert not story.state.void
    story.start(workload)


def zones(**supernodes: str) -> list[NodeInventoryReported]:
    """Zones with the supernodes that are named, of two nodes each: a0 and a1 in A."""
    return [
        node(f"{name.lower()}{number}", domains=(zone, name))
        for zone, names in supernodes.items()
        for name in names
        for number in range(2)
    ]


def running(
    nodes: list[NodeInventoryReported], topology: TopologyRequest, *seats: str, levels: tuple[Levels, ...] = LEVELS
) -> Story:
    """A gang that runs on these nodes, in rank order."""
    story = Story(budgets(a=0.5, b=0.5), adopted(levels=levels), nodes)
    story.tell(submitted("gang", ranks=len(seats), topology=topology))
    seat(story, "gang", *seats)
    return story


def occupy(story: Story, *names: str) -> None:
    """Let other protected work hold whole nodes."""
    for name in names:
        story.tell(submitted(f"other-{name}"))
        seat(story, f"other-{name}", name)


def lose(story: Story, *names: str) -> None:
    """Let nodes break for good, and the gang stop on all others."""
    for name in names:
        story.tell(health(name, NodeHealth.UNHEALTHY, fatal=True))
    for _ in range(2):
        if story.state.workloads["gang"].run is not None:
            story.end("gang", ReleaseOutcome.STOPPED)


def seats_of(story: Story, workload: str = "gang") -> list[str]:
    """The nodes of a gang in rank order; nothing while it waits."""
    run = story.state.workloads[workload].run
    return [] if run is None else [seat.node for seat in run.seats]


def survives_a_snapshot(story: Story) -> bool:
    """Whether a state that is written and read is the same."""
    return digest(thaw(freeze(story.state))) == digest(story.state)


def test_a_lost_node_is_replaced_inside_its_own_domain() -> None:
    """mc-21: B has two free nodes too; the ranks of a group must share A, where a3 is free."""
    story = running(cluster(A=4, B=5), in_groups(3), "a0", "a1", "a2", "b0", "b1", "b2")

    lose(story, "a1")
    story.round()

    assert seats_of(story) == ["a0", "a3", "a2", "b0", "b1", "b2"]
    assert story.state.workloads["gang"].attempt == 2
    assert not story.state.recoveries


def test_what_is_healthy_is_kept_for_it() -> None:
    """While it waits, nobody is put on the nodes of its survivors, and nobody is charged for them."""
    story = running(cluster(A=2), in_groups(2), "a0", "a1")
    lose(story, "a1")
    story.tell(submitted("next"))

    story.round()

    assert seats_of(story, "next") == []
    assert story.state.nodes["a0"].pins == {"gang": 0xFF}
    assert story.state.nodes["a0"].free_mask == 0
    assert survives_a_snapshot(story)


def test_several_nodes_at_once() -> None:
    """Each group gets its own replacement, and everybody else keeps rank and node."""
    story = running(cluster(A=4, B=4), in_groups(3), "a0", "a1", "a2", "b0", "b1", "b2")

    lose(story, "a0", "b2")
    story.round()

    assert seats_of(story) == ["a3", "a1", "a2", "b0", "b1", "b3"]


def test_a_group_that_is_lost_whole_moves_as_one() -> None:
    """mc-26: it may go anywhere in the domain around it, which is the pool."""
    story = running(cluster(A=2, B=2, C=2), in_groups(2), "a0", "a1", "b0", "b1")

    lose(story, "a0", "a1")
    story.round()

    assert seats_of(story) == ["c0", "c1", "b0", "b1"]


def test_all_nodes_are_back() -> None:
    """mc-27: the old placement, unchanged, although others would be as good."""
    story = running(cluster(A=2, B=3), in_groups(2), "a1", "a0", "b2", "b0")

    lose(story, "a0")
    assert not seats_of(story)
    story.tell(health("a0", NodeHealth.HEALTHY))
    story.at(story.state.now_ms + 1).round()

    assert seats_of(story) == ["a1", "a0", "b2", "b0"]


def test_the_group_moves_when_its_own_domain_has_no_room() -> None:
    """mc-22, mc-23: not before the first step is over; then ranks 0 to 3 go to C, and B stays."""
    story = running(cluster(A=4, B=4, C=4), in_groups(4), "a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3")
    lose(story, "a1")
    story.round()
    assert seats_of(story) == []

    story.at(MINUTE - 1).tick()
    story.round()
    assert seats_of(story) == []

    story.at(MINUTE).tick()
    story.round()
    assert seats_of(story) == ["c0", "c1", "c2", "c3", "b0", "b1", "b2", "b3"]


def test_a_recovery_in_place_waits_for_ever() -> None:
    """mc-25: twenty steps later it still waits, although B has room for all of it; a node of A ends that."""
    story = running(cluster(A=4, B=4), in_groups(4, Recovery.IN_PLACE), "a0", "a1", "a2", "a3")
    lose(story, "a1")

    story.at(20 * MINUTE).tick()
    story.round()
    assert seats_of(story) == []
    assert story.state.recoveries["gang"].step == 0

    story.tell(node("a4", domains=("A",)))
    story.round()
    assert seats_of(story) == ["a0", "a4", "a2", "a3"]


def test_the_last_step_is_the_whole_gang() -> None:
    """One group is all of it: after the first step nothing is pinned, and it goes where any requeued work may."""
    story = running(cluster(A=4, B=4), in_groups(4), "a0", "a1", "a2", "a3")
    lose(story, "a1")

    story.at(MINUTE).tick()
    assert not story.state.recoveries
    assert not story.state.nodes["a0"].pins
    story.round()

    assert seats_of(story) == ["b0", "b1", "b2", "b3"]


def test_after_the_second_step_the_whole_gang_may_leave() -> None:
    """mc-24: all of it must be in one zone, Z has no room for its first group, and so both go to Y; not sooner."""
    topology = TopologyRequest(layers=(Layer(level="zone"), Layer(level="sp", ranks=2)))
    story = running(zones(Z="AB", Y="CD"), topology, "a0", "a1", "b0", "b1", levels=IN_ZONES)
    lose(story, "a1")

    story.at(1 * MINUTE).tick()
    story.round()
    story.at(2 * MINUTE - 1).tick()
    story.round()
    assert seats_of(story) == []
    assert sorted(story.state.recoveries["gang"].pins) == ["a0", "b0", "b1"]

    story.at(2 * MINUTE).tick()
    story.round()
    assert sorted(seats_of(story)) == ["c0", "c1", "d0", "d1"]


#: Four ranks to a zone, two to a supernode.
NESTED = TopologyRequest(layers=(Layer(level="zone", ranks=4), Layer(level="sp", ranks=2)))
NESTED_SEATS = ("a0", "a1", "b0", "b1", "c0", "c1", "d0", "d1")


@pytest.mark.parametrize(
    ("elsewhere", "minutes", "now"),
    [
        # mc-31a: the pair of the lost rank goes to another supernode of its zone.
        ({"Z": "ABG"}, 1, ["g0", "g1", "b0", "b1", "c0", "c1", "d0", "d1"]),
        # mc-31b: it has none there, so the four ranks go to another zone; the other zone stays.
        ({"Z": "AB", "X": "EF"}, 2, ["e0", "e1", "f0", "f1", "c0", "c1", "d0", "d1"]),
    ],
)
def test_each_step_moves_more_ranks_than_the_last(elsewhere: dict[str, str], minutes: int, now: list[str]) -> None:
    """One rank, then the two, then the four around it, and never before its step."""
    story = running(zones(**{"Y": "CD", **elsewhere}), NESTED, *NESTED_SEATS, levels=IN_ZONES)
    lose(story, "a1")

    for at_ms in (*(minute * MINUTE for minute in range(1, minutes)), minutes * MINUTE - 1):
        story.at(at_ms).tick()
        story.round()
    assert seats_of(story) == []

    story.at(minutes * MINUTE).tick()
    story.round()
    assert seats_of(story) == now


def test_the_steps_of_a_recovery_come_to_an_end() -> None:
    """mc-31: of three levels there are three steps: two, four and all eight ranks; then nothing is kept."""
    story = running(zones(Z="AB", Y="CD"), NESTED, *NESTED_SEATS, levels=IN_ZONES)
    lose(story, "a1")

    steps = []
    for minutes in (1, 2):
        story.at(minutes * MINUTE).tick()
        steps.append(story.state.recoveries["gang"].step)
    story.at(3 * MINUTE).tick()

    assert steps == [1, 2]
    assert not story.state.recoveries
    assert story.state.workloads["gang"].queue_key is not None


@pytest.mark.parametrize(("rank", "group", "local"), [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)])
def test_ranks_of_a_group_are_consecutive(rank: int, group: int, local: int) -> None:
    """mc-28: with groups of two, the group is rank / 2 and the place in it rank modulo 2."""
    gang, pair, alone = blocks_around(in_groups(2), 4, rank)

    assert (gang.first, gang.end) == (0, 4)
    assert (pair.first // 2, pair.end - pair.first, rank - pair.first) == (group, 2, local)
    assert (alone.first, alone.end) == (rank, rank + 1)


def test_anywhere_moves_its_group_at_once() -> None:
    """The steps that would keep more of it are left out."""
    topology = in_groups(2, Recovery.ANYWHERE)
    story = running(cluster(A=2, B=2, C=2), topology, "a0", "a1", "b0", "b1")

    lose(story, "a1")
    story.round()

    assert seats_of(story) == ["c0", "c1", "b0", "b1"]


def test_unallocated_work_makes_room() -> None:
    """The only other node of A runs what nobody paid for; it ends, and the gang is planned on its GPUs."""
    story = running(cluster(A=3), in_groups(2), "a0", "a1")
    story.tell(unallocated("filler"))
    seat(story, "filler", "a2")

    lose(story, "a1")
    story.round()

    assert story.phase("gang") == "planned"
    assert seats_of(story) == ["a0", "a2"]
    story.end("filler", ReleaseOutcome.STOPPED)
    assert story.phase("gang") == "bound"


def test_protected_work_does_not() -> None:
    """It waits until it may move as a whole."""
    story = running(cluster(A=4), in_groups(3), "a0", "a1", "a2")
    occupy(story, "a3")

    lose(story, "a1")
    story.round()

    assert seats_of(story) == []
    found = verdict(story.state, "gang")
    assert (found.code, found.until_ms) == (VerdictCode.RECOVERS, MINUTE)
    assert found.sentence == (
        "recovers: keeps 2 nodes, waits for room in sp A to replace a1; starts anew as a whole at 1970-01-01T00:01:00Z"
    )


def test_it_says_where_it_may_go_next() -> None:
    """Seven of eight stay where they are until the group of the lost one may leave its supernode."""
    story = running(cluster(A=4, B=4, C=4), in_groups(4), "a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3")

    lose(story, "a1")

    assert verdict(story.state, "gang").sentence == (
        "recovers: keeps 7 nodes, waits for room in sp A to replace a1; "
        "widens to the whole pool, 4 ranks at once, at 1970-01-01T00:01:00Z"
    )


def test_no_node_out_of_use_is_named_again() -> None:
    """B18: n2 fails before the gang starts; it is placed once more, whole, on the node it has and on n3."""
    story = Story(budgets(a=1), adopted(levels=LEVELS), [node(f"n{n}", domains=("s",)) for n in (1, 2)])
    story.tell(submitted("gang", ranks=2, topology=in_groups(2)))
    story.round()
    story.tell(node("n3", domains=("s",)))

    story.at(5_000).tell(health("n2", NodeHealth.UNHEALTHY))
    for name in ("n1", "n2"):
        story.tell(released(name, "gang", 1, ReleaseOutcome.STOPPED))
    story.round()

    assert seats_of(story) == ["n1", "n3"]
    assert story.state.workloads["gang"].attempt == 2
    placed = [one.node for effects in story.effects for one in effects.commands if isinstance(one, Place)]
    assert placed == ["n1", "n2", "n1", "n3"]


def test_nothing_is_given_out_before_it_is_free() -> None:
    """B17: the survivor that still stops is pinned, and the gang is not placed before it has stopped everywhere."""
    story = running(cluster(A=3), in_groups(2), "a0", "a1")
    story.tell(health("a1", NodeHealth.LOST))
    story.at(60_000).round()
    assert story.phase("gang") == "stopping"

    story.tell(released("a0", "gang", 1, ReleaseOutcome.STOPPED))
    story.round()

    assert seats_of(story) == ["a0", "a2"]


def test_another_survivor_fails_while_it_waits() -> None:
    """What is lost grows, what is kept shrinks, and both are replaced at once."""
    story = running(cluster(A=3, B=3), in_groups(3), "a0", "a1", "a2", "b0", "b1", "b2")
    lose(story, "a1")
    story.tell(health("b0", NodeHealth.UNHEALTHY, fatal=True))
    assert sorted(story.state.recoveries["gang"].pins) == ["a0", "a2", "b1", "b2"]

    story.tell(node("a7", domains=("A",)), node("b7", domains=("B",)))
    story.round()

    assert seats_of(story) == ["a0", "a7", "a2", "b7", "b1", "b2"]


def test_what_is_pinned_is_promised_to_nobody() -> None:
    """A gang of two nodes could be promised a2 alone, whose run leaves in an hour; so nothing is promised to it."""
    story = running(cluster(A=3), in_groups(2, Recovery.IN_PLACE), "a0", "a1")
    occupy(story, "a2")
    lose(story, "a1")
    story.tell(adopted(levels=LEVELS, guard=False))
    story.tell(submitted("wide", ranks=2, budget="b"))

    story.at(30 * MINUTE).tick()
    story.round()

    assert "wide" in story.state.workloads
    assert not story.state.reservations


def test_who_has_nothing_left_starts_anew() -> None:
    """A drain of the last node that is pinned ends the recovery; the gang waits as any other."""
    story = running(cluster(A=2), in_groups(2), "a0", "a1")
    lose(story, "a1")

    story.tell(drained("a0"))

    assert not story.state.recoveries
    assert story.state.workloads["gang"].queue_key is not None


def test_a_budget_that_is_closed_ends_it() -> None:
    """Its work is rejected as all that waits there, and keeps nothing."""
    story = running(cluster(A=2), in_groups(2), "a0", "a1")
    lose(story, "a1")

    story.tell(budgets("b2", "b1", b=1))

    assert story.phase("gang") == "rejected"
    assert story.state.nodes["a0"].free_mask == 0xFF


def test_a_policy_that_lets_it_move_counts() -> None:
    """In place it waited without end; from the change on the first step lasts as long as the new policy says."""
    story = Story(budgets(a=1), adopted(levels=LEVELS, recovery=Recovery.IN_PLACE), cluster(A=2, B=2))
    story.tell(submitted("gang", ranks=2, topology=in_groups(2)))
    seat(story, "gang", "a0", "a1")
    lose(story, "a1")
    before = story.state.recoveries["gang"].widens_ms

    story.at(10 * MINUTE).tell(adopted(levels=LEVELS, recovery_step_ms=2 * MINUTE))

    assert (before, story.state.recoveries["gang"].widens_ms) == (None, 12 * MINUTE)
    assert survives_a_snapshot(story)


def test_a_scheduler_looks_again_only_when_that_may_help() -> None:
    """In vain once, it is not tried again at each event; a node that joins its supernode is reason enough."""
    story = running(cluster(A=2), in_groups(2), "a0", "a1")
    lose(story, "a1")
    memory = Memory()
    assert decide(story.state, memory) is None
    assert memory.recovers_in_vain(story.state, "gang")

    story.tell(submitted("other"))
    assert memory.recovers_in_vain(story.state, "gang")
    story.tell(node("a2", domains=("A",)))

    assert not memory.recovers_in_vain(story.state, "gang")
    assert decide(story.state, memory) == decide(story.state)


def test_who_is_cancelled_keeps_nothing() -> None:
    """Its nodes are free at once."""
    story = running(cluster(A=2), in_groups(2), "a0", "a1")
    lose(story, "a1")

    story.tell(cancelled("gang"))

    assert story.phase("gang") == "cancelled"
    assert story.state.nodes["a0"].free_mask == 0xFF
    assert not story.state.recoveries


@pytest.mark.parametrize(
    ("before", "now", "order"),
    [
        # mc-29: before a, b, c; of the new set b, c and d, d takes the place of a.
        ([0, 1, 2], [1, 2, 3], [3, 1, 2]),
        ([0, 1, 2], [3, 4, 5], [3, 4, 5]),
        ([None, 1, 1], [1, 1, 7], [7, 1, 1]),
    ],
)
def test_who_was_there_keeps_its_rank(before: list[int | None], now: list[int], order: list[int]) -> None:
    """Newcomers fill the holes in their own order."""
    assert stay_put(before, now) == order
