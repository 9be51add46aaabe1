"""Run a file of cases: ``python -m tests.conformance FAMILY FILE [--table PAGE]``. Ends with 1 if a case fails."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.cases import load
from tests.conformance.fair_share import FAIR_SHARE
from tests.conformance.running import Family, Result
from tests.conformance.table import page
from tests.conformance.topology import TOPOLOGY

FAMILIES: Mapping[str, Family] = {"fair-share": FAIR_SHARE, "topology": TOPOLOGY}


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each case and a count; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description="Run a file of cases.")
    parser.add_argument("family", choices=sorted(FAMILIES), help="what the cases are about")
    parser.add_argument("file", type=Path, help="the file of cases")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write the results as a Markdown table too")
    options = parser.parse_args(arguments)
    family = FAMILIES[options.family]
    outcomes = []
    for case in load(options.file):
        outcome = family.run(case)
        outcomes.append(outcome)
        print(outcome.line, flush=True)
    counts = Counter(outcome.result for outcome in outcomes)
    print(", ".join(f"{counts[result]} {result}" for result in Result))
    if options.table is not None:
        options.table.write_text(page(options.file.name, outcomes), encoding="utf-8")
    return 1 if counts[Result.FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
