"""Heartbeats: what a node agent says every few seconds on ``node-status.v1``. They are no events; see the health agent.

A heartbeat restates everything, so one that is lost or repeated does no harm.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamsched.model.events import Instant, NodeHealth
from streamsched.model.identifiers import CommandId, NodeId, Reason
from streamsched.wire.refusals import refusal_of


class Heartbeat(BaseModel):
    """A node agent is alive, and how its machine is.

    Attributes:
        node: Also the key of the record.
        boot: The agent's boot id; it changes when the machine restarts.
        health: ``healthy`` or ``unhealthy``; that a node is lost is for others to say.
        reason: Why it is unhealthy.
        fatal: An unhealthy machine on which nothing may go on, such as one with a GPU that is beyond recovery.
        at_ms: When the agent says it is. A hint: the lease runs on the reader's clock.
        watermark: The last command that the agent has obeyed; absent before the first.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    type: Literal["heartbeat"] = "heartbeat"
    v: Literal[1] = 1
    node: NodeId
    boot: Annotated[str, Field(min_length=1, max_length=128)]
    health: Literal[NodeHealth.HEALTHY, NodeHealth.UNHEALTHY]
    reason: Reason | None = None
    fatal: bool = False
    at_ms: Instant
    watermark: CommandId | None = None


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return the heartbeat as JSON."""
    return heartbeat.model_dump_json(exclude_none=True).encode()


def decode_heartbeat(data: bytes) -> Heartbeat:
    """Read a heartbeat.

    Raises:
        WireError: It is none; the message names the field, the value and what it must be.
    """
    try:
        return Heartbeat.model_validate_json(data)
    except ValidationError as error:
        raise refusal_of(error, Heartbeat, "heartbeat", None) from None
