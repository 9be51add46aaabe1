"""Use, commitment and entitlement to the millisecond, against sums over every run of a history."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from hypothesis import given

from streamsched.model.commands import Correction, Effects
from streamsched.model.events import BudgetTreeChanged, Drain, NodeHealth, PolicyAdopted, Record, UsageAdjusted
from streamsched.model.identifiers import parent_of
from streamsched.model.quantities import MINUTE, WHOLE
from streamsched.state.cluster import ClusterState
from streamsched.state.usage import Budget
from streamsched.state.workloads import Phase, Workload
from tests.properties.histories import History, histories

#: A budget in one of its lives: a removed one that comes back begins anew.
Life = tuple[str, int]


@dataclass(eq=False)
class Spell:
    """GPUs that one run held on one node."""

    budget: str
    gpus: int
    payers: frozenset[Life]
    is_allocated: bool
    begin_ms: int
    end_ms: int | None = None


@dataclass
class Books:
    """What an accountant writes down who looks at the cluster after every record, and computes nothing."""

    spells: list[Spell] = field(default_factory=list)
    open: dict[tuple[str, str, int], Spell] = field(default_factory=dict)
    #: Every tree that was asked for, by the id of the change.
    trees: dict[str, BudgetTreeChanged] = field(default_factory=dict)
    #: By workload and attempt, all that it has held; and those gangs that have started.
    held_by: dict[tuple[str, int], list[Spell]] = field(default_factory=dict)
    started: set[tuple[str, int]] = field(default_factory=set)
    lives: dict[str, int] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    #: By workload; one whose id is used again after it was forgotten is another one.
    payers: dict[Workload, frozenset[Life]] = field(default_factory=dict)
    #: (from when, schedulable GPUs), and by budget (from when, share of the cluster).
    capacity: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    quotas: dict[Life, list[tuple[int, int]]] = field(default_factory=dict)
    #: Nothing from before is known any more, since the window was once no longer than that.
    known_from_ms: int = -(10**18)
    window_ms: int = ClusterState().policy.window_ms

    def write(self, state: ClusterState, record: Record, effects: Effects, before_change: str | None) -> None:
        """Look at the state after a record."""
        now = state.now_ms
        event = record.event
        if isinstance(event, BudgetTreeChanged):
            self.trees.setdefault(event.change, event)
        if state.budgets.change is not None and state.budgets.change != before_change:
            tree = self.trees[state.budgets.change]
            is_later = tree.effective_ms is not None and tree is not event
            self._change_tree(tree, tree.effective_ms or 0 if is_later else now)
        if isinstance(event, PolicyAdopted) and state.policy.window_ms != self.window_ms:
            shorter = min(state.policy.window_ms, self.window_ms)
            self.known_from_ms = max(self.known_from_ms, now - shorter)
            self.window_ms = state.policy.window_ms
        for waiting in state.workloads.values():
            if waiting not in self.payers:
                names = ["", *_with_parents(waiting.budget.id)]
                self.payers[waiting] = frozenset((name, self.lives.get(name, 0)) for name in names)
        capacity = 0
        holds: set[tuple[str, str, int]] = set()
        for node in state.nodes.values():
            held = sum(mask.bit_count() for mask in node.held.values())
            in_use = node.gpus if node.emptying is Drain.NONE else held
            capacity += {NodeHealth.HEALTHY: in_use, NodeHealth.UNHEALTHY: held, NodeHealth.LOST: 0}[node.health]
            for (workload, attempt), mask in node.held.items():
                key = (node.id, workload, attempt)
                holds.add(key)
                if key not in self.open:
                    live = state.workloads[workload]
                    spell = Spell(live.budget.id, mask.bit_count(), self.payers[live], live.min_runtime_ms > 0, now)
                    self.open[key] = spell
                    self.held_by.setdefault((workload, attempt), []).append(spell)
                    self.spells.append(spell)
        for key in set(self.open) - holds:
            self.open.pop(key).end_ms = now
        self._take_back(state, event, effects)
        if capacity != self.capacity[-1][1]:
            self.capacity.append((now, capacity))

    def _adjust(self, state: ClusterState, event: UsageAdjusted, fixes: list[Correction]) -> list[Correction]:
        """Book an adjustment that was made, as even as integers allow, the rest first; return the other corrections."""
        even, rest = divmod(abs(event.gpu_ms), event.to_ms - event.from_ms)
        sign = 1 if event.gpu_ms > 0 else -1
        stretches = [(even + 1, event.from_ms, event.from_ms + rest), (even, event.from_ms + rest, event.to_ms)]
        known_ms = state.budgets.known_from_ms
        parts = [
            Correction(event.budget, sign * gpus, max(since_ms, known_ms), until_ms, charged=True)
            for gpus, since_ms, until_ms in stretches
            if gpus and max(since_ms, known_ms) < until_ms
        ]
        first = len(fixes) - len(parts)
        if fixes[first:] != parts:
            return fixes
        payers = frozenset((name, self.lives.get(name, 0)) for name in ["", *_with_parents(event.budget)])
        self.spells.extend(Spell(part.budget, part.units, payers, True, part.since_ms, part.until_ms) for part in parts)
        return fixes[:first]

    def _take_back(self, state: ClusterState, event: object, effects: Effects) -> None:
        """Strike out the gangs that ended without a start and were refunded: all that they held, and nothing else."""
        for live in state.workloads.values():
            if live.run is not None and live.run.started_ms is not None:
                self.started.add((live.id, live.attempt))
        fixes = effects.corrections
        if isinstance(event, UsageAdjusted):
            fixes = self._adjust(state, event, fixes)
        refunded = [(fix.budget, fix.units, self._known(fix.since_ms), fix.until_ms, fix.charged) for fix in fixes]
        refunded = [part for part in refunded if part[2] < part[3]]
        for gang in [gang for gang in self.held_by if not self._holds(gang)]:
            spells = self.held_by.pop(gang)
            if gang in self.started:
                self.started.remove(gang)
                continue
            parts = [
                (spell.budget, -spell.gpus, self._known(spell.begin_ms), spell.end_ms or 0, spell.is_allocated)
                for spell in spells
            ]
            parts = [part for part in parts if part[2] < part[3]]
            if parts and all(part in refunded for part in parts):
                for part in parts:
                    refunded.remove(part)
                self.spells = [spell for spell in self.spells if spell not in spells]
        assert not refunded, "a refund of what nobody held"

    def _known(self, begin_ms: int) -> int:
        return max(begin_ms, self.known_from_ms)

    def _holds(self, gang: tuple[str, int]) -> bool:
        return any(key[1:] == gang for key in self.open)

    def _change_tree(self, event: BudgetTreeChanged, now: int) -> None:
        named = {share.budget: share.fraction_nano for share in event.budgets}
        for name in named:
            if name not in self.live:
                self.lives[name] = self.lives.get(name, 0) + 1
        self.live = set(named)
        shares = {"": WHOLE}
        for parent in ["", *sorted(named)]:
            children = sorted(name for name in named if (parent_of(name) or "") == parent)
            exact = {name: Fraction(shares[parent] * named[name], WHOLE) for name in children}
            shares.update({name: int(share) for name, share in exact.items()})
            spare = int(sum(exact.values())) - sum(int(share) for share in exact.values())
            for name in sorted(children, key=lambda name: (int(exact[name]) - exact[name], name))[:spare]:
                shares[name] += 1
        for name in named:
            self.quotas.setdefault((name, self.lives[name]), []).append((now, shares[name]))

    def used_gpu_ms(self, life: Life, now: int, *, allocated: bool) -> int:
        """Sum what was held inside the window, as far back as anything is known."""
        since = max(now - self.window_ms, self.known_from_ms)
        return sum(
            spell.gpus * max(0, (now if spell.end_ms is None else spell.end_ms) - max(spell.begin_ms, since))
            for spell in self.spells
            if life in spell.payers and spell.is_allocated is allocated
        )

    def entitled_gpu_ms(self, life: Life, now: int, floor_ms: int) -> int:
        """Integrate share x capacity over the window, moment of change by moment of change."""
        since = max(now - self.window_ms, self.known_from_ms)
        quotas = self.quotas[life] if life[0] else [(0, WHOLE)]
        moments = sorted({since, now, *(at for at, _ in self.capacity), *(at for at, _ in quotas)})
        nano = 0
        for begin, end in pairwise(moments):
            if begin >= since and end <= now:
                nano += _level(self.capacity, begin) * _level(quotas, begin) * (end - begin)
        return max(nano, quotas[-1][1] * self.capacity[-1][1] * floor_ms) // WHOLE


def _level(steps: list[tuple[int, int]], at_ms: int) -> int:
    level = 0
    for begin, value in steps:
        if begin <= at_ms:
            level = value
    return level


def _with_parents(budget: str) -> list[str]:
    segments = budget.split("/")
    return ["/".join(segments[: depth + 1]) for depth in range(len(segments))]


def _committed_gpu_ms(state: ClusterState, budget: Budget) -> int:
    """Sum the protected time ahead of whole, unstopped allocated gangs; before the start it is all of it."""
    total = 0
    for workload in state.workloads.values():
        run = workload.run
        if run is None or not workload.min_runtime_ms or budget not in workload.budget.path or run.stop is not None:
            continue
        timeout = workload.timeout_ms
        asked = workload.min_runtime_ms if timeout is None else min(workload.min_runtime_ms, timeout)
        least = run.min_ms + run.extended_ms
        # A policy may give less to a start that lifts its leaf above its quota: here five minutes.
        assert run.min_ms in (asked, min(asked, 5 * MINUTE))
        gpus = workload.ranks * workload.gpus_per_rank
        if workload.phase is Phase.PLANNED:
            total += gpus * least
        elif len(run.held) == len(run.places):
            ahead = least if run.started_ms is None else max(0, run.started_ms + least - state.now_ms)
            total += gpus * ahead
    return total


@given(histories())
def test_use_is_the_sum_of_what_was_held(history: History) -> None:
    """Charged time is that of allocated runs from bound to released, clipped to the window; unallocated time likewise.

    For leaves and for inner budgets, after removals and returns of budgets, and after changes of the window.
    """
    books = Books()
    change: str | None = None
    for state, record, effects in history.folded():
        books.write(state, record, effects, change)
        change = state.budgets.change
        now = state.now_ms
        for budget in state.budgets.root.below():
            life = (budget.id, books.lives.get(budget.id, 0))
            assert budget.charged_gpu_ms(now) == books.used_gpu_ms(life, now, allocated=True)
            assert budget.unallocated_gpu_ms(now) == books.used_gpu_ms(life, now, allocated=False)


@given(histories())
def test_entitlement_is_the_integral_of_share_and_capacity(history: History) -> None:
    """A change of the tree or of the nodes counts from its moment on, and at least the share over the floor is due."""
    books = Books()
    change: str | None = None
    for state, record, effects in history.folded():
        books.write(state, record, effects, change)
        change = state.budgets.change
        now, floor_ms = state.now_ms, state.policy.min_runtime_cap_ms
        assert state.budgets.capacity_units == books.capacity[-1][1]
        for budget in state.budgets.root.below():
            life = (budget.id, books.lives.get(budget.id, 0))
            assert budget.entitled_gpu_ms(now) == books.entitled_gpu_ms(life, now, floor_ms)


@given(histories())
def test_commitment_is_what_is_left_of_protected_time(history: History) -> None:
    """Only live allocated gangs commit, from the plan on, and no longer once their first GPUs are back."""
    for state, _, _ in history.folded():
        for budget in state.budgets.root.below():
            assert budget.committed_gpu_ms(state.now_ms) == _committed_gpu_ms(state, budget)
