"""What clients ask for, made and checked on their side: the same models that intake validates with.

A request that a model refuses never leaves the client. The client chooses the id of a workload, so sending a request
again is harmless: the same submission twice is one workload.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from streamsched.errors import RequestError
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
from streamsched.model.topology import TopologyRequest
from streamsched.wire.refusals import refusal_of

E = TypeVar(
    "E",
    WorkloadSubmitted,
    WorkloadCancelled,
    WorkloadReprioritized,
    RunExtended,
    BudgetTreeChanged,
    UsageAdjusted,
    PolicyAdopted,
    NodeDrainChanged,
    NodesRelabelled,
)


def new_id() -> str:
    """Return a new id in the form of a UUID version 7: unique, and in the order in which ids are made."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10))
    value = (milliseconds & (1 << 48) - 1) << 80 | random
    value = value & ~(0xF << 76) | 0x7 << 76  # The version.
    value = value & ~(0x3 << 62) | 0x2 << 62  # The variant.
    return str(uuid.UUID(int=value))


def submission(
    *,
    budget: str,
    ranks: int = 1,
    gpus_per_rank: int = 1,
    min_runtime_ms: int = 0,
    workload: str | None = None,
    pool: str | None = None,
    timeout_ms: int | None = None,
    resumable: bool = False,
    priority: int = 0,
    command: tuple[str, ...] = (),
    interactive: bool = False,
    topology: TopologyRequest | None = None,
    actor: str | None = None,
) -> WorkloadSubmitted:
    """Return a checked submission. See `WorkloadSubmitted` for what the fields mean.

    Args:
        workload: Its id; a new one when None. Keep it to send the same request again.

    Raises:
        RequestError: A field has a value that no scheduler would take.
    """
    return checked(
        WorkloadSubmitted,
        {
            "workload": new_id() if workload is None else workload,
            "budget": budget,
            "pool": pool,
            "ranks": ranks,
            "gpus_per_rank": gpus_per_rank,
            "min_runtime_ms": min_runtime_ms,
            "timeout_ms": timeout_ms,
            "resumable": resumable,
            "priority": priority,
            "command": command,
            "interactive": interactive,
            "topology": topology,
            "actor": actor,
            "corr": new_id(),
        },
    )


def cancellation(workload: str, *, reason: str | None = None, actor: str | None = None) -> WorkloadCancelled:
    """Return a checked cancellation.

    Raises:
        RequestError: A field has a value that no scheduler would take.
    """
    return checked(WorkloadCancelled, {"workload": workload, "reason": reason, "actor": actor, "corr": new_id()})


def checked(model: type[E], fields: Mapping[str, Any]) -> E:
    """Return the event with these fields.

    Raises:
        RequestError: Naming the field at fault, its value and what it may be, in the words that intake uses.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        refused = refusal_of(error, model, model.model_fields["type"].default, None)
        raise RequestError(refused.code, refused.reason) from error
