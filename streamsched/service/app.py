"""Puts the pieces of the service together, runs them, and stops them.

Each role is a Faust app with a consumer group of its own: a group in which all members read the same topics is never
rebalanced for somebody else's sake, and a scheduler is alone in its group. Faust is embedded and not run by its own
command, which would open its web server to the whole network.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import faust
import structlog
import uvloop
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from streamsched.client.repair_webhook import RepairWebhook
from streamsched.errors import ConfigurationError, StreamschedError
from streamsched.ledgers.kafka import KafkaLedger
from streamsched.service import topic_administration
from streamsched.service.dead_letters import DeadLetters
from streamsched.service.fail_stop import EXIT_FAIL_STOP, fail_stop
from streamsched.service.folded_mark import FoldedMark
from streamsched.service.health_agent import TOPIC as HEALTH_TOPIC
from streamsched.service.health_agent import HealthAgent
from streamsched.service.intake_agents import Intake, attach_intake, commit_safe
from streamsched.service.metrics import Metrics
from streamsched.service.outbox import Outbox
from streamsched.service.scheduling_agent import LEDGER_TOPIC, SchedulingAgent, attach_scheduler
from streamsched.service.settings import Role, ServiceSettings
from streamsched.service.view_agents import attach_views
from streamsched.service.view_records import USAGE_TOPIC
from streamsched.wire.topic_catalogue import catalogue

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from faust.types import AppT
    from structlog.typing import Processor

    from streamsched.ledgers.kafka import KafkaSecurity

#: In the data folder; Faust wants one, and with tables in memory it keeps nothing there.
FAUST_FOLDER = "faust"
DEAD_LETTERS_TOPIC = "dead-letters.v1"
#: ``EX_CONFIG``: wrong before anything was started; starting again does not help.
EXIT_CONFIGURATION = 78
#: Faust can hang when it is stopped while it joins its group. What is in hand then comes again, so it may be cut off.
STOP_GRACE_SECONDS = 6.0
#: How often a service that runs looks whether its topics are still there.
WATCH_TOPICS_SECONDS = 15.0

_log = structlog.get_logger(__name__)


def serve(settings: ServiceSettings) -> int:
    """Run the roles that `settings` name until SIGTERM or SIGINT; return the exit code of the process."""
    configure_logs()
    _log.info("settings", **settings.model_dump(mode="json"))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings))
    except ConfigurationError as error:
        _log.critical("not started", reason=str(error))
        return EXIT_CONFIGURATION
    except StreamschedError as error:
        _log.critical("stopped", reason=str(error))
        return EXIT_FAIL_STOP
    return 0


def configure_logs() -> None:
    """Write JSON lines to standard error: all of our own logs, and of the libraries' only warnings."""
    added: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    written = structlog.processors.JSONRenderer()
    libraries = logging.StreamHandler(sys.stderr)
    libraries.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, written],
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *added],
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[libraries])
    structlog.configure(
        processors=[*added, written],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


async def _serve(settings: ServiceSettings) -> None:
    running = asyncio.create_task(_run(settings))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, running)
    with suppress(asyncio.CancelledError):
        await running


def _stop(running: asyncio.Task[None]) -> None:
    """Stop what runs, from the last thing started to the first, and cut it off if that takes too long."""
    if running.cancelling():
        return
    _log.info("stopping")
    # A thread, since what hangs may be the event loop itself.
    timer = threading.Timer(STOP_GRACE_SECONDS, _cut_off)
    timer.daemon = True
    timer.start()
    running.cancel()


def _cut_off() -> None:
    _log.warning("did not stop in time and was cut off", seconds=STOP_GRACE_SECONDS)
    os._exit(0)


