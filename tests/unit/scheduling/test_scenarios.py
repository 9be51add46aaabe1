"""Faults that others have reported of their schedulers, as scenarios of ours: B01 to B26.

Where each is tested; where a report leaves the right value open, the last column has ours, and
`streamsched/scheduling/README.md` says more:

| scenario | tests | our choice |
|---|---|---|
| B01 clock skew | `state/test_cluster.py` | only the ledger's times count |
| B02 use outside the bucket of its start | `state/test_usage.py` | |
| B03 reconfiguration charges twice | `state/test_usage.py` | |
| B04 small amounts and drift | `state/test_usage.py`, here | a request of 2^62 GPUs is no request |
| B05 parents of a deep tree | `state/test_usage.py` | |
| B06 released twice | `state/test_cluster.py` | |
| B07 events out of order | `state/test_cluster.py` | |
| B08 ping-pong | `test_decision.py` | |
| B09 what can never fit | here, `test_decision.py`, `state/test_cluster.py` | refused for good; its id is free again |
| B10 too many victims | `test_decision.py` | |
| B11 a gang in part | here, `test_decision.py` | |
| B12 a gang under a stream of small work | here | |
| B13 min runtime | here, `state/test_machines.py` | counts from the start of the last rank |
| B14 the best supernode | here | what fits on one node leaves whole supernodes whole |
| B15 small work scattered | here | |
| B16 a full supernode | here | |
| B17 GPUs of what is stopping | here, `state/test_cluster.py`, `state/test_machines.py` | charged until it is gone |
| B18 a node that is marked | here, `test_recovery.py`, `state/test_machines.py` | |
| B19 a flapping node | `state/test_machines.py`, `service/test_node_watch.py` | 3 falls in 1 h, then 30 min healthy |
| B20 a deleted queue | here, `state/test_cluster.py`, `state/test_usage.py` | what waits ends; a new leaf begins at 0 |
| B21 a cut while work runs | here | |
| B22 cycles in the tree | here | a parent is part of the name; a move leaves history behind |
| B23 zero weights | here, `test_fair_share.py` | |
| B24 kinds of GPU | `state/test_rates.py`, here | GPUs are whole |
| B25 cancel on the way | `state/test_cluster.py` | |
| B26 mass submit and cancel | here | no arrays and no pinning to a node: 20,000 and 100,000 workloads |
"""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import count
from typing import Any

import pytest
from pydantic import ValidationError

from streamsched.model.commands import Place, ReceiptStatus, Stop
from streamsched.model.events import BudgetShare, BudgetTreeChanged, Drain, Event, NodeHealth, Record, ReleaseOutcome
from streamsched.model.policy import Levels, Policy
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND, WHOLE
from streamsched.model.topology import Layer, TopologyRequest, Wish
from streamsched.scheduling.decision import decide
from streamsched.scheduling.fair_share import Standing, comes_before
from streamsched.scheduling.obstacles import VerdictCode
from streamsched.scheduling.verdicts import verdict
from streamsched.state.cluster import ClusterState
from tests.conformance.fair_share.worlds import BARE, Spell, World
from tests.stories import (
    budgets,
    cancelled,
    drained,
    health,
    node,
    nodes,
    released,
    started,
    submitted,
    unallocated,
)

HALF = Fraction(1, 2)
STOPPED = ReleaseOutcome.STOPPED


def world(size: int, /, *, gpus: int = 8, quotas: dict[str, Fraction] | None = None, **policy: Any) -> World:
    """Nodes n1, n2, ... and teams a and b of one half each, without patience, reservations and headroom."""
    made = World({**BARE, **policy}, nodes(size, gpus=gpus))
    made.fund({"a": HALF, "b": HALF} if quotas is None else quotas)
    return made


def charged(story: World, budget: str) -> int:
    """GPU-seconds in the window."""
    gpu_ms = story.state.budgets.by_id[budget].charged_gpu_ms(story.state.now_ms)
    assert gpu_ms % SECOND == 0
    return gpu_ms // SECOND


