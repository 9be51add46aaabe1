"""GPU-time by budget inside the lookback window: used, committed and entitled, exact, in integers.

The window slides without a stop, so use is kept as a value and a slope: GPUs held now, less GPUs held exactly one
window ago. Each change of what is held is written down once, at the end of one queue; when it is a window old it is
taken from the front and changes the slope a second time. Both cost a step up the tree and nothing else.

What the order compares is A, K and E of the specification, and what they are depends on the usage mode of the policy:
GPU-time in the window; the same with old time fading out, which is kept beside the window; or GPUs held at the moment.

Source: `fair-share.md`, section 3. Ratios are never computed here: whoever compares two budgets multiplies across.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING

from streamsched.model.identifiers import parent_of
from streamsched.model.policy import UsageMode
from streamsched.model.quantities import SECOND, WHOLE
from streamsched.state.fading import BITS, ONE, FadingSum, fading_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from streamsched.model.events import BudgetShare
    from streamsched.model.policy import Policy


class SlidingUse:
    """GPU-milliseconds held inside a window that ends now.

    >>> use = SlidingUse()
    >>> use.hold(8, now_ms=0)
    >>> use.at(100)
    800
    """

    __slots__ = ("as_of_ms", "gpu_ms", "held", "trailing")

    def __init__(self) -> None:
        self.gpu_ms = 0
        self.as_of_ms = 0
        #: GPUs held now.
        self.held = 0
        #: GPUs that were held exactly one window ago.
        self.trailing = 0

    def at(self, now_ms: int) -> int:
        """Return the GPU-milliseconds inside the window that ends at `now_ms`, which no expiry may precede."""
        return self.gpu_ms + (self.held - self.trailing) * (now_ms - self.as_of_ms)

    def hold(self, gpus: int, now_ms: int) -> None:
        """Take up (or with a negative number: give back) GPUs."""
        self.gpu_ms += (self.held - self.trailing) * (now_ms - self.as_of_ms)
        self.as_of_ms = now_ms
        self.held += gpus

    def expire(self, gpus: int, at_ms: int) -> None:
        """Let a change that is now one window old leave the window."""
        self.gpu_ms += (self.held - self.trailing) * (at_ms - self.as_of_ms)
        self.as_of_ms = at_ms
        self.trailing += gpus


class Budget:
    """A vertex of the budget tree, with the use of everything below it."""

    __slots__ = (
        "allocated_slots",
        "charged",
        "children",
        "closed",
        "commitment_fixed",
        "commitment_gpus",
        "commitment_sum",
        "fading_charged",
        "fading_quota",
        "fading_uncharged",
        "forks",
        "fraction_nano",
        "id",
        "managers",
        "max_allocated_gpus",
        "max_unallocated_gpus",
        "parent",
        "path",
        "planned_units",
        "queued_gpus",
        "quota_nano",
        "segments",
        "tree",
        "unallocated_slots",
        "uncharged",
    )

    def __init__(self, tree: BudgetTree, id_: str, parent: Budget | None) -> None:
        self.tree = tree
        self.id = id_
        self.parent = parent
        self.children: dict[str, Budget] = {}
        #: From here to the root.
        self.path: tuple[Budget, ...] = (self, *(parent.path if parent else ()))
        #: By other leaf: the children of the lowest common ancestor towards here and towards there, once looked up.
        self.forks: dict[Budget, tuple[Budget, Budget]] = {}
        self.fraction_nano = 0
        #: Its share of the cluster.
        self.quota_nano = 0
        self.closed = False
        #: Who may change it and what is below it.
        self.managers: tuple[str, ...] = ()
        #: How many GPUs its allocated runs may have at a time, and its unallocated ones; None where there is no limit.
        self.max_allocated_gpus: int | None = None
        self.max_unallocated_gpus: int | None = None
        #: Allocated GPU-time, which is charged; and unallocated GPU-time, which only orders unallocated work.
        self.charged = SlidingUse()
        self.uncharged = SlidingUse()
        #: Commitment of runs that have started: sum of GPUs, and of GPUs x protected_until.
        self.commitment_gpus = 0
        self.commitment_sum = 0
        #: Commitment of runs that have not: GPUs x effective min runtime.
        self.commitment_fixed = 0
        #: Units that allocated runs will hold once their victims have gone.
        self.planned_units = 0
        #: GPUs, whatever they cost, that allocated runs hold or have claimed; and that unallocated runs hold.
        self.allocated_slots = 0
        self.unallocated_slots = 0
        #: GPUs of allocated requests that wait.
        self.queued_gpus = 0
        #: Quotas in force: (capacity integral when it began, quota).
        self.segments: list[tuple[int, int]] = []
        #: In usage mode decay: what was taken up, and by how much earlier quotas were larger, times the capacity then.
        self.fading_charged = FadingSum()
        self.fading_uncharged = FadingSum()
        self.fading_quota = FadingSum()

    @property
    def allocated_gpus(self) -> int:
        """GPUs that allocated runs below here hold now."""
        return self.charged.held

    @property
    def unallocated_gpus(self) -> int:
        """GPUs that unallocated runs below here hold now."""
        return self.uncharged.held

    def slots(self, *, allocated: bool) -> tuple[int, int | None]:
        """Return the GPUs that one class of runs below here has, and how many it may have at a time."""
        if allocated:
            return self.allocated_slots, self.max_allocated_gpus
        return self.unallocated_slots, self.max_unallocated_gpus

    def full_for(self, gpus: int, more: Mapping[Budget, int], *, allocated: bool) -> Budget | None:
        """Return the first budget from here up that would have more GPUs of one class than it may; None if none would.

        Args:
            gpus: What is asked for.
            more: What is to be counted besides what each of them has.
            allocated: The class.
        """
        for budget in self.path:
            if (budget.max_allocated_gpus if allocated else budget.max_unallocated_gpus) is None:
                continue
            used, limit = budget.slots(allocated=allocated)
            if limit is not None and used + more.get(budget, 0) + gpus > limit:
                return budget
        return None

    def charged_gpu_ms(self, now_ms: int) -> int:
        """Return the allocated GPU-time that counts: A of the specification."""
        return self._used(self.charged, self.fading_charged, now_ms)

    def unallocated_gpu_ms(self, now_ms: int) -> int:
        """Return the unallocated GPU-time that counts: A' of the specification."""
        return self._used(self.uncharged, self.fading_uncharged, now_ms)

    def _used(self, use: SlidingUse, fading: FadingSum, now_ms: int) -> int:
        match self.tree.usage:
            case UsageMode.WINDOW:
                return use.at(now_ms)
            case UsageMode.DECAY:
                return _in_seconds(fading_time(use.held, fading, now_ms, self.tree.half_life_ms))
            case UsageMode.INSTANT:
                return self.held_for_instant(use.held)

    @staticmethod
    def held_for_instant(gpus: int) -> int:
        """Return what GPUs held now come to in usage mode instant: held for so long that any quota of them is whole."""
        return gpus * WHOLE

    def committed_gpu_ms(self, now_ms: int) -> int:
        """Return the protected GPU-time still ahead of live runs, where it counts: K of the specification."""
        if not self.tree.counts_commitment:
            return 0
        return self.commitment_fixed + self.commitment_sum - self.commitment_gpus * now_ms

    def entitled_gpu_ms(self, now_ms: int) -> int:
        """Return what the quota is worth over the window: E of the specification.

        The integral of quota x capacity over the window, so that a change is not retroactive; and at least the quota
        over the cap on min runtime, so that nothing is divided by almost nothing. Floored to whole GPU-milliseconds.
        """
        if self.closed:
            return 0
        tree = self.tree
        if tree.usage is UsageMode.INSTANT:
            return self.quota_nano * tree.capacity_units
        floor = self.quota_nano * tree.capacity_units * tree.floor_ms // WHOLE
        if tree.usage is UsageMode.DECAY:
            earlier = self.fading_quota.at(now_ms, tree.half_life_ms)
            return max(_in_seconds((earlier + self.quota_nano * tree.fading_capacity_at(now_ms)) // WHOLE), floor)
        trailing = tree.capacity_trailing_at(now_ms)
        end = tree.capacity_integral_at(now_ms)
        nano = 0
        for begin, quota in reversed(self.segments):
            if begin <= trailing:
                nano += quota * (end - trailing)
                break
            nano += quota * (end - begin)
            end = begin
        return max(nano // WHOLE, floor)

    def is_leaf(self) -> bool:
        """Whether work may be submitted to it."""
        return not self.children and self.parent is not None

    def below(self) -> Iterator[Budget]:
        """Yield this budget and all below it, parents first, children by id."""
        yield self
        for name in sorted(self.children):
            yield from self.children[name].below()


class BudgetTree:
    """The budgets of one cluster, the cluster's capacity, and the changes that have yet to leave the window."""

    __slots__ = (
        "by_id",
        "capacity_as_of_ms",
        "capacity_changes",
        "capacity_integral",
        "capacity_units",
        "change",
        "changes",
        "closed_in_use",
        "counts_commitment",
        "fading_capacity",
        "floor_ms",
        "half_life_ms",
        "jumped_gpu_ms",
        "known_from_ms",
        "openings",
        "peak_units",
        "root",
        "trailing_as_of_ms",
        "trailing_gpus",
        "trailing_integral",
        "usage",
        "window_ms",
    )

    def __init__(self, window_ms: int, floor_ms: int) -> None:
        self.window_ms = window_ms
        #: An entitlement is at least the quota over this time.
        self.floor_ms = floor_ms
        #: What counts as used, and whether protected time ahead does.
        self.usage = UsageMode.WINDOW
        self.counts_commitment = True
        #: In usage mode decay: GPU-time of this age counts half; and the capacity that was taken up, as `FadingSum` has
        #: it.
        self.half_life_ms = 0
        self.fading_capacity = FadingSum()
        #: The id of the last change of the tree.
        self.change: str | None = None
        self.root = Budget(self, "", None)
        self.root.quota_nano = self.root.fraction_nano = WHOLE
        self.root.segments = [(0, WHOLE)]
        self.by_id: dict[str, Budget] = {}
        #: Budgets that were removed while something of theirs was inside the window or running.
        self.closed_in_use: list[Budget] = []
        #: Changes of use inside the window, oldest first: (when, leaf, GPUs, charged or not).
        self.changes: deque[tuple[int, Budget, int, bool]] = deque()
        #: Schedulable GPUs now, in units of the rate card: C of the specification; and the same one window ago.
        self.capacity_units = 0
        #: The most of it so far, and how far commitments were moved by events: bounds on how fast ratios can change.
        #: Both are derived, and begin anew after a restart.
        self.peak_units = 0
        self.jumped_gpu_ms = 0
        #: Rises whenever a budget with a limit of GPUs at a time has fewer of them. Derived, and begins anew too.
        self.openings = 0
        self.capacity_integral = 0
        self.capacity_as_of_ms = 0
        self.trailing_gpus = 0
        self.trailing_integral = 0
        self.trailing_as_of_ms = 0
        self.capacity_changes: deque[tuple[int, int]] = deque()
        #: What was held before this is not known any more, since the window was once no longer than that.
        self.known_from_ms = 0

    # --- reading ---

    def get(self, budget: str) -> Budget | None:
        """Return the open budget of that id."""
        return self.by_id.get(budget)

    def not_managed_by(self, actor: str | None, shares: tuple[BudgetShare, ...]) -> tuple[str, Budget] | None:
        """Return the first budget that `shares` would change and `actor` may not, and the nearest one with managers."""
        named = {share.budget: _settings_of(share) for share in shares}
        known = {id_: _settings_of(budget) for id_, budget in self.by_id.items()}
        for changed in sorted(id_ for id_ in named.keys() | known.keys() if named.get(id_) != known.get(id_)):
            present: str | None = changed
            while present is not None and present not in self.by_id:
                present = parent_of(present)
            if present is None:
                continue
            managed = [budget for budget in self.by_id[present].path if budget.managers]
            if managed and not any(actor in budget.managers for budget in managed):
                return changed, managed[0]
        return None

    def leaves(self) -> list[Budget]:
        """Return the open leaves in the order of their ids."""
        return [self.by_id[id_] for id_ in sorted(self.by_id) if not self.by_id[id_].children]

    def capacity_integral_at(self, now_ms: int) -> int:
        """Return GPU-milliseconds of capacity from the beginning of the ledger until `now_ms`."""
        return self.capacity_integral + self.capacity_units * (now_ms - self.capacity_as_of_ms)

    def capacity_trailing_at(self, now_ms: int) -> int:
        """Return the same until one window before `now_ms`."""
        return self.trailing_integral + self.trailing_gpus * (now_ms - self.window_ms - self.trailing_as_of_ms)

    def fading_capacity_at(self, now_ms: int) -> int:
        """Return the capacity over time, old time counted less, in parts of 2^-64 of a GPU-millisecond."""
        return fading_time(self.capacity_units, self.fading_capacity, now_ms, self.half_life_ms)

    # --- changes, by the fold only ---

    def advance(self, now_ms: int) -> None:
        """Let everything leave the window that is out of it at `now_ms`."""
        edge = now_ms - self.window_ms
        changes = self.changes
        while changes and changes[0][0] <= edge:
            when, leaf, gpus, charged = changes.popleft()
            for budget in leaf.path:
                (budget.charged if charged else budget.uncharged).expire(gpus, when + self.window_ms)
        while self.capacity_changes and self.capacity_changes[0][0] <= edge:
            when, gpus = self.capacity_changes.popleft()
            self.trailing_integral += self.trailing_gpus * (when - self.trailing_as_of_ms)
            self.trailing_as_of_ms = when
            self.trailing_gpus = gpus

    def hold(self, leaf: Budget, gpus: int, now_ms: int, *, charged: bool) -> None:
        """Let a run of a leaf take up GPUs, or with a negative number give them back."""
        for budget in leaf.path:
            (budget.charged if charged else budget.uncharged).hold(gpus, now_ms)
        self.changes.append((now_ms, leaf, gpus, charged))
        if self.usage is UsageMode.DECAY:
            self._fade(leaf, gpus, now_ms, now_ms, charged=charged)

    def take_slots(self, leaf: Budget, gpus: int, *, allocated: bool) -> None:
        """Count GPUs that a run of a leaf has been given, or with a negative number has no more."""
        is_limited = False
        for budget in leaf.path:
            if allocated:
                budget.allocated_slots += gpus
                is_limited |= budget.max_allocated_gpus is not None
            else:
                budget.unallocated_slots += gpus
                is_limited |= budget.max_unallocated_gpus is not None
        self.openings += is_limited and gpus < 0

    @staticmethod
    def plan(leaf: Budget, units: int) -> None:
        """Count what an allocated run will hold, or with a negative number: holds now, or never will."""
        for budget in leaf.path:
            budget.planned_units += units

    def _fade(self, leaf: Budget, gpus: int, since_ms: int, now_ms: int, *, charged: bool) -> None:
        for budget in leaf.path:
            fading = budget.fading_charged if charged else budget.fading_uncharged
            fading.add(gpus << BITS, since_ms, now_ms, self.half_life_ms)

    def correct(self, leaf: Budget, units: int, since_ms: int, until_ms: int, now_ms: int, *, charged: bool) -> None:
        """Add what a leaf is taken to have held over an interval that has passed; a negative number takes it off.

        It leaves the window as if it had been held: both ends are filed among the changes, where they belong in time.
        """
        self.jumped_gpu_ms += 1 << 80  # No bound on what it moves, so whatever was compared is compared again.
        for budget in leaf.path:
            (budget.charged if charged else budget.uncharged).gpu_ms += units * (until_ms - since_ms)
        for when, more in ((since_ms, units), (until_ms, -units)):
            later: list[tuple[int, Budget, int, bool]] = []
            while self.changes and self.changes[-1][0] > when:
                later.append(self.changes.pop())
            self.changes.append((when, leaf, more, charged))
            self.changes.extend(reversed(later))
            if self.usage is UsageMode.DECAY:
                self._fade(leaf, more, when, now_ms, charged=charged)
        self.advance(now_ms)

    def least_charged(self, leaf: Budget, since_ms: int, until_ms: int, now_ms: int) -> int | None:
        """Return the fewest units that a leaf was charged for at any moment of an interval; None outside the window."""
        since_ms = max(since_ms, now_ms - self.window_ms, self.known_from_ms)
        if since_ms >= until_ms:
            return None
        level = leaf.charged.trailing
        moments: dict[int, int] = {since_ms: level}
        for when, budget, units, charged in self.changes:
            if when >= until_ms:
                break
            if charged and leaf in budget.path:
                level += units
            moments[max(when, since_ms)] = level
        return min(moments.values())

    def set_capacity(self, gpus: int, now_ms: int) -> None:
        """Take note of the schedulable GPUs."""
        if gpus == self.capacity_units:
            return
        if self.usage is UsageMode.DECAY:
            self.fading_capacity.add((gpus - self.capacity_units) << BITS, now_ms, now_ms, self.half_life_ms)
        self.capacity_integral = self.capacity_integral_at(now_ms)
        self.capacity_as_of_ms = now_ms
        self.capacity_units = gpus
        self.peak_units = max(self.peak_units, gpus)
        self.capacity_changes.append((now_ms, gpus))

    def follow(self, policy: Policy, now_ms: int) -> None:
        """Count as a policy says from now on."""
        self.set_window(policy.window_ms, policy.min_runtime_cap_ms, now_ms)
        self.counts_commitment = policy.commitment and policy.usage is not UsageMode.INSTANT
        faded_by = self.half_life_ms if self.usage is UsageMode.DECAY else None
        self.usage = policy.usage
        if policy.usage is UsageMode.DECAY and policy.half_life_ms != faded_by:
            self.half_life_ms = policy.half_life_ms
            self._fade_what_is_known(now_ms)

    def set_window(self, window_ms: int, floor_ms: int, now_ms: int) -> None:
        """Adopt another window. A shorter one forgets at once; a longer one fills up from what is still known.

        Use and entitlement are always taken over the same stretch, so nobody gains or loses by the change itself.
        """
        self.floor_ms = floor_ms
        if window_ms == self.window_ms:
            return
        edge = now_ms - self.window_ms
        for budget in self._all():
            for use in (budget.charged, budget.uncharged):
                use.hold(0, now_ms)
        if window_ms < self.window_ms:
            self._forget_until(edge, now_ms - window_ms)
        else:
            # What left the old window is forgotten: it is as if all that was held at the old edge had begun there.
            opening = self._held_at_the_edge(edge)
            self.known_from_ms = max(self.known_from_ms, edge)
            for budget in self._all():
                budget.charged.trailing = budget.uncharged.trailing = 0
            self.changes.extendleft(reversed(opening))
            self.trailing_integral = self.capacity_trailing_at(now_ms)
            self.trailing_as_of_ms = now_ms - window_ms
            self.capacity_changes.appendleft((edge, self.trailing_gpus))
            self.trailing_gpus = 0
        self.window_ms = window_ms
        self.advance(now_ms)

    def _forget_until(self, edge: int, new_edge: int) -> None:
        """Take what was held between two edges of the window out of it. Use is settled at the present."""
        for budget in self._all():
            for use in (budget.charged, budget.uncharged):
                use.gpu_ms -= use.trailing * (new_edge - edge)
        while self.changes and self.changes[0][0] <= new_edge:
            when, leaf, gpus, charged = self.changes.popleft()
            for budget in leaf.path:
                use = budget.charged if charged else budget.uncharged
                use.gpu_ms -= gpus * (new_edge - when)
                use.trailing += gpus

    def change_to(self, shares: tuple[BudgetShare, ...], change: str, now_ms: int) -> list[Budget]:
        """Make the tree what `shares` says; return the budgets that take no work any more.

        Source: `fair-share.md`, section 3.1. Effective quotas are products down the path, rounded by largest
        remainder so that siblings add up to what was given out.
        """
        self.change = change
        named = {share.budget for share in shares}
        lost: list[Budget] = []
        for id_ in sorted(self.by_id, reverse=True):
            if id_ not in named:
                budget = self.by_id.pop(id_)
                budget.closed = True
                budget.quota_nano = budget.fraction_nano = 0
                if budget.parent is not None:
                    budget.parent.children.pop(id_, None)
                self.closed_in_use.append(budget)
                lost.append(budget)
        leaves_before = {id_ for id_, budget in self.by_id.items() if not budget.children}
        for share in shares:
            budget_or_none = self.by_id.get(share.budget)
            if budget_or_none is None:
                parent_id = parent_of(share.budget)
                parent = self.root if parent_id is None else self.by_id[parent_id]
                budget_or_none = self.by_id[share.budget] = parent.children[share.budget] = Budget(
                    self, share.budget, parent
                )
                for use in (budget_or_none.charged, budget_or_none.uncharged):
                    use.as_of_ms = now_ms
            budget_or_none.fraction_nano = share.fraction_nano
            budget_or_none.managers = share.managers
            budget_or_none.max_allocated_gpus = share.max_allocated_gpus
            budget_or_none.max_unallocated_gpus = share.max_unallocated_gpus
        self._set_quotas(now_ms)
        lost.extend(self.by_id[id_] for id_ in sorted(leaves_before) if self.by_id[id_].children)
        self.forget_closed()
        for budget in self.by_id.values():
            budget.forks.clear()
        return lost

    def forget_closed(self) -> None:
        """Drop removed budgets of which nothing runs and nothing is left inside the window."""
        in_window = {id(budget) for change in self.changes for budget in change[1].path}
        self.closed_in_use = [
            budget
            for budget in self.closed_in_use
            if id(budget) in in_window or budget.charged.held or budget.uncharged.held or budget.commitment_fixed
        ]

    def _set_quotas(self, now_ms: int) -> None:
        integral = self.capacity_integral_at(now_ms)
        trailing = self.capacity_trailing_at(now_ms)
        for budget in self.root.below():
            children = sorted(budget.children.values(), key=lambda child: child.id)
            exact = [budget.quota_nano * child.fraction_nano for child in children]
            quotas = [value // WHOLE for value in exact]
            spare = sum(exact) // WHOLE - sum(quotas)
            by_remainder = sorted(range(len(children)), key=lambda i: (-(exact[i] % WHOLE), children[i].id))
            for i in by_remainder[:spare]:
                quotas[i] += 1
            for child, quota in zip(children, quotas, strict=True):
                if not child.segments or child.segments[-1][1] != quota:
                    child.segments.append((integral, quota))
                    if self.usage is UsageMode.DECAY:
                        less = (child.quota_nano - quota) * self.fading_capacity_at(now_ms)
                        child.fading_quota.add(less, now_ms, now_ms, self.half_life_ms)
                while len(child.segments) > 1 and child.segments[1][0] <= trailing:
                    child.segments.pop(0)
                child.quota_nano = quota

    def _fade_what_is_known(self, now_ms: int) -> None:
        """Begin usage mode decay with what the window knows; use and entitlement are taken over the same stretch."""
        edge, half_life = now_ms - self.window_ms, self.half_life_ms
        for budget in self._all():
            budget.fading_charged, budget.fading_uncharged, budget.fading_quota = FadingSum(), FadingSum(), FadingSum()
        for when, leaf, gpus, charged in (*self._held_at_the_edge(edge), *self.changes):
            self._fade(leaf, gpus, when, now_ms, charged=charged)

        # Quotas are known by the capacity integral at which they began: walk the capacity to find when that was.
        changes: dict[int, list[tuple[Budget, int]]] = {}
        at_edge = self.capacity_trailing_at(now_ms)
        for budget in self.root.below():
            before = 0
            for begin, quota in budget.segments:
                if begin > at_edge:
                    changes.setdefault(begin, []).append((budget, before - quota))
                before = quota
        self.fading_capacity = taken = FadingSum()
        begins = deque(sorted(changes))
        integral, level = at_edge, 0
        steps = [(edge, self.trailing_gpus), *self.capacity_changes]
        for number, (when, gpus) in enumerate(steps):
            taken.add((gpus - level) << BITS, when, when, half_life)
            level = gpus
            until = steps[number + 1][0] if number + 1 < len(steps) else now_ms
            end = integral + level * (until - when)
            while begins and begins[0] <= end:
                begin = begins.popleft()
                at_ms = when + (begin - integral) // level if level else when
                capacity = fading_time(level, taken, at_ms, half_life)
                for budget, less in changes[begin]:
                    budget.fading_quota.add(less * capacity, at_ms, now_ms, half_life)
            integral = end

    def _held_at_the_edge(self, edge: int) -> list[tuple[int, Budget, int, bool]]:
        """Return what every budget held by itself, not through its children, one window ago."""
        own = {id(budget): (budget.charged.trailing, budget.uncharged.trailing) for budget in self._all()}
        for budget in self._all():
            if budget.parent is not None:
                charged, uncharged = own[id(budget.parent)]
                own[id(budget.parent)] = (charged - budget.charged.trailing, uncharged - budget.uncharged.trailing)
        opening: list[tuple[int, Budget, int, bool]] = []
        for budget in self._all():
            charged, uncharged = own[id(budget)]
            if charged:
                opening.append((edge, budget, charged, True))
            if uncharged:
                opening.append((edge, budget, uncharged, False))
        return opening

    def _all(self) -> list[Budget]:
        return [*self.root.below(), *self.closed_in_use]


#: What a share says of a budget, besides its name.
_settings_of = attrgetter("fraction_nano", "managers", "max_allocated_gpus", "max_unallocated_gpus")


def _in_seconds(fixed: int) -> int:
    """Return a fading time in GPU-milliseconds, to the nearest GPU-second: what lies below that is rounding."""
    return max(0, (fixed + (SECOND * ONE >> 1)) // (SECOND * ONE)) * SECOND
