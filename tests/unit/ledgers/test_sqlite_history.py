"""A history with given append times becomes a ledger file like any other."""

from pathlib import Path

import pytest

from streamsched.errors import ConfigurationError, LedgerGapError
from streamsched.ledgers.sqlite import SqliteHistoryWriter, SqliteLedger
from streamsched.model.ledger import Entry


async def test_what_is_written_is_read_as_a_ledger(tmp_path: Path) -> None:
    """Cursors, append times and bytes are kept, and the file is one that can be appended to."""
    entries = [Entry(cursor, 1_000 + 7 * cursor, f"record {cursor}".encode()) for cursor in range(5)]
    writer = SqliteHistoryWriter(tmp_path / "h.sqlite", "blue", 1_000)
    writer.write(entries[:3])
    writer.write(entries[3:])
    writer.close()

    ledger = await SqliteLedger.open(tmp_path / "h.sqlite", cluster="blue", clock=lambda: 2_000)

    assert [entry async for page in ledger.read(0) for entry in page] == entries
    assert await ledger.append(b"more") == Entry(5, 2_000, b"more")
    await ledger.close()


def test_a_hole_is_not_written(tmp_path: Path) -> None:
    """A history is dense from 0."""
    writer = SqliteHistoryWriter(tmp_path / "h.sqlite", "blue", 0)
    writer.write([Entry(0, 0, b"a")])

    with pytest.raises(LedgerGapError):
        writer.write([Entry(2, 0, b"c")])
    writer.close()


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    """Whatever it is."""
    (tmp_path / "h.sqlite").write_bytes(b"mine")

    with pytest.raises(ConfigurationError, match="exists"):
        SqliteHistoryWriter(tmp_path / "h.sqlite", "blue", 0)
    assert (tmp_path / "h.sqlite").read_bytes() == b"mine"