def placed(story: World) -> list[str]:
    """The workloads that a decision would place now, in its order."""
    proposal = decide(story.state)
    return [] if proposal is None else [item.workload for item in proposal.placements]


def test_b04_shares_that_differ_by_a_millionth_are_told_apart() -> None:
    """Weights 1 and 1,000,000; the first has used a millionth part more of its own: it comes second."""
    light = Standing(charged=1_000_001, committed=0, entitled=1_000_000)
    heavy = Standing(charged=10**12, committed=0, entitled=10**12)

    assert comes_before(heavy, light) is True
    assert comes_before(light, heavy) is False


@pytest.mark.parametrize("fields", [{"ranks": 2**62}, {"gpus_per_rank": 2**62}, {"ranks": 2**63}])
def test_b04_a_request_beyond_all_measure_is_no_request(fields: dict[str, int]) -> None:
    """Nothing is added up that could wrap: such an event cannot be made."""
    with pytest.raises(ValidationError, match=next(iter(fields))):
        submitted("w", **fields)


def test_b09_what_can_never_fit_stops_nobody_and_blocks_nobody() -> None:
    """4 GPUs of 3 are refused; for the 3 of 3 one run is stopped, once; a gang of five nodes of four is refused too."""
    story = world(1, gpus=3)
    story.tell(unallocated("w1", budget="b", gpus_per_rank=1))
    story.settle()
    refused = story.tell(submitted("w4", gpus_per_rank=4)).receipts[0]
    assert refused.status is ReceiptStatus.REJECTED
    assert "largest possible" in (refused.reason or "")
    story.tell(submitted("w3", gpus_per_rank=3))
    story.settle()
    assert story.phase("w3") == "running"
    assert story.preempted == ["w1"]

    story.tell(node("n2", gpus=4))
    assert story.tell(submitted("w4", gpus_per_rank=4)).receipts[0].status is ReceiptStatus.ACCEPTED
    assert placed(story) == ["w4"]
    assert story.tell(submitted("five", ranks=5, gpus_per_rank=2)).receipts[0].status is ReceiptStatus.REJECTED


def gang_of_four(*, beside: bool) -> World:
    """V of the over-served team b holds n1 to n4, and U a fifth node, both two hours past their hour."""
    story = world(5 if beside else 4)
    story.seat("V", "b", [(f"n{number}", 8) for number in (1, 2, 3, 4)], min_runtime_ms=HOUR, resumable=True)
    if beside:
        story.seat("U", "b", [("n5", 8)], min_runtime_ms=HOUR, resumable=True)
    story.at(3 * HOUR).tick()
    return story


def test_b11_a_gang_is_stopped_whole_and_what_it_leaves_is_offered_at_once() -> None:
    """P needs one node: V leaves all four by one decision, is queued as a whole, and the other three are for others."""
    story = gang_of_four(beside=False)
    story.tell(submitted("P"), submitted("next", budget="b", ranks=3, priority=1))
    effects = story.round()
    assert sorted(command.node for command in effects.commands if isinstance(command, Stop)) == ["n1", "n2", "n3", "n4"]

    story.end("V", STOPPED)
    assert (story.phase("V"), story.state.workloads["V"].attempt) == ("queued", 1)
    assert story.phase("P") == "bound"
    story.start("P")
    story.settle()
    assert story.nodes_of("V") == []
    assert sorted([*story.nodes_of("P"), *story.nodes_of("next")]) == ["n1", "n2", "n3", "n4"]


def test_b11_the_run_of_one_node_goes_rather_than_the_gang_of_four() -> None:
    """Same team, both past their hour: 8 GPUs are lost, not 32."""
    story = gang_of_four(beside=True)
    story.tell(submitted("P"))

    assert story.victims_of("P") == ["U"]


def stream_and_gang() -> tuple[World, Any]:
    """Four nodes that work of 10 minutes keeps busy, one arriving every 100 s; at 0 a gang of all four is asked for."""
    story = world(4, reservations=2, reserve_after_ms=2 * MINUTE)
    numbers = count()

    def arrive() -> None:
        name = f"small-{next(numbers):02}"
        story.ask(name, "b", 1, min_runtime_ms=600 * SECOND)
        story.settle()

    story.at(1 * HOUR)
    for second in (-300, -200, -100, 0):
        story.at(HOUR + second * SECOND)
        arrive()
    story.tell(submitted("G", ranks=4))
    return story, arrive


