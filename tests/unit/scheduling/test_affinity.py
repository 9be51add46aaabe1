"""Where gangs sit in topology trees: the worked examples of the specification, and what the words promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamsched.model.events import Drain
from streamsched.model.policy import FragmentScore, Levels
from streamsched.model.topology import Group, Layer, Preference, Wish
from streamsched.scheduling.affinity import Ask, Fit, NoFit, reserve_places, symmetric_counts, violations
from streamsched.scheduling.fragmentation import Nesting, blocks_that_fit, fragment_scores, strays_of
from tests.stories import Story, adopted, drained, node
from tests.topologies import Forest, forest, whole

BANDWIDTH = Preference.BANDWIDTH_FIRST
LEXICOGRAPHIC = FragmentScore.LEXICOGRAPHIC


def nodes(ranks: int, *layers: Layer, **more: Any) -> Ask:
    """A gang whose ranks take whole nodes."""
    return Ask(ranks, 8, layers, **more)


def layer(level: str, ranks: int | None = None) -> Layer:
    return Layer(level=level, ranks=ranks)


def wish(level: str, ranks: int | None = None) -> Layer:
    return Layer(level=level, ranks=ranks, wish=Wish.PREFERRED)


def scores(place: Forest, ask: Ask, score: FragmentScore = FragmentScore.WEIGHTED) -> list[list[list[int]]]:
    """Return the fragment scores of all domains by depth, each as a list of rows."""
    slots = place.free // ask.gpus_per_rank
    nesting = Nesting(place.tree.levels, ask.ranks, ask.layers)
    strays = strays_of(place.tree, nesting, slots, blocks_that_fit(place.tree, nesting, slots))
    return [rows.tolist() for rows in fragment_scores(place.tree, nesting, strays, score)]


THREE_LEVELS = {
    "S0/r0": [8, 8],
    "S0/r1": [8, 8],
    "S0/r2": [8],
    "S1/r0": [8, 8],
    "S1/r1": [8, 8],
    "S1/r2": [8, 8],
    "S2/r0": [8, 8, 8],
    "S2/r1": [8],
}


class TestFragmentScores:
    """Section 3 of the specification, with its numbers."""

    def test_two_domains(self) -> None:
        """3.1: 5 and 6 free nodes, pairs: 1 stray in A; at the root a spare pair, and A's stray ten times."""
        place = forest("sp", whole(A=5, B=6))

        assert scores(place, nodes(4, layer("sp", 2)))[:2] == [[[12]], [[1, 0]]]
        assert scores(place, nodes(6, layer("sp", 2)))[0] == [[14]]

    def test_three_levels(self) -> None:
        """3.3: a whole rack too many in S1 costs 2, a single stray node under a rack of S0 costs 10."""
        root, supernodes, racks, _ = scores(forest("sp rack", THREE_LEVELS), nodes(8, layer("sp", 4), layer("rack", 2)))

        assert racks == [[0, 0, 1, 0, 0, 0, 1, 1]]
        assert supernodes == [[10, 2, 22]]
        assert root == [[340]]

    def test_the_deepest_strays_decide_where_they_are_not_weighed(self) -> None:
        """Of S0 and S1, one has a stray node and the other a spare pair: the node comes before the pair."""
        supernodes = scores(forest("sp rack", THREE_LEVELS), nodes(8, layer("sp", 4), layer("rack", 2)), LEXICOGRAPHIC)[
            1
        ]

        by_domain = list(zip(*supernodes, strict=True))  # Strays on nodes, in racks, in the supernode, at the root.
        assert by_domain == [(0, 1, 0, 0), (0, 0, 2, 0), (0, 2, 2, 0)]

    def test_a_level_that_is_not_named_only_adds_up(self) -> None:
        """Strays of racks count the same in a supernode and at the root if nothing is asked of supernodes."""
        root, supernodes, racks, _ = scores(forest("sp rack", {"s/a": [8] * 3, "s/b": [8]}), nodes(2, layer("rack", 2)))

        assert (root, supernodes, racks) == ([[20]], [[2]], [[1, 1]])


