"""The ledger as files: immutable compressed segments, chained by hash, and an open tail that is still being written.

`streamsched.ledgers.archive_format` describes the files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from streamsched.errors import ConfigurationError, LedgerClosedError, LedgerUnavailableError
from streamsched.ledgers.archive_files import ArchiveFiles, begin_archive
from streamsched.ledgers.archive_format import Segment
from streamsched.ledgers.reading import Growth, check_start, follow, page_length
from streamsched.ledgers.writing import GroupCommit, WriterLock, wall_clock_ms
from streamsched.model.ledger import Entry, Ledger

RECORDS_PER_SEGMENT: Final = 100_000
#: A segment is sealed at this much data even when it has few records: it is read and checked as one piece in memory.
SEGMENT_BYTES: Final = 64_000_000
#: One write to the tail holds at most this much.
BATCH_BYTES: Final = 8_000_000
#: How often a read-only archive looks for what another process has appended.
POLL_SECONDS: Final = 0.2

T = TypeVar("T")


async def archive_ledger(
    ledger: Ledger, directory: Path | str, *, records_per_segment: int = RECORDS_PER_SEGMENT
) -> int:
    """Copy what `ledger` has beyond the archive in `directory` into it, with cursors, times and bytes as they are.

    The first call begins the archive; every other continues it. All is sealed when it returns.

    Returns:
        The end of the archive: the number of records it holds.

    Raises:
        ConfigurationError: The archive is another ledger's, or is being written.
        LedgerTruncatedError: The ledger ends before the archive does.
        LedgerCorruptError: The archive is damaged.
    """
    archive = await ArchiveLedger.open(directory, readonly=False, records_per_segment=records_per_segment)
    try:
        await _check_same_history(ledger, archive)
        async for page in ledger.read(await archive.end()):
            await archive.copy(page)
        return await archive.end()
    finally:
        await archive.close()


async def _check_same_history(ledger: Ledger, archive: ArchiveLedger) -> None:
    end = await archive.end()
    if end == 0:
        return
    last_cursor = end - 1
    kept = await _first_entry(archive, last_cursor)
    found = await _first_entry(ledger, last_cursor)
    if found is not None and found != kept:
        raise ConfigurationError(
            f"the archive {archive.directory} holds another ledger's history: they differ at cursor {last_cursor}. "
            "Name the directory of this ledger's archive, or an empty one."
        )


async def _first_entry(ledger: Ledger, start: int) -> Entry | None:
    async for page in ledger.read(start):
        return page[0]
    return None


class ArchiveLedger:
    """A ledger in a directory of segments: one writer, any number of readers in any process.

    Opening checks the manifest and that its files are there; a segment's hashes are checked whenever it is read.
    """

    def __init__(
        self, directory: Path, files: ArchiveFiles, thread: ThreadPoolExecutor, writer: _Writer | None
    ) -> None:
        """Take over an opened files; callers use `ArchiveLedger.open`."""
        self.directory = directory
        self._files = files
        self._thread = thread
        self._writer = writer
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        directory: Path | str,
        *,
        readonly: bool = True,
        records_per_segment: int = RECORDS_PER_SEGMENT,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> ArchiveLedger:
        """Open the archive in `directory`, or begin one when it is to be written and there is none.

        Args:
            directory: Where the archive is. It is made when it does not exist and is to be written.
            readonly: Never write; a writer may be live in another process, and is not disturbed.
            records_per_segment: Records after which a writer seals the tail into a segment.
            clock: Gives what is appended its append time, in milliseconds since 1970 UTC.

        Raises:
            ConfigurationError: There is no archive, it has a writer, or the directory holds something else.
            UnsupportedVersionError: It was written by a newer streamsched.
            LedgerCorruptError: The manifest or the tail is damaged, or a file is missing.
        """
        directory = Path(directory).resolve()
        if records_per_segment < 1:
            raise ValueError(f"records_per_segment must be at least 1, not {records_per_segment}")
        thread = ThreadPoolExecutor(1, thread_name_prefix="ledger-archive")
        lock: WriterLock | None = None
        try:
            if not readonly:
                lock = await _in_thread(thread, directory, partial(begin_archive, directory))
            files = ArchiveFiles(directory)
            await _in_thread(thread, directory, files.refresh)
            if lock is None:
                return cls(directory, files, thread, None)
            await _in_thread(thread, directory, files.tidy)
            return cls(directory, files, thread, _Writer(files, thread, lock, records_per_segment, clock))
        except BaseException:
            thread.shutdown(wait=False)
            if lock is not None:
                lock.release()
            raise

    @property
    def segments(self) -> Sequence[Segment]:
        """The sealed segments, in the order of their cursors."""
        return tuple(self._files.segments)

    async def append(self, data: bytes) -> Entry:
        """Add one record to the tail; those that overlap share one write and one sync. See `Ledger.append`.

        Raises:
            ConfigurationError: The archive was opened read-only.
        """
        return await self._writable().append(data)

    async def copy(self, entries: Sequence[Entry]) -> None:
        """Add the entries of another ledger, as they are; return once they are durable.

        Raises:
            ValueError: They do not begin at the archive's end, or are not dense.
        """
        self._check_open()
        await self._writable().copy(entries)

    async def end(self) -> int:
        """Return the cursor that the next record will get."""
        self._check_open()
        if self._writer is None:
            await self._run(self._files.refresh)
        return self._files.end

    async def read(self, start: int = 0) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries from `start`; see `Ledger.read`.

        Raises:
            LedgerCorruptError: A segment does not match its hashes. Nothing of that segment is yielded.
        """
        end = await self.end()
        check_start(start, end)
        while start < end:
            self._check_open()
            entries = await self._run(partial(self._files.load, start))
            index = start - entries[0].cursor
            stop = min(len(entries), end - entries[0].cursor)
            while index < stop:
                self._check_open()
                length = min(page_length(entries, index), stop - index)
                yield entries[index : index + length]
                index += length
            start = entries[0].cursor + stop

    def follow(self, start: int = 0) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries from `start` and those to come; see `Ledger.follow`.

        What this object appends is seen at once, what another process appends within 200 ms.
        """
        return follow(self.read, start, self._poll_beyond if self._writer is None else self._writer.growth.wait_beyond)

    async def close(self) -> None:
        """Seal what was appended, end the followers and let the next writer in."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._writer is not None:
                await self._writer.close()
        finally:
            self._thread.shutdown(wait=False)

    async def _poll_beyond(self, cursor: int) -> bool:
        while not self._is_closed:
            if await self.end() > cursor:
                return True
            await asyncio.sleep(POLL_SECONDS)
        return False

    async def _run(self, work: Callable[[], T]) -> T:
        return await _in_thread(self._thread, self.directory, work)

    def _writable(self) -> _Writer:
        if self._writer is None:
            raise ConfigurationError(
                f"the archive {self.directory} was opened read-only. Open it with readonly=False to append."
            )
        return self._writer

    def _check_open(self) -> None:
        if self._is_closed:
            raise LedgerClosedError(str(self.directory))


