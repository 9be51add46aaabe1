"""Gangs whose nodes were relabelled while they run: trees that are split and merged, domains that are cut otherwise."""

from __future__ import annotations

import pytest

from streamsched.model.commands import Effects, Receipt, ReceiptStatus, Stop
from streamsched.model.events import NodeInventoryReported, NodeLabels, ProposedPlacement, RoundProposed, Seat
from streamsched.model.policy import Levels
from streamsched.model.quantities import HOUR
from streamsched.model.topology import NODE, Group, Layer, TopologyRequest, Wish
from streamsched.state.reasons import Void
from streamsched.state.snapshot import digest, freeze, thaw
from tests.stories import Story, adopted, budgets, holding, node, relabelled, submitted

LEVELS = (Levels(names=("supernode", "rack")),)
RACK_PAIRS = TopologyRequest(layers=(Layer(level="rack", ranks=2),))


def four_nodes() -> list[NodeInventoryReported]:
    """N1 and n2 in one rack, n3 and n4 in another of the same supernode, all in tree t."""
    return [node(f"n{n}", tree="t", domains=("s1", "r1" if n < 3 else "r2")) for n in range(1, 5)]


def running(topology: TopologyRequest | None = None, ranks: int = 4) -> Story:
    """A gang that runs with rank 0 on n1, rank 1 on n2 and so on."""
    story = Story(budgets(a=1), adopted(levels=LEVELS), four_nodes())
    story.tell(submitted("gang", ranks=ranks, topology=topology))
    assert proposed(story) is None
    story.start("gang")
    return story


def proposed(story: Story) -> str | None:
    """Propose the gang on n1, n2, ...; return why that came to nothing."""
    ranks = story.state.workloads["gang"].ranks
    seats = tuple(Seat(rank=rank, node=f"n{rank + 1}", gpu_mask=0xFF) for rank in range(ranks))
    placement = ProposedPlacement(workload="gang", attempt=1, seats=seats, shares=())
    number = story.state.closed_round + 1
    story.tell(RoundProposed(round=number, based_on=0, policy_version=0, placements=(placement,)))
    return next(iter(story.state.void), None)


def straddles(story: Story) -> bool:
    """Whether the gang is marked, and a state that is written and read says the same."""
    run = story.state.workloads["gang"].run
    again = thaw(freeze(story.state))
    assert run is not None
    assert digest(again) == digest(story.state)
    assert again.workloads["gang"].run.straddling is run.straddling  # type: ignore[union-attr]
    return run.straddling


def notices(effects: Effects) -> list[str | None]:
    """What people are told unasked."""
    return [receipt.reason for receipt in effects.receipts if receipt.status is ReceiptStatus.NOTICE]


def test_a_tree_that_is_split_and_merged_again() -> None:
    """The gang goes on with all that it was promised, and is marked while it lies in two trees."""
    story = running()
    run = story.state.workloads["gang"].run
    assert run is not None
    until_ms = run.protected_until_ms

    split = story.tell(relabelled(NodeLabels(node="n3", tree="u"), NodeLabels(node="n4", tree="u")))

    assert straddles(story)
    assert notices(split) == [
        "straddling: its nodes lie in 2 trees (h100:t, h100:u), and no gang may span two; it goes on where it is"
    ]
    assert not [command for command in split.commands if isinstance(command, Stop)]
    assert story.phase("gang") == "running"
    assert run.protected_until_ms == until_ms == HOUR
    assert list(run.held) == ["n1", "n2", "n3", "n4"]

    merged = story.tell(relabelled(NodeLabels(node="n3"), NodeLabels(node="n4")))

    assert not straddles(story)
    assert notices(merged) == []


def test_it_is_told_of_once() -> None:
    """A second cut through the same gang changes nothing of what it is told."""
    story = running()
    story.tell(relabelled(NodeLabels(node="n4", tree="u")))

    again = story.tell(relabelled(NodeLabels(node="n3", tree="u")))

    assert straddles(story)
    assert notices(again) == []


def test_a_mark_ends_with_the_run() -> None:
    """The gang that ended is remembered as any other, and its GPUs are free in both trees."""
    story = running()
    story.tell(relabelled(NodeLabels(node="n4", tree="u")))

    story.end("gang")

    assert story.phase("gang") == "succeeded"
    assert {pool.id: pool.free.slots(8) for pool in story.state.inventory.pools.values()} == {"h100:t": 3, "h100:u": 1}


