"""Archives: what was written can be proved, and damage is found."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import zstandard

from streamsched.errors import (
    ConfigurationError,
    LedgerCorruptError,
    LedgerTruncatedError,
    StreamschedError,
    UnsupportedVersionError,
)
from streamsched.ledgers.archive import ArchiveLedger, archive_ledger
from streamsched.ledgers.memory import MemoryLedger
from streamsched.model.ledger import Entry, Ledger


async def entries_of(ledger: Ledger, start: int = 0) -> list[Entry]:
    return [entry async for page in ledger.read(start) for entry in page]


async def archived(directory: Path) -> list[Entry]:
    """All that the archive in a directory gives a reader."""
    archive = await ArchiveLedger.open(directory)
    try:
        return await entries_of(archive)
    finally:
        await archive.close()


async def ledger_with(*data: bytes) -> MemoryLedger:
    """A ledger whose records were appended at 1000, 1001, 1002 ms and so on."""
    ledger = MemoryLedger(clock=iter(range(1_000, 9_000)).__next__)
    for each in data:
        await ledger.append(each)
    return ledger


@pytest.fixture
async def three_segments(tmp_path: Path) -> Path:
    """The archive of nine records in segments of three."""
    ledger = await ledger_with(*(b"record %d \xff\x00" % number for number in range(9)))
    await archive_ledger(ledger, tmp_path / "archive", records_per_segment=3)
    return tmp_path / "archive"


def flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def lines_of(directory: Path) -> list[bytes]:
    return (directory / "manifest.jsonl").read_bytes().splitlines(keepends=True)


def put_lines(directory: Path, lines: list[bytes]) -> None:
    (directory / "manifest.jsonl").write_bytes(b"".join(lines))


async def test_an_archive_is_the_ledger_byte_for_byte(tmp_path: Path) -> None:
    """Cursors, times and bytes are those of the ledger, also where the bytes are no text."""
    ledger = await ledger_with(b"", b"\xff\xfe", b"{}\n", bytes(100_000))

    assert await archive_ledger(ledger, tmp_path / "archive") == 4

    assert await archived(tmp_path / "archive") == await entries_of(ledger)


async def test_archiving_continues_where_it_stopped(tmp_path: Path) -> None:
    """Each run seals what is new; a run with nothing new changes no file."""
    ledger = await ledger_with(*(b"%d" % number for number in range(7)))
    assert await archive_ledger(ledger, tmp_path, records_per_segment=3) == 7
    for number in range(7, 12):
        await ledger.append(b"%d" % number)
    assert await archive_ledger(ledger, tmp_path, records_per_segment=3) == 12
    before = lines_of(tmp_path)
    assert await archive_ledger(ledger, tmp_path, records_per_segment=3) == 12

    assert lines_of(tmp_path) == before
    archive = await ArchiveLedger.open(tmp_path)
    assert [(segment.first, segment.last) for segment in archive.segments] == [(0, 2), (3, 5), (6, 6), (7, 9), (10, 11)]
    assert await entries_of(archive) == await entries_of(ledger)
    await archive.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(f"{first:020d}.segment" for first in (0, 3, 6, 7, 10)),
        "archive.lock",
        "manifest.jsonl",
    ]


async def test_the_chain_can_be_computed_by_hand(tmp_path: Path) -> None:
    """An auditor needs sha256, zstd and the description of the format, and none of our code."""
    await archive_ledger(await ledger_with(b"one", b"two"), tmp_path)

    step_0 = hashlib.sha256(bytes(32) + (0).to_bytes(8, "big") + (1_000).to_bytes(8, "big") + b"one").digest()
    step_1 = hashlib.sha256(step_0 + (1).to_bytes(8, "big") + (1_001).to_bytes(8, "big") + b"two").digest()
    header, line = map(orjson.loads, lines_of(tmp_path))
    packed = (tmp_path / "00000000000000000000.segment").read_bytes()
    assert (line["chain_before"], line["chain_after"]) == ("00" * 32, step_1.hex())
    assert line["file_sha256"] == hashlib.sha256(packed).hexdigest()
    assert line["previous"] == header["sha256"]
    own = line.pop("sha256")
    assert own == hashlib.sha256(orjson.dumps(line, option=orjson.OPT_SORT_KEYS)).hexdigest()
    frames = zstandard.ZstdDecompressor().decompress(packed)
    assert frames[24:27] == b"one"
    assert frames[27:35] == step_0[:8]
    assert len(frames) == 2 * (8 + 8 + 4 + 4 + 3 + 8)


async def test_another_ledger_does_not_continue_an_archive(three_segments: Path) -> None:
    """An archive is of one history."""
    other = await ledger_with(*(b"other %d" % number for number in range(20)))

    with pytest.raises(ConfigurationError, match="another ledger's history: they differ at cursor 8"):
        await archive_ledger(other, three_segments)

    assert len(await archived(three_segments)) == 9


async def test_a_ledger_shorter_than_its_archive_was_truncated(three_segments: Path) -> None:
    """The archive has seen more than the ledger holds now."""
    with pytest.raises(LedgerTruncatedError):
        await archive_ledger(await ledger_with(b"only"), three_segments)


@pytest.mark.parametrize("at", [0, 5, 30, -20, -1])
async def test_a_flipped_bit_in_a_segment_is_found(at: int, three_segments: Path) -> None:
    """Nothing of a damaged segment is given out; the error names its file and its cursors."""
    flip(three_segments / "00000000000000000003.segment", at)
    archive = await ArchiveLedger.open(three_segments)
    pages = archive.read()

    assert [entry.cursor for entry in await anext(pages)] == [0, 1, 2]
    with pytest.raises(LedgerCorruptError, match=r"00000000000000000003\.segment .*from cursor 3 to 5"):
        await anext(pages)
    assert [entry.cursor for entry in await entries_of(archive, 6)] == [6, 7, 8]
    await archive.close()


def cut(directory: Path) -> None:
    path = directory / "00000000000000000003.segment"
    path.write_bytes(path.read_bytes()[:-7])


def lose(directory: Path) -> None:
    (directory / "00000000000000000003.segment").unlink()


def exchange(directory: Path) -> None:
    one, other = directory / "00000000000000000003.segment", directory / "00000000000000000006.segment"
    one.rename(directory / "between")
    other.rename(one)
    (directory / "between").rename(other)


@pytest.mark.parametrize("damage", [cut, lose, exchange])
async def test_a_segment_that_is_not_the_one_written_is_found(
    damage: Callable[[Path], None], three_segments: Path
) -> None:
    """A truncated, a missing and an exchanged segment, each by its name and first cursor."""
    damage(three_segments)

    with pytest.raises(LedgerCorruptError, match=r"00000000000000000003\.segment.* cursor 3 to 5"):
        await archived(three_segments)


@pytest.mark.parametrize(
    ("order", "at"),
    [
        ((0, 2, 1, 3), 0),  # Reordered.
        ((0, 1, 3, 2), 3),
        ((0, 1, 3), 3),  # One lost in the middle,
        ((0, 2, 3), 0),  # at the beginning,
        ((0, 1, 2), 6),  # and at the end, where its segment still lies.
        ((0, 1, 1, 2, 3), 3),  # Repeated.
        ((1, 2, 3), 0),  # Without its header.
    ],
)
async def test_a_manifest_whose_lines_were_moved_is_found(order: list[int], at: int, three_segments: Path) -> None:
    """Each line follows from the one before it."""
    lines = lines_of(three_segments)
    put_lines(three_segments, [lines[number] for number in order])

    with pytest.raises(LedgerCorruptError, match=rf"manifest\.jsonl.* cursor {at}\b"):
        await ArchiveLedger.open(three_segments)


async def test_every_damaged_byte_of_the_manifest_is_found(tmp_path: Path) -> None:
    """Whichever byte it is, the header's version and the line ends included."""
    await archive_ledger(await ledger_with(b"only"), tmp_path)
    manifest = tmp_path / "manifest.jsonl"
    for at in range(manifest.stat().st_size):
        flip(manifest, at, bit=at % 8)
        with pytest.raises((LedgerCorruptError, UnsupportedVersionError)):
            await ArchiveLedger.open(tmp_path)
        flip(manifest, at, bit=at % 8)
    assert len(await archived(tmp_path)) == 1


