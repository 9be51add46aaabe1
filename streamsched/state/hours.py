"""GPU-time by budget and hour: what was held, what was wanted, and what was due.

A projection that stands beside the state and reads it after each record. It is no input of any decision: the usage that
orders the queue lives in `streamsched.state.usage` and slides; this one is cut at the hours of the clock, for reports,
views and the scores of a policy. Exact, in integers; hours are half-open and begin at whole hours UTC.

Source: `fair-share.md`, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from streamsched.model.commands import Correction, Effects
from streamsched.model.identifiers import parent_of
from streamsched.model.quantities import HOUR, WHOLE
from streamsched.state.cluster import ClusterState
from streamsched.state.usage import Budget
from streamsched.state.workloads import Shape

#: The id of the root of the budget tree.
ROOT = ""


@dataclass(frozen=True, slots=True)
class Use:
    """GPU-milliseconds of one budget in one stretch of time, those of its children included.

    Attributes:
        allocated_gpu_ms: Held by allocated runs: what was delivered.
        unallocated_gpu_ms: Held by unallocated runs.
        queued_gpu_ms: Asked for by queued allocated requests that could ever fit.
        quota_gpu_ms: What the quota was worth: its share of the schedulable GPUs over time, rounded down.
    """

    allocated_gpu_ms: int = 0
    unallocated_gpu_ms: int = 0
    queued_gpu_ms: int = 0
    quota_gpu_ms: int = 0

    @property
    def demand_gpu_ms(self) -> int:
        """What was held or asked for as allocated time."""
        return self.allocated_gpu_ms + self.queued_gpu_ms

    @property
    def due_gpu_ms(self) -> int:
        """The quota, clipped to the demand of this stretch as a whole."""
        return min(self.quota_gpu_ms, self.demand_gpu_ms)

    @property
    def delivered_gpu_ms(self) -> int:
        """Allocated time only; unallocated time never counts as delivered."""
        return self.allocated_gpu_ms

    @property
    def strict_gpu_ms(self) -> int:
        """What was delivered, no more of it than was due in this stretch."""
        return min(self.delivered_gpu_ms, self.due_gpu_ms)

    def __add__(self, other: Use) -> Use:
        return Use(
            self.allocated_gpu_ms + other.allocated_gpu_ms,
            self.unallocated_gpu_ms + other.unallocated_gpu_ms,
            self.queued_gpu_ms + other.queued_gpu_ms,
            self.quota_gpu_ms + other.quota_gpu_ms,
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one budget was due and got over many stretches, clipped stretch by stretch.

    The capped score is ``min(delivered, due) / due`` of the sums, the strict one ``strict / due``; without anything due
    there is no score.
    """

    due_gpu_ms: int
    delivered_gpu_ms: int
    strict_gpu_ms: int

    @classmethod
    def over(cls, stretches: Iterable[Use]) -> Delivery:
        """Sum what was due and delivered in each."""
        due = delivered = strict = 0
        for use in stretches:
            due += use.due_gpu_ms
            delivered += use.delivered_gpu_ms
            strict += use.strict_gpu_ms
        return cls(due, delivered, strict)

    @property
    def capped_gpu_ms(self) -> int:
        """What was delivered, no more of it than was due in all."""
        return min(self.delivered_gpu_ms, self.due_gpu_ms)


