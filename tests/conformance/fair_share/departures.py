"""Published cases that must hold by their relation, and do not: what ours does instead, and why.

They cannot hold under our rules; all of them measure usage by what is held now. What ours does is run and compared, so
none of these can go stale.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.conformance.running import Departure

DEPARTURES: Mapping[str, Departure] = {
    "kai-reclaim-10": Departure(
        {"allowed": False},
        "the published check takes the two victims as a set: mid1 would hold .5 + 1 - .5 = 1 of 1. Ours asks of "
        "each run alone whether it may be taken, and right-leaf's may not: .5 + 1 = 1.5 of 1 is above the quota of "
        "mid1, and above what mid2 has left (1.5 - 1.5 = 0); the .5 of left-leaf2 alone make no room for 1. Nothing "
        "else tells the case from kai-reclaim-09, which must be refused",
    ),
    "kueue-preempt-03": Departure(
        {"victims": ["b1", "b2"]},
        "a and b stand equal at 4 of 3, and 1 GPU is missing, in halves. Published: the order of queues is taken "
        "anew after every victim, so b1 follows a1. Ours takes what it needs from the first leaf of the order "
        "before it lets in the next (4.4): b1 + b2 = .5 + .5 = 1, as many GPUs in as many runs",
    ),
    "kueue-preempt-09": Departure(
        {"victims": []},
        "a asks for 3.5 of its 3, and b and c hold 4.5 of 3 each. After the move a would be at 3.5/3, above what "
        "either is left with (2.5/3 or 2/3) and above its own quota: ours refuses. Published: a borrower may take "
        "if the victim's share before exceeds its own afterwards, 4.5 > 3.5",
    ),
    "kueue-preempt-16": Departure(
        {"victims": ["e1", "e2", "e3", "e4", "e5"]},
        "published shares count what is borrowed above the own quota, over all that can be lent; ours what is held "
        "over what is due: RIGHT 10 of 5, c 5 of 5, LEFT 5 of 10, and inside RIGHT e 5 of 2.49 before d 5 of 2.51. "
        "So e, the most over-served leaf, gives all 5; c at 1 gives none, for LEFT would hold 10 of 10 and c 4 of 5",
    ),
    "kai-consolidate-02": Departure(
        {
            "final": {
                "running_job0": None,
                "running_job1": "node1",
                "running_job2": "node1",
                "pending_job0": None,
                "pending_job1": "node0",
            },
            "evictions": 1,
        },
        "published: room is made for queue0 first (job1 moves), and then taken back from it for queue1: 3 "
        "evictions. Ours serves queue1 first, at 0 of 4 against 5 of 4, and clears the node that costs less: job0 "
        "with 2 GPUs on node0, not job1 and job2 with 3 on node1: 1 eviction, after which nothing fits for queue0",
    ),
}
