"""Cases of topology-aware placement, run through the search for seats, the fold and the decision."""

from tests.conformance.running import Family
from tests.conformance.topology import placement, ranks, recovery, validation
from tests.conformance.topology.departures import DEPARTURES, left_out

TOPOLOGY = Family(
    runners={
        "placement": placement.placement,
        "validation": validation.validation,
        "reschedule": recovery.reschedule,
        "rank": ranks.rank,
        "metric": ranks.logical_groups,
    },
    departures=DEPARTURES,
    left_out=left_out,
)
