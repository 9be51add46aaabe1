"""The measures by which runs are compared: how each is shown, which way is better, and what a difference is called.

A difference is a sign, an arrow and a word; a colour may be added, and never says it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

from streamsched.model.quantities import HOUR, format_duration
from streamsched.reporting import figures
from streamsched.simulation.outcomes import Outcomes, TeamOutcome, ratio

Value = Fraction | int | None


class Better(StrEnum):
    """Which way a measure is better."""

    MORE = "more"
    LESS = "less"
    NEITHER = "neither"


class Verdict(StrEnum):
    """What a difference is."""

    BETTER = "better"
    WORSE = "worse"
    OTHER = "other"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Difference:
    """How one value differs from another.

    Attributes:
        text: With its sign, in the unit of the measure; empty where one of them is missing.
        verdict: Whether that is better.
    """

    text: str
    verdict: Verdict

    @property
    def mark(self) -> str:
        """An arrow and a word: they say what the colour says."""
        return {
            Verdict.BETTER: "▲ better",
            Verdict.WORSE: "▼ worse",
            Verdict.OTHER: "◆ other",
            Verdict.SAME: "= same",
        }[self.verdict]


@dataclass(frozen=True, slots=True)
class Unit:
    """How values of one kind are shown, and their differences. Both are compared as they are shown."""

    show: Callable[[Value], str]
    show_difference: Callable[[Fraction], str]
    #: Values and differences are rounded to multiples of this before they are compared.
    grain: Fraction

    def difference(self, baseline: Value, value: Value, better: Better) -> Difference:
        """Compare a value with a baseline."""
        if baseline is None or value is None:
            return Difference("", Verdict.SAME if baseline == value else Verdict.OTHER)
        change = (round(Fraction(value) / self.grain) - round(Fraction(baseline) / self.grain)) * self.grain
        if not change:
            return Difference("0", Verdict.SAME)
        sign = "+" if change > 0 else "−"
        text = sign + self.show_difference(abs(change))
        if better is Better.NEITHER:
            return Difference(text, Verdict.OTHER)
        return Difference(text, Verdict.BETTER if (change > 0) is (better is Better.MORE) else Verdict.WORSE)


def _show_share(value: Value) -> str:
    return figures.percent(None if value is None else Fraction(value))


def _show_wait(value: Value) -> str:
    return figures.NONE if value is None else format_duration(int(value))


def _show_count(value: Value) -> str:
    return figures.NONE if value is None else f"{int(value):,}"


def _show_number(value: Value) -> str:
    return figures.NONE if value is None else f"{float(value):,.1f}"


def _show_factor(value: Value) -> str:
    return figures.NONE if value is None else f"{float(value) / 1_000:,.2f}"


SHARE: Final = Unit(_show_share, lambda change: f"{float(change) * 100:.1f} points", Fraction(1, 1_000))
WAIT: Final = Unit(_show_wait, lambda change: format_duration(int(change)), Fraction(1_000))
COUNT: Final = Unit(_show_count, lambda change: f"{int(change):,}", Fraction(1))
NUMBER: Final = Unit(_show_number, lambda change: f"{float(change):,.1f}", Fraction(1, 10))
FACTOR: Final = Unit(_show_factor, lambda change: f"{float(change) / 1_000:,.2f}", Fraction(10))
GPU_HOURS: Final = Unit(
    lambda value: figures.NONE if value is None else figures.gpu_hours(int(value)),
    lambda change: figures.gpu_hours(int(change)),
    Fraction(HOUR),
)


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a run."""

    name: str
    unit: Unit
    better: Better
    of: Callable[[Outcomes], Value]


#: The figures that come first.
HEADLINE: Final[Sequence[Measure]] = (
    Measure("occupancy", SHARE, Better.MORE, lambda run: run.occupancy),
    Measure("due time delivered in its hour", SHARE, Better.MORE, lambda run: run.strict_by_hour),
    Measure("on its day", SHARE, Better.MORE, lambda run: run.strict_by_day),
    Measure("at any time", SHARE, Better.MORE, lambda run: run.capped),
    Measure("demand over capacity", SHARE, Better.NEITHER, lambda run: run.demand_to_capacity),
    Measure("unallocated, of held time", SHARE, Better.NEITHER, lambda run: run.unallocated_share),
    Measure("median wait of short work", WAIT, Better.LESS, lambda run: run.waits_by_class["short"].p50_ms),
    Measure("preemptions per 1000 GPU-h", NUMBER, Better.LESS, lambda run: run.preemptions_per_1000_gpu_hours),
)

