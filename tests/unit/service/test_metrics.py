"""What both services tell Prometheus of how gangs sit and how free GPUs lie, for a state whose numbers are known."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from streamsched.embedded.engine import Engine
from streamsched.embedded.measures import registry_of
from streamsched.model.events import NodeHealth, NodeLabels, ProposedPlacement, RoundProposed, Seat
from streamsched.model.policy import Levels
from streamsched.model.topology import Layer, TopologyRequest
from streamsched.service.metrics import Metrics
from streamsched.simulation.fragmentation import fragmentation
from streamsched.state.cluster import ClusterState
from tests.stories import Story, adopted, budgets, health, node, relabelled, submitted


def of_the_service(state: ClusterState) -> CollectorRegistry:
    """What the scheduling agent measures."""
    metrics = Metrics("c")
    metrics.show_gangs(state.recoveries, state.workloads.values())
    metrics.show_fragmentation(fragmentation(state))
    return metrics.registry


def of_the_embedded(state: ClusterState) -> CollectorRegistry:
    """What an embedded cluster reads at a scrape; of its engine it wants the state alone."""
    return registry_of(cast("Engine", SimpleNamespace(state=state)))


def known() -> ClusterState:
    """On a0 and a1 a gang loses a1; that on b0 and b1 is torn apart; x has 4 free GPUs and y 8; 2 x 6 wait."""
    pair = TopologyRequest(layers=(Layer(level="sp"),))
    places = {"a0": "A", "a1": "A", "b0": "B", "b1": "B", "x": "X", "y": "Y"}
    story = Story(
        budgets(t=1),
        adopted(levels=(Levels(names=("sp",)),)),
        [node(name, domains=(domain,)) for name, domain in places.items()],
    )
    for workload, names, mask in (("lost", "a0 a1", 0xFF), ("torn", "b0 b1", 0xFF), ("half", "x", 0x0F)):
        seats = tuple(Seat(rank=rank, node=name, gpu_mask=mask) for rank, name in enumerate(names.split()))
        gpus, topology = mask.bit_count(), pair if len(seats) > 1 else None
        story.tell(submitted(workload, budget="t", ranks=len(seats), gpus_per_rank=gpus, topology=topology))
        placement = ProposedPlacement(workload=workload, attempt=1, seats=seats, shares=())
        round_ = story.state.closed_round + 1
        story.tell(RoundProposed(round=round_, based_on=0, policy_version=0, placements=(placement,)))
        story.start(workload)
    story.tell(health("a1", NodeHealth.UNHEALTHY, fatal=True))
    story.tell(relabelled(NodeLabels(node="b1", domains=("C",))))
    story.tell(submitted("wide", budget="t", ranks=2, gpus_per_rank=6))
    return story.state


@pytest.mark.parametrize(
    ("read", "labels"), [(of_the_service, {"cluster": "c"}), (of_the_embedded, {})], ids=["service", "embedded"]
)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("streamsched_recovering_gangs", 1),
        ("streamsched_straddling_runs", 1),
        # Of 12 free GPUs a gang of whole nodes can use the 8 of y; 2 ranks of 6 have 12 and only one place.
        ("streamsched_fragmentation_ratio", 1 / 3),
        ("streamsched_kept_out_gpus", 12),
    ],
)
def test_gangs_and_room(
    read: Callable[[ClusterState], CollectorRegistry], labels: dict[str, str], name: str, value: float
) -> None:
    """Both say the same."""
    assert read(known()).get_sample_value(name, labels) == pytest.approx(value)
