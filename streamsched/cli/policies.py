"""The commands about the policy: show the one in force, list those that have a name, adopt another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamsched.cli.answering import asking, place_at, print_answer, print_receipt
from streamsched.cli.options import DEFAULT_PLACE, Actor, AsJson, At, From, Knobs, To

if TYPE_CHECKING:
    from streamsched.model.policy import Policy

app = typer.Typer(help="Show and change how a cluster is scheduled.", no_args_is_help=True)

_Name = Annotated[
    str | None, typer.Argument(metavar="[NAME|FILE]", help="A policy that has a name, or a TOML file of knobs.")
]


@app.command("show")
def show(name: _Name = None, source: From = DEFAULT_PLACE, at: At = None, as_json: AsJson = False) -> None:
    """Show the policy in force, knob by knob; or one that has a name, or is in a file.

    A star marks the knobs that differ from the default policy.

    JSON: `{"cursor", "at_ms", "version", "policy"}`; of a named one, the policy alone.

    Examples: `streamsched policy show`, `streamsched policy show hour_by_hour`,
    `streamsched policy show --from streamsched-data --at 4711`
    """
    from streamsched.cli import policy_screens
    from streamsched.cli.policy_files import read_policy

    if name is not None:
        policy = read_policy(name)
        print_answer(policy, policy_screens.policy(policy), as_json)
        return
    with asking(source, at) as place:
        answer = place.policy()
    print_answer(answer, policy_screens.in_force(answer), as_json)


@app.command("list")
def list_() -> None:
    """List the policies that have a name, and what each changes of the default.

    Example: `streamsched policy list`
    """
    from streamsched.cli import policy_screens, screens

    screens.show(policy_screens.named())


@app.command("adopt")
def adopt(
    name: _Name = None,
    knobs: Knobs = None,
    reason: Annotated[
        str | None, typer.Option(help="Why; it is kept in the ledger. Required without --dry-run.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    actor: Actor = None,
    to: To = DEFAULT_PLACE,
    as_json: AsJson = False,
) -> None:
    """Adopt a policy, whole and at one instant. Protection that was given is kept.

    With a NAME or a FILE the policy is that one, with --set on top of it. Without, it is the one in force with the
    knobs that --set changes. A file is TOML: `window_ms = "5d"`, and `base = "hour_by_hour"` where it begins with a
    named one. Nothing is adopted where nothing would change.

    JSON: the receipt; with --dry-run, or where nothing would change, `{"changes": [{"knob", "before", "after"}, ...]}`.

    Examples: `streamsched policy adopt hour_by_hour --reason "deliver what is due in its hour"`,
    `streamsched policy adopt --set window_ms=5d --set reservations=4 --dry-run`
    """
    from streamsched.cli import policy_screens
    from streamsched.cli.policy_files import Changes, changes, read_policy
    from streamsched.client.requests import checked, new_id
    from streamsched.errors import RequestError
    from streamsched.model.events import PolicyAdopted

    if name is None and not knobs:
        raise RequestError(
            "invalid", "nothing to adopt: name a policy (`streamsched policy list`), or set a knob with --set."
        )
    if reason is None and not dry_run:
        raise RequestError(
            "invalid", "--reason is missing; say why, it is kept in the ledger. Or look first with --dry-run."
        )
    place = place_at(to)
    before: Policy = place.policy().policy
    after = read_policy(name, knobs or (), base=before)
    changed = Changes(changes=changes(before, after))
    if dry_run or not changed.changes:
        print_answer(changed, policy_screens.changes(changed), as_json)
        return
    fields = {"policy": after, "reason": reason, "actor": actor, "corr": new_id()}
    receipt = place.control(checked(PolicyAdopted, fields))
    told = ", ".join(f"{change.knob} {change.before} → {change.after}" for change in changed.changes)
    print_receipt(receipt, f"policy with {told}", as_json)
