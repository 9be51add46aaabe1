"""Puts a story of `tests.stories` into a ledger."""

from __future__ import annotations

from collections.abc import Iterable

from streamsched.ledgers.memory import MemoryLedger
from streamsched.model.events import Event, Record, Unreadable
from streamsched.wire import codec


async def recorded(records: Iterable[Record | tuple[int, Event | bytes]]) -> MemoryLedger:
    """Return a ledger that holds these records, or events and bytes with their append times."""
    now_ms = 0
    ledger = MemoryLedger(lambda: now_ms)
    for record in records:
        if isinstance(record, Record):
            assert not isinstance(record.event, Unreadable)
            now_ms, data = record.append_ms, codec.encode(record.event)
        else:
            now_ms = record[0]
            data = record[1] if isinstance(record[1], bytes) else codec.encode(record[1])
        await ledger.append(data)
    return ledger
