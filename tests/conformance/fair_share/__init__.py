"""Cases of fair share, min runtimes and preemption, run through the fold and the decision."""

from tests.conformance.fair_share import accounting, drains, order, preemption, protection, rounds
from tests.conformance.fair_share.departures import DEPARTURES
from tests.conformance.running import Family

FAIR_SHARE = Family(
    runners={
        "quota": accounting.quota,
        "usage_window": accounting.usage_window,
        "usage_decay": accounting.usage_decay,
        "entitlement": accounting.entitlement,
        "hours_due": accounting.hours_due,
        "compare": accounting.compare,
        "tree_order": order.tree_order,
        "order_with_commitment": order.order_with_commitment,
        "min_runtime_protection": protection.min_runtime_protection,
        "swap_times": preemption.swap_times,
        "gang_victims": preemption.gang_victims,
        "reclaim_check": preemption.reclaim_check,
        "victim_selection": preemption.victim_selection,
        "victim_selection_quota": preemption.victim_selection_quota,
        "consolidation": preemption.consolidation,
        "rounds": rounds.rounds,
        "drain_reservation": drains.drain_reservation,
        "drain_host": drains.drain_host,
    },
    departures=DEPARTURES,
)
