"""The command tree: values to tables and timelines."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the process was started with, and end the process with its exit code."""
    from streamsched.cli.tree import app

    try:
        app(prog_name="streamsched")
    except Exception:
        import traceback

        from streamsched.cli import exits

        traceback.print_exc()
        print(  # noqa: T201  the message is the program's output
            "streamsched: stopped by a bug of its own. Nothing but what is in the ledger has happened. "
            "Please report the lines above.",
            file=sys.stderr,
        )
        sys.exit(exits.HALTED)