@pytest.mark.parametrize(
    ("free", "ask", "expected"),
    [
        pytest.param(whole(A=5, B=6), nodes(4, layer("sp", 2)), {"A": 4}, id="3.1: A fits, B is too large"),
        pytest.param(whole(A=5, B=6), nodes(6, layer("sp", 2)), {"B": 6}, id="3.1: B has no stray"),
        pytest.param(whole(A=7, B=4, C=4), nodes(8, layer("sp", 4)), {"B": 4, "C": 4}, id="3.2: A would leave strays"),
        pytest.param(
            whole(A=5, B=5, C=2), nodes(10, layer("sp", 2)), {"A": 4, "B": 4, "C": 2}, id="3.6: 4,4,2, not 5,5"
        ),
    ],
)
@pytest.mark.parametrize("exact_fit", [False, True])
def test_utilization_first(free: dict[str, list[int]], ask: Ask, expected: dict[str, int], exact_fit: bool) -> None:
    """The placements of section 3, with and without the exact fit."""
    place = forest("sp", free)
    asked = Ask(ask.ranks, ask.gpus_per_rank, ask.layers, exact_fit=exact_fit)

    assert place.counts(place.seated(asked), "sp") == expected


def test_utilization_first_on_three_levels() -> None:
    """3.3: eight nodes take S1 and S0; four take S1, which wastes a spare rack and no node."""
    place = forest("sp rack", THREE_LEVELS)
    layers = (layer("sp", 4), layer("rack", 2))

    assert place.counts(place.seated(nodes(8, *layers)), "sp") == {"S0": 4, "S1": 4}
    assert place.counts(place.seated(nodes(4, *layers)), "sp") == {"S1": 4}


def test_an_exact_fit_goes_before_several_smaller_ones() -> None:
    """Free 4, 8 and 7, eight nodes in fours: as published A and a part of C; with the exact fit B alone."""
    place = forest("sp", whole(A=4, B=8, C=7))
    blocks = layer("sp", 4)

    assert place.counts(place.seated(nodes(8, blocks, exact_fit=False)), "sp") == {"A": 4, "C": 4}
    assert place.counts(place.seated(nodes(8, blocks)), "sp") == {"B": 8}
    assert place.counts(place.seated(nodes(8, blocks, preference=BANDWIDTH)), "sp") == {"B": 8}


def test_blocks_that_do_not_fit_are_counted() -> None:
    """Two domains of five nodes hold four pairs, not five: a pair does not straddle them."""
    found = forest("sp", whole(A=5, B=5)).seat(nodes(10, layer("sp", 2)))

    assert found == NoFit((Fit("sp", ranks=2, fit=4, asked=5),))


def test_layers_are_counted_each_with_those_below_it() -> None:
    """Four GPUs in each of three racks: no block of six ranks in one rack, though six pairs fit on nodes."""
    place = forest("block rack", {"b/r1": [4], "b/r2": [4], "b/r3": [4]})

    found = place.seat(Ask(12, 1, (layer("block"), layer("rack", 6), layer("node", 2))))

    assert isinstance(found, NoFit)
    assert [(fit.level, fit.fit, fit.asked) for fit in found.fits] == [("block", 0, 1), ("rack", 0, 2), ("node", 6, 6)]


def test_ranks_follow_the_places_of_nodes() -> None:
    """The ranks of a block, and recursively of a larger block, are consecutive."""
    place = forest("sp rack", {f"s{sp}/r{rack}": [8, 8] for sp in range(2) for rack in range(2)})

    seats = place.seated(nodes(8, layer("sp", 4), layer("rack", 2))).seats

    assert seats == tuple((node, 1) for node in range(8))


