"""The index of free GPUs: what it remembers stays right when nodes come, and when none may be used."""

from __future__ import annotations

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
