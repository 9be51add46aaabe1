"""The page of results: what was measured, where, when, of which commit, and by which command."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.benchmarks.measuring import Result

PAGE = Path(__file__).parent / "RESULTS.md"
COMMAND = "make bench"
_ROOT = Path(__file__).parents[2]


def write(sections: Mapping[str, Sequence[Result]], *, broker: str, commit: str) -> None:
    """Write the page anew.

    Args:
        sections: Results by heading.
        broker: Which Kafka was used.
        commit: What was measured, as `commit_measured` said before it began.
    """
    lines = [
        "# How fast is it?",
        "",
        f"`{COMMAND}` wrote this page. A ratio compares two things of the same run. What has no limit is for",
        "orientation and differs between machines. Times of the core and the codec are process time, those of ledgers",
        "and Kafka are wall time.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in _circumstances(broker, commit).items()),
    ]
    for heading, results in sections.items():
        lines += ["", f"## {heading}", "", "| What | Result | Limit |", "|---|--:|---|", *rows(results)]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def shown(result: Result) -> str:
    """Return a number as people read it, with its unit."""
    digits = 3 if abs(result.value) < 10 else 1 if abs(result.value) < 1_000 else 0
    return f"{result.value:,.{digits}f} {result.unit}".rstrip()


def verdict(result: Result) -> str:
    """Return the limit of a result, and whether it is kept; empty without a limit."""
    if result.limit is None:
        return ""
    return f"{result.limit}, {'kept' if result.is_met else 'MISSED'}"


def rows(results: Iterable[Result]) -> Iterable[str]:
    """Return results as rows of a table, each when it is known."""
    return (f"| {result.what} | {shown(result)} | {verdict(result)} |" for result in results)


def _circumstances(broker: str, commit: str) -> dict[str, str]:
    load = os.getloadavg()[1]
    return {
        "Machine": f"{_processor()}, {os.cpu_count()} cores, load {load:.1f} over the last five minutes",
        "System": f"{platform.system()}, Python {platform.python_version()}",
        "Kafka": broker,
        "Date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "Commit": commit,
        "Command": f"`{COMMAND}`",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit_measured() -> str:
    """Return the commit of the checkout, and whether it has changes that no commit has."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "streamsched")
    return _git("rev-parse", "--short=12", "HEAD") + (" and changes that are not committed" if changed else "")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=_ROOT, check=True, capture_output=True, text=True).stdout.strip()
