"""Is a node called lost when it has been silent for a lease, and only if we would have heard it?"""

from __future__ import annotations

from typing import Literal

import pytest

from streamsched.model.events import NodeHealth
from streamsched.service.node_watch import LATE_SWEEP_MS, Health, NodeWatch
from streamsched.wire.heartbeats import Heartbeat

LEASE = 30_000
SECOND = 1_000

HEALTHY = Health(NodeHealth.HEALTHY, None, partition=3)
SICK = Health(NodeHealth.UNHEALTHY, "GPU 2 fell off the bus", partition=3)


def beat(
    node: str = "n1",
    health: Literal[NodeHealth.HEALTHY, NodeHealth.UNHEALTHY] = NodeHealth.HEALTHY,
    reason: str | None = None,
) -> Heartbeat:
    return Heartbeat(node=node, boot="b", health=health, reason=reason, at_ms=0)


class Worker:
    """A worker that watches partition 3 and reads all that comes there."""

    def __init__(self) -> None:
        self.watch = NodeWatch(LEASE)
        self.known: dict[str, Health] = {}
        self.now_ms = 0
        self.end = 0
        self.watch.assign([3], 0)

    def hear(self, heartbeat: Heartbeat) -> Health | None:
        self.watch.read(3, self.end)
        self.end += 1
        said = self.watch.heard(heartbeat, 3, self.known.get(heartbeat.node), self.now_ms)
        if said is not None:
            self.known[heartbeat.node] = said
        return said

    def pass_time(self, ms: int) -> list[str]:
        """Sweep every second for so long; return who was silent at the end."""
        silent: list[str] = []
        for _ in range(0, ms, SECOND):
            self.now_ms += SECOND
            silent = self.watch.silent(self.known, {3: self.end}, self.now_ms)
        return silent


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_only_a_change_is_said(worker: Worker) -> None:
    """A heartbeat restates everything; the ledger has what is new."""
    assert worker.hear(beat()) == HEALTHY
    assert worker.hear(beat()) is None
    assert worker.hear(beat(health=NodeHealth.UNHEALTHY, reason=SICK.reason)) == SICK
    assert worker.hear(beat(health=NodeHealth.UNHEALTHY, reason=SICK.reason)) is None
    assert worker.hear(beat()) == HEALTHY


def test_a_node_is_lost_one_lease_after_its_last_word(worker: Worker) -> None:
    """Not a sweep earlier."""
    worker.hear(beat())
    worker.pass_time(10 * SECOND)
    worker.hear(beat())

    assert worker.pass_time(LEASE - SECOND) == []
    assert worker.pass_time(SECOND) == ["n1"]


def test_a_lost_node_is_not_lost_again(worker: Worker) -> None:
    """Until it has come back."""
    worker.known = {"n1": Health(NodeHealth.LOST, "silent", 3)}

    assert worker.pass_time(2 * LEASE) == []
    assert worker.hear(beat()) == HEALTHY


def test_a_node_that_died_while_nobody_watched_is_missed(worker: Worker) -> None:
    """What is known of it comes from the table; its lease begins when we begin to listen."""
    worker.known = {"n1": HEALTHY, "n2": SICK}

    assert worker.pass_time(LEASE - SECOND) == []
    assert worker.pass_time(SECOND) == ["n1", "n2"]


def test_nodes_of_other_workers_are_left_to_them(worker: Worker) -> None:
    """The table may hold more than our partitions, after a rebalance."""
    worker.known = {"n1": Health(NodeHealth.HEALTHY, None, partition=7)}

    assert worker.pass_time(2 * LEASE) == []
    worker.watch.assign([7], worker.now_ms)
    assert worker.pass_time(LEASE - SECOND) == []
    assert worker.pass_time(SECOND) == ["n1"]


def test_silence_does_not_count_while_the_broker_is_silent(worker: Worker) -> None:
    """When it is back the nodes get a whole lease to be heard."""
    worker.hear(beat())
    for _ in range(100):
        worker.now_ms += SECOND
        assert worker.watch.silent(worker.known, None, worker.now_ms) == []

    assert worker.pass_time(LEASE - SECOND) == []
    assert worker.pass_time(SECOND) == ["n1"]


def test_silence_does_not_count_while_we_are_behind(worker: Worker) -> None:
    """What was there a sweep ago and is not read may be the heartbeat that is missing."""
    worker.hear(beat())
    worker.end += 5
    assert worker.pass_time(3 * LEASE) == []

    worker.watch.read(3, worker.end - 1)
    assert worker.pass_time(LEASE - SECOND) == []
    assert worker.pass_time(SECOND) == ["n1"]


def test_what_was_read_before_us_does_not_make_us_late(worker: Worker) -> None:
    """A partition in which the only node has died gets no record any more that would show how far we are."""
    worker.known = {"n1": HEALTHY}
    worker.end = 4_711
    assert worker.watch.unread == {3}
    worker.watch.begin(3, 4_711)

    assert worker.watch.unread == set()
    assert worker.pass_time(LEASE - SECOND) == []
    assert worker.pass_time(SECOND) == ["n1"]


def test_silence_does_not_count_while_we_were_paused(worker: Worker) -> None:
    """A worker that was stopped for a minute has heard nobody."""
    worker.hear(beat())
    worker.pass_time(SECOND)
    worker.now_ms += 2 * LEASE
    assert worker.watch.silent(worker.known, {3: worker.end}, worker.now_ms) == []

    assert worker.pass_time(LEASE - SECOND) == []
    assert worker.pass_time(SECOND) == ["n1"]


def test_a_sweep_that_is_a_little_late_counts(worker: Worker) -> None:
    """Otherwise a busy worker would never miss anybody."""
    worker.hear(beat())
    silent: list[str] = []
    while worker.now_ms < LEASE:
        worker.now_ms += LATE_SWEEP_MS
        silent = worker.watch.silent(worker.known, {3: worker.end}, worker.now_ms)

    assert silent == ["n1"]


def test_b19b_a_recovery_that_was_lost_is_said_by_the_next_heartbeat(worker: Worker) -> None:
    """A heartbeat says how the machine is, not what has changed: any one of them will do."""
    worker.hear(beat(health=NodeHealth.UNHEALTHY, reason="GPU 2 fell off the bus"))
    worker.pass_time(20 * SECOND)  # The heartbeat that said first that all is well again was lost.

    assert worker.hear(beat()) == HEALTHY


def test_an_illness_that_turns_fatal_is_said(worker: Worker) -> None:
    """Nothing may go on there any more."""
    worker.hear(beat(health=NodeHealth.UNHEALTHY, reason="GPU 2 fell off the bus"))
    fatal = beat(health=NodeHealth.UNHEALTHY, reason="GPU 2 fell off the bus").model_copy(update={"fatal": True})

    assert worker.hear(fatal) == Health(NodeHealth.UNHEALTHY, "GPU 2 fell off the bus", 3, fatal=True)
    assert worker.hear(fatal) is None
