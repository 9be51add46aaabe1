"""All that happened to one workload, and why: each fact and decision that changed it, as one plain sentence.

A chronicle watches a fold. It tells what changed by comparing a workload before and after each record, so it never
says more than the fold did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from streamsched.model.commands import Effects, StopReason
from streamsched.model.events import (
    BudgetTreeChanged,
    Comparison,
    Event,
    NodeDrainChanged,
    NodeHealthChanged,
    NodeInventoryReported,
    NodesRelabelled,
    PolicyAdopted,
    ProposedPlacement,
    Record,
    RoundProposed,
    RunExtended,
    RunReleased,
    RunStarted,
    ShareLine,
    TakeRule,
    Unreadable,
    UsageAdjusted,
    Victim,
    WorkloadCancelled,
    WorkloadReprioritized,
    WorkloadSubmitted,
)
from streamsched.model.policy import Order
from streamsched.model.quantities import HOUR, format_duration, format_instant
from streamsched.scheduling.verdicts import compared_in_words, ratio_in_words
from streamsched.state import straddling
from streamsched.state.cluster import ClusterState
from streamsched.state.recoveries import recovering_in_words
from streamsched.state.reservations import Reservation
from streamsched.state.workloads import Phase, Run, Workload, gang_gpus

#: After so many records, the chapters of workloads that the state has forgotten are dropped.
_FORGET_EVERY = 10_000


class Happening(BaseModel):
    """One thing that changed a workload.

    Attributes:
        cursor: The record that says so.
        at_ms: The ledger's time, in milliseconds since 1970 UTC.
        event: The type of the record.
        phase: The workload's phase afterwards.
        attempt: Its attempt afterwards; 0 before the first placement.
        text: What happened, as a sentence.
    """

    model_config = ConfigDict(frozen=True)

    cursor: int
    at_ms: int
    event: str
    phase: Phase
    attempt: int
    text: str


class Chronicle:
    """The stories of the workloads that a fold knows, or of one of them. Pass `observe` to `fold`."""

    def __init__(self, only: str | None = None) -> None:
        """Begin with nothing told.

        Args:
            only: Listen for this workload alone, which costs less.
        """
        self._only = only
        self._stories: dict[str, list[_Line]] = {}
        self._submissions: dict[str, WorkloadSubmitted] = {}
        self._before: dict[str, _Moment] = {}
        self._observed = 0

    def story(self, workload: str) -> Sequence[Happening]:
        """Return what happened to a workload, oldest first; nothing for one that is not known."""
        return tuple(Happening(**line._asdict()) for line in self._stories.get(workload, ()))

    def submission(self, workload: str) -> WorkloadSubmitted | None:
        """Return what was asked for, also when the workload has ended."""
        return self._submissions.get(workload)

    def observe(self, record: Record, effects: Effects, state: ClusterState) -> None:
        """Take note of what one record changed."""
        self._observed += 1
        if self._observed % _FORGET_EVERY == 0:
            self._forget(state)
        event = record.event
        if isinstance(event, Unreadable):
            return
        if self._only is None:
            for workload in effects.workloads:
                self._tell(workload, record.cursor, event, state)
        elif self._only in effects.workloads:
            self._tell(self._only, record.cursor, event, state)

    def _tell(self, workload: str, cursor: int, event: Event, state: ClusterState) -> None:
        if isinstance(event, WorkloadSubmitted) and event.workload == workload:
            self._submissions.setdefault(workload, event)
        before = self._before.get(workload, _UNKNOWN)
        after = _Moment.of(workload, state)
        if after is None:
            return
        text = _sentence(workload, event, before, after, state)
        if after.phase is not None and after.phase.is_final:
            self._before.pop(workload, None)
        else:
            self._before[workload] = after
        if text and after.phase is not None:
            line = _Line(cursor, state.now_ms, event.type, after.phase, after.attempt, text)
            self._stories.setdefault(workload, []).append(line)

    def _forget(self, state: ClusterState) -> None:
        for workload in [w for w in self._stories if w not in state.workloads and w not in state.finished]:
            del self._stories[workload]
            self._submissions.pop(workload, None)
            self._before.pop(workload, None)


class _Line(NamedTuple):
    """A `Happening` as it is kept: a chronicle may hold hundreds of thousands."""

    cursor: int
    at_ms: int
    event: str
    phase: Phase
    attempt: int
    text: str


class _Recovery(NamedTuple):
    """How a recovery stands: each of its steps, and each node that it loses, changes one of the two."""

    widens_ms: int | None
    nodes: int


@dataclass(frozen=True, slots=True)
class _Moment:
    """What the next sentence compares with."""

    phase: Phase | None
    attempt: int
    priority: int
    reason: str
    started_on: int
    nodes: int
    protected_until_ms: int | None = None
    warned: bool = False
    kept: Reservation | None = None
    straddling: bool = False
    recovery: _Recovery | None = None

    @staticmethod
    def of(workload: str, state: ClusterState) -> _Moment | None:
        live = state.workloads.get(workload)
        if live is not None:
            run = live.run
            nodes = len({seat.node for seat in run.seats}) if run is not None else 0
            started_on = len(run.started_on) if run is not None else 0
            until_ms = run.protected_until_ms if run is not None else None
            warned = run is not None and run.warn_ms is None and live.interactive and (until_ms or 0) > state.now_ms
            kept = state.reservations.get(workload)
            straddles = run is not None and run.straddling
            recovering = state.recoveries.get(workload)
            return _Moment(
                live.phase,
                live.attempt,
                live.priority,
                "",
                started_on,
                nodes,
                until_ms,
                warned,
                kept,
                straddles,
                None if recovering is None else _Recovery(recovering.widens_ms, len(recovering.pins)),
            )
        ended = state.finished.get(workload)
        if ended is not None:
            return _Moment(ended.phase, ended.attempts, 0, ended.reason, 0, 0)
        return None


_ENDS = {
    Phase.SUCCEEDED: "it has succeeded",
    Phase.FAILED: "it has failed",
    Phase.CANCELLED: "it is over",
    Phase.PREEMPTED: "it is over",
    Phase.TIMED_OUT: "it has timed out",
    Phase.REJECTED: "it is rejected",
}

_UNKNOWN = _Moment(None, 0, 0, "", 0, 0)


def _sentence(workload: str, event: Event, before: _Moment, after: _Moment, state: ClusterState) -> str:
    """Return what happened and what follows from it; empty when nothing that a person would ask about."""
    said = _what_was_said(workload, event, before, after, state)
    follows = _what_follows(workload, before, after, state)
    sentence = "; ".join(part for part in (said, follows, _recovery(workload, before, after, state)) if part)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _what_was_said(workload: str, event: Event, before: _Moment, after: _Moment, state: ClusterState) -> str:
    changed = before.phase != after.phase
    match event:
        case WorkloadSubmitted():
            return f"submitted to {event.budget}{_by(event.actor)}: {gang_of(event)}, {contract_of(event)}"
        case WorkloadCancelled():
            why = f" ({event.reason})" if event.reason else ""
            return f"cancelled{_by(event.actor)}{why}"
        case WorkloadReprioritized():
            return f"moved inside its budget{_by(event.actor)}: priority {before.priority} became {event.priority}"
        case RoundProposed():
            return _decision(workload, event, before, after, state)
        case RunStarted() if event.workload == workload:
            of_many = f" ({after.started_on} of {after.nodes} nodes)" if after.nodes > 1 else ""
            return f"its ranks on {event.node} run{of_many}"
        case RunReleased() if event.workload == workload:
            code = f" with exit code {event.exit_code}" if event.exit_code is not None else ""
            detail = f" ({event.detail})" if event.detail else ""
            return f"node {event.node} gave its GPUs back: {event.outcome}{code}{detail}"
        case RunReleased() if changed:
            return f"its GPUs on {event.node} are free, since {event.workload} has left"
        case RunExtended() if event.workload == workload and after.protected_until_ms != before.protected_until_ms:
            until = format_instant(after.protected_until_ms or 0)
            return f"extended by {format_duration(event.extra_ms)}{_by(event.actor)}: protected until {until}"
        case NodeHealthChanged():
            why = f" ({event.reason})" if event.reason else ""
            return f"node {event.node} became {event.health}{why}{_stays_until(workload, changed, state)}"
        case NodeDrainChanged():
            what = f"drain of node {event.node}: {event.drain}{_by(event.actor)} ({event.reason})"
            return f"{what}{_stays_until(workload, changed, state)}"
        case NodeInventoryReported() if changed:
            return f"node {event.node} said what it holds"
        case NodeInventoryReported() if after.straddling is not before.straddling:
            return f"node {event.node} said where it is"
        case NodesRelabelled() if after.straddling is not before.straddling:
            return f"nodes were relabelled{_by(event.actor)} ({event.reason})"
        case PolicyAdopted() if after.straddling is not before.straddling:
            return f"the policy named topology levels otherwise{_by(event.actor)} ({event.reason})"
        case UsageAdjusted() if event.workload == workload:
            done = "charged for" if event.gpu_ms > 0 else "given back"
            return f"{abs(event.gpu_ms) / HOUR:,.2f} GPU-h of it were {done}{_by(event.actor)} ({event.reason})"
        case BudgetTreeChanged() if changed:
            return f"the budget tree changed ({event.reason})"
        case _:
            return ""


def _stays_until(workload: str, changed: bool, state: ClusterState) -> str:
    """Return when a run will have to leave its node, where that is known beforehand."""
    live = state.workloads.get(workload)
    run = live.run if live is not None else None
    if changed or run is None or run.protected_until_ms is None or run.stop is not None:
        return ""
    return f"; it stays until its protection ends at {format_instant(run.protected_until_ms)}"


def _decision(workload: str, event: RoundProposed, before: _Moment, after: _Moment, state: ClusterState) -> str:
    for item in event.placements:
        if item.workload == workload and item.attempt == after.attempt:
            turn = f"its turn because {_turn(item)}{_taken(item, state)}"
            return f"round {event.round} gave it {_seats(item, before)}; {turn}"
        for victim in item.victims:
            if victim.workload == workload:
                return f"round {event.round} takes its GPUs for {_claimant(item, state)}: {_lost(item, victim, state)}"
    for promise in event.reservations:
        if promise.workload == workload and after.kept is not None and before.kept is None:
            start = (
                f"it starts at {format_instant(promise.start_ms)} at the latest, when all protection there has ended"
            )
            evicted = f"{promise.evicted_gpus} allocated GPUs would be preempted, without a guard"
            turn = f"its turn because {_shares(promise.shares)}"
            return f"round {event.round} reserved {_some(list(promise.nodes))} for it; {start}; {evicted}; {turn}"
    return ""


def _seats(item: ProposedPlacement, before: _Moment) -> str:
    """Return the nodes that a placement gives, by what right, and whom it waits for."""
    kept = "its reserved nodes " if before.kept is not None and _is_within(item, before.kept) else ""
    nodes = list(dict.fromkeys(seat.node for seat in item.seats))
    victims = f", once {_some([victim.workload for victim in item.victims])} left" if item.victims else ""
    return f"{kept}{_some(nodes)}{victims}"


def _is_within(item: ProposedPlacement, kept: Reservation) -> bool:
    return all(seat.node in kept.nodes for seat in item.seats)


def _claimant(item: ProposedPlacement, state: ClusterState) -> str:
    live = state.workloads.get(item.workload)
    return f"{item.workload} of {live.budget.id}" if live is not None else item.workload


def _taken(item: ProposedPlacement, state: ClusterState) -> str:
    """Return what a claimant takes from allocated work, by which rules and with which numbers."""
    rules: dict[str, list[str]] = {}
    for victim in item.victims:
        if victim.because is not None:
            name = f"{victim.workload} (protected until {format_instant(victim.because.protected_until_ms)})"
            rules.setdefault(_rule(item, victim, victim.because, state), []).append(name)
    if not rules:
        return ""
    return f"; {_amount(item, state)}; " + "; ".join(f"{_some(names)} by {rule}" for rule, names in rules.items())


def _lost(item: ProposedPlacement, victim: Victim, state: ClusterState) -> str:
    """Return why a victim loses its GPUs, and what becomes of it."""
    next_ = _next(victim, state)
    if victim.moves_to is not None:
        nodes = _some(list(dict.fromkeys(seat.node for seat in victim.moves_to)))
        return f"it only moves, to {nodes}"
    if victim.because is None:
        turn = f"it was the other's turn because {_turn(item)}"
        return f"an allocated request goes before unallocated time, and {turn}{next_}"
    ended = format_instant(victim.because.protected_until_ms)
    rule = _rule(item, victim, victim.because, state)
    return f"its protection ended at {ended}; by {rule}; {_amount(item, state)}{next_}"


def _rule(item: ProposedPlacement, victim: Victim, because: Comparison, state: ClusterState) -> str:
    """Return the rule by which a claimant takes from allocated work, so that its arithmetic can be redone."""
    claimant = state.workloads.get(item.workload)
    run = claimant.run if claimant is not None else None
    match because.rule:
        case TakeRule.PRIORITY:
            ours, theirs = (_priority(id_, state) for id_ in (item.workload, victim.workload))
            above = f"{ours} of {item.workload} is above {theirs}"
            return f"priority inside one budget, {_compared(because)}: {above}{_commits(because, run, state)}"
        case TakeRule.RESERVATION:
            return (
                f"reservation: the nodes were promised, which asks only for the end of protection; "
                f"{_compared(because)}{_commits(because, run, state)}"
            )
        case TakeRule.FAIR_SHARE:
            return f"fair share: {_compared(because)}; {_guard(because, state)}{_commits(because, run, state)}"


def _guard(because: Comparison, state: ClusterState) -> str:
    """Return why the guard against taking turns does not hold a claimant back."""
    if not because.victim_entitled_gpu_ms:
        return f"{because.victim} is due nothing, so no guard is asked"
    if not because.guard_gpu_ms:
        return "no guard is asked"
    raised = because.claimant_used_gpu_ms + because.guard_gpu_ms
    if raised * because.victim_entitled_gpu_ms <= because.victim_used_gpu_ms * because.claimant_entitled_gpu_ms:
        ratio = ratio_in_words(raised, because.claimant_entitled_gpu_ms)
        guard = f"the guard of {because.guard_gpu_ms / HOUR:,.2f} GPU-h"
        return f"with {guard} {because.claimant} is at {ratio}, which is not above {because.victim}"
    if state.policy.order is Order.DUE_FIRST:
        return f"{because.victim} holds its quota or more and {because.claimant} less, so no guard is asked"
    return f"{because.claimant} stays within what it is due, and {because.victim} is above that"


def _priority(workload: str, state: ClusterState) -> str:
    live = state.workloads.get(workload)
    return "priority unknown" if live is None else str(live.priority)


def _compared(because: Comparison) -> str:
    if because.claimant == because.victim:
        return f"{because.claimant} at {ratio_in_words(because.claimant_used_gpu_ms, because.claimant_entitled_gpu_ms)}"
    return compared_in_words(because)


def _commits(because: Comparison, run: Run | None, state: ClusterState) -> str:
    """Return where the claimant's budget stands once the protected time of the claimant counts."""
    if run is None or not state.policy.commitment:
        return ""
    committed = run.units * run.min_ms
    after = ratio_in_words(because.claimant_used_gpu_ms + committed, because.claimant_entitled_gpu_ms)
    return f"; the claimant commits {committed / HOUR:,.2f} GPU-h, and {because.claimant} is at {after} then"


