"""Cases run one by one: passed, failed at the first difference, or skipped with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Any

from tests.conformance.cases import Case, Relation

#: Runs a case through the public core; returns what the case expects and what was found, in one form.
Runner = Callable[[Case], tuple[Any, Any]]


class Result(StrEnum):
    """How a case ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case and how it ended; `detail` is the first difference, or why it was skipped."""

    case: Case
    result: Result
    detail: str = ""

    @property
    def line(self) -> str:
        """The outcome as one line of a report."""
        detail = f"  {self.detail}" if self.detail else ""
        return f"{self.case.id:<20} {self.case.relation:<12} {self.result}{detail}"


@dataclass(frozen=True, slots=True)
class Departure:
    """A case that must hold by its relation and does not.

    Attributes:
        found: What ours finds instead, in the form of what the case expects.
        why: The arithmetic, or what is missing.
    """

    found: Any
    why: str


@dataclass(frozen=True, slots=True)
class Family:
    """Cases about one subject.

    Attributes:
        runners: How each kind is run.
        departures: By id, the cases that ours departs from.
        left_out: Says why a case that should hold is not run; empty when it is.
    """

    runners: Mapping[str, Runner]
    departures: Mapping[str, Departure]
    left_out: Callable[[Case], str] = field(default=lambda _: "")

    def run(self, case: Case) -> Outcome:
        """Run one case."""
        if not case.relation.must_hold:
            return Outcome(case, Result.SKIPPED, f"{case.relation}: {case.note or _WHY_NOT[case.relation]}")
        if why := self.left_out(case):
            return Outcome(case, Result.SKIPPED, f"left out: {why}")
        runner = self.runners.get(case.kind)
        if runner is None:
            return Outcome(case, Result.FAILED, f"there is no way to run kind {case.kind!r}")
        try:
            expected, found = runner(case)
        except Exception as error:  # One broken case must not hide the results of the others.
            return Outcome(case, Result.FAILED, f"{type(error).__name__}: {error}")
        departure = self.departures.get(case.id)
        if departure is not None:
            difference = first_difference(departure.found, found)
            if difference:
                return Outcome(case, Result.FAILED, f"ours departs otherwise than is argued: {difference}")
            return Outcome(case, Result.SKIPPED, f"departure: {departure.why}")
        difference = first_difference(expected, found)
        return Outcome(case, Result.FAILED if difference else Result.PASSED, difference)


_WHY_NOT = {
    Relation.HELPER: "it tests a water-filling helper, and our scheduler divides nothing that way",
    Relation.DIFFERS: "we decide otherwise on purpose",
    Relation.INFORMATIVE: "it has no counterpart in our scheduler",
    Relation.OUT_OF_SCOPE: "it is out of scope",
}


def first_difference(expected: Any, found: Any, where: str = "") -> str:
    """Return the first place where two values differ, in words; empty when they do not.

    A decimal is taken as it was published: it stands for everything that rounds to it.

    >>> first_difference({"a": [1, "1/2"]}, {"a": [1, Fraction(1, 2)]})
    ''
    >>> first_difference({"a": [1, 2]}, {"a": [1, 3]})
    'a[1]: expected 2, found 3'
    """
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in [*expected, *(key for key in found if key not in expected)]:
            below = f"{where}.{key}" if where else str(key)
            if key not in expected or key not in found:
                return f"{below}: {'not expected' if key in found else 'not found'}"
            if difference := first_difference(expected[key], found[key], below):
                return difference
        return ""
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return f"{where}: expected {expected}, found {found}"
        for place, (one, other) in enumerate(zip(expected, found, strict=True)):
            if difference := first_difference(one, other, f"{where}[{place}]"):
                return difference
        return ""
    return "" if _is_equal(expected, found) else f"{where}: expected {expected}, found {found}"


def _is_equal(expected: Any, found: Any) -> bool:
    if isinstance(found, bool) or isinstance(expected, bool) or found is None or not isinstance(found, int | Fraction):
        return bool(expected == found)
    if isinstance(expected, float):
        digits = -int(Decimal(str(expected)).as_tuple().exponent)
        return abs(Fraction(str(expected)) - found) <= Fraction(1, 2 * 10**digits)
    return Fraction(expected) == found
