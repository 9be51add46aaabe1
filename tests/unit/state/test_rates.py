"""Kinds of GPU under a rate card: scenario B24."""

from __future__ import annotations

from streamsched.model.events import Event
from streamsched.model.policy import PoolRate
from streamsched.model.quantities import HOUR, WHOLE
from streamsched.replay.answers import shares
from streamsched.scheduling.decision import decide
from streamsched.state.cluster import ClusterState
from streamsched.state.snapshot import freeze, thaw
from tests.stories import Story, adopted, budgets, node, submitted

CARD = (PoolRate(pool="big", rate=8), PoolRate(pool="small", rate=1))


def used(state: ClusterState, budget: str, at_ms: int) -> int:
    return state.budgets.by_id[budget].charged_gpu_ms(at_ms)


def two_kinds(*first: Event) -> Story:
    """20 GPUs of either kind; a holds those of small, b those of big."""
    story = Story(*first, budgets(a=0.5, b=0.5))
    story.tell(node(f"{pool}-{number}", pool=pool, gpus=10) for pool in ("small", "big") for number in (1, 2))
    story.tell(submitted("w-a", budget="a", pool="small", ranks=2, gpus_per_rank=10))
    story.tell(submitted("w-b", budget="b", pool="big", ranks=2, gpus_per_rank=10))
    story.round()
    for workload in ("w-a", "w-b"):
        story.start(workload)
    story.at(HOUR).end("w-a")
    story.end("w-b")
    return story


def test_b24_a_dear_kind_counts_by_its_rate() -> None:
    """20 GPU-hours of either kind: 20 units of small and 160 of big, so a goes first."""
    story = two_kinds(adopted(rates=CARD))
    assert (used(story.state, "a", HOUR), used(story.state, "b", HOUR)) == (20 * HOUR, 160 * HOUR)
    assert story.state.budgets.root.charged_gpu_ms(HOUR) == 180 * HOUR

    story.tell(submitted("b-next", budget="b"), submitted("a-next", budget="a"))
    proposal = decide(story.state)
    assert proposal is not None
    assert [item.workload for item in proposal.placements] == ["a-next", "b-next"]


def test_b24_without_a_card_kinds_are_not_weighted_and_the_shares_say_so() -> None:
    """Both have used 20."""
    story = two_kinds()
    assert used(story.state, "a", HOUR) == used(story.state, "b", HOUR) == 20 * HOUR
    assert shares(story.state).rates == {"big": 1, "small": 1}


def test_b24_a_request_for_one_kind_is_never_placed_on_another() -> None:
    """All of small is held, and big is empty: who wants small waits. Who takes any kind is charged by what it got."""
    story = Story(adopted(rates=CARD), budgets(a=1.0), node("s", pool="small"), node("b", pool="big"))
    story.tell(submitted("first", pool="small"))
    story.round()
    story.tell(submitted("second", pool="small"), submitted("any"))
    story.round()
    assert (story.phase("second"), story.phase("any")) == ("queued", "bound")

    story.at(HOUR).tick()
    assert used(story.state, "a", HOUR) == (8 + 64) * HOUR


def test_capacity_is_counted_in_units() -> None:
    """8 GPUs at 1 and 8 at 8 are 72 units, half of which are due to a; one node lost takes what it was worth."""
    story = Story(adopted(rates=CARD), budgets(a=0.5), node("s", pool="small"), node("b", pool="big"))
    assert (story.state.budgets.capacity_units, story.state.inventory.capacity_gpus) == (72, 16)
    story.at(10 * HOUR).tick()
    assert story.state.budgets.by_id["a"].entitled_gpu_ms(10 * HOUR) == 360 * HOUR


def test_a_new_card_counts_at_once_for_capacity_and_for_runs_from_their_next_placement() -> None:
    """8 GPUs at 1 become 24 units at 3; the run that holds them is charged 8 to its end, and its successor 24."""
    story = Story(budgets(a=1.0), node("n", pool="big"), submitted("first"), submitted("second"))
    story.round()
    story.start("first")
    story.at(HOUR).tell(adopted(rates=(PoolRate(pool="big", rate=3),)))
    assert story.state.budgets.capacity_units == 24
    assert freeze(thaw(freeze(story.state))) == freeze(story.state)

    story.at(2 * HOUR).end("first")
    assert used(story.state, "a", 2 * HOUR) == 16 * HOUR
    story.round()
    story.at(3 * HOUR).tick()
    assert used(story.state, "a", 3 * HOUR) == (16 + 24) * HOUR
    assert story.state.budgets.by_id["a"].quota_nano == WHOLE


def test_the_largest_rates_of_a_large_cluster_can_be_frozen() -> None:
    """Sums of units times the time since 1970 may be larger than 64 bits, in a snapshot as anywhere."""
    story = Story(adopted(rates=(PoolRate(pool="h100", rate=10_000),)), budgets(a=1.0), at_ms=1_800_000_000_000)
    story.tell(node(f"n{number}", gpus=16) for number in range(128))
    story.tell(submitted("w", ranks=128, gpus_per_rank=16))
    story.round()
    story.start("w")
    assert story.state.budgets.root.commitment_sum > 2**64
    assert thaw(freeze(story.state)).budgets.root.commitment_sum == story.state.budgets.root.commitment_sum
