"""Limits of the old priority scheduler: so many GPUs of each team are preempted by nobody, and the others by anybody.

A team's limit is its quota of the schedulable GPUs. A run that starts within it is protected until it ends, which is
written as a protection longer than any run. One that starts beyond it is protected for a millisecond. So what a team
has within its limit can be read off its commitment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamsched.model.quantities import DAY, WHOLE

if TYPE_CHECKING:
    from streamsched.state.usage import Budget

#: As long as the longest contract.
UNTIL_IT_ENDS_MS: Final = 366 * DAY
#: A protection begins before it ends.
NOT_AT_ALL_MS: Final = 1


def protected_time(leaf: Budget, units: int, capacity_gpus: int) -> int:
    """Return how long a run will be protected: until it ends if it starts within its team's limit, else not at all.

    Args:
        leaf: The team.
        units: The GPUs of the run, each counted at the rate of its pool.
        capacity_gpus: The schedulable GPUs of the cluster.
    """
    unpreemptible = leaf.commitment_gpus + leaf.commitment_fixed // UNTIL_IT_ENDS_MS
    return UNTIL_IT_ENDS_MS if (unpreemptible + units) * WHOLE <= leaf.quota_nano * capacity_gpus else NOT_AT_ALL_MS
