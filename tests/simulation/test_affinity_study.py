"""The study of what the topology is worth: what it counts of a gang that starts, and a row of its table."""

import pytest

from replay.studies.affinity import VARIANTS, DomainRecorder, Place, run, table
from streamsched.model.quantities import HOUR
from streamsched.node.virtual_node import sleep_argv
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.simulator import simulate
from streamsched.simulation.virtual_cluster import uniform_cluster
from tests.stories import budgets, submitted


def test_a_gang_is_counted_with_its_domains_and_with_the_room_it_leaves() -> None:
    """Three of four nodes, from 1:00 to 3:00: the first rack whole, the second by half, the second leaf not at all."""
    places = {
        "node-000": Place("leaf-1", "rack-1"),
        "node-001": Place("leaf-1", "rack-1"),
        "node-002": Place("leaf-1", "rack-2"),
        "node-003": Place("leaf-2", "rack-3"),
    }
    gang = submitted("w1", ranks=3, gpus_per_rank=8, command=sleep_argv(2 * HOUR))
    recorder = DomainRecorder(places, from_ms=0)
    demand = Demand((Submission(HOUR, gang, 2 * HOUR),), budgets(a=1))
    simulate(demand, uniform_cluster(4), since_ms=0, observers=[recorder])

    assert (recorder.nodes, recorder.racks, recorder.leaves) == ([3], [2], [1])
    assert recorder.largest[0] == (8, 8, 8)


@pytest.mark.parametrize("name", ["blind, names anyhow", "bandwidth first, a rack preferred"])
def test_a_run_becomes_a_row(name: str) -> None:
    """One day of the trace on a cluster that is empty at first."""
    row = run(48, name, warm_up_days=0, days=1, seed=1)

    assert row["starts"] > 0
    assert 1 <= row["leaves"] <= row["racks"] <= row["nodes"]
    assert row["largest, rack"] <= row["leaf"] <= row["anywhere"] <= row["free"]
    assert table({name: row}).splitlines()[-1].startswith(f"| {name} | {row['starts']:.0f} | ")


def test_blind_policies_are_told_of_no_levels() -> None:
    """Or they would not be what the others are compared with."""
    blind = [name for name, variant in VARIANTS.items() if variant.preference is None]

    assert blind == ["blind, names anyhow", "blind, names by rack"]
    assert not any(VARIANTS[name].prefers_a_rack for name in blind)
