"""Milliseconds and GPU-milliseconds: the only units inside; hours and percentages exist only on screens."""

from __future__ import annotations

import re

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

#: Fractions are integers of this many parts: a quota of one half is 500,000,000.
WHOLE = 1_000_000_000

_UNITS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_DURATION = re.compile(r"(?:\d{1,12}(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+)(ms|s|m|h|d)")


def parse_duration(text: str) -> int:
    """Read a duration such as ``90s``, ``1h30m`` or ``0s`` as milliseconds.

    >>> parse_duration("1h30m")
    5400000

    Raises:
        ValueError: The text is no such duration; the message says what would be.
    """
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is no duration; write a number and a unit (ms, s, m, h, d), such as 30m or 1h30m")
    return sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def format_duration(ms: int) -> str:
    """Show milliseconds in the two largest units that matter.

    >>> format_duration(5_400_000)
    '1h30m'
    >>> format_duration(400)
    '400ms'
    >>> format_duration(0)
    '0s'
    """
    if ms < 0:
        return "-" + format_duration(-ms)
    if 0 < ms < SECOND:
        return f"{ms}ms"
    rest = ms // SECOND
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
        if len(parts) == 2:
            break
    return "".join(parts) or "0s"


def counted(number: int, noun: str) -> str:
    """Show a number of things.

    >>> counted(1, "rank"), counted(0, "rank")
    ('1 rank', '0 ranks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def gpu_hours(gpu_ms: int) -> float:
    """Show GPU-milliseconds as GPU-hours. For screens only; never stored or compared."""
    return gpu_ms / HOUR


def parse_fraction(text: str) -> int:
    """Read ``0.35``, ``35%`` or ``7/20`` as parts of `WHOLE`, rounded down.

    >>> parse_fraction("35%") == parse_fraction("0.35") == parse_fraction("7/20") == 350_000_000
    True

    Raises:
        ValueError: No such fraction, or outside 0 to 1.
    """
    from fractions import Fraction

    try:
        value = Fraction(text[:-1]) / 100 if text.endswith("%") else Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{text!r} is no fraction; write 0.35, 35% or 7/20") from error
    if not 0 <= value <= 1:
        raise ValueError(f"{text!r} is outside 0 to 1; a budget holds a fraction of its parent")
    return value.numerator * WHOLE // value.denominator


def format_fraction(nano: int) -> str:
    """Show parts of `WHOLE` as a percentage, with every digit.

    >>> format_fraction(350_000_000), format_fraction(1_000_000_001)
    ('35 %', '100.0000001 %')
    """
    percent, rest = divmod(nano * 100, WHOLE)
    digits = f".{rest // 100:07d}".rstrip("0").rstrip(".")
    return f"{percent}{digits} %"


def format_instant(ms: int) -> str:
    """Show milliseconds since 1970 as UTC, with its offset said.

    >>> format_instant(0)
    '1970-01-01T00:00:00Z'
    """
    days, of_day = divmod(ms // SECOND, 86_400)
    hours, rest = divmod(of_day, 3_600)
    year, month, day = _civil(days)
    return f"{year:04d}-{month:02d}-{day:02d}T{hours:02d}:{rest // 60:02d}:{rest % 60:02d}Z"


def _civil(days: int) -> tuple[int, int, int]:
    """Return the proleptic Gregorian date of a day number since 1970 (the core may not import ``datetime``)."""
    shifted = days + 719_468
    era, of_era = divmod(shifted, 146_097)
    year_of_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_index = (5 * of_year + 2) // 153
    day = of_year - (153 * month_index + 2) // 5 + 1
    month = month_index + 3 if month_index < 10 else month_index - 9
    return year_of_era + era * 400 + (1 if month <= 2 else 0), month, day
