"""What the topology is worth to a real demand: the same weeks with and without an eye on racks and leaves.

    python -m replay.studies.affinity                     # every policy on both sizes of the cluster
    python -m replay.studies.affinity --on 64 --only "bandwidth first"
    python -m replay.studies.affinity --days 1 --warm-up 0

Runs are deterministic: the same commit gives the same figures on any machine, except for the CPU time.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from random import Random
from time import process_time
from typing import Final

from streamsched.model.events import Record
from streamsched.model.policy import DEFAULT_POLICY, Levels, Policy
from streamsched.model.quantities import DAY, HOUR, SECOND
from streamsched.model.topology import Layer, Preference, TopologyRequest, Wish
from streamsched.node.virtual_node import VirtualNode
from streamsched.simulation.demand import Demand, Submission
from streamsched.simulation.fragmentation import Fragmentation
from streamsched.simulation.outcomes import OutcomeRecorder
from streamsched.simulation.simulator import simulate
from streamsched.simulation.traces import read_philly
from streamsched.simulation.virtual_cluster import VirtualCluster
from streamsched.state.cluster import ClusterState, Effects

GPUS_PER_NODE: Final = 8
NODES_PER_RACK: Final = 4
NODES_PER_LEAF: Final = 16
#: Cluster sizes in nodes. The four weeks that count ask for 325 GPUs on average: 63 % and 85 % of these.
SIZES: Final = (64, 48)

_TRACES: Final = Path(__file__).resolve().parents[1] / "traces"
#: Monday 2017-10-30 00:00, US Pacific summer time: 125 of the trace's 289 gangs come in the four weeks from 11-06.
_SINCE_MS: Final = 1_509_346_800_000
#: Gangs from this size on ask for one rack, in the rows that say so.
_LAYERED_GPUS: Final = 16


@dataclass(frozen=True, slots=True)
class Variant:
    """How gangs are seated.

    Attributes:
        preference: What is better among placements; None for a scheduler that is told of no levels.
        is_named_in_order: Whether the names of nodes go by rack, so that a blind scheduler keeps to racks by chance.
        prefers_a_rack: Whether gangs of 16 GPUs and more ask for one rack, and take more where it cannot be had.
    """

    preference: Preference | None
    is_named_in_order: bool = True
    prefers_a_rack: bool = False


#: What is compared, by the name of the row.
VARIANTS: Final[Mapping[str, Variant]] = {
    "blind, names anyhow": Variant(None, is_named_in_order=False),
    "blind, names by rack": Variant(None),
    "utilization first": Variant(Preference.UTILIZATION_FIRST),
    "bandwidth first": Variant(Preference.BANDWIDTH_FIRST),
    "utilization first, a rack preferred": Variant(Preference.UTILIZATION_FIRST, prefers_a_rack=True),
    "bandwidth first, a rack preferred": Variant(Preference.BANDWIDTH_FIRST, prefers_a_rack=True),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node stands."""

    leaf: str
    rack: str


