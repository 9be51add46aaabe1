"""A replay as text: the account of a ledger, and where it was decided otherwise than it would be now."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from streamsched.cli.screens import counts_of, story_of, table_of
from streamsched.model.events import ProposedPlacement, RoundProposed
from streamsched.model.quantities import format_instant
from streamsched.replay.answers import Summary
from streamsched.replay.audit import Audit
from streamsched.replay.verify import Difference, Verification

#: A longer value is cut in the middle of the table of differences; --json has it whole.
_VALUE_CHARS = 60


def replay(account: Audit, summary: Summary, verification: Verification | None) -> RenderableType:
    """Return the account of a ledger, the state it leads to, and what deciding again came to."""
    table = _facts()
    span = "" if account.first_ms is None else (
        f", {format_instant(account.first_ms)} to {format_instant(account.last_ms or 0)}"
    )  # fmt: skip
    table.add_row("records", f"{account.records}{span}")
    table.add_row("events", counts_of(account.events))
    table.add_row("sources", counts_of(account.sources))
    gaps = [f"{gap.src} jumps from {gap.expected} to {gap.found} at cursor {gap.cursor}" for gap in account.gaps]
    table.add_row("gaps", Text("; ".join(gaps), "red") if gaps else "none")
    table.add_row("rejected", counts_of(account.rejected))
    table.add_row("ignored", counts_of(account.ignored))
    table.add_row("unreadable", str(account.unreadable))
    table.add_row("rounds", f"{account.rounds} closed, {account.overtaken} proposals overtaken")
    table.add_row(
        "placements", f"{account.accepted} accepted, {sum(account.void.values())} void ({counts_of(account.void)})"
    )
    table.add_row("live", counts_of(summary.live))
    table.add_row("ended", counts_of(summary.ended))
    foreign = account.digests_of_other_layouts
    other = f"; {foreign} of builds with another layout say nothing here" if foreign else ""
    table.add_row("digests", f"{account.digests_proved} recorded ones proved{other}")
    table.add_row("digest", f"{account.digest} after {account.records} records")
    if verification is None:
        return table
    differ = verification.differences
    verdict = f"{verification.compared} accepted proposals decided again, {differ or 'none'} otherwise"
    table.add_row("decisions", Text(verdict, "red" if differ else ""))
    return table if verification.first is None else Group(table, _difference(verification.first))


def _difference(first: Difference) -> RenderableType:
    title = Text.assemble(
        ("\nThe first that differs", "bold"), f": round {first.recorded.round} at cursor {first.cursor}"
    )
    facts = _facts()
    facts.add_row(
        "  made on", f"{first.based_on} records, {format_instant(first.at_ms)} (ask with --at {first.based_on - 1})"
    )
    facts.add_row("  by", f"{first.scheme or 'nobody knows whom'}, policy {first.recorded.policy_version}")
    partings = table_of(
        ("  where", "workload", "what", "recorded", "now"),
        [
            (f"  {at.item}", at.workload or "", at.field.replace("_", " "), _cut(at.recorded), _cut(at.derived))
            for at in first.partings
        ],
    )
    parts: list[RenderableType] = [title, facts, partings]
    parts += [Text("\nRecorded", "bold"), *_items(first.recorded)]
    parts += [Text("\nDecided now", "bold"), *_items(first.derived)]
    if first.workload is not None:
        parts += [Text(f"\nStory of {first.workload}, up to the decision", "bold"), story_of(first.story)]
    return Group(*parts)


def _items(proposal: RoundProposed | None) -> list[Text]:
    """Return the items of a proposal, a line each."""
    if proposal is None:
        return [Text("  nothing")]
    lines = [f"  placement {number}  {_placement(item)}" for number, item in enumerate(proposal.placements, 1)]
    for number, promise in enumerate(proposal.reservations, 1):
        nodes = ", ".join(promise.nodes)
        lines.append(f"  reservation {number}  {promise.workload} from {format_instant(promise.start_ms)} on {nodes}")
    return [Text(line) for line in lines]


def _placement(item: ProposedPlacement) -> str:
    seats = ", ".join(dict.fromkeys(seat.node for seat in item.seats))
    stops = ", ".join(f"{victim.workload} ({victim.attempt})" for victim in item.victims)
    return f"{item.workload}, attempt {item.attempt}, on {seats}" + (f"; stops {stops}" if stops else "")


def _cut(value: str | None) -> str:
    if value is None:
        return "nothing"
    return value if len(value) <= _VALUE_CHARS else value[: _VALUE_CHARS - 1] + "…"


def _facts() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    return table
