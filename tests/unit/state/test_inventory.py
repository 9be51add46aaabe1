"""The index of free GPUs: what it remembers stays right when nodes come, and when none may be used."""

from __future__ import annotations

from streamsched.model.events import Event, Record
from streamsched.state.invariants import check
from tests.stories import Story, budgets, drained, node


def test_no_nodes_hold_no_ranks() -> None:
    """However many fit on all of them."""
    story = Story(budgets(a=1), node("n1"), node("n2"))
    free = story.state.inventory.pools["h100"].free
    assert free.slots(8) == 2

    assert free.slots_on(8, 0) == 0


def test_a_node_that_comes_in_between_moves_the_others_up() -> None:
    """What was counted for a set of nodes counts for those positions, not for those nodes."""
    story = Story(budgets(a=1), node("n1"), node("n3"), drained("n3"))
    free = story.state.inventory.pools["h100"].free
    assert free.slots_on(8, 0b10) == 0, "n3 is drained"

    story.tell(node("n2"))
    assert free.slots_on(8, 0b10) == 1, "n2"
    assert free.slots_on(8, 0b100) == 0, "n3"


def test_nodes_find_their_places_in_whatever_order_they_join() -> None:
    """They are filed when somebody looks: all at once, or one by one, and some leave for another pool between."""
    reports = [node(f"n{number}", domains=(f"s{number % 3}",), gpus=number % 5) for number in range(1, 10)]
    at_once, one_by_one = Story(budgets(a=1)), Story(budgets(a=1))
    for report in reports:
        fold(at_once, report)
    for report in reversed(reports):
        one_by_one.tell(report)
    moved = node("n4", domains=("s0",), pool="a100")
    for story in (at_once, one_by_one):
        fold(story, moved)
        fold(story, node("n5", domains=("s0", "r9"), gpus=8))

    for story in (at_once, one_by_one):
        pool = story.state.inventory.pools["h100"]
        # By domains first: s0 has n3, n6, n9 and n5 in its rack; s1 has n1, n7; s2 has n2, n8.
        assert [n.id for n in pool.nodes] == ["n3", "n6", "n9", "n5", "n1", "n7", "n2", "n8"]
        assert pool.free.gpus.tolist() == [3, 1, 4, 8, 1, 2, 2, 3]
        assert pool.free.nodes[1] == 0b10010
        assert pool.working == 0xFF
        check(story.state)


def test_a_pool_ends_with_its_last_node() -> None:
    """Filed or not."""
    story = Story(budgets(a=1))
    fold(story, node("n1"))
    fold(story, node("n1", pool="a100"))
    assert list(story.state.inventory.pools) == ["a100"]
    fold(story, node("n1", pool="h100"))
    assert list(story.state.inventory.pools) == ["h100"]
    check(story.state)


def fold(story: Story, event: Event) -> None:
    """Fold an event and look at nothing: a story checks the state after each of its events, and so files the nodes."""
    story.state.apply(Record(cursor=story.state.next_cursor, append_ms=story.state.now_ms, event=event))
