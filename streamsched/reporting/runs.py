"""A run of a cluster as a report shows it: its name, what it came to, and who sat where."""

from __future__ import annotations

from dataclasses import dataclass

from streamsched.model.commands import Effects
from streamsched.model.events import Record
from streamsched.reporting.seating import Seating, SeatingRecorder
from streamsched.simulation.outcomes import OutcomeRecorder, Outcomes
from streamsched.state.cluster import ClusterState


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """One simulation, or one stretch of a ledger. It can be pickled: a worker process may make it.

    Attributes:
        name: What readers tell it by, such as "baseline" or "window 5 d". No two runs of a report share one.
        outcomes: What it came to.
        seating: Who sat where.
    """

    name: str
    outcomes: Outcomes
    seating: Seating


class RunRecorder:
    """Observes every record, for a report. Give it to `simulate`, or to `streamsched.replay.replayer.fold`.

    Args:
        from_ms: What happens earlier counts for nothing: a cluster that begins empty must first fill. A whole hour.
        checkpoint_ms: How often work saves itself; None where it does so as it is asked to stop.
    """

    def __init__(self, from_ms: int = 0, checkpoint_ms: int | None = None) -> None:
        self._outcomes = OutcomeRecorder(from_ms, checkpoint_ms)
        self._seating = SeatingRecorder(from_ms)

    def __call__(self, record: Record, effects: Effects, state: ClusterState) -> None:
        """Take one folded record."""
        self._outcomes(record, effects, state)
        self._seating(record, effects, state)

    def run(self, name: str, state: ClusterState, *, until_ms: int) -> ReportedRun:
        """Return the run, up to a moment at or after the last record. Call it once, at the end."""
        outcomes = self._outcomes.outcomes(state, until_ms=until_ms)
        return ReportedRun(name, outcomes, self._seating.seating(state, since_ms=outcomes.since_ms, until_ms=until_ms))
