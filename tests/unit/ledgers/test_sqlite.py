"""The ledger in one SQLite file."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from streamsched.errors import (
    ConfigurationError,
    LedgerCorruptError,
    LedgerGapError,
    LedgerUnavailableError,
    UnsupportedVersionError,
)
from streamsched.ledgers.archive import ArchiveLedger
from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.model.ledger import Entry, Ledger
from tests.unit.ledgers import killed_writer


async def entries_of(ledger: Ledger, start: int = 0) -> list[Entry]:
    return [entry async for page in ledger.read(start) for entry in page]


def start_writer(kind: str, path: Path) -> subprocess.Popen[bytes]:
    program = [sys.executable, killed_writer.__file__, kind, str(path)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()})


def acknowledged_until_killed(writer: subprocess.Popen[bytes], enough: int) -> list[int]:
    """Kill the writer in the middle of its work, and return the cursors it had said by then."""
    assert writer.stdout is not None
    with writer.stdout:
        said = list(itertools.islice(writer.stdout, enough))
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.readlines()
    assert writer.wait() == -signal.SIGKILL
    return [int(line) for line in said if line.endswith(b"\n")]


async def open_for_writing(kind: str, path: Path) -> Ledger:
    if kind == "sqlite":
        return await SqliteLedger.open(path)
    return await ArchiveLedger.open(path, readonly=False)


@pytest.mark.parametrize("kind", ["sqlite", "archive"])
async def test_a_killed_writer_loses_nothing_it_acknowledged(kind: str, tmp_path: Path) -> None:
    """Every cursor that the writer said before SIGKILL is there, dense, in order and whole; and so twice."""
    path = tmp_path / "cluster.db"
    end = 0
    for _ in range(2):
        acknowledged = acknowledged_until_killed(start_writer(kind, path), enough=500)

        ledger = await open_for_writing(kind, path)  # The dead writer's lock is gone.
        entries = await entries_of(ledger)
        assert acknowledged == list(range(end, end + len(acknowledged)))
        assert len(entries) >= end + len(acknowledged)
        assert [(entry.cursor, entry.data) for entry in entries] == [
            (cursor, killed_writer.data_of(cursor)) for cursor in range(len(entries))
        ]
        end = len(entries)
        await ledger.close()


@pytest.mark.parametrize("kind", ["sqlite", "archive"])
async def test_a_second_writer_is_told_who_writes(kind: str, tmp_path: Path) -> None:
    """A ledger that another process writes cannot be opened for writing, and can be read."""
    path = tmp_path / "cluster.db"
    writer = start_writer(kind, path)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"0\n"

        with pytest.raises(ConfigurationError) as raised:
            await open_for_writing(kind, path)
        assert str(path) in str(raised.value)
        assert f"process {writer.pid}" in str(raised.value)
        assert "read-only" in str(raised.value)

        reader: Ledger = await (
            SqliteLedger.open(path, readonly=True) if kind == "sqlite" else ArchiveLedger.open(path)
        )
        seen: list[Entry] = []
        async for page in reader.follow():
            seen.extend(page)
            if len(seen) > 400:
                break
        await reader.close()
        assert [(entry.cursor, entry.data) for entry in seen] == [
            (cursor, killed_writer.data_of(cursor)) for cursor in range(len(seen))
        ]
        assert writer.poll() is None  # The reader did it no harm.
    finally:
        acknowledged_until_killed(writer, enough=0)


async def test_a_second_writer_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """The lock is the ledger's, not the process's; closing gives it back."""
    ledger = await SqliteLedger.open(tmp_path / "cluster.db")
    with pytest.raises(ConfigurationError, match="already has a writer"):
        await SqliteLedger.open(tmp_path / "cluster.db")
    await ledger.close()

    await (await SqliteLedger.open(tmp_path / "cluster.db")).close()


async def test_appends_that_overlap_share_a_transaction(tmp_path: Path) -> None:
    """The clock is asked once per transaction: a hundred appends at once are one, and two in turn are two."""
    ticks = itertools.count(5)
    ledger = await SqliteLedger.open(tmp_path / "cluster.db", clock=lambda: next(ticks))  # Creation takes the 5.

    together = await asyncio.gather(*(ledger.append(b"x") for _ in range(100)))
    apart = [await ledger.append(b"y"), await ledger.append(b"z")]

    assert {entry.append_ms for entry in together} == {6}
    assert [entry.append_ms for entry in apart] == [7, 8]
    assert await entries_of(ledger) == [*together, *apart]
    await ledger.close()


async def test_a_read_only_ledger_refuses_to_append(tmp_path: Path) -> None:
    """The refusal says how to open it instead, and the ledger is as before."""
    path = tmp_path / "cluster.db"
    await (await SqliteLedger.open(path)).close()
    reader = await SqliteLedger.open(path, readonly=True)

    with pytest.raises(ConfigurationError, match="readonly=False"):
        await reader.append(b"x")

    assert await reader.end() == 0
    await reader.close()


@contextmanager
def unprivileged() -> Iterator[None]:
    """Be a user whom file permissions bind, as root is not."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(before)