async def _run(settings: ServiceSettings) -> None:
    """Start everything in order, then wait to be cancelled, and stop everything in reverse."""
    security = settings.kafka_security()
    _make_folders(settings)
    metrics = Metrics(settings.cluster)
    async with AsyncExitStack() as started:
        server = metrics.serve(settings.host, settings.metrics_port)
        started.callback(server.server_close)
        started.callback(server.shutdown)
        outbox = await Outbox.start(settings.bootstrap, security)
        started.push_async_callback(outbox.stop)
        await _check_topics(settings, security)
        ledger = await KafkaLedger.open(
            settings.bootstrap, settings.topic(LEDGER_TOPIC), settings.ledger_partition, security=security
        )
        started.push_async_callback(ledger.close)
        shell = _Shell(settings, ledger, outbox, metrics)
        apps = [await shell.build(role, started) for role in settings.roles]
        changelogs = {
            table.changelog_topic.get_topic_name(): app.conf.topic_partitions
            for app in apps
            for table in app.tables.values()
        }
        if changelogs:
            await _create_changelogs(settings, security, changelogs)
        await asyncio.gather(*(app.start() for app in apps))
        _log.info("running", roles=[role.value for role in settings.roles])
        await _watch_topics(settings, security)


def _make_folders(settings: ServiceSettings) -> None:
    try:
        (settings.data_dir / FAUST_FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"data_dir={str(settings.data_dir)!r} cannot be used: {error.strerror} ({error.filename}). "
            "Set it to a folder that can be written."
        ) from error


async def _check_topics(settings: ServiceSettings, security: KafkaSecurity) -> None:
    differences = await topic_administration.check(settings.bootstrap, settings.topic_prefix, security=security)
    if differences:
        raise ConfigurationError("the topics are not as they must be:\n" + "\n".join(map(str, differences)))


async def _watch_topics(settings: ServiceSettings, security: KafkaSecurity) -> None:
    """End the process when a topic is gone: Faust would go on without it, and not read it when it is there again."""
    while True:
        await asyncio.sleep(WATCH_TOPICS_SECONDS)
        try:
            differences = await topic_administration.check(settings.bootstrap, settings.topic_prefix, security=security)
        except StreamschedError as error:
            _log.warning("the topics could not be checked", error=str(error))
            continue
        # A setting that somebody changed is no reason to stop: the next start says it.
        if gone := [difference.topic for difference in differences if difference.setting == "existence"]:
            fail_stop("topics are gone", None, topics=gone)


