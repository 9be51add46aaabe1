"""Scattered GPUs, by numbers that can be counted on paper."""

from fractions import Fraction

from streamsched.simulation.fragmentation import Fragmentation, WaitingShape, fragmentation
from tests.stories import Story, budgets, node, submitted, unallocated

MINUTES_10 = 600_000


def scattered() -> Story:
    """Three nodes of 8 GPUs. Each of two has 5 taken by allocated work; the third has 6 taken by unallocated."""
    story = Story(budgets(a=1), node("n1"), node("n2"))
    for name in ("one", "two"):
        story.tell(submitted(name, budget="a", ranks=1, gpus_per_rank=5, min_runtime_ms=MINUTES_10))
        story.round()
    story.tell(node("n3"), unallocated("free", budget="a", ranks=1, gpus_per_rank=6))
    story.round()
    return story


def test_an_empty_cluster_is_not_scattered() -> None:
    """Both nodes are whole, and a gang of 16 fits."""
    sample = fragmentation(Story(budgets(a=1), node("n1"), node("n2")).state)

    assert (sample.free_gpus, sample.largest_free_gpus) == (16, 16)
    assert sample.scattered == Fraction(0)
    assert (sample.waiting_gpus, sample.kept_out) == (0, ())


def test_free_gpus_on_used_nodes_are_scattered() -> None:
    """3, 3 and 2 are free and no node is whole. Unallocated work may be told to go: then 3, 3 and 8, one whole node."""
    sample = fragmentation(scattered().state)

    assert (sample.free_gpus, sample.largest_free_gpus) == (8, 0)
    assert sample.scattered == Fraction(1)
    assert (sample.reclaimable_gpus, sample.largest_reclaimable_gpus) == (14, 8)
    assert sample.scattered_reclaimable == Fraction(6, 14)


def test_who_is_kept_out_although_enough_is_free() -> None:
    """8 are free. 1 × 8 and 2 × 4 do not fit on 3, 3 and 2; 2 × 3 does; and for 3 × 8 too few are free anyway."""
    story = scattered()
    story.tell(
        unallocated("eight", budget="a", ranks=1, gpus_per_rank=8),
        unallocated("eight-too", budget="a", ranks=1, gpus_per_rank=8),
        unallocated("four", budget="a", ranks=2, gpus_per_rank=4),
        unallocated("three", budget="a", ranks=2, gpus_per_rank=3),
        unallocated("many", budget="a", ranks=3, gpus_per_rank=8),
    )

    sample = fragmentation(story.state)

    assert sample.kept_out == (
        WaitingShape(None, ranks=1, gpus_per_rank=8, workloads=2),
        WaitingShape(None, ranks=2, gpus_per_rank=4, workloads=1),
    )
    assert sample.kept_out_gpus == 16 + 8
    assert sample.waiting_gpus == 16 + 8 + 6 + 24


def test_nothing_free_has_no_ratio() -> None:
    """What is not there is not scattered."""
    assert Fragmentation(0, 0, 0, 0, 0, 0, ()).scattered is None
