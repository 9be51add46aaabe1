"""Promises to large gangs: nodes that are kept for one claimant, and when the last of them can be had.

Source: `fair-share.md`, section 4.8.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes of one pool that are drained for a waiting gang.

    At `start_ms` every run on them is past its protection, whatever the usage ratios are by then: it was the decision
    to reserve that compared them.

    Attributes:
        workload: The claimant.
        nodes: The nodes, in the order of their places when it was made.
        start_ms: When the claimant can start at the latest.
        since_ms: When it was made.
        cursor: The proposal that made it.
    """

    workload: str
    pool: str
    nodes: tuple[str, ...]
    start_ms: int
    since_ms: int
    cursor: int
