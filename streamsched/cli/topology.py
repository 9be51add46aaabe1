"""Commands and options about the network: what a gang asks of it, what it is, and that it is not what nodes report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamsched.cli.answering import asking, place_at, print_answer, print_receipt
from streamsched.cli.options import DEFAULT_PLACE, Actor, AsJson, At, From, To

_PANEL = "Topology"

Layers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LEVEL[=RANKS][:preferred]",
        rich_help_panel=_PANEL,
        help="Each block of so many ranks, or the whole gang, shares one domain of a level; may be repeated, coarse to "
        "fine. Required unless :preferred.",
    ),
]
Groups = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=RANKS[xGPUS][@LAYER,...]",
        rich_help_panel=_PANEL,
        help="A role: the next so many ranks, with GPUs and layers of its own; may be repeated, in rank order.",
    ),
]
Preferred = Annotated[
    str | None,
    typer.Option(
        metavar="utilization_first|bandwidth_first",
        rich_help_panel=_PANEL,
        help="What is better among the places that the layers allow: to waste least of what others could use, or to "
        "touch the fewest domains. The policy's when absent.",
    ),
]
Symmetric = Annotated[
    bool,
    typer.Option(
        "--symmetric", rich_help_panel=_PANEL, help="Each domain that it uses must take equally many of its ranks."
    ),
]
RecoveryOption = Annotated[
    str | None,
    typer.Option(
        "--recovery",
        metavar="in_place|widening|anywhere",
        rich_help_panel=_PANEL,
        help="How far it may move when it has lost a node. The policy's when absent.",
    ),
]
TopologyFile = Annotated[
    Path | None,
    typer.Option(
        "--topology", metavar="FILE", rich_help_panel=_PANEL, help="The same as TOML, or JSON where it ends in .json."
    ),
]


def topology(
    level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Down to this level; otherwise all of them.")
    ] = None,
    source: From = DEFAULT_PLACE,
    at: At = None,
    as_json: AsJson = False,
) -> None:
    """Show the topology trees: their levels, their domains, and how much room is in each.

    Nodes report their domains, or are relabelled (`streamsched node relabel`); what the levels are called is a knob of
    the policy (`levels`). A gang is placed in one tree. Whole nodes are those that take work and have none.

    JSON: `{"cursor", "at_ms", "trees": [{"pool", "tree", "levels", "domains": [...]}, ...]}`, coarse before fine.

    Examples: `streamsched topology`, `streamsched topology --level supernode --json`
    """
    from streamsched.cli import topology_screens
    from streamsched.errors import RequestError

    with asking(source, at) as place:
        answer = topology_screens.trees_of(place.nodes(), place.policy().policy)
    known = tuple(dict.fromkeys(name for tree in answer.trees for name in tree.levels))
    if level is not None and level not in known:
        raise RequestError("invalid", f"--level is {level!r}; the levels are {', '.join(known) or 'without names'}.")
    answer = topology_screens.down_to(answer, level)
    print_answer(answer, topology_screens.trees(answer), as_json)


def relabel(
    reason: Annotated[str, typer.Option(help="Why; it is kept in the ledger.")],
    node: Annotated[list[str] | None, typer.Argument(help="Nodes that are in the same place.")] = None,
    domains: Annotated[
        str | None, typer.Option(metavar="A/B/...", help="Their domains, coarse to fine; as they report when absent.")
    ] = None,
    tree: Annotated[str | None, typer.Option(help="Their tree; as they report when absent.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Or one place for each node: JSON, [{"node", "tree", "domains"}, ...].'),
    ] = None,
    actor: Actor = None,
    to: To = DEFAULT_PLACE,
    as_json: AsJson = False,
) -> None:
    """Say where nodes are in the network, whatever they report: a fault has split a tree, or it is merged again.

    All at once, and until the next such order. Without --domains and --tree, nodes are again where they report to be.
    Runs go on where they are; one whose nodes are no longer together as it needs them is marked as straddling.

    Examples: `streamsched node relabel n17 n18 --tree cut-off --reason "spine 3 is down"`,
    `streamsched node relabel n17 n18 --reason "spine 3 is up again"`,
    `streamsched node relabel --file places.json --reason "recabled"`
    """
    from streamsched.cli.topology_requests import labels_of
    from streamsched.client.requests import checked, new_id
    from streamsched.model.events import NodesRelabelled

    labels = tuple(labels_of(node or (), file, domains=domains, tree=tree))
    event = checked(NodesRelabelled, {"labels": labels, "reason": reason, "actor": actor, "corr": new_id()})
    count = f"{len(labels)} node{'s' * (len(labels) != 1)}"
    print_receipt(place_at(to).control(event), f"places of {count}", as_json)
