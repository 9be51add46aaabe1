"""The knobs of scheduling, validated together. A policy is a fact: it is adopted by an event and has a version.

Only knobs that something reads are here; a field without an effect would be a promise nobody keeps.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND

Positive = Annotated[int, Field(ge=1, le=366 * DAY)]
Duration = Annotated[int, Field(ge=0, le=366 * DAY)]


class Policy(BaseModel):
    """How one cluster is scheduled. All times are milliseconds.

    Source: `fair-share.md`, sections 3 and 4; the defaults are the ones it gives.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    window_ms: Positive = Field(default=7 * DAY, description="The lookback window over which usage counts.")
    min_runtime_floor_ms: Positive = Field(
        default=5 * MINUTE, description="The shortest min runtime that allocated work may ask for."
    )
    min_runtime_cap_ms: Positive = Field(
        default=8 * HOUR, description="The longest min runtime; also the floor of an entitlement, in time."
    )
    start_deadline_ms: Positive = Field(
        default=30 * MINUTE, description="A run that has not started this long after it was placed has failed."
    )
    grace_ms: Duration = Field(default=60 * SECOND, description="Time between a stop and the kill, allocated work.")
    unallocated_grace_ms: Duration = Field(
        default=10 * SECOND, description="Time between a stop and the kill, unallocated work."
    )
    stop_timeout_ms: Positive = Field(
        default=60 * SECOND,
        description="Time after the grace in which a stop must be confirmed; a placement that waits for it then fails.",
    )
    resend_ms: Positive = Field(
        default=15 * SECOND, description="A command that no node has acknowledged is sent again after this time."
    )
    tick_ms: Positive = Field(default=10 * SECOND, description="The longest time between two ticks of a live ledger.")
    placements_per_round: Annotated[int, Field(ge=1, le=1_000)] = Field(
        default=200, description="The most gangs one proposal may place; the next round follows at once."
    )
    finished_kept_ms: Duration = Field(
        default=30 * DAY, description="How long the id of a finished workload is remembered, so that a retry is seen."
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.min_runtime_floor_ms > self.min_runtime_cap_ms:
            raise ValueError(
                f"min_runtime_floor_ms ({self.min_runtime_floor_ms}) is above min_runtime_cap_ms "
                f"({self.min_runtime_cap_ms}): no allocated work could be submitted"
            )
        if self.window_ms < self.min_runtime_cap_ms:
            raise ValueError(
                f"window_ms ({self.window_ms}) is shorter than min_runtime_cap_ms ({self.min_runtime_cap_ms}): "
                "a run could leave the window before its protection ends"
            )
        return self


DEFAULT_POLICY = Policy()