def go_on(story: World, arrive: Any, since_s: int, until_s: int) -> None:
    """Let small work come and end after 600 s, and the scheduler decide every 10 s."""
    for second in range(since_s, until_s + 1, 10):
        story.at(HOUR + second * SECOND).tick()
        for name, workload in list(story.state.workloads.items()):
            run = workload.run
            if name.startswith("small") and run is not None and run.started_ms == story.now_ms - 600 * SECOND:
                story.end(name)
        if second % 100 == 0:
            arrive()
        story.settle()


def test_b12_a_gang_starts_although_small_work_never_stops_coming() -> None:
    """The runs of 300, 200, 100 and 0 s ago are protected until 300 to 600 s; then all four nodes are the gang's."""
    story, arrive = stream_and_gang()
    go_on(story, arrive, 10, 590)
    promise = story.state.reservations["G"]
    assert promise.start_ms == HOUR + 600 * SECOND
    assert len(promise.nodes) == 4
    assert sum(vertex.free_mask == 0xFF for vertex in story.state.nodes.values()) == 3, "three are held for it"

    go_on(story, arrive, 600, 600)
    assert story.phase("G") == "running"


def test_b12_work_that_is_protected_no_longer_than_that_may_use_a_held_node() -> None:
    """At 350 s a node is free until 600: two minutes for its start and 120 s of min runtime fit, and 140 s do not."""
    story, arrive = stream_and_gang()
    go_on(story, arrive, 10, 350)
    for least_s, fits in ((140, False), (120, True)):
        story.ask(f"least-{least_s}", "b", 1, priority=1, min_runtime_ms=least_s * SECOND)
        assert (f"least-{least_s}" in placed(story)) is fits


def test_b12_a_hold_ends_with_its_claimant() -> None:
    """Cancelled at 350 s: what is held goes to the queue in the same round."""
    story, arrive = stream_and_gang()
    go_on(story, arrive, 10, 350)
    assert placed(story) == []
    story.tell(cancelled("G"))

    assert placed(story) == ["small-04"]


def test_b13_the_end_of_a_min_runtime_is_noticed_although_nothing_happens() -> None:
    """Protected until 600 s, and 720 s when the start took 120: not a moment before, and by a timer then."""
    for start_s in (0, 120):
        story = world(1)
        story.tell(submitted("w", budget="b", min_runtime_ms=600 * SECOND))
        story.round()
        story.at(start_s * SECOND).start("w")
        story.at(start_s * SECOND + 10 * SECOND).tell(submitted("p", min_runtime_ms=5 * MINUTE))
        end_ms = (start_s + 600) * SECOND
        assert story.state.next_wakeup_ms is not None
        while story.now_ms < end_ms:
            assert placed(story) == []
            story.at(min(story.state.next_wakeup_ms or end_ms, story.now_ms + 10 * SECOND)).tick()
        # The guard counts p's 5 minutes as 30: it is allowed once w has used as much.
        story.at(1_800 * SECOND).tick()
        assert story.victims_of("p") == ["w"]


def test_b13_protection_alone_decides_where_nothing_else_does() -> None:
    """Without the guard w goes at 600 s; queued again and started at 2,000 s it is safe until 2,600 s."""
    story = world(1, quotas={name: Fraction(3, 10) for name in "abc"}, guard=False)
    story.seat("w", "b", [("n1", 8)], min_runtime_ms=600 * SECOND, resumable=True)
    story.at(10 * SECOND).tell(submitted("p", resumable=False))
    assert story.state.next_wakeup_ms is not None
    story.at(600 * SECOND - 1).tick()
    assert placed(story) == []
    assert story.state.next_wakeup_ms == 600 * SECOND, "a timer, for no other event follows"
    story.at(600 * SECOND).tick()
    assert story.victims_of("p") == ["w"]

    story.settle()
    assert story.phase("p") == "running"
    story.at(2_000 * SECOND).end("p")
    story.settle()
    assert story.phase("w") == "running"
    story.at(2_010 * SECOND).tell(submitted("q", budget="c"))
    story.at(2_600 * SECOND - 1).tick()
    assert placed(story) == []
    story.at(2_600 * SECOND).tick()
    assert story.victims_of("q") == ["w"]


