"""A fold of a recorded ledger: the whole, a part, and what an admin took out."""

from __future__ import annotations

import pytest

from streamsched.errors import ReplayDivergenceError, UnsupportedVersionError
from streamsched.model.events import LedgerSkipped, Record, StateHashed, Tick, Unreadable
from streamsched.model.quantities import MINUTE
from streamsched.replay.replayer import fold, skipped_cursors
from streamsched.state.cluster import HASH_EVERY, LAYOUT
from streamsched.state.snapshot import digest
from tests.stories import Story, budgets, nodes, submitted
from tests.unit.replay.recording import recorded

#: An event of a version that does not exist yet.
NEWER = b'{"at":1,"tick":9,"type":"tick","v":2}'


def day() -> Story:
    """Two nodes, one gang placed and started, another waiting."""
    story = Story(*nodes(2), budgets(a=0.5, b=0.5))
    story.at(1 * MINUTE).tell(submitted("first", ranks=2))
    story.round()
    story.at(2 * MINUTE).start("first")
    story.at(3 * MINUTE).tell(submitted("second", budget="b"))
    return story


async def test_a_fold_leads_to_the_state_that_was() -> None:
    """The digest of the replay is the digest of the state that was there when it was recorded."""
    story = day()

    assert digest(await fold(await recorded(story.records))) == digest(story.state)


async def test_a_fold_stops_before_a_cursor() -> None:
    """`until_cursor` is how many records are folded."""
    state = await fold(await recorded(day().records), until_cursor=4)

    assert state.next_cursor == 4
    assert list(state.workloads) == ["first"]


@pytest.mark.parametrize(("at_ms", "records"), [(0, 3), (1 * MINUTE - 1, 3), (1 * MINUTE, 5), (9 * MINUTE, 8)])
async def test_a_fold_stops_at_a_time(at_ms: int, records: int) -> None:
    """Everything appended at that time or before is in: 3 facts at 0, 2 at 1 min, 2 at 2 min, 1 at 3 min."""
    assert (await fold(await recorded(day().records), at_ms=at_ms)).next_cursor == records


async def test_a_fold_goes_on_from_a_state() -> None:
    """In two parts it leads where it leads in one."""
    story = day()
    ledger = await recorded(story.records)

    half = await fold(ledger, until_cursor=5)

    assert digest(await fold(ledger, state=half)) == digest(story.state)


async def test_every_record_is_observed_in_order() -> None:
    """With what it caused and the state after it; progress says how far it is."""
    seen: list[tuple[int, int]] = []
    progress: list[int] = []
    ledger = await recorded(day().records)

    await fold(
        ledger,
        observe=lambda record, _, state: seen.append((record.cursor, state.next_cursor)),
        progress=progress.append,
    )

    assert seen == [(cursor, cursor + 1) for cursor in range(8)]
    assert progress == [8]


async def test_a_skipped_record_is_counted_and_not_folded() -> None:
    """An admin took the second gang out, by a decision that stands later in the ledger than the record."""
    story = day()
    story.tell(LedgerSkipped(cursor=7, reason="it halts the scheduler"))
    ledger = await recorded(story.records)

    state = await fold(ledger)

    assert await skipped_cursors(ledger) == {7}
    assert state.next_cursor == 9
    assert list(state.workloads) == ["first"]
    assert state.ignored == {"unreadable": 1}


async def test_a_record_of_a_newer_version_stops_the_fold() -> None:
    """Folding on without it would be another history than the others have."""
    ledger = await recorded([*day().records, (4 * MINUTE, NEWER)])

    with pytest.raises(UnsupportedVersionError, match="tick has version 2"):
        await fold(ledger)
    assert (await fold(ledger, until_cursor=8)).next_cursor == 8


async def test_a_record_of_a_newer_version_can_be_skipped() -> None:
    """It is the way past a record that halts every reader."""
    ledger = await recorded(
        [*day().records, (4 * MINUTE, NEWER), (5 * MINUTE, LedgerSkipped(cursor=8, reason="unknown"))]
    )

    assert (await fold(ledger)).next_cursor == 10


async def test_bytes_that_are_no_event_fold_to_nothing() -> None:
    """The fold is total."""
    seen: list[Record] = []
    ledger = await recorded([(0, b"\xff\x00"), (0, Tick(tick=1))])

    state = await fold(ledger, observe=lambda record, _effects, _state: seen.append(record))

    assert isinstance(seen[0].event, Unreadable)
    assert (state.next_cursor, state.last_tick) == (2, 1)


async def test_a_recorded_digest_that_differs_stops_the_fold() -> None:
    """Whoever recorded it had another state: one of the two is wrong."""
    ticks = [(number, Tick(tick=number)) for number in range(1, HASH_EVERY + 1)]
    wrong = StateHashed(folded=HASH_EVERY, digest="0" * 64, build="another", layout=LAYOUT)
    ledger = await recorded([*ticks, (HASH_EVERY, wrong)])

    with pytest.raises(ReplayDivergenceError, match=f"after cursor {HASH_EVERY}"):
        await fold(ledger)
