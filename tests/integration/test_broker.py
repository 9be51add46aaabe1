"""Does the real broker that the fixtures give behave as the ledger assumes?"""

import asyncio
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import kafka_local
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests import brokers
from tests.brokers import Broker

pytestmark = pytest.mark.kafka

#: aiokafka's name for "the broker set the time".
LOG_APPEND_TIME = 1


async def a_ledger_topic(bootstrap: str) -> TopicPartition:
    """Make a topic of one partition whose records carry the broker's time, and name its partition."""
    topic = f"ledger-{uuid.uuid4().hex}"
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics(
            [NewTopic(topic, 1, 1, topic_configs={"message.timestamp.type": "LogAppendTime"})], timeout_ms=10_000
        )
    finally:
        await admin.close()
    return TopicPartition(topic, 0)


async def appended(bootstrap: str, partition: TopicPartition, values: list[bytes]) -> list[int]:
    """Append idempotently, one after the other, and return the acknowledged offsets."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all")
    await producer.start()
    try:
        return [
            (await producer.send_and_wait(partition.topic, value, partition=0, timestamp_ms=1)).offset
            for value in values
        ]
    finally:
        await producer.stop()


async def read_whole(bootstrap: str, partition: TopicPartition) -> list[ConsumerRecord]:
    """Read the partition from its first record to its present end."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        records: list[ConsumerRecord] = []
        while len(records) < end:
            records += (await consumer.getmany(partition, timeout_ms=1_000)).get(partition, [])
        return records
    finally:
        await consumer.stop()


async def test_the_broker_keeps_order_and_sets_the_time(kafka: Broker) -> None:
    """Records come back in append order, without holes, with the broker's time and not the producer's."""
    partition = await a_ledger_topic(kafka.bootstrap)
    before_ms = time.time_ns() // 1_000_000

    offsets = await appended(kafka.bootstrap, partition, [b"first", b"second", b"third"])
    records = await read_whole(kafka.bootstrap, partition)

    assert offsets == [0, 1, 2]
    assert [(record.offset, record.value) for record in records] == [(0, b"first"), (1, b"second"), (2, b"third")]
    assert {record.timestamp_type for record in records} == {LOG_APPEND_TIME}
    # A broker on another machine may have another clock; a minute is far from the producer's 1 ms after 1970.
    assert all(abs(record.timestamp - before_ms) < 60_000 for record in records)


@pytest.mark.slow
async def test_a_killed_broker_keeps_what_it_acknowledged(own_broker: Callable[[], Broker]) -> None:
    """After kill -9 and a restart at the same address, every acknowledged record is there, and appends go on."""
    broker = own_broker()
    partition = await a_ledger_topic(broker.bootstrap)
    values = [f"before {n}".encode() for n in range(200)]
    await appended(broker.bootstrap, partition, values)

    await asyncio.to_thread(broker.kill)
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection(*broker.bootstrap.split(":"))
    await asyncio.to_thread(broker.restart)
    await appended(broker.bootstrap, partition, [b"after"])

    records = await read_whole(broker.bootstrap, partition)
    assert [record.value for record in records] == [*values, b"after"]
    assert [record.offset for record in records] == list(range(201))


def test_a_container_gets_the_settings_of_the_local_broker() -> None:
    """The image takes node.id from KAFKA_NODE_ID; clients are told the address outside the container."""
    environment = brokers.container_environment("docker.example:31234")

    assert environment["KAFKA_NODE_ID"] == "1"
    assert environment["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
    assert environment["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://docker.example:31234"
    assert environment["KAFKA_LISTENERS"] == "PLAINTEXT://0.0.0.0:9092,CONTROLLER://localhost:9093"


def test_a_named_broker_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who names a broker wants that one: no other is taken, no test is skipped, and the message has the address."""
    address = f"127.0.0.1:{kafka_local.free_port()}"
    monkeypatch.setenv("STREAMSCHED_TEST_KAFKA", address)

    with pytest.raises(ConnectionError, match=f"{address}.*unset the variable"):
        brokers.shared_broker(tmp_path)


@pytest.mark.skipif(brokers.docker_answers(), reason="a container is removed by testcontainers' reaper, not by us")
def test_a_broker_does_not_outlive_a_killed_test_run(tmp_path: Path, own_broker: Callable[[], Broker]) -> None:
    """SIGKILL gives a test run no chance to clean up; its broker ends all the same."""
    own_broker().kill()  # Skips, or fails in CI, where there is no broker to be had.
    run = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "orphan")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    with run.stdout:
        pid = int(run.stdout.readline())
    assert "kafka.Kafka" in kafka_local.command_line(pid)

    run.send_signal(signal.SIGKILL)
    run.wait()

    deadline = time.monotonic() + 10
    while kafka_local.command_line(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "kafka.Kafka" not in kafka_local.command_line(pid)


PROGRAM = """
import sys, time
from pathlib import Path
from tests.brokers import JvmBroker

directory = Path(sys.argv[1])
JvmBroker(directory)
print((directory / "broker.pid").read_text(), flush=True)
time.sleep(60)
"""