def supernodes(*domains: int) -> World:
    """Nodes n1, n2, ... of 8 GPUs: so many in supernode s1, so many in s2 and so on."""
    paths = [f"s{number}" for number, size in enumerate(domains, 1) for _ in range(size)]
    reports = [node(f"n{number}", domains=(path,)) for number, path in enumerate(paths, 1)]
    made = World({**BARE, "levels": (Levels(names=("supernode",)),)}, reports)
    made.fund({"a": HALF, "b": HALF})
    return made


def seats(story: World, workload: str) -> list[str]:
    """The nodes that a workload sits on, in rank order."""
    run = story.state.workloads[workload].run
    assert run is not None
    return [seat.node for seat in run.seats]


def together(wish: Wish) -> TopologyRequest:
    """The whole gang in one supernode."""
    return TopologyRequest(layers=(Layer(level="supernode", wish=wish),))


@pytest.mark.parametrize(
    ("ranks", "expected"), [(2, [["n1", "n2"]]), (1, [["n3"], ["n5"]]), (4, [["n1", "n2", "n3", "n5"]])]
)
def test_b14_the_supernode_that_is_whole_goes_to_who_needs_it_whole(ranks: int, expected: list[list[str]]) -> None:
    """N4 and n6 are full: two nodes are n1 and n2, one is another; of four the two in s1 are neighbours."""
    story = supernodes(2, 2, 2)
    for name in ("n4", "n6"):
        story.tell(*(drained(f"n{n}", Drain.CORDON) for n in range(1, 7) if f"n{n}" != name))
        story.tell(submitted(f"on-{name}", budget="b"))
        story.settle()
        story.tell(*(drained(f"n{n}", Drain.NONE) for n in range(1, 7) if f"n{n}" != name))

    story.tell(submitted("gang", ranks=ranks, topology=together(Wish.PREFERRED)))
    story.settle()

    assert seats(story, "gang") in expected


def test_b15_small_work_fills_one_supernode_and_leaves_three_for_gangs() -> None:
    """Four jobs of a node each share a supernode, so three gangs find one each; new small work refills the first."""
    story = supernodes(4, 4, 4, 4)
    for number in range(4):
        story.tell(submitted(f"small-{number}", budget="b"))
        story.settle()
    for number in range(3):
        story.tell(submitted(f"gang-{number}", ranks=4, topology=together(Wish.REQUIRED)))
    story.settle()

    def supernode(workload: str) -> set[str]:
        return {story.state.nodes[name].domains[0] for name in seats(story, workload)}

    small = {domain for number in range(4) for domain in supernode(f"small-{number}")}
    assert len(small) == 1
    assert {domain for number in range(3) for domain in supernode(f"gang-{number}")} | small == {"s1", "s2", "s3", "s4"}

    story.end("small-0")
    story.end("gang-0")
    story.tell(submitted("next", budget="b"))
    story.settle()
    assert supernode("next") == small


def test_b16_a_gang_that_must_be_together_takes_a_supernode_full_of_unallocated_work() -> None:
    """Of s2 only n3 could be had, so v1 and v2 go, and nobody else."""
    story = supernodes(2, 2)
    for workload, name, min_runtime_ms in (("v1", "n1", 0), ("v2", "n2", 0), ("v3", "n3", 0), ("long", "n4", HOUR)):
        story.seat(workload, "b", [(name, 8)], min_runtime_ms=min_runtime_ms)

    story.at(SECOND).tell(submitted("p", ranks=2, topology=together(Wish.REQUIRED)))
    assert story.victims_of("p") == ["v1", "v2"]
    story.settle()

    assert seats(story, "p") == ["n1", "n2"]
    assert story.preempted == ["v1", "v2"]
    assert [story.phase(workload) for workload in ("v3", "long")] == ["running", "running"]


