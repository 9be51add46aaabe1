"""Consolidation: runs past their protection move so that a gang fits, and nothing moves in vain."""

from __future__ import annotations

from typing import Any

from streamsched.model.commands import Place, ReceiptStatus
from streamsched.model.events import NodeHealth, ProposedPlacement, ReleaseOutcome, RoundProposed, Seat
from streamsched.model.quantities import HOUR, MINUTE, SECOND
from streamsched.scheduling.decision import decide
from streamsched.scheduling.memory import Memory
from streamsched.state.cluster import ClusterState
from streamsched.state.snapshot import freeze, thaw
from tests.stories import Story, adopted, budgets, health, node, released, submitted


#: Two nodes of 4 GPUs; each has a run of 2 GPUs, an hour past its protection, of the team that now asks for 3 or 4.
def halves(*, consolidation: bool = True, **fields: Any) -> Story:
    story = Story(
        budgets(a=1),
        adopted(consolidation=consolidation, nodes_per_headroom_node=0),
        node("n1", gpus=4),
        node("n2", gpus=4),
    )
    for number in (1, 2):
        story.at(number).tell(submitted(f"half{number}", **{"gpus_per_rank": 2, **fields}))
        seat = Seat(rank=0, node=f"n{number}", gpu_mask=0b0011)
        item = ProposedPlacement(workload=f"half{number}", attempt=1, seats=(seat,), shares=())
        state = story.state
        story.tell(
            RoundProposed(
                round=state.closed_round + 1,
                based_on=state.next_cursor,
                policy_version=state.policy_version,
                placements=(item,),
            )
        )
        story.start(f"half{number}")
    story.at(2 * HOUR).tell(submitted("wide", gpus_per_rank=3))
    story.at(2 * HOUR + MINUTE).tick()
    return story


def only(state: ClusterState) -> ProposedPlacement:
    """The one placement that is proposed, with a memory as without one."""
    proposal = decide(state)
    assert decide(state, Memory()) == proposal
    assert proposal is not None
    (item,) = proposal.placements
    return item


def test_a_run_moves_to_where_it_fits_and_comes_back_there() -> None:
    """The younger of the two equal runs goes to the free GPUs of n1; three GPUs of n2 are then there."""
    story = halves()

    item = only(story.state)
    assert item.seats == (Seat(rank=0, node="n2", gpu_mask=0b1101),)
    (victim,) = item.victims
    assert (victim.workload, victim.moves_to) == ("half2", (Seat(rank=0, node="n1", gpu_mask=0b1100),))

    story.round()
    story.tell(submitted("thief", gpus_per_rank=2))  # What is kept for a run that moves is nobody else's.
    assert decide(story.state) is None
    assert thaw(freeze(story.state)).recoveries["half2"].pins == {"n1": 0b1100}
    effects = story.tell(released("n2", "half2", 1, ReleaseOutcome.STOPPED))
    assert [command.workload for command in effects.commands if isinstance(command, Place)] == ["wide"]

    again = only(story.state)
    assert (again.workload, again.attempt, again.seats) == ("half2", 2, (Seat(rank=0, node="n1", gpu_mask=0b1100),))
    story.round()
    assert story.phase("half2") == "bound"
    assert not story.state.recoveries


def test_nothing_moves_unless_the_policy_says_so() -> None:
    """By default who needs three GPUs waits."""
    assert decide(halves(consolidation=False).state) is None


def test_who_cannot_resume_stays() -> None:
    """Work that would be lost is not moved."""
    assert decide(halves(resumable=False).state) is None


def test_nobody_moves_while_he_is_protected() -> None:
    """A contract holds against consolidation too."""
    assert decide(halves(min_runtime_ms=8 * HOUR).state) is None


def test_nobody_moves_without_a_place_to_go_to() -> None:
    """Two more GPUs are taken on each node: then one run would have to be stopped for good."""
    story = halves()
    story.tell(submitted("more1", gpus_per_rank=2, priority=1), submitted("more2", gpus_per_rank=2, priority=1))
    proposal = decide(story.state)

    assert proposal is not None
    assert [(item.workload, item.victims) for item in proposal.placements] == [("more1", ()), ("more2", ())]


def test_a_run_whose_place_is_lost_on_the_way_waits_as_any_other() -> None:
    """n1 fails while half2 still stops: it is requeued, and starts where there is room again."""
    story = halves()
    story.round()
    story.tell(health("n1", NodeHealth.UNHEALTHY, fatal=True))
    assert not story.state.recoveries
    story.at(2 * HOUR + MINUTE + SECOND).tell(released("n2", "half2", 1, ReleaseOutcome.STOPPED))

    assert story.phase("half2") == "queued"
    assert story.state.workloads["half2"].queue_key is not None


def test_a_move_that_was_overtaken_is_void() -> None:
    """Another proposal for the same GPUs came first; nobody is stopped."""
    story = halves()
    item = only(story.state)
    (victim,) = item.victims
    elsewhere = victim.model_copy(update={"moves_to": (Seat(rank=0, node="n1", gpu_mask=0b0110),)})
    state = story.state
    effects = story.tell(
        RoundProposed(
            round=state.closed_round + 1,
            based_on=state.next_cursor,
            policy_version=state.policy_version,
            placements=(item.model_copy(update={"victims": (elsewhere,)}),),
        )
    )

    assert not effects.commands
    assert ReceiptStatus.NOTICE not in [receipt.status for receipt in effects.receipts]
    assert story.phase("half2") == "running"
