"""A virtual node keeps the node agent contract."""

from random import Random

import pytest

from streamsched.model.commands import Command, Place, Stop, StopReason
from streamsched.model.events import (
    CommandAccepted,
    HeldRun,
    ReleaseOutcome,
    RunReleased,
    RunStarted,
    Seat,
)
from streamsched.model.quantities import HOUR, MINUTE, SECOND
from streamsched.node.virtual_node import IDEAL, Delays, NodeRecord, Report, VirtualNode, read_sleep, sleep_argv

#: Accepts after 10 ms, starts 2 s later, needs 5 s to stop.
SLOW = Delays(accept_ms=(10, 10), start_ms=(2 * SECOND, 2 * SECOND), stop_ms=(5 * SECOND, 5 * SECOND))


def place(
    command: str, workload: str = "llama", *, attempt: int = 1, mask: int = 0xFF, argv: str = "sleep 60"
) -> Place:
    return Place(
        command=command,
        node="n1",
        workload=workload,
        attempt=attempt,
        seats=(Seat(rank=0, node="n1", gpu_mask=mask),),
        ranks=1,
        leader="n1",
        argv=tuple(argv.split()),
        start_by_ms=HOUR,
    )


def stop(command: str, workload: str = "llama", *, attempt: int = 1, grace_ms: int = MINUTE) -> Stop:
    return Stop(
        command=command,
        node="n1",
        workload=workload,
        attempt=attempt,
        grace_ms=grace_ms,
        reason=StopReason.PREEMPTED,
    )


def started(workload: str = "llama", attempt: int = 1) -> RunStarted:
    return RunStarted(node="n1", workload=workload, attempt=attempt)


def released(
    outcome: ReleaseOutcome, workload: str = "llama", *, exit_code: int | None = None, detail: str | None = None
) -> RunReleased:
    return RunReleased(node="n1", workload=workload, attempt=1, outcome=outcome, exit_code=exit_code, detail=detail)


def accepted(command: str) -> CommandAccepted:
    return CommandAccepted(node="n1", command=command)


def dues(reports: list[Report]) -> list[tuple[int, object]]:
    return [(report.due_ms, report.fact) for report in reports]


def send_until(node: VirtualNode, now_ms: int) -> list[object]:
    """Send what is due, in order of time, and return it."""
    due = sorted((report for report in node.planned if report.due_ms <= now_ms), key=lambda report: report.due_ms)
    for report in due:
        node.sent(report)
    return [report.fact for report in due]


def test_a_run_is_accepted_starts_and_ends_after_its_true_run_time() -> None:
    """The acknowledgement, the start and the end come after the delays and the seconds that the arguments name."""
    node = VirtualNode("n1", delays=SLOW)

    reports = node.obey(place("7/0"), now_ms=1_000)

    assert dues(reports) == [
        (1_010, accepted("7/0")),
        (3_010, started()),
        (63_010, released(ReleaseOutcome.SUCCEEDED, exit_code=0)),
    ]


def test_a_start_at_once_is_its_own_acknowledgement() -> None:
    """On an ideal node the start says all that an acknowledgement would, at the same moment."""
    node = VirtualNode("n1", delays=IDEAL)

    reports = node.obey(place("7/0"), now_ms=0)

    assert dues(reports) == [(0, started()), (60_000, released(ReleaseOutcome.SUCCEEDED, exit_code=0))]


def test_a_node_reports_how_the_work_ended() -> None:
    """A code other than 0 is a failure of the work."""
    node = VirtualNode("n1")

    reports = node.obey(place("7/0", argv="sleep 1.5 exit 3"), now_ms=0)

    assert dues(reports)[-1] == (1_500, released(ReleaseOutcome.FAILED, exit_code=3))


def test_work_that_a_virtual_node_cannot_run_fails_as_an_unknown_program_does() -> None:
    """It fails with 127 rather than being refused: a refusal would blame the node, and the work would go round."""
    node = VirtualNode("n1")

    (_, end) = node.obey(place("7/0", argv="python train.py"), now_ms=5)

    assert (end.due_ms, end.fact) == (
        5,
        released(ReleaseOutcome.FAILED, exit_code=127, detail="a virtual node runs only: sleep SECONDS [exit CODE]"),
    )


def test_speed_shortens_the_work_and_not_the_delays() -> None:
    """At 60 times the speed a minute of work takes a second; a start still takes 2 s."""
    node = VirtualNode("n1", delays=SLOW, speed=60)

    reports = node.obey(place("7/0"), now_ms=0)

    assert [report.due_ms for report in reports] == [10, 2_010, 3_010]


@pytest.mark.parametrize("again", ["7/0", "6/9"])
def test_a_command_at_or_below_the_watermark_was_obeyed_before(again: str) -> None:
    """A repeat, by the same scheduler or by another, leads to nothing."""
    node = VirtualNode("n1")
    node.obey(place("7/0", mask=0x0F), now_ms=0)

    assert node.obey(place(again, "other", mask=0xF0), now_ms=1) == []
    assert node.watermark == "7/0"


