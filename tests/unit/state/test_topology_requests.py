"""What a gang may ask of the topology, and in which words the rest is refused.

Where a case is named, it is one of the validation cases that others have published (`topology_cases.json`); what ours
says of those that it takes is in the table of `tests/conformance`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from streamsched.client.requests import checked
from streamsched.errors import RequestError
from streamsched.model.commands import ReceiptStatus
from streamsched.model.events import NodeInventoryReported, NodesRelabelled
from streamsched.model.policy import Levels
from streamsched.model.topology import (
    NODE,
    Group,
    Layer,
    Preference,
    TopologyRequest,
    Wish,
    objection_to,
    objection_to_levels,
)
from streamsched.scheduling.packing import cut_into_parts
from tests.stories import Story, adopted, budgets, node, submitted

LEVELS = ("block", "rack")


def layers(*sizes: tuple[str, int | None]) -> TopologyRequest:
    """A gang with these layers, all required."""
    return TopologyRequest(layers=tuple(Layer(level=level, ranks=ranks) for level, ranks in sizes))


def groups(
    *of: tuple[str, int, tuple[tuple[str, int | None], ...]], gang: tuple[tuple[str, int], ...] = ()
) -> TopologyRequest:
    """A gang of named groups with their layers, and layers of the gang."""
    made = tuple(Group(name=name, ranks=ranks, layers=layers(*inside).layers) for name, ranks, inside in of)
    return TopologyRequest(layers=layers(*gang).layers, groups=made)


def objection(topology: TopologyRequest, ranks: int, gpus: int = 8) -> str | None:
    """Why a submission is refused in a cluster whose racks lie in blocks; None if it is taken."""
    try:
        fact = submitted("gang", ranks=ranks, gpus_per_rank=gpus, topology=topology)
    except ValidationError as error:
        return str(error.errors()[0]["ctx"]["error"])
    story = Story(budgets(a=1), adopted(levels=(Levels(names=LEVELS),)))
    (receipt,) = story.tell(fact).receipts
    return None if receipt.status is ReceiptStatus.ACCEPTED else receipt.reason


@pytest.mark.parametrize(
    ("topology", "ranks"),
    [
        (layers(("block", None)), 5),
        (layers(("block", 4), ("rack", 2)), 8),
        # Levels may be left out, and blocks of several sizes share a level.
        (layers(("block", 8), ("block", 4), (NODE, 2)), 16),
        (TopologyRequest(preference=Preference.BANDWIDTH_FIRST), 8),
        (TopologyRequest(symmetric=True), 8),
        (groups(("lead", 1, ()), ("work", 6, (("rack", 2),))), 7),
        # The whole gang in a block; each block of two of the gang is in a group.
        (groups(("p", 4, (("rack", 2),)), ("d", 2, ()), gang=(("block", 6), ("rack", 2))), 6),
        # Two groups make up one block of the gang.
        (groups(("p", 3, ()), ("d", 1, ()), ("e", 4, ()), gang=(("block", 4),)), 8),
    ],
)
def test_what_is_taken(topology: TopologyRequest, ranks: int) -> None:
    """Nested layers in the order of the levels, groups that add up, and wishes without any layer."""
    assert objection(topology, ranks, gpus=4) is None


@pytest.mark.parametrize(
    ("topology", "ranks", "words"),
    [
        pytest.param(
            TopologyRequest(),
            4,
            "topology.layers: there are none, and nothing else is asked for; name at least one, or leave topology out",
            id="mc-04e",
        ),
        pytest.param(
            layers(("rack", 3)),
            8,
            "topology.layers: a block of 3 ranks in one rack does not divide the 8 ranks of the gang; "
            "make the one a multiple of the other",
            id="mc-04d kq-24d",
        ),
        pytest.param(layers(("rack", 2)), 5, "a block of 2 ranks in one rack does not divide the 5 ranks", id="sl-04"),
        pytest.param(
            layers(("block", 12), ("rack", 6), (NODE, 4)),
            12,
            "topology.layers: blocks of 4 ranks in one node do not divide the blocks of 6 before them; order layers "
            "from coarse to fine, each size a multiple of the next",
            id="kq-24e",
        ),
        pytest.param(
            layers((NODE, 4), ("rack", 2)),
            8,
            "topology.layers: 'node' comes before 'rack', which is coarser; order layers as the levels of a pool are: "
            "block, rack, node",
            id="kq-24a kq-24f, by level",
        ),
        pytest.param(layers((NODE, 2), ("rack", 4)), 8, "blocks of 4 ranks in one rack do not divide", id="kq-24f"),
        pytest.param(
            layers(("block", None), ("nope", 1)),
            8,
            "topology.layers: 'nope' is no level of a pool, whose levels are block, rack, node, coarse to fine; name "
            "one of those, or have the policy name it (levels)",
            id="kq-24c",
        ),
        pytest.param(
            layers((NODE, 8)),
            8,
            "topology.layers: 8 ranks of 4 GPUs on one node are 32 GPUs, and no node has more than 16; make the block "
            "smaller",
            id="more than a node",
        ),
        pytest.param(
            groups(("p", 3, ()), ("d", 4, ())),
            8,
            "topology.groups: they have 7 ranks together, and the gang has 8; let them add up",
            id="sum",
        ),
        pytest.param(
            groups(("p", 3, ()), ("d", 5, ()), gang=(("rack", 4),)),
            8,
            "topology.groups: ranks 3 to 7 ('d') and the blocks of 4 ranks in one rack overlap in part; let groups "
            "begin and end where blocks do, or give each group layers of its own",
            id="overlap",
        ),
        pytest.param(
            groups(("p", 4, (("rack", 3),)), ("d", 4, ())),
            8,
            "topology.layers: a block of 3 ranks in one rack does not divide the 4 ranks of group 'p'; make the one a "
            "multiple of the other",
            id="in a group",
        ),
        pytest.param(
            groups(("p", 12, (("rack", 6),)), ("d", 12, ()), gang=(("block", 4),)),
            24,
            "topology.groups: in 'p', blocks of 6 ranks in one rack do not divide those of 4 in one block, the layers "
            "of the whole gang included; make each size a multiple of the next finer one",
            id="group against gang",
        ),
        pytest.param(
            groups(("p", 4, (("nope", 2),)), ("d", 4, ())),
            8,
            "topology.layers of 'p': 'nope' is no level of a pool",
            id="level of a group",
        ),
    ],
)
def test_what_is_refused(topology: TopologyRequest, ranks: int, words: str) -> None:
    """Each refusal names the field, the value and the remedy."""
    assert words in (objection(topology, ranks, gpus=4) or "")


def test_ranks_of_a_group_are_no_smaller_than_those_of_the_gang() -> None:
    """What is said of the gang is the least of each rank."""
    small = TopologyRequest(groups=(Group(name="p", ranks=2, gpus_per_rank=2), Group(name="d", ranks=2)))

    assert objection(small, 4, gpus=4) == (
        "topology.groups: the ranks of 'p' have 2 GPUs, fewer than gpus_per_rank (4); let that be the smallest"
    )


@pytest.mark.parametrize(("pool", "taken"), [("h100", True), ("a100", False), (None, True), ("later", False)])
def test_the_levels_of_each_pool_that_a_gang_may_use(pool: str | None, taken: bool) -> None:
    """A level that one of the pools has will do where any may be used; a pool that has yet to report has levels too."""
    story = Story(
        budgets(a=1),
        adopted(levels=(Levels(pool="h100", names=LEVELS), Levels(names=("hall",)))),
        node("n1", pool="h100", domains=("b1", "r1")),
        node("n2", pool="a100", domains=("b1",)),
    )

    (receipt,) = story.tell(submitted("gang", pool=pool, topology=layers(("rack", None)))).receipts

    assert (receipt.status is ReceiptStatus.ACCEPTED) is taken
    assert taken or f"'rack' is no level of pool {pool!r}, whose levels are hall, node" in (receipt.reason or "")


def test_a_domain_that_is_too_small_is_no_matter_of_the_request() -> None:
    """One node in each rack: a gang that wants two in one is taken, since another may join."""
    story = Story(
        budgets(a=1),
        adopted(levels=(Levels(names=LEVELS),)),
        node("n1", domains=("b1", "r1")),
        node("n2", domains=("b1", "r2")),
    )

    (receipt,) = story.tell(submitted("gang", ranks=2, topology=layers(("rack", 2)))).receipts

    assert receipt.status is ReceiptStatus.ACCEPTED


SIZES = (None, 1, 2, 3, 4, 6)
LAYERS = st.lists(
    st.builds(Layer, level=st.sampled_from((*LEVELS, NODE)), ranks=st.sampled_from(SIZES), wish=st.sampled_from(Wish)),
    max_size=3,
).map(tuple)
GROUPS = st.lists(st.tuples(st.integers(1, 6), LAYERS), max_size=4).map(
    lambda of: tuple(Group(name=f"g{number}", ranks=ranks, layers=inside) for number, (ranks, inside) in enumerate(of))
)


@given(LAYERS, GROUPS)
def test_what_is_taken_can_be_cut_into_parts(of_gang: tuple[Layer, ...], of_groups: tuple[Group, ...]) -> None:
    """No request is taken of which the search could not make anything."""
    ranks = sum(group.ranks for group in of_groups) or 12
    request = TopologyRequest(layers=of_gang, groups=of_groups)

    if objection_to(request, ranks, 1) is None and objection_to_levels(request, ranks, LEVELS, "a pool") is None:
        assert not of_groups or cut_into_parts(LEVELS, ranks, 1, of_gang, of_groups) is not None


# --- what nodes are, as they report it --------------------------------------------------------------------------------


def test_the_most_levels_of_a_node() -> None:
    """Eight domains are taken, one more is not, and the refusal names the field and the limit."""
    fields = {"node": "n1", "boot": "b", "pool": "h100", "gpus": 8}
    eight = tuple(f"d{depth}" for depth in range(8))

    assert NodeInventoryReported.model_validate({**fields, "domains": eight}).domains == eight
    with pytest.raises(ValidationError, match="domains"):
        NodeInventoryReported.model_validate({**fields, "domains": (*eight, "d8")})


@pytest.mark.parametrize("name", ["", "-r1", "r 1", "r/1", "r\n1", "ä", "r" * 129])
@pytest.mark.parametrize("field", ["tree", "domains"])
def test_odd_names(name: str, field: str) -> None:
    """A tree or a domain is named by letters, digits and . _ : -, at most 128, and begins with a letter or a digit."""
    value = name if field == "tree" else ("s1", name)

    with pytest.raises(ValidationError, match=field):
        NodeInventoryReported.model_validate({"node": "n1", "boot": "b", "pool": "h100", "gpus": 8, field: value})
    with pytest.raises(RequestError, match=field):
        checked(NodesRelabelled, {"labels": ({"node": "n1", field: value},), "reason": "a test"})
