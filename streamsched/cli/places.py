"""Where a command asks: a service over HTTP, a cluster on Kafka, or a recorded ledger.

All three answer with the same values. A recorded ledger, and Kafka, are answered by folding the ledger here.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from streamsched.cli.moments import Moment
from streamsched.client.http import Client
from streamsched.client.kafka import KafkaClient
from streamsched.client.requests import cancellation
from streamsched.errors import RequestError
from streamsched.ledgers.opening import open_ledger
from streamsched.model.commands import Receipt
from streamsched.model.events import (
    BudgetTreeChanged,
    NodeDrainChanged,
    NodesRelabelled,
    PolicyAdopted,
    RunExtended,
    UsageAdjusted,
    WorkloadSubmitted,
)
from streamsched.model.ledger import Ledger
from streamsched.replay import answers
from streamsched.replay.answers import Explanation, JobFilter, Jobs, Nodes, PolicyInForce, Shares
from streamsched.replay.replayer import Progress, fold
from streamsched.replay.story import Chronicle
from streamsched.state.cluster import ClusterState
from streamsched.wire.topic_catalogue import DEFAULT_PREFIX

LEDGER_TOPIC = "ledger.v1"
#: The ledger inside the data directory of ``streamsched up``.
UP_LEDGER = "ledger.sqlite"

#: What administrators ask for, and whoever sits at a session.
Request = BudgetTreeChanged | UsageAdjusted | PolicyAdopted | RunExtended | NodeDrainChanged | NodesRelabelled

_KAFKA = re.compile(r"kafka://(?P<bootstrap>[^/\s]+:\d+)(?:/(?P<prefix>[A-Za-z0-9._-]*))?")


class Place(Protocol):
    """Something that answers questions about a cluster and may take requests for it."""

    def submit(self, submission: WorkloadSubmitted) -> Receipt:
        """Ask for GPUs."""
        ...

    def cancel(self, workload: str, *, reason: str | None, actor: str | None) -> Receipt:
        """Take a workload back."""
        ...

    def control(self, event: Request) -> Receipt:
        """Change the budget tree, the policy, what was charged, a session's protection, or whether a node is used."""
        ...

    def jobs(self, wanted: JobFilter) -> Jobs:
        """Return the workloads."""
        ...

    def explain(self, workload: str) -> Explanation:
        """Return everything about one workload."""
        ...

    def shares(self) -> Shares:
        """Return the budget tree."""
        ...

    def nodes(self) -> Nodes:
        """Return the machines."""
        ...

    def policy(self) -> PolicyInForce:
        """Return how the cluster is scheduled."""
        ...


def place_of(address: str, at: Moment | None = None, progress: Progress | None = None) -> Place:
    """Return the place that an address names.

    Args:
        address: ``http://HOST:PORT``, ``kafka://HOST:PORT[/PREFIX]``, or the path of a recorded ledger.
        at: The moment to answer for; only a ledger can go back to one.
        progress: Told how far a ledger has been folded.

    Raises:
        RequestError: The address is none of these, or `at` is given where there is no ledger.
    """
    if address.startswith("http://"):
        if at is not None:
            raise RequestError(
                "invalid",
                "--at needs a ledger, and a service only knows the present. Name its ledger with --from, such as "
                f"--from streamsched-data/{UP_LEDGER}.",
            )
        return _Service(Client(address))
    if (kafka := _KAFKA.fullmatch(address)) is not None:
        prefix = (kafka["prefix"] or DEFAULT_PREFIX).removesuffix(LEDGER_TOPIC)
        return _Recorded(
            f"kafka://{kafka['bootstrap']}/{prefix}{LEDGER_TOPIC}", at, progress, (kafka["bootstrap"], prefix)
        )
    if "://" in address:
        raise RequestError(
            "invalid",
            f"--from is {address!r}; name a service (http://127.0.0.1:7070), a cluster on Kafka "
            "(kafka://HOST:PORT/PREFIX) or the path of a ledger.",
        )
    return _Recorded(address, at, progress, None)


