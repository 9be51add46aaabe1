"""The ledger as files: immutable compressed segments, chained by hash, and an open tail that is still being written.

An archive is a directory::

    manifest.jsonl                 a header line, then one line per segment
    00000000000000000000.segment   records from cursor 0, zstd-compressed frames
    00000000000000100000.tail      frames not yet sealed into a segment, from cursor 100000

A frame holds one record, byte for byte as it was appended, behind a header of big-endian integers::

    cursor u64 | append_ms i64 | data length u32 | CRC-32 of these three u32 | data | check, 8 bytes

The *chain* has one step per record, ``sha256(previous || cursor || append_ms || data)`` with the integers as in the
frame, from 32 zero bytes before cursor 0. A frame's check is the beginning of its step, so that damage is found at a
cursor. The manifest names for each segment its first and last cursor, the chain before and after it, the sha256 of the
file, and the sha256 of the manifest line before; each line ends in its own. One hash, the last line's, thus proves
the whole archive; whoever keeps it elsewhere can prove that nothing was cut off at the end either.

Segments and manifest are written beside their place, synced, and renamed. The tail is synced before an append is
acknowledged. Its name holds its first cursor, so a tail that was sealed is never read again, whenever a process dies.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import zlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import orjson
import zstandard
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamsched.errors import (
    ConfigurationError,
    LedgerClosedError,
    LedgerCorruptError,
    LedgerUnavailableError,
    UnsupportedVersionError,
)
from streamsched.ledgers.reading import Growth, check_start, follow, page_length
from streamsched.ledgers.writing import GroupCommit, WriterLock, wall_clock_ms
from streamsched.model.ledger import Entry, Ledger

MANIFEST: Final = "manifest.jsonl"
FORMAT: Final = 1
RECORDS_PER_SEGMENT: Final = 100_000
#: A segment is sealed at this much data even when it has few records: it is read and checked as one piece in memory.
SEGMENT_BYTES: Final = 64_000_000
#: One write to the tail holds at most this much.
BATCH_BYTES: Final = 8_000_000
#: How often a read-only archive looks for what another process has appended.
POLL_SECONDS: Final = 0.2

_HEADER: Final = struct.Struct(">QqI")
_CRC: Final = struct.Struct(">I")
_CHECK_BYTES: Final = 8
_FRAME_BYTES: Final = _HEADER.size + _CRC.size + _CHECK_BYTES
_GENESIS: Final = bytes(32)
_Sha256 = Field(pattern="^[0-9a-f]{64}$")

T = TypeVar("T")


class Segment(BaseModel):
    """One line of the manifest: a sealed file and what it proves.

    Attributes:
        file: Its name in the archive's directory.
        first: The cursor of its first record.
        last: The cursor of its last.
        frame_bytes: Its size before compression.
        file_bytes: Its size on disk.
        file_sha256: The hash of the file as it is on disk.
        chain_before: The chain's value before its first record.
        chain_after: The chain's value after its last.
        previous: The `sha256` of the line before.
        sha256: The hash of this line's canonical JSON without this field.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    file: str = Field(pattern="^[0-9]{20}[.]segment$")
    first: int = Field(ge=0)
    last: int = Field(ge=0)
    frame_bytes: int = Field(ge=_FRAME_BYTES)
    file_bytes: int = Field(ge=1)
    file_sha256: str = _Sha256
    chain_before: str = _Sha256
    chain_after: str = _Sha256
    previous: str = _Sha256
    sha256: str = _Sha256


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

    def __init__(self, directory: Path, store: _Store, thread: ThreadPoolExecutor, writer: _Writer | None) -> None:
        """Take over an opened store; callers use `ArchiveLedger.open`."""
        self.directory = directory
        self._store = store
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
                lock = await _in_thread(thread, directory, partial(_begin, directory))
            store = _Store(directory)
            await _in_thread(thread, directory, store.refresh)
            if lock is None:
                return cls(directory, store, thread, None)
            await _in_thread(thread, directory, store.tidy)
            return cls(directory, store, thread, _Writer(store, thread, lock, records_per_segment, clock))
        except BaseException:
            thread.shutdown(wait=False)
            if lock is not None:
                lock.release()
            raise

    @property
    def segments(self) -> Sequence[Segment]:
        """The sealed segments, in the order of their cursors."""
        return tuple(self._store.segments)

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
            await self._run(self._store.refresh)
        return self._store.end

    async def read(self, start: int = 0) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries from `start`; see `Ledger.read`.

        Raises:
            LedgerCorruptError: A segment does not match its hashes. Nothing of that segment is yielded.
        """
        end = await self.end()
        check_start(start, end)
        while start < end:
            self._check_open()
            entries = await self._run(partial(self._store.load, start))
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
        store: _Store,
        thread: ThreadPoolExecutor,
        lock: WriterLock,
        records_per_segment: int,
        clock: Callable[[], int],
    ) -> None:
        self.growth = Growth(store.end)
        self._store = store
        self._thread = thread
        self._lock = lock
        self._records_per_segment = records_per_segment
        self._clock = clock
        self._commits = GroupCommit(str(store.directory), self._commit, batch_bytes=BATCH_BYTES)

    async def append(self, data: bytes) -> Entry:
        return await self._commits.append(data)

    async def copy(self, entries: Sequence[Entry]) -> None:
        for expected, entry in enumerate(entries, start=self._store.end):
            if entry.cursor != expected:
                raise ValueError(f"the archive needs cursor {expected} next, not {entry.cursor}")
        await self._write(entries)

    async def close(self) -> None:
        try:
            await self._commits.close()
            await _in_thread(self._thread, self._store.directory, self._finish)
        finally:
            self.growth.close()
            self._lock.release()

    async def _commit(self, batch: Sequence[bytes]) -> Sequence[Entry]:
        append_ms = self._clock()
        entries = [Entry(cursor, append_ms, data) for cursor, data in enumerate(batch, start=self._store.end)]
        await self._write(entries)
        return entries

    async def _write(self, entries: Sequence[Entry]) -> None:
        await _in_thread(self._thread, self._store.directory, partial(self._extend, entries))
        self.growth.reach(self._store.end)

    def _extend(self, entries: Sequence[Entry]) -> None:
        tail = self._store.tail
        done = 0
        while done < len(entries):
            room = self._records_per_segment - len(tail.entries)
            tail.extend(entries[done : done + room])
            done += room
            if len(tail.entries) >= self._records_per_segment or tail.frame_bytes >= SEGMENT_BYTES:
                self._store.seal()
                tail = self._store.tail

    def _finish(self) -> None:
        # After a failed write the tail on disk is in doubt; the next writer looks at it and decides.
        if self._store.tail.entries and not self._store.tail.is_in_doubt:
            self._store.seal()
        self._store.tail.close()


class _Store:
    """The files of an archive. Every method blocks on the disk, and they are called from one thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.segments: list[Segment] = []
        self.tail = _Tail(directory, 0, _GENESIS)
        self._manifest = b""
        self._version = (0, 0, 0)
        self._previous = ""
        self._loaded: tuple[str, list[Entry]] | None = None

    @property
    def end(self) -> int:
        """The cursor after the last record, sealed or not."""
        return self.tail.first + len(self.tail.entries)

    def refresh(self) -> None:
        """Read what the files hold now.

        A live writer may seal the tail while we look from one file to the next. It lets go of a tail only after it has
        renamed the manifest: when that is still the one we began with, what we saw belongs together.
        """
        while True:
            version = self._manifest_version()
            if version != self._version:
                self._take_manifest((self.directory / MANIFEST).read_bytes())
                self._version = version
            beyond = None if self.tail.refresh() else self._first_beyond()
            has_begun_a_tail = beyond is not None and self.tail.path.exists()
            if not has_begun_a_tail and self._manifest_version() == version:
                break
        if beyond is not None:
            raise LedgerCorruptError(
                f"{self.directory / MANIFEST} ends at cursor {self.end}, but {beyond} lies beyond it: lines of the "
                "manifest were lost. Restore it from a copy of the archive."
            )

    def load(self, cursor: int) -> Sequence[Entry]:
        """Return the checked entries of the segment, or of the tail, that holds `cursor`."""
        if cursor >= self.tail.first:
            return self.tail.entries
        segment = self.segments[bisect_right(self.segments, cursor, key=lambda segment: segment.first) - 1]
        # The segment read last is kept: readers that page through it, or wait in it, do not unpack it again.
        if self._loaded is None or self._loaded[0] != segment.file:
            self._loaded = (segment.file, _read_segment(self.directory, segment))
        return self._loaded[1]

    def seal(self) -> None:
        """Make the tail a segment: the segment's file first, then the manifest, and only then is the tail let go."""
        tail = self.tail
        frames = tail.frames()
        packed = zstandard.ZstdCompressor(level=6, write_checksum=True).compress(frames)
        name = f"{tail.first:020d}.segment"
        fields: dict[str, str | int] = {
            "file": name,
            "first": tail.first,
            "last": tail.entries[-1].cursor,
            "frame_bytes": len(frames),
            "file_bytes": len(packed),
            "file_sha256": hashlib.sha256(packed).hexdigest(),
            "chain_before": tail.chain_before.hex(),
            "chain_after": tail.chain.hex(),
            "previous": self._previous,
        }
        segment = Segment.model_validate({**fields, "sha256": _line_sha256(fields)})
        _write_file(self.directory / name, packed)
        manifest = self._manifest + _line(segment.model_dump())
        _write_file(self.directory / MANIFEST, manifest)
        self._take_manifest(manifest)
        tail.delete()

    def tidy(self) -> None:
        """Make the files ready for a writer: cut off a half-written frame, drop tails that were sealed."""
        self.tail.cut()
        for path in self.directory.glob("*.tail"):
            if path != self.tail.path:
                path.unlink()
        for path in self.directory.glob("*.new"):
            path.unlink()

    def _manifest_version(self) -> tuple[int, int, int]:
        try:
            status = (self.directory / MANIFEST).stat()
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigurationError(
                f"there is no archive in {self.directory}: it has no {MANIFEST}. Check the path."
            ) from None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _take_manifest(self, manifest: bytes) -> None:
        if not manifest.startswith(self._manifest):
            raise LedgerCorruptError(
                f"{self.directory / MANIFEST} was rewritten before cursor {self.end}. "
                "Restore it from a copy of the archive."
            )
        segments, previous = _parse_manifest(self.directory / MANIFEST, manifest)
        for segment in segments[len(self.segments) :]:
            path = self.directory / segment.file
            size = path.stat().st_size if path.is_file() else -1
            if size != segment.file_bytes:
                state = "is missing" if size < 0 else f"has {size} bytes instead of {segment.file_bytes}"
                raise LedgerCorruptError(
                    f"{path} {state}: the records from cursor {segment.first} to {segment.last} are lost. "
                    "Restore the file from a copy of the archive."
                )
        self._manifest, self.segments, self._previous = manifest, segments, previous
        end = segments[-1].last + 1 if segments else 0
        if self.tail.first != end:
            self.tail.close()
            self.tail = _Tail(self.directory, end, bytes.fromhex(segments[-1].chain_after))

    def _first_beyond(self) -> str | None:
        """Return a file beyond the manifest. Without a tail there is none: a tail outlives its line's being written."""
        names = (path.name for path in self.directory.glob("*.*") if path.suffix in {".segment", ".tail"})
        return next((name for name in sorted(names) if name.split(".")[0] >= f"{self.end:020d}"), None)