class _Account:
    """One budget: the levels that hold since a moment, and what the hours before them came to."""

    __slots__ = ("allocated", "hours", "queued", "quota_nano", "since_ms", "unallocated")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.allocated = self.unallocated = self.queued = 0
        #: Quota times capacity, in parts of `WHOLE` of a GPU.
        self.quota_nano = 0
        #: Hour number since 1970: allocated, unallocated, queued, quota in parts of `WHOLE`; all times milliseconds.
        self.hours: dict[int, list[int]] = {}

    def settle(self, now_ms: int) -> None:
        """Book the present levels up to now."""
        since_ms = self.since_ms
        if now_ms <= since_ms:
            return
        number = since_ms // HOUR
        if now_ms <= (number + 1) * HOUR:  # As nearly always.
            self._book(number, now_ms - since_ms)
        else:
            for number, span_ms in _hours_of(since_ms, now_ms):
                self._book(number, span_ms)
        self.since_ms = now_ms

    def _book(self, number: int, span_ms: int) -> None:
        hour = self.hours.get(number)
        if hour is None:
            hour = self.hours[number] = [0, 0, 0, 0]
        hour[0] += self.allocated * span_ms
        hour[1] += self.unallocated * span_ms
        hour[2] += self.queued * span_ms
        hour[3] += self.quota_nano * span_ms

    def correct(self, correction: Correction, first: int) -> None:
        """Book a correction, in the hours with this number and later ones."""
        part = 0 if correction.charged else 1
        for number, span_ms in _hours_of(correction.since_ms, correction.until_ms):
            if number >= first:
                self.hours.setdefault(number, [0, 0, 0, 0])[part] += correction.units * span_ms

    def level(self, budget: Budget, capacity_units: int, impossible_gpus: int) -> None:
        """Take the levels that hold from now on; what asks for more than is healthy waits, and is no demand."""
        self.allocated = budget.allocated_gpus
        self.unallocated = budget.unallocated_gpus
        self.queued = budget.queued_gpus - impossible_gpus
        self.quota_nano = budget.quota_nano * capacity_units


