"""Laws of preemption and of reservations, against searches that try everything and in worlds where all obey."""

from __future__ import annotations

from hypothesis import given

from streamsched.model.commands import Command, Place, Stop, StopReason
from streamsched.model.events import (
    ProposedPlacement,
    ReleaseOutcome,
    RunReleased,
    RunStarted,
    TakeRule,
    Tick,
    WorkloadCancelled,
)
from streamsched.model.identifiers import command_order
from streamsched.model.quantities import DAY, SECOND
from streamsched.scheduling.decision import decide
from streamsched.state.cluster import ClusterState
from streamsched.state.workloads import Phase, Workload
from tests.properties.by_the_book import (
    entitled,
    fits,
    is_patient,
    may_take,
    most_served_first,
    preemptible,
    takeable,
    used,
)
from tests.properties.histories import History, histories
from tests.properties.test_decisions import fold, one_by_one, some_states


@given(histories())
def test_an_eviction_changes_nobodys_ratio(history: History) -> None:
    """A proposal adds what its placements commit, and nothing else moves, whoever is stopped for them.

    A victim is past its protection, so it has nothing left to commit, and what it has used stays used.
    """
    for state in some_states(history):
        while (proposal := decide(state)) is not None:
            before = {budget: (used(state, budget), entitled(state, budget)) for budget in state.budgets.root.below()}
            fold(state, proposal)
            for item in proposal.placements:
                workload = state.workloads[item.workload]
                run = workload.run
                assert run is not None
                if workload.is_allocated:
                    for budget in workload.budget.path:
                        was_used, was_entitled = before[budget]
                        before[budget] = (was_used + run.units * run.min_ms, was_entitled)
            for budget, was in before.items():
                assert (used(state, budget), entitled(state, budget)) == was


@given(histories())
def test_victims_are_taken_by_the_book_and_none_in_vain(history: History) -> None:
    """Every allocated victim may be taken by section 4.3, and with any victim spared the gang would not fit.

    No leaf is touched if the gang fits on the runs of those that are more over-served, save to stay below the cap of
    disruption. A promise that is kept asks for protection only.
    """
    for state in some_states(history):
        one_by_one(state)
        while (proposal := decide(state)) is not None:
            if proposal.placements and not proposal.reservations:
                item = proposal.placements[0]
                if any(victim.because for victim in item.victims):
                    assert_taken_by_the_book(state, item)
            fold(state, proposal)


@given(histories())
def test_where_all_obey_work_comes_to_rest_and_promises_are_kept(history: History) -> None:
    """At any instant each workload is placed at most once, and then nothing is done however often somebody looks.

    Plans do not fail there: whoever is stopped for a claimant is stopped for it again only after it has run. A gang
    that was promised nodes sits on them when it was promised, and once nothing waits, nobody is placed or displaced.
    """
    state = history.state
    history.append_ms = max(history.append_ms, state.now_ms)
    obey(history)
    begin_ms, last_ms = state.now_ms, state.now_ms + DAY
    #: By victim and claimant, the attempts of both.
    stopped_for: dict[tuple[str, str], tuple[int, int]] = {}
    for _ in range(60):
        commands = obey(history)
        places = {(command.workload, command.attempt) for command in commands if isinstance(command, Place)}
        assert len({workload for workload, _ in places}) == len(places)
        for command in commands:
            if isinstance(command, Stop) and command.reason is StopReason.PREEMPTED:
                pair = (command.workload, command.beneficiary or "")
                claimant = state.workloads[pair[1]]
                assert claimant.phase is Phase.RUNNING, "its plan was carried out"
                before = stopped_for.setdefault(pair, (claimant.attempt, command.attempt))
                assert before[0] != claimant.attempt or before[1] == command.attempt, "twice, without a run in between"
                stopped_for[pair] = (claimant.attempt, command.attempt)
        for promise in state.reservations.values():
            if promise.since_ms > begin_ms and state.workloads[promise.workload].budget.quota_nano:
                assert promise.start_ms > state.now_ms
        for _ in range(5):
            assert not tick(history)
        assert decide(state) is None
        wakeup_ms = state.next_wakeup_ms
        if wakeup_ms is None or wakeup_ms > last_ms:
            break
        history.append_ms = max(wakeup_ms, state.now_ms + 1)

    for id_ in [id_ for id_, workload in state.workloads.items() if workload.run is None]:
        history.tell(WorkloadCancelled(workload=id_))
    obey(history)
    for _ in range(100):
        history.append_ms += 10 * SECOND
        for command in (*tick(history), *obey(history)):
            assert isinstance(command, Stop)
            assert command.reason is not StopReason.PREEMPTED