async def test_a_forged_line_breaks_the_chain(three_segments: Path) -> None:
    """Who changes a line and its own hash must change every line after it, and the segments too."""
    lines = lines_of(three_segments)
    fields = orjson.loads(lines[1])
    fields["chain_after"] = "ab" * 32
    del fields["sha256"]
    fields["sha256"] = hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()
    put_lines(three_segments, [lines[0], orjson.dumps(fields, option=orjson.OPT_SORT_KEYS) + b"\n", *lines[2:]])

    with pytest.raises(LedgerCorruptError, match=r"line 3 of .* cursor 3: it does not follow"):
        await ArchiveLedger.open(three_segments)


async def test_an_empty_manifest_is_damage(tmp_path: Path) -> None:
    """An archive that was begun has a header."""
    (tmp_path / "manifest.jsonl").touch()

    with pytest.raises(LedgerCorruptError, match="manifest"):
        await ArchiveLedger.open(tmp_path)


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """Who reads format 1 does not guess at format 2."""
    (tmp_path / "manifest.jsonl").write_bytes(b'{"format":2,"sha256":"of a kind we cannot know"}\n')

    with pytest.raises(UnsupportedVersionError, match="versions up to 1"):
        await ArchiveLedger.open(tmp_path)


@pytest.fixture
async def copied_tail(tmp_path: Path) -> Path:
    """A directory as a writer leaves it when it is killed with one sealed segment and two records in the tail."""
    writer = await ArchiveLedger.open(tmp_path / "live", readonly=False, records_per_segment=3, clock=lambda: 7)
    for data in (b"0", b"1", b"2", b"three", b"four"):
        await writer.append(data)
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    await writer.close()
    return tmp_path / "killed"


