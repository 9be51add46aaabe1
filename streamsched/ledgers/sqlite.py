"""The ledger in one SQLite file: the default where there is no broker.

Layout of the file::

    records(cursor INTEGER PRIMARY KEY, append_ms INTEGER, data BLOB)
    meta(key TEXT PRIMARY KEY, value TEXT)      format, cluster, created_ms

A record is acknowledged after a commit in WAL mode with ``synchronous=FULL``: it outlives the process and the power.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from streamsched.errors import (
    ConfigurationError,
    LedgerClosedError,
    LedgerCorruptError,
    LedgerGapError,
    LedgerUnavailableError,
    UnsupportedVersionError,
)
from streamsched.ledgers.reading import PAGE_BYTES, PAGE_ENTRIES, Growth, check_start, follow
from streamsched.ledgers.writing import GroupCommit, WriterLock, wall_clock_ms
from streamsched.model.ledger import Entry

FORMAT = 1
#: A transaction holds at most this much, so that one commit stays a matter of milliseconds.
BATCH_BYTES = 8_000_000
#: How often a read-only ledger looks for what another process has appended.
POLL_SECONDS = 0.02

T = TypeVar("T")


class SqliteLedger:
    """A ledger in an SQLite file: one writer, any number of readers in any process.

    Disk waits happen in two threads of the ledger's own, one for commits and one for reads, never in the event loop.
    """

    def __init__(self, path: Path, cluster: str, reader: _Connection, writer: _Writer | None) -> None:
        """Take over open connections; callers use `SqliteLedger.open`."""
        self.path = path
        self.cluster = cluster
        self._reader = reader
        self._writer = writer
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        readonly: bool = False,
        cluster: str | None = None,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> SqliteLedger:
        """Open the ledger in the file `path`, or create it when it is to be written and does not exist.

        Args:
            path: The file. Beside it lie SQLite's own ``-wal`` and ``-shm`` files and, for a writer, a ``.lock`` file.
            readonly: Never write; a writer may be live in another process, and is not disturbed.
            cluster: The cluster whose ledger this is. A new file is named so, or after its file name when this is
                None; an existing one must bear the name.
            clock: Gives the append time, in milliseconds since 1970 UTC.

        Raises:
            ConfigurationError: There is no ledger of ours at `path`, it is another cluster's, or it has a writer.
            UnsupportedVersionError: It was written by a newer streamsched.
            LedgerCorruptError: The file is damaged.
        """
        path = Path(path).resolve()
        lock = None if readonly else WriterLock(path.with_name(path.name + ".lock"), path)
        writer: _Writer | None = None
        reader: _Connection | None = None
        try:
            if lock is not None:
                connection = _Connection(path, "rwc")
                try:
                    end = await connection.run(partial(_prepare, path=path, cluster=cluster, created_ms=clock()))
                except BaseException:
                    await connection.close()
                    raise
                writer = _Writer(connection, lock, end, clock, path)
            elif not path.is_file():
                raise ConfigurationError(f"there is no ledger at {path}. Check the path.")
            reader = _Connection(path, _reading_mode(path))
            name = await reader.run(partial(_check_meta, path=path, cluster=cluster))
            return cls(path, name, reader, writer)
        except BaseException:
            if reader is not None:
                await reader.close()
            if writer is not None:
                await writer.close()
            elif lock is not None:
                lock.release()
            raise

    async def append(self, data: bytes) -> Entry:
        """Add one record; those that overlap share one transaction. See `Ledger.append`.

        Raises:
            ConfigurationError: The ledger was opened read-only.
        """
        if self._writer is None:
            raise ConfigurationError(
                f"the ledger {self.path} was opened read-only. Open it with readonly=False to append."
            )
        return await self._writer.commits.append(data)

    async def end(self) -> int:
        """Return the cursor that the next record will get."""
        self._check_open()
        if self._writer is not None:
            return self._writer.growth.end
        return await self._reader.run(_end)

    async def read(self, start: int = 0) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries from `start`; see `Ledger.read`. A page is one short query: it holds up no checkpoint."""
        end = await self.end()
        check_start(start, end)
        while start < end:
            self._check_open()
            page = await self._reader.run(partial(_page, start=start, end=end))
            yield page
            start = page[-1].cursor + 1

    def follow(self, start: int = 0) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries from `start` and those to come; see `Ledger.follow`.

        What this object appends is seen at once, what another process appends within 20 ms.
        """
        return follow(self.read, start, self._poll_beyond if self._writer is None else self._writer.growth.wait_beyond)

    async def close(self) -> None:
        """Commit what was appended, end the followers and let the next writer in."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._reader.close()
        if self._writer is not None:
            await self._writer.close()

    async def _poll_beyond(self, cursor: int) -> bool:
        while not self._is_closed:
            if await self.end() > cursor:
                return True
            await asyncio.sleep(POLL_SECONDS)
        return False

    def _check_open(self) -> None:
        if self._is_closed:
            raise LedgerClosedError(str(self.path))


