"""``streamsched up``: one process with a ledger, a scheduler, an HTTP intake and virtual nodes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from aiohttp import web

from streamsched.client.repair_webhook import RepairWebhook
from streamsched.embedded.endpoints import application
from streamsched.embedded.engine import Engine
from streamsched.embedded.local_nodes import LocalNodes
from streamsched.errors import ConfigurationError
from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.ledgers.writing import wall_clock_ms
from streamsched.model.events import BudgetShare, BudgetTreeChanged, NodeHealth
from streamsched.node.durable import NodeStore
from streamsched.node.virtual_node import NodeSpec
from streamsched.state.cluster import ClusterState
from streamsched.state.machines import awaiting_repair, awaits_repair

LEDGER_FILE = "ledger.sqlite"
#: How long a stop waits for requests that are being answered.
STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What one embedded cluster is made of.

    Attributes:
        data: The directory of its ledger and of what its virtual nodes hold.
        host: The address to listen at.
        port: The port; 0 for any free one.
        nodes: The virtual nodes to host; None for those that the ledger knows.
        speed: How much faster than true their work runs.
        budgets: The tree of a new cluster; None to leave it as it is.
        repair_webhook: Where to POST that a node has become empty; None for nowhere.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 7070
    nodes: tuple[NodeSpec, ...] | None = None
    speed: int = 1
    budgets: tuple[BudgetShare, ...] | None = None
    repair_webhook: str | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """What is said once the service answers.

    Attributes:
        url: Where.
        ledger: The ledger's file.
        records: How many records were there before.
        nodes: Virtual nodes hosted, and their GPUs.
        budgets: Budgets in the tree.
        live: Workloads that go on.
    """

    url: str
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
    uvloop.run(_up(settings, started, progress))


async def _up(settings: Settings, started: Callable[[Started], None], progress: Callable[[int], None]) -> None:
    stop = _stop_signal()
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the data directory {settings.data} cannot be made: {error.strerror}. Name another with --data."
        ) from error
    # Its lock keeps a second process off the whole directory.
    ledger = await SqliteLedger.open(settings.data / LEDGER_FILE, cluster="local")
    try:
        store = NodeStore(settings.data)
        try:
            nodes = LocalNodes(store, speed=settings.speed, clock=wall_clock_ms)
            engine = await Engine.recover(ledger, nodes.obey, progress=progress)
            records = engine.state.next_cursor
            _check_budgets(settings.budgets, engine.state)
            nodes.host(_known_nodes(engine.state) if settings.nodes is None else settings.nodes, engine.state.nodes)
            async with _listening(settings, engine) as url:
                live = asyncio.ensure_future(
                    _live(settings, engine, nodes, lambda: started(_told(url, ledger, records, engine, nodes)))
                )
                await asyncio.wait({live, stop}, return_when=asyncio.FIRST_COMPLETED)
            live.cancel()
            await asyncio.wait({live})
            await engine.settle()
            if not live.cancelled():
                live.result()
        finally:
            store.close()
    finally:
        await ledger.close()


async def _live(settings: Settings, engine: Engine, nodes: LocalNodes, ready: Callable[[], None]) -> None:
    """Decide, let the nodes report, and say when all is there. Ends only by an error."""
    deciding = asyncio.ensure_future(engine.run())
    parts = [deciding, asyncio.ensure_future(_work(settings, engine, nodes, ready))]
    if settings.repair_webhook is not None:
        parts.append(asyncio.ensure_future(_call_for_repair(settings.repair_webhook, engine)))
    try:
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        # What broke the engine broke the others too; its own error is the one to tell.
        for task in parts:
            if task.done():
                task.result()
    finally:
        for task in parts:
            task.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


async def _call_for_repair(url: str, engine: Engine) -> None:
    """Tell of empty nodes, those of before the start too. Ends only by an error."""
    webhook = RepairWebhook(
        url,
        still_waits=lambda emptied: awaits_repair(engine.state, emptied),
        began=engine.report,
        failed=lambda _node, _problem: None,  # `node show` says that the node is empty, and since when.
    )
    engine.emptied = webhook.tell
    for emptied in awaiting_repair(engine.state):
        webhook.tell(emptied)
    await webhook.run()


async def _work(settings: Settings, engine: Engine, nodes: LocalNodes, ready: Callable[[], None]) -> None:
    await nodes.report_presence(engine.report, dict(engine.state.nodes))
    if settings.budgets is not None and engine.state.budgets.change is None:
        reason = "given when the cluster was started"
        await engine.report(BudgetTreeChanged(change="first", reason=reason, budgets=settings.budgets))
    ready()
    await nodes.run(engine.report)


@asynccontextmanager
async def _listening(settings: Settings, engine: Engine) -> AsyncIterator[str]:
    """Answer requests while the context is open; give the URL."""
    app = application(engine, host=settings.host)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen at {settings.host}:{settings.port}: {error.strerror or error}. "
                "Stop whoever does, or choose another port with --port."
            ) from error
        host, port = runner.addresses[0][:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def _stop_signal() -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def request() -> None:
        if not stop.done():
            stop.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, request)
    return stop


def _known_nodes(state: ClusterState) -> tuple[NodeSpec, ...]:
    """Return the nodes that were hosted last: those that were not are lost."""
    return tuple(
        NodeSpec(node.id, node.pool, node.gpus, node.reported[1])
        for node in sorted(state.nodes.values(), key=lambda node: node.id)
        if node.health is not NodeHealth.LOST
    )


def _check_budgets(wanted: tuple[BudgetShare, ...] | None, state: ClusterState) -> None:
    if wanted is None or state.budgets.change is None:
        return
    there = {budget.id: budget.fraction_nano for budget in state.budgets.root.below() if budget.id}
    if there != {share.budget: share.fraction_nano for share in wanted}:
        raise ConfigurationError(
            "this cluster has another budget tree than the one given. Start without --budget and --budgets, and change "
            "the tree with `streamsched budgets apply FILE`."
        )


def _told(url: str, ledger: SqliteLedger, records: int, engine: Engine, nodes: LocalNodes) -> Started:
    state = engine.state
    return Started(
        url=url,
        ledger=ledger.path,
        records=records,
        nodes=len(nodes),
        gpus=nodes.gpus,
        budgets=len(state.budgets.by_id),
        live=len(state.workloads),
    )
