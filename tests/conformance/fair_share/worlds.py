"""A cluster for a case: brought to the facts of the case by a history, then asked to decide.

A published case says what a scheduler found; ours can only find what has happened. So work is submitted, seated,
started and ended at times that lead to those facts, each as an event, and nothing is written into the state.

Whole GPUs are the smallest thing here, so a case in halves or tenths of a GPU is run with all its numbers multiplied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

from streamsched.model.commands import Effects, Place, Stop, StopReason
from streamsched.model.events import (
    BudgetShare,
    BudgetTreeChanged,
    Event,
    NodeInventoryReported,
    ProposedPlacement,
    ReleaseOutcome,
    RoundProposed,
    Seat,
)
from streamsched.model.identifiers import parent_of
from streamsched.model.policy import UsageMode
from streamsched.model.quantities import HOUR, MINUTE, SECOND, WHOLE
from streamsched.scheduling.decision import decide
from tests.stories import Story, adopted, node, submitted

#: What the other schedulers do not have is off: patience, a rate limit, reservations, headroom, a guard that fades.
BARE: Mapping[str, Any] = {
    "min_runtime_floor_ms": SECOND,
    "patience_ms": 0,
    "preemption_burst_percent": 10_000,
    "reservations": 0,
    "nodes_per_headroom_node": 0,
    "guard_relaxation_ms": None,
}
#: Usage is what is held at the moment, as in the schedulers whose cases are marked `variant`.
INSTANT: Mapping[str, Any] = {**BARE, "usage": UsageMode.INSTANT}

#: A pool of so many GPUs has shares of 1/n for every n here that can be written down exactly in 1,000,000,000 parts.
_EXACT_SIZES: list[int] = sorted(2**twos * 5**fives for twos in range(9) for fives in range(5))


@dataclass(frozen=True, slots=True)
class Spell:
    """GPUs that a leaf held from one moment to another."""

    leaf: str
    gpus: int
    start_ms: int
    end_ms: int


class World(Story):
    """A story that answers for its nodes: what is placed starts at once, and what is stopped stops at once."""

    def __init__(self, policy: Mapping[str, Any], inventory: Iterable[Event], at_ms: int = 0) -> None:
        super().__init__(adopted(**policy), inventory, at_ms=at_ms)
        self.changes = 0
        #: Workloads in the order in which they were placed; and those that were stopped for somebody.
        self.placed: list[str] = []
        self.preempted: list[str] = []

    # --- the tree ---

    def fund(self, quotas: Mapping[str, Fraction]) -> None:
        """Change the tree of budgets: fractions of the parent by path, parents first."""
        self.changes += 1
        self.tell(
            BudgetTreeChanged(
                change=f"change-{self.changes}",
                previous=self.state.budgets.change,
                reason="the case",
                budgets=tuple(
                    BudgetShare(budget=path, fraction_nano=int(fraction * WHOLE)) for path, fraction in quotas.items()
                ),
            )
        )

    # --- histories ---

    def play(self, spells: Iterable[Spell]) -> None:
        """Let runs hold GPUs as they did: each is submitted and started at its beginning, and succeeds at its end."""
        moments: list[tuple[int, int, str, Spell]] = []
        for number, spell in enumerate(spells):
            name = f"past-{number}"
            moments.append((spell.start_ms, 1, name, spell))
            moments.append((spell.end_ms, 0, name, spell))
        for moment, begins, name, spell in sorted(moments, key=lambda entry: entry[:3]):
            self.at(moment)
            if begins:
                self.ask(name, spell.leaf, spell.gpus, gpus_per_rank=1, min_runtime_ms=5 * MINUTE)
                self.settle()
                assert self.phase(name) == "running", f"{name} found no room"
            else:
                self.end(name)

    def seat(self, workload: str, leaf: str, where: Sequence[tuple[str, int]], **fields: Any) -> None:
        """Let a gang run on these nodes from now on: one rank on each, of so many GPUs."""
        size = where[0][1]
        self.ask(workload, leaf, len(where), gpus_per_rank=size, **fields)
        seats: list[Seat] = []
        taken: dict[str, int] = {}
        for rank, (name, gpus) in enumerate(where):
            free = self.state.nodes[name].free_mask & ~taken.get(name, 0)
            bits = [bit for bit in range(16) if free >> bit & 1][:gpus]
            assert len(bits) == gpus, f"{name} has no {gpus} free GPUs for {workload}"
            mask = sum(1 << bit for bit in bits)
            taken[name] = taken.get(name, 0) | mask
            seats.append(Seat(rank=rank, node=name, gpu_mask=mask))
        item = ProposedPlacement(workload=workload, attempt=1, seats=tuple(seats), victims=(), shares=())
        state = self.state
        self.tell(
            RoundProposed(
                round=state.closed_round + 1,
                based_on=state.next_cursor,
                policy_version=state.policy_version,
                placements=(item,),
            )
        )
        assert self.phase(workload) == "bound", f"{workload} was not accepted: {state.void}"
        self.start(workload)

    def spread(self, workload: str, leaf: str, gpus: int, **fields: Any) -> None:
        """Let a gang of one-GPU ranks run on the first nodes with a free GPU."""
        free = [name for name in sorted(self.state.nodes) for _ in range(self.state.nodes[name].free_mask.bit_count())]
        assert len(free) >= gpus, f"{len(free)} GPUs are free, {workload} needs {gpus}"
        self.seat(workload, leaf, [(name, 1) for name in free[:gpus]], **fields)

    def ask(self, workload: str, leaf: str, ranks: int, **fields: Any) -> None:
        """Submit; work that is preempted does not come back, unless the case says that it can be resumed."""
        self.tell(submitted(workload, budget=leaf, ranks=ranks, **{"resumable": False, **fields}))

    def pass_time(self, ms: int) -> None:
        """Let nothing happen for a while."""
        self.at(self.now_ms + ms).tick()

    # --- deciding ---

    def settle(self) -> None:
        """Decide, and let the nodes obey, until there is nothing to decide at this moment."""
        for _ in range(10_000):
            proposal = decide(self.state)
            if proposal is None:
                return
            self.obey(self.tell(proposal))
        raise AssertionError("deciding does not come to an end")

    def obey(self, effects: Effects) -> None:
        """Let the nodes do what they are told."""
        for command in effects.commands:
            if isinstance(command, Place):
                if command.workload not in self.placed:
                    self.placed.append(command.workload)
                workload = self.state.workloads.get(command.workload)
                if workload is not None and workload.phase.value == "bound":
                    self.start(command.workload)
            elif isinstance(command, Stop):
                if command.reason is StopReason.PREEMPTED and command.workload not in self.preempted:
                    self.preempted.append(command.workload)
                workload = self.state.workloads.get(command.workload)
                if workload is not None and workload.run is not None and workload.run.held:
                    self.end(command.workload, ReleaseOutcome.STOPPED)
                    self._start_what_was_bound()

    def _start_what_was_bound(self) -> None:
        """Start what got its GPUs by somebody's end."""
        for name in [name for name, workload in self.state.workloads.items() if workload.phase.value == "bound"]:
            if name not in self.placed:
                self.placed.append(name)
            self.start(name)

    def victims_of(self, workload: str) -> list[str] | None:
        """Return whom a decision would stop for a workload; None if it would not place it."""
        proposal = decide(self.state)
        for item in () if proposal is None else proposal.placements:
            if item.workload == workload:
                return sorted(victim.workload for victim in item.victims)
        return None

    def nodes_of(self, workload: str) -> list[str]:
        """Return where a workload holds GPUs."""
        live = self.state.workloads.get(workload)
        return [] if live is None or live.run is None else sorted(live.run.held)


