"""``streamsched up``: one process with a ledger, a scheduler, an HTTP intake and virtual nodes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop
from aiohttp import web

from streamsched.embedded.endpoints import application
from streamsched.embedded.engine import Engine
from streamsched.embedded.local_nodes import Fleet, LocalNodes
from streamsched.errors import ConfigurationError
from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.ledgers.writing import wall_clock_ms
from streamsched.model.events import BudgetShare, BudgetTreeChanged
from streamsched.state.cluster import ClusterState

#: How long a stop waits for requests that are being answered.
STOP_SECONDS = 5.0
LEDGER_FILE = "ledger.sqlite"
NODES_FILE = "nodes.sqlite"


@dataclass(frozen=True, slots=True)
class Settings:
    """What one embedded cluster is made of.

    Attributes:
        data: The directory of its ledger and of what its virtual nodes hold.
        host: The address to listen at.
        port: The port; 0 for any free one.
        fleets: The virtual nodes to host; None for those that `data` knows.
        speed: How much faster than true the virtual nodes' work runs.
        budgets: The tree of a new cluster; None to leave it as it is.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 7070
    fleets: tuple[Fleet, ...] | None = None
    speed: int = 1
    budgets: tuple[BudgetShare, ...] | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """What is said once the service answers."""

    url: str
    data: Path
    ledger: Path
    records: int
    nodes: int
    gpus: int
    budgets: int
    live: int


def up(settings: Settings, *, started: Callable[[Started], None], progress: Callable[[int], None]) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        settings: What to run.
        started: Told once requests are answered.
        progress: Told how many records have been folded, while a long ledger is read.

    Raises:
        ConfigurationError: The data directory or the port is in use, or the budgets are others than the ledger has.
        LedgerError: The ledger cannot be read or written.
        Exception: The fold failed: a bug. The process must end; a restart that fails at the same record needs a fix.
    """
    uvloop.run(_serve(settings, started, progress))


async def _serve(settings: Settings, started: Callable[[Started], None], progress: Callable[[int], None]) -> None:
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the data directory {settings.data} cannot be made: {error.strerror}. Name another with --data."
        ) from error
    # Its lock keeps a second process off the whole directory.
    ledger = await SqliteLedger.open(settings.data / LEDGER_FILE, cluster="local")
    try:
        nodes = LocalNodes(settings.data / NODES_FILE, settings.fleets, speed=settings.speed, clock=wall_clock_ms)
        try:
            engine = await Engine.recover(ledger, nodes.obey, progress=progress)
            _check_budgets(settings.budgets, engine.state)
            await _live(settings, engine, nodes, ledger, started)
            await engine.settle()
        finally:
            nodes.close()
    finally:
        await ledger.close()


async def _live(
    settings: Settings, engine: Engine, nodes: LocalNodes, ledger: SqliteLedger, started: Callable[[Started], None]
) -> None:
    runner = web.AppRunner(
        application(engine, hosts=frozenset({settings.host})), access_log=None, shutdown_timeout=STOP_SECONDS
    )
    await runner.setup()
    site = web.TCPSite(runner, settings.host, settings.port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigurationError(
            f"cannot listen at {settings.host}:{settings.port}: {error.strerror or error}. "
            "Stop whoever does, or choose another port with --port."
        ) from error
    try:
        stop = _stop_signal()
        running = [asyncio.ensure_future(engine.run()), asyncio.ensure_future(_begin(settings, engine, nodes))]
        await asyncio.wait({running[1], stop}, return_when=asyncio.FIRST_COMPLETED)
        if running[1].done():
            running[1].result()
            started(_summary(settings, engine, nodes, ledger, runner))
            running.append(asyncio.ensure_future(nodes.run(engine.report)))
            await asyncio.wait({running[0], running[2], stop}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await runner.cleanup()
    await _end(running)


async def _begin(settings: Settings, engine: Engine, nodes: LocalNodes) -> None:
    """Bring the state up to what is here: the nodes, and the budgets of a new cluster."""
    await nodes.report_presence(engine.report, dict(engine.state.nodes))
    if settings.budgets is not None and engine.state.budgets.change is None:
        await engine.report(
            BudgetTreeChanged(change="first", reason="given when the cluster was started", budgets=settings.budgets)
        )


async def _end(running: list[asyncio.Future[None]]) -> None:
    """Cancel what still runs, and raise what had failed."""
    failed = [task for task in running if task.done() and not task.cancelled() and task.exception() is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for task in failed:
        task.result()


def _stop_signal() -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def request() -> None:
        if not stop.done():
            stop.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, request)
    return stop


def _check_budgets(wanted: tuple[BudgetShare, ...] | None, state: ClusterState) -> None:
    if wanted is None or state.budgets.change is None:
        return
    there = {budget.id: budget.fraction_nano for budget in state.budgets.root.below() if budget.id}
    if there != {share.budget: share.fraction_nano for share in wanted}:
        raise ConfigurationError(
            "this cluster has another budget tree than the one given. Start without --budget and --budgets, and change "
            "the tree with `streamsched budgets apply FILE`."
        )


def _summary(
    settings: Settings, engine: Engine, nodes: LocalNodes, ledger: SqliteLedger, runner: web.AppRunner
) -> Started:
    host, port = runner.addresses[0][:2]
    return Started(
        url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}",
        data=settings.data,
        ledger=ledger.path,
        records=engine.state.next_cursor,
        nodes=len(nodes),
        gpus=nodes.gpus,
        budgets=len(engine.state.budgets.by_id),
        live=len(engine.state.workloads),
    )