# --- checks -----------------------------------------------------------------------------------------------------------


def assert_taken_by_the_book(state: ClusterState, item: ProposedPlacement) -> None:
    """Check the victims of an item that stands alone."""
    claimant = state.workloads[item.workload]
    pool = state.nodes[item.seats[0].node].pool
    victims = tuple(victim.workload for victim in item.victims)
    if claimant.id in state.reservations and any(
        victim.because is not None and victim.because.rule is TakeRule.RESERVATION for victim in item.victims
    ):
        for id_ in victims:
            run = state.workloads[id_].run
            assert run is not None
            if state.workloads[id_].is_allocated:
                assert run.protected_until_ms is not None
                assert run.protected_until_ms <= state.now_ms
        return
    assert is_patient(state, claimant)
    assert set(victims) <= set(takeable(state, claimant))
    assert fits(state, claimant, pool, victims)
    for spared in victims:
        assert not fits(state, claimant, pool, tuple(id_ for id_ in victims if id_ != spared)), spared

    allocated = [state.workloads[id_] for id_ in victims if state.workloads[id_].is_allocated]
    cap = state.policy.disruption_cap * claimant.gpus
    evicted = sum(victim.gpus for victim in allocated)
    assert item.over_cap is (evicted > cap)
    offered = [other for other in state.workloads.values() if other.is_allocated and may_take(state, claimant, other)]
    allowed: list[Workload] = []
    for leaf in most_served_first(state, {other.budget for other in offered}):
        if fits(state, claimant, pool, (*preemptible(state), *(other.id for other in allowed))):
            break
        allowed.extend(other for other in offered if other.budget is leaf)
    if not set(allocated) <= set(allowed):
        assert evicted <= cap < sum(other.gpus for other in allowed)


# --- where all obey ---------------------------------------------------------------------------------------------------


def tick(history: History) -> list[Command]:
    """Let time come to the present; return the commands that are new."""
    before = history.state.next_cursor
    return new(history.tell(Tick(tick=history.state.last_tick + 1)).commands, before)


def new(commands: list[Command], cursor: int) -> list[Command]:
    """Return those of the commands that were not sent before."""
    return [command for command in commands if command_order(command.command)[0] >= cursor]


def obey(history: History) -> list[Command]:
    """Decide, and do at once what is commanded, until there is nothing left to do; return all commands of it."""
    state = history.state
    commands = tick(history)
    rounds = len(state.workloads)
    while True:
        before = len(history.records)
        history.settle()
        for workload in list(state.workloads.values()):
            run = workload.run
            for node in list(run.held) if run is not None else ():
                if run is not None and run.stop is not None:
                    outcome = ReleaseOutcome.STOPPED
                    history.tell(RunReleased(node=node, workload=workload.id, attempt=run.attempt, outcome=outcome))
                elif run is not None and node not in run.started_on:
                    history.tell(RunStarted(node=node, workload=workload.id, attempt=run.attempt))
        for other in list(state.nodes.values()):
            for workload_id, attempt in list(other.orphans):
                outcome = ReleaseOutcome.STOPPED
                history.tell(RunReleased(node=other.id, workload=workload_id, attempt=attempt, outcome=outcome))
        for record, effects in zip(history.records[before:], history.effects[before:], strict=True):
            commands.extend(new(effects.commands, record.cursor))
        if len(history.records) == before:
            return commands
        rounds -= 1
        assert rounds >= -10, "work goes round and round"