class HourlyUse:
    """GPU-time by budget and hour, followed record by record from the beginning of a ledger."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._change: str | None = None
        self._capacity_units = 0
        self._next_cursor = 0
        #: Healthy nodes by size, for each pool; and whether they could hold a shape if they were empty.
        self._healthy: list[list[int]] = []
        self._fits: dict[Shape, bool] = {}
        #: Shapes that they could not.
        self._impossible: list[Shape] = []
        #: Hours with a smaller number are not kept.
        self._forgotten = 0

    @property
    def as_of(self) -> int:
        """The cursor of the next record that is not in here yet."""
        return self._next_cursor

    @property
    def healthy(self) -> Sequence[Sequence[int]]:
        """Nodes that take work by their size, for each pool by name; another object whenever they change."""
        return self._healthy

    def note(self, state: ClusterState, effects: Effects) -> None:
        """Follow one record: call it after each ``state.apply``, with what that returned."""
        self._next_cursor = state.next_cursor
        for correction in effects.corrections:
            self._correct(correction, state.now_ms)
        tree = state.budgets
        changed = tree.capacity_units != self._capacity_units or tree.change != self._change
        if effects.nodes:
            healthy = state.inventory.healthy_counts()
            if healthy != self._healthy:
                self._healthy = [counts.copy() for counts in healthy]
                changed = True
        if changed:
            self._capacity_units, self._change = tree.capacity_units, tree.change
            self._fits.clear()
            self._impossible.clear()
            for shape in state.allocated.by_shape:
                self._judge(state, shape)
            self._relevel(state)
            return
        for id_ in effects.workloads:
            workload = state.workloads.get(id_)
            if workload is not None and workload.is_allocated and workload.queue_key is not None:
                self._judge(state, workload.shape)
        now_ms, capacity_units = state.now_ms, self._capacity_units
        for name in effects.budgets:
            budget = tree.get(name) if name else tree.root
            if budget is None:
                continue
            account = self._accounts.get(name)
            if account is None:
                account = self._accounts[name] = _Account(now_ms)
            if account.since_ms != now_ms:
                account.settle(now_ms)
            account.level(budget, capacity_units, self._impossible_gpus(state, budget))

    def settle(self, now_ms: int) -> None:
        """Book what every budget holds up to now, so that the present hour reads as far as it has come."""
        for account in self._accounts.values():
            account.settle(now_ms)

    @property
    def budgets(self) -> list[str]:
        """Every budget seen, in order of name; the root is `ROOT`."""
        return sorted(self._accounts)

    def hours(self, budget: str) -> dict[int, Use]:
        """Return the use of each hour by the millisecond at which it begins, oldest first, as far as it was settled."""
        account = self._accounts.get(budget)
        if account is None:
            return {}
        return {number * HOUR: _use(hour) for number, hour in sorted(account.hours.items())}

    def hour(self, budget: str, hour_ms: int) -> Use:
        """Return the use of the hour that this moment is in, as far as it was settled."""
        account = self._accounts.get(budget)
        hour = account.hours.get(hour_ms // HOUR) if account is not None else None
        return _use(hour) if hour is not None else Use()

    def days(self, budget: str) -> dict[int, Use]:
        """Return the use of each day UTC by the millisecond at which it begins, oldest first."""
        account = self._accounts.get(budget)
        days: dict[int, list[int]] = {}
        for number, hour in sorted(account.hours.items()) if account is not None else ():
            day = days.setdefault(number // 24, [0, 0, 0, 0])
            for part, amount in enumerate(hour):
                day[part] += amount
        return {number * 24 * HOUR: _use(day) for number, day in days.items()}

    def forget(self, before_ms: int) -> None:
        """Drop the hours that ended by then, so that a view that runs for years stays small."""
        self._forgotten = max(self._forgotten, before_ms // HOUR)
        for account in self._accounts.values():
            for number in [number for number in account.hours if (number + 1) * HOUR <= before_ms]:
                del account.hours[number]

    def _correct(self, correction: Correction, now_ms: int) -> None:
        """Book use that is put right afterwards, in the hours that it is about."""
        name: str | None = correction.budget
        while name is not None:
            account = self._accounts.setdefault(name, _Account(now_ms))
            account.correct(correction, self._forgotten)
            name = parent_of(name) or ROOT if name != ROOT else None

    def _relevel(self, state: ClusterState) -> None:
        """The tree or the capacity changed, and with it what every quota is worth."""
        tree, now_ms = state.budgets, state.now_ms
        named = {budget.id: budget for budget in tree.root.below()}
        for name, known in self._accounts.items():
            known.settle(now_ms)
            if name not in named:
                known.allocated = known.unallocated = known.queued = known.quota_nano = 0
        for name, budget in named.items():
            account = self._accounts.get(name)
            if account is None:
                account = self._accounts[name] = _Account(now_ms)
            account.level(budget, self._capacity_units, self._impossible_gpus(state, budget))

    def _judge(self, state: ClusterState, shape: Shape) -> None:
        """Note whether a shape fits on the healthy nodes as they are."""
        if shape in self._fits:
            return
        wanted, gpus_per_rank, ranks, _, _ = shape
        slots = [pool.healthy.slots(gpus_per_rank) for pool in state.inventory.candidates(wanted)]
        fits = self._fits[shape] = not slots or max(slots) >= ranks
        if not fits:
            self._impossible.append(shape)

    def _impossible_gpus(self, state: ClusterState, budget: Budget) -> int:
        """Return the GPUs that are asked for below a budget by gangs larger than what is healthy."""
        if not self._impossible:
            return 0
        return sum(
            shape[1] * shape[2] * len(queue.entries)
            for shape in self._impossible
            for queue in state.allocated.by_shape.get(shape, {}).values()
            if budget in queue.leaf.path
        )


def _hours_of(since_ms: int, until_ms: int) -> Iterator[tuple[int, int]]:
    """Yield the hours of a stretch of time by their number since 1970, with the milliseconds of it in each."""
    at_ms = since_ms
    while at_ms < until_ms:
        number = at_ms // HOUR
        end_ms = min((number + 1) * HOUR, until_ms)
        yield number, end_ms - at_ms
        at_ms = end_ms


def _use(hour: list[int]) -> Use:
    return Use(hour[0], hour[1], hour[2], hour[3] // WHOLE)
