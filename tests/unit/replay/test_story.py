"""The story of a workload: each thing that changed it, once, in words that say why."""

from __future__ import annotations

from streamsched.model.events import NodeHealth, ReleaseOutcome
from streamsched.model.policy import Levels
from streamsched.model.quantities import HOUR, MINUTE
from streamsched.model.topology import Layer, TopologyRequest
from streamsched.replay.replayer import fold
from streamsched.replay.story import Chronicle
from tests.stories import (
    Story,
    adopted,
    budgets,
    cancelled,
    drained,
    extended,
    health,
    node,
    nodes,
    released,
    reprioritized,
    submitted,
    unallocated,
)
from tests.unit.replay.recording import recorded
from tests.unit.scheduling.test_consolidation import halves


async def told(story: Story, workload: str) -> list[tuple[int, str, str]]:
    """Cursor, phase and text of each line; the same whether one listens to all or to this one alone."""
    all_of_them, alone = Chronicle(), Chronicle(only=workload)
    ledger = await recorded(story.records)
    await fold(ledger, observe=all_of_them.observe)
    await fold(ledger, observe=alone.observe)
    assert all_of_them.story(workload) == alone.story(workload)
    return [(line.cursor, line.phase.value, line.text) for line in alone.story(workload)]


async def test_a_life_from_submission_to_success() -> None:
    """Submitted, placed, started on the last node, ended on the last node."""
    story = Story(*nodes(2), budgets(a=0.5, b=0.5))
    story.at(1 * MINUTE).tell(submitted("llama", ranks=2, actor="ada"))
    story.round()
    story.at(2 * MINUTE).start("llama")
    story.at(90 * MINUTE).end("llama")

    lines = await told(story, "llama")

    assert lines == [
        (3, "queued", "Submitted to a by ada: 2 ranks × 8 = 16 GPUs, allocated, min runtime 1h, resumable."),
        (
            4,
            "bound",
            "Round 1 gave it n1, n2; its turn because a at 0.000 went first of 2; attempt 1 is placed on 2 nodes.",
        ),
        (
            6,
            "running",
            "Its ranks on n2 run (2 of 2 nodes); the whole gang runs, protected until 1970-01-01T01:02:00Z.",
        ),
        (7, "running", "Node n1 gave its GPUs back: succeeded."),
        (8, "succeeded", "Node n2 gave its GPUs back: succeeded; it has succeeded: all ranks ended well."),
    ]


async def test_a_preemption_names_the_beneficiary_and_its_standing() -> None:
    """The victim's story says for whom, by which rule and why it was the other's turn; then what became of it."""
    story = Story(*nodes(1), budgets(a=0.5, b=0.5))
    story.at(1 * MINUTE).tell(unallocated("victim", budget="b"))
    story.round()
    story.start("victim")
    story.at(2 * MINUTE).tell(submitted("urgent"))
    story.round()
    story.at(3 * MINUTE).end("victim", ReleaseOutcome.STOPPED)

    victim = await told(story, "victim")
    urgent = await told(story, "urgent")

    assert victim[-2][1] == "stopping"
    assert "takes its GPUs for urgent of a: an allocated request goes before unallocated time" in victim[-2][2]
    assert "because a at 0.000 went first of 2" in victim[-2][2]
    assert "it waits again after a back-off for attempt 2, at place 1 of b as of now" in victim[-2][2]
    assert victim[-2][2].endswith("it is being stopped: preempted, for urgent.")
    assert victim[-1][1] == "queued"
    assert (
        victim[-1][2]
        == "Node n1 gave its GPUs back: stopped; back in the queue, not looked at before 1970-01-01T00:04:00Z."
    )
    assert [line[1] for line in urgent] == ["queued", "planned", "bound"]
    assert "once victim left" in urgent[1][2]
    assert urgent[2][2] == "Its GPUs on n1 are free, since victim has left; attempt 1 is placed."


async def test_a_rejection_says_why() -> None:
    """A submission that cannot be accepted is one line."""
    story = Story(*nodes(1), budgets(a=1.0), submitted("w", budget="nobody"))

    ((cursor, phase, text),) = await told(story, "w")

    assert (cursor, phase) == (2, "rejected")
    assert text.startswith("Submitted to nobody: 8 GPUs, allocated, min runtime 1h, resumable; it is rejected: budget:")