class SqliteHistoryWriter:
    """Writes a new ledger file whose append times are given: the ledger of a simulation, or of an import.

    What is written is on disk once `close` returns; a file that was not closed may lack its end.
    """

    def __init__(self, path: Path | str, cluster: str, created_ms: int) -> None:
        """Create the file.

        Raises:
            ConfigurationError: There is something at `path` already, a writer holds it, or it cannot be created.
        """
        path = Path(path).resolve()
        if path.exists():
            raise ConfigurationError(f"{path} exists. Name a new file, or remove that one first.")
        self._lock = WriterLock(path.with_name(path.name + ".lock"), path)
        self._end = 0
        try:
            self._connection = sqlite3.connect(path, isolation_level=None)
            _prepare(self._connection, path=path, cluster=cluster, created_ms=created_ms)
            self._connection.execute("PRAGMA synchronous = OFF")
        except sqlite3.Error as error:
            self._lock.release()
            raise ConfigurationError(
                f"cannot create the ledger {path}: {error}. Name a place that is writable."
            ) from error

    def write(self, entries: Sequence[Entry]) -> None:
        """Add entries, in one transaction.

        Raises:
            LedgerGapError: They do not go on where the file ends.
        """
        for cursor, entry in enumerate(entries, start=self._end):
            if entry.cursor != cursor:
                raise LedgerGapError(cursor, entry.cursor)
        _insert(self._connection, entries=entries)
        self._end += len(entries)

    def close(self) -> None:
        """Bring everything to disk and let others write."""
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
        self._lock.release()


class _Connection:
    """An SQLite connection with a thread of its own."""

    def __init__(self, path: Path, mode: str) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"ledger-{mode}")
        self._mode = mode
        self._connection: sqlite3.Connection | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `work` returns, having run it in the thread; SQLite's errors become ours."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._connection is None:
                # Autocommit: transactions are begun and ended by name.
                self._connection = sqlite3.connect(
                    f"{self._path.as_uri()}?mode={self._mode}", uri=True, isolation_level=None, check_same_thread=False
                )
            return work(self._connection)
        except sqlite3.OperationalError as error:
            raise LedgerUnavailableError(
                f"SQLite cannot use the ledger {self._path}: {error}. Check that file and directory can be read "
                "and written by this user (SQLite needs its -shm file even to read) and that the disk is not full."
            ) from error
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                raise _not_ours(self._path) from error
            raise LedgerCorruptError(
                f"the ledger {self._path} is damaged: {error}. Restore it from its archive or a backup."
            ) from error

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class _Writer:
    """The writing half of a ledger: its connection, its lock and the commits."""

    def __init__(
        self, connection: _Connection, lock: WriterLock, end: int, clock: Callable[[], int], path: Path
    ) -> None:
        self.growth = Growth(end)
        self.commits = GroupCommit(str(path), self._commit, batch_bytes=BATCH_BYTES)
        self._connection = connection
        self._lock = lock
        self._clock = clock

    async def close(self) -> None:
        await self.commits.close()
        self.growth.close()
        await self._connection.close()
        self._lock.release()

    async def _commit(self, batch: Sequence[bytes]) -> Sequence[Entry]:
        append_ms = self._clock()
        entries = [Entry(cursor, append_ms, data) for cursor, data in enumerate(batch, start=self.growth.end)]
        await self._connection.run(partial(_insert, entries=entries))
        self.growth.reach(self.growth.end + len(entries))
        return entries


