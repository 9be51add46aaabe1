"""Bytes and where they are kept: the codec, and every store of the ledger."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

from streamsched.ledgers.archive import ArchiveLedger
from streamsched.ledgers.kafka import KafkaLedger
from streamsched.ledgers.memory import MemoryLedger
from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.ledgers.writing import wall_clock_ms
from streamsched.model.events import Event, Unreadable
from streamsched.model.ledger import Entry, Ledger
from streamsched.wire import codec
from tests.benchmarks.histories import philly_history
from tests.benchmarks.measuring import Result, seconds
from tests.ledger_topics import create_ledger_topic

#: Appends that overlap, as those of a busy intake do.
OVERLAPPING = 500
#: Appends that wait for each other, as those of one scheduler do.
ALONE = 200


def measure_codec(jobs: int = 1_000) -> Iterator[Result]:
    """Measure the codec on a recorded history; yield each result when it is known."""
    history = philly_history(jobs)
    events = [record.event for record in map(codec.read, history) if not isinstance(record.event, Unreadable)]
    what = f"codec, {len(history):,} records of {sum(len(e.data) for e in history) / len(history):.0f} bytes"
    for name, work in (("encode", partial(_encode_all, events)), ("read", partial(_read_all, history))):
        taken = statistics.median(seconds(work) for _ in range(5))
        yield Result(f"{what}: {name}", len(history) / taken, "records/s")


async def measure_ledgers(directory: Path, bootstrap: str | None, jobs: int = 1_000) -> AsyncIterator[Result]:
    """Measure appending to and reading from every store, by the clock on the wall; yield each result when it is known.

    Args:
        directory: Where files may lie.
        bootstrap: A broker; Kafka is left out when None.
        jobs: How many jobs of the trace the history that is stored has.
    """
    records = [entry.data for entry in philly_history(jobs)]
    ledgers: dict[str, Ledger] = {
        "memory": MemoryLedger(wall_clock_ms),
        "SQLite": await SqliteLedger.open(directory / "ledger.db"),
        "archive": await ArchiveLedger.open(directory / "archive", readonly=False),
    }
    if bootstrap is not None:
        ledgers["Kafka"] = await KafkaLedger.open(bootstrap, await create_ledger_topic(bootstrap))
    for name, ledger in ledgers.items():
        try:
            began = time.perf_counter()
            for first in range(0, len(records), OVERLAPPING):
                await asyncio.gather(*map(ledger.append, records[first : first + OVERLAPPING]))
            rate = len(records) / (time.perf_counter() - began)
            yield Result(f"{name} ledger: append, {OVERLAPPING} overlapping", rate, "records/s")

            waits = []
            for data in records[:ALONE]:
                began = time.perf_counter()
                await ledger.append(data)
                waits.append(time.perf_counter() - began)
            yield Result(f"{name} ledger: append, one after the other, p50", 1e3 * statistics.median(waits), "ms")

            began = time.perf_counter()
            read = 0
            async for page in ledger.read():
                read += len(page)
            if read != len(records) + ALONE:
                raise AssertionError(f"{name} ledger: {read} records were read, not {len(records) + ALONE}")
            yield Result(f"{name} ledger: read", read / (time.perf_counter() - began), "records/s")
        finally:
            await ledger.close()


def _encode_all(events: Sequence[Event]) -> None:
    for event in events:
        codec.encode(event)


def _read_all(history: Sequence[Entry]) -> None:
    for entry in history:
        codec.read(entry)