async def test_a_cancellation_in_the_queue_ends_it() -> None:
    """And a change of priority before that is told."""
    story = Story(*nodes(1), budgets(a=1.0), submitted("w"), reprioritized("w", 7), cancelled("w"))

    lines = await told(story, "w")

    assert lines[1:] == [
        (3, "queued", "Moved inside its budget: priority 0 became 7."),
        (4, "cancelled", "Cancelled; it is over."),
    ]


async def test_a_cancellation_of_a_run_says_that_it_ran() -> None:
    """In whole words, though the phase is called the same as the reason begins."""
    story = Story(*nodes(1), budgets(a=1.0), submitted("w"))
    story.round()
    story.start("w")
    story.tell(cancelled("w"))
    story.tell(released("n1", "w", outcome=ReleaseOutcome.STOPPED))

    lines = await told(story, "w")

    assert lines[-1][2] == "Node n1 gave its GPUs back: stopped; it is over: cancelled while it ran."


async def test_a_lost_node_sends_the_gang_back_to_the_queue() -> None:
    """The other node is stopped, since a gang runs whole or not at all."""
    story = Story(*nodes(2), budgets(a=1.0))
    story.tell(submitted("w", ranks=2))
    story.round()
    story.at(1 * MINUTE).start("w")
    story.at(2 * MINUTE).tell(health("n1", NodeHealth.LOST, "silent for 30s"))
    story.at(3 * MINUTE).end("w", ReleaseOutcome.STOPPED)

    lines = await told(story, "w")

    assert lines[-2][1:] == (
        "stopping",
        "Node n1 became lost (silent for 30s); it is being stopped: a rank of the gang is gone.",
    )
    assert lines[-1][1:] == ("queued", "Node n2 gave its GPUs back: stopped; back in the queue, at place 1 of a.")


async def test_a_timeout_is_told_though_no_record_says_it() -> None:
    """Time alone stops it; the line carries the cursor of the record with which time passed."""
    story = Story(adopted(min_runtime_floor_ms=MINUTE), *nodes(1), budgets(a=1.0))
    story.tell(submitted("w", min_runtime_ms=MINUTE, timeout_ms=HOUR))
    story.round()
    story.start("w")
    story.at(HOUR).tick()

    lines = await told(story, "w")

    assert lines[-1] == (len(story.records) - 1, "stopping", "It is being stopped: its timeout is over.")


async def test_nothing_is_told_of_a_stranger() -> None:
    """A workload that was never submitted has no story."""
    story = Story(*nodes(1), budgets(a=1.0), submitted("w"))

    assert await told(story, "stranger") == []


async def test_a_drain_says_beforehand_when_a_run_will_leave() -> None:
    """To whoever runs there, whether an administrator ordered it or the node is ill."""
    story = Story(*nodes(1), budgets(a=1))
    story.tell(submitted("w"))
    story.round()
    story.start("w")
    story.at(10 * MINUTE).tell(drained("n1", actor="ana", reason="new fans"))
    story.tell(health("n1", NodeHealth.UNHEALTHY, "fan 2 stands still"))
    story.at(HOUR).tick()

    stays = "it stays until its protection ends at 1970-01-01T01:00:00Z"
    assert [text for _, _, text in (await told(story, "w"))[-3:]] == [
        f"Drain of node n1: soft by ana (new fans); {stays}.",
        f"Node n1 became unhealthy (fan 2 stands still); {stays}.",
        "It is being stopped: its node is drained.",
    ]


async def test_a_session_reads_when_it_was_warned_and_extended() -> None:
    """In its story, beside what its client was told."""
    story = Story(*nodes(1), budgets(a=1))
    story.tell(submitted("notebook", interactive=True))
    story.round()
    story.start("notebook")
    story.at(45 * MINUTE).tick()
    story.at(50 * MINUTE).tell(extended("notebook", 30 * MINUTE))

    assert [text for _, _, text in (await told(story, "notebook"))[-2:]] == [
        "Warned that its protection ends at 1970-01-01T01:00:00Z.",
        "Extended by 30m: protected until 1970-01-01T01:30:00Z.",
    ]