def test_b17_a_node_that_never_confirms_a_stop_is_not_handed_out() -> None:
    """Told to stop at 100 s, killed after a minute, given up after another: charged to 220 s; n1 waits for its word."""
    story = world(1)
    story.seat("v", "a", [("n1", 8)], resumable=False)
    story.at(100 * SECOND).tell(cancelled("v"))
    story.at(101 * SECOND).tell(submitted("w", budget="b"))
    for at_ms in (220 * SECOND - 1, 220 * SECOND, 2 * HOUR):
        story.at(at_ms).tick()
        assert placed(story) == []
    assert "v" not in story.state.workloads
    assert not story.state.nodes["n1"].takes_work

    story.tell(released("n1", "v", outcome=STOPPED))
    assert placed(story) == ["w"]
    assert charged(story, "a") == 8 * 220


@pytest.mark.parametrize(
    ("mark", "word"), [(health("n2", NodeHealth.UNHEALTHY), "unhealthy"), (drained("n2", Drain.CORDON), "cordoned")]
)
def test_b18_a_gang_whose_node_is_marked_waits_and_says_for_which(mark: Event, word: str) -> None:
    """There is no n3: w is placed nowhere, n2 is never named again, and w waits for n2, which is out of use."""
    story = world(2)
    story.tell(submitted("w", ranks=2))
    story.round()
    story.at(5 * SECOND).tell(mark)
    story.tell(released(name, "w", outcome=STOPPED) for name in ("n1", "n2"))
    story.at(10 * MINUTE).tick()

    assert placed(story) == []
    assert [c.node for effects in story.effects for c in effects.commands if isinstance(c, Place)] == ["n1", "n2"]
    found = verdict(story.state, "w")
    assert found.code is VerdictCode.IMPOSSIBLE_NOW
    assert found.sentence.endswith(f"; n2 is {word}")


def test_b17_another_node_that_frees_first_is_used_instead() -> None:
    """v is told to stop at 100 s and goes at 160; n2 frees at 130: w takes n2, and n1 is open to others at 160."""
    story = world(2)
    story.seat("v", "a", [("n1", 8)], resumable=False)
    story.seat("x", "a", [("n2", 8)], resumable=False)
    story.at(100 * SECOND).tell(cancelled("v"))
    story.at(101 * SECOND).tell(submitted("w"))
    assert placed(story) == []
    story.at(130 * SECOND).end("x")
    story.settle()
    assert story.nodes_of("w") == ["n2"]

    story.tell(submitted("y"))
    assert placed(story) == []
    story.at(160 * SECOND).tell(released("n1", "v", outcome=STOPPED))
    assert placed(story) == ["y"]
    assert charged(story, "a") == 8 * (160 + 130 + 30)


def test_b20_a_deleted_leaf_leaves_its_running_work_and_its_parents_use() -> None:
    """x has used 5,000, a 8,000 and the root 20,000 when x goes at 1,000 s; w runs on to 1,600 s for another 4,800."""
    quotas = {"a": HALF, "a/x": HALF, "a/y": HALF, "b": HALF}
    story = world(3, quotas=quotas)
    # Before its own 8 x 400: x 1,800, y 3,000 and b 12,000 GPU-seconds.
    story.play(
        [
            Spell("a/x", 6, 0, 300 * SECOND),
            Spell("a/y", 5, 0, 600 * SECOND),
            Spell("b", 13, 0, 600 * SECOND),
        ]
    )
    story.seat("w", "a/x", [("n1", 8)])
    story.at(1_000 * SECOND).tell(submitted("q", budget="a/x", ranks=3))
    root = story.state.budgets.root
    assert (charged(story, "a/x"), charged(story, "a")) == (5_000, 8_000)
    assert root.charged_gpu_ms(story.now_ms) == (8_000 + 7_800) * SECOND

    story.fund({"a": HALF, "a/y": HALF, "b": HALF})
    assert story.tell(submitted("late", budget="a/x")).receipts[0].status is ReceiptStatus.REJECTED
    assert story.phase("q") == "rejected"
    assert story.phase("w") == "running"
    story.at(1_600 * SECOND).end("w")
    assert charged(story, "a") == 8_000 + 4_800
    assert root.charged_gpu_ms(story.now_ms) == (8_000 + 7_800 + 4_800) * SECOND

    story.fund(quotas)
    assert charged(story, "a/x") == 0
    assert charged(story, "a") == 12_800


