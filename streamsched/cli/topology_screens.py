"""Topology trees as values and as text: the domains of each level, and the room in them."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from streamsched.cli.screens import as_of, table_of
from streamsched.model.policy import Policy
from streamsched.model.quantities import counted
from streamsched.replay.answers import Answer, AsOf, Machine, Nodes
from streamsched.state.standing import NodeState


class Domain(Answer):
    """One domain.

    Attributes:
        path: The names from the coarsest level down to its own.
        level: Its own.
        nodes: How many nodes are in it.
        in_use: How many of them take work.
        whole: How many of those have none.
        gpus: Of all its nodes.
        free: Of those that take work.
    """

    path: tuple[str, ...]
    level: str
    nodes: int
    in_use: int
    whole: int
    gpus: int
    free: int


class Tree(Answer):
    """The nodes of one kind in one tree.

    Attributes:
        pool: The kind of GPU.
        tree: Absent where trees have no names.
        levels: What they are called, coarse to fine, without the node.
        total: The whole tree as one domain.
        domains: Each before those inside it.
    """

    pool: str
    tree: str | None
    levels: tuple[str, ...]
    total: Domain
    domains: tuple[Domain, ...]


class Trees(AsOf):
    """All trees, in the order of their names."""

    trees: tuple[Tree, ...]


def trees_of(answer: Nodes, policy: Policy) -> Trees:
    """Return the trees that some machines make with the levels of a policy.

    A node that reports fewer domains than there are levels is alone at the others, in a domain of its own name.
    """
    machines: dict[tuple[str, str], list[Machine]] = {}
    for machine in answer.nodes:
        machines.setdefault((machine.pool, machine.tree or ""), []).append(machine)
    found = [_tree(pool, tree or None, policy.levels_of(pool), machines[pool, tree]) for pool, tree in sorted(machines)]
    return Trees(cursor=answer.cursor, at_ms=answer.at_ms, trees=tuple(found))


def down_to(answer: Trees, level: str | None) -> Trees:
    """Return the trees without what is finer than a level; those that do not have it as they are."""
    kept = []
    for tree in answer.trees:
        depth = tree.levels.index(level) + 1 if level in tree.levels else len(tree.levels)
        inside = tuple(domain for domain in tree.domains if len(domain.path) <= depth)
        kept.append(tree.model_copy(update={"domains": inside}))
    return answer.model_copy(update={"trees": tuple(kept)})


def trees(answer: Trees) -> RenderableType:
    """Return the trees as tables, finer domains indented below the coarser."""
    parts: list[RenderableType] = []
    for tree in answer.trees:
        levels = " > ".join((*tree.levels, "node")) if tree.levels else "its levels have no names"
        title = tree.pool if tree.tree is None else f"{tree.pool}, tree {tree.tree}"
        rows = [_row("(all)", tree.total)]
        rows += [_row("  " * len(domain.path) + domain.path[-1], domain) for domain in tree.domains]
        columns = ("domain", "level", ">nodes", ">in use", ">whole", ">GPUs", ">free")
        parts += [Text(f"{title}: {levels}", "bold"), table_of(columns, rows)]
    domains = sum(len(tree.domains) for tree in answer.trees)
    return Group(*parts, as_of(answer, f"{counted(len(answer.trees), 'tree')}, {counted(domains, 'domain')}"))


def _row(name: str, domain: Domain) -> tuple[str, ...]:
    counts = (domain.nodes, domain.in_use, domain.whole, domain.gpus, domain.free)
    return (name, domain.level, *map(str, counts))


def _tree(pool: str, tree: str | None, levels: tuple[str, ...], machines: list[Machine]) -> Tree:
    inside: dict[tuple[str, ...], list[Machine]] = {}
    for machine in machines:
        path = (*machine.domains[: len(levels)], *[machine.node] * (len(levels) - len(machine.domains)))
        for depth in range(1, len(levels) + 1):
            inside.setdefault(path[:depth], []).append(machine)
    return Tree(
        pool=pool,
        tree=tree,
        levels=levels,
        total=_domain((), "", machines),
        domains=tuple(_domain(path, levels[len(path) - 1], inside[path]) for path in sorted(inside)),
    )


def _domain(path: tuple[str, ...], level: str, machines: list[Machine]) -> Domain:
    used = [machine for machine in machines if machine.state is NodeState.HEALTHY]
    return Domain(
        path=path,
        level=level,
        nodes=len(machines),
        in_use=len(used),
        whole=sum(machine.free == machine.gpus for machine in used),
        gpus=sum(machine.gpus for machine in machines),
        free=sum(machine.free for machine in used),
    )
