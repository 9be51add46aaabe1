"""Nothing is decided otherwise than it is recorded: on the golden histories, and on what the demonstration writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamsched.ledgers.archive import archive_ledger
from streamsched.ledgers.memory import MemoryLedger
from streamsched.ledgers.opening import open_ledger
from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.model.events import Unreadable
from streamsched.model.policy import NAMED_POLICIES
from streamsched.model.quantities import HOUR
from streamsched.node.virtual_node import USUAL
from streamsched.replay.verify import verify
from streamsched.reporting.demo import MAX_GPUS, SINCE_MS, TRACES
from streamsched.simulation.history import HistoryKeeper
from streamsched.simulation.simulator import simulate
from streamsched.simulation.traces import read_philly
from streamsched.simulation.virtual_cluster import uniform_cluster
from streamsched.wire.codec import encode
from tests.replays.histories import HISTORIES, read_history


@pytest.mark.parametrize("history", sorted(HISTORIES.glob("*.jsonl")), ids=lambda path: path.stem)
async def test_every_golden_history(history: Path) -> None:
    """From the very bytes that a ledger would hold."""
    now_ms = 0
    ledger = MemoryLedger(lambda: now_ms)
    for record in read_history(history):
        assert not isinstance(record.event, Unreadable)
        now_ms = record.append_ms
        await ledger.append(encode(record.event))

    verification = await verify(ledger)

    assert verification.compared > 5
    assert verification.first is None


@pytest.mark.parametrize("name", ["over_the_week", "hour_by_hour", "by_priority"])
async def test_hours_of_the_demonstration(tmp_path: Path, name: str) -> None:
    """On fewer nodes, so that work is preempted within hours; in the file that was written, and in an archive of it."""
    until_ms = SINCE_MS + 9 * HOUR
    demand = read_philly(
        TRACES / "philly_2017_jobs.csv.gz",
        TRACES / "philly_2017_vc_nodes.csv",
        since_ms=SINCE_MS,
        until_ms=until_ms,
        max_gpus=MAX_GPUS,
    )
    with HistoryKeeper(tmp_path / "ledger.sqlite", "philly", SINCE_MS) as keeper:
        state = simulate(
            demand,
            uniform_cluster(8, delays=USUAL),
            NAMED_POLICIES[name],
            since_ms=SINCE_MS,
            until_ms=until_ms,
            observers=(keeper,),
        )
    ledger = await SqliteLedger.open(tmp_path / "ledger.sqlite", readonly=True)
    try:
        await archive_ledger(ledger, tmp_path / "archive")
        in_file = await verify(ledger)
    finally:
        await ledger.close()
    archive = await open_ledger(str(tmp_path / "archive"))
    try:
        in_archive = await verify(archive)
    finally:
        await archive.close()

    assert in_file.compared == state.closed_round > 100
    assert in_file.first is None
    assert in_archive == in_file
