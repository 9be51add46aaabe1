"""What keeps the layers of a gang out, counted by hand, and where it comes closest."""

from __future__ import annotations

from streamsched.model.events import Drain, NodeHealth
from streamsched.model.policy import Levels
from streamsched.model.topology import Group, Layer, TopologyRequest, Wish
from streamsched.scheduling.decision import decide
from streamsched.scheduling.misfits import Closest, LayerFit, in_words
from streamsched.scheduling.obstacles import VerdictCode
from streamsched.scheduling.verdicts import Verdict, verdict
from tests.stories import Story, adopted, budgets, drained, health, node, submitted

LEVELS = (Levels(names=("rack",)),)
PAIRS = TopologyRequest(layers=(Layer(level="rack", ranks=2),))


def cluster(*racks: int, **policy: object) -> Story:
    """Racks r1, r2, ... with so many nodes of 8 GPUs each: n1, n2, ... over all of them."""
    story = Story(budgets(a=1), adopted(levels=LEVELS, reservations=0, nodes_per_headroom_node=0, **policy))
    number = 0
    for rack, size in enumerate(racks, 1):
        for _ in range(size):
            number += 1
            story.tell(node(f"n{number}", domains=(f"r{rack}",)))
    return story


def occupied(story: Story, *nodes: int) -> None:
    """A protected run holds the whole of each of these nodes."""
    for number in nodes:
        others = [n for n in story.state.nodes.values() if n.id != f"n{number}" and n.takes_work]
        for other in others:
            story.tell(drained(other.id, Drain.CORDON))
        story.tell(submitted(f"w{number}"))
        story.round()
        story.start(f"w{number}")
        for other in others:
            story.tell(drained(other.id, Drain.NONE))
        assert list(story.state.nodes[f"n{number}"].held) == [(f"w{number}", 1)]


def asked(story: Story, ranks: int, topology: TopologyRequest) -> Verdict:
    """The verdict on a gang that cannot be placed, which the decision agrees with."""
    story.tell(submitted("gang", ranks=ranks, topology=topology))
    proposal = decide(story.state)
    assert proposal is None or all(item.workload != "gang" for item in proposal.placements)
    return verdict(story.state, "gang")


def test_pairs_that_no_two_nodes_of_a_rack_hold() -> None:
    """Three nodes are free, one in each rack: a pair fits nowhere, though six such ranks do not lack GPUs."""
    story = cluster(2, 2, 2)
    occupied(story, 1, 3, 5)

    found = asked(story, 2, PAIRS)

    assert found.misfit is not None
    assert found.misfit.layers == (
        LayerFit(level="rack", ranks=2, asked=1, fit=0, reserved=0, out_of_use=0, busy=1, strays=0),
    )
    assert found.misfit.closest == Closest(
        level="rack", domain="r1", ranks=2, ranks_free=1, ranks_possible=2, gpus_to_free=8, held_by=("w1",)
    )


def test_each_obstacle_is_counted_once() -> None:
    """Of four pairs, one fits, one lies on an ill node, one on a busy one; the nodes of r4 and r5 make none."""
    story = cluster(2, 2, 2, 1, 1)
    occupied(story, 5)
    story.tell(health("n3", NodeHealth.UNHEALTHY))

    found = asked(story, 8, PAIRS)

    assert found.code is VerdictCode.IMPOSSIBLE_NOW
    assert found.misfit is not None
    assert found.misfit.layers == (
        LayerFit(level="rack", ranks=2, asked=4, fit=1, reserved=0, out_of_use=1, busy=1, strays=1),
    )
    assert in_words(found.misfit)[0] == (
        "1 of 4 blocks of 2 ranks in one rack have room; the others: 1 out of use, 1 busy, 1 no domain large enough"
    )


def test_a_domain_that_is_too_small() -> None:
    """No rack has three nodes; the one with most comes closest, and nothing that could be freed would do."""
    found = asked(cluster(1, 2), 3, TopologyRequest(layers=(Layer(level="rack"),)))

    assert found.code is VerdictCode.IMPOSSIBLE_NOW
    assert found.sentence == (
        "asks for 3 x 8 GPUs; with every healthy node of any one pool empty no topology domains would hold it as it "
        "requires"
    )
    assert found.misfit is not None
    assert in_words(found.misfit) == (
        "0 of 1 blocks of 3 ranks in one rack have room; the others: 1 no domain large enough",
        "rack r2 comes closest: room for 2 of 3 ranks, and for 2 if it were empty",
    )


def test_the_domain_with_the_fewest_gpus_to_free_comes_closest() -> None:
    """R1 would have to give two nodes, r2 one."""
    story = cluster(2, 2)
    occupied(story, 1, 2, 4)

    found = asked(story, 2, PAIRS)

    assert found.misfit is not None
    assert found.misfit.closest is not None
    assert (found.misfit.closest.domain, found.misfit.closest.gpus_to_free) == ("r2", 8)
    assert in_words(found.misfit)[1] == (
        "rack r2 comes closest: room for 1 of 2 ranks; at least 8 GPUs would have to be freed there, held by w4"
    )


def test_the_layers_of_groups() -> None:
    """The decoders lack a pair; the leader asks for nothing of its own."""
    story = cluster(2, 2)
    occupied(story, 1, 3)
    roles = TopologyRequest(groups=(Group(name="lead", ranks=1), Group(name="d", ranks=2, layers=(PAIRS.layers[0],))))

    found = asked(story, 3, roles)

    assert found.misfit is None or all(layer.level == "rack" for layer in found.misfit.layers)


def test_wishes_keep_nobody_out() -> None:
    """A preferred layer is no obstacle: the pair is placed in the next round, on a node of each rack."""
    story = cluster(1, 1)
    wish = TopologyRequest(layers=(Layer(level="rack", wish=Wish.PREFERRED),))
    story.tell(submitted("gang", ranks=2, topology=wish))

    found = verdict(story.state, "gang")

    assert (found.code, found.misfit) == (VerdictCode.NEXT_ROUND, None)
    proposal = decide(story.state)
    assert proposal is not None
    assert [item.workload for item in proposal.placements] == ["gang"]


def test_unallocated_work_that_no_domain_holds() -> None:
    """Two nodes are free, in two racks: so many ranks have room, and the word for it is its own."""
    story = cluster(2, 2)
    occupied(story, 1, 3)
    story.tell(submitted("spare", ranks=2, min_runtime_ms=0, topology=PAIRS))

    found = verdict(story.state, "spare")

    assert found.code is VerdictCode.NO_DOMAIN
    assert found.sentence == (
        "asks for 2 x 8 GPUs; so many ranks have room in any one pool, but not in the topology domains that it requires"
    )
