"""Prometheus names, units and meanings.

A metric is named after a word of the field and ends in its unit; its help says what makes it rise. Labels come from
closed sets or from the top of the budget tree, never from workloads.
"""

from __future__ import annotations

from collections import Counter as PyCounter
from collections.abc import Iterable, Mapping, Sized
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from streamsched.errors import ConfigurationError
from streamsched.model.events import NodeHealth
from streamsched.simulation.fragmentation import Fragmentation
from streamsched.state.inventory import Node
from streamsched.state.reasons import Ignored
from streamsched.state.straddling import straddling_runs
from streamsched.state.workloads import Phase, Workload

#: Reasons of the fold for facts that came too late to change anything.
_OVERTAKEN = frozenset({Ignored.STALE_ATTEMPT, Ignored.STALE_CHANGE})

#: From a broker's answer to a minute: decisions and their way to the nodes.
_LAG_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
#: From placed at once to a working week.
_WAIT_SECONDS = (0.1, 1, 5, 15, 60, 300, 900, 3_600, 4 * 3_600, 12 * 3_600, 86_400, 5 * 86_400)


class Metrics:
    """Everything one process tells Prometheus, in a registry of its own."""

    def __init__(self, cluster: str) -> None:
        """Create the metrics of one process.

        Args:
            cluster: The value of the label ``cluster``.
        """
        self.cluster = cluster
        self.registry = CollectorRegistry()
        self._ignored: dict[str, int] = {}
        self.events = Counter(
            "streamsched_events_total",
            "Source records that intake appended to the ledger as events.",
            ("type",),
            registry=self.registry,
        )
        self.events_rejected = Counter(
            "streamsched_events_rejected_total",
            "Source records that were no event of ours; each is a dead letter.",
            ("type", "reason"),
            registry=self.registry,
        )
        self.duplicate_events = self._counter(
            "streamsched_duplicate_events_total",
            "Ledger records that repeat a source record, after intake restarted or rebalanced. The fold drops them.",
        )
        self.late_events = self._counter(
            "streamsched_late_events_total",
            "Ledger records of facts that another one had overtaken. The fold drops them.",
        )
        self.source_gaps = self._counter(
            "streamsched_source_gaps_total",
            "Times a source's sequence jumped: records of it never reached the ledger. Must stay at 0.",
        )
        self.round_duration = Histogram(
            "streamsched_round_duration_seconds",
            "Time this replica took for a proposal: phase=decide to compute it, phase=append to have it in the ledger.",
            ("cluster", "phase"),
            buckets=_LAG_SECONDS,
            registry=self.registry,
        )
        self.decision_lag = self._histogram(
            "streamsched_decision_lag_seconds",
            "Time from a record's append to its fold and the sending of its commands, by the two machines' clocks.",
            _LAG_SECONDS,
        )
        self.queue_wait = Histogram(
            "streamsched_queue_wait_seconds",
            "Time from queued to placed.",
            ("team", "size_class", "allocated"),
            buckets=_WAIT_SECONDS,
            registry=self.registry,
        )
        self.pending_workloads = Gauge(
            "streamsched_pending_workloads",
            "Workloads that wait for GPUs.",
            ("team", "size_class"),
            registry=self.registry,
        )
        self.gpus = Gauge(
            "streamsched_gpus",
            "GPUs by what they do now; the states add up to all GPUs known.",
            ("cluster", "kind", "state"),
            registry=self.registry,
        )
        self.fragmentation = self._gauge(
            "streamsched_fragmentation_ratio",
            "Part of the free GPUs that no gang of whole nodes can use. Rises when free GPUs lie scattered.",
        )
        self.kept_out_gpus = self._gauge(
            "streamsched_kept_out_gpus",
            "GPUs asked for by waiting gangs that do not fit although enough GPUs are free.",
        )
        self.recovering_gangs = self._gauge(
            "streamsched_recovering_gangs",
            "Gangs for which GPUs are kept until they come back or move there. Rises when nodes of gangs are lost.",
        )
        self.straddling_runs = self._gauge(
            "streamsched_straddling_runs",
            "Runs that no longer sit as they asked for. Rises when nodes below running gangs are relabelled.",
        )
        self.commands_unacked = self._gauge(
            "streamsched_commands_unacked", "Commands that no node has acknowledged. Rises when agents are down."
        )
        self.nodes = Gauge(
            "streamsched_node_state",
            "Nodes by health, as the health agent last said.",
            ("state",),
            registry=self.registry,
        )
        self.recovery = self._histogram(
            "streamsched_recovery_seconds",
            "Time a scheduler took at its start to fold the ledger up to its end.",
            (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900),
        )
        self.ledger_cursor = self._gauge("streamsched_ledger_cursor", "Records this scheduler has folded.")

    def serve(self, host: str, port: int) -> WSGIServer:
        """Answer Prometheus on `host`:`port` from a thread of its own; close the server that is returned to stop it.

        Raises:
            ConfigurationError: The address cannot be bound.
        """
        try:
            server, _ = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise ConfigurationError(
                f"metrics_port={port} on host={host!r} cannot be opened: {error.strerror or error}. "
                "Choose a free port, or an address of this machine."
            ) from error
        return server

    def show_ignored(self, ignored: Mapping[str, int]) -> None:
        """Count the facts that the fold dropped since the last call, from its running counts by reason."""
        for reason, count in ignored.items():
            fresh = count - self._ignored.get(reason, 0)
            self._ignored[reason] = count
            if reason == Ignored.REPEATED:
                self.duplicate_events.inc(fresh)
            elif reason in _OVERTAKEN:
                self.late_events.inc(fresh)

    def show_workloads(self, workloads: Iterable[Workload]) -> None:
        """Set the gauges of what waits."""
        waiting: PyCounter[tuple[str, ...]] = PyCounter(
            (team_of(workload.budget.id), size_class(workload.gpus))
            for workload in workloads
            if workload.phase is Phase.QUEUED
        )
        _set_all(self.pending_workloads, waiting)

    def show_nodes(self, nodes: Iterable[Node]) -> None:
        """Set the gauges of the machines and their GPUs; all GPUs of a node that is not healthy count as unhealthy.

        What is free on a healthy node that takes no work is drained.
        """
        health: PyCounter[tuple[str, ...]] = PyCounter()
        gpus: PyCounter[tuple[str, ...]] = PyCounter()
        for node in nodes:
            health[(node.health.value,)] += 1
            if node.health is not NodeHealth.HEALTHY:
                gpus[(self.cluster, node.pool, "unhealthy")] += node.gpus
                continue
            unallocated = node.preemptible_mask.bit_count()
            free = node.free_mask.bit_count()
            gpus[(self.cluster, node.pool, "free" if node.takes_work else "drained")] += free
            gpus[(self.cluster, node.pool, "unallocated")] += unallocated
            gpus[(self.cluster, node.pool, "allocated")] += node.occupied_gpus - unallocated
            gpus[(self.cluster, node.pool, "held")] += node.gpus - free - node.occupied_gpus
        _set_all(self.nodes, health)
        _set_all(self.gpus, gpus)

    def show_gangs(self, recoveries: Sized, workloads: Iterable[Workload]) -> None:
        """Set the gauges of the gangs that are not where they should be: they recover, or straddle."""
        self.recovering_gangs.set(len(recoveries))
        self.straddling_runs.set(straddling_runs(workloads))

    def show_fragmentation(self, sample: Fragmentation) -> None:
        """Set the gauges of how free GPUs lie, and whom that keeps out."""
        self.fragmentation.set(float(sample.scattered or 0))
        self.kept_out_gpus.set(sample.kept_out_gpus)

    def _counter(self, name: str, meaning: str) -> Counter:
        return Counter(name, meaning, ("cluster",), registry=self.registry).labels(self.cluster)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(name, meaning, ("cluster",), registry=self.registry).labels(self.cluster)

    def _histogram(self, name: str, meaning: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(name, meaning, ("cluster",), buckets=tuple(buckets), registry=self.registry).labels(
            self.cluster
        )


def _set_all(gauge: Gauge, values: PyCounter[tuple[str, ...]]) -> None:
    """Make a gauge show these values, by their labels, and no others."""
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)


def team_of(budget: str) -> str:
    """Return the top of a budget's path: the only part of it that is fit for a label.

    >>> team_of("nlp/llama/eval")
    'nlp'
    """
    return budget.partition("/")[0]


def size_class(gpus: int) -> str:
    """Return the class of a gang's size, a closed set for labels.

    >>> [size_class(gpus) for gpus in (1, 8, 9, 64, 65)]
    ['node', 'node', 'nodes', 'nodes', 'supernodes']
    """
    if gpus <= 8:
        return "node"
    return "nodes" if gpus <= 64 else "supernodes"
