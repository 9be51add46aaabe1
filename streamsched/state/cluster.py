"""All that is known of one cluster at one cursor, and the one gate through which it changes.

Time passes first, then the fact is folded: whatever a moment brings by itself (a protection that ends, a deadline, a
change that leaves the window) has happened before anything that is reported at that moment.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import assert_never

from streamsched.errors import LedgerGapError, ReplayDivergenceError
from streamsched.model.commands import Command, Effects, StopReason
from streamsched.model.events import (
    BudgetTreeChanged,
    CommandAccepted,
    Event,
    LedgerSkipped,
    NodeDrainChanged,
    NodeHealth,
    NodeHealthChanged,
    NodeInventoryReported,
    NodeRepairBegan,
    NodesRelabelled,
    PolicyAdopted,
    ProtocolActivated,
    Record,
    Rejected,
    RoundProposed,
    RunExtended,
    RunReleased,
    RunStarted,
    StateHashed,
    Tick,
    Unreadable,
    UsageAdjusted,
    WorkloadCancelled,
    WorkloadReprioritized,
    WorkloadSubmitted,
)
from streamsched.model.policy import DEFAULT_POLICY, Policy
from streamsched.state import machines, recoveries, requests, rounds, runs
from streamsched.state.backlog import Backlog
from streamsched.state.dispatch import Dispatch
from streamsched.state.disruption import DisruptionBudget
from streamsched.state.inventory import Inventory, Node, RunKey
from streamsched.state.reasons import Ignored
from streamsched.state.recoveries import Recovering
from streamsched.state.reservations import Reservation
from streamsched.state.timers import Due, Timers
from streamsched.state.usage import Budget, BudgetTree
from streamsched.state.workloads import Finished, Workload

#: A digest of the whole state is recorded after so many records, or after as many as the state has entries when those
#: are more: a digest reads every entry, so its cost for each record stays the same however large the state.
HASH_EVERY = 16_384
#: The protocol that this code folds.
PROTOCOL = 1
#: The layout in which `streamsched.state.snapshot` freezes a state. Raise it with any change of those bytes: snapshots
#: and digests of another layout are not read and not compared, and the ledger is folded instead.
LAYOUT = 4


@dataclass(frozen=True, slots=True)
class SourceGap:
    """Records of a source that never reached the ledger: `found` came where `expected` should have."""

    src: str
    expected: int
    found: int
    cursor: int


class ClusterState:
    """All that is known of one cluster at one cursor. Changed by `apply` and by nothing else."""

    def __init__(self, policy: Policy = DEFAULT_POLICY) -> None:
        #: Records folded so far, which is the cursor of the next one.
        self.next_cursor = 0
        #: The clock of the core: the latest append time seen.
        self.now_ms = 0
        self.protocol = PROTOCOL
        self.policy = policy
        #: How many policies have been adopted.
        self.policy_version = 0
        self.closed_round = 0
        self.last_tick = 0

        self.workloads: dict[str, Workload] = {}
        self.finished: dict[str, Finished] = {}
        #: The same, oldest first, with those that were forgotten before their time. Derived.
        self.ended: deque[Finished] = deque()
        self.allocated = Backlog()
        self.unallocated = Backlog()
        self.inventory = Inventory()
        self.inventory.follow(policy)
        self.budgets = BudgetTree(policy.window_ms, policy.min_runtime_cap_ms)
        self.budgets.follow(policy, 0)
        #: Changes of the budget tree that have yet to take effect, in the order in which they will.
        self.scheduled: list[BudgetTreeChanged] = []
        #: Adjustments of usage by id, so that a retry is seen, and when they were made.
        self.adjustments: dict[str, int] = {}
        #: Health of nodes that have not yet said what they are.
        self.awaited_nodes: dict[str, tuple[NodeHealth, str | None, bool]] = {}

        #: The last sequence number folded, by source.
        self.sources: dict[str, int] = {}
        self.gaps: list[SourceGap] = []
        self.rejected = 0
        self.ignored: dict[str, int] = {}
        self.void: dict[str, int] = {}

        self.dispatch = Dispatch()

        #: Promises by claimant, in the order in which they were made.
        self.reservations: dict[str, Reservation] = {}
        #: Gangs that have lost nodes, in the order in which that was noticed.
        self.recoveries: dict[str, Recovering] = {}
        #: Preemptions of allocated work that are not forgiven yet, by pool.
        self.disruption: dict[str, DisruptionBudget] = {}

        #: Digests of recent states by the number of records folded, until they have been recorded or compared.
        self.digests: dict[int, str] = {}
        self.hashed = 0
        self.next_hash = HASH_EVERY

        # Derived: set again by `thaw`, no part of the digest.
        self.timers = Timers()
        #: Allocated runs past their protection that nobody stops yet, by leaf.
        self.unprotected: dict[Budget, dict[RunKey, Workload]] = {}
        #: Nodes on which nothing stays past its protection.
        self.draining: dict[str, None] = {}
        #: Rises when something else is possible for everybody: a reservation came, came due or ended.
        self.matured = 0
        #: Rises when a candidate has waited long enough for more to be done for it, or no longer keeps others waiting.
        self.waited = 0
        self.effects = Effects()

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> dict[str, Node]:
        """All nodes by id."""
        return self.inventory.nodes

    @property
    def next_wakeup_ms(self) -> int | None:
        """When time alone changes something, if nothing else happens before; None for never."""
        due_ms = self.timers.next_ms(self)
        sent_ms = self.dispatch.oldest_ms()
        if sent_ms is not None and (due_ms is None or sent_ms + self.policy.resend_ms < due_ms):
            due_ms = sent_ms + self.policy.resend_ms
        change_ms = self.scheduled[0].effective_ms if self.scheduled else None
        if change_ms is not None and (due_ms is None or change_ms < due_ms):
            due_ms = change_ms
        return due_ms

    @property
    def stirred(self) -> tuple[int, int, int, str | None, int, int, int, int]:
        """Return what may make the next decision differ from the last: while it stays equal, so does an empty one.

        No part of the state: the numbers start anew after a restart.
        """
        return (
            self.inventory.gains,
            self.allocated.additions,
            self.unallocated.additions,
            self.budgets.change,
            self.policy_version,
            self.matured + self.waited,
            self.budgets.openings,
            self.closed_round,
        )

    def unanswered_commands(self) -> list[Command]:
        """Return the commands that no node has acknowledged, in the order in which they were issued.

        A scheduler that goes live sends them first: the one before it may have died between the fold and the send.
        """
        return self.dispatch.unanswered()

    # --- the gate -----------------------------------------------------------------------------------------------------

    def apply(self, record: Record) -> Effects:
        """Fold one ledger record into the state; return what the shells must now do.

        Total and deterministic. A fact has already happened, so none is refused: one that is repeated, or that another
        overtook, changes nothing and is counted.

        Raises:
            LedgerGapError: The record is not the next one.
            ReplayDivergenceError: A recorded digest differs from this state's.
        """
        if record.cursor != self.next_cursor:
            raise LedgerGapError(self.next_cursor, record.cursor)
        self.next_cursor += 1
        self.effects = effects = Effects()
        if record.append_ms > self.now_ms:
            self.now_ms = record.append_ms
        self._let_time_pass()

        event = record.event
        if isinstance(event, Unreadable):
            self.ignore(Ignored.UNREADABLE)
        elif event.src is None or self._is_next_of_source(event.src, event.seq or 0):
            self._fold(event)

        if self.draining:
            machines.note_empty(self)
        if self.inventory.capacity_units != self.budgets.capacity_units:
            self.budgets.set_capacity(self.inventory.capacity_units, self.now_ms)
        if self.next_cursor == self.next_hash:
            self._hash()
        return effects

    def _fold(self, event: Event) -> None:
        match event:  # The frequent ones first.
            case CommandAccepted():
                self.dispatch.acknowledge(event.node, event.command)
            case RunStarted():
                runs.start(self, event)
            case RunReleased():
                runs.release(self, event)
            case WorkloadSubmitted():
                requests.submit(self, event)
            case RoundProposed():
                rounds.close_round(self, event)
            case Tick():
                self._tick(event)
            case NodeHealthChanged():
                machines.set_health(self, event)
            case NodeInventoryReported():
                machines.take_inventory(self, event)
            case WorkloadCancelled():
                requests.cancel(self, event)
            case WorkloadReprioritized():
                requests.reprioritize(self, event)
            case RunExtended():
                requests.extend(self, event)
            case BudgetTreeChanged():
                requests.change_budgets(self, event)
            case UsageAdjusted():
                requests.adjust_usage(self, event)
            case PolicyAdopted():
                requests.adopt(self, event)
            case NodesRelabelled():
                machines.relabel(self, event)
            case NodeDrainChanged():
                machines.set_drain(self, event)
            case NodeRepairBegan():
                machines.begin_repair(self, event)
            case Rejected():
                requests.reject(self, event)
            case StateHashed():
                self._compare_digest(event)
            case ProtocolActivated():
                self.protocol = max(self.protocol, event.protocol)
            case LedgerSkipped():
                pass  # The reader has acted on it before it folded the record that is skipped.
            case _:
                assert_never(event)

    def _is_next_of_source(self, src: str, seq: int) -> bool:
        """Keep the high-water mark of a source; say whether the record is new."""
        seen = self.sources.get(src, -1)
        if seq <= seen:
            self.ignore(Ignored.REPEATED)
            return False
        if seq > seen + 1:
            self.gaps.append(SourceGap(src, seen + 1, seq, self.next_cursor - 1))
        self.sources[src] = seq
        return True

    # --- time ---------------------------------------------------------------------------------------------------------

    def _let_time_pass(self) -> None:
        now = self.now_ms
        while self.scheduled and (self.scheduled[0].effective_ms or 0) <= now:
            requests.take_effect(self, self.scheduled.pop(0))
        self.budgets.advance(now)
        if self.timers.is_any_due(now):
            for node in self.timers.holds_over(now, self.nodes):
                machines.release_hold(self, node)
            for workload in self.timers.protections_over(now, self.workloads):
                runs.end_protection(self, workload)
            for due, workload in self.timers.come_due(self):
                self._come_due(due, workload)
        kept_since_ms = now - self.policy.finished_kept_ms
        while self.ended and self.ended[0].at_ms <= kept_since_ms:
            first = self.ended.popleft()
            if self.finished.get(first.workload) is first:
                del self.finished[first.workload]
        while self.adjustments:
            id_, made_ms = next(iter(self.adjustments.items()))
            if made_ms + self.policy.finished_kept_ms > now:
                break
            del self.adjustments[id_]

    def _come_due(self, due: Due, workload: Workload) -> None:
        match due:
            case Due.HOLD_OVER:
                self.queue(workload)
                self.touch(workload)
            case Due.PATIENCE_OVER:
                self.waited += 1
            case Due.RESERVATION_DUE:
                self.matured += 1
            case Due.RESERVATION_OVER:
                rounds.end_reservation(self, workload.id)
            case Due.STOP_OVERDUE:
                machines.give_up(self, workload)
            case Due.WARNING:
                runs.warn(self, workload)
            case Due.RECOVERY_WIDENS:
                recoveries.widen(self, workload)
            case Due.PLAN_EXPIRES:
                rounds.fail_plan(self, workload, setback=True)
            case Due.START_DEADLINE:
                runs.stop(self, workload, StopReason.START_DEADLINE)
            case Due.TIMEOUT:
                runs.stop(self, workload, StopReason.TIMED_OUT)
            case _:
                assert_never(due)

    def _tick(self, fact: Tick) -> None:
        if fact.tick <= self.last_tick:
            self.ignore(Ignored.STALE_TICK)
            return
        self.last_tick = fact.tick
        self.effects.commands.extend(self.dispatch.send_again(self.now_ms - self.policy.resend_ms, self.now_ms))

    # --- digests ------------------------------------------------------------------------------------------------------

    def _hash(self) -> None:
        # Imported late, since both modules need each other.
        from streamsched import __version__
        from streamsched.state.snapshot import digest

        entries = len(self.workloads) + len(self.finished) + len(self.budgets.changes)
        self.next_hash = self.next_cursor + max(HASH_EVERY, entries)
        value = digest(self)
        self.digests = {self.next_cursor: value}
        self.effects.hash = StateHashed(folded=self.next_cursor, digest=value, build=__version__, layout=LAYOUT)

    def _compare_digest(self, fact: StateHashed) -> None:
        self.hashed = max(self.hashed, fact.folded)
        derived = self.digests.get(fact.folded) if fact.layout == LAYOUT else None
        if derived is not None and derived != fact.digest:
            raise ReplayDivergenceError(fact.folded, fact.digest, derived)

    # --- small steps of those who fold --------------------------------------------------------------------------------

    def remember(self, finished: Finished) -> None:
        """Keep what became of a workload, for as long as the policy says."""
        self.finished[finished.workload] = finished
        self.ended.append(finished)

    def next_command_id(self) -> str:
        """Return the id of the next command that this record gives rise to."""
        return f"{self.next_cursor - 1}/{len(self.effects.commands)}"

    def issue(self, command: Command) -> None:
        """Let a command go out."""
        self.effects.commands.append(command)
        is_lost = self.nodes[command.node].health is NodeHealth.LOST
        self.dispatch.issue(command, self.now_ms, is_lost=is_lost)

    def backlog_of(self, workload: Workload) -> Backlog:
        """Return the backlog of its class."""
        return self.allocated if workload.is_allocated else self.unallocated

    def expose(self, workload: Workload) -> None:
        """Let an allocated run past its protection be a victim."""
        run = workload.run
        if run is None:
            return
        key = (workload.id, run.attempt)
        self.unprotected.setdefault(workload.budget, {})[key] = workload
        for node_id, mask in run.held.items():
            node = self.nodes[node_id]
            node.unprotected[key] = mask
            self.inventory.refile(node)

    def shield(self, workload: Workload) -> None:
        """Let a run no longer be chosen as a victim: it is protected again, or it ends."""
        run = workload.run
        runs_of_leaf = self.unprotected.get(workload.budget)
        if run is None or runs_of_leaf is None:
            return
        key = (workload.id, run.attempt)
        if runs_of_leaf.pop(key, None) is None:
            return
        if not runs_of_leaf:
            del self.unprotected[workload.budget]
        for node_id in run.held:
            node = self.nodes[node_id]
            node.unprotected.pop(key, None)
            self.inventory.refile(node)

    def queue(self, workload: Workload) -> None:
        """File a workload in its backlog, and set what its wait brings."""
        self.backlog_of(workload).add(workload)
        self.timers.await_patience(workload, self.policy, self.now_ms)

    def touch(self, workload: Workload) -> None:
        """Tell the views that a workload and the budgets above it changed."""
        effects = self.effects
        if workload.id in effects.workloads:
            return
        effects.workloads[workload.id] = None
        for budget in workload.budget.path:
            effects.budgets[budget.id] = None

    def ignore(self, why: Ignored) -> None:
        """Count a record that changed nothing."""
        self.ignored[why] = self.ignored.get(why, 0) + 1
