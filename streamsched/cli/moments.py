"""Moments, durations and GPU-time as people type them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import typer

from streamsched.model.quantities import HOUR, parse_duration

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Moment:
    """A place in a ledger: after the record at a cursor, or at a time. Exactly one is given."""

    cursor: int | None = None
    at_ms: int | None = None


def parse_moment(text: str, option: str = "--at") -> Moment:
    """Read a cursor (``4711``) or a time with its offset (``2026-11-30T09:00:00Z``), given with `option`.

    Raises:
        BadParameter: It is neither; the message says what would be.
    """
    if text.isascii() and text.isdigit():
        return Moment(cursor=int(text))
    at_ms = _instant_ms(text)
    if at_ms is None:
        raise typer.BadParameter(
            f"{text!r} is no cursor and no time; write a number such as 4711, or a time with its offset such as "
            "2026-11-30T09:00:00Z or 2026-11-30T10:00+01:00.",
            param_hint=option,
        )
    return Moment(at_ms=at_ms)


def instant_ms(text: str, option: str) -> int:
    """Read a time with its offset, given with `option`, as milliseconds since 1970.

    A local time is refused: twice a year it is two instants, or none.

    Raises:
        BadParameter: It is none; the message names the option and says what would be.
    """
    at_ms = _instant_ms(text)
    if at_ms is None:
        raise typer.BadParameter(
            f"{text!r} is no time with an offset; write one such as 2026-11-30T09:00:00Z or 2026-11-30T10:00+01:00.",
            param_hint=option,
        )
    return at_ms


def _instant_ms(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else max(0, (moment - _EPOCH) // timedelta(milliseconds=1))


def gpu_ms(text: str, option: str) -> int:
    """Read GPU-hours such as ``-2.5``, given with `option`, as GPU-milliseconds.

    Raises:
        BadParameter: It is no number; the message names the option.
    """
    try:
        return round(Fraction(text) * HOUR)
    except (ValueError, ZeroDivisionError):
        raise typer.BadParameter(f"{text!r} is no number; write GPU-hours such as -2.5.", param_hint=option) from None


def duration_ms(text: str, option: str) -> int:
    """Read a duration such as ``90s`` or ``1h30m``, given with `option`, as milliseconds.

    Raises:
        BadParameter: It is none; the message names the option and says what would be.
    """
    try:
        return 0 if text == "0" else parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint=option) from None