class _Writer:
    """The writing half: appends go to the tail, and a full tail becomes a segment."""

    def __init__(
        self,
        files: ArchiveFiles,
        thread: ThreadPoolExecutor,
        lock: WriterLock,
        records_per_segment: int,
        clock: Callable[[], int],
    ) -> None:
        self.growth = Growth(files.end)
        self._files = files
        self._thread = thread
        self._lock = lock
        self._records_per_segment = records_per_segment
        self._clock = clock
        self._commits = GroupCommit(str(files.directory), self._commit, batch_bytes=BATCH_BYTES)

    async def append(self, data: bytes) -> Entry:
        return await self._commits.append(data)

    async def copy(self, entries: Sequence[Entry]) -> None:
        for expected, entry in enumerate(entries, start=self._files.end):
            if entry.cursor != expected:
                raise ValueError(f"the archive needs cursor {expected} next, not {entry.cursor}")
        await self._write(entries)

    async def close(self) -> None:
        try:
            await self._commits.close()
            await _in_thread(self._thread, self._files.directory, self._finish)
        finally:
            self.growth.close()
            self._lock.release()

    async def _commit(self, batch: Sequence[bytes]) -> Sequence[Entry]:
        append_ms = self._clock()
        entries = [Entry(cursor, append_ms, data) for cursor, data in enumerate(batch, start=self._files.end)]
        await self._write(entries)
        return entries

    async def _write(self, entries: Sequence[Entry]) -> None:
        await _in_thread(self._thread, self._files.directory, partial(self._extend, entries))
        self.growth.reach(self._files.end)

    def _extend(self, entries: Sequence[Entry]) -> None:
        tail = self._files.tail
        done = 0
        while done < len(entries):
            room = self._records_per_segment - len(tail.entries)
            tail.extend(entries[done : done + room])
            done += room
            if len(tail.entries) >= self._records_per_segment or tail.frame_bytes >= SEGMENT_BYTES:
                self._files.seal()
                tail = self._files.tail

    def _finish(self) -> None:
        # After a failed write the tail on disk is in doubt; the next writer looks at it and decides.
        if self._files.tail.entries and not self._files.tail.is_in_doubt:
            self._files.seal()
        self._files.tail.close()


async def _in_thread(thread: ThreadPoolExecutor, directory: Path, work: Callable[[], T]) -> T:
    """Run work that waits for the disk in the ledger's thread; what the disk refuses becomes our error."""
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    except OSError as error:
        raise LedgerUnavailableError(
            f"the archive {directory} cannot be used: {error}. Check permissions and that the disk is not full."
        ) from error
