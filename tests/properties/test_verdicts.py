"""Every workload has a verdict in every state of a hostile history, and the lists say the same word."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given

from streamsched.scheduling.obstacles import Obstacles, VerdictCode
from streamsched.scheduling.schemes import decide
from streamsched.scheduling.verdicts import verdict, waiting_code
from streamsched.state.cluster import ClusterState
from streamsched.state.workloads import Phase
from tests.properties.histories import History, histories
from tests.replays.histories import HISTORIES, read_history
from tests.replays.scenarios import SCENARIOS

_TIMELESS = (VerdictCode.RUNS, VerdictCode.STARTS, VerdictCode.STOPS, VerdictCode.PLANNED)
_NEXT = (VerdictCode.NEXT_ROUND, VerdictCode.BEHIND, VerdictCode.PROMISED)


def look(state: ClusterState) -> None:
    """Ask for every verdict, each by itself, and for the words of the lists, all at once."""
    obstacles = Obstacles(state)
    for workload in list(state.workloads.values()):
        found = verdict(state, workload.id)
        assert found.sentence
        if workload.phase is not Phase.QUEUED:
            assert found.code in _TIMELESS
            continue
        assert waiting_code(state, workload, obstacles) is found.code
        assert found.until_ms is None or found.until_ms > state.now_ms
        if found.fit is not None:
            assert sum(found.fit.nodes.model_dump().values()) == len(state.nodes)
            assert found.fit.ranks_free <= found.fit.ranks_if_unallocated_work_stops <= found.fit.ranks_takeable


@given(histories())
def test_every_workload_has_one_verdict(history: History) -> None:
    """Whatever was told, and whoever decided."""
    for state, _, _ in islice(history.folded(), 0, None, 7):
        look(state)
    look(history.state)


@given(histories())
def test_verdicts_agree_with_decisions(history: History) -> None:
    """What is decided first was next; and when nothing is left to decide, nobody is told that it is next."""
    while (proposal := decide(history.state)) is not None:
        for item in proposal.placements[:1]:
            workload = history.state.workloads[item.workload]
            assert waiting_code(history.state, workload) in _NEXT
        history.tell(proposal)
    for workload in history.state.workloads.values():
        if workload.phase is Phase.QUEUED:
            assert waiting_code(history.state, workload) is not VerdictCode.NEXT_ROUND


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_workload_of_a_recorded_history_has_one_verdict(name: str) -> None:
    """At every fiftieth record, and at the end."""
    state = ClusterState()
    for record in read_history(HISTORIES / f"{name}.jsonl"):
        state.apply(record)
        if record.cursor % 50 == 0:
            look(state)
    look(state)
