"""What can be said to the embedded service over HTTP: each request, and how its answer is read. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from streamsched.errors import RequestError, UnreachableError
from streamsched.model.commands import Receipt
from streamsched.model.events import (
    BudgetTreeChanged,
    NodeDrainChanged,
    NodesRelabelled,
    PolicyAdopted,
    RunExtended,
    UsageAdjusted,
    WorkloadCancelled,
    WorkloadReprioritized,
    WorkloadSubmitted,
)
from streamsched.replay.answers import Explanation, JobFilter, Jobs, Nodes, PolicyInForce, Shares, Summary

A = TypeVar("A", bound=BaseModel)

#: What is sent to ``/v1/events``: everything that is no submission and no cancellation.
ControlEvent = (
    BudgetTreeChanged
    | UsageAdjusted
    | PolicyAdopted
    | WorkloadReprioritized
    | RunExtended
    | NodeDrainChanged
    | NodesRelabelled
)


class Health(BaseModel):
    """How the service is.

    Attributes:
        next_cursor: How many records its state holds.
        at_ms: The ledger's time, in milliseconds since 1970 UTC.
        version: The build that answers.
    """

    model_config = ConfigDict(frozen=True)

    status: Literal["ok"] = "ok"
    next_cursor: int
    at_ms: int
    version: str


class Problem(BaseModel):
    """The body of an answer that is no receipt: what is wrong with the request, and what would be right.

    Attributes:
        code: A word from a closed list.
        reason: For people: the field, its value and the remedy.
    """

    model_config = ConfigDict(frozen=True)

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Exchange(Generic[A]):
    """One request and the kind of its answer.

    Attributes:
        target: The path and the query.
        body: JSON, or None for a request that only reads.
        answer: The model of a good answer.
    """

    method: Literal["GET", "POST"]
    target: str
    body: bytes | None
    answer: type[A]

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers to send."""
        return {} if self.body is None else {"Content-Type": "application/json"}

    def read(self, status: int, body: bytes) -> A:
        """Return the answer.

        A request that was understood and rejected has an answer too: a receipt that says why.

        Raises:
            RequestError: The service did not take the request.
            UnreachableError: The service is stopping or broken, or something else answered in its place.
        """
        if status < 400 or (status in (404, 409, 422) and b'"status":"rejected"' in body):
            try:
                # Only what our own service sends is read here; JSON has no tuples, so this is not strict.
                return self.answer.model_validate_json(body, strict=False)
            except ValidationError as error:
                raise UnreachableError(
                    f"the answer to {self.method} {self.target} is not one of streamsched's. "
                    "Check the address, and that client and service have the same version."
                ) from error
        try:
            problem = Problem.model_validate(orjson.loads(body)["error"])
        except (ValueError, KeyError, TypeError) as error:
            raise UnreachableError(
                f"{self.method} {self.target} was answered with HTTP status {status} and no reason of streamsched's. "
                "Check the address."
            ) from error
        if status >= 500:
            raise UnreachableError(problem.reason)
        raise RequestError(problem.code, problem.reason)


def submit(event: WorkloadSubmitted) -> Exchange[Receipt]:
    """Ask for GPUs."""
    return Exchange("POST", "/v1/workloads", _body(event), Receipt)


def cancel(event: WorkloadCancelled) -> Exchange[Receipt]:
    """Take a workload back, queued or running."""
    return Exchange("POST", f"/v1/workloads/{quote(event.workload, safe='')}/cancel", _body(event), Receipt)


def control(event: ControlEvent) -> Exchange[Receipt]:
    """Change the budget tree, the policy, a priority, a session's protection, or whether a node is used."""
    return Exchange("POST", "/v1/events", _body(event), Receipt)


def jobs(wanted: JobFilter) -> Exchange[Jobs]:
    """Ask for the workloads."""
    query = urlencode(wanted.model_dump(mode="json", exclude_defaults=True), doseq=True)
    return Exchange("GET", "/v1/jobs" + (f"?{query}" if query else ""), None, Jobs)


def explain(workload: str) -> Exchange[Explanation]:
    """Ask what happened to a workload, and why it is where it is."""
    return Exchange("GET", f"/v1/jobs/{quote(workload, safe='')}", None, Explanation)


def shares() -> Exchange[Shares]:
    """Ask for the budget tree with what each part of it used."""
    return Exchange("GET", "/v1/shares", None, Shares)


def nodes() -> Exchange[Nodes]:
    """Ask for the machines."""
    return Exchange("GET", "/v1/nodes", None, Nodes)


def policy() -> Exchange[PolicyInForce]:
    """Ask how the cluster is scheduled."""
    return Exchange("GET", "/v1/policy", None, PolicyInForce)


def summary() -> Exchange[Summary]:
    """Ask for the state in a few numbers, its digest among them."""
    return Exchange("GET", "/v1/state", None, Summary)


def health() -> Exchange[Health]:
    """Ask whether the service is there."""
    return Exchange("GET", "/healthz", None, Health)


def _body(event: BaseModel) -> bytes:
    return event.model_dump_json(exclude_none=True).encode()
