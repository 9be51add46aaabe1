"""Decisions where nodes lie in racks: a gang gets one domain, or nothing, and nobody is stopped in vain."""

from __future__ import annotations

from typing import Any

import pytest

from streamsched.model.events import Event, ProposedPlacement, RoundProposed, Seat
from streamsched.model.policy import DomainReserve, Levels, ReserveUse
from streamsched.model.quantities import HOUR, MINUTE
from streamsched.model.topology import Layer, TopologyRequest, Wish
from streamsched.scheduling.decision import decide
from streamsched.scheduling.memory import Memory
from tests.stories import Story, adopted, budgets, node, submitted, unallocated

IN_ONE_RACK = TopologyRequest(layers=(Layer(level="rack"),))
RATHER_IN_ONE_RACK = TopologyRequest(layers=(Layer(level="rack", wish=Wish.PREFERRED),))


def racks(*sizes: int, **knobs: Any) -> Story:
    """Racks r1, r2, ... of so many nodes of 8 GPUs each: r1-1, r1-2, ..."""
    events: list[Event] = [
        node(f"r{rack}-{number}", domains=(f"r{rack}",))
        for rack, size in enumerate(sizes, 1)
        for number in range(1, size + 1)
    ]
    knobs = {"levels": (Levels(names=("rack",)),), "nodes_per_headroom_node": 0, **knobs}
    return Story(budgets(a=0.5, b=0.5), adopted(**knobs), events)


def occupy(story: Story, *places: str, **fields: Any) -> None:
    """Let work of team b run on whole nodes, each called after its node."""
    for place in places:
        story.tell(submitted(place, **{"budget": "b", **fields}))
        seat = Seat(rank=0, node=place, gpu_mask=0xFF)
        item = ProposedPlacement(workload=place, attempt=1, seats=(seat,), shares=())
        state = story.state
        proposal = RoundProposed(
            round=state.closed_round + 1,
            based_on=state.next_cursor,
            policy_version=state.policy_version,
            placements=(item,),
        )
        story.tell(proposal)
        story.start(place)


def proposed(story: Story) -> dict[str, tuple[list[str], list[str]]]:
    """What a decision would place: on which nodes, rank by rank, and in place of whom."""
    proposal = decide(story.state)
    again = decide(story.state, Memory())
    assert again == proposal
    return {
        item.workload: ([seat.node for seat in item.seats], [victim.workload for victim in item.victims])
        for item in (proposal.placements if proposal is not None else ())
    }


def test_a_gang_gets_a_rack_that_holds_all_of_it() -> None:
    """r1 has one free node and r2 two: the gang of two sits in r2, in rank order."""
    story = racks(2, 2)
    occupy(story, "r1-1")
    story.tell(submitted("gang", ranks=2, topology=IN_ONE_RACK))

    assert proposed(story) == {"gang": (["r2-1", "r2-2"], [])}


def test_free_nodes_in_two_racks_are_no_rack() -> None:
    """One node is free in each of three racks, and protected work holds the others: nobody is stopped, nothing starts.

    Who does not ask for a rack gets two of the nodes, and who would rather have one takes what there is.
    """
    story = racks(2, 2, 2)
    occupy(story, "r1-1", "r2-1", "r3-1")
    story.tell(submitted("gang", ranks=2, topology=IN_ONE_RACK))
    assert proposed(story) == {}

    story.tell(submitted("anywhere", ranks=2))
    assert proposed(story) == {"anywhere": (["r1-2", "r2-2"], [])}

    story = racks(2, 2, 2)
    occupy(story, "r1-1", "r2-1", "r3-1")
    story.tell(submitted("rather", ranks=2, topology=RATHER_IN_ONE_RACK))
    assert proposed(story) == {"rather": (["r1-2", "r2-2"], [])}


def test_the_rack_with_the_fewest_victims_is_emptied() -> None:
    """In r1 and r3 two unallocated runs would have to go, in r2 one."""
    story = racks(2, 2, 2)
    occupy(story, "r1-1", "r1-2", "r2-1", "r3-1", "r3-2", min_runtime_ms=0)
    story.tell(submitted("gang", ranks=2, topology=IN_ONE_RACK))

    assert proposed(story) == {"gang": (["r2-1", "r2-2"], ["r2-1"])}