async def test_a_ledger_can_be_read_where_nothing_can_be_written() -> None:
    """A history on a read-only medium is read, and no file is made beside it."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own directories are closed to other users.
        path = Path(name) / "cluster.db"
        writer = await SqliteLedger.open(path)
        appended = [await writer.append(b"kept"), await writer.append(b"too")]
        await writer.close()
        path.with_name("cluster.db.lock").unlink()
        path.chmod(0o444)
        path.parent.chmod(0o555)

        with unprivileged():
            reader = await SqliteLedger.open(path, readonly=True)
            assert await entries_of(reader) == appended
            await reader.close()
            with pytest.raises(ConfigurationError, match=r"cannot write the ledger .*Permission denied"):
                await SqliteLedger.open(path)

        assert [each.name for each in path.parent.iterdir()] == ["cluster.db"]
        path.parent.chmod(0o755)


async def test_a_ledger_knows_its_cluster(tmp_path: Path) -> None:
    """A new file is named as told, or after itself; another cluster's file is refused."""
    named = await SqliteLedger.open(tmp_path / "a.db", cluster="berlin")
    unnamed = await SqliteLedger.open(tmp_path / "oslo.db")
    assert (named.cluster, unnamed.cluster) == ("berlin", "oslo")
    await named.close()
    await unnamed.close()

    with pytest.raises(ConfigurationError, match="belongs to the cluster 'berlin', not to 'paris'"):
        await SqliteLedger.open(tmp_path / "a.db", cluster="paris")
    with pytest.raises(ConfigurationError, match="belongs to the cluster 'berlin', not to 'paris'"):
        await SqliteLedger.open(tmp_path / "a.db", cluster="paris", readonly=True)
    await (await SqliteLedger.open(tmp_path / "a.db", cluster="berlin")).close()


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize("content", [b"a text, and no database at all\n" * 100, "other tables", "no meta"])
async def test_a_file_that_is_no_ledger_is_refused_and_kept(
    content: bytes | str, readonly: bool, tmp_path: Path
) -> None:
    """What is someone else's file stays as it was."""
    path = tmp_path / "holiday.db"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        tables = ["trips"] if content == "other tables" else ["records", "meta"]
        with closing(sqlite3.connect(path)) as connection:
            for table in tables:
                connection.execute(f"CREATE TABLE {table} (key, value)")
    before = path.read_bytes()

    with pytest.raises(ConfigurationError, match=r"holiday\.db is not a streamsched ledger"):
        await SqliteLedger.open(path, readonly=readonly)

    assert path.read_bytes() == before


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """Who reads format 1 does not guess at format 2."""
    path = tmp_path / "cluster.db"
    await (await SqliteLedger.open(path)).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = '2' WHERE key = 'format'")

    for readonly in (True, False):
        with pytest.raises(UnsupportedVersionError, match=r"cluster\.db has version 2.*versions up to 1"):
            await SqliteLedger.open(path, readonly=readonly)


async def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Reading needs a file, writing a directory."""
    with pytest.raises(ConfigurationError, match=r"there is no ledger at .*absent\.db"):
        await SqliteLedger.open(tmp_path / "absent.db", readonly=True)
    with pytest.raises(ConfigurationError, match=r"cannot write the ledger .*nowhere.*No such file or directory"):
        await SqliteLedger.open(tmp_path / "nowhere" / "cluster.db")


async def test_an_empty_file_becomes_a_ledger(tmp_path: Path) -> None:
    """A writer that died before it had made the tables leaves nothing to be afraid of."""
    path = tmp_path / "cluster.db"
    path.touch()

    ledger = await SqliteLedger.open(path)

    assert (await ledger.append(b"first")).cursor == 0
    await ledger.close()


async def test_a_missing_record_is_a_gap(tmp_path: Path) -> None:
    """A hole is named by the cursors at its sides, wherever a read begins."""
    path = tmp_path / "cluster.db"
    ledger = await SqliteLedger.open(path)
    await asyncio.gather(*(ledger.append(b"%d" % number) for number in range(10)))
    await ledger.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM records WHERE cursor IN (3, 4)")

    reader = await SqliteLedger.open(path, readonly=True)

    for start, expected in ((0, 3), (3, 3), (4, 4)):
        with pytest.raises(LedgerGapError) as raised:
            await entries_of(reader, start)
        assert (raised.value.expected, raised.value.found) == (expected, 5)
    assert [entry.cursor for entry in await entries_of(reader, 5)] == [5, 6, 7, 8, 9]
    await reader.close()


async def test_a_damaged_file_is_corrupt(tmp_path: Path) -> None:
    """Pages that SQLite cannot make sense of are reported with the file's name."""
    path = tmp_path / "cluster.db"
    ledger = await SqliteLedger.open(path)
    await asyncio.gather(*(ledger.append(bytes(1_000)) for _ in range(200)))
    await ledger.close()
    content = bytearray(path.read_bytes())
    content[5 * 4096 :] = b"\xee" * (len(content) - 5 * 4096)
    path.write_bytes(content)

    reader = await SqliteLedger.open(path, readonly=True)

    with pytest.raises(LedgerCorruptError, match=r"cluster\.db is damaged"):
        await entries_of(reader)

    await reader.close()


async def test_who_writes_past_the_lock_stops_the_writer(tmp_path: Path) -> None:
    """A record that the ledger did not write makes the next append fail, and the writer writes no more."""
    path = tmp_path / "cluster.db"
    ledger = await SqliteLedger.open(path)
    await ledger.append(b"ours")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO records VALUES (1, 0, 'theirs')")

    for _ in range(2):
        with pytest.raises(LedgerUnavailableError, match="UNIQUE"):
            await ledger.append(b"ours again")

    await ledger.close()