def _amount(item: ProposedPlacement, state: ClusterState) -> str:
    """Return how many allocated GPUs are preempted for how many requested."""
    evicted = 0
    for victim in item.victims:
        live = state.workloads.get(victim.workload)
        if victim.because is not None and live is not None:
            evicted += live.gpus
    requested = sum(seat.gpu_mask.bit_count() for seat in item.seats)
    cap = f", over the disruption cap of {state.policy.disruption_cap} for each" if item.over_cap else ""
    return f"{evicted} allocated GPUs preempted for {requested} requested{cap}"


def _next(victim: Victim, state: ClusterState) -> str:
    """Return what becomes of a victim once it has stopped."""
    live = state.workloads.get(victim.workload)
    if live is None or live.run is None:
        return ""
    if not live.resumable and live.run.started_ms is not None:
        return "; it cannot be resumed, so this is its end"
    place = state.backlog_of(live).place_if_requeued(live, state.now_ms)
    when = "afterwards" if live.is_allocated else "after a back-off"
    return f"; it waits again {when} for attempt {victim.attempt + 1}, at place {place} of {live.budget.id} as of now"


def _what_follows(workload: str, before: _Moment, after: _Moment, state: ClusterState) -> str:
    if before.phase == after.phase and before.attempt == after.attempt:
        if before.straddling is not after.straddling:
            return _straddling(workload, state)
        if before.kept is not None and after.kept is None:
            return f"its reservation of {_some(list(before.kept.nodes))} has ended: {_why_it_ended(before.kept, state)}"
        if before.warned or not after.warned:
            return ""
        return f"warned that its protection ends at {format_instant(after.protected_until_ms or 0)}"
    live = state.workloads.get(workload)
    match after.phase:
        case Phase.QUEUED if before.phase is None:
            return ""
        case Phase.QUEUED:
            held = live.held_until_ms if live is not None else 0
            later = f", not looked at before {format_instant(held)}" if held > state.now_ms else ""
            if live is None or live.queue_key is None:
                return f"back in the queue{later}"
            return f"back in the queue, at place {state.backlog_of(live).ahead_of(live) + 1} of {live.budget.id}"
        case Phase.PLANNED:
            return f"attempt {after.attempt} is planned"
        case Phase.BOUND:
            return f"attempt {after.attempt} is placed" + (f" on {after.nodes} nodes" if after.nodes > 1 else "")
        case Phase.RUNNING:
            return _protection(live, after.nodes, state)
        case Phase.STOPPING:
            return _stop(live)
        case None:
            return ""
        case ended:
            why = "" if after.reason == ended else after.reason.removeprefix(f"{ended}: ")
            return _ENDS[ended] + (f": {why}" if why else "")