class _Tail:
    """The open end of an archive: frames in a file that grows, and the entries they hold."""

    def __init__(self, directory: Path, first: int, chain: bytes) -> None:
        self.path = directory / f"{first:020d}.tail"
        self.first = first
        self.entries: list[Entry] = []
        self.chain_before = chain
        self.chain = chain
        self.frame_bytes = 0
        self.is_in_doubt = False
        self._file: int | None = None

    def refresh(self) -> bool:
        """Take in what the file holds beyond what we know, and return whether there is a file."""
        if self._file is not None:
            return True  # It is ours to write: nobody else adds to it.
        try:
            with self.path.open("rb") as file:
                file.seek(self.frame_bytes)
                added = file.read()
        except FileNotFoundError:
            return False
        for entry, chain, size in _unframe(added, self.first + len(self.entries), self.chain, self.path):
            self.entries.append(entry)
            self.chain = chain
            self.frame_bytes += size
        return True

    def extend(self, entries: Sequence[Entry]) -> None:
        """Write entries at the end and sync them."""
        frames, chain = _frame(entries, self.chain)
        self.is_in_doubt = True
        if self._file is None:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            _sync_directory(self.path.parent)
        view = memoryview(frames)
        while view:
            view = view[os.write(self._file, view) :]
        os.fdatasync(self._file)
        self.is_in_doubt = False
        self.entries.extend(entries)
        self.chain = chain
        self.frame_bytes += len(frames)

    def frames(self) -> bytes:
        """Return all frames, made anew from the entries: they must be what the file holds."""
        frames, chain = _frame(self.entries, self.chain_before)
        if chain != self.chain:
            raise LedgerCorruptError(f"{self.path} changed in memory before it was sealed; nothing was sealed")
        return frames

    def cut(self) -> None:
        """Cut off the beginning of a frame at the end of the file: it was never acknowledged."""
        if self.path.is_file():
            os.truncate(self.path, self.frame_bytes)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def delete(self) -> None:
        """Remove the file, whose records a segment now holds."""
        self.close()
        self.path.unlink(missing_ok=True)


