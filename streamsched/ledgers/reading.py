"""What the ledgers share when they are read: where a read may start, and how it turns into following."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from streamsched.errors import LedgerClosedError, LedgerTruncatedError
from streamsched.model.ledger import Entry

#: Entries in one page at most: enough to make the cost of a page small, little enough to hold.
PAGE_ENTRIES = 1_000
#: Bytes of data after which a page ends, so that a thousand large records do not make one page.
PAGE_BYTES = 4_000_000


def check_start(start: int, end: int) -> None:
    """Refuse to read from where there is nothing.

    Raises:
        LedgerTruncatedError: `start` lies beyond the end.
        ValueError: `start` is negative.
    """
    if start < 0:
        raise ValueError(f"a cursor is at least 0, not {start}")
    if start > end:
        raise LedgerTruncatedError(start, end)


def page_length(entries: Sequence[Entry], first: int) -> int:
    """Return how many of `entries` from index `first` make one page; at least one when there is any."""
    size = 0
    for count, index in enumerate(range(first, min(len(entries), first + PAGE_ENTRIES)), start=1):
        size += len(entries[index].data)
        if size >= PAGE_BYTES:
            return count
    return min(len(entries) - first, PAGE_ENTRIES)


async def follow(
    read: Callable[[int], AsyncIterator[Sequence[Entry]]], start: int, wait_beyond: Callable[[int], Awaitable[bool]]
) -> AsyncIterator[Sequence[Entry]]:
    """Yield what `read` yields from `start`, then again whenever there is more, until the ledger is closed.

    Args:
        read: Reads from a cursor to the end.
        start: The first cursor wanted.
        wait_beyond: Returns True when the ledger has grown beyond a cursor, and False when it was closed.
    """
    cursor = start
    try:
        while True:
            async for page in read(cursor):
                yield page
                cursor = page[-1].cursor + 1
            if not await wait_beyond(cursor):
                return
    except LedgerClosedError:
        return


class Growth:
    """The end of a ledger that this process writes; wakes those who wait for it to move."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.is_closed = False
        self._changed = asyncio.Event()

    def reach(self, end: int) -> None:
        """Move the end and wake the followers."""
        self.end = end
        self._pulse()

    def close(self) -> None:
        """Wake the followers for the last time."""
        self.is_closed = True
        self._pulse()

    async def wait_beyond(self, cursor: int) -> bool:
        """Return True once the end is beyond `cursor`, False once the ledger is closed."""
        while self.end <= cursor and not self.is_closed:
            await self._changed.wait()
        return not self.is_closed

    def _pulse(self) -> None:
        # `set` wakes all who wait now, also when `clear` follows at once; who comes later looks at `end` first.
        self._changed.set()
        self._changed.clear()
