"""The ledger: a cluster's ordered facts, and the one protocol that every store of them keeps.

A ledger holds bytes, not events: an auditor must be able to hash exactly what was written, and a store must
carry what it cannot read. `streamsched.wire.codec` turns an `Entry` into a `Record` and back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    """One ledger record as it is stored.

    Attributes:
        cursor: Its position, dense from 0. The cursor is the total order of the cluster.
        append_ms: When the ledger took it, in milliseconds since 1970 UTC, by the ledger's own clock. It may step
            back between entries (a new Kafka leader); the fold clamps it.
        data: The bytes as appended.
    """

    cursor: int
    append_ms: int
    data: bytes


class Ledger(Protocol):
    """A cluster's only truth: append at the end, read from a cursor, never change.

    Four stores keep this protocol and pass one contract test suite: memory, SQLite, Kafka and archive files.
    """

    async def append(self, data: bytes) -> Entry:
        """Add one record and return it once it is durable.

        Calls that overlap are given cursors in the order in which they were made.

        Raises:
            LedgerUnavailableError: The record may or may not have been written: the writer must stop, and read the
                ledger before it writes again.
        """
        ...

    async def end(self) -> int:
        """Return the cursor that the next record will get: the number of records held."""
        ...

    def read(self, start: int = 0) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries from `start` up to the end as it was when the call was made, in pages.

        Pages are never empty. Nothing is yielded when `start` is the end.

        Raises:
            LedgerTruncatedError: `start` lies beyond the end: the ledger has lost records.
            LedgerGapError: A cursor is missing.
        """
        ...

    def follow(self, start: int = 0) -> AsyncIterator[Sequence[Entry]]:
        """Yield like `read`, then wait for what comes. Ends only when the ledger is closed or the caller stops."""
        ...

    async def close(self) -> None:
        """Release files and connections. A closed ledger may not be used again; closing twice is harmless."""
        ...
