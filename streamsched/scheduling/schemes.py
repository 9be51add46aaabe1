"""Which function decides: the policy says so, so a replay knows by what rules each proposal was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from streamsched.model.policy import Scheme
from streamsched.scheduling import decision, priority, yardsticks

if TYPE_CHECKING:
    from streamsched.model.events import RoundProposed
    from streamsched.scheduling.memory import Memory
    from streamsched.state.cluster import ClusterState


def decide(state: ClusterState, memory: Memory | None = None) -> RoundProposed | None:
    """Choose what to do now by the scheme of the policy in force. See `streamsched.scheduling.decision.decide`."""
    match state.policy.scheme:
        case Scheme.FAIR_SHARE:
            return decision.decide(state, memory)
        case Scheme.PRIORITY:
            return priority.decide(state)
        case Scheme.FIFO:
            return yardsticks.fifo(state, memory)
        case Scheme.FIFO_SKIP:
            return yardsticks.fifo_skip(state, memory)
        case Scheme.EASY_BACKFILL:
            return yardsticks.easy_backfill(state, memory)
        case _:
            assert_never(state.policy.scheme)
