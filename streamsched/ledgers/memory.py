"""The ledger in memory: for tests and simulations, where the clock is an argument and nothing outlives the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from streamsched.errors import LedgerClosedError
from streamsched.ledgers.reading import Growth, check_start, follow, page_length
from streamsched.model.ledger import Entry


class MemoryLedger:
    """A list of entries behind the ledger protocol."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """Begin empty.

        Args:
            clock: Gives each entry its append time, in milliseconds since 1970 UTC or any other moment.
        """
        self._clock = clock
        self._entries: list[Entry] = []
        self._growth = Growth(0)

    async def append(self, data: bytes) -> Entry:
        """Add one record at once; see `Ledger.append`."""
        self._check_open()
        entry = Entry(len(self._entries), self._clock(), bytes(data))
        self._entries.append(entry)
        self._growth.reach(len(self._entries))
        return entry

    async def end(self) -> int:
        """Return the number of records held."""
        self._check_open()
        return len(self._entries)

    async def read(self, start: int = 0) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries from `start`; see `Ledger.read`."""
        self._check_open()
        end = len(self._entries)
        check_start(start, end)
        while start < end:
            self._check_open()
            length = min(page_length(self._entries, start), end - start)
            yield self._entries[start : start + length]
            start += length

    def follow(self, start: int = 0) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries from `start` and those to come; see `Ledger.follow`."""
        return follow(self.read, start, self._growth.wait_beyond)

    async def close(self) -> None:
        """End the followers. The entries are gone with the object."""
        self._growth.close()

    def _check_open(self) -> None:
        if self._growth.is_closed:
            raise LedgerClosedError("the memory ledger")
