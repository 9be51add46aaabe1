"""Interactive sessions: allocated runs that are warned before their protection ends, and may extend it once."""

from __future__ import annotations

import pytest

from streamsched.model.commands import ReceiptStatus
from streamsched.model.events import Event, ProposedReservation, RoundProposed
from streamsched.model.quantities import HOUR, MINUTE
from streamsched.state.snapshot import digest, freeze, thaw
from tests.stories import Story, adopted, budgets, cancelled, drained, extended, nodes, submitted
from tests.unit.state.test_machines import run, stops


def session(**fields: object) -> Story:
    """A session of 8 GPUs that runs since 0, protected for an hour."""
    story = Story(budgets(a=1), nodes(1), submitted("notebook", interactive=True, **fields))
    run(story, "notebook", ("n1", 0xFF))
    return story


def notices(story: Story) -> list[tuple[str | None, str | None]]:
    """What was said without being asked for."""
    told = [receipt for effects in story.effects for receipt in effects.receipts]
    return [(receipt.workload, receipt.reason) for receipt in told if receipt.status is ReceiptStatus.NOTICE]


def refusal(story: Story, workload: str, extra_ms: int) -> str:
    """Why an extension is refused."""
    (receipt,) = story.tell(extended(workload, extra_ms)).receipts
    assert receipt.status is ReceiptStatus.REJECTED
    return receipt.reason or ""


def test_edge_35_a_session_is_warned_before_its_protection_ends() -> None:
    """15 minutes before, although nothing else happens then; once, and a snapshot between does not change it."""
    story = session()
    assert story.state.next_wakeup_ms is not None
    story.at(45 * MINUTE - 1).tick()
    assert notices(story) == []
    story.state = thaw(freeze(story.state))
    assert story.state.next_wakeup_ms == 45 * MINUTE
    story.at(45 * MINUTE).tick()

    said = "protected until 1970-01-01T01:00:00Z, and may be stopped from then on; it can be extended once"
    assert notices(story) == [("notebook", said)]
    story.at(50 * MINUTE).tick()
    assert len(notices(story)) == 1


def test_edge_35_a_session_is_not_special_otherwise() -> None:
    """Charged, protected for as long as it asked for, and leaving a drained node as everybody does."""
    story = session()
    story.tell(drained("n1"))
    assert stops(story.at(HOUR).tick()) == [("notebook", "n1", "node_drained")]
    assert story.state.budgets.by_id["a"].charged_gpu_ms(HOUR) == 8 * HOUR


def test_a_session_is_allocated_work() -> None:
    """What is not protected has no end of protection to be warned of."""
    story = Story(budgets(a=1), nodes(1))
    (receipt,) = story.tell(submitted("notebook", interactive=True, min_runtime_ms=0)).receipts

    assert (receipt.status, (receipt.reason or "").partition(":")[0]) == ("rejected", "interactive")


def test_an_extension_moves_the_end_of_the_protection_and_is_committed() -> None:
    """By exactly its time; whoever sits there is warned again before the new end."""
    story = session()
    leaf = story.state.budgets.by_id["a"]
    story.at(50 * MINUTE)
    assert story.tell(extended("notebook", 30 * MINUTE)).receipts[-1].status == "accepted"

    assert leaf.committed_gpu_ms(50 * MINUTE) == 8 * 40 * MINUTE
    assert story.state.budgets.root.committed_gpu_ms(50 * MINUTE) == 8 * 40 * MINUTE
    assert digest(thaw(freeze(story.state))) == digest(story.state)
    story.at(HOUR).tick()
    assert not story.state.nodes["n1"].unprotected
    story.at(75 * MINUTE).tick()
    assert [reason for _, reason in notices(story)][-1] == (
        "protected until 1970-01-01T01:30:00Z, and may be stopped from then on"
    )
    story.at(90 * MINUTE).tick()
    assert leaf.committed_gpu_ms(90 * MINUTE) == 0
    assert ("notebook", 1) in story.state.nodes["n1"].unprotected


def test_a_run_is_extended_once() -> None:
    """The next run of the same workload may be again."""
    story = session()
    story.tell(extended("notebook", MINUTE))
    assert "was extended before" in refusal(story, "notebook", MINUTE)
    assert story.state.budgets.by_id["a"].committed_gpu_ms(0) == 8 * 61 * MINUTE


@pytest.mark.parametrize(
    ("fields", "then", "at_ms", "extra_ms", "said"),
    [
        ({}, [], 0, 8 * HOUR + 1, "at most 8h can be added"),
        ({}, [], HOUR, MINUTE, "is over"),
        ({"timeout_ms": 90 * MINUTE}, [], 0, 30 * MINUTE + 1, "its timeout"),
        ({}, [drained("n1")], 0, MINUTE, "is being drained"),
        ({}, [cancelled("notebook")], 0, MINUTE, "is stopping"),
    ],
)
def test_what_cannot_be_extended(
    fields: dict[str, object], then: list[Event], at_ms: int, extra_ms: int, said: str
) -> None:
    """More than any run may ask for, too late, or against what others were promised; nothing changes by it."""
    story = session(**fields)
    story.at(at_ms).tell(then)
    committed = story.state.budgets.by_id["a"].committed_gpu_ms(at_ms)

    assert said in refusal(story, "notebook", extra_ms)
    assert story.state.budgets.by_id["a"].committed_gpu_ms(at_ms) == committed


def test_an_extension_up_to_the_cap_and_the_timeout_is_lawful() -> None:
    """Both ends belong to the one who asks."""
    story = session(timeout_ms=9 * HOUR)
    assert story.tell(extended("notebook", 8 * HOUR)).receipts[-1].status == "accepted"


def test_a_promise_to_others_is_not_moved() -> None:
    """A reservation counts on the end of this protection."""
    story = session()
    story.tell(submitted("gang"))
    promise = ProposedReservation(workload="gang", pool="h100", nodes=("n1",), start_ms=HOUR, evicted_gpus=8, shares=())
    number = story.state.closed_round + 1
    story.tell(RoundProposed(round=number, based_on=0, policy_version=0, reservations=(promise,)))

    assert "node 'n1' is reserved" in refusal(story, "notebook", MINUTE)


def test_only_sessions_that_live_are_extended() -> None:
    """Other work asks for its min runtime beforehand."""
    story = Story(budgets(a=1), nodes(1), submitted("w"))
    run(story, "w", ("n1", 0xFF))

    assert "is no interactive session" in refusal(story, "w", MINUTE)
    assert "no live workload 'x'" in refusal(story, "x", MINUTE)


def test_a_session_shorter_than_the_warning_is_warned_at_once() -> None:
    """Better late than never."""
    story = Story(budgets(a=1), adopted(warning_ms=HOUR), nodes(1))
    story.tell(submitted("notebook", interactive=True, min_runtime_ms=10 * MINUTE))
    run(story, "notebook", ("n1", 0xFF))
    story.tick()

    assert len(notices(story)) == 1