def hours(value: Fraction | int) -> int:
    """Return hours as milliseconds, which they must be exactly."""
    exact = Fraction(value) * HOUR
    assert exact.denominator == 1, f"{value} h is no whole number of milliseconds"
    return int(exact)


def number(value: Any) -> Fraction:
    """Read an integer, a published decimal or an exact fraction."""
    return Fraction(str(value))


def scale_of(values: Iterable[Any]) -> int:
    """Return the smallest factor that makes whole numbers of all values."""
    return lcm(*(number(value).denominator for value in values))


def single_gpus(count: int) -> list[NodeInventoryReported]:
    """Return nodes of one GPU: where a case counts GPUs and has no nodes, any GPU is as good as any other."""
    return [node(f"n{index:03}", gpus=1) for index in range(count)]


def exact_size(gpus: int) -> int:
    """Return the smallest pool of at least so many GPUs whose whole-GPU shares are exact fractions."""
    return min(size for size in _EXACT_SIZES if size >= gpus)


def fractions_of_parents(amounts: Mapping[str, Fraction], whole: Fraction | int) -> dict[str, Fraction]:
    """Return fractions of the parent from absolute amounts by path, parents first; `whole` is the root's."""
    quotas: dict[str, Fraction] = {}
    for path, amount in amounts.items():
        parent = parent_of(path)
        of = Fraction(whole) if parent is None else amounts[parent]
        quotas[path] = amount / of if of else Fraction(0)
    return quotas
