"""GPU-time by budget and hour. Expected values: `fair-share.md`, worked example 9, and arithmetic by hand."""

from streamsched.model.events import (
    BudgetShare,
    BudgetTreeChanged,
    Event,
    NodeHealth,
    NodeHealthChanged,
    NodeInventoryReported,
    Record,
    ReleaseOutcome,
    RunReleased,
    RunStarted,
    Tick,
    WorkloadSubmitted,
)
from streamsched.model.quantities import DAY, HOUR, MINUTE, WHOLE
from streamsched.scheduling.scheduler import Scheduler
from streamsched.state.hours import ROOT, Delivery, HourlyUse, Use


class Cluster:
    """A ledger of one hand, whose scheduler's proposals are appended at once, and its hourly use."""

    def __init__(self, *, gpus: int, budgets: dict[str, int]) -> None:
        self.scheduler = Scheduler()
        self.use = HourlyUse()
        shares = tuple(BudgetShare(budget=name, fraction_nano=nano) for name, nano in budgets.items())
        self.at(0, BudgetTreeChanged(change="c1", reason="begin", budgets=shares))
        for node in range(gpus // 8):
            self.at(0, NodeInventoryReported(node=f"n{node}", boot="b", pool="gpu", gpus=8))

    def at(self, now_ms: int, event: Event) -> None:
        """Append and fold one event, and what the scheduler makes of it."""
        following: Event | None = event
        while following is not None:
            state = self.scheduler.state
            effects = self.scheduler.take(Record(state.next_cursor, now_ms, following))
            self.use.note(state, effects)
            proposal = self.scheduler.next_event(now_ms)
            following = None if isinstance(proposal, Tick) else proposal

    def submit(self, now_ms: int, workload: str, *, budget: str = "red", gpus: int = 8, min_ms: int = HOUR) -> None:
        self.at(
            now_ms,
            WorkloadSubmitted(
                workload=workload,
                budget=budget,
                ranks=1,
                gpus_per_rank=gpus,
                min_runtime_ms=min_ms,
                resumable=True,
                command=("sleep", "1"),
            ),
        )

    def start(self, now_ms: int, workload: str) -> None:
        for node in self._nodes_of(workload):
            self.at(now_ms, RunStarted(node=node, workload=workload, attempt=1))

    def release(self, now_ms: int, workload: str) -> None:
        for node in self._nodes_of(workload):
            outcome = ReleaseOutcome.SUCCEEDED
            self.at(now_ms, RunReleased(node=node, workload=workload, attempt=1, outcome=outcome, exit_code=0))

    def _nodes_of(self, workload: str) -> list[str]:
        run = self.scheduler.state.workloads[workload].run
        assert run is not None
        return list(run.held)


def use(*, quota: int, demand: int, delivered: int) -> Use:
    """An hour, in GPU-hours."""
    return Use(delivered * HOUR, 0, (demand - delivered) * HOUR, quota * HOUR)


def test_the_worked_example_of_the_specification() -> None:
    """q*C = 40; demand 10, 90, 0, 60 gives due 10, 40, 0, 40; delivered 10, 30, 0, 60: strict 80 of 90, capped 90."""
    hours = [
        use(quota=40, demand=10, delivered=10),
        use(quota=40, demand=90, delivered=30),
        use(quota=40, demand=0, delivered=0),
        use(quota=40, demand=60, delivered=60),
    ]

    assert [hour.due_gpu_ms for hour in hours] == [10 * HOUR, 40 * HOUR, 0, 40 * HOUR]
    delivery = Delivery.over(hours)
    assert (delivery.due_gpu_ms, delivery.delivered_gpu_ms) == (90 * HOUR, 100 * HOUR)
    assert (delivery.strict_gpu_ms, delivery.capped_gpu_ms) == (80 * HOUR, 90 * HOUR)


def test_the_clip_is_by_the_hour_and_not_by_the_instant() -> None:
    """Demand 0 and then 96 GPUs, half an hour each, is 48 GPU-hours, of which q*C = 40 are due; not 20."""
    cluster = Cluster(gpus=80, budgets={"red": WHOLE // 2})
    for part in range(12):
        cluster.submit(HOUR // 2, f"w{part}")

    cluster.use.settle(HOUR)

    hour = cluster.use.hour("red", 0)
    assert hour.demand_gpu_ms == 48 * HOUR
    assert hour.due_gpu_ms == 40 * HOUR
    assert (hour.allocated_gpu_ms, hour.queued_gpu_ms) == (40 * HOUR, 8 * HOUR)


def test_a_parent_may_be_due_more_than_its_children_together() -> None:
    """Quotas 60, 30 and 30 of 80 GPUs; demand 50 and 5: the children are due 30 + 5 in the hour, the parent 55."""
    cluster = Cluster(gpus=80, budgets={"p": 3 * WHOLE // 4, "p/a": WHOLE // 2, "p/b": WHOLE // 2})
    for part in range(6):
        cluster.submit(0, f"a{part}", budget="p/a")
    cluster.submit(0, "a6", budget="p/a", gpus=2)
    cluster.submit(0, "b0", budget="p/b", gpus=5)

    cluster.use.settle(HOUR)

    assert [cluster.use.hour(budget, 0).due_gpu_ms // HOUR for budget in ("p/a", "p/b", "p")] == [30, 5, 55]


def test_hours_are_half_open_and_time_is_split_at_their_edges() -> None:
    """8 GPUs from 00:45 to 03:00: a quarter of the first hour, all of the next two, and nothing of the fourth."""
    cluster = Cluster(gpus=8, budgets={"red": WHOLE})
    cluster.submit(45 * MINUTE, "llama")
    cluster.start(50 * MINUTE, "llama")
    cluster.release(3 * HOUR, "llama")
    cluster.use.settle(4 * HOUR)

    hours = cluster.use.hours("red")

    assert list(hours) == [0, HOUR, 2 * HOUR, 3 * HOUR]
    assert [hour.allocated_gpu_ms for hour in hours.values()] == [2 * HOUR, 8 * HOUR, 8 * HOUR, 0]
    assert [hour.quota_gpu_ms for hour in hours.values()] == [8 * HOUR] * 4
    assert cluster.use.hours(ROOT) == hours


def test_unallocated_time_is_neither_delivered_nor_wanted() -> None:
    """It fills the cluster and is due to nobody."""
    cluster = Cluster(gpus=8, budgets={"red": WHOLE})
    cluster.submit(0, "free", min_ms=0)
    cluster.submit(0, "free-too", min_ms=0)
    cluster.use.settle(HOUR)

    hour = cluster.use.hour("red", 0)

    assert (hour.unallocated_gpu_ms, hour.delivered_gpu_ms, hour.demand_gpu_ms, hour.due_gpu_ms) == (8 * HOUR, 0, 0, 0)


def test_a_lost_node_shrinks_what_is_due() -> None:
    """16 GPUs for half an hour, then 8: q*C is a half of 12 GPU-hours."""
    cluster = Cluster(gpus=16, budgets={"red": WHOLE // 2})

    cluster.at(HOUR // 2, NodeHealthChanged(node="n1", health=NodeHealth.LOST))
    cluster.use.settle(HOUR)

    assert cluster.use.hour("red", 0).quota_gpu_ms == 6 * HOUR


def test_a_changed_budget_counts_from_its_change() -> None:
    """A quarter for 15 minutes and a half for 45 minutes of 16 GPUs are 1 + 6 GPU-hours; a closed budget gets none."""
    cluster = Cluster(gpus=16, budgets={"red": WHOLE // 4, "blue": WHOLE // 4})

    shares = (BudgetShare(budget="red", fraction_nano=WHOLE // 2),)
    cluster.at(15 * MINUTE, BudgetTreeChanged(change="c2", previous="c1", reason="more", budgets=shares))
    cluster.use.settle(HOUR)

    assert cluster.use.hour("red", 0).quota_gpu_ms == 7 * HOUR
    assert cluster.use.hour("blue", 0).quota_gpu_ms == 1 * HOUR


def test_days_are_the_sums_of_their_hours() -> None:
    """8 GPUs from 23:00 of one day to 02:00 of the next: 8 and 16 GPU-hours, each clipped by its own day."""
    cluster = Cluster(gpus=16, budgets={"red": WHOLE // 4})
    cluster.submit(23 * HOUR, "llama")
    cluster.start(23 * HOUR, "llama")
    cluster.release(26 * HOUR, "llama")
    cluster.use.settle(2 * DAY)

    days = cluster.use.days("red")

    assert {day: held.delivered_gpu_ms // HOUR for day, held in days.items()} == {0: 8, DAY: 16}
    assert [held.due_gpu_ms // HOUR for held in days.values()] == [8, 16]
    assert Delivery.over(cluster.use.hours("red").values()).due_gpu_ms == 3 * 4 * HOUR


def test_old_hours_can_be_forgotten() -> None:
    """The hour that is still running stays."""
    cluster = Cluster(gpus=8, budgets={"red": WHOLE})
    cluster.use.settle(3 * HOUR + 1)

    cluster.use.forget(3 * HOUR)

    assert list(cluster.use.hours("red")) == [3 * HOUR]


def test_the_cursor_says_how_far_it_is() -> None:
    """One more than the last record followed."""
    cluster = Cluster(gpus=8, budgets={"red": WHOLE})

    assert cluster.use.as_of == cluster.scheduler.state.next_cursor == 2
    assert cluster.use.budgets == [ROOT, "red"]