#: All that are compared between runs.
COMPARED: Final[Sequence[Measure]] = (
    Measure("availability: nodes that took work", SHARE, Better.MORE, lambda run: run.availability),
    Measure("occupancy: held GPU-time", SHARE, Better.MORE, lambda run: run.occupancy),
    Measure("effectiveness: due time delivered in its hour", SHARE, Better.MORE, lambda run: run.effectiveness),
    Measure("delivered on its day", SHARE, Better.MORE, lambda run: run.strict_by_day),
    Measure("delivered at any time", SHARE, Better.MORE, lambda run: run.capped),
    Measure("worst team, at any time", SHARE, Better.MORE, lambda run: run.worst_capped),
    Measure("teams with 95 % or more", COUNT, Better.MORE, lambda run: run.teams_served_well),
    Measure("demand over capacity", SHARE, Better.NEITHER, lambda run: run.demand_to_capacity),
    Measure("unallocated, of held time", SHARE, Better.NEITHER, lambda run: run.unallocated_share),
    Measure("short work: median wait", WAIT, Better.LESS, lambda run: run.waits_by_class["short"].p50_ms),
    Measure("short work: p90 wait", WAIT, Better.LESS, lambda run: run.waits_by_class["short"].p90_ms),
    Measure("allocated: median wait", WAIT, Better.LESS, lambda run: run.waits_by_class["allocated"].p50_ms),
    Measure("allocated: p90 wait", WAIT, Better.LESS, lambda run: run.waits_by_class["allocated"].p90_ms),
    Measure("over 64 GPUs: p90 wait", WAIT, Better.LESS, lambda run: run.waits_by_size["over 64 GPUs"].p90_ms),
    Measure("unallocated: p90 wait", WAIT, Better.LESS, lambda run: run.waits_by_class["unallocated"].p90_ms),
    Measure("never started by the end", COUNT, Better.LESS, lambda run: run.waiting),
    Measure(
        "allocated: p90 bounded slowdown",
        FACTOR,
        Better.LESS,
        lambda run: run.slowdowns_by_class["allocated"].p90_milli,
    ),
    Measure("reservations: median wait", WAIT, Better.LESS, lambda run: run.reservation_waits.p50_ms),
    Measure("allocated runs preempted", COUNT, Better.LESS, lambda run: run.preempted_allocated),
    Measure("unallocated runs preempted", COUNT, Better.LESS, lambda run: run.preempted_unallocated),
    Measure("swap-backs", COUNT, Better.LESS, lambda run: run.swap_backs),
    Measure("lost, of held time", SHARE, Better.LESS, lambda run: run.lost_share),
    Measure("scattered, of free and unallocated GPUs", SHARE, Better.LESS, lambda run: run.scattered_reclaimable),
    Measure("kept out by scatter alone, of waiting GPUs", SHARE, Better.LESS, lambda run: run.kept_out_share),
)


def in_hour(team: TeamOutcome) -> Fraction | None:
    """Return what a team got of what was due to it, hour by hour."""
    return ratio(team.by_hour.strict_gpu_ms, team.by_hour.due_gpu_ms)


@dataclass(frozen=True, slots=True)
class TeamMeasure:
    """One figure of one team."""

    name: str
    unit: Unit
    of: Callable[[TeamOutcome], Value]


#: What can be asked of a team in a study.
OF_A_TEAM: Final[Sequence[TeamMeasure]] = (
    TeamMeasure("delivered in its hour", SHARE, in_hour),
    TeamMeasure(
        "delivered at any time", SHARE, lambda team: ratio(team.by_hour.capped_gpu_ms, team.by_hour.due_gpu_ms)
    ),
    TeamMeasure("allocated GPU-hours", GPU_HOURS, lambda team: team.use.allocated_gpu_ms),
    TeamMeasure("p90 wait", WAIT, lambda team: team.waits.p90_ms),
)


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One line of a table of differences: a name, the baseline's value, and each other value with its difference."""

    name: str
    baseline: str
    others: Sequence[tuple[str, Difference]]


def compared_row(name: str, unit: Unit, better: Better, values: Sequence[Value]) -> ComparedRow:
    """Compare the values of several runs with that of the first."""
    baseline, *others = values
    return ComparedRow(
        name, unit.show(baseline), [(unit.show(value), unit.difference(baseline, value, better)) for value in others]
    )


def compared_rows(runs: Sequence[Outcomes]) -> list[ComparedRow]:
    """Compare runs by all measures that any of them has a value for."""
    rows = []
    for measure in COMPARED:
        values = [measure.of(run) for run in runs]
        if any(value is not None for value in values):
            rows.append(compared_row(measure.name, measure.unit, measure.better, values))
    return rows


def compared_teams(runs: Sequence[Outcomes]) -> list[ComparedRow]:
    """Compare, team by team, what was delivered of what was due in its hour."""
    teams = [{team.budget: team for team in run.teams} for run in runs]
    rows = []
    for name in sorted({name for of_run in teams for name in of_run}):
        values = [in_hour(of_run[name]) if name in of_run else None for of_run in teams]
        if any(value is not None for value in values):
            rows.append(compared_row(name, SHARE, Better.MORE, values))
    return rows
