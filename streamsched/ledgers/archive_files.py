"""The files of an archive on disk; `streamsched.ledgers.archive_format` says what is in them.

Segments and manifest are written beside their place, synced, and renamed. The tail is synced before an append is
acknowledged. Its name holds its first cursor, so a tail that was sealed is never read again, whenever a process dies.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import zstandard

from streamsched.errors import ConfigurationError, LedgerCorruptError
from streamsched.ledgers.archive_format import (
    FORMAT,
    GENESIS,
    MANIFEST,
    Segment,
    from_frames,
    manifest_line,
    parse_manifest,
    to_frames,
)
from streamsched.ledgers.writing import WriterLock
from streamsched.model.ledger import Entry

_LOCK: Final = "archive.lock"
#: What a writer that died while it began an archive may leave.
_BEGINNINGS: Final = frozenset({_LOCK, MANIFEST + ".new"})


class ArchiveFiles:
    """The files of an archive. Every method blocks on the disk, and they are called from one thread."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.segments: list[Segment] = []
        self.tail = _Tail(directory, 0, GENESIS)
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
        _write_file(self.directory / name, packed)
        manifest = self._manifest + manifest_line(fields)
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
        segments, previous = parse_manifest(self.directory / MANIFEST, manifest)
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
        for entry, chain, size in from_frames(added, self.first + len(self.entries), self.chain, self.path):
            self.entries.append(entry)
            self.chain = chain
            self.frame_bytes += size
        return True

    def extend(self, entries: Sequence[Entry]) -> None:
        """Write entries at the end and sync them."""
        frames, chain = to_frames(entries, self.chain)
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
        frames, chain = to_frames(self.entries, self.chain_before)
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


def begin_archive(directory: Path) -> WriterLock:
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
        _write_file(manifest, manifest_line({"format": FORMAT}))
    return lock


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
    for entry, step, _ in from_frames(frames, segment.first, chain, path):
        entries.append(entry)
        chain = step
    if chain.hex() != segment.chain_after:
        raise LedgerCorruptError(
            f"{path} does not lead to the chain hash that the manifest has after cursor {segment.last}. "
            "Restore both from a copy of the archive."
        )
    return entries


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
