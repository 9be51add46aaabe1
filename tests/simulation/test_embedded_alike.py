"""The simulator and the embedded service are told the same and decide the same, byte for byte."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Sequence

from streamsched.embedded.engine import Engine
from streamsched.ledgers.memory import MemoryLedger
from streamsched.model.commands import Command, Effects
from streamsched.model.events import Event, PolicyAdopted, Record, RoundProposed, Unreadable
from streamsched.model.policy import Policy
from streamsched.model.quantities import HOUR
from streamsched.node.virtual_node import USUAL
from streamsched.reporting.demo import MAX_GPUS, SINCE_MS, TRACES
from streamsched.simulation.demand import Demand
from streamsched.simulation.simulator import simulate
from streamsched.simulation.traces import read_philly
from streamsched.simulation.virtual_cluster import VirtualCluster, uniform_cluster
from streamsched.state.cluster import ClusterState
from streamsched.wire.codec import encode

UNTIL_MS = SINCE_MS + 4 * HOUR
NODES = 8
#: A simulation writes a tick only where something is due. A service that pauses no longer than this does the same.
POLICY = Policy(tick_ms=HOUR)


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing: what a loop would sleep, its clock jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.slept += timeout or 0.0
        return super().select(0)


class _JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on a clock that jumps from timer to timer."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.slept


def test_the_same_proposals_byte_for_byte() -> None:
    """Four hours of a real trace on few nodes that take their time: nobody is told what the other decided."""
    demand = read_philly(
        TRACES / "philly_2017_jobs.csv.gz",
        TRACES / "philly_2017_vc_nodes.csv",
        since_ms=SINCE_MS,
        until_ms=UNTIL_MS,
        max_gpus=MAX_GPUS,
    )
    simulated: list[bytes] = []

    def keep(record: Record, _effects: Effects, _state: ClusterState) -> None:
        assert not isinstance(record.event, Unreadable)
        simulated.append(encode(record.event))

    simulate(
        demand,
        uniform_cluster(NODES, delays=USUAL),
        POLICY,
        since_ms=SINCE_MS,
        until_ms=UNTIL_MS,
        observers=[keep],
    )

    with asyncio.Runner(loop_factory=_JumpingLoop) as runner:
        embedded = runner.run(_served(demand, uniform_cluster(NODES, delays=USUAL)))

    mark = f'"{RoundProposed.model_fields["type"].default}"'.encode()
    assert sum(mark in data for data in simulated) > 20
    assert embedded == simulated


async def _served(demand: Demand, cluster: VirtualCluster) -> list[bytes]:
    """Let the engine of the embedded service serve a demand on its own clock; return its ledger."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    obeyed = asyncio.Event()

    def now_ms() -> int:
        return SINCE_MS + round((loop.time() - began) * 1_000)

    def obey(commands: Sequence[Command]) -> None:
        cluster.obey(commands, now_ms())
        obeyed.set()

    ledger = MemoryLedger(now_ms)
    engine = await Engine.recover(ledger, obey, clock=now_ms)

    async def tell(facts: Sequence[Event]) -> None:
        await asyncio.gather(*(engine.report(fact) for fact in facts))

    await tell(
        [
            PolicyAdopted(policy=POLICY, reason="the policy of this simulation"),
            demand.budgets,
            *cluster.inventories(),
        ]
    )
    running = asyncio.ensure_future(engine.run())
    waiting = list(demand.submissions)
    while True:
        due = [waiting[0].at_ms] if waiting else []
        due += [] if cluster.next_due_ms is None else [cluster.next_due_ms]
        due_ms = min([*due, UNTIL_MS + 1])
        obeyed.clear()
        try:
            async with asyncio.timeout(max(0, due_ms - now_ms()) / 1_000):
                await obeyed.wait()
            continue
        except TimeoutError:
            if due_ms > UNTIL_MS:
                break
        facts: list[Event] = []
        while waiting and waiting[0].at_ms <= now_ms():
            facts.append(waiting.pop(0).workload)
        while (fact := cluster.next_fact(now_ms())) is not None:
            facts.append(fact)
        await tell(facts)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return [entry.data async for page in ledger.read(0) for entry in page]
