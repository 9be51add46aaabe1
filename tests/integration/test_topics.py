"""Does a real broker get the topics that ``topics/`` describes, and is a wrong one found?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from streamsched.errors import ConfigurationError, UnreachableError
from streamsched.service.topic_administration import apply, check
from streamsched.wire.topic_catalogue import catalogue
from tests.brokers import Broker

pytestmark = pytest.mark.kafka


@asynccontextmanager
async def administrator(kafka: Broker) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


@pytest.fixture
async def prefix(kafka: Broker) -> AsyncIterator[str]:
    """A prefix of this test's own, whose topics are gone afterwards."""
    mine = f"test-{uuid4().hex}."
    yield mine
    async with administrator(kafka) as admin:
        await admin.delete_topics(sorted(await names(kafka, mine)))


async def create(kafka: Broker, name: str, partitions: int, **settings: str) -> None:
    """Create one topic as somebody would by hand; settings have ``_`` for ``.``."""
    configs = {setting.replace("_", "."): value for setting, value in settings.items()}
    async with administrator(kafka) as admin:
        await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
        while (await admin.describe_topics([name]))[0]["error_code"]:
            await asyncio.sleep(0.02)


async def names(kafka: Broker, prefix: str) -> set[str]:
    async with administrator(kafka) as admin:
        return {name for name in await admin.list_topics() if name.startswith(prefix)}


async def test_topics_are_created_once(kafka: Broker, prefix: str) -> None:
    """The first `apply` creates them all as they must be; the second finds nothing to do."""
    every_topic = [prefix + name for name in catalogue()]

    missing = await check(kafka.bootstrap, prefix)
    created = await apply(kafka.bootstrap, prefix)

    assert [(difference.topic, difference.setting) for difference in missing] == [
        (name, "existence") for name in every_topic
    ]
    assert created == every_topic
    assert await check(kafka.bootstrap, prefix) == []
    assert await apply(kafka.bootstrap, prefix) == []


async def test_only_what_is_missing_is_created(kafka: Broker, prefix: str) -> None:
    """Topics that are as they must be are left alone."""
    await create(
        kafka,
        f"{prefix}receipts.v1",
        12,
        cleanup_policy="delete",
        retention_ms="604800000",
        max_message_bytes="1048576",
    )

    created = await apply(kafka.bootstrap, prefix)

    assert created == [prefix + name for name in catalogue() if name != "receipts.v1"]


async def test_two_may_apply_at_once(kafka: Broker, prefix: str) -> None:
    """Each topic is created by one of them, and neither fails."""
    first, second = await asyncio.gather(apply(kafka.bootstrap, prefix), apply(kafka.bootstrap, prefix))

    assert sorted(first + second) == [prefix + name for name in catalogue()]


async def test_a_source_topic_is_not_begun_anew_under_a_ledger(kafka: Broker, prefix: str) -> None:
    """Its offsets would start at 0, and the fold would take them for repeats. An empty ledger has seen none."""
    await apply(kafka.bootstrap, prefix)
    await remove(kafka, f"{prefix}workloads.v1")
    assert await apply(kafka.bootstrap, prefix) == [f"{prefix}workloads.v1"]

    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)
    await producer.start()
    await producer.send_and_wait(f"{prefix}ledger.v1", b"{}")
    await producer.stop()
    await remove(kafka, f"{prefix}workloads.v1")
    with pytest.raises(ConfigurationError, match=r"workloads\.v1 would be new under a ledger that has records"):
        await apply(kafka.bootstrap, prefix)

    assert f"{prefix}workloads.v1" not in await names(kafka, prefix)


async def remove(kafka: Broker, topic: str) -> None:
    """Delete a topic, and wait until it is gone. A broker lists a topic a moment after it was created."""
    async with asyncio.timeout(30):
        while topic not in await names(kafka, topic):
            await asyncio.sleep(0.1)
        async with administrator(kafka) as admin:
            await admin.delete_topics([topic])
        while topic in await names(kafka, topic):
            await asyncio.sleep(0.1)


async def test_a_wrong_partition_count_is_named_with_its_remedy(kafka: Broker, prefix: str) -> None:
    """A topic that a broker made by itself has one partition; nothing is created beside it before that is settled."""
    topic = f"{prefix}workloads.v1"
    await create(kafka, topic, 1, cleanup_policy="delete", retention_ms="2592000000", max_message_bytes="1048576")

    with pytest.raises(ConfigurationError) as refused:
        await apply(kafka.bootstrap, prefix)

    assert f"{topic}: partitions is 1 and must be 12." in str(refused.value)
    assert "While the ledger is empty, delete it and run `streamsched topics apply`" in str(refused.value)
    assert await names(kafka, prefix) == {topic}


async def test_a_compacted_ledger_is_refused(kafka: Broker, prefix: str) -> None:
    """Compaction makes holes in the history; every wrong setting is named with the command that changes it."""
    topic = f"{prefix}ledger.v1"
    await create(kafka, topic, 1, cleanup_policy="compact", max_message_bytes="8388608")

    with pytest.raises(ConfigurationError, match=r"cleanup\.policy is compact and must be delete"):
        await apply(kafka.bootstrap, prefix)
    wrong = {d.setting: d for d in await check(kafka.bootstrap, prefix) if d.topic == topic}

    assert {setting: (found.found, found.wanted) for setting, found in wrong.items()} == {
        "cleanup.policy": ("compact", "delete"),
        "retention.ms": ("604800000", "-1"),
        "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    }
    assert f"--entity-name {topic} --add-config retention.ms=-1" in wrong["retention.ms"].remedy


async def test_a_ledger_for_several_clusters_is_right(kafka: Broker, prefix: str) -> None:
    """Each cluster has a partition of its own, so there may be more than one."""
    await create(
        kafka,
        f"{prefix}ledger.v1",
        3,
        cleanup_policy="delete",
        retention_ms="-1",
        message_timestamp_type="LogAppendTime",
        max_message_bytes="8388608",
    )

    await apply(kafka.bootstrap, prefix)

    assert await check(kafka.bootstrap, prefix) == []


async def test_more_replicas_than_brokers_are_refused_in_the_broker_s_words(kafka: Broker, prefix: str) -> None:
    """No broker here has a hundred others."""
    with pytest.raises(ConfigurationError, match=r"(?s)did not create all topics.*replication factor"):
        await apply(kafka.bootstrap, prefix, replication=101)

    assert await names(kafka, prefix) == set()


@pytest.mark.parametrize(
    ("bootstrap", "error", "words"),
    [
        ("127.0.0.1:1", UnreachableError, r"127\.0\.0\.1:1 did not answer.*Check the address"),
        ("127.0.0.1:kafka", ConfigurationError, r"'127\.0\.0\.1:kafka' is no address.*write host:port"),
    ],
)
async def test_a_broker_that_is_not_there_is_said(bootstrap: str, error: type[Exception], words: str) -> None:
    """Port 1 answers nobody, and a word is no port."""
    with pytest.raises(error, match=words):
        await check(bootstrap)
