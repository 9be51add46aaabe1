"""Moments and durations as people type them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import typer

from streamsched.model.quantities import parse_duration


@dataclass(frozen=True, slots=True)
class Moment:
    """A place in a ledger: after the record at a cursor, or at a time. Exactly one is given."""

    cursor: int | None = None
    at_ms: int | None = None


def parse_moment(text: str) -> Moment:
    """Read a cursor (``4711``) or a time with its offset (``2026-11-30T09:00:00Z``).

    Raises:
        BadParameter: It is neither; the message says what would be.
    """
    if text.isascii() and text.isdigit():
        return Moment(cursor=int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise typer.BadParameter(
            f"{text!r} is no cursor and no time; write a number such as 4711, or a time with its offset such as "
            "2026-11-30T09:00:00Z or 2026-11-30T10:00+01:00.",
            param_hint="--at",
        )
    return Moment(at_ms=max(0, int(moment.timestamp() * 1_000)))


def duration_ms(text: str, option: str) -> int:
    """Read a duration such as ``90s`` or ``1h30m``, given with `option`, as milliseconds.

    Raises:
        BadParameter: It is none; the message names the option and says what would be.
    """
    try:
        return 0 if text == "0" else parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint=option) from None
