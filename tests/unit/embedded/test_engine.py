"""The engine: what is durable is folded in order, whoever waits for it, and decisions follow by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from streamsched.embedded.engine import Engine
from streamsched.errors import LedgerUnavailableError
from streamsched.ledgers.memory import MemoryLedger
from streamsched.model.commands import Command, Effects
from streamsched.model.events import Event
from streamsched.model.ledger import Entry
from streamsched.replay.replayer import fold
from streamsched.state.cluster import ClusterState
from streamsched.state.snapshot import digest
from streamsched.state.workloads import Phase
from tests import stories


class SlowLedger(MemoryLedger):
    """Confirms appends late, and the later ones first."""

    def __init__(self) -> None:
        super().__init__(lambda: 1_000)
        self.is_broken = False

    async def append(self, data: bytes) -> Entry:
        if self.is_broken:
            raise LedgerUnavailableError("the disk is full")
        entry = await super().append(data)
        await asyncio.sleep(0.02 / (1 + entry.cursor))
        return entry


async def recovered(ledger: MemoryLedger, commands: list[Command] | None = None) -> Engine:
    seen: list[Command] = [] if commands is None else commands

    def obey(issued: Sequence[Command]) -> None:
        seen.extend(issued)

    return await Engine.recover(ledger, obey, clock=lambda: 1_000)


def cluster() -> list[Event]:
    return [*stories.nodes(2), stories.budgets(a=1.0)]


async def test_records_are_folded_in_the_order_of_the_ledger() -> None:
    """Whatever order their confirmations come in, and each caller hears of its own."""
    ledger = SlowLedger()
    engine = await recovered(ledger)
    await asyncio.gather(*(engine.report(event) for event in cluster()))

    def settle(cursor: int, effects: Effects, _state: ClusterState) -> tuple[int, str | None]:
        return cursor, effects.receipts[0].workload

    answers = await asyncio.gather(*(engine.record(stories.submitted(f"w{n}"), settle) for n in range(20)))

    assert answers == [(3 + n, f"w{n}") for n in range(20)]
    assert digest(await fold(ledger)) == digest(engine.state)


async def test_a_caller_that_goes_away_leaves_no_hole() -> None:
    """A client may hang up between the append and the fold; the record is there and is folded."""
    engine = await recovered(SlowLedger())
    for event in cluster():
        await engine.report(event)

    gone = asyncio.ensure_future(engine.report(stories.submitted("gone")))
    await asyncio.sleep(0)
    gone.cancel()
    await engine.report(stories.submitted("next"))
    await engine.settle()

    assert sorted(engine.state.workloads) == ["gone", "next"]


async def test_decisions_follow_what_is_recorded() -> None:
    """A submission is placed without anybody asking, and its commands go out."""
    commands: list[Command] = []
    engine = await recovered(MemoryLedger(lambda: 1_000), commands)
    running = asyncio.ensure_future(engine.run())
    for event in cluster():
        await engine.report(event)

    await engine.report(stories.submitted("w", ranks=2))
    async with asyncio.timeout(5):
        while engine.state.workloads["w"].phase is not Phase.BOUND:
            await asyncio.sleep(0.001)

    assert [command.node for command in commands] == ["n1", "n2"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_commands_that_nobody_answered_are_sent_again_at_the_start() -> None:
    """The process may have died between the fold and the send."""
    ledger = MemoryLedger(lambda: 1_000)
    first = await recovered(ledger)
    running = asyncio.ensure_future(first.run())
    for event in [*cluster(), stories.submitted("w", ranks=2)]:
        await first.report(event)
    async with asyncio.timeout(5):
        while first.state.workloads["w"].phase is not Phase.BOUND:
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    commands: list[Command] = []
    second = await recovered(ledger, commands)
    running = asyncio.ensure_future(second.run())
    await asyncio.sleep(0.01)

    assert [command.node for command in commands] == ["n1", "n2"]
    assert second.chronicle.story("w")[0].event == "workload_submitted"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_ledger_that_takes_nothing_stops_the_engine() -> None:
    """A decision that cannot be recorded is not made."""
    ledger = SlowLedger()
    engine = await recovered(ledger)
    for event in [*cluster(), stories.submitted("w")]:
        await engine.report(event)
    ledger.is_broken = True

    with pytest.raises(LedgerUnavailableError, match="the disk is full"):
        await engine.run()
    assert engine.state.workloads["w"].phase is Phase.QUEUED