async def test_a_preemption_by_fair_share_can_be_redone() -> None:
    """8 of 32 GPU-hours against none: with the guard of one hour of 8 GPUs the claimant is just as far."""
    story = Story(adopted(patience_ms=0), *nodes(1), budgets(a=0.5, b=0.5), submitted("old", budget="b"))
    story.round()
    story.start("old")
    story.at(1 * HOUR).tell(submitted("w"))
    story.round()

    old, w = await told(story, "old"), await told(story, "w")

    rule = (
        "by fair share: a at 0.000 (0.00 of 32.00 GPU-h), b at 0.250 (8.00 of 32.00 GPU-h); with the guard of 8.00 "
        "GPU-h a is at 0.250 (8.00 of 32.00 GPU-h), which is not above b; the claimant commits 8.00 GPU-h, and a is at "
        "0.250 (8.00 of 32.00 GPU-h) then"
    )
    assert old[-1][2] == (
        f"Round 2 takes its GPUs for w of a: its protection ended at 1970-01-01T01:00:00Z; {rule}; 8 allocated GPUs "
        "preempted for 8 requested; it waits again afterwards for attempt 2, at place 1 of b as of now; it is being "
        "stopped: preempted, for w."
    )
    assert w[-1][2] == (
        "Round 2 gave it n1, once old left; its turn because a at 0.000 went first of 2; 8 allocated GPUs preempted "
        f"for 8 requested; old (protected until 1970-01-01T01:00:00Z) {rule}; attempt 1 is planned."
    )


async def test_a_preemption_by_priority_names_both() -> None:
    """Inside one budget, which has used 8 of 64 GPU-hours and commits 8 more; what cannot be resumed is over."""
    story = Story(adopted(patience_ms=0), *nodes(1), budgets(a=1), submitted("old", resumable=False))
    story.round()
    story.start("old")
    story.at(1 * HOUR).tell(submitted("w", priority=5))
    story.round()

    old = await told(story, "old")

    assert (
        "by priority inside one budget, a at 0.125 (8.00 of 64.00 GPU-h): 5 of w is above 0; the claimant commits 8.00 "
        "GPU-h, and a is at 0.250 (16.00 of 64.00 GPU-h) then; 8 allocated GPUs preempted for 8 requested; it cannot "
        "be resumed, so this is its end"
    ) in old[-1][2]


async def test_more_than_the_disruption_cap_is_said() -> None:
    """The only gang that can be stopped has four times what is asked for."""
    story = Story(adopted(patience_ms=0), *nodes(4), budgets(a=0.5, b=0.5), submitted("old", budget="b", ranks=4))
    story.round()
    story.start("old")
    story.at(1 * HOUR).tell(submitted("w"))
    story.round()

    old = await told(story, "old")

    assert "32 allocated GPUs preempted for 8 requested, over the disruption cap of 2 for each" in old[-1][2]


def reserved_for_a_gang() -> Story:
    """Two nodes of `b`, protected for an hour; after two minutes they are reserved for a gang of `a`."""
    story = Story(*nodes(2), budgets(a=0.5, b=0.5))
    story.tell(submitted("old1", budget="b"), submitted("old2", budget="b"))
    story.round()
    story.start("old1")
    story.start("old2")
    story.tell(submitted("gang", ranks=2, min_runtime_ms=4 * HOUR))
    story.at(2 * MINUTE).tick()
    story.round()
    return story


async def test_a_reservation_is_told_from_its_making_to_its_keeping() -> None:
    """16 of 64 GPU-hours against none, and 4 hours of 16 GPUs committed: all that `a` is due."""
    story = reserved_for_a_gang()
    story.at(1 * HOUR).tick()
    story.round()

    gang, old = await told(story, "gang"), await told(story, "old2")

    assert gang[1][2] == (
        "Round 2 reserved n1, n2 for it; it starts at 1970-01-01T01:00:00Z at the latest, when all protection there "
        "has ended; 16 allocated GPUs would be preempted, without a guard; its turn because a at 0.000 went first of 2."
    )
    assert gang[2][2].startswith("Round 3 gave it its reserved nodes n1, n2, once old1, old2 left;")
    assert (
        "its protection ended at 1970-01-01T01:00:00Z; by reservation: the nodes were promised, which asks only for "
        "the end of protection; a at 0.000 (0.00 of 64.00 GPU-h), b at 0.250 (16.00 of 64.00 GPU-h); the claimant "
        "commits 64.00 GPU-h, and a is at 1.000 (64.00 of 64.00 GPU-h) then; 16 allocated GPUs preempted for 16 "
        "requested"
    ) in old[-1][2]


