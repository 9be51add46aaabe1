"""What is in an archive, byte by byte: enough to check one without streamsched.

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
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamsched.errors import LedgerCorruptError, UnsupportedVersionError
from streamsched.model.ledger import Entry

MANIFEST: Final = "manifest.jsonl"
FORMAT: Final = 1
#: The chain before cursor 0.
GENESIS: Final = bytes(32)

_HEADER: Final = struct.Struct(">QqI")
_CRC: Final = struct.Struct(">I")
_CHECK_BYTES: Final = 8
_FRAME_BYTES: Final = _HEADER.size + _CRC.size + _CHECK_BYTES
_SHA256 = Field(pattern="^[0-9a-f]{64}$")


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
    file_sha256: str = _SHA256
    chain_before: str = _SHA256
    chain_after: str = _SHA256
    previous: str = _SHA256
    sha256: str = _SHA256


def parse_manifest(path: Path, manifest: bytes) -> tuple[list[Segment], str]:
    """Return the segments and the hash of the last line, having checked every line against the one before it.

    Raises:
        LedgerCorruptError: A line is not what was written, or not where.
        UnsupportedVersionError: A newer streamsched wrote it.
    """
    segments: list[Segment] = []
    previous, end, chain = "", 0, GENESIS.hex()
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
        if stated != _sha256(fields):
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


def to_frames(entries: Sequence[Entry], chain: bytes) -> tuple[bytes, bytes]:
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


def from_frames(frames: bytes, first: int, chain: bytes, path: Path) -> Iterator[tuple[Entry, bytes, int]]:
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


def manifest_line(fields: dict[str, str | int]) -> bytes:
    """Return a line of the manifest: the fields and their hash."""
    return _canonical({**fields, "sha256": _sha256(fields)}) + b"\n"


def _sha256(fields: dict[str, str | int]) -> str:
    return hashlib.sha256(_canonical(fields)).hexdigest()


def _canonical(fields: dict[str, str | int]) -> bytes:
    return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
