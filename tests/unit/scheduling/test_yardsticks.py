"""One queue for all: strict, with skipping, and with passing beside a promise (EASY)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from streamsched.model.events import BudgetShare, BudgetTreeChanged, Record, RoundProposed, RunStarted
from streamsched.model.policy import Policy, Scheme
from streamsched.model.quantities import HOUR, MINUTE, WHOLE
from streamsched.node.virtual_node import IDEAL, USUAL, Delays, sleep_argv
from streamsched.scheduling import schemes, yardsticks
from streamsched.scheduling.memory import Memory
from streamsched.scheduling.scheduler import Scheduler
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.simulator import simulate
from streamsched.simulation.virtual_cluster import uniform_cluster
from streamsched.state.cluster import ClusterState
from tests.stories import Story, adopted, budgets, cancelled, drained, node, submitted, unallocated

YARDSTICKS = (Scheme.FIFO, Scheme.FIFO_SKIP, Scheme.EASY_BACKFILL)


def cluster(scheme: Scheme, *gpus: int) -> Story:
    """Nodes n1, n2 and on, with so many GPUs each, and two teams."""
    nodes = [node(f"n{number}", gpus=count) for number, count in enumerate(gpus, start=1)]
    return Story(adopted(scheme=scheme), budgets(a=0.5, b=0.5), nodes)


def placed(story: Story) -> list[str]:
    """What the next proposal places."""
    proposal = schemes.decide(story.state)
    return [] if proposal is None else [item.workload for item in proposal.placements]


def settle(story: Story) -> None:
    """Let every proposal take effect, and every placement start at once."""
    while (proposal := schemes.decide(story.state)) is not None:
        story.tell(proposal)
        for item in proposal.placements:
            story.start(item.workload)


@pytest.mark.parametrize(
    ("scheme", "first", "by_then"),
    [
        (Scheme.FIFO, [], ["head"]),
        (Scheme.FIFO_SKIP, ["long"], []),
        (Scheme.EASY_BACKFILL, ["short"], ["head"]),
    ],
)
def test_who_may_pass_the_head_of_the_queue(scheme: Scheme, first: list[str], by_then: list[str]) -> None:
    """4 GPUs, 3 of them held for two hours. The head needs all; behind it stand 1 GPU for 4 h and 1 GPU for 1 h.

    Strict: nobody passes. Skipping: the next that fits does, and the head finds a GPU taken when the two hours are
    over. EASY: only the short one does, because it is gone by then.
    """
    story = cluster(scheme, 4)
    story.tell(submitted("runs", gpus_per_rank=3, min_runtime_ms=2 * HOUR))
    settle(story)
    story.at(story.now_ms + 1).tell(submitted("head", gpus_per_rank=4, budget="b"))
    story.at(story.now_ms + 1).tell(submitted("long", gpus_per_rank=1, min_runtime_ms=4 * HOUR))
    story.at(story.now_ms + 1).tell(submitted("short", gpus_per_rank=1, min_runtime_ms=HOUR))
    assert placed(story) == first
    settle(story)

    if scheme is Scheme.EASY_BACKFILL:
        story.at(HOUR + MINUTE).end("short")
        assert placed(story) == []
    story.at(2 * HOUR).end("runs")

    assert placed(story)[:1] == (by_then or ["short"])


def test_easy_lends_what_it_does_not_promise() -> None:
    """5 GPUs, 3 held for two hours. The head needs 3 and will find 5: so 2 may be held for longer, and no third."""
    story = cluster(Scheme.EASY_BACKFILL, 5)
    story.tell(submitted("runs", gpus_per_rank=3, min_runtime_ms=2 * HOUR))
    settle(story)
    story.at(1).tell(submitted("head", gpus_per_rank=3))
    for name, gpus in (("one", 1), ("two", 2), ("three", 1)):
        story.at(story.now_ms + 1).tell(submitted(name, gpus_per_rank=gpus, min_runtime_ms=4 * HOUR))

    assert placed(story) == ["one", "three"]


def test_easy_promises_nodes_not_numbers() -> None:
    """The head needs a whole node and is promised n1, free in two hours: on n2 work may last as long as it likes."""
    story = cluster(Scheme.EASY_BACKFILL, 4, 4)
    story.tell(submitted("on-n1", gpus_per_rank=4, min_runtime_ms=2 * HOUR))
    settle(story)
    story.tell(submitted("on-n2", gpus_per_rank=2, min_runtime_ms=8 * HOUR))
    settle(story)
    story.at(1).tell(submitted("head", gpus_per_rank=4))
    story.at(2).tell(submitted("long", gpus_per_rank=2, min_runtime_ms=8 * HOUR))

    assert placed(story) == ["long"]


def test_arrival_alone_orders() -> None:
    """Neither priority nor team nor class: the queue has one order."""
    for scheme in YARDSTICKS:
        story = cluster(scheme, 8)
        story.tell(unallocated("first", gpus_per_rank=8, budget="b"))
        story.at(1).tell(submitted("second", priority=9))
        assert placed(story) == ["first"], scheme


@pytest.mark.parametrize("scheme", YARDSTICKS)
def test_nobody_is_preempted(scheme: Scheme) -> None:
    """Not even unallocated work, hours past anything."""
    story = cluster(scheme, 8)
    story.tell(unallocated("spare"))
    settle(story)
    story.at(9 * HOUR).tell(submitted("paid", budget="b"))

    assert placed(story) == []


def test_a_cancelled_head_lets_the_next_one_go() -> None:
    """The scheduler must notice: nothing came free, and nothing was added."""
    story = cluster(Scheme.FIFO, 8)
    story.tell(submitted("runs", gpus_per_rank=4))
    settle(story)
    story.tell(submitted("head", gpus_per_rank=8))
    story.at(1).tell(submitted("next", gpus_per_rank=4))
    assert placed(story) == []

    before = story.state.stirred
    story.tell(cancelled("head"))

    assert story.state.stirred != before
    assert placed(story) == ["next"]


def test_who_is_at_a_limit_stands_aside() -> None:
    """A team that may hold 4 GPUs at a time has them; its next gang does not block the other team."""
    shares = (
        BudgetShare(budget="a", fraction_nano=WHOLE // 2, max_allocated_gpus=4),
        BudgetShare(budget="b", fraction_nano=WHOLE // 2),
    )
    tree = BudgetTreeChanged(change="b1", reason="a test", budgets=shares)
    for scheme in YARDSTICKS:
        story = Story(adopted(scheme=scheme), tree, node("n1"))
        story.tell(submitted("a1", gpus_per_rank=4), submitted("a2", gpus_per_rank=4))
        story.at(1).tell(submitted("b1", gpus_per_rank=4, budget="b"))
        settle(story)
        assert [story.phase(name) for name in ("a1", "a2", "b1")] == ["running", "queued", "running"], scheme


def test_a_node_that_takes_no_work_is_promised_to_nobody() -> None:
    """The head waits for a node of 8; n1 is cordoned, so it is promised n2, and on n2 nobody may stay too long."""
    story = cluster(Scheme.EASY_BACKFILL, 8, 8)
    story.tell(submitted("on-n1", gpus_per_rank=8, min_runtime_ms=HOUR))
    story.tell(submitted("on-n2", gpus_per_rank=6, min_runtime_ms=2 * HOUR))
    settle(story)
    story.tell(drained("n1"))
    story.at(1).tell(submitted("head", gpus_per_rank=8))
    story.at(2).tell(submitted("long", gpus_per_rank=1, min_runtime_ms=4 * HOUR))
    assert placed(story) == []

    story.at(3).tell(submitted("short", gpus_per_rank=1, min_runtime_ms=HOUR))
    assert placed(story) == ["short"]


@pytest.mark.parametrize(
    ("fields", "declared_ms"),
    [
        ({"timeout_ms": 3 * HOUR, "min_runtime_ms": HOUR}, 3 * HOUR),
        ({"min_runtime_ms": HOUR}, HOUR),
        ({"min_runtime_ms": 0}, 5 * MINUTE),
    ],
)
def test_what_is_declared_of_a_run(fields: dict[str, int], declared_ms: int) -> None:
    """The timeout; without one the min runtime; without either the shortest min runtime of the policy."""
    story = cluster(Scheme.EASY_BACKFILL, 8)
    story.tell(submitted("run", **fields))

    assert yardsticks.declared_ms(story.state.workloads["run"], story.state.policy) == declared_ms


@pytest.mark.parametrize(
    ("after_ms", "end_ms"),
    [(0, HOUR), (HOUR - 1, HOUR), (HOUR, 2 * HOUR), (2 * HOUR, 4 * HOUR), (3 * HOUR, 4 * HOUR), (4 * HOUR, 8 * HOUR)],
)
def test_a_run_that_goes_on_is_taken_to_last_twice_as_long(after_ms: int, end_ms: int) -> None:
    """An hour was declared; the expected end is always ahead."""
    story = cluster(Scheme.EASY_BACKFILL, 8)
    story.tell(submitted("run", min_runtime_ms=HOUR))
    settle(story)
    workload = story.state.workloads["run"]
    assert workload.run is not None
    assert workload.run.started_ms is not None
    began_ms = workload.run.started_ms
    story.at(began_ms + after_ms).tick()

    assert yardsticks.expected_end_ms(workload, workload.run, story.state) == began_ms + end_ms


# --- against schedulers of a few lines --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """When it comes, how many GPUs it takes, and how long it runs; it declares just that."""

    at: int
    gpus: int
    run: int


def jobs_of(seed: int, count: int = 120) -> list[Job]:
    """Some jobs that ask for more than 16 GPUs most of the time."""
    random = Random(seed)
    at, jobs = 0, []
    for _ in range(count):
        at += random.choice((0, 1, 3, 10)) * MINUTE
        jobs.append(Job(at, random.choice((1, 1, 1, 2, 3, 5, 8, 16)), random.randint(5, 90) * MINUTE))
    return jobs


def starts_of(jobs: list[Job], capacity: int, scheme: Scheme) -> list[int]:
    """When each job starts: a scheduler of one pool of GPUs that knows all run times, written down once more."""
    starts: dict[int, int] = {}
    queue: list[int] = []
    moments = sorted({job.at for job in jobs})
    while moments:
        now = moments.pop(0)
        queue += [number for number, job in enumerate(jobs) if job.at == now]
        ends = sorted((starts[n] + jobs[n].run, jobs[n].gpus) for n in starts if starts[n] + jobs[n].run > now)
        free = capacity - sum(gpus for _, gpus in ends)
        promised, spare = None, 0
        for number in queue[:]:
            job = jobs[number]
            may = job.gpus <= free and (promised is None or now + job.run <= promised or job.gpus <= spare)
            if may:
                free -= job.gpus
                if promised is not None and now + job.run > promised:
                    spare -= job.gpus
                starts[number] = now
                ends = sorted([*ends, (now + job.run, job.gpus)])
                queue.remove(number)
                moments = sorted({*moments, now + job.run})
            elif scheme is Scheme.FIFO:
                break
            elif scheme is Scheme.EASY_BACKFILL and promised is None:
                promised = next(
                    end for end, _ in ends if free + sum(gpus for other, gpus in ends if other <= end) >= job.gpus
                )
                spare = free + sum(gpus for end, gpus in ends if end <= promised) - job.gpus
    return [starts[number] for number in range(len(jobs))]


def simulated(
    jobs: list[Job], scheme: Scheme, *, borders: bool = False, delays: Delays = IDEAL, decide: object = None
) -> list[int]:
    """When each job starts here, on 4 nodes of 4 GPUs; without borders every gang has ranks of one GPU."""
    submissions = tuple(
        Submission(
            job.at,
            submitted(
                f"job-{number:04}",
                budget="ab"[number % 2],
                ranks=job.gpus if not borders else max(1, job.gpus // 4),
                gpus_per_rank=1 if not borders else min(job.gpus, 4),
                min_runtime_ms=job.run,
                command=sleep_argv(job.run),
            ),
            job.run,
        )
        for number, job in enumerate(jobs)
    )
    starts: dict[str, int] = {}

    def note(record: Record, _effects: object, state: ClusterState) -> None:
        if isinstance(record.event, RunStarted):
            workload = state.workloads.get(record.event.workload)
            if workload is not None and workload.run is not None and workload.run.started_ms is not None:
                starts[workload.id] = workload.run.started_ms

    scheduler = Scheduler() if decide is None else Scheduler(decide=decide)  # type: ignore[arg-type]
    simulate(
        Demand(submissions, budgets(a=0.5, b=0.5)),
        uniform_cluster(4, 4, delays=delays),
        Policy(scheme=scheme),
        scheduler=scheduler,
        observers=[note],
    )
    return [starts[f"job-{number:04}"] for number in range(len(jobs))]


@pytest.mark.parametrize("scheme", YARDSTICKS)
@pytest.mark.parametrize("seed", range(4))
def test_one_pool_is_scheduled_as_by_a_scheduler_of_a_few_lines(scheme: Scheme, seed: int) -> None:
    """Job by job, when people declare what is true."""
    jobs = jobs_of(seed)

    assert simulated(jobs, scheme) == starts_of(jobs, 16, scheme)


@pytest.mark.parametrize("scheme", YARDSTICKS)
@pytest.mark.parametrize("borders", [False, True])
def test_what_is_remembered_changes_no_decision(scheme: Scheme, *, borders: bool) -> None:
    """With nodes that take their time, and each decision made once more by somebody who remembers nothing."""
    asked = 0

    def decide(state: ClusterState, memory: Memory) -> RoundProposed | None:
        nonlocal asked
        asked += 1
        proposal = schemes.decide(state, memory)
        assert proposal == schemes.decide(state)
        return proposal

    simulated(jobs_of(7), scheme, borders=borders, delays=USUAL, decide=decide)
    assert asked > 100