async def _create_changelogs(settings: ServiceSettings, security: KafkaSecurity, tables: Mapping[str, int]) -> None:
    """Create the topics in which Faust keeps its tables, unless they exist. Faust would only after it has joined.

    Args:
        settings: Of the service.
        security: How to connect.
        tables: The partitions of each table, by the changelog's full name.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap, **security)
    try:
        await admin.start()
        replication = min(topic_administration.REPLICATION, len((await admin.describe_cluster())["brokers"]))
        response = await admin.create_topics(
            [
                NewTopic(name, partitions, replication, topic_configs={"cleanup.policy": "compact"})
                for name, partitions in tables.items()
            ]
        )
    finally:
        await admin.close()
    for name, code, words in response.topic_errors:
        if code and for_code(code) is not TopicAlreadyExistsError:
            raise ConfigurationError(
                f"the topic {name} of a Faust table cannot be created: {words or for_code(code).__name__}. "
                "Allow this user to create it, or create it with cleanup.policy=compact and "
                f"{tables[name]} partitions."
            )


class _Shell:
    """Builds each role on what all of them share."""

    def __init__(self, settings: ServiceSettings, ledger: KafkaLedger, outbox: Outbox, metrics: Metrics) -> None:
        self._settings = settings
        self._ledger = ledger
        self._outbox = outbox
        self._metrics = metrics
        self._dead_letters = DeadLetters(outbox, settings.topic(DEAD_LETTERS_TOPIC))
        self._parts: set[asyncio.Task[None]] = set()

    async def build(self, role: Role, started: AsyncExitStack) -> AppT:
        """Return the Faust app of one role, to be started; `started` gets what stops it."""
        match role:
            case Role.INTAKE:
                return self._build_intake(started)
            case Role.HEALTH:
                return self._build_health(started)
            case Role.SCHEDULER:
                return await self._build_scheduler(started)
            case Role.VIEWS:
                app = self._app("views", started, tables_like=USAGE_TOPIC)
                attach_views(app, topic_prefix=self._settings.topic_prefix)
                return app

    def _build_intake(self, started: AsyncExitStack) -> AppT:
        app = self._app("intake", started)
        prefix = self._settings.topic_prefix
        intake = Intake(self._ledger, self._dead_letters, self._metrics, topic_prefix=prefix)
        attach_intake(app, intake, topic_prefix=prefix)
        self._keep_running(intake.run(), started)
        started.push_async_callback(commit_safe, app, intake)
        started.push_async_callback(intake.drain)
        return app

    def _build_health(self, started: AsyncExitStack) -> AppT:
        app = self._app("health", started, tables_like=HEALTH_TOPIC)
        HealthAgent(
            app,
            self._ledger,
            self._dead_letters,
            self._metrics,
            topic_prefix=self._settings.topic_prefix,
            lease_ms=self._settings.lease_ms,
        )
        return app

    async def _build_scheduler(self, started: AsyncExitStack) -> AppT:
        settings = self._settings
        replica = f"{settings.cluster}-{settings.ledger_partition}-{settings.replica}"
        agent = SchedulingAgent(
            self._ledger,
            self._outbox,
            FoldedMark(settings.data_dir / f"scheduler-{replica}.folded"),
            self._metrics,
            replica=settings.replica,
            topic_prefix=settings.topic_prefix,
        )
        await agent.recover()
        started.callback(agent.say_where)
        app = self._app(f"scheduler-{replica}", started, offset_reset="latest")
        attach_scheduler(app, agent, topic=settings.topic(LEDGER_TOPIC), partition=settings.ledger_partition)
        self._keep_running(agent.propose(), started)
        self._keep_running(agent.keep_house(), started)
        if settings.repair_webhook is not None:
            webhook = RepairWebhook(
                settings.repair_webhook,
                still_waits=agent.still_waits,
                began=agent.note_repair,
                failed=lambda emptied, problem: _log.warning(
                    "the repair of a node could not be called for", node=emptied.node, problem=problem
                ),
            )
            self._keep_running(agent.call_for_repair(webhook), started)
        return app

    def _app(
        self, name: str, started: AsyncExitStack, *, tables_like: str | None = None, offset_reset: str = "earliest"
    ) -> AppT:
        """Return a Faust app with the settings under which Faust does what it should; see `deploy/README.md`.

        Args:
            name: After the prefix, the consumer group.
            started: Gets what stops the app.
            tables_like: The topic whose partitions its tables have.
            offset_reset: Where to begin without a committed offset.
        """
        settings = self._settings
        app = faust.App(
            settings.topic_prefix + name,
            broker=";".join(f"kafka://{address}" for address in settings.bootstrap.split(",")),
            broker_credentials=settings.faust_credentials(),
            broker_session_timeout=10.0,
            broker_heartbeat_interval=2.0,
            broker_rebalance_timeout=10.0,
            broker_commit_interval=1.0,
            consumer_auto_offset_reset=offset_reset,
            processing_guarantee="at_least_once",
            producer_linger=0.02,
            stream_wait_empty=False,
            store="memory://",
            datadir=settings.data_dir / FAUST_FOLDER,
            table_standby_replicas=0,
            topic_partitions=catalogue()[tables_like].partitions if tables_like is not None else None,
            topic_disable_leader=True,
            web_enabled=name == "views",
            web_bind=settings.host,
            web_host=settings.host,
            web_port=settings.web_port,
            web_tables_enabled=False,
            web_router_enabled=False,
        )
        started.push_async_callback(app.stop)
        self._keep_running(app.wait_until_stopped(), started)
        return app

    def _keep_running(self, part: Coroutine[Any, Any, None], started: AsyncExitStack) -> None:
        """Run a part of the service that ends only when it is cancelled; its own end ends the process."""
        task = asyncio.create_task(part)
        task.add_done_callback(_ended)
        self._parts.add(task)
        started.callback(task.cancel)


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        fail_stop("a part of the service has ended", task.exception(), part=repr(task.get_coro()))
