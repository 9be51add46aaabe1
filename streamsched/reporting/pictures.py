"""Every picture of a report as a PNG and an SVG file of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from streamsched.reporting.charts import charts
from streamsched.reporting.gantt import gantt_charts
from streamsched.reporting.runs import ReportedRun


def write_pictures(directory: Path, runs: Sequence[ReportedRun]) -> list[Path]:
    """Write the pictures, in place of those that are there; return their paths.

    Raises:
        OSError: The directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    return [path for chart in chain(gantt_charts(runs), charts(runs)) for path in chart.save(directory)]