FIVE = [Entry(cursor, 7, data) for cursor, data in enumerate((b"0", b"1", b"2", b"three", b"four"))]


async def test_every_damaged_byte_of_the_tail_is_found(copied_tail: Path) -> None:
    """Also in a length: a damaged length is not taken for a frame that was never finished."""
    tail = copied_tail / "00000000000000000003.tail"
    assert tail.stat().st_size == (32 + 5) + (32 + 4)
    for at in range(tail.stat().st_size):
        flip(tail, at, bit=at % 8)
        with pytest.raises(LedgerCorruptError, match=rf"\.tail is damaged at cursor {3 if at < 37 else 4}\b"):
            await archived(copied_tail)
        flip(tail, at, bit=at % 8)
    assert await archived(copied_tail) == FIVE


@pytest.mark.parametrize("unfinished", [b"\0" * 7, b"\0" * 4_096, "23", "24", "36"])
async def test_an_unfinished_frame_is_cut_off(unfinished: bytes | str, copied_tail: Path) -> None:
    """A frame that was being written was never acknowledged: readers pass over it, the next writer overwrites it."""
    tail = copied_tail / "00000000000000000003.tail"
    if isinstance(unfinished, bytes):  # A file that grew before it was filled.
        tail.write_bytes(tail.read_bytes() + unfinished)
        kept = FIVE
    else:  # A frame of which only so many bytes were written.
        tail.write_bytes(tail.read_bytes()[: 37 + int(unfinished) - 1])
        kept = FIVE[:4]
    assert await archived(copied_tail) == kept

    writer = await ArchiveLedger.open(copied_tail, readonly=False, records_per_segment=100, clock=lambda: 8)
    added = await writer.append(b"next")
    await writer.close()

    assert await archived(copied_tail) == [*kept, added]
    assert added == Entry(len(kept), 8, b"next")