@pytest.mark.parametrize(
    ("topology", "labels", "words"),
    [
        (RACK_PAIRS, (NodeLabels(node="n2", domains=("s1", "r2")),), "ranks 0 to 1 must share one rack, and lie in 2"),
        (RACK_PAIRS, (NodeLabels(node="n4", domains=("s1",)),), "ranks 2 to 3 must share one rack, and lie in 2"),
        # Both nodes of a pair move together: it is still one rack, in another supernode.
        (RACK_PAIRS, (NodeLabels(node="n3", domains=("s2", "r9")), NodeLabels(node="n4", domains=("s2", "r9"))), None),
        (
            TopologyRequest(layers=(Layer(level="supernode"), Layer(level="rack", ranks=2))),
            (NodeLabels(node="n3", domains=("s2", "r9")), NodeLabels(node="n4", domains=("s2", "r9"))),
            "ranks 0 to 3 must share one supernode, and lie in 2: s1, s2",
        ),
        # A wish is no promise.
        (
            TopologyRequest(layers=(Layer(level="rack", ranks=2, wish=Wish.PREFERRED),)),
            (NodeLabels(node="n2", domains=("s1", "r2")),),
            None,
        ),
        # Only the second group asks for a rack of its own.
        (
            TopologyRequest(
                groups=(Group(name="lead", ranks=2), Group(name="decode", ranks=2, layers=(Layer(level="rack"),)))
            ),
            (NodeLabels(node="n2", domains=("s1", "r2")),),
            None,
        ),
        (
            TopologyRequest(
                groups=(Group(name="lead", ranks=2), Group(name="decode", ranks=2, layers=(Layer(level="rack"),)))
            ),
            (NodeLabels(node="n3", domains=("s1", "r1")),),
            "ranks 2 to 3 must share one rack, and lie in 2: s1/r1, s1/r2",
        ),
    ],
)
def test_domains_that_are_cut_otherwise(
    topology: TopologyRequest, labels: tuple[NodeLabels, ...], words: str | None
) -> None:
    """What the gang requires of its domains is looked at again; what it merely prefers is not."""
    story = running(topology)

    effects = story.tell(relabelled(*labels))

    assert straddles(story) is (words is not None)
    assert [words in (notice or "") for notice in notices(effects) if words is not None] == ([True] if words else [])
    assert story.phase("gang") == "running"


def test_ranks_that_must_share_a_node_are_not_parted_by_labels() -> None:
    """A node is in one place, whatever that is called."""
    story = Story(budgets(a=1), adopted(levels=LEVELS), four_nodes())
    pairs = TopologyRequest(layers=(Layer(level=NODE, ranks=2),))
    story.tell(submitted("gang", ranks=2, gpus_per_rank=4, topology=pairs))
    seats = tuple(Seat(rank=rank, node="n1", gpu_mask=0xF << 4 * rank) for rank in range(2))
    placement = ProposedPlacement(workload="gang", attempt=1, seats=seats, shares=())
    story.tell(RoundProposed(round=1, based_on=0, policy_version=0, placements=(placement,)))

    story.tell(relabelled(NodeLabels(node="n1", tree="u", domains=("s9", "r9"))))

    assert not straddles(story)


def test_a_node_that_says_itself_that_it_is_elsewhere() -> None:
    """Its report has the same effect as a label."""
    story = running(RACK_PAIRS)
    held = (holding("gang"),)

    effects = story.tell(node("n2", tree="t", domains=("s1", "r2"), runs=held))
    assert straddles(story)
    assert len(notices(effects)) == 1

    story.tell(node("n2", tree="t", domains=("s1", "r1"), runs=held))
    assert not straddles(story)


def test_levels_that_are_named_otherwise() -> None:
    """Where rack is the name of the coarsest level, other nodes share one; a level without a name binds nobody."""
    story = running(TopologyRequest(layers=(Layer(level="rack", ranks=2),)))
    story.tell(relabelled(NodeLabels(node="n2", domains=("s1", "r2"))))
    assert straddles(story)

    story.tell(adopted(levels=(Levels(names=("rack", "shelf")),)))
    assert not straddles(story)

    story.tell(adopted(levels=LEVELS))
    assert straddles(story)

    story.tell(adopted(levels=()))
    assert not straddles(story)


def test_a_decision_that_a_relabelling_overtook() -> None:
    """Seats that no longer keep what the gang requires are not given: it is decided about anew."""
    story = Story(budgets(a=1), adopted(levels=LEVELS), four_nodes())
    story.tell(submitted("gang", ranks=4, topology=RACK_PAIRS))
    story.tell(relabelled(NodeLabels(node="n2", domains=("s1", "r2"))))

    assert proposed(story) is Void.WRONG_SEATS
    assert story.phase("gang") == "queued"


def test_receipts() -> None:
    """Who relabels is told what became of it; a node that nobody knows keeps none of the others from it."""
    story = running()

    def receipt(*labels: NodeLabels) -> Receipt:
        (answer,) = (
            receipt
            for receipt in story.tell(relabelled(*labels, corr="c-1")).receipts
            if receipt.status is not ReceiptStatus.NOTICE
        )
        assert answer.corr == "c-1"
        return answer

    known, unknown = NodeLabels(node="n4", tree="u"), NodeLabels(node="n9", tree="u")

    assert receipt(known).status is ReceiptStatus.ACCEPTED
    mixed = receipt(NodeLabels(node="n3", tree="u"), unknown)
    assert mixed.status is ReceiptStatus.ACCEPTED
    assert mixed.reason == ("labels: there is no node 'n9'; `streamsched nodes` lists them; the others are relabelled")
    assert story.state.nodes["n3"].tree == "u"
    assert receipt(unknown).status is ReceiptStatus.REJECTED