class DomainRecorder:
    """Observes which domains the starts of gangs touch, and once an hour how large a gang of whole nodes could start.

    Args:
        places: Where each node stands, by its name.
        from_ms: What happens earlier counts for nothing.
    """

    def __init__(self, places: Mapping[str, Place], from_ms: int) -> None:
        #: Of each start of a gang on more than one node.
        self.nodes: list[int] = []
        self.racks: list[int] = []
        self.leaves: list[int] = []
        #: By sample, GPUs of the largest gang of whole free nodes in one rack, in one leaf, and anywhere.
        self.largest: list[tuple[int, int, int]] = []
        self._places = places
        self._from_ms = self._next_ms = from_ms

    def __call__(self, record: Record, effects: Effects, state: ClusterState) -> None:
        """Take one folded record."""
        if state.now_ms < self._from_ms:
            return
        self._note_starts(effects)
        if record.event.type == "round_proposed" and state.now_ms >= self._next_ms:
            self._next_ms = (state.now_ms // HOUR + 1) * HOUR
            self._sample(state)

    def _note_starts(self, effects: Effects) -> None:
        """Count the domains of the gangs that are placed by a record: all nodes of one get their command at once."""
        gangs: dict[tuple[str, int], set[str]] = {}
        for command in effects.commands:
            if command.type == "place":
                gangs.setdefault((command.workload, command.attempt), set()).add(command.node)
        for nodes in gangs.values():
            if len(nodes) > 1:
                places = {self._places[node] for node in nodes}
                self.nodes.append(len(nodes))
                self.racks.append(len({place.rack for place in places}))
                self.leaves.append(len({place.leaf for place in places}))

    def _sample(self, state: ClusterState) -> None:
        racks: Counter[str] = Counter()
        leaves: Counter[str] = Counter()
        for name, place in self._places.items():
            node = state.inventory.nodes[name]
            if node.takes_work and node.free_mask == node.all_mask:
                racks[place.rack] += node.gpus
                leaves[place.leaf] += node.gpus
        self.largest.append((max(racks.values(), default=0), max(leaves.values(), default=0), racks.total()))


def run(nodes: int, name: str, warm_up_days: int, days: int, seed: int) -> dict[str, float]:
    """Simulate one row and return its columns, in the units that their names say.

    The seed says which jobs of the trace are unallocated.
    """
    began = process_time()
    variant = VARIANTS[name]
    policy = _policy(variant)
    from_ms = _SINCE_MS + warm_up_days * DAY
    until_ms = from_ms + days * DAY
    cluster, places = _cluster(nodes, variant)
    domains = DomainRecorder(places, from_ms)
    recorder = OutcomeRecorder(from_ms)
    state = simulate(
        _demand(variant, policy, until_ms, seed),
        cluster,
        policy,
        since_ms=_SINCE_MS,
        until_ms=until_ms,
        observers=[recorder, domains],
    )
    outcomes = recorder.outcomes(state, until_ms=until_ms)
    in_rack, in_leaf, anywhere = zip(*domains.largest, strict=True)
    samples = outcomes.fragmentation
    return {
        "starts": len(domains.racks),
        "nodes": _mean(domains.nodes),
        "racks": _mean(domains.racks),
        "racks p90": _p90(domains.racks),
        "in 1 rack %": 100 * _mean([racks == 1 for racks in domains.racks]),
        "leaves": _mean(domains.leaves),
        "leaves p90": _p90(domains.leaves),
        "in 1 leaf %": 100 * _mean([leaves == 1 for leaves in domains.leaves]),
        "free": _mean([sample.free_gpus for sample in samples]),
        "scattered %": 100 * _scattered(samples),
        "kept out %": 100 * float(outcomes.kept_out_share or 0),
        "largest, rack": _mean(in_rack),
        "leaf": _mean(in_leaf),
        "anywhere": _mean(anywhere),
        "wait min": (outcomes.cluster.waits.mean_ms or 0) / (60 * SECOND),
        "9-64 GPUs": (outcomes.waits_by_size["9 to 64 GPUs"].mean_ms or 0) / (60 * SECOND),
        "occupancy %": 100 * float(outcomes.occupancy or 0),
        "CPU s": process_time() - began,
    }


def _policy(variant: Variant) -> Policy:
    if variant.preference is None:
        return DEFAULT_POLICY
    levels = (Levels(names=("leaf", "rack")),)
    return Policy(**{**dict(DEFAULT_POLICY), "levels": levels, "preference": variant.preference})


def _cluster(nodes: int, variant: Variant) -> tuple[VirtualCluster, dict[str, Place]]:
    """Return ideal nodes, and where each stands. Without named levels, what they report only orders them."""
    names = [f"node-{number:03d}" for number in range(nodes)]
    if not variant.is_named_in_order:
        Random(1).shuffle(names)
    places = {
        name: Place(f"leaf-{number // NODES_PER_LEAF:02d}", f"rack-{number // NODES_PER_RACK:02d}")
        for number, name in enumerate(names)
    }
    virtual_nodes = [
        VirtualNode(
            name,
            pool="gpu",
            gpus=GPUS_PER_NODE,
            domains=(places[name].leaf, places[name].rack) if variant.preference is not None else (),
            random=Random(name),
        )
        for name in sorted(names)
    ]
    return VirtualCluster(virtual_nodes), places


def _demand(variant: Variant, policy: Policy, until_ms: int, seed: int) -> Demand:
    demand = read_philly(
        _TRACES / "philly_2017_jobs.csv.gz",
        _TRACES / "philly_2017_vc_nodes.csv",
        since_ms=_SINCE_MS,
        until_ms=until_ms,
        seed=seed,
        min_runtime_cap_ms=policy.min_runtime_cap_ms,
    )
    if not variant.prefers_a_rack:
        return demand
    return replace(demand, submissions=tuple(_preferring_a_rack(asked) for asked in demand.submissions))


def _preferring_a_rack(asked: Submission) -> Submission:
    workload = asked.workload
    if workload.ranks * workload.gpus_per_rank < _LAYERED_GPUS:
        return asked
    topology = TopologyRequest(layers=(Layer(level="rack", wish=Wish.PREFERRED),))
    return replace(asked, workload=workload.model_copy(update={"topology": topology}))


def _scattered(samples: Iterable[Fragmentation]) -> float:
    """Return the part of all free GPUs, over the samples, that no gang of whole nodes could use."""
    pairs = [(sample.free_gpus, sample.largest_free_gpus) for sample in samples]
    free = sum(free for free, _ in pairs)
    return float(1 - Fraction(sum(largest for _, largest in pairs), free)) if free else 0.0


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _p90(values: Sequence[int]) -> int:
    """Return the least value that nine of ten do not exceed."""
    return sorted(values)[-(-9 * len(values) // 10) - 1] if values else 0


#: How a column is shown, where not with one digit.
_SHOWN: Final = {
    "starts": "{:.0f}",
    "nodes": "{:.2f}",
    "racks": "{:.2f}",
    "racks p90": "{:.0f}",
    "leaves": "{:.2f}",
    "leaves p90": "{:.0f}",
    "CPU s": "{:.0f}",
}


def table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Return rows of equal columns, by their names, as Markdown."""
    columns = list(next(iter(rows.values())))
    lines = ["| policy | " + " | ".join(columns) + " |", "|---" + "|--:" * len(columns) + "|"]
    for name, row in rows.items():
        cells = (_SHOWN.get(column, "{:.1f}").format(row[column]) for column in columns)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked for, and print a table for each size of the cluster."""
    parser = argparse.ArgumentParser(prog="python -m replay.studies.affinity", description=__doc__.split("\n")[0])
    parser.add_argument("--on", action="append", type=int, choices=SIZES, help="only so many nodes; may be repeated")
    parser.add_argument("--only", action="append", choices=list(VARIANTS), help="only this policy; may be repeated")
    parser.add_argument("--warm-up", type=int, default=7, help="days in which the cluster fills (default: 7)")
    parser.add_argument("--days", type=int, default=28, help="days that count after those (default: 28)")
    parser.add_argument("--seed", type=int, default=1, help="of which jobs are unallocated (default: 1)")
    parser.add_argument("--processes", type=int, default=2, help="how many runs at a time (default: 2)")
    asked = parser.parse_args(arguments)
    names = asked.only or list(VARIANTS)
    with ProcessPoolExecutor(asked.processes) as pool:
        for nodes in asked.on or SIZES:
            futures = {name: pool.submit(run, nodes, name, asked.warm_up, asked.days, asked.seed) for name in names}
            rows = {name: future.result() for name, future in futures.items()}
            sys.stdout.write(
                f"## {nodes} nodes, seed {asked.seed}, {asked.days} days after {asked.warm_up}\n\n{table(rows)}\n\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
