"""Gangs that lose nodes, told as histories: seated as the case says, stopped by the fault, and decided again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamsched.model.events import NodeHealth, ProposedPlacement, ReleaseOutcome, RoundProposed, Seat
from streamsched.model.policy import Levels
from streamsched.model.quantities import MINUTE
from streamsched.model.topology import Recovery, TopologyRequest
from tests.conformance.cases import Case
from tests.conformance.topology.requests import PREFERENCES, ask_of
from tests.stories import Story, adopted, budgets, health, node, submitted

#: How far a case lets a gang move.
_HOW_FAR = {"pod_only": Recovery.IN_PLACE, "pod_then_group_then_job": Recovery.WIDENING}
#: Sessions of the published scheduler in vain before its recovery widens by a step, which is a time in ours.
_SESSIONS_PER_STEP = 6
_STEP_MS = MINUTE


@dataclass(frozen=True, slots=True)
class Moved:
    """A gang before a fault and after the decision that follows: the node of each rank; nothing while it waits."""

    story: Story
    lost: list[str]
    before: list[str]
    after: list[str]

    @property
    def ranks(self) -> list[int]:
        """The ranks that are on another node than before."""
        return [rank for rank, (old, new) in enumerate(zip(self.before, self.after, strict=False)) if old != new]

    @property
    def kept(self) -> list[int]:
        """The ranks that are where they were."""
        return [rank for rank in range(len(self.after)) if rank not in self.ranks]

    def by_domain(self, depth: int, nodes: list[str]) -> dict[str, int]:
        """How many of some ranks are in each domain."""
        domains = [self.story.state.nodes[name].domains[depth] for name in nodes]
        return {domain: domains.count(domain) for domain in domains}


def reschedule(case: Case) -> tuple[Any, Any]:
    """Seat a gang, let its nodes fail, let time pass, decide, and answer what the case asks."""
    moved = _moved(case.given)
    levels = case.given["levels"]
    answers: Mapping[str, Callable[[Any], Any]] = {
        "feasible": lambda _: bool(moved.after),
        "state": lambda _: "waiting" if not moved.after else "placed",
        "kept_ranks": lambda _: moved.kept,
        "moved_ranks": lambda _: moved.ranks,
        "moved": lambda _: {str(rank): moved.after[rank] for rank in moved.ranks},
        "moved_pods": lambda _: len(moved.ranks),
        "pods_per_node": lambda _: {name: moved.after.count(name) for name in moved.after},
        "pods_per_domain": lambda asked: {level: moved.by_domain(levels.index(level), moved.after) for level in asked},
        "replacement_domain": lambda asked: {
            level: "".join(moved.by_domain(levels.index(level), _replaced(moved))) for level in asked
        },
    }
    expected = {question: answer for question, answer in case.expected.items() if question != "note"}
    return expected, {question: answers[question](answer) for question, answer in expected.items()}


def _replaced(moved: Moved) -> list[str]:
    """Return where the ranks are now that were on lost nodes."""
    return [new for old, new in zip(moved.before, moved.after, strict=True) if old in moved.lost]


def _moved(given: Mapping[str, Any]) -> Moved:
    job, prior, fault = given["job"], given["prior"], given["fault"]
    names = {entry["name"]: entry for entry in given["nodes"]}
    if "groups" in prior:
        before = [name for group in prior["groups"] for name in group]
    else:
        before = [name for name, ranks in prior["pods_per_node"].items() for _ in range(ranks)]
    gpus = job["gpus_per_pod"]
    reports = [node(name, gpus=entry["gpus"], domains=tuple(entry["path"])) for name, entry in names.items()]
    story = Story(
        budgets(a=1), adopted(levels=(Levels(names=tuple(given["levels"])),), recovery_step_ms=_STEP_MS), reports
    )
    ask = ask_of(job, PREFERENCES[job["policy"]])
    topology = TopologyRequest(
        layers=ask.layers, preference=ask.preference, recovery=_HOW_FAR[job.get("recovery", "pod_then_group_then_job")]
    )
    story.tell(submitted("gang", ranks=ask.ranks, gpus_per_rank=gpus, topology=topology))
    _seat(
        story,
        "gang",
        [(name, ((1 << gpus) - 1) << gpus * before[:rank].count(name)) for rank, name in enumerate(before)],
    )
    for name, entry in names.items():
        own = gpus * before.count(name)
        if entry["used"] > own:
            story.tell(submitted(f"other-{name}", gpus_per_rank=entry["used"] - own))
            _seat(story, f"other-{name}", [(name, ((1 << (entry["used"] - own)) - 1) << own)])
    lost = [*fault.get("nodes", ()), *fault.get("lost_pods", ())]
    _fail(story, lost or before[:1])
    # Where the nodes are healthy by now, as those of a rank that was killed, the fault is over before the decision.
    story.tell(health(name, NodeHealth.HEALTHY) for name in lost or before[:1] if names[name]["state"] == "healthy")
    story.at(max(1, fault.get("pending_sessions", 0) // _SESSIONS_PER_STEP * _STEP_MS)).tick()
    story.round()
    run = story.state.workloads["gang"].run
    return Moved(story, lost, before, [seat.node for seat in run.seats] if run else [])


def _seat(story: Story, workload: str, places: list[tuple[str, int]]) -> None:
    """Give a gang nodes and GPUs there, in rank order, and start it."""
    seats = tuple(Seat(rank=rank, node=name, gpu_mask=mask) for rank, (name, mask) in enumerate(places))
    placement = ProposedPlacement(workload=workload, attempt=1, seats=seats, shares=())
    story.tell(RoundProposed(round=story.state.closed_round + 1, based_on=0, policy_version=0, placements=(placement,)))
    if story.state.void:
        raise AssertionError(f"the seats of {workload} in the case are not lawful: {story.state.void}")
    story.start(workload)


def _fail(story: Story, nodes: list[str]) -> None:
    """Let nodes break, and the gang stop on all others."""
    for name in nodes:
        story.tell(health(name, NodeHealth.UNHEALTHY, fatal=True))
    for _ in range(2):
        if story.state.workloads["gang"].run is not None:
            story.end("gang", ReleaseOutcome.STOPPED)
