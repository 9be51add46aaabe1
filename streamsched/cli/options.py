"""Options that several commands take. Nothing heavy is imported for them, so that ``--help`` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_PLACE = "http://127.0.0.1:7070"
#: The panels of the command list.
ASK = "Ask"
RUN = "Run"
PAST = "Look back"
WHAT_IF = "Ask what if"

From = Annotated[
    str,
    typer.Option(
        "--from",
        envvar="STREAMSCHED_FROM",
        metavar="PLACE",
        help="Where to ask: http://HOST:PORT, kafka://HOST:PORT/PREFIX, or the path of a recorded ledger.",
    ),
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        "--from",
        envvar="STREAMSCHED_FROM",
        metavar="PLACE",
        help="Whom to ask: http://HOST:PORT or kafka://HOST:PORT/PREFIX.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        metavar="CURSOR|TIME",
        help="Answer as of then: after the record at a cursor, or at a time such as 2026-11-30T09:00:00Z. "
        "Needs a ledger.",
    ),
]
Actor = Annotated[str | None, typer.Option(help="Who asks.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on one line.")]
RecordedLedger = Annotated[
    str,
    typer.Argument(
        metavar="LEDGER",
        help="An SQLite file, an archive's directory, the data directory of `streamsched up`, or "
        "kafka://HOST:PORT/PREFIX.",
    ),
]
#: Read by `streamsched.cli.policy_files.read_policy`.
PolicyName = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME|FILE",
        help="A policy that has a name (`streamsched policy list`), or a TOML file of knobs.",
    ),
]
Knobs = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KNOB=VALUE",
        help="A knob of the policy, such as window_ms=5d or reservations=0; may be repeated.",
    ),
]
