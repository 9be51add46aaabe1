"""One commit for the appends that overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from streamsched.errors import LedgerClosedError, LedgerUnavailableError
from streamsched.ledgers.writing import GroupCommit
from streamsched.model.ledger import Entry


class Store:
    """Remembers the batches it was given; fails from batch number `fails_at` on."""

    def __init__(self, fails_at: int = 1_000_000) -> None:
        self.batches: list[list[bytes]] = []
        self.under_way = 0
        self._fails_at = fails_at
        self._end = 0

    async def commit(self, batch: Sequence[bytes]) -> Sequence[Entry]:
        self.under_way += 1
        assert self.under_way == 1
        await asyncio.sleep(0.001)
        self.under_way -= 1
        if len(self.batches) >= self._fails_at:
            raise OSError("disk full")
        self.batches.append(list(batch))
        first, self._end = self._end, self._end + len(batch)
        return [Entry(cursor, 0, data) for cursor, data in enumerate(batch, start=first)]


async def test_what_waits_during_a_commit_is_one_batch() -> None:
    """The first append goes at once; those that come meanwhile go together."""
    store = Store()
    commits = GroupCommit("here", store.commit, batch_bytes=1_000_000)

    first = asyncio.create_task(commits.append(b"1"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.gather(first, commits.append(b"2"), commits.append(b"3"))

    assert store.batches == [[b"1"], [b"2", b"3"]]


async def test_a_batch_has_a_size() -> None:
    """At 32 bytes of overhead each, two records of 100 bytes fit into 264 bytes; a larger one goes alone."""
    store = Store()
    commits = GroupCommit("here", store.commit, batch_bytes=264)

    await asyncio.gather(*(commits.append(data) for data in (b"a" * 100, b"b" * 100, b"c" * 100, b"d" * 999, b"e")))

    assert [[batch[:1] for batch in batches] for batches in store.batches] == [[b"a", b"b"], [b"c"], [b"d"], [b"e"]]


async def test_after_a_failed_commit_nothing_is_written() -> None:
    """All that was waiting is in doubt, and what comes later is refused, even when the store would take it."""
    store = Store(fails_at=0)
    commits = GroupCommit("here", store.commit, batch_bytes=40)

    results = await asyncio.gather(*(commits.append(b"%d" % n) for n in range(3)), return_exceptions=True)

    assert [type(result) for result in results] == [LedgerUnavailableError] * 3
    with pytest.raises(LedgerUnavailableError, match=r"nothing was written to here.*disk full"):
        await commits.append(b"later")
    assert store.batches == []
    await commits.close()


async def test_a_commit_that_was_cancelled_is_in_doubt() -> None:
    """Nobody waits for ever for a commit that ended without an answer."""

    async def commit(_batch: Sequence[bytes]) -> Sequence[Entry]:
        raise asyncio.CancelledError

    commits = GroupCommit("here", commit, batch_bytes=1_000)

    for _ in range(2):
        with pytest.raises(LedgerUnavailableError):
            await commits.append(b"x")
    await commits.close()


async def test_a_caller_that_gives_up_disturbs_no_other() -> None:
    """A cancelled append may be written; the one after it has the next cursor."""
    store = Store()
    commits = GroupCommit("here", store.commit, batch_bytes=1_000)
    impatient = asyncio.create_task(commits.append(b"impatient"))
    patient = asyncio.create_task(commits.append(b"patient"))
    await asyncio.sleep(0)
    impatient.cancel()

    assert (await patient).data == b"patient"
    assert store.batches == [[b"impatient", b"patient"]]


async def test_closing_waits_and_then_refuses() -> None:
    """What was appended before is written, what comes after is not."""
    store = Store()
    commits = GroupCommit("here", store.commit, batch_bytes=1_000)
    appended = asyncio.create_task(commits.append(b"1"))
    await asyncio.sleep(0)

    await commits.close()

    assert (await appended).cursor == 0
    with pytest.raises(LedgerClosedError):
        await commits.append(b"2")