async def open_recorded(address: str) -> Ledger:
    """Open a ledger for reading.

    Besides `open_ledger`'s addresses these are a data directory of ``streamsched up``, and a cluster on Kafka by its
    prefix, which ends with a dot or is absent.
    """
    hush_kafka()
    if (kafka := _KAFKA.fullmatch(address)) is not None:
        prefix = kafka["prefix"] or DEFAULT_PREFIX
        if prefix.endswith("."):
            address = f"kafka://{kafka['bootstrap']}/{prefix}{LEDGER_TOPIC}"
    inside = Path(address) / UP_LEDGER
    return await open_ledger(str(inside) if inside.is_file() else address)


class _Service:
    """The embedded service."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.submit = client.submit
        self.jobs = client.jobs
        self.explain = client.explain
        self.shares = client.shares
        self.nodes = client.nodes
        self.policy = client.policy

    def cancel(self, workload: str, *, reason: str | None, actor: str | None) -> Receipt:
        return self._client.cancel(workload, reason=reason, actor=actor)

    def control(self, event: Request) -> Receipt:
        return self._client.control(event)


class _Recorded:
    """A ledger, folded for each question; on Kafka, requests go to the topics beside it."""

    def __init__(
        self, address: str, at: Moment | None, progress: Progress | None, kafka: tuple[str, str] | None
    ) -> None:
        self._address = address
        self._at = at
        self._progress = progress
        self._kafka = kafka

    def submit(self, submission: WorkloadSubmitted) -> Receipt:
        return self._on_kafka(lambda client: client.submit(submission))

    def cancel(self, workload: str, *, reason: str | None, actor: str | None) -> Receipt:
        request = cancellation(workload, reason=reason, actor=actor)
        return self._on_kafka(lambda client: client.send(request))

    def control(self, event: Request) -> Receipt:
        return self._on_kafka(lambda client: client.send(event))

    def jobs(self, wanted: JobFilter) -> Jobs:
        chronicle = Chronicle()
        return answers.jobs(self._state(chronicle), chronicle, wanted)

    def explain(self, workload: str) -> Explanation:
        chronicle = Chronicle(only=workload)
        explanation = answers.explain(self._state(chronicle), chronicle, workload)
        if explanation is None:
            raise RequestError("not_found", answers.unknown_workload(workload))
        return explanation

    def shares(self) -> Shares:
        return answers.shares(self._state(None))

    def nodes(self) -> Nodes:
        return answers.nodes(self._state(None))

    def policy(self) -> PolicyInForce:
        return answers.policy(self._state(None))

    def _state(self, chronicle: Chronicle | None) -> ClusterState:
        return asyncio.run(self._fold(chronicle))

    async def _fold(self, chronicle: Chronicle | None) -> ClusterState:
        ledger = await open_recorded(self._address)
        try:
            return await fold(
                ledger,
                until_cursor=await until_cursor(ledger, self._at),
                at_ms=self._at.at_ms if self._at is not None else None,
                observe=chronicle.observe if chronicle is not None else None,
                progress=self._progress,
            )
        finally:
            await ledger.close()

    def _on_kafka(self, ask: Callable[[KafkaClient], Coroutine[Any, Any, Receipt]]) -> Receipt:
        if self._kafka is None:
            raise RequestError(
                "invalid",
                f"--to is {self._address!r}, a recorded ledger, which takes no requests. Name a live cluster.",
            )
        return asyncio.run(self._ask_kafka(ask, *self._kafka))

    async def _ask_kafka(
        self, ask: Callable[[KafkaClient], Coroutine[Any, Any, Receipt]], bootstrap: str, prefix: str
    ) -> Receipt:
        hush_kafka()
        async with KafkaClient(bootstrap, prefix) as client:
            return await ask(client)


async def until_cursor(ledger: Ledger, at: Moment | None) -> int | None:
    """Return how many records to fold for a moment that is a cursor; None for all.

    Raises:
        RequestError: The ledger has no record at the cursor.
    """
    if at is None or at.cursor is None:
        return None
    end = await ledger.end()
    if at.cursor >= end:
        last = f"the last is at {end - 1}" if end else "it is empty"
        raise RequestError("not_found", f"--at is {at.cursor}, and the ledger has no such record: {last}.")
    return at.cursor + 1


def hush_kafka() -> None:
    """Keep aiokafka's log off the screen: it repeats by itself what fails, and what fails for good our errors tell."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