def test_nobody_is_stopped_where_that_would_not_make_a_rack() -> None:
    """Protected work holds a node of each rack, so unallocated work on the others is left alone."""
    story = racks(2, 2)
    occupy(story, "r1-1", "r2-1")
    occupy(story, "r1-2", "r2-2", min_runtime_ms=0)
    story.tell(submitted("gang", ranks=2, topology=IN_ONE_RACK))

    assert proposed(story) == {}


def test_allocated_work_past_its_protection_leaves_one_rack() -> None:
    """Team b has used all four nodes for two hours, one more than its protection; team a takes one rack from it.

    The runs of r2 started last, and of equal ones the youngest goes first.
    """
    story = racks(2, 2)
    occupy(story, "r1-1", "r1-2")
    occupy(story.at(1), "r2-1", "r2-2")
    story.at(2 * HOUR).tell(submitted("gang", ranks=2, topology=IN_ONE_RACK))
    assert proposed(story) == {}  # It has no patience yet to preempt.
    story.at(2 * HOUR + MINUTE).tick()

    (nodes, victims) = proposed(story)["gang"]
    assert nodes in (["r1-1", "r1-2"], ["r2-1", "r2-2"])
    assert victims == nodes


@pytest.mark.parametrize(("protected", "rack"), [((1, 2, 3, 3), "r1"), ((1, 4, 2, 3), "r2")])
def test_a_rack_is_held_while_it_drains(protected: tuple[int, ...], rack: str) -> None:
    """Of two racks that protected work fills, the one whose last protection ends first is promised."""
    story = racks(2, 2, reserve_after_ms=MINUTE)
    for place, hours in zip(("r1-1", "r1-2", "r2-1", "r2-2"), protected, strict=True):
        occupy(story, place, min_runtime_ms=hours * HOUR)
    story.tell(submitted("gang", ranks=2, topology=IN_ONE_RACK))
    story.at(MINUTE).tick()

    story.round()

    assert story.state.reservations["gang"].nodes == (f"{rack}-1", f"{rack}-2")


def test_a_reserve_for_recoveries_is_not_there_for_others() -> None:
    """One node of each rack is kept, the last by name: three of five nodes are left, and unallocated work gets two."""
    kept = DomainReserve(level="rack", nodes=1, use=ReserveUse.RECOVERY_ONLY, priority=10)
    story = racks(3, 2, domain_reserves=(kept,))
    story.tell(submitted("gang", ranks=3, topology=IN_ONE_RACK), submitted("two", ranks=2), unallocated("more"))
    story.tell(unallocated("most"))

    assert proposed(story) == {"two": (["r1-1", "r1-2"], []), "more": (["r2-1"], [])}


def test_a_reserve_with_a_priority_is_drawn_on_by_those_who_have_it() -> None:
    """The same cluster: the gang of three has the priority, and fits only with the reserve of r1."""
    kept = DomainReserve(level="rack", nodes=1, use=ReserveUse.RECOVERY_ONLY, priority=10)
    story = racks(3, 2, domain_reserves=(kept,))
    story.tell(submitted("gang", ranks=3, topology=IN_ONE_RACK, priority=10), unallocated("more"))

    assert proposed(story) == {"gang": (["r1-1", "r1-2", "r1-3"], []), "more": (["r2-1"], [])}


def test_a_reserve_for_anybody_is_used_last() -> None:
    """Work of one node goes beside the reserve, r1-2 and r2-2, as long as there is room."""
    story = racks(2, 2, domain_reserves=(DomainReserve(level="rack", nodes=1),))
    story.tell(*(submitted(f"w{number}") for number in range(1, 5)))

    nodes = [seats for seats, _ in proposed(story).values()]
    assert sorted(nodes[:2]) == [["r1-1"], ["r2-1"]]
    assert sorted(nodes[2:]) == [["r1-2"], ["r2-2"]]
