"""A trace file becomes demand, and a bad row is named and left out."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamsched.errors import ConfigurationError
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND, WHOLE
from streamsched.simulation.demand import Demand, declared_min_runtime_ms, gang_of, shares_of
from streamsched.simulation.traces import read_philly

HEADER = "timestamp,duration,num_gpus,gpu_time,cluster"
#: 2017-10-09 00:00 in US Pacific summer time is 07:00 UTC.
OCTOBER_9_MS = 1_507_532_400_000


def demand_of(folder: Path, rows: Sequence[str], *, unallocated_percent: int = 0) -> Demand:
    jobs = folder / "jobs.csv"
    jobs.write_text("\n".join([HEADER, *rows]) + "\n")
    nodes = folder / "nodes.csv"
    nodes.write_text("vc,node num\nred,3\nblue,1\n")
    return read_philly(jobs, nodes, unallocated_percent=unallocated_percent)


def test_a_row_becomes_a_submission(tmp_path: Path) -> None:
    """Its time is UTC, its min runtime the next usual one, and its arguments say how long it would run."""
    demand = demand_of(tmp_path, ["2017-10-09 07:01:55,2951.0,4,11804.0,red"])

    (submission,) = demand.submissions
    workload = submission.workload
    assert submission.at_ms == OCTOBER_9_MS + 7 * HOUR + MINUTE + 55 * SECOND
    assert submission.run_ms == 2_951 * SECOND
    assert (workload.workload, workload.budget, workload.resumable) == ("philly-000002", "red", True)
    assert (workload.ranks, workload.gpus_per_rank) == (1, 4)
    assert workload.min_runtime_ms == 1 * HOUR
    assert workload.command == ("sleep", "2951")


@pytest.mark.parametrize(
    ("local", "utc_hour"),
    [
        ("2017-10-09 00:00:00", 7),  # Summer time, UTC-7.
        ("2017-12-09 00:00:00", 8),  # Winter time, UTC-8.
        ("2017-11-05 01:30:00", 8),  # The hour that comes twice, its first pass.
    ],
)
def test_pacific_wall_clock_becomes_utc(tmp_path: Path, local: str, utc_hour: int) -> None:
    """Summer time ended on 2017-11-05."""
    demand = demand_of(tmp_path, [f"{local},60,1,60,red"])

    assert demand.submissions[0].at_ms % DAY // HOUR == utc_hour


def test_rows_need_not_be_sorted(tmp_path: Path) -> None:
    """Submissions come in order of time; those of one second in the order of the file."""
    demand = demand_of(
        tmp_path,
        ["2017-10-09 00:00:01,60,1,60,red", "2017-10-09 00:00:00,60,1,60,red", "2017-10-09 00:00:01,60,2,60,red"],
    )

    assert [submission.workload.workload for submission in demand.submissions] == [
        "philly-000003",
        "philly-000002",
        "philly-000004",
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2017-10-09 00:00:00,60,1,60", "it has 4 fields where the header has 5"),
        ("yesterday,60,1,60,red", "timestamp is 'yesterday'"),
        ("2017-10-09 00:00:00+02:00,60,1,60,red", "without an offset"),
        ("0001-01-01 00:00:00,60,1,60,red", "after 1970"),
        ("2017-10-09 00:00:00,,1,60,red", "duration is ''"),
        ("2017-10-09 00:00:00,-60,1,60,red", "duration is '-60'"),
        ("2017-10-09 00:00:00,nan,1,60,red", "duration is 'nan'"),
        ("2017-10-09 00:00:00,0,1,60,red", "more than nothing"),
        ("2017-10-09 00:00:00,999999999,1,60,red", "at most 366 days"),
        ("2017-10-09 00:00:00,60,0,60,red", "num_gpus is '0'"),
        ("2017-10-09 00:00:00,60,1.5,60,red", "num_gpus is '1.5'"),
        ("2017-10-09 00:00:00,60,99999999999,60,red", "num_gpus is '99999999999'"),
        ("2017-10-09 00:00:00,60,1,60,a b", "cluster is 'a b'"),
        ("2017-10-09 00:00:00,60,1,60," + "x" * 200_000, "field larger than field limit"),
    ],
)
def test_a_bad_row_is_dropped_with_its_line_and_reason(tmp_path: Path, row: str, reason: str) -> None:
    """The rows around it are read."""
    good = "2017-10-09 00:00:00,60,1,60,red"

    demand = demand_of(tmp_path, [good, row, good])

    assert [submission.workload.workload for submission in demand.submissions] == ["philly-000002", "philly-000004"]
    (dropped,) = demand.dropped
    assert dropped.line == 3
    assert reason in dropped.reason


def test_bytes_that_are_no_text_cost_only_their_row(tmp_path: Path) -> None:
    """A broken character makes a name that no budget may have."""
    (tmp_path / "jobs.csv").write_bytes(
        f"{HEADER}\n".encode() + b"2017-10-09 00:00:00,60,1,60,r\xff\n2017-10-09 00:00:00,60,1,60,red\n"
    )
    (tmp_path / "nodes.csv").write_text("vc,nodes\nred,1\n")

    demand = read_philly(tmp_path / "jobs.csv", tmp_path / "nodes.csv")

    assert [dropped.line for dropped in demand.dropped] == [2]
    assert len(demand.submissions) == 1


def test_a_file_that_breaks_off_gives_what_it_has(tmp_path: Path) -> None:
    """The rest is reported as damaged; nothing is raised."""
    rows = "".join(f"2017-10-09 00:00:{second:02d},60,1,60,red\n" for second in range(60)) * 50
    whole = gzip.compress(f"{HEADER}\n{rows}".encode(), compresslevel=0)
    (tmp_path / "jobs.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "nodes.csv").write_text("vc,nodes\nred,1\n")

    demand = read_philly(tmp_path / "jobs.csv.gz", tmp_path / "nodes.csv")

    assert 0 < len(demand.submissions) < 3_000
    assert "damaged" in demand.dropped[-1].reason


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\x1f\x8bnothing"])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    """The message names the columns that a trace has."""
    (tmp_path / "jobs.csv.gz").write_bytes(content)
    (tmp_path / "nodes.csv").write_text("vc,nodes\nred,1\n")

    with pytest.raises(ConfigurationError, match="timestamp, duration, num_gpus, cluster"):
        read_philly(tmp_path / "jobs.csv.gz", tmp_path / "nodes.csv")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """With its path."""
    (tmp_path / "nodes.csv").write_text("vc,nodes\nred,1\n")

    with pytest.raises(ConfigurationError, match=r"jobs\.csv cannot be read"):
        read_philly(tmp_path / "jobs.csv", tmp_path / "nodes.csv")


def test_quotas_are_the_sizes_of_the_virtual_clusters(tmp_path: Path) -> None:
    """One that the list does not name counts as one node: 3 + 1 + 1 = 5."""
    demand = demand_of(tmp_path, ["2017-10-09 00:00:00,60,1,60,green"])

    assert [(share.budget, share.fraction_nano) for share in demand.budgets.budgets] == [
        ("blue", WHOLE // 5),
        ("green", WHOLE // 5),
        ("red", 3 * WHOLE // 5),
    ]


def test_shares_add_up_to_the_whole() -> None:
    """The largest remainders are rounded up: 1/7, 2/7 and 4/7 leave .857, .714 and .429 of a part."""
    assert shares_of({"a": 1, "b": 2, "c": 4}) == [("a", 142_857_143), ("b", 285_714_286), ("c", 571_428_571)]


def test_the_share_of_unallocated_work_is_drawn_from_the_job(tmp_path: Path) -> None:
    """About a fifth of 1,000 jobs, and the same ones when the trace is read again."""
    rows = ["2017-10-09 00:00:00,60,1,60,red"] * 1_000

    demand = demand_of(tmp_path, rows, unallocated_percent=20)

    unallocated = [item.workload.workload for item in demand.submissions if item.workload.min_runtime_ms == 0]
    assert 150 <= len(unallocated) <= 250
    again = demand_of(tmp_path, rows, unallocated_percent=20)
    assert again == demand


@pytest.mark.parametrize(
    ("gpus", "gang"),
    [(1, (1, 1)), (8, (1, 8)), (16, (2, 8)), (12, (2, 6)), (9, (3, 3)), (11, (11, 1)), (128, (16, 8))],
)
def test_gangs_have_the_fewest_equal_ranks(gpus: int, gang: tuple[int, int]) -> None:
    """A rank has at most 8 GPUs."""
    assert gang_of(gpus) == gang


@pytest.mark.parametrize(
    ("run_ms", "declared_ms"),
    [
        (1, 5 * MINUTE),
        (5 * MINUTE, 5 * MINUTE),
        (5 * MINUTE + 1, 15 * MINUTE),
        (8 * HOUR, 8 * HOUR),
        (9 * DAY, 8 * HOUR),
    ],
)
def test_people_declare_the_usual_min_runtime_that_covers_the_run(run_ms: int, declared_ms: int) -> None:
    """Up to the cap of the policy."""
    assert declared_min_runtime_ms(run_ms, 8 * HOUR) == declared_ms


def test_the_jobs_to_be_read_can_be_chosen(tmp_path: Path) -> None:
    """By time, half-open, and by size; the quotas stay those of the whole trace."""
    rows = [
        "2017-10-09 00:00:00,60,1,60,red",
        "2017-10-09 00:00:01,60,1,60,red",
        "2017-10-09 00:00:01,60,64,60,red",
        "2017-10-09 00:00:02,60,1,60,green",
    ]
    demand_of(tmp_path, rows)

    demand = read_philly(
        tmp_path / "jobs.csv",
        tmp_path / "nodes.csv",
        since_ms=OCTOBER_9_MS + SECOND,
        until_ms=OCTOBER_9_MS + 2 * SECOND,
        max_gpus=8,
    )

    assert [submission.workload.workload for submission in demand.submissions] == ["philly-000003"]
    assert [share.budget for share in demand.budgets.budgets] == ["blue", "green", "red"]