class TestReserve:
    """Sections 1.7 and 3.5."""

    def test_the_last_idle_nodes_of_each_domain_are_kept(self) -> None:
        """Numbered from the end; a busy node is nobody's reserve."""
        place = forest("sp", {"A": [8, 8, 8, 0], "B": [8, 8]})

        kept = reserve_places(place.tree, place.free == 8, [("sp", None, 2)])

        assert kept.tolist() == [0, 2, 1, 0, 2, 1]

    def test_a_reserve_may_be_of_one_domain(self) -> None:
        """Named by its own name."""
        place = forest("sp", whole(A=2, B=2))

        assert reserve_places(place.tree, place.free == 8, [("sp", "B", 1)]).tolist() == [0, 0, 0, 1]

    def test_of_two_reserves_a_node_has_the_later_place(self) -> None:
        """The last node of a supernode that is also the last of its rack is the last to be used."""
        place = forest("sp rack", {"s/a": [8, 8], "s/b": [8, 8]})

        kept = reserve_places(place.tree, place.free == 8, [("sp", None, 2), ("rack", None, 1)])

        assert kept.tolist() == [0, 1, 2, 1]

    @pytest.mark.parametrize(
        ("free", "ask", "kept", "expected", "passes"),
        [
            (whole(A=3, B=2), nodes(2, layer("sp", 2)), 1, {"A": 2}, 1),
            (whole(A=3, B=2), nodes(4, layer("sp", 2)), 1, {"A": 2, "B": 2}, 2),
            (whole(A=6, B=5, C=4), nodes(8, layer("sp", 4)), 2, {"A": 4, "B": 4}, 2),
            (whole(A=2), nodes(2, layer("sp", 2)), 5, {"A": 2}, 2),
        ],
    )
    def test_it_is_drawn_on_only_in_need(
        self, free: dict[str, list[int]], ask: Ask, kept: int, expected: dict[str, int], passes: int
    ) -> None:
        """3.5: the second pass, and from whom it takes."""
        place = forest("sp", free)

        found = place.seated(ask, sp=kept)

        assert (place.counts(found, "sp"), found.passes) == (expected, passes)

    def test_all_domains_give_alike(self) -> None:
        """Six pairs with two nodes kept in each of three domains: each gives one, none gives both of its two."""
        place = forest("sp", whole(A=5, B=5, C=5))

        found = place.seated(nodes(12, layer("sp", 2)), sp=2)

        assert (place.counts(found, "sp"), found.passes) == ({"A": 4, "B": 4, "C": 4}, 2)

    def test_what_fits_beside_the_reserve_is_not_moved_onto_it(self) -> None:
        """Three pairs: A holds one and B holds one beside their reserve; the third draws on one domain alone."""
        place = forest("sp", whole(A=4, B=3))
        found = place.seated(nodes(6, layer("sp", 2)), sp=1)

        assert place.counts(found, "sp") == {"A": 4, "B": 2}


class TestWishes:
    """Layers that are preferred."""

    def test_a_wish_is_had_where_it_can_be(self) -> None:
        """mc-17: only G1 holds both groups."""
        place = forest("l2 l1", {"G0/a": [8] * 4, "G0/b": [8] * 3, "G1/c": [8] * 4, "G1/d": [8] * 4})

        found = place.seated(nodes(8, wish("l2"), layer("l1", 4)))

        assert place.counts(found, "l2") == {"G1": 8}
        assert found.relaxed == ()

    def test_a_wish_is_dropped_where_it_cannot(self) -> None:
        """mc-18: no l2 domain holds both groups, so what is required stands alone."""
        place = forest("l2 l1", {"G0/a": [8] * 4, "G0/b": [8] * 3, "G1/c": [8] * 4, "G1/d": [8] * 3})

        found = place.seated(nodes(8, wish("l2"), layer("l1", 4)))

        assert place.counts(found, "l1") == {"a": 4, "c": 4}
        assert found.relaxed == ((wish("l2"), None),)
        assert found.layers == (layer("l1", 4),)

    def test_a_wish_that_cannot_be_had_takes_the_next_coarser_level(self) -> None:
        """No rack holds four nodes, but a supernode does."""
        place = forest("sp rack", {"s/a": [8, 8], "s/b": [8, 8], "t/a": [8, 8, 8]})

        found = place.seated(nodes(4, wish("rack")))

        assert place.counts(found, "sp") == {"s": 4}
        assert found.relaxed == ((wish("rack"), "sp"),)

    def test_the_coarser_wish_is_settled_first(self) -> None:
        """One supernode, or pairs in racks: not both can be had, and the supernode was named first."""
        place = forest("sp rack", {"s/a": [8], "s/b": [8], "s/c": [8], "s/d": [8], "t/a": [8, 8], "u/a": [8, 8]})

        found = place.seated(nodes(4, wish("sp"), wish("rack", 2)))

        assert place.counts(found, "sp") == {"s": 4}
        assert found.relaxed == ((wish("rack", 2), "sp"),)

    def test_a_level_that_the_tree_lacks_is_not_had(self) -> None:
        """Required: no room. Preferred: dropped."""
        place = forest("sp", whole(A=2))

        assert place.seat(nodes(2, layer("hall", 2))) == NoFit((Fit("hall", 2, 0, 1),))
        assert place.seated(nodes(2, wish("hall"))).relaxed == ((wish("hall"), None),)