async def test_the_end_of_a_reservation_says_why() -> None:
    """A node left, or the last GPUs were too late."""
    left, late = reserved_for_a_gang(), reserved_for_a_gang()
    left.tell(health("n1", NodeHealth.UNHEALTHY))
    late.at(70 * MINUTE).tick()

    assert (await told(left, "gang"))[-1][2] == (
        "Node n1 became unhealthy (a test); its reservation of n1, n2 has ended: n1 can take no work."
    )
    assert (await told(late, "gang"))[-1][2] == (
        "Its reservation of n1, n2 has ended: 10m after 1970-01-01T01:00:00Z the last GPUs were not free yet."
    )


def gang_of_two_groups() -> Story:
    """Two groups of two, in A and in B, of which a1 breaks and all others stop; C has no room until c1 comes."""
    story = Story(
        budgets(a=1),
        adopted(levels=(Levels(names=("sp",)),)),
        [node(name, domains=(name[0].upper(),)) for name in ("a0", "a1", "b0", "b1", "c0")],
    )
    story.tell(submitted("gang", ranks=4, topology=TopologyRequest(layers=(Layer(level="sp", ranks=2),))))
    story.round()
    story.start("gang")
    story.at(1 * MINUTE).tell(health("a1", NodeHealth.UNHEALTHY, fatal=True))
    story.tell(released(name, "gang", outcome=ReleaseOutcome.STOPPED) for name in ("a0", "a1", "b0", "b1"))
    return story


async def test_each_step_of_a_recovery_is_told() -> None:
    """What is kept, where the lost rank may go, that its whole group may move after a minute, and that it did."""
    story = gang_of_two_groups()
    story.at(2 * MINUTE).tick()
    story.tell(node("c1", domains=("C",)))
    story.round()

    *_, begins, _, _, _, waits, widens, placed = await told(story, "gang")

    assert begins[2].endswith("; GPUs of a0, b0, b1 are kept for it.")
    assert waits[1:] == (
        "queued",
        "Node b1 gave its GPUs back: stopped; back in the queue; recovers: keeps 3 nodes, waits for room in sp A to "
        "replace a1; widens to the whole pool, 2 ranks at once, at 1970-01-01T00:02:00Z.",
    )
    assert widens[1:] == (
        "queued",
        "Recovers: keeps 3 nodes, waits for room in the whole pool, 2 ranks at once, to replace a1; starts anew as a "
        "whole at 1970-01-01T00:03:00Z.",
    )
    assert placed[1] == "bound"


async def test_the_end_of_a_recovery_is_told() -> None:
    """After the last step in vain nothing is kept."""
    story = gang_of_two_groups()
    story.at(2 * MINUTE).tick()
    story.at(3 * MINUTE).tick()

    assert (await told(story, "gang"))[-1][1:] == (
        "queued",
        "Nothing is kept for it any more, and the whole gang starts anew.",
    )


async def test_a_run_that_moves_is_told_where_to() -> None:
    """It is stopped for another, what it gets instead is kept for it, and there it starts again."""
    story = halves()
    story.round()
    story.tell(released("n2", "half2", 1, ReleaseOutcome.STOPPED))
    story.round()

    stopped, waits, placed = (await told(story, "half2"))[-3:]

    assert "takes its GPUs for wide of a: it only moves, to n1; it is being stopped: preempted, for wide" in stopped[2]
    assert stopped[2].endswith("; GPUs of n1 are kept for it.")
    assert waits[2].endswith("; back in the queue; all its places are kept for it, on 1 node.")
    assert "gave it n1;" in placed[2]
