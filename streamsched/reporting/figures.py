"""Numbers as people read them. The only place where integers become hours and percentages."""

from __future__ import annotations

from fractions import Fraction

from streamsched.model.quantities import DAY, HOUR, WHOLE, format_duration

#: Where there is no value: nothing was due, nobody started.
NONE = "–"


def percent(value: Fraction | None, digits: int = 1) -> str:
    """Show a ratio as a percentage.

    >>> percent(Fraction(1, 8)), percent(None)
    ('12.5 %', '–')
    """
    return NONE if value is None else f"{float(value) * 100:.{digits}f} %"


def number(value: Fraction | None, digits: int = 1) -> str:
    """Show a number.

    >>> number(Fraction(7, 4), 2), number(None)
    ('1.75', '–')
    """
    return NONE if value is None else f"{float(value):,.{digits}f}"


def quota(nano: int) -> str:
    """Show a share of the cluster.

    >>> quota(179_775_281)
    '18.0 %'
    """
    return percent(Fraction(nano, WHOLE))


def gpu_hours(gpu_ms: int) -> str:
    """Show GPU-time in whole GPU-hours.

    >>> gpu_hours(12_345 * HOUR)
    '12,345'
    """
    return f"{gpu_ms / HOUR:,.0f}"


def wait(ms: int | None) -> str:
    """Show a wait.

    >>> wait(95_000), wait(None)
    ('1m35s', '–')
    """
    return NONE if ms is None else format_duration(ms)


def days(ms: int) -> str:
    """Show a stretch of time in days.

    >>> days(7 * DAY)
    '7.0 days'
    """
    return f"{ms / DAY:.1f} days"