class TestSmallWork:
    """What fits on one node leaves whole domains whole."""

    def test_one_rank_goes_where_least_is_left(self) -> None:
        """B14 (b): of three supernodes with 2, 1 and 1 free nodes, the first with one."""
        place = forest("sp", {"s1": [8, 8], "s2": [8, 0], "s3": [8, 0]})

        assert place.by_node(place.seated(nodes(1, preference=BANDWIDTH))) == {"s2/0": 1}

    def test_the_tightest_node_comes_first(self) -> None:
        """Two GPUs fit exactly on a node of a supernode that is otherwise empty."""
        place = forest("sp", {"s1": [8, 2], "s2": [4, 0]})

        assert place.by_node(place.seated(Ask(2, 1, preference=BANDWIDTH))) == {"s1/1": 2}

    def test_one_node_satisfies_every_layer(self) -> None:
        """Four ranks that must share a rack sit on one node rather than on two."""
        place = forest("sp rack", {"s/a": [2, 2, 4]})

        assert place.by_node(place.seated(Ask(4, 1, (layer("rack"),)))) == {"s/a/2": 4}

    def test_larger_gangs_stay_together(self) -> None:
        """B14 (a) and (c): two nodes in the only supernode with two; four take that and one of each other."""
        place = forest("sp", {"s1": [8, 8], "s2": [8, 0], "s3": [8, 0]})

        assert place.by_node(place.seated(nodes(2, preference=BANDWIDTH))) == {"s1/0": 1, "s1/1": 1}
        seats = place.seated(nodes(4, preference=BANDWIDTH)).seats
        assert [place.names[index] for index, _ in seats] == ["s1/0", "s1/1", "s2/0", "s3/0"]


class TestBandwidthFirst:
    """The fewest domains, coarse to fine; strays; then what leaves the least over."""

    def test_the_last_part_goes_where_least_is_left(self) -> None:
        """kq-13: seven ranks on nodes with 3, 3, 2 and 1: the last takes the node with one."""
        place = forest("rack", {"r": [3, 3, 2, 1]})

        assert place.by_node(place.seated(Ask(7, 1, (layer("rack"),), preference=BANDWIDTH))) == {
            "r/0": 3,
            "r/1": 3,
            "r/3": 1,
        }

    def test_nodes_that_leave_no_stray_come_first(self) -> None:
        """kq-15: twelve ranks in pairs on nodes with 6, 5, 4, 3 and 2 take the even ones."""
        place = forest("rack", {"r": [6, 5, 4, 3, 2]})

        found = place.seated(Ask(12, 1, (layer("rack"), layer("node", 2)), preference=BANDWIDTH))

        assert place.by_node(found) == {"r/0": 6, "r/2": 4, "r/4": 2}

    def test_fewer_supernodes_come_before_fewer_racks(self) -> None:
        """Two racks of two supernodes hold four nodes, and so do three racks of one."""
        place = forest("sp rack", {"s/a": [8, 8], "s/b": [8], "s/c": [8], "t/a": [8, 8], "u/a": [8, 8]})

        found = place.seated(nodes(4, preference=BANDWIDTH))

        assert place.counts(found, "sp") == {"s": 4}
        assert found.key[:3] == (1, 3, 4)

    def test_a_key_longer_than_a_machine_word(self) -> None:
        """Many levels and many ranks: the parts of the key are still compared one after the other."""
        path = "/".join("abcdefg")
        place = forest("l1 l2 l3 l4 l5 l6 l7 l8", {f"{path}/{rack}": [16] * 40 for rack in "xyz"})

        found = place.seated(Ask(700, 1, (layer("node", 7),), preference=BANDWIDTH))

        assert place.counts(found, "l8") == {"x": 560, "y": 140}


