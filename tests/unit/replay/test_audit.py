"""The account of a ledger, with numbers counted by hand."""

from __future__ import annotations

from streamsched.model.events import Rejected, RoundProposed, StateHashed, Tick
from streamsched.model.quantities import MINUTE
from streamsched.replay.audit import audit
from streamsched.state.cluster import HASH_EVERY, LAYOUT
from streamsched.state.snapshot import digest
from tests.stories import Story, budgets, nodes, submitted
from tests.unit.replay.recording import recorded


async def test_an_account_adds_up() -> None:
    """One gang placed, the same proposal once more by a slower scheduler, a request that was refused, a repeat."""
    story = Story(*nodes(2), budgets(a=1.0))
    story.at(1 * MINUTE).tell(submitted("first", src="workloads.v1/0", seq=0))
    story.round()
    proposal = story.records[-1].event
    assert isinstance(proposal, RoundProposed)
    story.tell(proposal)
    story.tell(Rejected(code="not_json", reason="no", src="workloads.v1/0", seq=1))
    story.at(2 * MINUTE).tell(submitted("first", src="workloads.v1/0", seq=0))

    account = await audit(await recorded(story.records))

    assert account.records == 8
    assert (account.first_ms, account.last_ms) == (0, 2 * MINUTE)
    assert account.events == {
        "budget_tree_changed": 1,
        "node_inventory_reported": 2,
        "rejected": 1,
        "round_proposed": 2,
        "workload_submitted": 2,
    }
    assert (account.rounds, account.overtaken) == (1, 1)
    assert (account.accepted, account.void) == (1, {})
    assert account.rejected == {"not_json": 1}
    assert account.ignored == {"repeated": 1, "round_closed": 1}
    assert account.sources == {"workloads.v1/0": 1}
    assert account.is_whole
    assert account.digest == digest(story.state)


async def test_a_gap_of_a_source_is_told() -> None:
    """Sequence 1 never reached the ledger."""
    story = Story(*nodes(1), budgets(a=1.0))
    story.tell(submitted("w0", src="workloads.v1/3", seq=0), submitted("w2", src="workloads.v1/3", seq=2))

    account = await audit(await recorded(story.records))

    (gap,) = account.gaps
    assert (gap.src, gap.expected, gap.found, gap.cursor) == ("workloads.v1/3", 1, 2, 3)
    assert not account.is_whole


async def test_items_that_no_longer_held_are_void() -> None:
    """A proposal that places what somebody else has cancelled in between."""
    story = Story(*nodes(1), budgets(a=1.0))
    story.tell(submitted("w"))
    placed = Story(*nodes(1), budgets(a=1.0), submitted("w"))
    placed.round()
    from tests.stories import cancelled

    story.tell(cancelled("w"))
    event = placed.records[-1].event
    assert isinstance(event, RoundProposed)
    story.tell(event)

    account = await audit(await recorded(story.records))

    assert (account.rounds, account.accepted, account.void) == (1, 0, {"not_queued": 1})


async def test_recorded_digests_are_proved() -> None:
    """A digest recorded by a scheduler comes out again; one for a cursor that nobody hashes proves nothing."""
    story = Story(*(Tick(tick=number) for number in range(1, HASH_EVERY + 1)))
    recorded_digest = story.effects[-1].hash
    assert recorded_digest is not None
    story.tell(recorded_digest, StateHashed(folded=5, digest="0" * 64, build="another", layout=LAYOUT))

    account = await audit(await recorded(story.records))

    assert account.digests_proved == 1


async def test_an_empty_ledger_has_an_account() -> None:
    """Nothing happened, and that is whole."""
    account = await audit(await recorded([]))

    assert (account.records, account.first_ms, account.last_ms) == (0, None, None)
    assert account.is_whole
