"""Policies as text: every knob with what it does, and what one policy changes of another."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from streamsched.cli import policy_files
from streamsched.cli.policy_files import Changes, written
from streamsched.cli.screens import as_of
from streamsched.model.policy import DEFAULT_POLICY, NAMED_POLICIES, Policy
from streamsched.replay.answers import PolicyInForce


def in_force(answer: PolicyInForce) -> RenderableType:
    """Return the policy in force."""
    adopted = f"policy {answer.version}" if answer.version else "the default policy; none has been adopted"
    return Group(policy(answer.policy), as_of(answer, adopted))


def policy(one: Policy) -> RenderableType:
    """Return every knob of a policy; a star marks those that differ from the default."""
    table = _table("", "knob", "value", "meaning")
    for knob, field in Policy.model_fields.items():
        value = getattr(one, knob)
        table.add_row(
            "*" if value != getattr(DEFAULT_POLICY, knob) else "", knob, written(knob, value), field.description
        )
    return table


def named() -> RenderableType:
    """Return the policies that have a name, with what each changes of the default."""
    table = _table("policy", "differs from the default in")
    for name, one in NAMED_POLICIES.items():
        differing = policy_files.changes(DEFAULT_POLICY, one)
        table.add_row(
            name, ", ".join(f"{change.knob}={change.after}" for change in differing) or "nothing: it is the default"
        )
    return table


def changes(changed: Changes) -> RenderableType:
    """Return what a policy would change."""
    if not changed.changes:
        return Text("nothing would change: this is the policy in force")
    table = _table("knob", "now", "would be")
    for change in changed.changes:
        table.add_row(change.knob, change.before, change.after)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column != "meaning", overflow="fold")
    return table