class TestSymmetry:
    """Equally many ranks in each domain."""

    @pytest.mark.parametrize(
        ("counts", "group", "groups"), [((5, 5), 5, 2), ((8, 8, 4), 4, 5), ((4, 4, 2), 2, 5), ((4, 3, 3), 1, 10)]
    )
    def test_logical_groups(self, counts: tuple[int, ...], group: int, groups: int) -> None:
        """3.7: the greatest common divisor of the counts."""
        assert symmetric_counts(counts) == (group, groups)

    @pytest.mark.parametrize("preference", list(Preference))
    def test_unequal_parts_are_not_taken(self, preference: Preference) -> None:
        """Free 4, 3 and 3: six ranks as 3 and 3, nine as three times 3, ten not at all."""
        place = forest("sp", whole(A=4, B=3, C=3))

        def seat(ranks: int) -> dict[str, int]:
            return place.counts(place.seated(nodes(ranks, preference=preference, symmetric=True)), "sp")

        assert sorted(seat(6).values()) == [3, 3]
        assert seat(9) == {"A": 3, "B": 3, "C": 3}
        assert isinstance(place.seat(nodes(10, preference=preference, symmetric=True)), NoFit)

    def test_inside_one_domain_the_next_level_counts(self) -> None:
        """Six ranks in one supernode whose racks hold 4, 3 and 3: three in each of two racks."""
        place = forest("sp rack", {"s/a": [8] * 4, "s/b": [8] * 3, "s/c": [8] * 3})

        found = place.seated(nodes(6, layer("sp"), symmetric=True))

        assert set(place.counts(found, "rack").values()) == {3}


class TestGroups:
    """Ranks that are not all alike."""

    def test_a_leader_and_workers_share_a_rack(self) -> None:
        """kq-45: nodes with 2, 4 and 3 GPUs hold four workers of two and a leader of one only in one way."""
        place = forest("rack", {"r": [2, 4, 3]})
        groups = (Group(name="leader", ranks=1, gpus_per_rank=1), Group(name="worker", ranks=4, gpus_per_rank=2))

        found = place.seated(Ask(5, 1, (layer("rack"),), groups))

        assert found.seats[0] == (2, 1)
        assert dict(found.seats[1:]) == {0: 1, 1: 2, 2: 1}

    def test_larger_groups_choose_first(self) -> None:
        """vc-04: two pairs and a single, racks with 2, 2 and 1 nodes: the single takes the rack with one."""
        place = forest("sp rack", {"s/a": [2, 2], "s/b": [2, 2], "s/c": [2]})
        groups = tuple(
            Group(name=name, ranks=ranks, layers=(layer("rack"),)) for name, ranks in [("one", 1), ("p", 2), ("q", 2)]
        )

        found = place.seated(Ask(5, 2, (layer("sp"),), groups))

        assert place.names[found.seats[0][0]] == "s/c/0"
        assert violations(place.tree, Ask(5, 2, (layer("sp"),), groups), found.seats) == ()

    def test_that_they_do_not_fit_is_proven(self) -> None:
        """vc-05: the same without the third rack."""
        place = forest("sp rack", {"s/a": [2, 2], "s/b": [2, 2]})
        groups = tuple(
            Group(name=name, ranks=ranks, layers=(layer("rack"),)) for name, ranks in [("one", 1), ("p", 2), ("q", 2)]
        )

        found = place.seat(Ask(5, 2, (layer("sp"),), groups))

        assert isinstance(found, NoFit)
        assert found.proven

    def test_a_choice_that_leaves_no_room_is_taken_back(self) -> None:
        """A rack for three ranks of 2 GPUs, and 3 GPUs for one: if the first choice leaves no 3, it is taken back."""
        place = forest("rack", {"a": [2, 2, 2], "b": [2, 2, 3]})
        groups = (
            Group(name="three", ranks=3, gpus_per_rank=2, layers=(layer("rack"),)),
            Group(name="one", ranks=1, gpus_per_rank=3),
        )

        found = place.seated(Ask(4, 1, (), groups))

        assert place.by_node(found) == {"a/0": 1, "a/1": 1, "a/2": 1, "b/2": 1}

    def test_replicas_each_in_a_supernode(self) -> None:
        """A block of five ranks is a leader and its four workers: two such replicas share no supernode in part."""
        place = forest("sp", {"s": [8, 8, 1], "t": [8, 8, 1], "u": [8]})
        groups = tuple(
            group
            for replica in range(2)
            for group in (
                Group(name=f"leader-{replica}", ranks=1, gpus_per_rank=1),
                Group(name=f"worker-{replica}", ranks=4, gpus_per_rank=4),
            )
        )

        found = place.seated(Ask(10, 4, (layer("sp", 5),), groups))

        assert place.counts(found, "sp") == {"s": 5, "t": 5}
        assert [index for index, _ in found.seats] == [2, 0, 1, 5, 3, 4]

    def test_a_search_that_ends_early_says_so(self) -> None:
        """Forty groups of three GPUs and one that finds no room among as many nodes: too many ways to try them all."""
        place = forest("sp", {"s": [5] * 40})
        groups = tuple(Group(name=f"g{number}", ranks=1, gpus_per_rank=3) for number in range(40))
        pair = Group(name="pair", ranks=2, gpus_per_rank=2, layers=(layer("node"),))

        found = place.seat(Ask(42, 1, (), (*groups, pair)))

        assert isinstance(found, NoFit)
        assert not found.proven

    def test_wishes_of_groups(self) -> None:
        """The workers would like one rack, which none is large enough for: they get the supernode."""
        place = forest("sp rack", {"s/a": [8, 8], "s/b": [8, 8], "t/a": [8, 8]})
        workers = Group(name="workers", ranks=3, layers=(wish("rack"),))

        found = place.seated(Ask(4, 8, (), (Group(name="leader", ranks=1), workers)))

        assert found.relaxed == ((wish("rack"), "sp"),)
        assert {place.names[index][0] for index, _ in found.seats[1:]} == {"s"}


