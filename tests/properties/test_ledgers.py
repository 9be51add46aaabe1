"""Laws of the fold: they hold for every ledger, whoever wrote what into it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamsched.model.commands import Command, Effects, Place, Stop, StopReason
from streamsched.model.events import (
    BudgetTreeChanged,
    Event,
    NodeHealth,
    NodeHealthChanged,
    NodeInventoryReported,
    PolicyAdopted,
    Record,
    ReleaseOutcome,
    RunReleased,
    StateHashed,
    Tick,
    Unreadable,
    WorkloadCancelled,
    WorkloadSubmitted,
)
from streamsched.model.identifiers import command_order
from streamsched.model.policy import DEFAULT_POLICY
from streamsched.model.quantities import DAY
from streamsched.scheduling.decision import decide
from streamsched.state.cluster import ClusterState
from streamsched.state.invariants import check
from streamsched.state.reasons import Ignored
from streamsched.state.snapshot import digest, freeze, thaw
from streamsched.state.workloads import Workload
from streamsched.wire.codec import decode, encode
from tests.properties.histories import History, histories


@given(histories())
def test_every_event_can_be_written_and_read(history: History) -> None:
    """What was encoded is decoded as it was."""
    for record in history.records:
        if not isinstance(record.event, Unreadable):
            assert decode(encode(record.event)) == record.event


@given(histories())
def test_commands_are_new_and_never_contradict_each_other(history: History) -> None:
    """Ids rise; a node gets at most one place for an attempt, and only on GPUs that it has and that nobody sits on.

    Who sits there is told from the node's own side: what it was told to place, until it said that it is gone. A
    place that a node has not obeyed yet is forgotten when it was lost or has changed, and comes back without it.
    """
    places: dict[Workload, set[tuple[str, int]]] = {}
    sits: dict[str, dict[tuple[str, int], tuple[int, tuple[int, int]]]] = {}
    lost: dict[str, set[tuple[str, int]]] = {}
    pools: dict[str, str] = {}
    last = (-1, -1)
    repeats = 0
    for state, record, effects in history.folded():
        event = record.event
        repeated = state.ignored.get(Ignored.REPEATED, 0) > repeats
        repeats = state.ignored.get(Ignored.REPEATED, 0)
        if isinstance(event, RunReleased) and not repeated:
            sits.get(event.node, {}).pop((event.workload, event.attempt), None)
        elif isinstance(event, NodeHealthChanged) and event.health is NodeHealth.LOST:
            lost[event.node] = set(sits.get(event.node, ()))
        elif isinstance(event, NodeInventoryReported) and not repeated:
            obeyed = command_order(event.watermark) if event.watermark is not None else (-1, -1)
            reported = {(run.workload, run.attempt) for run in event.runs}
            moved = pools.get(event.node, event.pool) != event.pool
            pools[event.node] = event.pool
            sits[event.node] = {
                key: (mask, told)
                for key, (mask, told) in sits.get(event.node, {}).items()
                if key in reported or (told > obeyed and key not in lost.get(event.node, ()) and not moved)
                if not mask >> event.gpus
            }
        for command in effects.commands:
            id_ = command_order(command.command)
            if id_ <= last:
                assert isinstance(event, Tick | NodeHealthChanged), "sent again by a tick, or to a node that is back"
                assert command in history.issued[command.node], "it is the same command under its old id"
                continue
            last = id_
            assert id_[0] == record.cursor
            if not isinstance(command, Place):
                continue
            placed = places.setdefault(state.workloads[command.workload], set())
            assert (command.node, command.attempt) not in placed
            placed.add((command.node, command.attempt))
            node = state.nodes[command.node]
            assert node.health is NodeHealth.HEALTHY
            mask = 0
            for seat in command.seats:
                assert not mask & seat.gpu_mask
                mask |= seat.gpu_mask
            assert not mask >> node.gpus
            mine = sits.setdefault(command.node, {})
            assert not any(mask & other for other, _ in mine.values())
            mine[command.workload, command.attempt] = (mask, id_)


@given(histories())
def test_a_gang_is_placed_whole_or_not_at_all(history: History) -> None:
    """One record gives the places of all ranks of an attempt, each rank once, in one pool."""
    contracts: dict[Workload, WorkloadSubmitted] = {}
    for state, record, effects in history.folded():
        if isinstance(record.event, WorkloadSubmitted) and record.event.workload in state.workloads:
            contracts.setdefault(state.workloads[record.event.workload], record.event)
        gangs: dict[tuple[str, int], list[Place]] = {}
        for command in effects.commands:
            if isinstance(command, Place) and command_order(command.command)[0] == state.next_cursor - 1:
                gangs.setdefault((command.workload, command.attempt), []).append(command)
        for (workload, _), places in gangs.items():
            contract = contracts[state.workloads[workload]]
            seats = [seat for place in places for seat in place.seats]
            assert sorted(seat.rank for seat in seats) == list(range(contract.ranks))
            assert {seat.gpu_mask.bit_count() for seat in seats} == {contract.gpus_per_rank}
            assert len({place.node for place in places}) == len(places)
            pools = {state.nodes[place.node].pool for place in places}
            assert len(pools) == 1
            assert contract.pool is None or pools == {contract.pool}


@given(histories())
def test_no_protected_run_is_a_victim_and_only_allocated_work_has_victims(history: History) -> None:
    """Not even for a proposal that is mad, and not a millisecond early; who is bound or starts is protected.

    When protection ends at the earliest is told from the submission, the policy and the start.
    """
    least: dict[tuple[Workload, int], int] = {}
    protected_until: dict[tuple[Workload, int], int] = {}
    for state, _, effects in history.folded():
        for workload in state.workloads.values():
            run = workload.run
            if run is None:
                continue
            key = (workload, run.attempt)
            spans = (workload.min_runtime_ms, workload.timeout_ms, state.policy.over_quota_protection_ms)
            least.setdefault(key, min(span for span in spans if span is not None))
            if run.started_ms == state.now_ms:
                protected_until.setdefault(key, state.now_ms + least[key])
        for command in effects.commands:
            if not isinstance(command, Stop) or command.reason is not StopReason.PREEMPTED:
                continue
            if command_order(command.command)[0] != state.next_cursor - 1:
                continue  # It was sent before.
            assert command.beneficiary is not None
            assert state.workloads[command.beneficiary].min_runtime_ms > 0
            victim = state.workloads[command.workload]
            if victim.min_runtime_ms:
                assert victim.run is not None
                assert victim.run.protected_until_ms is not None
                assert victim.run.protected_until_ms <= state.now_ms
                assert protected_until[victim, command.attempt] <= state.now_ms


@given(histories(80))
def test_a_fact_that_is_delivered_twice_changes_nothing(history: History) -> None:
    """The state is that of a ledger in which something unreadable stands in place of the repeat.

    It holds for every fact with a source position, and for facts about what is so for those without one too.
    """
    for state, record, _ in history.folded():
        event = record.event
        if isinstance(event, Unreadable) or not (event.src or is_idempotent(state, event)):
            continue
        plain, repeated = thaw(freeze(state)), thaw(freeze(state))
        plain.apply(Record(plain.next_cursor, record.append_ms, Unreadable("")))
        effects = repeated.apply(Record(repeated.next_cursor, record.append_ms, event))
        assert uncounted(repeated) == uncounted(plain), event
        if not isinstance(event, Tick):
            assert effects.commands == []


@given(histories(80), st.data())
def test_a_snapshot_is_as_good_as_the_ledger(history: History, data: st.DataObject) -> None:
    """A state that was frozen and thawed anywhere goes on like the one that was not.

    The same states, the same proposals, the same effects.
    """
    at = data.draw(st.integers(0, len(history.records) - 1), label="frozen after")
    copy: ClusterState | None = None
    for state, record, effects in history.folded():
        if copy is not None:
            assert shown(copy.apply(record)) == shown(effects)
            assert digest(copy) == digest(state)
            assert copy.next_wakeup_ms == state.next_wakeup_ms
            assert decide(copy) == decide(state)
        if record.cursor == at:
            frozen = freeze(state)
            copy = thaw(frozen)
            check(copy)
            assert freeze(copy) == frozen


@given(histories(80))
def test_deciding_writes_nothing_and_depends_on_the_state_alone(history: History) -> None:
    """The state is the same before and after, and an equal one gives the same bytes."""
    for state, _, _ in history.folded():
        before = freeze(state)
        proposal = decide(state)
        assert freeze(state) == before
        again = decide(thaw(before))
        assert (proposal and encode(proposal)) == (again and encode(again))


@given(histories())
def test_effects_name_everything_that_a_view_shows(history: History) -> None:
    """Whatever a view shows of a workload, a node or a budget does not change without being named."""
    seen: dict[str, dict[str, Any]] = {"workloads": {}, "nodes": {}, "budgets": {}}
    change: str | None = None
    for state, record, effects in history.folded():
        shows: dict[str, dict[str, Any]] = {
            "workloads": {w.id: (w.phase, w.attempt, w.priority) for w in state.workloads.values()},
            "nodes": {
                n.id: (n.health, n.gpus, n.pool, n.free_mask, dict(n.held), dict(n.orphans))
                for n in state.nodes.values()
            },
            "budgets": {
                b.id: (b.allocated_gpus, b.unallocated_gpus, b.queued_gpus) for b in state.budgets.root.below()
            },
        }
        for kind, values in shows.items():
            before, named = seen[kind], getattr(effects, kind)
            changed = {id_ for id_ in values if values[id_] != before.get(id_)}
            if kind == "budgets" and state.budgets.change != change:
                continue  # A view looks at the whole tree when it changes.
            assert changed <= set(named) | ({""} if kind == "budgets" and not record.cursor else set()), record.event
        gone = set(seen["workloads"]) - set(shows["workloads"])
        assert gone <= set(effects.workloads)
        seen, change = shows, state.budgets.change


@given(histories())
def test_everything_that_ended_is_forgotten(history: History) -> None:
    """When all work has ended and has left the window, nothing of it is left, whatever the history was."""
    state = history.state
    history.tell(PolicyAdopted(policy=DEFAULT_POLICY, reason="a test"))
    for id_ in sorted(state.workloads):
        history.tell(WorkloadCancelled(workload=id_))
    for workload in list(state.workloads.values()):
        assert workload.run is not None
        for node in list(workload.run.held):
            history.tell(
                RunReleased(node=node, workload=workload.id, attempt=workload.attempt, outcome=ReleaseOutcome.STOPPED)
            )
    for node_id in sorted(state.nodes):
        node_now = state.nodes[node_id]
        history.tell(
            NodeInventoryReported(
                node=node_id,
                boot=node_now.boot,
                pool=node_now.pool,
                gpus=node_now.gpus,
                watermark=f"{state.next_cursor}/0",
            )
        )
    history.append_ms = max(history.append_ms, state.now_ms) + 31 * DAY
    history.tell(Tick(tick=state.last_tick + 1))
    history.tell(BudgetTreeChanged(change="last", previous=state.budgets.change, reason="a test", budgets=()))

    frozen = json.loads(freeze(state))
    assert frozen["workloads"] == frozen["finished"] == frozen["unacknowledged"] == frozen["sent"] == []
    assert frozen["tree"]["changes"] == frozen["tree"]["closed_in_use"] == frozen["tree"]["capacity_changes"] == []
    root = frozen["budgets"][0]
    assert len(frozen["budgets"]) == 1
    assert (root["charged"][0], root["uncharged"][0], root["commitment"], root["queued"]) == (0, 0, [0, 0, "0"], 0)
    assert all(not (node.held or node.claims or node.orphans or node.preemptible) for node in state.nodes.values())
    assert state.next_wakeup_ms is None
    assert len(state.timers) == 0
    assert state.allocated.by_shape == {} == state.unallocated.by_shape


def is_idempotent(state: ClusterState, event: Event) -> bool:
    """Whether saying it twice must change nothing, even without a source position."""
    if isinstance(event, PolicyAdopted | StateHashed):
        return False  # Each adoption has a number.
    if isinstance(event, WorkloadSubmitted):
        return event.workload in state.workloads  # What was rejected may be welcome the second time.
    return True


def uncounted(state: ClusterState) -> dict[str, Any]:
    """The state without the counts of what changed nothing."""
    fields: dict[str, Any] = json.loads(freeze(state))
    return {name: value for name, value in fields.items() if name not in ("ignored", "rejected")}


def shown(effects: Effects) -> tuple[list[Command], list[Any], list[list[str]]]:
    """All that the effects say."""
    views = [list(effects.budgets), list(effects.nodes), list(effects.workloads)]
    return effects.commands, list(effects.receipts), views
