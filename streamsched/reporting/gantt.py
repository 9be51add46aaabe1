"""The Gantt chart of GPUs: its data as the page's script reads them, and the same picture as a file.

A row per GPU, a hue per team with shades for its workloads, hatching while a run may be displaced, a red edge where it
was preempted. In a page the script `gantt.js` draws it on a canvas, so that a month of 1,024 GPUs can be zoomed.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import matplotlib as mpl
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from streamsched.model.quantities import SECOND
from streamsched.reporting.charts import STYLE, Chart, time_axis, time_of
from streamsched.reporting.runs import ReportedRun
from streamsched.reporting.seating import NEVER, Seating, SpellEnd

#: Hues of teams, in degrees: neighbours look different, and none of them is near the red of an edge. They are given
#: out in turn; with more teams, the names in the legend and under the mouse tell them apart.
HUES: Final = (212, 32, 150, 275, 55, 187, 318, 95, 240, 42, 168, 296, 72, 200, 122, 258)
_SHADES: Final = 3


def gantt_data(runs: Sequence[ReportedRun]) -> str:
    """Return what `gantt.js` draws: JSON columns, deflated, as base64. Times are whole seconds from a run's begin.

    Spells come by their beginnings, and of a time only the difference to the one before is written, so that 1 GPU-year
    of a busy cluster takes some hundred bytes.
    """
    teams = sorted(set(chain.from_iterable(run.seating.teams for run in runs)))
    value = {"hues": HUES, "teams": teams, "runs": [_columns(run, teams) for run in runs]}
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def _columns(run: ReportedRun, teams: Sequence[str]) -> dict[str, Any]:
    seating = run.seating
    place = {name: number for number, name in enumerate(teams)}
    order = sorted(range(len(seating)), key=lambda row: (seating.from_ms[row], seating.node[row], row))
    since_ms = seating.since_ms

    def second(ms: int) -> int:
        return (ms - since_ms) // SECOND

    begins = [second(seating.from_ms[row]) for row in order]
    return {
        "name": run.name,
        "since": since_ms // SECOND,
        "length": second(seating.until_ms),
        "nodes": [name for name, _ in seating.nodes],
        "gpus": [gpus for _, gpus in seating.nodes],
        "workloads": seating.workloads,
        "team": [place[seating.teams[team]] for team in seating.team],
        "node": [seating.node[row] for row in order],
        "mask": [seating.gpu_mask[row] for row in order],
        "workload": [seating.workload[row] for row in order],
        "from": [after - before for before, after in zip([0, *begins], begins, strict=False)],
        "for": [second(seating.to_ms[row]) - begin for row, begin in zip(order, begins, strict=True)],
        "protected": [
            NEVER if seating.preemptible_ms[row] == NEVER else second(seating.preemptible_ms[row]) - begin
            for row, begin in zip(order, begins, strict=True)
        ],
        "end": [seating.end[row] for row in order],
        "out": [
            [seating.outage_node[row], second(seating.outage_from_ms[row]), second(seating.outage_to_ms[row])]
            for row in range(len(seating.outage_node))
        ],
    }


def gantt_chart(run: ReportedRun, teams: Sequence[str], number: int | None = None) -> Chart:
    """Return the whole stretch as one picture; its bars are pixels, also in an SVG file."""
    seating = run.seating
    with mpl.rc_context({**mpl.rcParamsDefault, "backend": mpl.rcParams["backend"], **STYLE}):
        figure = Figure(figsize=(14, min(18.0, 2.0 + seating.gpus / 48)), layout="constrained")
        axes = figure.subplots()
        place = [teams.index(team) for team in seating.teams]
        bars, colours, hatched, edges = [], [], [], []
        for row, top, height in _bars(seating):
            begin, end = time_of(seating.from_ms[row]), time_of(seating.to_ms[row])
            bars.append(_box(begin, end, top, height))
            workload = seating.workload[row]
            colours.append(_colour(place[seating.team[workload]], workload))
            if (preemptible_ms := seating.preemptible_ms[row]) != NEVER:
                hatched.append(_box(time_of(preemptible_ms), end, top, height))
            if seating.end[row] == SpellEnd.PREEMPTED:
                edges.append([(end, top), (end, top + height)])
        axes.add_collection(PolyCollection(bars, facecolors=colours, edgecolors="none", rasterized=True))
        axes.add_collection(
            PolyCollection(hatched, facecolors="none", edgecolors="white", hatch="////", linewidth=0, rasterized=True)
        )
        axes.add_collection(LineCollection(edges, colors="#d0021b", linewidths=1.2, rasterized=True))
        axes.set_xlim(time_of(seating.since_ms), time_of(seating.until_ms))
        axes.set_ylim(seating.gpus, 0)
        axes.set(xlabel="time, UTC", ylabel="GPUs, by node")
        time_axis(axes)
        legend = [Patch(facecolor=_colour(number, 0), label=team) for number, team in enumerate(teams)]
        legend.append(Patch(facecolor="#808080", edgecolor="white", hatch="////", label="may be displaced"))
        legend.append(Patch(facecolor="none", edgecolor="#d0021b", label="right edge: preempted"))
        figure.legend(handles=legend, loc="outside lower center", ncols=8, frameon=False, fontsize=8)
    return Chart(
        "gantt" if number is None else f"gantt-{number + 1}",
        f"Who sat where{'' if number is None else f': {run.name}'}",
        figure,
        "One row for each GPU and one bar for each run on it, coloured by team.",
    )


def gantt_charts(runs: Sequence[ReportedRun]) -> Iterator[Chart]:
    """Return the picture of each run; a team has one colour in all of them."""
    teams = sorted(set(chain.from_iterable(run.seating.teams for run in runs)))
    for number, run in enumerate(runs):
        yield gantt_chart(run, teams, number if len(runs) > 1 else None)


def _bars(seating: Seating) -> Iterator[tuple[int, int, int]]:
    """Yield for each spell, by its row, the stretches of neighbouring GPUs it holds: the first, and how many."""
    tops, top = [], 0
    for _, gpus in seating.nodes:
        tops.append(top)
        top += gpus
    for row in range(len(seating)):
        mask, first = seating.gpu_mask[row], 0
        while mask:
            skip = (mask & -mask).bit_length() - 1
            first, mask = first + skip, mask >> skip
            count = (~mask & (mask + 1)).bit_length() - 1
            yield row, tops[seating.node[row]] + first, count
            first, mask = first + count, mask >> count


def _box(begin: float, end: float, top: int, height: int) -> list[tuple[float, float]]:
    return [(begin, top), (end, top), (end, top + height), (begin, top + height)]


def _colour(team: int, workload: int) -> tuple[float, float, float]:
    hue = HUES[team % len(HUES)] / 360
    red, green, blue = hsv_to_rgb((hue, 0.55, (0.62, 0.72, 0.82)[workload % _SHADES]))
    return (float(red), float(green), float(blue))