def test_b21_a_cut_stops_nobody_before_its_time_and_promises_no_gpu_twice() -> None:
    """a loses its quota at 100 s, b gets the free node, which is lost at 200 s; at the end of its hour a makes room."""
    story = world(2)
    story.seat("of-a", "a", [("n1", 8)], min_runtime_ms=HOUR)
    story.at(100 * SECOND)
    story.fund({"a": Fraction(0), "b": Fraction(1)})
    story.tell(submitted("b1", budget="b"), submitted("b2", budget="b"))
    story.settle()
    assert (story.phase("b1"), story.phase("b2")) == ("running", "queued")

    story.at(200 * SECOND).tell(health("n2", NodeHealth.LOST))
    assert story.phase("b1") == "queued"
    assert placed(story) == []
    assert all(vertex.free_mask.bit_count() == 0 for vertex in story.state.nodes.values())
    story.at(HOUR - 1).tick()
    assert placed(story) == []
    assert story.phase("of-a") == "running"
    # Of its quota 100 s are left in the window, 800 GPU-seconds, of which it has used 28,800: nobody is further ahead.
    story.at(HOUR).tick()
    assert story.victims_of("b1") == ["of-a"]


@pytest.mark.parametrize(
    ("shares", "word"),
    [
        ((("a", WHOLE), ("a", WHOLE)), "named twice"),
        ((("a/b", WHOLE), ("a", WHOLE)), "before its parent"),
        ((("unknown/x", WHOLE),), "before its parent"),
        ((("a", WHOLE), ("b", 1)), "more than the whole"),
    ],
)
def test_b22_a_tree_that_is_none_cannot_be_said(shares: tuple[tuple[str, int], ...], word: str) -> None:
    """A parent is part of the name, so there is no cycle to make; what is left to get wrong is refused as a whole."""
    with pytest.raises(ValidationError, match=word):
        BudgetTreeChanged(
            change="c", reason="r", budgets=tuple(BudgetShare(budget=name, fraction_nano=nano) for name, nano in shares)
        )


def test_b22_a_move_neither_stops_nor_charges_twice() -> None:
    """a/x becomes b/x: its run goes on, for a; what was used stays where it was used; replay gives the same tree."""
    story = world(2, quotas={"a": HALF, "a/x": HALF, "a/y": HALF, "b": HALF, "b/z": HALF})
    story.play([Spell("a/x", 10, 0, HOUR), Spell("a/y", 5, 0, HOUR)])
    story.seat("runs", "a/x", [("n1", 8)])
    story.fund({"a": HALF, "a/y": HALF, "b": HALF, "b/x": HALF, "b/z": HALF})
    story.at(2 * HOUR).tick()

    assert story.phase("runs") == "running"
    assert charged(story, "a") == (15 + 8) * 3_600
    assert (charged(story, "b"), charged(story, "b/x")) == (0, 0)
    again = ClusterState()
    for record in story.records:
        again.apply(record)
    assert sorted(again.budgets.by_id) == ["a", "a/y", "b", "b/x", "b/z"]


def test_b23_a_weight_of_nothing_waits_for_everybody_else() -> None:
    """Weights 1 and 0, neither has used anything: a's request goes first, and b's runs on what nobody paid for."""
    story = world(1, quotas={"a": Fraction(1), "b": Fraction(0)})
    story.tell(unallocated("of-b", budget="b"))
    story.at(1).tell(submitted("of-a", budget="a"))
    assert placed(story) == ["of-a"]
    story.settle()
    story.at(HOUR).end("of-a")
    assert placed(story) == ["of-b"]


