"""Why a record, or an item of a proposal, had no effect: closed sets of words, counted in the state."""

from __future__ import annotations

from enum import StrEnum


class Ignored(StrEnum):
    """Why a record changed nothing."""

    UNREADABLE = "unreadable"
    REPEATED = "repeated"
    UNKNOWN_WORKLOAD = "unknown_workload"
    UNKNOWN_NODE = "unknown_node"
    STALE_ATTEMPT = "stale_attempt"
    ALREADY_SO = "already_so"
    STALE_CHANGE = "stale_change"
    NOT_MANAGED = "not_managed"
    ROUND_CLOSED = "round_closed"
    ROUND_NOT_OPEN = "round_not_open"
    STALE_TICK = "stale_tick"


class Void(StrEnum):
    """Why an item of an accepted proposal has no effect."""

    NOT_QUEUED = "not_queued"
    OTHER_ATTEMPT = "other_attempt"
    NO_BUDGET = "no_budget"
    SLOT_LIMIT = "slot_limit"
    WRONG_SEATS = "wrong_seats"
    NODE_UNAVAILABLE = "node_unavailable"
    GPU_TAKEN = "gpu_taken"
    VICTIM_GONE = "victim_gone"
    VICTIM_PROTECTED = "victim_protected"
    VICTIM_USELESS = "victim_useless"
    RESERVED = "reserved"
