"""What every ledger promises, asked of all four."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from streamsched.errors import LedgerClosedError, LedgerTruncatedError
from streamsched.ledgers.archive import ArchiveLedger
from streamsched.ledgers.kafka import KafkaLedger
from streamsched.ledgers.memory import MemoryLedger
from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.model.ledger import Entry, Ledger
from tests.ledger_topics import create_ledger_topic

#: A test that hangs is a follower that was not woken.
SECONDS = 30


@dataclass
class Place:
    """Somewhere a ledger lies: it can be opened for writing, and again for reading."""

    write: Callable[[], Awaitable[Ledger]]
    read: Callable[[], Awaitable[Ledger]]


DURABLE = ["sqlite", "archive", pytest.param("kafka", marks=pytest.mark.kafka)]


@pytest_asyncio.fixture
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return await _place(request, tmp_path)


@pytest_asyncio.fixture
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    """An empty ledger of the kind that the test's parameter names."""
    if request.param == "memory":
        opened: Ledger = MemoryLedger(clock=lambda: time.time_ns() // 1_000_000)
    else:
        opened = await (await _place(request, tmp_path)).write()
    yield opened
    await opened.close()


async def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "sqlite":
            path = tmp_path / "cluster.db"
            return Place(partial(SqliteLedger.open, path), partial(SqliteLedger.open, path, readonly=True))
        case "archive":
            # Small segments, so that the tests cross from one to the next and into the tail.
            write = partial(ArchiveLedger.open, tmp_path / "archive", readonly=False, records_per_segment=300)
            return Place(write, partial(ArchiveLedger.open, tmp_path / "archive"))
        case _:
            bootstrap: str = request.getfixturevalue("kafka").bootstrap
            topic = await create_ledger_topic(bootstrap)
            write_kafka = partial(KafkaLedger.open, bootstrap, topic)
            return Place(write_kafka, partial(KafkaLedger.open, bootstrap, topic, readonly=True))


every_ledger = pytest.mark.parametrize("ledger", ["memory", *DURABLE], indirect=True)
every_durable_ledger = pytest.mark.parametrize("place", DURABLE, indirect=True)


async def entries_of(pages: AsyncIterator[Sequence[Entry]]) -> list[Entry]:
    return [entry async for page in pages for entry in page]


async def data_from(ledger: Ledger, start: int = 0) -> list[bytes]:
    return [entry.data for entry in await entries_of(ledger.read(start))]


async def followed(ledger: Ledger, start: int, seen: list[bytes]) -> None:
    async for page in ledger.follow(start):
        seen.extend(entry.data for entry in page)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


@every_ledger
async def test_cursors_are_dense_from_zero(ledger: Ledger) -> None:
    """The first record has cursor 0, each other the next, and the end is the cursor to come."""
    assert await ledger.end() == 0

    appended = [await ledger.append(data) for data in (b"a", b"b", b"c")]

    assert [(entry.cursor, entry.data) for entry in appended] == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert await ledger.end() == 3


@every_ledger
async def test_what_append_returned_is_what_is_read(ledger: Ledger) -> None:
    """Cursor, time and bytes are the same for the writer and for every reader."""
    appended = [await ledger.append(b"%d" % number) for number in range(5)]

    assert await entries_of(ledger.read()) == appended


@every_ledger
async def test_overlapping_appends_keep_the_order_of_the_calls(ledger: Ledger) -> None:
    """A thousand appends under way at once get cursors in the order in which they were made."""
    data = [b"%d" % number for number in range(1_000)]

    appended = await asyncio.gather(*(ledger.append(each) for each in data))

    assert [entry.cursor for entry in appended] == list(range(1_000))
    assert await data_from(ledger) == data


@every_ledger
async def test_a_read_starts_at_any_cursor(ledger: Ledger) -> None:
    """Reading from a cursor gives it and all after it; reading from the end gives nothing."""
    data = [b"%d" % number for number in range(700)]
    await asyncio.gather(*(ledger.append(each) for each in data))

    for start in (0, 1, 299, 300, 301, 600, 699, 700):
        entries = await entries_of(ledger.read(start))
        assert [entry.cursor for entry in entries] == list(range(start, 700))
        assert [entry.data for entry in entries] == data[start:]


@every_ledger
async def test_a_read_ends_at_the_end_it_began_with(ledger: Ledger) -> None:
    """What is appended while someone reads is not for that read."""
    await ledger.append(b"before")
    pages = ledger.read()
    first = await anext(pages)
    await ledger.append(b"after")

    rest = await entries_of(pages)

    assert [entry.data for entry in (*first, *rest)] == [b"before"]


@every_ledger
async def test_an_empty_ledger_has_no_pages(ledger: Ledger) -> None:
    """A read of nothing ends at once, without an empty page."""
    assert [page async for page in ledger.read()] == []


@every_ledger
async def test_a_start_beyond_the_end_is_a_truncation(ledger: Ledger) -> None:
    """A reader that has seen more than there is stops: records were lost."""
    await ledger.append(b"only")

    with pytest.raises(LedgerTruncatedError) as raised:
        await entries_of(ledger.read(2))

    assert (raised.value.seen, raised.value.end) == (2, 1)
    with pytest.raises(LedgerTruncatedError):
        await anext(aiter(ledger.follow(2)))


@every_ledger
async def test_a_negative_cursor_is_refused(ledger: Ledger) -> None:
    """Cursors count from 0; a negative one is a mistake of the caller."""
    with pytest.raises(ValueError, match="at least 0, not -1"):
        await entries_of(ledger.read(-1))


@every_ledger
async def test_bytes_come_back_as_they_were(ledger: Ledger) -> None:
    """The ledger carries what it cannot read: nothing, any byte, and half a megabyte."""
    data = [b"", bytes(range(256)), b"\xff\xfe\x00", b"line\nline\r\n", bytes(500_000), b"\x80" * 500_000, b""]

    for each in data:
        await ledger.append(each)

    assert await data_from(ledger) == data


@every_ledger
async def test_large_records_come_in_several_pages(ledger: Ledger) -> None:
    """Twenty records of half a megabyte do not come as one page of ten."""
    data = [bytes([number]) * 500_000 for number in range(20)]
    await asyncio.gather(*(ledger.append(each) for each in data))

    pages = [page async for page in ledger.read()]

    assert [entry.data for page in pages for entry in page] == data
    assert max(sum(len(entry.data) for entry in page) for page in pages) < 5_000_000


@every_ledger
async def test_append_times_are_of_now(ledger: Ledger) -> None:
    """The ledger stamps a record when it takes it. A minute is for the clock of a broker on another machine."""
    now_ms = time.time_ns() // 1_000_000

    entry = await ledger.append(b"now")

    assert abs(entry.append_ms - now_ms) < 60_000


@every_ledger
async def test_a_follower_sees_what_comes_and_ends_with_the_ledger(ledger: Ledger) -> None:
    """Following gives what is there, then what is appended, and ends when the ledger is closed."""
    await ledger.append(b"there")
    seen: list[bytes] = []
    follower = asyncio.create_task(followed(ledger, 0, seen))
    await until(lambda: seen == [b"there"])

    await ledger.append(b"to come")
    await until(lambda: seen == [b"there", b"to come"])
    await asyncio.gather(*(ledger.append(b"%d" % number) for number in range(400)))
    await until(lambda: len(seen) == 402)

    await ledger.close()
    async with asyncio.timeout(SECONDS):
        await follower
    assert seen == [b"there", b"to come", *(b"%d" % number for number in range(400))]


@every_ledger
async def test_a_follower_may_begin_at_the_end(ledger: Ledger) -> None:
    """Who has read everything waits for the next record."""
    await ledger.append(b"read before")
    seen: list[bytes] = []
    follower = asyncio.create_task(followed(ledger, 1, seen))
    await asyncio.sleep(0.05)
    assert seen == []

    await ledger.append(b"next")

    await until(lambda: seen == [b"next"])
    await ledger.close()
    await follower


@every_ledger
async def test_two_readers_do_not_disturb_each_other(ledger: Ledger) -> None:
    """Each reader has a position of its own, also while the ledger grows."""
    data = [b"%d" % number for number in range(2_500)]
    await asyncio.gather(*(ledger.append(each) for each in data))

    *read, _ = await asyncio.gather(data_from(ledger), data_from(ledger, 1_250), ledger.append(b"meanwhile"))

    assert read[0][:2_500] == data
    assert read[1][:1_250] == data[1_250:]


@every_ledger
async def test_five_thousand_records(ledger: Ledger) -> None:
    """Many pages are one history."""
    data = [b"record %d" % number for number in range(5_000)]
    await asyncio.gather(*(ledger.append(each) for each in data))

    entries = await entries_of(ledger.read())

    assert [entry.cursor for entry in entries] == list(range(5_000))
    assert [entry.data for entry in entries] == data
    assert await ledger.end() == 5_000


@every_ledger
async def test_closing_twice_is_harmless_and_ends_everything_else(ledger: Ledger) -> None:
    """A closed ledger says that it is closed."""
    await ledger.append(b"kept")
    await ledger.close()
    await ledger.close()

    with pytest.raises(LedgerClosedError):
        await ledger.append(b"late")
    with pytest.raises(LedgerClosedError):
        await ledger.end()
    with pytest.raises(LedgerClosedError):
        await entries_of(ledger.read())


@every_ledger
async def test_closing_waits_for_what_was_appended(ledger: Ledger) -> None:
    """An append that was called before close is confirmed, not lost."""
    appends = [asyncio.create_task(ledger.append(b"%d" % number)) for number in range(50)]
    await asyncio.sleep(0)

    await ledger.close()

    assert [entry.cursor for entry in await asyncio.gather(*appends)] == list(range(50))


@every_durable_ledger
async def test_reopening_keeps_everything(place: Place) -> None:
    """A ledger that was closed and opened again has its records, and goes on after them."""
    ledger = await place.write()
    first = await asyncio.gather(*(ledger.append(b"%d" % number) for number in range(350)))
    await ledger.close()

    ledger = await place.write()
    second = [await ledger.append(b"more"), await ledger.append(b"\xff")]
    assert await entries_of(ledger.read()) == [*first, *second]
    await ledger.close()

    reader = await place.read()
    assert await entries_of(reader.read()) == [*first, *second]
    await reader.close()


@every_durable_ledger
async def test_a_reader_follows_a_live_writer(place: Place) -> None:
    """One who opened the ledger read-only sees what another appends, across segments and pages."""
    writer = await place.write()
    await writer.append(b"0")
    reader = await place.read()
    seen: list[bytes] = []
    follower = asyncio.create_task(followed(reader, 0, seen))
    await until(lambda: seen == [b"0"])

    for first in range(1, 901, 100):
        await asyncio.gather(*(writer.append(b"%d" % number) for number in range(first, first + 100)))

    await until(lambda: len(seen) == 901)
    assert seen == [b"%d" % number for number in range(901)]
    assert await reader.end() == 901
    await reader.close()
    await follower
    await writer.close()