def _recovery(workload: str, before: _Moment, after: _Moment, state: ClusterState) -> str:
    """Return how far a gang that lost nodes, or that moves, has come on its way back."""
    waits = after.phase is Phase.QUEUED
    recovery = state.recoveries.get(workload)
    if recovery is None:
        gives_up = before.recovery is not None and (waits or after.phase is Phase.STOPPING)
        return "nothing is kept for it any more, and the whole gang starts anew" if gives_up else ""
    if waits and (before.phase is not Phase.QUEUED or before.recovery != after.recovery):
        return recovering_in_words(state, recovery)
    return f"GPUs of {_some(list(recovery.pins))} are kept for it" if before.recovery is None else ""


def _straddling(workload: str, state: ClusterState) -> str:
    live = state.workloads[workload]
    found = straddling.breach(state, live)
    return "its nodes are together again" if found is None else f"it straddles: {found.in_words()}; it goes on there"


def _why_it_ended(kept: Reservation, state: ClusterState) -> str:
    gone = [id_ for id_ in kept.nodes if id_ not in state.nodes or not state.nodes[id_].takes_work]
    if gone:
        return f"{_some(gone)} can take no work"
    late = format_duration(state.now_ms - kept.start_ms)
    return f"{late} after {format_instant(kept.start_ms)} the last GPUs were not free yet"


