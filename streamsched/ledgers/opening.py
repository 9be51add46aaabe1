"""From what a person types to a ledger."""

from __future__ import annotations

import re
from pathlib import Path

from streamsched.errors import ConfigurationError
from streamsched.ledgers.archive import ArchiveLedger
from streamsched.ledgers.archive_format import MANIFEST
from streamsched.ledgers.kafka import KafkaLedger, KafkaSecurity
from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.model.ledger import Ledger

_FORMS = (
    "a SQLite ledger (path/to/ledger.sqlite), an archive's directory, or "
    "kafka://host:port[,host:port...]/topic[/partition]"
)
_KAFKA = re.compile(r"kafka://(?P<bootstrap>[^/\s]+:\d+)/(?P<topic>[A-Za-z0-9._-]+)(?:/(?P<partition>\d+))?")


async def open_ledger(address: str, readonly: bool = True, *, security: KafkaSecurity | None = None) -> Ledger:
    """Open the ledger at `address`.

    A file is an SQLite ledger and a directory an archive. To be written, a file whose name ends in ``.db`` or
    ``.sqlite`` need not exist.

    Args:
        address: One of the three forms.
        readonly: Never write; a writer may be live.
        security: How to connect to Kafka; plain text when None.

    Raises:
        ConfigurationError: The address has none of the forms, or there is no ledger.
    """
    if match := _KAFKA.fullmatch(address):
        return await KafkaLedger.open(
            match["bootstrap"], match["topic"], int(match["partition"] or 0), readonly=readonly, security=security
        )
    if "://" in address:
        raise ConfigurationError(f"{address!r} names no ledger. Name {_FORMS}.")
    path = Path(address)
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            raise ConfigurationError(f"the directory {address!r} is no archive: it has no {MANIFEST}. Name {_FORMS}.")
        return await ArchiveLedger.open(path, readonly=readonly)
    if path.is_file() or (not readonly and path.suffix in {".db", ".sqlite"}):
        return await SqliteLedger.open(path, readonly=readonly)
    raise ConfigurationError(f"there is no ledger at {address!r}. Name {_FORMS}.")