class TestViolations:
    """Whether seats keep what was asked."""

    def test_each_block_is_named(self) -> None:
        """Ranks 2 and 3 are in two racks."""
        place = forest("rack", whole(a=3, b=1))
        ask = nodes(4, layer("rack", 2), wish("rack"))

        assert [
            (v.level, v.first, v.ranks, v.domains) for v in violations(place.tree, ask, [(0, 2), (2, 1), (3, 1)])
        ] == [("rack", 2, 2, 2)]

    def test_a_level_that_is_gone_is_not_kept(self) -> None:
        """After a change of the policy's levels."""
        place = forest("rack", whole(a=2))

        assert violations(place.tree, nodes(2, layer("sp")), [(0, 1), (1, 1)])

    def test_all_ranks_must_have_a_seat(self) -> None:
        """Otherwise nothing is known of the rest."""
        with pytest.raises(ValueError, match="1 ranks have a seat, but the gang has 2"):
            violations(forest("rack", whole(a=2)).tree, nodes(2), [(0, 1)])


def test_no_nodes() -> None:
    """mc-02: an empty tree holds nothing."""
    assert isinstance(forest("sp", {}).seat(nodes(2, layer("sp", 2))), NoFit)


def test_what_is_given_is_not_changed() -> None:
    """Free GPUs are read only, also while groups are packed."""
    place = forest("rack", {"a": [2, 2, 2], "b": [2, 2, 3]})
    before = place.free.copy()

    place.seat(Ask(4, 1, (), (Group(name="a", ranks=3, gpus_per_rank=2), Group(name="b", ranks=1, gpus_per_rank=3))))

    assert np.array_equal(place.free, before)


def test_what_happens_to_a_node_changes_one_entry_and_no_tree() -> None:
    """However deep the tree and however many shapes wait: the search adds up. A node that joins cuts the tree anew."""
    rows = [node(f"n{number}", domains=(f"s{number // 4}", f"r{number // 2}")) for number in range(8)]
    story = Story(adopted(levels=(Levels(names=("supernode", "rack")),)), rows)
    (pool,) = story.state.inventory.pools.values()
    tree, before = pool.tree, pool.free.gpus.copy()

    story.tell(drained("n5", Drain.SOFT))

    assert np.flatnonzero(pool.free.gpus != before).tolist() == [5]
    assert pool.tree is tree
    story.tell(node("n9", domains=("s2", "r4")))
    (pool,) = story.state.inventory.pools.values()
    assert pool.tree.nodes == 9