def _protection(live: Workload | None, nodes: int, state: ClusterState) -> str:
    runs = "the whole gang runs" if nodes > 1 else ""
    run = live.run if live is not None else None
    if run is None or run.protected_until_ms is None or run.protected_until_ms <= state.now_ms:
        return runs
    return f"{runs}{', ' if runs else ''}protected until {format_instant(run.protected_until_ms)}"


def _stop(live: Workload | None) -> str:
    run = live.run if live is not None else None
    if run is None or run.stop is None:
        return "it is being stopped"
    because = {
        StopReason.PREEMPTED: "preempted",
        StopReason.CANCELLED: "cancelled",
        StopReason.TIMED_OUT: "its timeout is over",
        StopReason.START_DEADLINE: "it did not start in time",
        StopReason.GANG_BROKEN: "a rank of the gang is gone",
        StopReason.NODE_DRAINED: "its node is drained",
        StopReason.NODE_FAILED: "its node is good for nothing any more",
        StopReason.UNKNOWN_RUN: "its node held a run that the ledger does not know",
    }[run.stop]
    return f"it is being stopped: {because}" + (f", for {run.beneficiary}" if run.beneficiary else "")


def _turn(item: ProposedPlacement) -> str:
    """Return the comparison that gave a workload its turn, level by level."""
    return _shares(item.shares)


