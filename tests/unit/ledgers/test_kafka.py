"""What Kafka adds to a ledger's promises: the topic must be one that keeps, and a writer in doubt stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete

from streamsched.errors import (
    ConfigurationError,
    LedgerGapError,
    LedgerTruncatedError,
    LedgerUnavailableError,
    RecordTooLargeError,
)
from streamsched.ledgers.kafka import KafkaLedger
from streamsched.model.ledger import Entry
from tests.brokers import Broker
from tests.ledger_topics import create_ledger_topic

pytestmark = pytest.mark.kafka


async def entries_of(ledger: KafkaLedger, start: int = 0) -> list[Entry]:
    return [entry async for page in ledger.read(start) for entry in page]


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("message_timestamp_type", "CreateTime", "message.timestamp.type=CreateTime must be LogAppendTime"),
        ("cleanup_policy", "compact", "cleanup.policy=compact must be delete"),
        ("cleanup_policy", "compact,delete", "cleanup.policy=compact,delete must be delete"),
        ("retention_ms", "86400000", "retention.ms=86400000 must be -1"),
        ("retention_bytes", "1000000", "retention.bytes=1000000 must be -1"),
        ("unclean_leader_election_enable", "true", "unclean.leader.election.enable=true must be false"),
    ],
)
async def test_a_topic_that_loses_history_is_refused(setting: str, value: str, wanted: str, kafka: Broker) -> None:
    """The error says which setting is wrong, what it must be and why, for readers too."""
    topic = await create_ledger_topic(kafka.bootstrap, **{setting: value})

    for readonly in (True, False):
        with pytest.raises(ConfigurationError) as raised:
            await KafkaLedger.open(kafka.bootstrap, topic, readonly=readonly)
        assert wanted in str(raised.value)
        assert topic in str(raised.value)


async def test_a_topic_or_partition_that_is_not_there_is_refused(kafka: Broker) -> None:
    """Nothing is created on the way."""
    topic = await create_ledger_topic(kafka.bootstrap)

    with pytest.raises(ConfigurationError, match=f"{topic} has no partition 1: it has 1"):
        await KafkaLedger.open(kafka.bootstrap, topic, 1)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="ledger-absent has no partition 0: UnknownTopic"):
            await KafkaLedger.open(kafka.bootstrap, "ledger-absent")


async def test_a_record_that_is_too_large_is_refused_alone(kafka: Broker) -> None:
    """It is refused before it is sent, so the writer is in no doubt and goes on."""
    topic = await create_ledger_topic(kafka.bootstrap, max_message_bytes="100000")
    ledger = await KafkaLedger.open(kafka.bootstrap, topic)

    with pytest.raises(RecordTooLargeError, match=f"max.message.bytes of the topic {topic}") as raised:
        await ledger.append(bytes(100_000))
    largest = await ledger.append(bytes(raised.value.limit_bytes))
    many = await asyncio.gather(*(ledger.append(bytes(9_000)) for _ in range(50)))

    assert [entry.cursor for entry in (largest, *many)] == list(range(51))
    assert await entries_of(ledger) == [largest, *many]
    await ledger.close()


async def test_two_writers_make_one_order(kafka: Broker) -> None:
    """Any number of schedulers append; each record has one cursor, and everyone reads the same."""
    topic = await create_ledger_topic(kafka.bootstrap)
    one, other = await asyncio.gather(*(KafkaLedger.open(kafka.bootstrap, topic) for _ in range(2)))

    appended = await asyncio.gather(
        *(
            ledger.append(name + b"%d" % number)
            for number in range(200)
            for ledger, name in ((one, b"a"), (other, b"b"))
        )
    )

    history = await entries_of(one)
    assert history == sorted(appended, key=lambda entry: entry.cursor)
    assert [entry.cursor for entry in history] == list(range(400))
    assert await entries_of(other) == history
    await one.close()
    await other.close()


async def test_deleted_records_are_a_gap(kafka: Broker) -> None:
    """A reader that needs what the topic no longer holds stops; one that begins after it reads on."""
    topic = await create_ledger_topic(kafka.bootstrap)
    ledger = await KafkaLedger.open(kafka.bootstrap, topic)
    appended = await asyncio.gather(*(ledger.append(b"%d" % number) for number in range(10)))
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=4)})
    await admin.close()

    with pytest.raises(LedgerGapError) as raised:
        await entries_of(ledger)
    assert (raised.value.expected, raised.value.found) == (0, 4)
    with pytest.raises(LedgerGapError):
        await anext(aiter(ledger.follow(3)))
    assert await entries_of(ledger, 4) == appended[4:]
    await ledger.close()


async def test_a_transaction_in_the_ledger_is_a_gap(kafka: Broker) -> None:
    """Transaction markers take offsets: a foreign transactional writer makes the history provably not ours."""
    topic = await create_ledger_topic(kafka.bootstrap)
    ledger = await KafkaLedger.open(kafka.bootstrap, topic)
    await ledger.append(b"0")
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=f"foreign-{topic}")
    await producer.start()
    async with producer.transaction():
        await producer.send_and_wait(topic, b"1", partition=0)
    await producer.stop()
    async with asyncio.timeout(10):
        while await ledger.end() < 3:  # The broker writes the marker after it has answered.
            await asyncio.sleep(0.01)

    for data in (b"3", b"4"):  # The marker is the end of the ledger, then it is not.
        with pytest.raises(LedgerGapError) as raised:
            await entries_of(ledger)
        assert (raised.value.expected, raised.value.found) == (2, 3)
        await ledger.append(data)
    await ledger.close()


async def test_a_writer_in_doubt_writes_no_more(kafka: Broker) -> None:
    """An append that is not confirmed in time stops the writer at once, and closing it does not wait for the broker."""
    topic = await create_ledger_topic(kafka.bootstrap)
    ledger = await KafkaLedger.open(kafka.bootstrap, topic, confirm_seconds=0)

    with pytest.raises(LedgerUnavailableError, match="may or may not be there"):
        await ledger.append(b"in doubt")
    with pytest.raises(LedgerUnavailableError, match="nothing was written to kafka://"):
        await ledger.append(b"refused")
    async with asyncio.timeout(5):
        await ledger.close()

    again = await KafkaLedger.open(kafka.bootstrap, topic)
    found = [entry.data for entry in await entries_of(again)]
    assert found in ([], [b"in doubt"])
    assert (await again.append(b"next")).cursor == len(found)
    await again.close()


async def test_a_ledger_that_was_made_anew_stops_its_followers(kafka: Broker) -> None:
    """A topic that was deleted and created again has an end that a follower is beyond: it never guesses."""
    topic = await create_ledger_topic(kafka.bootstrap)
    ledger = await KafkaLedger.open(kafka.bootstrap, topic)
    await asyncio.gather(*(ledger.append(b"%d" % number) for number in range(5)))
    pages = ledger.follow()
    assert len(await anext(pages)) == 5
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.delete_topics([topic])
    await admin.close()
    await create_ledger_topic(kafka.bootstrap, topic)

    with pytest.raises(LedgerTruncatedError) as raised:
        await anext(pages)

    assert (raised.value.seen, raised.value.end) == (5, 0)
    await ledger.close()


@pytest.mark.slow
async def test_a_broker_that_is_gone_stops_the_writer_and_no_reader(own_broker: Callable[[], Broker]) -> None:
    """Appends fail when their time is up, all that were under way at once; a follower waits for the broker."""
    broker = await asyncio.to_thread(own_broker)
    topic = await create_ledger_topic(broker.bootstrap)
    writer = await KafkaLedger.open(broker.bootstrap, topic, confirm_seconds=2)
    reader = await KafkaLedger.open(broker.bootstrap, topic, readonly=True)
    seen: list[bytes] = []

    async def follow() -> None:
        async for page in reader.follow():
            seen.extend(entry.data for entry in page)

    follower = asyncio.create_task(follow())
    await writer.append(b"before")

    await asyncio.to_thread(broker.kill)
    async with asyncio.timeout(10):
        results = await asyncio.gather(*(writer.append(b"gone") for _ in range(3)), return_exceptions=True)
        await writer.close()
    assert [type(result) for result in results] == [LedgerUnavailableError] * 3

    await asyncio.to_thread(broker.restart)
    again = await KafkaLedger.open(broker.bootstrap, topic)
    await again.append(b"after")
    async with asyncio.timeout(30):
        while seen[-1:] != [b"after"]:
            await asyncio.sleep(0.05)
    assert seen == [b"before", b"after"]
    await again.close()
    await reader.close()
    await follower


@pytest.mark.slow
async def test_a_broker_killed_under_load_loses_and_repeats_nothing(own_broker: Callable[[], Broker]) -> None:
    """Every append that was confirmed is there once and in the order of the calls, and so is every later one."""
    broker = await asyncio.to_thread(own_broker)
    topic = await create_ledger_topic(broker.bootstrap)
    ledger = await KafkaLedger.open(broker.bootstrap, topic)
    appends: list[asyncio.Task[Entry]] = []

    async def load(count: int) -> None:
        for number in range(len(appends), len(appends) + count):
            appends.append(asyncio.create_task(ledger.append(b"%d" % number)))
            await asyncio.sleep(0.001)

    await load(500)
    await asyncio.gather(load(500), asyncio.to_thread(broker.kill))
    await asyncio.gather(load(500), asyncio.to_thread(broker.restart))
    appended = await asyncio.gather(*appends)

    assert [entry.cursor for entry in appended] == list(range(1_500))
    assert await entries_of(ledger) == appended
    assert [entry.data for entry in appended] == [b"%d" % number for number in range(1_500)]
    await ledger.close()
