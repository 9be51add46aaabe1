"""From what a person types to a ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamsched.errors import ConfigurationError, LedgerUnavailableError
from streamsched.ledgers.archive import ArchiveLedger
from streamsched.ledgers.kafka import KafkaLedger
from streamsched.ledgers.opening import open_ledger
from streamsched.ledgers.sqlite import SqliteLedger
from tests.brokers import Broker
from tests.ledger_topics import create_ledger_topic


async def test_a_file_is_an_sqlite_ledger(tmp_path: Path) -> None:
    """A file of any name is opened; a new one is made for writing only."""
    path = tmp_path / "cluster.db"
    with pytest.raises(ConfigurationError, match="there is no ledger at"):
        await open_ledger(str(path))

    writer = await open_ledger(str(path), readonly=False)
    await writer.append(b"x")
    await writer.close()
    path.rename(tmp_path / "renamed")
    reader = await open_ledger(str(tmp_path / "renamed"))

    assert isinstance(reader, SqliteLedger)
    assert await reader.end() == 1
    with pytest.raises(ConfigurationError, match="read-only"):
        await reader.append(b"y")
    await reader.close()


async def test_a_directory_is_an_archive(tmp_path: Path) -> None:
    """A directory is an archive when it has a manifest, and otherwise a mistake."""
    with pytest.raises(ConfigurationError, match=r"is no archive: it has no manifest\.jsonl"):
        await open_ledger(str(tmp_path))
    await (await ArchiveLedger.open(tmp_path, readonly=False)).close()

    reader = await open_ledger(str(tmp_path))

    assert isinstance(reader, ArchiveLedger)
    await reader.close()


@pytest.mark.parametrize(
    "address",
    [
        "",
        "kafka://",
        "kafka://host/topic",
        "kafka://host:9092",
        "kafka://host:9092/",
        "kafka://host:9092/topic/zero",
        "kafka://host:9092/topic/0/1",
        "kafka://host:9092/to pic",
        "http://host:9092/topic",
        "sqlite:///cluster.db",
        "no/such/place",
    ],
)
@pytest.mark.parametrize("readonly", [True, False])
async def test_anything_else_is_refused_with_the_forms(address: str, readonly: bool) -> None:
    """The error repeats what was typed and says what can be."""
    with pytest.raises(ConfigurationError) as raised:
        await open_ledger(address, readonly=readonly)

    message = str(raised.value)
    assert address in message
    assert all(form in message for form in ("ledger.sqlite", "directory", "kafka://host:port[,host:port...]/topic"))


async def test_a_broker_that_does_not_answer_is_named() -> None:
    """Nothing listens on port 1."""
    with pytest.raises(LedgerUnavailableError, match=r"kafka://127\.0\.0\.1:1/ledger/0 did not answer"):
        await open_ledger("kafka://127.0.0.1:1/ledger")


@pytest.mark.kafka
@pytest.mark.parametrize("suffix", ["", "/0"])
async def test_an_address_of_kafka(suffix: str, kafka: Broker) -> None:
    """The partition is 0 unless it is named."""
    topic = await create_ledger_topic(kafka.bootstrap)

    writer = await open_ledger(f"kafka://{kafka.bootstrap}/{topic}{suffix}", readonly=False)
    reader = await open_ledger(f"kafka://{kafka.bootstrap},{kafka.bootstrap}/{topic}{suffix}")

    assert isinstance(reader, KafkaLedger)
    assert (await writer.append(b"x")).cursor == 0
    assert await reader.end() == 1
    await writer.close()
    await reader.close()