def _shares(shares: Sequence[ShareLine]) -> str:
    return ", ".join(share_in_words(line) for line in shares) or "nothing else waited"


def share_in_words(line: ShareLine) -> str:
    """Return one level of a comparison: whose ratio, and how many siblings it was before."""
    used = line.charged_gpu_ms + line.committed_gpu_ms
    ratio = f"{used / line.entitled_gpu_ms:.3f}" if line.entitled_gpu_ms else "no share"
    among = f"went first of {line.siblings}" if line.siblings > 1 else "is alone"
    return f"{line.budget} at {ratio} {among}"


def gang_of(contract: WorkloadSubmitted | Workload) -> str:
    """Return a gang in words."""
    gpus = gang_gpus(contract.ranks, contract.gpus_per_rank, contract.topology)
    pool = f" of {contract.pool}" if contract.pool else ""
    size = f"{gpus} GPU{'s' * (gpus != 1)}{pool}"
    if contract.ranks == 1:
        return size
    alike = gpus == contract.ranks * contract.gpus_per_rank
    return f"{contract.ranks} ranks{f' × {contract.gpus_per_rank}' if alike else ''} = {size}"


def contract_of(contract: WorkloadSubmitted | Workload) -> str:
    """Return a scheduling contract in words."""
    if contract.min_runtime_ms:
        kind = f"allocated, min runtime {format_duration(contract.min_runtime_ms)}"
    else:
        kind = "unallocated"
    timeout = f", timeout {format_duration(contract.timeout_ms)}" if contract.timeout_ms is not None else ""
    kind += ", interactive" if contract.interactive else ""
    return kind + timeout + (", resumable" if contract.resumable else "")


def _by(actor: str | None) -> str:
    return f" by {actor}" if actor else ""


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"