def _begin(directory: Path) -> WriterLock:
    """Lock the archive for writing, having begun it when the directory is empty."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the archive directory {directory}: {error.strerror}. Name a place that is writable."
        ) from error
    manifest = directory / MANIFEST
    others = [] if manifest.exists() else [path.name for path in directory.iterdir() if path.name not in _BEGINNINGS]
    if others:
        raise ConfigurationError(
            f"{directory} is no archive and is not empty (it holds {min(others)}). "
            "Name an archive or an empty directory."
        )
    lock = WriterLock(directory / _LOCK, directory)
    if not manifest.exists():
        fields: dict[str, str | int] = {"format": FORMAT}
        _write_file(manifest, _line({**fields, "sha256": _line_sha256(fields)}))
    return lock


_LOCK: Final = "archive.lock"
#: What a writer that died while it began an archive may leave.
_BEGINNINGS: Final = frozenset({_LOCK, MANIFEST + ".new"})


def _parse_manifest(path: Path, manifest: bytes) -> tuple[list[Segment], str]:
    """Return the segments and the hash of the last line, having checked every line against the one before it."""
    segments: list[Segment] = []
    previous, end, chain = "", 0, _GENESIS.hex()
    *lines, unfinished = manifest.split(b"\n")
    if unfinished or not lines:
        raise _bad_line(f"the last line of {path}", 0, "it does not end")
    for number, line in enumerate(lines, start=1):
        where = f"line {number} of {path}"
        try:
            fields = orjson.loads(line)
            stated = fields.pop("sha256")
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise _bad_line(where, end, f"it is no manifest line ({error})") from error
        if number == 1 and isinstance(version := fields.get("format"), int) and version > FORMAT:
            raise UnsupportedVersionError(f"the archive {path.parent}", version, FORMAT)
        if stated != _line_sha256(fields):
            raise _bad_line(where, end, "it does not match its hash")
        if number > 1:
            try:
                segment = Segment.model_validate({**fields, "sha256": stated})
            except ValidationError as error:
                raise _bad_line(where, end, f"it is no segment ({error.errors()[0]['msg']})") from error
            if (segment.previous, segment.first, segment.chain_before) != (previous, end, chain):
                raise _bad_line(where, end, "it does not follow from the line before")
            segments.append(segment)
            end, chain = segment.last + 1, segment.chain_after
        previous = stated
    return segments, previous


def _bad_line(where: str, end: int, problem: str) -> LedgerCorruptError:
    return LedgerCorruptError(
        f"{where} is damaged, from cursor {end}: {problem}. Restore the manifest from a copy of the archive."
    )


def _read_segment(directory: Path, segment: Segment) -> list[Entry]:
    path = directory / segment.file
    packed = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(packed).hexdigest() != segment.file_sha256:
        raise LedgerCorruptError(
            f"{path} does not match its hash in the manifest: the records from cursor {segment.first} to "
            f"{segment.last} cannot be trusted. Restore the file from a copy of the archive."
        )
    frames = zstandard.ZstdDecompressor().decompress(packed, max_output_size=segment.frame_bytes)
    entries: list[Entry] = []
    chain = bytes.fromhex(segment.chain_before)
    for entry, step, _ in _unframe(frames, segment.first, chain, path):
        entries.append(entry)
        chain = step
    if chain.hex() != segment.chain_after:
        raise LedgerCorruptError(
            f"{path} does not lead to the chain hash that the manifest has after cursor {segment.last}. "
            "Restore both from a copy of the archive."
        )
    return entries


def _frame(entries: Sequence[Entry], chain: bytes) -> tuple[bytes, bytes]:
    """Return the frames of entries, and the chain after them."""
    frames = bytearray()
    for entry in entries:
        header = _HEADER.pack(entry.cursor, entry.append_ms, len(entry.data))
        chain = _step(chain, header, entry.data)
        frames += header
        frames += _CRC.pack(zlib.crc32(header))
        frames += entry.data
        frames += chain[:_CHECK_BYTES]
    return bytes(frames), chain


def _unframe(frames: bytes, first: int, chain: bytes, path: Path) -> Iterator[tuple[Entry, bytes, int]]:
    """Yield each entry with the chain after it and the size of its frame, to the last frame that is complete.

    Raises:
        LedgerCorruptError: A frame is complete but not what was written. A length has its own checksum, so a damaged
            one is not taken for a frame that was never finished.
    """
    offset, cursor = 0, first
    while len(frames) - offset >= _FRAME_BYTES:
        header = frames[offset : offset + _HEADER.size]
        found, append_ms, length = _HEADER.unpack(header)
        size = _FRAME_BYTES + length
        (crc,) = _CRC.unpack_from(frames, offset + _HEADER.size)
        if crc != zlib.crc32(header) or found != cursor:
            if not frames[offset:].strip(b"\0"):
                return  # A file system that lost power may have grown the file and not filled it.
            raise _bad_frame(path, cursor)
        if len(frames) - offset < size:
            return
        start = offset + _HEADER.size + _CRC.size
        data = frames[start : start + length]
        chain = _step(chain, header, data)
        if frames[start + length : offset + size] != chain[:_CHECK_BYTES]:
            raise _bad_frame(path, cursor)
        yield Entry(cursor, append_ms, data), chain, size
        offset += size
        cursor += 1


def _step(chain: bytes, header: bytes, data: bytes) -> bytes:
    # The header's first 16 bytes are the cursor and the time. The length is not hashed: it is that of the data.
    return hashlib.sha256(chain + header[:16] + data).digest()


def _bad_frame(path: Path, cursor: int) -> LedgerCorruptError:
    return LedgerCorruptError(
        f"{path} is damaged at cursor {cursor}: the record does not match its hash. Restore the file from a copy of "
        "the archive; if it is a tail, it may also be deleted and its records archived again from the ledger."
    )


def _line(fields: dict[str, str | int]) -> bytes:
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS) + b"\n"


def _line_sha256(fields: dict[str, str | int]) -> str:
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _write_file(path: Path, data: bytes) -> None:
    """Put a file in its place whole or not at all, whenever the process or the power fails."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _in_thread(thread: ThreadPoolExecutor, directory: Path, work: Callable[[], T]) -> T:
    """Run work that waits for the disk in the ledger's thread; what the disk refuses becomes our error."""
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, work)
    except OSError as error:
        raise LedgerUnavailableError(
            f"the archive {directory} cannot be used: {error}. Check permissions and that the disk is not full."
        ) from error
