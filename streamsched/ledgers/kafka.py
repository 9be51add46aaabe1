"""The production ledger: one partition of a Kafka topic, kept forever, whose offsets are the cursors.

Offsets are dense because nothing but plain records is ever written: no transactions (their markers take offsets) and
no compaction. The broker stamps each record as it appends it, so the append time has one clock. Readers take the
partition by hand, without a consumer group, so that no rebalance can stop a fold.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TypedDict

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, for_code

from streamsched.errors import (
    ConfigurationError,
    LedgerClosedError,
    LedgerGapError,
    LedgerUnavailableError,
    RecordTooLargeError,
)
from streamsched.ledgers.reading import PAGE_ENTRIES, check_start
from streamsched.ledgers.writing import GroupCommit
from streamsched.model.ledger import Entry

#: What the topic of a ledger must be, and what goes wrong otherwise.
REQUIRED_TOPIC_CONFIG: Mapping[str, tuple[str, str]] = {
    "message.timestamp.type": ("LogAppendTime", "append times would be the producers' clocks"),
    "cleanup.policy": ("delete", "compaction removes records from the history"),
    "retention.ms": ("-1", "old records would be deleted"),
    "retention.bytes": ("-1", "old records would be deleted"),
    "unclean.leader.election.enable": ("false", "a new leader could lose acknowledged records"),
}
#: The idempotent producer repeats a batch until the broker answers, without end of its own. A leader that died is
#: replaced within 14 s and a broker that restarts is back as soon; after four times that we stop and say so.
CONFIRM_SECONDS = 60.0
#: How long opening, or a read that gets nothing though there is more, may wait for the broker.
ANSWER_SECONDS = 30.0
#: How soon a follower notices that the ledger was closed. Records do not wait for it.
POLL_MS = 200
#: A batch holds at most this much even where the topic takes more.
BATCH_BYTES = 1_000_000
#: Bytes of a batch and a record beyond the data, at most, in Kafka's format (61 and 21, rounded up).
BATCH_OVERHEAD_BYTES = 128


class KafkaSecurity(TypedDict, total=False):
    """How to connect, as aiokafka names it."""

    security_protocol: str
    ssl_context: ssl.SSLContext
    sasl_mechanism: str
    sasl_plain_username: str
    sasl_plain_password: str
    sasl_kerberos_service_name: str
    sasl_kerberos_domain_name: str
    sasl_oauth_token_provider: AbstractTokenProvider


class KafkaLedger:
    """A ledger in a topic partition: any number of writers and readers.

    A writer is fail-stop: after one append that was not confirmed it refuses every other, since going on would leave
    a gap in a source's sequence.
    """

    def __init__(self, bootstrap: str, where: TopicPartition, security: KafkaSecurity, probe: AIOKafkaConsumer) -> None:
        """Take over a started consumer that is asked for offsets; callers use `KafkaLedger.open`."""
        self._bootstrap = bootstrap
        self._where = where
        self._security = security
        self._probe = probe
        self._writer: _Writer | None = None
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        bootstrap: str,
        topic: str,
        partition: int = 0,
        *,
        readonly: bool = False,
        security: KafkaSecurity | None = None,
        confirm_seconds: float = CONFIRM_SECONDS,
    ) -> KafkaLedger:
        """Connect, and check that the topic can be a ledger.

        Args:
            bootstrap: Brokers to begin with, ``host:port[,host:port...]``.
            topic: The ledger topic. It is never created here.
            partition: The partition, one per cluster.
            readonly: Start no producer.
            security: Passed to aiokafka; plain text when None.
            confirm_seconds: How long an append may stay unconfirmed before the writer gives up.

        Raises:
            ConfigurationError: The topic or the partition does not exist, or is set so that it would lose history.
            LedgerUnavailableError: No broker answered, or it refused.
        """
        security = security or KafkaSecurity()
        where = TopicPartition(topic, partition)
        async with AsyncExitStack() as undo, _broker_errors(bootstrap, where):
            async with asyncio.timeout(ANSWER_SECONDS):
                max_message_bytes = await _check_topic(bootstrap, where, security)
                # Registered before it starts: a consumer or producer that failed to start has connections too.
                probe = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, **security)
                undo.push_async_callback(probe.stop)
                await probe.start()
                ledger = cls(bootstrap, where, security, probe)
                if not readonly:
                    batch_bytes = min(BATCH_BYTES, max_message_bytes)
                    producer = AIOKafkaProducer(
                        bootstrap_servers=bootstrap,
                        enable_idempotence=True,
                        acks="all",
                        max_batch_size=batch_bytes,
                        max_request_size=max_message_bytes,
                        **security,
                    )
                    undo.push_async_callback(producer.stop)
                    await producer.start()
                    ledger._writer = _Writer(
                        str(ledger), producer, where, max_message_bytes, batch_bytes, confirm_seconds
                    )
            undo.pop_all()
        return ledger

    def __str__(self) -> str:
        return _name(self._bootstrap, self._where)

    async def append(self, data: bytes) -> Entry:
        """Add one record and return it with the offset and time the broker gave it; see `Ledger.append`.

        Raises:
            RecordTooLargeError: The topic takes no record of this size. Nothing was sent.
            ConfigurationError: The ledger was opened read-only.
        """
        if self._writer is None:
            raise ConfigurationError(f"the ledger {self} was opened read-only. Open it with readonly=False to append.")
        return await self._writer.append(data)

    async def end(self) -> int:
        """Return the partition's end offset, asked of the broker."""
        if self._is_closed:
            raise LedgerClosedError(str(self))
        async with _broker_errors(self._bootstrap, self._where):
            return int((await self._probe.end_offsets([self._where]))[self._where])

    async def read(self, start: int = 0) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries from `start` to the end as the broker gives it now; see `Ledger.read`."""
        end = await self._check_start(start)
        if start == end:
            return
        async for page in self._consume(start, patience_seconds=ANSWER_SECONDS):
            inside = page[: end - page[0].cursor]
            yield inside
            if inside[-1].cursor == end - 1:
                return

    async def follow(self, start: int = 0) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries from `start` and those to come; see `Ledger.follow`. While no broker answers, it waits."""
        with suppress(LedgerClosedError):
            await self._check_start(start)
            async for page in self._consume(start, patience_seconds=None):
                yield page

    async def close(self) -> None:
        """Wait for what was appended to be confirmed, then disconnect. Followers end within 200 ms."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._writer is not None:
            await self._writer.close()
        await self._probe.stop()

    async def _check_start(self, start: int) -> int:
        """Return the end, having checked that the partition still holds `start`."""
        end = await self.end()
        check_start(start, end)
        first = await self._first()
        if start < first:
            raise LedgerGapError(start, first)
        return end

    async def _first(self) -> int:
        """Return the first offset that the partition still holds: 0, unless someone deleted records."""
        async with _broker_errors(self._bootstrap, self._where):
            return int((await self._probe.beginning_offsets([self._where]))[self._where])

    async def _consume(self, start: int, *, patience_seconds: float | None) -> AsyncIterator[Sequence[Entry]]:
        """Yield pages from `start` without end.

        Args:
            start: An offset that the partition holds, or its end.
            patience_seconds: How long nothing may come before that is an error; for ever when None.
        """
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            **self._security,
        )
        try:
            async with _broker_errors(self._bootstrap, self._where):
                await consumer.start()
            consumer.assign([self._where])
            consumer.seek(self._where, start)
            cursor = start
            loop = asyncio.get_running_loop()
            heard = loop.time()
            while True:
                if self._is_closed:
                    raise LedgerClosedError(str(self))
                page = await self._fetch(consumer, cursor)
                if page:
                    yield page
                    cursor = page[-1].cursor + 1
                    heard = loop.time()
                elif patience_seconds is not None and loop.time() > heard + patience_seconds:
                    raise LedgerUnavailableError(
                        f"{self} gave nothing for {patience_seconds:.0f} s at cursor {cursor}, though it has more. "
                        "Check that the leader of the partition is up."
                    )
        finally:
            await consumer.stop()

    async def _fetch(self, consumer: AIOKafkaConsumer, cursor: int) -> Sequence[Entry]:
        """Return the next page, empty when nothing came within a poll."""
        try:
            async with _broker_errors(self._bootstrap, self._where):
                fetched = await consumer.getmany(timeout_ms=POLL_MS, max_records=PAGE_ENTRIES)
                records = fetched.get(self._where, ())
                next_offset = records[0].offset if records else await consumer.position(self._where)
        except OffsetOutOfRangeError:
            check_start(cursor, await self.end())
            raise LedgerGapError(cursor, await self._first()) from None
        # The position may move without a record: over the markers of a transaction, which are none of ours.
        if next_offset > cursor:
            raise LedgerGapError(cursor, next_offset)
        page = []
        for expected, record in enumerate(records, start=cursor):
            if record.offset != expected:
                raise LedgerGapError(expected, record.offset)
            # A record without a value is none of ours, and is carried as what it is: no bytes.
            page.append(Entry(record.offset, record.timestamp, record.value or b""))
        return page


class _Writer:
    """The idempotent producer. One batch is in flight at a time, so nothing is sent after one that failed."""

    def __init__(
        self,
        ledger: str,
        producer: AIOKafkaProducer,
        where: TopicPartition,
        max_message_bytes: int,
        batch_bytes: int,
        confirm_seconds: float,
    ) -> None:
        self._producer = producer
        self._where = where
        self._max_data_bytes = max_message_bytes - BATCH_OVERHEAD_BYTES
        self._confirm_seconds = confirm_seconds
        self._commits = GroupCommit(ledger, self._commit, batch_bytes=batch_bytes - BATCH_OVERHEAD_BYTES)
        self._is_abandoned = False

    async def append(self, data: bytes) -> Entry:
        if len(data) > self._max_data_bytes:
            raise RecordTooLargeError(
                len(data), self._max_data_bytes, f"Raise max.message.bytes of the topic {self._where.topic}."
            )
        return await self._commits.append(data)

    async def close(self) -> None:
        await self._commits.close()
        if not self._is_abandoned:
            await self._producer.stop()

    async def _commit(self, batch: Sequence[bytes]) -> Sequence[Entry]:
        try:
            return await self._send(batch)
        except BaseException:
            await self._abandon()
            raise

    async def _send(self, batch: Sequence[bytes]) -> Sequence[Entry]:
        builder = self._producer.create_batch()
        for data in batch:
            if builder.append(timestamp=None, key=None, value=data) is None:
                raise LedgerUnavailableError(f"a batch of {len(batch)} records does not fit into one request")
        builder.close()
        try:
            async with asyncio.timeout(self._confirm_seconds):
                sent = await self._producer.send_batch(builder, self._where.topic, partition=self._where.partition)
                sent.add_done_callback(_read_error)
                await asyncio.wait([sent])  # Which does not cancel it.
        except TimeoutError as error:
            raise LedgerUnavailableError(f"no broker confirmed it within {self._confirm_seconds:g} s") from error
        done = sent.result()
        if done.offset < 0:
            raise LedgerUnavailableError("the broker knows the batch as a repetition, but not where it is")
        if done.timestamp is None or done.timestamp < 0:
            raise LedgerUnavailableError("the broker gave no append time; set message.timestamp.type=LogAppendTime")
        return [Entry(done.offset + index, done.timestamp, data) for index, data in enumerate(batch)]

    async def _abandon(self) -> None:
        """Stop the producer without delivering what it still holds.

        `AIOKafkaProducer.stop` waits until all is delivered, which is for ever when the broker does not answer, and
        aiokafka 0.14 has no other way to stop. So what it holds is failed first and its connections are closed. A
        request in flight then ends its sender with an error; the callback for that only serves transactions.
        """
        self._is_abandoned = True
        sender = self._producer._sender
        sender.sender_task.remove_done_callback(sender._fail_all)
        self._producer._message_accumulator.fail_all(KafkaError("the ledger's writer has stopped"))
        await self._producer.client.close()
        with suppress(Exception):
            await self._producer.stop()


def _read_error(sent: asyncio.Future[object]) -> None:
    """Read the error of a batch that nobody waits for any more, so that asyncio does not report it as unread."""
    if not sent.cancelled():
        sent.exception()


async def _check_topic(bootstrap: str, where: TopicPartition, security: KafkaSecurity) -> int:
    """Check that the topic can be a ledger; return the size of the largest batch it takes, in bytes."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **security)
    try:
        await admin.start()
        (topic,) = await admin.describe_topics([where.topic])
        partitions = len(topic["partitions"])
        if topic["error_code"] or where.partition >= partitions:
            raise ConfigurationError(
                f"the ledger topic {where.topic} has no partition {where.partition}: "
                + (f"{for_code(topic['error_code']).__name__}. " if topic["error_code"] else f"it has {partitions}. ")
                + "Create the topics with `streamsched topics apply`, or name a partition that exists."
            )
        (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, where.topic)])
        (described,) = response.to_object()["resources"]
    finally:
        await admin.close()
    if described["error_code"]:
        raise ConfigurationError(
            f"the settings of the topic {where.topic} cannot be read: {for_code(described['error_code']).__name__}. "
            "Allow this user DescribeConfigs on the topic."
        )
    config = {entry["config_names"]: entry["config_value"] for entry in described["config_entries"]}
    wrong = [
        f"{name}={config[name]} must be {wanted}, or {harm}"
        for name, (wanted, harm) in REQUIRED_TOPIC_CONFIG.items()
        if config.get(name, wanted) != wanted
    ]
    if wrong:
        raise ConfigurationError(
            f"the topic {where.topic} cannot be a ledger: {'; '.join(wrong)}. "
            "Change the topic's settings before anything more is written to it."
        )
    return int(config["max.message.bytes"])


@asynccontextmanager
async def _broker_errors(bootstrap: str, where: TopicPartition) -> AsyncIterator[None]:
    """Turn what aiokafka raises into our errors, except an offset out of range, which the caller must judge."""
    try:
        yield
    except OffsetOutOfRangeError:
        raise
    except (KafkaError, TimeoutError, OSError) as error:
        raise LedgerUnavailableError(
            f"{_name(bootstrap, where)} did not answer: {str(error) or type(error).__name__}. "
            "Check the address, that the brokers are up, and the security settings."
        ) from error
    except ValueError as error:
        raise ConfigurationError(
            f"{_name(bootstrap, where)} cannot be opened: {error}. Correct the address or settings."
        ) from error


def _name(bootstrap: str, where: TopicPartition) -> str:
    return f"kafka://{bootstrap}/{where.topic}/{where.partition}"
