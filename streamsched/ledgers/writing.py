"""What the durable ledgers share when they write: a clock, one writer at a time, one commit for many appends."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from streamsched.errors import ConfigurationError, LedgerClosedError, LedgerUnavailableError
from streamsched.model.ledger import Entry

#: What a record is counted as beyond its data when a batch is filled, in bytes: cursor, time and length in any store.
RECORD_OVERHEAD_BYTES = 32


def wall_clock_ms() -> int:
    """Return the machine's clock in milliseconds since 1970 UTC: the append time of a ledger that has no broker."""
    return time.time_ns() // 1_000_000


class WriterLock:
    """Keeps a second writer off a ledger. The kernel releases it when its process dies, however it dies."""

    def __init__(self, path: Path, ledger: Path) -> None:
        """Take the lock.

        Args:
            path: The lock file. It is left in place: deleting it would let two writers lock two files of one name.
            ledger: What is locked, for the message.

        Raises:
            ConfigurationError: Another writer holds it, or the file cannot be created.
        """
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write the ledger {ledger}: {error.strerror} ({path}). "
                "Name a place that exists and is writable, or open the ledger read-only."
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._file)
            raise ConfigurationError(
                f"the ledger {ledger} already has a writer, process {holder}, and it may have only one. "
                "Stop that process, or open the ledger read-only."
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Let the next writer in."""
        os.close(self._file)


class GroupCommit:
    """Gathers the appends that wait while a commit is under way and writes them with the next one.

    The wait for a disk or a broker dominates the cost of an append, and it is the same for one record as for a
    thousand. Commits never overlap, so after one has failed nothing that came later can have been written.
    """

    def __init__(
        self, ledger: str, commit: Callable[[Sequence[bytes]], Awaitable[Sequence[Entry]]], *, batch_bytes: int
    ) -> None:
        """Prepare; nothing runs until something is appended.

        Args:
            ledger: The ledger's name, for messages.
            commit: Makes a batch durable, in order, and returns its entries.
            batch_bytes: The most a batch may hold, data and overhead. One record larger than that goes alone.
        """
        self._ledger = ledger
        self._commit = commit
        self._batch_bytes = batch_bytes
        self._waiting: deque[tuple[bytes, asyncio.Future[Entry]]] = deque()
        self._drain: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closed = False

    async def append(self, data: bytes) -> Entry:
        """Return the entry of `data` once it is durable. Calls are served in the order in which they were made.

        A call that is cancelled may be written nevertheless.

        Raises:
            LedgerUnavailableError: This commit failed, or one before it: this writer writes nothing any more.
            LedgerClosedError: The ledger is closed.
        """
        if self._closed:
            raise LedgerClosedError(self._ledger)
        if self._failure is not None:
            raise LedgerUnavailableError(
                f"nothing was written to {self._ledger}: an append before this one failed ({self._failure!r}). "
                "Open the ledger again and read to its end before writing."
            ) from self._failure
        future: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        self._waiting.append((data, future))
        if self._drain is None:
            self._drain = asyncio.create_task(self._commit_all())
        return await future

    async def close(self) -> None:
        """Wait for what was appended, then refuse everything."""
        self._closed = True
        if self._drain is not None:
            await asyncio.wait([self._drain])

    async def _commit_all(self) -> None:
        try:
            while self._waiting:
                batch = self._take()
                try:
                    entries = await self._commit([data for data, _ in batch])
                except BaseException as error:  # A commit that was cancelled is in doubt like any other.
                    self._fail(error, batch)
                    if not isinstance(error, Exception):
                        raise
                    return
                for (_, future), entry in zip(batch, entries, strict=True):
                    if not future.done():
                        future.set_result(entry)
        finally:
            self._drain = None

    def _take(self) -> list[tuple[bytes, asyncio.Future[Entry]]]:
        batch = [self._waiting.popleft()]
        size = len(batch[0][0]) + RECORD_OVERHEAD_BYTES
        while self._waiting:
            size += len(self._waiting[0][0]) + RECORD_OVERHEAD_BYTES
            if size > self._batch_bytes:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _fail(self, error: BaseException, batch: list[tuple[bytes, asyncio.Future[Entry]]]) -> None:
        self._failure = error
        for _, future in (*batch, *self._waiting):
            if not future.done():
                failure = LedgerUnavailableError(
                    f"an append to {self._ledger} was not confirmed: {str(error) or type(error).__name__}. The record "
                    "may or may not be there: open the ledger again and read to its end before writing."
                )
                failure.__cause__ = error
                future.set_exception(failure)
        self._waiting.clear()
