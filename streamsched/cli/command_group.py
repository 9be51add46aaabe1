"""How every command ends: what went wrong becomes one message and one exit code, whichever command it was."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from streamsched.cli import exits
from streamsched.errors import (
    ConfigurationError,
    InvariantError,
    LedgerError,
    LedgerUnavailableError,
    ReplayDivergenceError,
    RequestError,
    StoreError,
    StreamschedError,
    UnreachableError,
    WireError,
)

#: Codes of refusals that say "there is no such thing" and not "that makes no sense".
_NEGATIVE_CODES = frozenset({"not_found"})


class CommandGroup(TyperGroup):
    """The root of the command tree."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; turn what it raises into a message on standard error and an exit code."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # Nothing more can be said; Python must not try again when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(exits.BROKEN_PIPE) from None
        except StreamschedError as error:
            print(f"streamsched: {error}", file=sys.stderr)  # noqa: T201  the message is the program's output
            raise typer.Exit(exit_code_of(error)) from None
        return result


def exit_code_of(error: StreamschedError) -> int:
    """Return the exit code for what went wrong."""
    match error:
        case RequestError() if error.code in _NEGATIVE_CODES:
            return exits.NEGATIVE
        case RequestError() | ConfigurationError() | WireError():
            return exits.USAGE
        case UnreachableError() | LedgerUnavailableError():
            return exits.UNREACHABLE
        case LedgerError() | ReplayDivergenceError():
            return exits.NEGATIVE
        case InvariantError() | StoreError():
            return exits.HALTED
        case _:
            return exits.USAGE
