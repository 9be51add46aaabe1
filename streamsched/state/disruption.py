"""How many allocated GPUs may still be preempted: a bucket that empties at once and fills with time.

Source: `fair-share.md`, section 4.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamsched.model.quantities import HOUR

if TYPE_CHECKING:
    from streamsched.model.policy import Policy

#: One GPU is counted as so many units, so that a percentage per hour is a whole number of them per millisecond.
_UNITS = 100 * HOUR


class DisruptionBudget:
    """What was preempted in one pool and has not been forgiven yet. Full at the beginning."""

    __slots__ = ("as_of_ms", "spent")

    def __init__(self, spent: int = 0, as_of_ms: int = 0) -> None:
        self.spent = spent
        self.as_of_ms = as_of_ms

    def allows(self, gpus: int, pool_gpus: int, policy: Policy, now_ms: int) -> bool:
        """Whether so many allocated GPUs of a pool of that size may be preempted now."""
        return self._spent_at(pool_gpus, policy, now_ms) + gpus * _UNITS <= _depth(pool_gpus, policy)

    def allowed_from_ms(self, gpus: int, pool_gpus: int, policy: Policy, now_ms: int) -> int | None:
        """Return from when on it is allowed if nothing else is preempted; None for never."""
        missing = self._spent_at(pool_gpus, policy, now_ms) + gpus * _UNITS - _depth(pool_gpus, policy)
        if missing <= 0:
            return now_ms
        refill = pool_gpus * policy.preemption_refill_percent
        if not refill or gpus * _UNITS > _depth(pool_gpus, policy):
            return None
        return now_ms - (-missing // refill)

    def spend(self, gpus: int, pool_gpus: int, policy: Policy, now_ms: int) -> None:
        """Count a preemption."""
        self.spent = self._spent_at(pool_gpus, policy, now_ms) + gpus * _UNITS
        self.as_of_ms = now_ms

    def _spent_at(self, pool_gpus: int, policy: Policy, now_ms: int) -> int:
        refilled = pool_gpus * policy.preemption_refill_percent * (now_ms - self.as_of_ms)
        return max(0, self.spent - refilled)


def _depth(pool_gpus: int, policy: Policy) -> int:
    return pool_gpus * policy.preemption_burst_percent * HOUR