@pytest.mark.parametrize("has_new_manifest", [True, False])
async def test_a_writer_killed_while_it_sealed_loses_and_repeats_nothing(
    has_new_manifest: bool, copied_tail: Path, tmp_path: Path
) -> None:
    """Between any two steps of sealing, the tail or the segment holds the records, and never both count."""
    name = "00000000000000000003.segment"
    shutil.copy(tmp_path / "live" / name, copied_tail / name)
    if has_new_manifest:
        shutil.copy(tmp_path / "live" / "manifest.jsonl", copied_tail)
    else:
        (copied_tail / "manifest.jsonl.new").write_bytes(b"half a li")
    assert await archived(copied_tail) == FIVE

    writer = await ArchiveLedger.open(copied_tail, readonly=False, records_per_segment=3, clock=lambda: 7)
    more = [await writer.append(b"five"), await writer.append(b"six")]
    await writer.close()

    assert await archived(copied_tail) == [*FIVE, *more]
    assert not [path.name for path in copied_tail.iterdir() if path.suffix in {".tail", ".new"}]


async def test_a_directory_of_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    """An archive begins in an empty directory, and reading begins none."""
    with pytest.raises(ConfigurationError, match=r"has no manifest\.jsonl"):
        await ArchiveLedger.open(tmp_path)
    (tmp_path / "holiday.jpg").write_bytes(b"x")

    with pytest.raises(ConfigurationError, match=r"is not empty \(it holds holiday\.jpg\)"):
        await ArchiveLedger.open(tmp_path, readonly=False)

    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


async def test_a_reader_refuses_to_append_and_a_copy_must_continue(three_segments: Path) -> None:
    """Only a writer appends, and what it copies begins at the end."""
    reader = await ArchiveLedger.open(three_segments)
    with pytest.raises(ConfigurationError, match="readonly=False"):
        await reader.append(b"x")
    await reader.close()
    writer = await ArchiveLedger.open(three_segments, readonly=False)

    with pytest.raises(ValueError, match="needs cursor 9 next, not 10"):
        await writer.copy([Entry(10, 0, b"x")])
    with pytest.raises(ConfigurationError, match="already has a writer"):
        await archive_ledger(await ledger_with(), three_segments)

    await writer.close()
    assert len(await archived(three_segments)) == 9


async def test_readers_never_see_a_torn_archive_while_a_writer_seals(tmp_path: Path) -> None:
    """Reading all the time while segments are sealed every two records gives whole beginnings and no error."""
    writer = await ArchiveLedger.open(tmp_path, readonly=False, records_per_segment=2, clock=lambda: 0)
    reader = await ArchiveLedger.open(tmp_path)
    lengths: list[int] = []

    async def read_all_the_time() -> None:
        while not lengths or lengths[-1] < 200:
            entries = await entries_of(reader)
            assert [entry.data for entry in entries] == [b"%d" % number for number in range(len(entries))]
            lengths.append(len(entries))

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(read_all_the_time())
        for number in range(200):
            await writer.append(b"%d" % number)

    assert lengths == sorted(lengths)
    await reader.close()
    await writer.close()


async def test_segments_hold_at_least_one_record(tmp_path: Path) -> None:
    """A size of zero is refused before anything is made."""
    with pytest.raises(ValueError, match="at least 1, not 0"):
        await ArchiveLedger.open(tmp_path / "archive", readonly=False, records_per_segment=0)
    assert not (tmp_path / "archive").exists()


async def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    """The error is one of ours and names the path."""
    (tmp_path / "file").touch()
    for readonly in (True, False):
        with pytest.raises(StreamschedError, match="file"):
            await ArchiveLedger.open(tmp_path / "file", readonly=readonly)
