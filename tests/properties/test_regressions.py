"""What a hostile history once broke, each as the shortest story that shows the rule."""

from streamsched.model.events import (
    BudgetShare,
    BudgetTreeChanged,
    Drain,
    ProposedPlacement,
    Rejected,
    ReleaseOutcome,
    RoundProposed,
    Seat,
    Victim,
)
from streamsched.model.quantities import DAY, HOUR, MINUTE, WHOLE
from streamsched.scheduling.decision import decide
from streamsched.state.snapshot import digest, freeze, thaw
from tests.stories import (
    Story,
    adopted,
    budgets,
    drained,
    holding,
    node,
    nodes,
    released,
    started,
    submitted,
    unallocated,
)

TREE = budgets(a=0.5, b=0.5)


def proposed(story: Story, workload: str, seats: tuple[Seat, ...], *victims: Victim) -> RoundProposed:
    """A proposal by hand."""
    item = ProposedPlacement(workload=workload, attempt=1, seats=seats, victims=victims, shares=())
    return RoundProposed(
        round=story.state.closed_round + 1, based_on=story.state.next_cursor, policy_version=0, placements=(item,)
    )


class TestReceipts:
    """A receipt can always be made: an error while folding would stop every scheduler for good."""

    def test_of_a_rejection_with_control_characters(self) -> None:
        """What intake could not read may hold any character, and its reason may quote it."""
        effects = Story().tell(Rejected(code="malformed", reason="name: 'a\tb\x00'\nwrite letters", workload="w"))
        assert [receipt.reason for receipt in effects.receipts] == ["name: 'a b '\nwrite letters"]

    def test_of_a_submission_when_budget_names_are_long(self) -> None:
        """The names of ten budgets can be longer than a reason may be: it is cut."""
        shares = []
        for number in range(10):
            path = ""
            for level in range(5):
                path += f"{'/' if path else ''}{number}{level}{'x' * 58}"
                shares.append(BudgetShare(budget=path, fraction_nano=WHOLE // 10 if not level else WHOLE))
        story = Story(BudgetTreeChanged(change="b1", reason="a test", budgets=tuple(shares)))
        effects = story.tell(submitted("w", budget="unknown"))
        assert [len(receipt.reason or "") for receipt in effects.receipts] == [2_000]


class TestSnapshots:
    """A thawed state goes on exactly as the frozen one would have."""

    def test_a_run_without_a_timeout_is_not_stopped_at_its_start_deadline(self) -> None:
        """The start deadline of a run that has started is no deadline any more."""
        story = Story(TREE, node("n1"), submitted("w"))
        story.round()
        story.start("w")
        story = Story(state=thaw(freeze(story.state)), at_ms=DAY)
        story.tick()
        assert story.phase("w") == "running"

    def test_an_id_that_was_forgotten_has_no_old_deadlines(self) -> None:
        """When ids are forgotten at once, one may live again before the deadline of its first life has come."""
        story = Story(TREE, nodes(2), adopted(finished_kept_ms=0), submitted("v"), submitted("w"))
        story.round()
        story.end("w")
        story.at(29 * MINUTE).tell(submitted("w"))
        story.round()
        copy = Story(state=thaw(freeze(story.state)), at_ms=30 * MINUTE)
        copy.tick()
        story.at(30 * MINUTE).tick()
        assert story.phase("w") == "bound"
        assert digest(copy.state) == digest(story.state)


class TestUse:
    """Use and entitlement are exact, whatever becomes of policies and budgets."""

    def test_a_shorter_window_holds_what_fits_into_it(self) -> None:
        """8 GPUs held for 10 days: 7 days of them count, and with a window of 1 day one day of them."""
        story = Story(TREE, node("n1"), submitted("w"))
        story.round()
        story.start("w")
        story.at(10 * DAY).tick()
        assert story.state.budgets.root.charged_gpu_ms(10 * DAY) == 8 * 7 * DAY
        story.tell(adopted(window_ms=DAY))
        assert story.state.budgets.root.charged_gpu_ms(10 * DAY) == 8 * DAY
        story.at(11 * DAY).tick()
        assert story.state.budgets.root.charged_gpu_ms(11 * DAY) == 8 * DAY

    def test_a_longer_window_after_a_branch_was_removed(self) -> None:
        """The use of a removed leaf leaves the window through its removed parent."""
        story = Story(budgets("b1", **{"p/a": 1.0}), node("n1"), submitted("w", budget="p/a"))
        story.round()
        story.at(HOUR).end("w")
        story.tell(budgets("b2", "b1", b=1.0), adopted(window_ms=14 * DAY))
        story.at(13 * DAY).tick()
        assert story.state.budgets.root.charged_gpu_ms(13 * DAY) == 8 * HOUR
        story.at(15 * DAY).tick()
        assert story.state.budgets.root.charged_gpu_ms(15 * DAY) == 0

    def test_a_gang_whose_first_part_ended_before_its_last_part_started(self) -> None:
        """Commitment ends once: with the first GPUs that come back."""
        story = Story(TREE, nodes(2), submitted("w", ranks=2))
        story.round()
        story.tell(started("n1", "w"), released("n1", "w"), started("n2", "w"))
        assert story.phase("w") == "running"
        assert story.state.budgets.root.committed_gpu_ms(0) == 0


class TestOrphans:
    """A GPU has one owner, also when a node reports runs that we do not know."""

    def test_two_unknown_runs_on_the_same_gpus(self) -> None:
        """The first by name keeps them."""
        story = Story(node("n1", runs=(holding("x", gpu_mask=0b0111), holding("y", gpu_mask=0b1110))))
        assert story.state.nodes["n1"].orphans == {("x", 1): 0b0111, ("y", 1): 0b1000}
        assert story.state.nodes["n1"].free_mask == 0b11110000

    def test_a_plan_waits_for_an_unknown_run_on_its_gpus(self) -> None:
        """An unknown run on GPUs that a plan claims is one more to wait for."""
        story = Story(TREE, node("n1"), unallocated("u", gpus_per_rank=4))
        story.round()
        story.tell(submitted("w"))
        story.round()
        report = node("n1", runs=(holding("u", gpu_mask=0x0F), holding("x", gpu_mask=0xF0)))
        story.tell(report, released("n1", "u"))
        assert story.phase("w") == "planned"
        story.tell(released("n1", "x"))
        assert story.phase("w") == "bound"


class TestNodesThatChange:
    """What sat on GPUs that a node no longer has is lost with them."""

    def test_a_plan_for_gpus_that_are_gone(self) -> None:
        """It would be bound to GPUs that do not exist."""
        story = Story(TREE, node("n1"), unallocated("u"))
        story.round()
        story.tell(submitted("w"))
        story.round()
        story.tell(node("n1", gpus=4, runs=(holding("u"),)))
        assert story.phase("w") == "queued"

    def test_a_run_on_gpus_that_are_gone(self) -> None:
        """It starts again elsewhere; its neighbour on the GPUs that are left goes on."""
        story = Story(TREE, node("n1"), submitted("v", gpus_per_rank=4), submitted("w", gpus_per_rank=4))
        story.round()
        story.tell(node("n1", gpus=4, runs=(holding("v", gpu_mask=0x0F), holding("w", gpu_mask=0xF0))))
        assert (story.phase("v"), story.phase("w")) == ("bound", "queued")

    def test_a_gang_whose_node_joins_another_pool(self) -> None:
        """A gang is in one pool, so its runs are not on offer in two."""
        story = Story(TREE, nodes(2), unallocated("u", ranks=2))
        story.round()
        story.tell(node("n2", pool="a100", runs=(holding("u"),)))
        assert story.phase("u") == "stopping"
        assert story.state.nodes["n2"].held == {}


class TestPreemption:
    """Nobody is stopped for nothing."""

    def test_no_victim_on_a_node_that_takes_no_work(self) -> None:
        """A run on a cordoned node makes no room: stopping it would void the item, again and again."""
        story = Story(TREE, nodes(2), unallocated("u1"), unallocated("u2"))
        story.round()
        story.start("u1")
        story.start("u2")
        story.tell(drained("n1", Drain.CORDON), submitted("w"))
        story.round()
        assert story.state.void == {}
        assert story.phase("w") == "planned"
        run = story.state.workloads["w"].run
        assert run is not None
        assert set(run.awaited) == {"n2"}

    def test_a_gang_victim_offers_no_gpus_on_a_cordoned_node(self) -> None:
        """The gang u sits on both; its half on the node in use is enough for one rank of w and not for two."""
        story = Story(TREE, nodes(3), unallocated("u", ranks=2))
        story.round()
        sits = story.state.workloads["u"].run
        assert sits is not None
        held, other = sorted(sits.held)
        story.start("u")
        story.tell(drained(other, Drain.CORDON), submitted("w", ranks=2))
        story.round()
        assert story.state.void == {}
        assert story.phase("w") == "planned"
        run = story.state.workloads["w"].run
        assert run is not None
        assert {seat.node for seat in run.seats} == {held, "n3"}

    def test_a_victim_named_twice(self) -> None:
        """It would be told to stop twice."""
        story = Story(TREE, node("n1"), unallocated("u"))
        story.round()
        story.tell(submitted("w"))
        victim = Victim(workload="u", attempt=1)
        seats = (Seat(rank=0, node="n1", gpu_mask=0xFF),)
        effects = story.tell(proposed(story, "w", seats, victim, victim))
        assert effects.commands == []
        assert story.state.void == {"victim_gone": 1}

    def test_an_allocated_victim_named_without_a_reason(self) -> None:
        """The fold counts it as preempted; it stopped every scheduler."""
        story = Story(TREE, node("n1"), submitted("u", budget="b"))
        story.round()
        story.start("u")
        story.at(HOUR).tell(submitted("w"))
        story.tell(proposed(story, "w", (Seat(rank=0, node="n1", gpu_mask=0xFF),), Victim(workload="u", attempt=1)))
        assert (story.phase("u"), story.phase("w")) == ("stopping", "planned")

    def test_a_victim_whose_leaf_has_got_children(self) -> None:
        """It is compared as its vertex, with the child that asks: a has used 8 GPU-hours, and a/x nothing."""
        story = Story(TREE, node("n1"), submitted("u"))
        story.round()
        story.start("u")
        story.tell(budgets("b2", "b1", a=0.5, **{"a/x": 1.0}))
        story.at(HOUR).tell(submitted("w", budget="a/x"))
        story.at(HOUR + MINUTE).tick()
        story.round()
        assert (story.phase("u"), story.phase("w")) == ("stopping", "planned")


class TestLifecycle:
    """Ends and beginnings."""

    def test_an_id_with_attempts_behind_it_is_not_free(self) -> None:
        """A workload that ran, and was rejected when its budget went, would be placed as attempt 1 a second time."""
        story = Story(TREE, node("n1"), unallocated("w"))
        story.round()
        story.tell(budgets("b2", "b1", a=0.4, **{"a/x": 1.0}), released("n1", "w", 1, ReleaseOutcome.REFUSED))
        assert story.phase("w") == "rejected"
        story.tell(budgets("b3", "b2", a=0.5, b=0.5), unallocated("w"))
        assert decide(story.state) is None
        assert story.phase("w") == "rejected"

    def test_an_end_that_nobody_asked_for_is_nobodys_preemption(self) -> None:
        """One node of a gang stopped its ranks by itself: the gang failed, for no beneficiary."""
        story = Story(TREE, nodes(2), submitted("w", ranks=2, resumable=False))
        story.round()
        story.start("w")
        story.tell(released("n1", "w", 1, ReleaseOutcome.STOPPED), released("n2", "w", 1, ReleaseOutcome.STOPPED))
        assert story.phase("w") == "failed"

    def test_a_node_whose_ranks_succeeded_has_started_them(self) -> None:
        """Its start was never reported; the gang starts with the others, and is not stopped at its start deadline."""
        story = Story(TREE, nodes(2), submitted("w", ranks=2))
        story.round()
        story.tell(released("n1", "w"), started("n2", "w"))
        story.at(HOUR).tick()
        assert story.phase("w") == "running"
        story.tell(released("n2", "w"))
        assert story.phase("w") == "succeeded"

    def test_a_view_sees_the_nodes_of_a_plan(self) -> None:
        """A plan takes free GPUs of nodes on which no victim sits, and these nodes have changed too."""
        story = Story(TREE, nodes(2), unallocated("u"))
        story.round()
        story.tell(submitted("w", ranks=2))
        assert set(story.round().nodes) == {"n1", "n2"}
