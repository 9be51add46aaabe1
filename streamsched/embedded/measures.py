"""What an embedded cluster tells Prometheus: read from the state when it is asked, so nothing is counted twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from streamsched.embedded.engine import Engine
from streamsched.simulation.fragmentation import fragmentation
from streamsched.state.cluster import ClusterState
from streamsched.state.straddling import straddling_runs
from streamsched.state.workloads import Phase


def registry_of(engine: Engine) -> CollectorRegistry:
    """Return a registry that reads the engine's state at every scrape."""
    registry = CollectorRegistry()
    registry.register(_StateCollector(engine))
    return registry


class _StateCollector:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> list[Metric]:
        """Name nothing in advance: there is no state to read while the registry is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        state = self._engine.state
        yield _gpus(state)
        yield from _waiting(state)
        yield from _shares(state)
        yield from _room(state)
        yield from _gangs(state)
        yield CounterMetricFamily(
            "streamsched_ledger_records", "Records folded; rises with everything that happens.", value=state.next_cursor
        )
        yield CounterMetricFamily(
            "streamsched_rounds",
            "Rounds closed; rises with every decision that places something.",
            value=state.closed_round,
        )
        ignored = CounterMetricFamily(
            "streamsched_ignored_events", "Facts that changed nothing, such as repeats.", labels=["reason"]
        )
        for reason, count in sorted(state.ignored.items()):
            ignored.add_metric([reason], count)
        yield ignored
        yield GaugeMetricFamily(
            "streamsched_commands_unacked",
            "Commands that no node has answered yet; rises when nodes are silent.",
            value=sum(len(waiting) for waiting in state.dispatch.unacknowledged.values()),
        )


def _gpus(state: ClusterState) -> Metric:
    gpus = GaugeMetricFamily(
        "streamsched_gpus", "GPUs by what they are used for; the sum is all of them.", labels=["state"]
    )
    total = sum(node.gpus for node in state.nodes.values())
    free = sum(node.free_mask.bit_count() for node in state.nodes.values() if node.takes_work)
    root = state.budgets.root
    gpus.add_metric(["free"], free)
    gpus.add_metric(["allocated"], root.allocated_gpus)
    gpus.add_metric(["unallocated"], root.unallocated_gpus)
    gpus.add_metric(["unavailable"], total - free - root.allocated_gpus - root.unallocated_gpus)
    return gpus


def _waiting(state: ClusterState) -> Iterator[Metric]:
    workloads = GaugeMetricFamily("streamsched_workloads", "Live workloads by phase.", labels=["phase"])
    counts = Counter(workload.phase for workload in state.workloads.values())
    for phase in Phase:
        if not phase.is_final:
            workloads.add_metric([phase], counts[phase])
    yield workloads
    oldest = min((w.queued_ms for w in state.workloads.values() if w.phase is Phase.QUEUED), default=state.now_ms)
    yield GaugeMetricFamily(
        "streamsched_oldest_pending_seconds",
        "How long the workload that waits longest has waited; 0 when none waits.",
        value=(state.now_ms - oldest) / 1_000,
    )


def _room(state: ClusterState) -> Iterator[Metric]:
    sample = fragmentation(state)
    yield GaugeMetricFamily(
        "streamsched_fragmentation_ratio",
        "Part of the free GPUs that no gang of whole nodes can use. Rises when free GPUs lie scattered.",
        value=float(sample.scattered or 0),
    )
    yield GaugeMetricFamily(
        "streamsched_kept_out_gpus",
        "GPUs asked for by waiting gangs that do not fit although enough GPUs are free.",
        value=sample.kept_out_gpus,
    )


def _gangs(state: ClusterState) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "streamsched_recovering_gangs",
        "Gangs for which GPUs are kept until they come back or move there. Rises when nodes of gangs are lost.",
        value=len(state.recoveries),
    )
    yield GaugeMetricFamily(
        "streamsched_straddling_runs",
        "Runs that no longer sit as they asked for. Rises when nodes below running gangs are relabelled.",
        value=straddling_runs(state.workloads.values()),
    )


def _shares(state: ClusterState) -> Iterator[Metric]:
    used = GaugeMetricFamily(
        "streamsched_share_used_ratio",
        "(charged + committed) / entitled GPU-time over the window; below 1, time is owed.",
        labels=["budget"],
    )
    quota = GaugeMetricFamily(
        "streamsched_share_entitled_ratio", "The budget's part of the cluster.", labels=["budget"]
    )
    for budget in state.budgets.root.below():
        name = budget.id or "/"
        quota.add_metric([name], budget.quota_nano / 1_000_000_000)
        entitled = budget.entitled_gpu_ms(state.now_ms)
        if entitled:
            spent = budget.charged_gpu_ms(state.now_ms) + budget.committed_gpu_ms(state.now_ms)
            used.add_metric([name], spent / entitled)
    yield quota
    yield used
