"""The results as a page: each case, where it comes from, and how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.conformance.running import Outcome, Result


def page(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return a Markdown page of all outcomes of a file."""
    counts = Counter(outcome.result for outcome in outcomes)
    lines = [
        f"# Results of `cases/{name}`",
        "",
        "Written by `python -m tests.conformance FAMILY FILE --table PAGE`; a test keeps it current.",
        "",
        ", ".join(f"{counts[result]} {result}" for result in Result) + ".",
        "",
        "| case | title | origin | relation | result |",
        "|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        case = outcome.case
        result = f"{outcome.result}: {outcome.detail}" if outcome.detail else str(outcome.result)
        cells = (f"`{case.id}`", case.title, case.origin, str(case.relation), result)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"