def test_commands_are_ordered_by_number() -> None:
    """10/0 comes after 9/1, though not as text."""
    node = VirtualNode("n1")
    node.obey(place("9/1", mask=1), now_ms=0)

    assert node.obey(place("10/0", "other", mask=2), now_ms=0) != []


def test_a_placement_of_a_held_run_changes_nothing() -> None:
    """The run goes on, and the command is acknowledged."""
    node = VirtualNode("n1")
    node.obey(place("7/0"), now_ms=0)

    assert dues(node.obey(place("8/0"), now_ms=30 * SECOND)) == [(30 * SECOND, accepted("8/0"))]
    assert [report.due_ms for report in node.planned] == [0, 60_000, 30_000]


def test_a_placement_of_an_ended_run_is_answered_with_its_end() -> None:
    """It never runs twice."""
    node = VirtualNode("n1")
    node.obey(place("7/0"), now_ms=0)
    send_until(node, 60_000)

    reports = node.obey(place("8/0"), now_ms=70_000)

    assert dues(reports) == [(70_000, released(ReleaseOutcome.SUCCEEDED, exit_code=0))]
    assert node.inventory().runs == ()


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (0b11, "GPUs 0x1 of this node are not free"),
        (0x300, "GPUs 0x300 of this node are not free"),
    ],
)
def test_gpus_that_are_taken_or_not_there_are_refused(mask: int, why: str) -> None:
    """A node never gives a GPU to two runs, whatever it is told."""
    node = VirtualNode("n1", gpus=8)
    node.obey(place("7/0", mask=1), now_ms=0)

    reports = node.obey(place("8/0", "other", mask=mask), now_ms=0)

    assert dues(reports) == [(0, released(ReleaseOutcome.REFUSED, "other", detail=why))]


def test_a_placement_that_comes_after_its_deadline_is_refused() -> None:
    """The scheduler has given the run up by then."""
    node = VirtualNode("n1")

    reports = node.obey(place("7/0"), now_ms=HOUR)

    assert dues(reports) == [(HOUR, released(ReleaseOutcome.REFUSED, detail="it arrived after its start deadline"))]


@pytest.mark.parametrize(("grace_ms", "end_ms"), [(MINUTE, 25_000), (2 * SECOND, 22_000)])
def test_a_stopped_run_ends_after_its_own_stop_time_or_the_grace(grace_ms: int, end_ms: int) -> None:
    """Its own 5 s, unless the kill comes first."""
    node = VirtualNode("n1", delays=SLOW)
    (_, _, natural_end) = node.obey(place("7/0"), now_ms=0)
    send_until(node, 20_000)

    reports = node.obey(stop("8/0", grace_ms=grace_ms), now_ms=20_000)

    assert dues(reports) == [(20_010, accepted("8/0")), (end_ms, released(ReleaseOutcome.STOPPED))]
    assert natural_end.withdrawn


def test_a_run_that_ends_by_itself_inside_the_grace_reports_its_own_end() -> None:
    """It would have ended at 62.01 s; the stop at 60 s would end it at 65 s."""
    node = VirtualNode("n1", delays=SLOW)
    node.obey(place("7/0"), now_ms=0)
    send_until(node, 60_000)

    reports = node.obey(stop("8/0"), now_ms=60_000)

    assert dues(reports) == [(60_010, accepted("8/0"))]
    assert send_until(node, HOUR) == [accepted("8/0"), released(ReleaseOutcome.SUCCEEDED, exit_code=0)]


def test_a_run_that_is_stopped_before_it_starts_never_starts() -> None:
    """Its start is withdrawn with its end."""
    node = VirtualNode("n1", delays=Delays(start_ms=(30_000, 30_000)))
    node.obey(place("7/0"), now_ms=0)
    send_until(node, 0)

    node.obey(stop("8/0"), now_ms=10_000)

    assert send_until(node, HOUR) == [released(ReleaseOutcome.STOPPED)]


def test_a_second_stop_does_not_prolong_the_first() -> None:
    """The run ends when the first stop ends it, and says so once."""
    node = VirtualNode("n1", delays=SLOW)
    node.obey(place("7/0"), now_ms=0)
    node.obey(stop("8/0"), now_ms=20_000)

    node.obey(stop("9/0"), now_ms=21_000)

    assert [report.due_ms for report in node.planned if isinstance(report.fact, RunReleased)] == [25_000]


def test_a_stop_of_an_unknown_run_is_answered_with_its_absence() -> None:
    """Whoever waits for those GPUs learns that nobody holds them; nothing else changes."""
    node = VirtualNode("n1")
    node.obey(place("7/0", "other"), now_ms=0)

    reports = node.obey(stop("8/0"), now_ms=1)

    assert dues(reports) == [(1, released(ReleaseOutcome.STOPPED, detail="this node holds no such run"))]
    assert [run.workload for run in node.inventory().runs] == ["other"]