def _reading_mode(path: Path) -> str:
    """Return how SQLite must open a file only to read it.

    It makes an -shm file beside a ledger even for a reader, unless it is told that nobody writes. A ledger without a
    -wal file has no writer; where we may make no file, as on a read-only medium, we say so.
    """
    is_settled = not path.with_name(path.name + "-wal").exists()
    may_make_files = os.access(path.parent, os.W_OK, effective_ids=True)
    return "ro&immutable=1" if is_settled and not may_make_files else "ro"


def _insert(connection: sqlite3.Connection, *, entries: Sequence[Entry]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.executemany("INSERT INTO records (cursor, append_ms, data) VALUES (?, ?, ?)", entries)
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # A failed commit may have rolled back by itself.
            connection.execute("ROLLBACK")
        raise


def _prepare(connection: sqlite3.Connection, *, path: Path, cluster: str | None, created_ms: int) -> int:
    """Create the tables in an empty file, check those of another, and return the end."""
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
        connection.execute("PRAGMA journal_mode = WAL")
        # One transaction: a process that dies here leaves an empty file, which the next writer may take.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "CREATE TABLE records (cursor INTEGER PRIMARY KEY, append_ms INTEGER NOT NULL, data BLOB NOT NULL)"
        )
        connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
        connection.executemany(
            "INSERT INTO meta (key, value) VALUES (?, ?)",
            [("format", str(FORMAT)), ("cluster", cluster or path.stem), ("created_ms", str(created_ms))],
        )
        connection.execute("COMMIT")
    _check_meta(connection, path=path, cluster=cluster)
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise ConfigurationError(
            f"the file system of {path} does not support SQLite's WAL mode. Put the ledger on a local disk."
        )
    connection.execute("PRAGMA synchronous = FULL")
    return _end(connection)


def _check_meta(connection: sqlite3.Connection, *, path: Path, cluster: str | None) -> str:
    """Return the cluster of the ledger, having checked that it is one and that we can read it."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"records", "meta"} <= tables:
        raise _not_ours(path)
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    try:
        version, name = int(meta["format"]), str(meta["cluster"])
    except (KeyError, ValueError) as error:
        raise _not_ours(path) from error
    if version > FORMAT:
        raise UnsupportedVersionError(f"the ledger {path}", version, FORMAT)
    if cluster is not None and cluster != name:
        raise ConfigurationError(
            f"the ledger {path} belongs to the cluster {name!r}, not to {cluster!r}. Name another file or that cluster."
        )
    return name


def _end(connection: sqlite3.Connection) -> int:
    (last,) = connection.execute("SELECT max(cursor) FROM records").fetchone()
    return 0 if last is None else int(last) + 1


def _page(connection: sqlite3.Connection, *, start: int, end: int) -> Sequence[Entry]:
    rows = connection.execute(
        "SELECT cursor, append_ms, data FROM records WHERE cursor >= ? AND cursor < ? ORDER BY cursor LIMIT ?",
        (start, end, PAGE_ENTRIES),
    )
    page: list[Entry] = []
    size = 0
    for cursor, append_ms, data in rows:
        if cursor != start + len(page):
            raise LedgerGapError(start + len(page), cursor)
        page.append(Entry(cursor, append_ms, data))
        size += len(data)
        if size >= PAGE_BYTES:
            break
    if not page:
        raise LedgerGapError(start, end)
    return page


def _not_ours(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is not a streamsched ledger. Name a ledger file, or a path where none exists yet."
    )
