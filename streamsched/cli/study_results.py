"""What a study came to: its claims judged, and the page that says so. All that is compared is an exact number."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from streamsched.cli.study_files import Claim, Comparison, Study
from streamsched.model.quantities import parse_duration
from streamsched.reporting.figures import NONE
from streamsched.reporting.measures import COMPARED, OF_A_TEAM, Measure, Unit, Value
from streamsched.reporting.simulations import Simulated
from streamsched.simulation.outcomes import Outcomes

#: The runs of a variant, one for each seed.
Runs = Mapping[str, Sequence[Simulated]]

_HOLDS: Final[Mapping[Comparison, Callable[[Fraction, Fraction], bool]]] = {
    Comparison.LESS: operator.lt,
    Comparison.AT_MOST: operator.le,
    Comparison.MORE: operator.gt,
    Comparison.AT_LEAST: operator.ge,
    Comparison.EQUAL: operator.eq,
}
_MEASURES: Final[Mapping[str, Measure]] = {measure.name: measure for measure in COMPARED}
_TEAM_MEASURES: Final = {measure.name: measure for measure in OF_A_TEAM}


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim, and with each seed the value, what it was compared with, and whether the claim holds.

    A value that is missing, since nothing of the kind happened, holds no claim.
    """

    claim: Claim
    values: Sequence[Value]
    limits: Sequence[Value]
    held: Sequence[bool]

    @property
    def holds(self) -> bool:
        """Whether it holds with every seed."""
        return all(self.held)


def judged(study: Study, runs: Runs) -> list[Judged]:
    """Judge each claim of a study."""
    return [_judged(claim, runs) for claim in study.confirmed_if]


def _judged(claim: Claim, runs: Runs) -> Judged:
    values = [_value(claim, run.run.outcomes) for run in runs[claim.variant]]
    limits: list[Value]
    if claim.baseline is None:
        limits = [quantity(claim.value or "0")] * len(values)
    else:
        times = Fraction(claim.times)
        found = [_value(claim, run.run.outcomes) for run in runs[claim.baseline]]
        limits = [None if value is None else value * times for value in found]
    held = [
        value is not None and limit is not None and _HOLDS[claim.must_be](Fraction(value), Fraction(limit))
        for value, limit in zip(values, limits, strict=True)
    ]
    return Judged(claim, values, limits, held)


def _value(claim: Claim, outcomes: Outcomes) -> Value:
    if claim.team is None:
        return _MEASURES[claim.measure].of(outcomes)
    team = next((team for team in outcomes.teams if team.budget == claim.team), None)
    return None if team is None else _TEAM_MEASURES[claim.measure].of(team)


def quantity(text: str) -> Fraction:
    """Return the number that a value of a study file means: a share as one of 1, a duration in ms.

    >>> quantity("12.5"), quantity("95%"), quantity("30s")
    (Fraction(25, 2), Fraction(19, 20), Fraction(30000, 1))
    """
    if text.endswith("%"):
        return Fraction(text[:-1]) / 100
    return Fraction(parse_duration(text)) if text[-1].isalpha() else Fraction(text)


def as_json(study: Study, runs: Runs, verdicts: Sequence[Judged]) -> dict[str, Any]:
    """Return the result as JSON values."""
    return {
        "title": study.title,
        "confirmed": all(verdict.holds for verdict in verdicts),
        "claims": [
            {
                **verdict.claim.model_dump(mode="json", exclude_none=True),
                "by_seed": [
                    {"seed": seed, "value": _number(value), "compared_with": _number(limit), "holds": held}
                    for seed, value, limit, held in zip(
                        study.seeds, verdict.values, verdict.limits, verdict.held, strict=True
                    )
                ],
                "holds": verdict.holds,
            }
            for verdict in verdicts
        ],
        "runs": [
            {"variant": name, "seed": seed} | {key: value for key, value in run.as_json().items() if key != "policy"}
            for name, of_variant in runs.items()
            for seed, run in zip(study.seeds, of_variant, strict=True)
        ],
    }


def _number(value: Value) -> int | float | None:
    return value if value is None or isinstance(value, int) else round(float(value), 6)


def page(study: Study, runs: Runs, verdicts: Sequence[Judged], command: str, cores: int) -> str:
    """Return the result as Markdown: the hypothesis, whether it holds, the numbers, and how to get them again."""
    return "\n".join(_lines(study, runs, verdicts, command, cores)) + "\n"


def _lines(study: Study, runs: Runs, verdicts: Sequence[Judged], command: str, cores: int) -> Iterator[str]:
    holding = sum(verdict.holds for verdict in verdicts)
    yield f"# {study.title}"
    yield ""
    yield f"**Hypothesis.** {' '.join(study.hypothesis.split())}"
    yield ""
    found = "Confirmed" if holding == len(verdicts) else "Not confirmed"
    yield f"**{found}**: {holding} of {len(verdicts)} claims hold."
    yield ""
    yield "| claim | found | compared with | holds |"
    yield "|---|--:|--:|---|"
    for verdict in verdicts:
        unit = _unit(verdict.claim)
        values, limits = (_over_seeds(unit, values) for values in (verdict.values, verdict.limits))
        yield f"| {_words(verdict.claim)} | {values} | {limits} | {'yes' if verdict.holds else 'no'} |"
    yield ""
    yield f"| measure | {' | '.join(runs)} |"
    yield "|---|" + "--:|" * len(runs)
    for name in study.measures:
        measure = _MEASURES[name]
        cells = [
            _over_seeds(measure.unit, [measure.of(run.run.outcomes) for run in of_variant])
            for of_variant in runs.values()
        ]
        yield f"| {name} | {' | '.join(cells)} |"
    if len(study.seeds) > 1:
        yield ""
        yield f"Of {len(study.seeds)} seeds: the median, the least and the most. A claim must hold with each."
    seconds = sum(run.seconds for of_variant in runs.values() for run in of_variant)
    yield ""
    yield f"```sh\n{command}\n```"
    yield ""
    machine = f"a machine of {cores} core{'s' * (cores != 1)}"
    yield f"{seconds:.0f} CPU seconds on {machine}. The same file gives the same numbers."


def _words(claim: Claim) -> str:
    """Say a claim in one line."""
    who = f"{claim.variant}, {claim.team}" if claim.team else claim.variant
    times = "" if claim.times == "1" else f"{claim.times} × "
    limit = claim.value if claim.baseline is None else f"{times}{claim.baseline}"
    return f"{claim.measure}: {who} {claim.must_be} {limit}".replace("|", "\\|")


def _unit(claim: Claim) -> Unit:
    return _MEASURES[claim.measure].unit if claim.team is None else _TEAM_MEASURES[claim.measure].unit


def _over_seeds(unit: Unit, values: Sequence[Value]) -> str:
    """Show the lower median, and with several seeds the least and the most."""
    known = sorted(Fraction(value) for value in values if value is not None)
    if not known:
        return NONE
    median = unit.show(known[(len(known) - 1) // 2])
    return median if known[0] == known[-1] else f"{median} ({unit.show(known[0])} to {unit.show(known[-1])})"
