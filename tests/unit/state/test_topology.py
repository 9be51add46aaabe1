"""The topology tree of a pool: nodes in the order of their places, cut into domains."""

from __future__ import annotations

from streamsched.model.policy import Levels
from streamsched.state.topology import PoolTree
from tests.stories import Story, adopted, budgets, node

LEVELS = (Levels(names=("supernode", "rack")),)


def tree_of(*domains: tuple[str, ...]) -> PoolTree:
    """Return the tree of nodes n1, n2, ... that report these domains."""
    reports = [node(f"n{number}", domains=path) for number, path in enumerate(domains, 1)]
    return Story(budgets(a=1), adopted(levels=LEVELS), reports).state.inventory.pools["h100"].tree


def test_each_domain_is_a_stretch_of_nodes() -> None:
    """Two racks of s1, with one node each, and one rack of s2 with two."""
    tree = tree_of(("s2", "r1"), ("s1", "r2"), ("s1", "r1"), ("s2", "r1"))

    assert tree.levels == ("supernode", "rack")
    assert [starts.tolist() for starts in tree.starts] == [[0, 2, 4], [0, 1, 2, 4]]
    assert [of.tolist() for of in tree.domain_of] == [[0, 0, 1, 1], [0, 1, 2, 2]]
    assert tree.paths == ((("s1",), ("s2",)), (("s1", "r1"), ("s1", "r2"), ("s2", "r1")))


def test_a_rack_of_one_supernode_is_none_of_another() -> None:
    """Domains are told apart by their whole path: r1 of s1 and r1 of s2 are two racks."""
    tree = tree_of(("s1", "r1"), ("s2", "r1"))

    assert tree.starts[1].tolist() == [0, 1, 2]


def test_a_node_that_names_fewer_domains_is_alone_there() -> None:
    """N1 and n2 say only that they are in s1: each is a rack of its own. N4 says nothing at all."""
    tree = tree_of(("s1",), ("s1",), ("s1", "r1"), ())

    assert [starts.tolist() for starts in tree.starts] == [[0, 1, 4], [0, 1, 2, 3, 4]]
    assert tree.paths[0] == (("n4",), ("s1",))
    assert tree.paths[1] == (("n4", "n4"), ("s1", "n1"), ("s1", "n2"), ("s1", "r1"))


def test_domains_beyond_the_last_level_are_not_looked_at() -> None:
    """Both nodes are in r1, whatever shelf they are on."""
    tree = tree_of(("s1", "r1", "shelf-1"), ("s1", "r1", "shelf-2"))

    assert tree.starts[1].tolist() == [0, 2]


def test_another_policy_names_other_levels() -> None:
    """The tree follows at once, and again when a node joins."""
    story = Story(budgets(a=1), node("n1", domains=("s1", "r1")), node("n2", domains=("s1", "r2")))
    assert story.state.inventory.pools["h100"].tree.levels == ()

    story.tell(adopted(levels=LEVELS))
    assert story.state.inventory.pools["h100"].tree.starts[1].tolist() == [0, 1, 2]

    story.tell(node("n3", domains=("s1", "r1")), adopted(levels=(Levels(names=("hall",)),)))
    tree = story.state.inventory.pools["h100"].tree
    assert (tree.levels, tree.starts[0].tolist()) == (("hall",), [0, 3])


def test_a_pool_may_have_no_nodes_in_a_tree() -> None:
    """An empty tree has no domains."""
    tree = PoolTree(("rack",), [])

    assert (tree.nodes, tree.starts[0].tolist(), tree.domain_of[0].tolist()) == (0, [0], [])
