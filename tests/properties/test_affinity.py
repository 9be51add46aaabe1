"""Laws of the search for seats in topology trees, each against a search that simply tries everything."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamsched.model.topology import NODE, Group, Layer, Preference
from streamsched.scheduling.affinity import Ask, NoFit, Seating, domain_counts, seat_gang, violations
from streamsched.scheduling.decision import decide
from streamsched.scheduling.placement import ask_of
from streamsched.state.inventory import Node
from streamsched.state.snapshot import freeze, thaw
from streamsched.state.topology import PoolTree
from tests.properties.histories import History, histories

LEVELS = ("hall", "row", "rack")

#: Free GPUs by path of a finest domain.
Free = dict[tuple[str, ...], list[int]]


@st.composite
def places(draw: st.DrawFn, most_nodes: int, most_gpus: int = 4, depth: int | None = None) -> tuple[int, Free]:
    """A depth, and nodes in domains of that depth with what they have free."""
    depth = draw(st.integers(1, 3)) if depth is None else depth
    free: Free = {}
    for _ in range(draw(st.integers(1, most_nodes))):
        path = tuple(f"{name}{draw(st.integers(0, 2))}" for name in "hrk"[:depth])
        free.setdefault(path, []).append(draw(st.integers(0, most_gpus)))
    return depth, free


@st.composite
def layers(draw: st.DrawFn, levels: tuple[str, ...], ranks: int) -> tuple[Layer, ...]:
    """Required layers of some levels, each of whose blocks divides the one before."""
    chosen = []
    size = ranks
    for level in (*levels, NODE):
        if draw(st.booleans()):
            size = draw(st.sampled_from([part for part in range(1, size + 1) if size % part == 0]))
            chosen.append(Layer(level=level, ranks=size))
    return tuple(chosen)


def planted(depth: int, free: Free) -> tuple[PoolTree, list[int]]:
    """Return the tree of these nodes and what they have free, in the order of their places."""
    nodes = [
        (Node(f"n{number}", "gpu", 16, path, now_ms=0), gpus)
        for path, gpus_of in free.items()
        for number, gpus in enumerate(gpus_of)
    ]
    nodes.sort(key=lambda entry: entry[0].place_key)
    return PoolTree(LEVELS[:depth], [node for node, _ in nodes]), [gpus for _, gpus in nodes]


def domains(tree: PoolTree) -> list[list[int]]:
    """Return the domain of each node at each level, the node itself last."""
    return [*(of_node.tolist() for of_node in tree.domain_of), list(range(tree.nodes))]


def sizes(tree: PoolTree, asked: tuple[Layer, ...]) -> list[int]:
    """Return the ranks of a block at each level, the node last: as large as what shares a finer domain, at least."""
    names = (*tree.levels, NODE)
    named = {layer.level: layer.ranks or 1 for layer in asked}
    return [max(named.get(name, 1) for name in names[depth:]) for depth in range(len(names))]


def all_ways(slots: list[int], ranks: int) -> Iterator[tuple[int, ...]]:
    """Yield every number of ranks on each node."""
    if not slots:
        if ranks == 0:
            yield ()
        return
    for here in range(min(slots[0], ranks) + 1):
        for rest in all_ways(slots[1:], ranks - here):
            yield (here, *rest)


def key_of(
    tree: PoolTree, slots: list[int], asked: tuple[Layer, ...], ranks: int, way: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the key of a placement, from its definition: domains used, strays afterwards, room before."""
    of_node, blocks_of = domains(tree), sizes(tree, asked)
    used = [{where[node] for node, here in enumerate(way) if here} for where in of_node]
    left = [before - here for before, here in zip(slots, way, strict=True)]
    units = {(len(of_node) - 1, node): free // blocks_of[-1] for node, free in enumerate(left)}
    strays = sum(left[node] % blocks_of[-1] for node in used[-1])
    for depth in range(len(of_node) - 2, -1, -1):
        ratio = blocks_of[depth] // blocks_of[depth + 1]
        for domain in set(of_node[depth]):
            children = {of_node[depth + 1][node] for node in range(len(slots)) if of_node[depth][node] == domain}
            whole, stray = divmod(sum(units[depth + 1, child] for child in children), ratio)
            units[depth, domain] = whole
            strays += stray * blocks_of[depth + 1] * (domain in used[depth])
    strays += sum(units[0, domain] for domain in set(of_node[0])) % (ranks // blocks_of[0]) * blocks_of[0]
    room = sum(slots) + sum(
        slots[node]
        for where, here in zip(of_node, used, strict=True)
        for node in range(len(slots))
        if where[node] in here
    )
    return (*map(len, used), strays, room)


@settings(max_examples=150)
@given(data=st.data(), place=places(most_nodes=7), ranks=st.integers(1, 8), preference=st.sampled_from(Preference))
def test_a_gang_of_equal_ranks_has_room_exactly_if_some_way_keeps_its_layers(
    data: st.DataObject, place: tuple[int, Free], ranks: int, preference: Preference
) -> None:
    """And then its seats are such a way, with its ranks in the order of the places; symmetric or not."""
    tree, slots = planted(*place)
    asked = data.draw(layers(tree.levels, ranks))
    ask = Ask(ranks, 1, asked, preference=preference, symmetric=data.draw(st.booleans()))

    found = seat_gang(tree, np.array(slots), ask)

    lawful = [
        way
        for way in all_ways(slots, ranks)
        if not violations(tree, ask, [(node, here) for node, here in enumerate(way) if here])
    ]
    assert isinstance(found, Seating) == bool(lawful)
    if isinstance(found, Seating):
        held = dict(found.seats)
        assert tuple(held.get(node, 0) for node in range(len(slots))) in lawful
        assert [node for node, _ in found.seats] == sorted(held)


@settings(max_examples=150)
@given(data=st.data(), place=places(most_nodes=7), ranks=st.integers(2, 8))
def test_bandwidth_first_finds_the_least_key(data: st.DataObject, place: tuple[int, Free], ranks: int) -> None:
    """No way to seat the gang has a lesser key than the one that is found, and the key that is told is its own."""
    tree, slots = planted(*place)
    asked = data.draw(layers(tree.levels, ranks))
    ask = Ask(ranks, 1, asked, preference=Preference.BANDWIDTH_FIRST)

    found = seat_gang(tree, np.array(slots), ask)

    if isinstance(found, NoFit):
        return
    held = dict(found.seats)
    own = key_of(tree, slots, asked, ranks, tuple(held.get(node, 0) for node in range(len(slots))))
    assert found.key == own
    if max(slots) < ranks:
        lawful = [
            way
            for way in all_ways(slots, ranks)
            if not violations(tree, ask, [(node, here) for node, here in enumerate(way) if here])
        ]
        assert own == min(key_of(tree, slots, asked, ranks, way) for way in lawful)


@settings(max_examples=60)
@given(data=st.data(), place=places(most_nodes=60, most_gpus=9), ranks=st.sampled_from([12, 16, 24, 30, 36]))
def test_bandwidth_first_finds_the_least_key_in_larger_trees(
    data: st.DataObject, place: tuple[int, Free], ranks: int
) -> None:
    """The same against a knapsack that knows nothing of what can be left out."""
    tree, slots = planted(*place)
    asked = data.draw(layers(tree.levels, ranks))
    found = seat_gang(tree, np.array(slots), Ask(ranks, 1, asked, preference=Preference.BANDWIDTH_FIRST))

    if isinstance(found, NoFit) or max(slots) >= ranks:
        return
    held = dict(found.seats)
    own = key_of(tree, slots, asked, ranks, tuple(held.get(node, 0) for node in range(len(slots))))
    least = least_counts_and_room(tree, slots, asked, ranks)
    assert (*own[: len(tree.levels) + 1], own[-1] if not asked else 0) == (*least[:-1], least[-1] if not asked else 0)


def least_counts_and_room(tree: PoolTree, slots: list[int], asked: tuple[Layer, ...], ranks: int) -> tuple[int, ...]:
    """Return the least numbers of domains used, coarse to fine, and the least room in them, strays apart."""
    of_node, blocks_of = [[0] * len(slots), *domains(tree)], [ranks, *sizes(tree, asked)]
    depths = len(of_node)

    @cache
    def best(depth: int, domain: int) -> dict[int, tuple[int, ...]]:
        """Return by number of ranks in a domain, in whole blocks, the least counts below it and room in it."""
        inside = [node for node in range(len(slots)) if of_node[depth][node] == domain]
        room = sum(slots[node] for node in inside)
        mine = tuple(int(depth == level) for level in range(1, depths))
        if depth == depths - 1:
            size = blocks_of[-1]
            return {0: (0,) * depths} | dict.fromkeys(range(size, slots[domain] + 1, size), (*mine, room))
        shared: dict[int, tuple[int, ...]] = {0: (0,) * depths}
        for child in sorted({of_node[depth + 1][node] for node in inside}):
            after = dict(shared)
            for (taken, key), (more, costs) in product(shared.items(), best(depth + 1, child).items()):
                total = tuple(one + other for one, other in zip(key, costs, strict=True))
                if taken + more <= ranks and (taken + more not in after or total < after[taken + more]):
                    after[taken + more] = total
            shared = after
        return {
            taken: tuple(one + other for one, other in zip(key, (*mine, room), strict=True)) if taken else key
            for taken, key in shared.items()
            if taken % blocks_of[depth] == 0
        }

    return best(0, 0)[ranks]


@settings(max_examples=60)
@given(data=st.data(), place=places(most_nodes=12), ranks=st.integers(2, 12), preference=st.sampled_from(Preference))
def test_the_order_in_which_nodes_came_does_not_matter(
    data: st.DataObject, place: tuple[int, Free], ranks: int, preference: Preference
) -> None:
    """Ties go by place."""
    depth, free = place
    tree, slots = planted(depth, free)
    other_tree, other_slots = planted(depth, dict(data.draw(st.permutations(list(free.items())))))
    ask = Ask(ranks, 1, data.draw(layers(tree.levels, ranks)), preference=preference)

    assert seat_gang(tree, np.array(slots), ask) == seat_gang(other_tree, np.array(other_slots), ask)


@settings(max_examples=60)
@given(data=st.data(), place=places(most_nodes=5, depth=2))
def test_unequal_groups_have_room_exactly_if_some_way_keeps_their_layers(
    data: st.DataObject, place: tuple[int, Free]
) -> None:
    """Every rank is tried on every node. Where the search says that it has not proven it, nothing is claimed."""
    tree, free = planted(*place)
    numbers = data.draw(st.sampled_from([(1, 1), (1, 2), (2, 2), (1, 3), (1, 1, 2), (2, 3)]))
    groups = tuple(
        Group(
            name=f"g{number}",
            ranks=ranks,
            gpus_per_rank=data.draw(st.integers(1, 3)),
            layers=data.draw(layers(tree.levels, ranks)),
        )
        for number, ranks in enumerate(numbers)
    )
    total = sum(numbers)
    scope = data.draw(st.sampled_from([(), (Layer(level="hall"),), (Layer(level="row", ranks=2),)]))
    ask = Ask(
        total,
        1,
        tuple(layer for layer in scope if layer.level in tree.levels and total % (layer.ranks or 1) == 0),
        groups,
    )

    found = seat_gang(tree, np.array(free), ask)

    needed = [group.gpus_per_rank or 1 for group in groups for _ in range(group.ranks)]
    if isinstance(found, Seating):
        on_nodes = [node for node, ranks in found.seats for _ in range(ranks)]
        assert is_lawful(tree, free, ask, needed, on_nodes)
    elif found.proven:
        ways = product(range(tree.nodes), repeat=total)
        assert not any(is_lawful(tree, free, ask, needed, way) for way in ways)


def is_lawful(
    tree: PoolTree, free: list[int], ask: Ask, needed: list[int], on_nodes: tuple[int, ...] | list[int]
) -> bool:
    """Whether ranks on these nodes have the GPUs they need and keep all layers."""
    taken = [0] * len(free)
    for node, gpus in zip(on_nodes, needed, strict=True):
        taken[node] += gpus
    return all(a <= b for a, b in zip(taken, free, strict=True)) and not violations(
        tree, ask, [(n, 1) for n in on_nodes]
    )


@settings(max_examples=60)
@given(
    place=places(most_nodes=10), ranks=st.integers(2, 6), kept=st.integers(1, 3), preference=st.sampled_from(Preference)
)
def test_a_reserve_is_used_only_in_need(place: tuple[int, Free], ranks: int, kept: int, preference: Preference) -> None:
    """It takes reserved nodes exactly if it does not fit beside them, and fits with them whenever it fits at all."""
    tree, free = planted(*place)
    slots = np.array(free)
    reserve = np.arange(tree.nodes) % (kept + 1)
    ask = Ask(ranks, 1, (), preference=preference)

    found = seat_gang(tree, slots, ask, reserve)

    fits_beside = int(slots[reserve == 0].sum()) >= ranks
    assert isinstance(found, Seating) == (int(slots.sum()) >= ranks)
    if isinstance(found, Seating):
        assert found.passes == (1 if fits_beside else 2)
        assert not fits_beside or not any(reserve[node] for node, _ in found.seats)
        assert sum(domain_counts(tree, found.seats)[tree.levels[0]].values()) == ranks


@given(histories())
def test_whatever_happened_before_a_gang_that_is_placed_has_what_it_requires(history: History) -> None:
    """Nodes came, went and failed, levels were renamed, gangs recovered: each block still shares its domain."""
    every = max(1, len(history.records) // 10)
    for folded, record, _ in history.folded():
        if record.cursor % every:
            continue
        state = thaw(freeze(folded))
        proposal = decide(state)
        for placement in proposal.placements if proposal is not None else ():
            workload = state.workloads[placement.workload]
            nodes = [state.nodes[seat.node] for seat in placement.seats]
            pool = state.inventory.pools[nodes[0].home]
            seats = [(node.index, 1) for node in nodes]
            assert {node.home for node in nodes} == {pool.id}
            assert violations(pool.tree, ask_of(workload, state.policy), seats) == ()