def test_a_stop_of_another_attempt_does_not_touch_the_present_one() -> None:
    """Attempt 2 runs on when attempt 1 is stopped."""
    node = VirtualNode("n1")
    node.obey(place("7/0", attempt=2), now_ms=0)

    node.obey(stop("8/0", attempt=1), now_ms=1)

    assert [(run.workload, run.attempt) for run in node.inventory().runs] == [("llama", 2)]


def test_gpus_are_free_for_others_once_the_release_is_sent() -> None:
    """Not before: an inventory never runs ahead of the reports."""
    node = VirtualNode("n1")
    node.obey(place("7/0"), now_ms=0)

    assert node.inventory().runs == (HeldRun(workload="llama", attempt=1, gpu_mask=0xFF),)
    send_until(node, 60_000)
    assert node.inventory().runs == ()
    assert dues(node.obey(place("8/0", "other"), now_ms=60_000))[0] == (60_000, started("other"))


def test_a_restarted_agent_goes_on_from_its_record() -> None:
    """After a kill nothing that was planned is lost, and nothing that was obeyed is obeyed again."""
    node = VirtualNode("n1", delays=SLOW)
    node.obey(place("7/0", mask=0x0F), now_ms=0)
    send_until(node, 10)
    record = NodeRecord.model_validate_json(node.record().model_dump_json())

    again = VirtualNode("n1", delays=SLOW, boot="boot-2")
    again.restore(record)

    assert again.record() == node.record()
    assert again.inventory() == node.inventory()
    assert again.obey(place("7/0", mask=0x0F), now_ms=20) == []
    assert send_until(again, HOUR) == [started(), released(ReleaseOutcome.SUCCEEDED, exit_code=0)]


def test_a_restored_run_can_be_stopped() -> None:
    """The plan of its end is found again and withdrawn."""
    node = VirtualNode("n1")
    node.obey(place("7/0"), now_ms=0)
    send_until(node, 0)
    again = VirtualNode("n1")
    again.restore(node.record())

    again.obey(stop("8/0"), now_ms=10_000)

    assert send_until(again, HOUR) == [released(ReleaseOutcome.STOPPED)]


def test_a_record_of_another_node_is_refused() -> None:
    """Two nodes must not swap their runs."""
    record = VirtualNode("n2").record()

    with pytest.raises(ValueError, match="of node 'n2', not of 'n1'"):
        VirtualNode("n1").restore(record)


def test_a_machine_that_went_down_has_lost_its_runs() -> None:
    """What was to come is withdrawn, what had happened is still reported, and the GPUs are free."""
    node = VirtualNode("n1", boot="boot-1")
    node.obey(place("7/0", "short", mask=0x0F, argv="sleep 10"), now_ms=0)
    node.obey(place("7/1", "long", mask=0xF0), now_ms=0)
    send_until(node, 0)

    node.lose_runs("boot-2", now_ms=20_000)

    assert send_until(node, HOUR) == [released(ReleaseOutcome.SUCCEEDED, "short", exit_code=0)]
    inventory = node.inventory()
    assert (inventory.boot, inventory.runs, inventory.watermark) == ("boot-2", (), "7/1")


def test_delays_are_drawn_from_the_seed() -> None:
    """The same seed gives the same delays, another seed others, all within their ranges."""
    ranges = Delays(accept_ms=(5, 50), start_ms=(2_000, 20_000))

    def times(seed: int) -> list[int]:
        node = VirtualNode("n1", delays=ranges, random=Random(seed))
        command: Command = place("7/0")
        return [report.due_ms for report in node.obey(command, now_ms=0)]

    assert times(1) == times(1)
    assert times(1) != times(2)
    assert 5 <= times(1)[0] <= 50
    assert 2_000 <= times(1)[1] - times(1)[0] <= 20_000


@pytest.mark.parametrize(
    "argv", [["sleep"], ["sleep", "-1"], ["sleep", "1e3"], ["sleep", "٣"], ["sleep", "1", "exit", "x"]]
)
def test_only_plain_numbers_of_seconds_are_read(argv: list[str]) -> None:
    """Anything else is no work of a virtual node."""
    assert read_sleep(argv) is None


@pytest.mark.parametrize("run_ms", [1, 999, 1_000, 1_500, 4_628_226_000])
def test_what_a_trace_writes_a_node_reads(run_ms: int) -> None:
    """The true run time survives the arguments to the millisecond."""
    assert read_sleep(sleep_argv(run_ms)) == (run_ms, 0)


def test_an_agent_that_has_obeyed_nothing_yet_has_a_record_too() -> None:
    """It is kept without what is absent, and read back."""
    node = VirtualNode("n1")
    record = NodeRecord.model_validate_json(node.record().model_dump_json(exclude_none=True))

    assert record == node.record()
