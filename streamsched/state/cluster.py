"""All that is known of one cluster at one cursor, and the one gate through which it changes.

Time passes first, then the fact is folded: whatever a moment brings by itself (a protection that ends, a deadline, a
change that leaves the window) has happened before anything that is reported at that moment.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum, StrEnum
from typing import assert_never

from streamsched.errors import LedgerGapError, ReplayDivergenceError
from streamsched.model.commands import Command, Effects, Place, Receipt, ReceiptStatus, Stop, StopReason
from streamsched.model.events import (
    BudgetTreeChanged,
    CommandAccepted,
    LedgerSkipped,
    NodeHealth,
    NodeHealthChanged,
    NodeInventoryReported,
    PolicyAdopted,
    ProposedPlacement,
    ProtocolActivated,
    Record,
    Rejected,
    ReleaseOutcome,
    RoundProposed,
    RunReleased,
    RunStarted,
    StateHashed,
    Tick,
    Unreadable,
    WorkloadCancelled,
    WorkloadReprioritized,
    WorkloadSubmitted,
)
from streamsched.model.identifiers import command_order
from streamsched.model.policy import DEFAULT_POLICY, Policy
from streamsched.model.quantities import MINUTE, SECOND, format_duration
from streamsched.state.backlog import Backlog
from streamsched.state.inventory import Inventory, Node, RunKey
from streamsched.state.usage import Budget, BudgetTree
from streamsched.state.workloads import Commitment, Finished, Phase, Run, Workload, contract_fingerprint

#: A digest of the whole state is recorded after so many records.
HASH_EVERY = 16_384
#: The protocol that this code folds.
PROTOCOL = 1
#: Back-off after an infrastructure failure: doubles from the first to the last.
_SETBACK_FIRST_MS = 15 * SECOND
_SETBACK_LAST_MS = 30 * MINUTE


class Ignored(StrEnum):
    """Why a record changed nothing."""

    UNREADABLE = "unreadable"
    REPEATED = "repeated"
    UNKNOWN_WORKLOAD = "unknown_workload"
    UNKNOWN_NODE = "unknown_node"
    STALE_ATTEMPT = "stale_attempt"
    ALREADY_SO = "already_so"
    STALE_CHANGE = "stale_change"
    ROUND_CLOSED = "round_closed"
    ROUND_NOT_OPEN = "round_not_open"
    STALE_TICK = "stale_tick"


class Void(StrEnum):
    """Why an item of an accepted proposal has no effect."""

    NOT_QUEUED = "not_queued"
    OTHER_ATTEMPT = "other_attempt"
    NO_BUDGET = "no_budget"
    WRONG_SEATS = "wrong_seats"
    NODE_UNAVAILABLE = "node_unavailable"
    GPU_TAKEN = "gpu_taken"
    VICTIM_GONE = "victim_gone"
    VICTIM_PROTECTED = "victim_protected"
    VICTIM_USELESS = "victim_useless"


class Due(IntEnum):
    """What comes due for a workload at a moment; at one moment in this order."""

    HOLD_OVER = 0
    PLAN_EXPIRES = 1
    START_DEADLINE = 2
    TIMEOUT = 3


#: In which phase it comes due for a run; in any other one, it has been overtaken.
_PHASE_OF = {Due.PLAN_EXPIRES: Phase.PLANNED, Due.START_DEADLINE: Phase.BOUND, Due.TIMEOUT: Phase.RUNNING}


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
        self.allocated = Backlog()
        self.unallocated = Backlog()
        self.inventory = Inventory()
        self.budgets = BudgetTree(policy.window_ms, policy.min_runtime_cap_ms)
        #: Health of nodes that have not yet said what they are.
        self.awaited_nodes: dict[str, tuple[NodeHealth, str | None]] = {}

        #: The last sequence number folded, by source.
        self.sources: dict[str, int] = {}
        self.gaps: list[SourceGap] = []
        self.rejected = 0
        self.ignored: dict[str, int] = {}
        self.void: dict[str, int] = {}

        #: Commands that their node has not acknowledged, by node and id; and when each was last sent, oldest first.
        self.unacknowledged: dict[str, dict[str, Command]] = {}
        self.sent: deque[tuple[int, str, str]] = deque()

        #: Digests of recent states by the number of records folded, until they have been recorded or compared.
        self.digests: dict[int, str] = {}
        self.hashed = 0

        # Derived: rebuilt by `thaw`, no part of the digest.
        self._timers: list[tuple[int, Due, str, int]] = []
        self._protections: list[tuple[int, str, int]] = []
        self._effects = Effects()

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> dict[str, Node]:
        """All nodes by id."""
        return self.inventory.nodes

    @property
    def next_wakeup_ms(self) -> int | None:
        """When time alone changes something, if nothing else happens before; None for never."""
        due = self._timers[0][0] if self._timers else None
        if self.sent:
            resend = self.sent[0][0] + self.policy.resend_ms
            due = resend if due is None else min(due, resend)
        return due

    @property
    def stirred(self) -> tuple[int, int, int, str | None, int]:
        """Return what may make the next decision differ from the last: while it stays equal, so does an empty one.

        No part of the state: the numbers start anew after a restart.
        """
        return (
            self.inventory.gains,
            self.allocated.additions,
            self.unallocated.additions,
            self.budgets.change,
            self.policy_version,
        )

    def unanswered_commands(self) -> list[Command]:
        """Return the commands that no node has acknowledged, in the order in which they were issued.

        A scheduler that goes live sends them first: the one before it may have died between the fold and the send.
        """
        commands = [command for waiting in self.unacknowledged.values() for command in waiting.values()]
        return sorted(commands, key=lambda command: command_order(command.command))

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
        self._effects = effects = Effects()
        if record.append_ms > self.now_ms:
            self.now_ms = record.append_ms
        self._let_time_pass()

        event = record.event
        if isinstance(event, Unreadable):
            self._ignore(Ignored.UNREADABLE)
        elif event.src is None or self._is_next_of_source(event.src, event.seq or 0):
            self._fold(event)

        inventory, timers = self.inventory, self._timers
        if inventory.capacity_gpus != self.budgets.capacity_gpus:
            self.budgets.set_capacity(inventory.capacity_gpus, self.now_ms)
        while timers and not self._is_pending(timers[0]):
            heapq.heappop(timers)
        sent = self.sent
        while sent and sent[0][2] not in self.unacknowledged.get(sent[0][1], ()):
            sent.popleft()
        if self.next_cursor % HASH_EVERY == 0:
            self._hash()
        return effects

    def _fold(self, event: object) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case RunReleased():
                self._release(event)
            case WorkloadSubmitted():
                self._submit(event)
            case RoundProposed():
                self._close_round(event)
            case CommandAccepted():
                self._acknowledge(event.node, event.command)
            case Tick():
                self._tick(event)
            case NodeHealthChanged():
                self._set_health(event)
            case NodeInventoryReported():
                self._take_inventory(event)
            case WorkloadCancelled():
                self._cancel(event)
            case WorkloadReprioritized():
                self._reprioritize(event)
            case BudgetTreeChanged():
                self._change_budgets(event)
            case PolicyAdopted():
                self._adopt(event)
            case Rejected():
                self._reject(event)
            case StateHashed():
                self._compare_digest(event)
            case ProtocolActivated():
                self.protocol = max(self.protocol, event.protocol)
            case LedgerSkipped():
                pass  # The reader has acted on it before it folded the record that is skipped.

    def _is_next_of_source(self, src: str, seq: int) -> bool:
        """Keep the high-water mark of a source; say whether the record is new."""
        seen = self.sources.get(src, -1)
        if seq <= seen:
            self._ignore(Ignored.REPEATED)
            return False
        if seq > seen + 1:
            self.gaps.append(SourceGap(src, seen + 1, seq, self.next_cursor - 1))
        self.sources[src] = seq
        return True

    # --- time ---------------------------------------------------------------------------------------------------------

    def _let_time_pass(self) -> None:
        now = self.now_ms
        self.budgets.advance(now)
        protections = self._protections
        while protections and protections[0][0] <= now:
            until, workload_id, attempt = heapq.heappop(protections)
            workload = self.workloads.get(workload_id)
            run = workload.run if workload is not None else None
            if workload is not None and run is not None and (run.attempt, run.protected_until_ms) == (attempt, until):
                self._drop_commitment(workload)
        timers = self._timers
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)
            if self._is_pending(timer):
                self._come_due(timer[1], self.workloads[timer[2]])
        finished = self.finished
        while finished:
            first = next(iter(finished.values()))
            if first.at_ms + self.policy.finished_kept_ms > now:
                break
            del finished[first.workload]

    def _is_pending(self, timer: tuple[int, Due, str, int]) -> bool:
        """Whether what a timer waits for may still come: a timer is never withdrawn, only overtaken."""
        due_ms, due, workload_id, attempt = timer
        workload = self.workloads.get(workload_id)
        if workload is None or workload.attempt != attempt:
            return False
        if due is Due.HOLD_OVER:
            return workload.run is None and workload.queue_key is None and workload.held_until_ms == due_ms
        # The time is compared too: an id that was forgotten may live again, with attempts from 1.
        return workload.phase is _PHASE_OF[due] and workload.run is not None and workload.run.deadline_ms == due_ms

    def _come_due(self, due: Due, workload: Workload) -> None:
        match due:
            case Due.HOLD_OVER:
                self._backlog_of(workload).add(workload)
                self._touch(workload)
            case Due.PLAN_EXPIRES:
                self._fail_plan(workload, setback=True)
            case Due.START_DEADLINE:
                self._stop(workload, StopReason.START_DEADLINE)
            case Due.TIMEOUT:
                self._stop(workload, StopReason.TIMED_OUT)
            case _:
                assert_never(due)

    def _tick(self, fact: Tick) -> None:
        if fact.tick <= self.last_tick:
            self._ignore(Ignored.STALE_TICK)
            return
        self.last_tick = fact.tick
        late = self.now_ms - self.policy.resend_ms
        again: list[Command] = []
        while self.sent and self.sent[0][0] <= late:
            _, node, id_ = self.sent.popleft()
            command = self.unacknowledged.get(node, {}).get(id_)
            if command is not None:
                again.append(command)
        again.sort(key=lambda command: command_order(command.command))
        for command in again:
            self.sent.append((self.now_ms, command.node, command.command))
        self._effects.commands.extend(again)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _submit(self, fact: WorkloadSubmitted) -> None:
        known = self.workloads.get(fact.workload)
        ended = self.finished.get(fact.workload)
        if ended is not None and ended.phase is Phase.REJECTED and not ended.attempts:
            # It never had an effect, so its id is free: the same request may be welcome now.
            del self.finished[fact.workload]
            ended = None
        if known is not None or ended is not None:
            before = known.fingerprint() if known is not None else ended.fingerprint if ended is not None else ""
            if before == contract_fingerprint(fact):
                self._ignore(Ignored.REPEATED)
                self._answer(fact, ReceiptStatus.ACCEPTED)
            else:
                self._ignore(Ignored.ALREADY_SO)
                self._answer(
                    fact,
                    ReceiptStatus.REJECTED,
                    f"workload: the id {fact.workload!r} is taken by another submission; choose a new id",
                )
            return
        budget = self.budgets.get(fact.budget)
        objection = self._objection_to(fact, budget)
        if objection is not None or budget is None:
            self.finished[fact.workload] = Finished(
                fact.workload,
                Phase.REJECTED,
                objection or "",
                self.next_cursor - 1,
                self.now_ms,
                0,
                contract_fingerprint(fact),
            )
            self._effects.workloads[fact.workload] = None
            self._answer(fact, ReceiptStatus.REJECTED, objection)
            return
        workload = Workload(fact, budget, self.now_ms)
        self.workloads[workload.id] = workload
        self._count_queued(workload, workload.gpus)
        self._backlog_of(workload).add(workload)
        self._touch(workload)
        self._answer(fact, ReceiptStatus.ACCEPTED)

    def _objection_to(self, fact: WorkloadSubmitted, budget: Budget | None) -> str | None:
        """Return why a submission cannot be accepted: the field, the value and the remedy."""
        if budget is None:
            near = get_close_matches(fact.budget, sorted(self.budgets.by_id), n=3)
            leaves = near or [leaf.id for leaf in self.budgets.leaves()[:10]]
            known = f"; did you mean {', '.join(leaves)}?" if leaves else "; no budget exists yet, create one first"
            return f"budget: there is no budget {fact.budget!r}{known}"
        if budget.children:
            inside = ", ".join(sorted(budget.children)[:5])
            return f"budget: {fact.budget!r} is not a leaf; submit to one of its children ({inside}, ...)"
        policy = self.policy
        if fact.min_runtime_ms:
            if not policy.min_runtime_floor_ms <= fact.min_runtime_ms <= policy.min_runtime_cap_ms:
                return (
                    f"min_runtime_ms: {fact.min_runtime_ms} ({format_duration(fact.min_runtime_ms)}) is outside "
                    f"{format_duration(policy.min_runtime_floor_ms)} to {format_duration(policy.min_runtime_cap_ms)}; "
                    "ask for a time inside, or for 0, which is unallocated: free and displaced at any time"
                )
            if not budget.quota_nano:
                return (
                    f"budget: {fact.budget!r} has a quota of 0, and allocated work needs one that covers it; "
                    "use another budget, or min_runtime_ms 0 for unallocated time"
                )
        pools = list(self.inventory.candidates(fact.pool))
        if pools:
            largest = max(pool.largest_gang(fact.gpus_per_rank) for pool in pools)
            if largest < fact.ranks:
                where = f"pool {fact.pool!r}" if fact.pool else "any one pool"
                return (
                    f"ranks: asks for {fact.ranks} ranks of {fact.gpus_per_rank} GPUs, and the largest possible in "
                    f"{where}, with every node healthy and empty, is {largest}; ask for fewer or smaller ranks"
                )
        return None

    def _cancel(self, fact: WorkloadCancelled) -> None:
        workload = self.workloads.get(fact.workload)
        if workload is None:
            self._ignore(Ignored.UNKNOWN_WORKLOAD)
            ended = self.finished.get(fact.workload)
            if ended is not None:
                self._answer(fact, ReceiptStatus.ACCEPTED, f"it had ended before: {ended.phase}")
            else:
                self._answer(fact, ReceiptStatus.REJECTED, f"workload: there is no workload {fact.workload!r}")
            return
        reason = f"cancelled: {fact.reason}" if fact.reason else "cancelled"
        self._touch(workload)
        if workload.phase is Phase.QUEUED:
            self._dequeue(workload)
            self._finish(workload, Phase.CANCELLED, reason)
        elif workload.phase is Phase.PLANNED:
            self._withdraw_claims(workload)
            self._finish(workload, Phase.CANCELLED, reason)
        elif workload.cancelled:
            self._ignore(Ignored.ALREADY_SO)
        else:
            workload.cancelled = True
            if workload.phase is not Phase.STOPPING:
                self._stop(workload, StopReason.CANCELLED)
        self._answer(fact, ReceiptStatus.ACCEPTED)

    def _reprioritize(self, fact: WorkloadReprioritized) -> None:
        workload = self.workloads.get(fact.workload)
        if workload is None:
            self._ignore(Ignored.UNKNOWN_WORKLOAD)
            self._answer(fact, ReceiptStatus.REJECTED, f"workload: no live workload {fact.workload!r}")
            return
        if workload.queue_key is not None:
            backlog = self._backlog_of(workload)
            backlog.remove(workload)
            workload.priority = fact.priority
            backlog.add(workload)
        workload.priority = fact.priority
        self._touch(workload)
        self._answer(fact, ReceiptStatus.ACCEPTED)

    def _change_budgets(self, fact: BudgetTreeChanged) -> None:
        if fact.change == self.budgets.change:
            self._ignore(Ignored.REPEATED)
            self._answer(fact, ReceiptStatus.ACCEPTED)
            return
        if fact.previous != self.budgets.change:
            self._ignore(Ignored.STALE_CHANGE)
            self._answer(
                fact,
                ReceiptStatus.REJECTED,
                f"previous: the change was made on {fact.previous!r}, but the tree is at {self.budgets.change!r}; "
                "look at the tree as it is now and make the change again",
            )
            return
        for budget in self.budgets.change_to(fact.budgets, fact.change, self.now_ms):
            why = f"budget {budget.id!r} " + ("was removed" if budget.closed else "is no leaf any more")
            waiting = [w for w in self.workloads.values() if w.budget is budget and w.phase is Phase.QUEUED]
            for workload in sorted(waiting, key=lambda w: w.id):
                self._dequeue(workload)
                self._finish(workload, Phase.REJECTED, f"{why} by change {fact.change!r}; submit to another budget")
        for id_ in sorted(self.budgets.by_id):
            self._effects.budgets[id_] = None
        self._answer(fact, ReceiptStatus.ACCEPTED)

    def _adopt(self, fact: PolicyAdopted) -> None:
        self.policy = fact.policy
        self.policy_version += 1
        self.budgets.set_window(fact.policy.window_ms, fact.policy.min_runtime_cap_ms, self.now_ms)

    def _reject(self, fact: Rejected) -> None:
        self.rejected += 1
        if fact.workload is not None:
            self._effects.receipts.append(
                Receipt(
                    workload=fact.workload,
                    status=ReceiptStatus.REJECTED,
                    cursor=self.next_cursor - 1,
                    corr=fact.corr,
                    reason=_as_reason(fact.reason),
                )
            )

    # --- rounds -------------------------------------------------------------------------------------------------------

    def _close_round(self, proposal: RoundProposed) -> None:
        if proposal.round != self.closed_round + 1:
            closed = proposal.round <= self.closed_round
            self._ignore(Ignored.ROUND_CLOSED if closed else Ignored.ROUND_NOT_OPEN)
            return
        self.closed_round = proposal.round
        for item in proposal.placements:
            objection = self._objection_to_placement(item)
            if objection is None:
                self._accept(item)
            else:
                self.void[objection] = self.void.get(objection, 0) + 1

    def _objection_to_placement(self, item: ProposedPlacement) -> Void | None:
        """Check an item against the state as it is now, not as it was when somebody decided."""
        workload = self.workloads.get(item.workload)
        if workload is None or workload.queue_key is None:
            return Void.NOT_QUEUED
        if item.attempt != workload.attempt + 1:
            return Void.OTHER_ATTEMPT
        if workload.is_allocated and not workload.budget.quota_nano:
            return Void.NO_BUDGET
        wanted = _masks_by_node(item, workload)
        if wanted is None:
            return Void.WRONG_SEATS
        freed: dict[str, int] = {}
        if len({victim.workload for victim in item.victims}) < len(item.victims):
            return Void.VICTIM_GONE
        for victim in item.victims:
            other = self.workloads.get(victim.workload)
            run = other.run if other is not None else None
            if other is None or run is None or run.attempt != victim.attempt or run.stop is not None:
                return Void.VICTIM_GONE
            if other.is_allocated or not workload.is_allocated:
                return Void.VICTIM_PROTECTED
            if other.phase is Phase.PLANNED or not any(wanted.get(id_, 0) & mask for id_, mask in run.held.items()):
                return Void.VICTIM_USELESS
            for id_, mask in run.held.items():
                freed[id_] = freed.get(id_, 0) | mask
        pool = workload.pool
        for node_id, mask in wanted.items():
            node = self.nodes.get(node_id)
            if node is None or node.health is not NodeHealth.HEALTHY:
                return Void.NODE_UNAVAILABLE
            if pool is None:
                pool = node.pool
            if node.pool != pool:
                return Void.WRONG_SEATS
            if mask & ~(node.free_mask | freed.get(node_id, 0)):
                return Void.GPU_TAKEN
        return None

    def _accept(self, item: ProposedPlacement) -> None:
        workload = self.workloads[item.workload]
        self._dequeue(workload)
        workload.attempt += 1
        run = Run(item.attempt, item.seats, workload.gpus, self.next_cursor - 1, self.now_ms)
        workload.run = run
        if workload.is_allocated:
            run.commitment = Commitment.WHOLE
            committed = run.gpus * workload.effective_min_ms
            for budget in workload.budget.path:
                budget.commitment_fixed += committed
        self._touch(workload)
        if not item.victims:
            self._bind(workload, run)
            return

        workload.phase = Phase.PLANNED
        key = (workload.id, run.attempt)
        wanted = _masks_by_node(item, workload) or {}
        for node_id, mask in wanted.items():
            node = self.inventory.nodes[node_id]
            node.claims[key] = mask
            if awaited := mask & ~node.free_mask:
                run.awaited[node_id] = awaited
            self.inventory.refile(node)
            self._effects.nodes[node_id] = None
        grace = self.policy.unallocated_grace_ms
        self._wake(self.now_ms + grace + self.policy.stop_timeout_ms, Due.PLAN_EXPIRES, workload, run)
        for victim in item.victims:
            self._stop(self.workloads[victim.workload], StopReason.PREEMPTED, beneficiary=workload.id)

    def _bind(self, workload: Workload, run: Run) -> None:
        """Give a run its GPUs and tell its nodes."""
        now, inventory = self.now_ms, self.inventory
        key = (workload.id, run.attempt)
        workload.phase = Phase.BOUND
        run.bound_ms = now
        for seat in run.seats:
            run.held[seat.node] = run.held.get(seat.node, 0) | seat.gpu_mask
        allocated = workload.is_allocated
        start_by = now + self.policy.start_deadline_ms
        leader = run.seats[0].node
        single = len(run.held) == 1
        for node_id, mask in run.held.items():
            node = inventory.nodes[node_id]
            node.claims.pop(key, None)
            node.held[key] = mask
            if not allocated:
                node.preemptible[key] = mask
            inventory.refile(node)
            self._effects.nodes[node_id] = None
            place = Place(
                command=self._next_command_id(),
                node=node_id,
                workload=workload.id,
                attempt=run.attempt,
                seats=run.seats if single else tuple(seat for seat in run.seats if seat.node == node_id),
                ranks=workload.ranks,
                leader=leader,
                argv=workload.command,
                start_by_ms=start_by,
            )
            run.places[node_id] = place.command
            self._issue(place)
        self.budgets.hold(workload.budget, run.gpus, now, charged=allocated)
        self._wake(start_by, Due.START_DEADLINE, workload, run)

    def _fail_plan(self, workload: Workload, *, setback: bool) -> None:
        """Give up a plan: its claims are void, and its claimant waits again, where it was in its leaf."""
        self._withdraw_claims(workload)
        self._back_to_queue(workload, hold=setback)

    def _withdraw_claims(self, workload: Workload) -> None:
        run = workload.run
        if run is None:
            return
        self._drop_commitment(workload)
        key = (workload.id, run.attempt)
        for seat in run.seats:
            node = self.inventory.nodes.get(seat.node)
            if node is not None and node.claims.pop(key, None) is not None:
                self.inventory.refile(node)
                self._effects.nodes[node.id] = None
        workload.run = None

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _start(self, fact: RunStarted) -> None:
        workload = self._running(fact.workload, fact.attempt, fact.node)
        if workload is None or workload.run is None:
            return
        run = workload.run
        self._acknowledge(fact.node, run.places[fact.node])
        if fact.node in run.started_on:
            self._ignore(Ignored.ALREADY_SO)
            return
        self._note_start(workload, run, fact.node)

    def _note_start(self, workload: Workload, run: Run, node_id: str) -> None:
        run.started_on[node_id] = None
        if len(run.started_on) < len(run.places) or run.stop is not None:
            return
        run.started_ms = self.now_ms
        run.deadline_ms = None
        workload.phase = Phase.RUNNING
        workload.setbacks = 0
        self._touch(workload)
        if workload.is_allocated:
            least = workload.effective_min_ms
            run.protected_until_ms = until = self.now_ms + least
            if run.commitment is Commitment.WHOLE:
                run.commitment = Commitment.REST
                whole, summed = run.gpus * least, run.gpus * until
                for budget in workload.budget.path:
                    budget.commitment_fixed -= whole
                    budget.commitment_gpus += run.gpus
                    budget.commitment_sum += summed
                heapq.heappush(self._protections, (until, workload.id, run.attempt))
        if workload.timeout_ms is not None:
            self._wake(self.now_ms + workload.timeout_ms, Due.TIMEOUT, workload, run)

    def _release(self, fact: RunReleased) -> None:
        node = self.inventory.nodes.get(fact.node)
        if node is None:
            self._ignore(Ignored.UNKNOWN_NODE)
            return
        key = (fact.workload, fact.attempt)
        if key in node.orphans:
            self._forget_orphan(node, key)
            return
        workload = self._running(fact.workload, fact.attempt, fact.node)
        if workload is None or workload.run is None:
            return
        run = workload.run
        match fact.outcome:
            case ReleaseOutcome.FAILED:
                run.failed += 1
            case ReleaseOutcome.REFUSED:
                run.infrastructure += 1
            case ReleaseOutcome.STOPPED:
                run.stopped += 1
            case ReleaseOutcome.SUCCEEDED:
                if node.id not in run.started_on:
                    self._note_start(workload, run, node.id)  # It has run, though nobody told us of its start.
        mask = self._give_back(workload, run, node)
        self._hand_over(node, mask)
        broken = fact.outcome in (ReleaseOutcome.FAILED, ReleaseOutcome.REFUSED) or (
            fact.outcome is ReleaseOutcome.STOPPED and run.stop is None
        )
        self._after_a_part(workload, broken=broken)

    def _running(self, workload_id: str, attempt: int, node: str) -> Workload | None:
        """Return the workload if this attempt of it holds GPUs on this node; otherwise count the fact as ignored."""
        workload = self.workloads.get(workload_id)
        if workload is None:
            self._ignore(Ignored.STALE_ATTEMPT if workload_id in self.finished else Ignored.UNKNOWN_WORKLOAD)
            return None
        if workload.run is None or workload.run.attempt != attempt or node not in workload.run.held:
            self._ignore(Ignored.STALE_ATTEMPT)
            return None
        return workload

    def _give_back(self, workload: Workload, run: Run, node: Node) -> int:
        """End a run's part on one node; return its GPUs. The charge ends here."""
        key = (workload.id, run.attempt)
        mask = run.held.pop(node.id)
        node.held.pop(key, None)
        node.preemptible.pop(key, None)
        self.inventory.refile(node)
        waiting = self.unacknowledged.get(node.id)
        if waiting:
            for id_ in [id_ for id_, command in waiting.items() if (command.workload, command.attempt) == key]:
                del waiting[id_]
            if not waiting:
                del self.unacknowledged[node.id]
        self.budgets.hold(workload.budget, -mask.bit_count(), self.now_ms, charged=workload.is_allocated)
        self._drop_commitment(workload)
        self._touch(workload)
        self._effects.nodes[node.id] = None
        return mask

    def _hand_over(self, node: Node, mask: int) -> None:
        """Let plans that wait for these GPUs of a node know that they are free."""
        for key in sorted(node.claims):
            claimant = self.workloads[key[0]]
            run = claimant.run
            if run is None or not run.awaited.get(node.id, 0) & mask:
                continue
            run.awaited[node.id] &= ~mask
            if not run.awaited[node.id]:
                del run.awaited[node.id]
            if not run.awaited:
                self._touch(claimant)
                self._bind(claimant, run)

    def _after_a_part(self, workload: Workload, *, broken: bool) -> None:
        """Go on after one node of a gang has ended: the others follow when it is broken; the last one ends the run."""
        run = workload.run
        if run is None:
            return
        if not run.held:
            self._end(workload, run)
        elif broken and run.stop is None:
            self._stop(workload, StopReason.GANG_BROKEN)

    def _stop(self, workload: Workload, reason: StopReason, beneficiary: str | None = None) -> None:
        run = workload.run
        if run is None:
            return
        run.stop = reason
        run.stop_ms = self.now_ms
        run.beneficiary = beneficiary
        workload.phase = Phase.STOPPING
        self._drop_commitment(workload)
        self._touch(workload)
        key = (workload.id, run.attempt)
        grace = self.policy.grace_ms if workload.is_allocated else self.policy.unallocated_grace_ms
        for node_id in run.held:
            node = self.inventory.nodes[node_id]
            if node.preemptible.pop(key, None) is not None:
                self.inventory.refile(node)
            self._effects.nodes[node_id] = None
            self._issue(
                Stop(
                    command=self._next_command_id(),
                    node=node_id,
                    workload=workload.id,
                    attempt=run.attempt,
                    grace_ms=grace,
                    reason=reason,
                    beneficiary=beneficiary,
                )
            )

    def _end(self, workload: Workload, run: Run) -> None:
        """Settle what becomes of a workload whose run has released everything.

        What never started may start elsewhere whatever its contract; what has started is only started again if it can
        be resumed.
        """
        may_requeue = workload.resumable or run.started_ms is None
        if workload.cancelled:
            self._finish(workload, Phase.CANCELLED, "cancelled while it ran")
        elif run.failed:
            self._finish(workload, Phase.FAILED, f"{run.failed} of {len(run.places)} nodes reported a failure")
        elif (
            run.infrastructure
            or run.stop is StopReason.START_DEADLINE
            or (run.stopped and run.stop in (None, StopReason.GANG_BROKEN))
        ):
            if may_requeue:
                self._back_to_queue(workload, hold=run.started_ms is None)
            else:
                self._finish(workload, Phase.FAILED, "a node was lost, and the work cannot be resumed")
        elif not run.stopped:
            self._finish(workload, Phase.SUCCEEDED, "all ranks ended well")
        elif run.stop is StopReason.TIMED_OUT:
            self._finish(workload, Phase.TIMED_OUT, f"ran for {format_duration(workload.timeout_ms or 0)}, its timeout")
        elif may_requeue:
            self._back_to_queue(workload, hold=False)
        else:
            self._finish(workload, Phase.PREEMPTED, f"preempted for {run.beneficiary}, and it cannot be resumed")

    def _back_to_queue(self, workload: Workload, *, hold: bool) -> None:
        """Queue a workload again, first of its priority in its leaf; after an infrastructure failure, not at once."""
        now = self.now_ms
        workload.run = None
        workload.phase = Phase.QUEUED
        workload.requeued = True
        workload.queued_ms = now
        self._touch(workload)
        budget = workload.budget
        self._count_queued(workload, workload.gpus)
        if budget.closed or budget.children:
            self._count_queued(workload, -workload.gpus)
            self._finish(workload, Phase.REJECTED, f"budget {budget.id!r} takes no work any more")
        elif hold:
            workload.setbacks += 1
            wait = min(_SETBACK_FIRST_MS << min(workload.setbacks - 1, 20), _SETBACK_LAST_MS)
            workload.held_until_ms = now + wait
            self._wake(workload.held_until_ms, Due.HOLD_OVER, workload, None)
        else:
            self._backlog_of(workload).add(workload)

    def _finish(self, workload: Workload, phase: Phase, reason: str) -> None:
        self._touch(workload)
        workload.phase = phase
        workload.run = None
        del self.workloads[workload.id]
        self.finished[workload.id] = Finished(
            workload.id, phase, reason, self.next_cursor - 1, self.now_ms, workload.attempt, workload.fingerprint()
        )

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _set_health(self, fact: NodeHealthChanged) -> None:
        node = self.inventory.nodes.get(fact.node)
        if node is None:
            self.awaited_nodes[fact.node] = (fact.health, fact.reason)
            return
        if node.health is fact.health:
            self._ignore(Ignored.ALREADY_SO)
            return
        node.health = fact.health
        node.reason = fact.reason
        node.since_ms = self.now_ms
        self._effects.nodes[node.id] = None
        if fact.health is not NodeHealth.HEALTHY:
            for key in sorted(node.claims):
                self._fail_plan(self.workloads[key[0]], setback=False)
        if fact.health is NodeHealth.LOST:
            for key in sorted(node.held):
                node.orphans[key] = node.held[key]
                self._lose(key, node)
        self.inventory.refile(node)

    def _lose(self, key: RunKey, node: Node) -> None:
        """End a run's part on a node that no longer has it, or that can no longer be asked."""
        workload = self.workloads[key[0]]
        run = workload.run
        if run is None:
            return
        run.infrastructure += 1
        mask = self._give_back(workload, run, node)
        if key not in node.orphans:
            self._hand_over(node, mask)
        self._after_a_part(workload, broken=True)

    def _take_inventory(self, fact: NodeInventoryReported) -> None:
        """Reconcile what a node says with what is known of it: its word on what runs there is final."""
        node = self.inventory.nodes.get(fact.node)
        if node is None:
            node = Node(fact.node, fact.pool, fact.gpus, fact.domains, self.now_ms)
            node.health, node.reason = self.awaited_nodes.pop(fact.node, (NodeHealth.HEALTHY, None))
            self.inventory.add(node)
        elif (node.pool, node.gpus, node.domains) != (fact.pool, fact.gpus, fact.domains):
            moved = node.pool != fact.pool
            self.inventory.remove(node)
            node.pool, node.gpus, node.domains = fact.pool, fact.gpus, fact.domains
            self.inventory.add(node)
            # Whatever had GPUs that are no longer there has lost them.
            for key in sorted(key for key, mask in node.claims.items() if moved or mask & ~node.all_mask):
                self._fail_plan(self.workloads[key[0]], setback=False)
            for key in sorted(key for key, mask in node.held.items() if moved or mask & ~node.all_mask):
                self._lose(key, node)
        node.boot = fact.boot
        self._effects.nodes[node.id] = None
        if fact.watermark is not None:
            self._acknowledge(node.id, fact.watermark)

        reported = {(held.workload, held.attempt): held.gpu_mask for held in fact.runs}
        obeyed = command_order(fact.watermark) if fact.watermark is not None else (-1, -1)
        for key in sorted(key for key in node.held if key not in reported):
            run = self.workloads[key[0]].run
            if run is not None and command_order(run.places[node.id]) <= obeyed:
                self._lose(key, node)
        for key in sorted(key for key in node.orphans if key not in reported):
            self._forget_orphan(node, key)
        for key in sorted(key for key in reported if key not in node.held and key not in node.orphans):
            node.orphans[key] = orphaned = reported[key] & node.unheld_mask
            for (claimant, _), mask in node.claims.items():
                run = self.workloads[claimant].run
                if run is not None and mask & orphaned:
                    run.awaited[node.id] = run.awaited.get(node.id, 0) | mask & orphaned
        for key in sorted(node.orphans):
            if not any(
                (command.workload, command.attempt) == key for command in self.unacknowledged.get(node.id, {}).values()
            ):
                self._issue(
                    Stop(
                        command=self._next_command_id(),
                        node=node.id,
                        workload=key[0],
                        attempt=key[1],
                        grace_ms=self.policy.unallocated_grace_ms,
                        reason=StopReason.UNKNOWN_RUN,
                    )
                )
        self.inventory.refile(node)

    def _forget_orphan(self, node: Node, key: RunKey) -> None:
        mask = node.orphans.pop(key)
        self.inventory.refile(node)
        self._effects.nodes[node.id] = None
        self._hand_over(node, mask)

    # --- commands -----------------------------------------------------------------------------------------------------

    def _next_command_id(self) -> str:
        return f"{self.next_cursor - 1}/{len(self._effects.commands)}"

    def _issue(self, command: Command) -> None:
        self._effects.commands.append(command)
        self.unacknowledged.setdefault(command.node, {})[command.command] = command
        self.sent.append((self.now_ms, command.node, command.command))

    def _acknowledge(self, node: str, command: str) -> None:
        """Strike out a command and all before it: a node obeys in order, and ignores what it has passed."""
        waiting = self.unacknowledged.get(node)
        if not waiting:
            return
        upto = command_order(command)
        for id_ in [id_ for id_ in waiting if command_order(id_) <= upto]:
            del waiting[id_]
        if not waiting:
            del self.unacknowledged[node]

    # --- digests ------------------------------------------------------------------------------------------------------

    def _hash(self) -> None:
        # Imported late, since both modules need each other.
        from streamsched import __version__
        from streamsched.state.snapshot import digest

        value = digest(self)
        self.digests = {self.next_cursor: value}
        self._effects.hash = StateHashed(folded=self.next_cursor, digest=value, build=__version__)

    def _compare_digest(self, fact: StateHashed) -> None:
        self.hashed = max(self.hashed, fact.folded)
        derived = self.digests.get(fact.folded)
        if derived is not None and derived != fact.digest:
            raise ReplayDivergenceError(fact.folded, fact.digest, derived)

    # --- small steps --------------------------------------------------------------------------------------------------

    def _backlog_of(self, workload: Workload) -> Backlog:
        return self.allocated if workload.is_allocated else self.unallocated

    def _dequeue(self, workload: Workload) -> None:
        self._backlog_of(workload).remove(workload)
        self._count_queued(workload, -workload.gpus)
        self._touch(workload)

    def _count_queued(self, workload: Workload, gpus: int) -> None:
        if workload.is_allocated:
            for budget in workload.budget.path:
                budget.queued_gpus += gpus

    def _drop_commitment(self, workload: Workload) -> None:
        run = workload.run
        if run is None or run.commitment is Commitment.NONE:
            return
        if run.commitment is Commitment.WHOLE:
            whole = run.gpus * workload.effective_min_ms
            for budget in workload.budget.path:
                budget.commitment_fixed -= whole
        else:
            summed = run.gpus * (run.protected_until_ms or 0)
            for budget in workload.budget.path:
                budget.commitment_gpus -= run.gpus
                budget.commitment_sum -= summed
        run.commitment = Commitment.NONE
        for budget in workload.budget.path:
            self._effects.budgets[budget.id] = None

    def _wake(self, due_ms: int, due: Due, workload: Workload, run: Run | None) -> None:
        if run is not None:
            run.deadline_ms = due_ms
        heapq.heappush(self._timers, (due_ms, due, workload.id, workload.attempt))

    def _touch(self, workload: Workload) -> None:
        effects = self._effects
        effects.workloads[workload.id] = None
        for budget in workload.budget.path:
            effects.budgets[budget.id] = None

    def _ignore(self, why: Ignored) -> None:
        self.ignored[why] = self.ignored.get(why, 0) + 1

    def _answer(
        self,
        fact: WorkloadSubmitted | WorkloadCancelled | WorkloadReprioritized | BudgetTreeChanged,
        status: ReceiptStatus,
        reason: str | None = None,
    ) -> None:
        self._effects.receipts.append(
            Receipt(
                workload=None if isinstance(fact, BudgetTreeChanged) else fact.workload,
                change=fact.change if isinstance(fact, BudgetTreeChanged) else None,
                status=status,
                cursor=self.next_cursor - 1,
                corr=fact.corr,
                reason=_as_reason(reason),
            )
        )


def _as_reason(text: str | None) -> str | None:
    """Return a text as a `Reason` may look: a receipt that cannot be made would stop every scheduler."""
    if not text:
        return None
    return "".join(letter if (letter >= " " and letter != "\x7f") or letter == "\n" else " " for letter in text[:2_000])


def _masks_by_node(item: ProposedPlacement, workload: Workload) -> dict[str, int] | None:
    """Return the GPUs by node that a placement asks for; None when its seats are not those of the workload."""
    if len(item.seats) != workload.ranks:
        return None
    wanted: dict[str, int] = {}
    for rank, seat in enumerate(item.seats):
        before = wanted.get(seat.node, 0)
        if seat.rank != rank or seat.gpu_mask.bit_count() != workload.gpus_per_rank or before & seat.gpu_mask:
            return None
        wanted[seat.node] = before | seat.gpu_mask
    return wanted