def test_b23_two_weights_of_nothing_share_what_is_spare_in_the_order_of_submission() -> None:
    """0 / 0 decides nothing and breaks nothing."""
    story = world(1, quotas={"a": Fraction(0), "b": Fraction(0)})
    story.tell(unallocated("of-b", budget="b", gpus_per_rank=4))
    story.at(1).tell(unallocated("of-a", budget="a", gpus_per_rank=4))
    proposal = decide(story.state)

    assert placed(story) == ["of-b", "of-a"]
    assert proposal is not None
    json.loads(proposal.model_dump_json())
    assert "NaN" not in proposal.model_dump_json()


@pytest.mark.parametrize("weight", [-1, float("nan"), 1e308, "3", True])
def test_b23_what_is_no_fraction_is_no_weight(weight: object) -> None:
    """Negative, not a number, beyond the whole, a string, a truth value: none makes an event."""
    with pytest.raises(ValidationError, match="fraction_nano"):
        BudgetShare.model_validate({"budget": "a", "fraction_nano": weight})


def test_b23_a_window_of_nothing_is_no_policy() -> None:
    """Refused before it is adopted."""
    with pytest.raises(ValidationError, match="window_ms"):
        Policy(window_ms=0)


@pytest.mark.parametrize("gpus", [float("nan"), 0, -1, float("inf"), "4", 0.5, True, 2**63])
def test_b24_a_number_of_gpus_is_a_whole_number(gpus: object) -> None:
    """Each of these is refused with the field named; parts of a GPU are not there."""
    with pytest.raises(ValidationError, match="gpus_per_rank"):
        submitted("w", gpus_per_rank=gpus)


class Ledger:
    """A fold without the invariants after every record, for a hundred thousand of them."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.now_ms = 0

    def tell(self, *events: Event) -> list[Place]:
        """Append; return where something is placed."""
        places: list[Place] = []
        for event in events:
            effects = self.state.apply(Record(self.state.next_cursor, self.now_ms, event))
            places += [command for command in effects.commands if isinstance(command, Place)]
        return places


def test_b26_a_mass_of_cancelled_requests_costs_nothing_afterwards() -> None:
    """20,000 submitted and cancelled, then one by another team: placed in the first round, and nothing else waits."""
    ledger = Ledger()
    ledger.tell(budgets(a=0.5, b=0.5), *nodes(4))
    for number in range(20_000):
        ledger.tell(submitted(f"probe-{number}"))
    for number in range(20_000):
        ledger.tell(cancelled(f"probe-{number}"))
    ledger.tell(submitted("ordinary", budget="b"))

    proposal = decide(ledger.state)
    assert proposal is not None
    assert [item.workload for item in proposal.placements] == ["ordinary"]
    assert len(ledger.state.workloads) == 1
    ledger.now_ms = 31 * DAY
    ledger.tell(cancelled("ordinary"))
    assert len(ledger.state.finished) == 1, "what has ended is forgotten after 30 days"


def test_b26_a_mass_of_small_work_stands_in_nobodys_way() -> None:
    """32 GPUs are full of one team's 100,000 requests of one; the next GPU that is free goes to the other team."""
    ledger = Ledger()
    ledger.tell(budgets(a=0.5, b=0.5), *nodes(4))
    element = submitted("element", gpus_per_rank=1)
    ledger.tell(*(element.model_copy(update={"workload": f"element-{number:06}"}) for number in range(100_000)))
    proposal = decide(ledger.state)
    assert proposal is not None
    first = ledger.tell(proposal)[0]
    assert decide(ledger.state) is None
    ledger.now_ms = MINUTE
    ledger.tell(started(first.node, first.workload), submitted("ordinary", budget="b", gpus_per_rank=1))
    assert decide(ledger.state) is None
    assert verdict(ledger.state, "ordinary").code is VerdictCode.PROTECTED

    ledger.tell(released(first.node, first.workload))
    proposal = decide(ledger.state)
    assert proposal is not None
    assert [item.workload for item in proposal.placements] == ["ordinary"]
