"""What people ask of a state, with arithmetic done by hand."""

from __future__ import annotations

import pytest

from streamsched.errors import WireError
from streamsched.model.commands import Effects
from streamsched.model.events import BudgetShare, BudgetTreeChanged, NodeHealth, Record, ReleaseOutcome
from streamsched.model.policy import Levels
from streamsched.model.quantities import HOUR, MINUTE, WHOLE
from streamsched.model.topology import Layer, TopologyRequest
from streamsched.replay.answers import (
    EVERY_JOB,
    Explanation,
    JobFilter,
    Jobs,
    PinnedFor,
    explain,
    jobs,
    nodes,
    shares,
    summary,
)
from streamsched.replay.story import Chronicle
from streamsched.state.workloads import Phase
from tests import stories
from tests.stories import Story, budgets, submitted, unallocated


def observed(story: Story) -> Chronicle:
    """The chronicle of a story, told from its records and effects by folding them again."""
    from streamsched.state.cluster import ClusterState

    chronicle, state = Chronicle(), ClusterState()
    for record in story.records:
        effects: Effects = state.apply(Record(record.cursor, record.append_ms, record.event))
        chronicle.observe(record, effects, state)
    return chronicle


@pytest.fixture
def story() -> Story:
    """Four nodes of 8. In `p/a` one gang of 2 x 8 has run for an hour of its two; `q` has one waiting, one ended."""
    story = Story(*stories.nodes(4), budgets(**{"p": 0.5, "p/a": 0.5, "q": 0.5}))
    story.at(1 * HOUR).tell(submitted("gang", budget="p/a", ranks=2, min_runtime_ms=2 * HOUR))
    story.round()
    story.start("gang")
    story.tell(unallocated("short", budget="q", gpus_per_rank=4))
    story.round()
    story.start("short")
    story.at(90 * MINUTE).end("short")
    story.tell(submitted("wide", budget="q", ranks=4))
    story.at(2 * HOUR).tick()
    return story


def test_jobs_are_listed_in_the_order_of_their_submission(story: Story) -> None:
    """Live ones by default; the ended ones keep what they asked for."""
    chronicle = observed(story)

    live = jobs(story.state, chronicle)
    every = jobs(story.state, chronicle, JobFilter(ended=True))

    assert [(job.workload, job.phase) for job in live.jobs] == [("gang", Phase.RUNNING), ("wide", Phase.QUEUED)]
    assert [job.workload for job in every.jobs] == ["gang", "short", "wide"]
    short = every.jobs[1]
    assert (short.budget, short.gpus, short.allocated, short.phase) == ("q", 4, False, Phase.SUCCEEDED)
    assert (short.submitted_ms, short.ended_ms) == (1 * HOUR, 90 * MINUTE)
    assert live.jobs[1].reason == "protected"
    gang = every.jobs[0]
    assert (gang.gpus, gang.nodes, gang.attempt) == (16, ("n1", "n2"), 1)
    assert (gang.started_ms, gang.protected_until_ms) == (1 * HOUR, 3 * HOUR)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (JobFilter(phase=(Phase.QUEUED,)), ["wide"]),
        (JobFilter(phase=(Phase.SUCCEEDED, Phase.RUNNING)), ["gang", "short"]),
        (JobFilter(budget="p"), ["gang"]),
        (JobFilter(budget="p/a"), ["gang"]),
        (JobFilter(budget="p/aa"), []),
        (JobFilter(ended=True, budget="q"), ["short", "wide"]),
        (JobFilter(ended=True, limit=2), ["short", "wide"]),
    ],
)
def test_jobs_are_filtered(story: Story, wanted: JobFilter, found: list[str]) -> None:
    """By phase, by budget and below, and the latest of them."""
    assert [job.workload for job in jobs(story.state, observed(story), wanted).jobs] == found


def test_a_list_that_was_cut_says_so(story: Story) -> None:
    """`matching` counts what there is."""
    answer = jobs(story.state, observed(story), JobFilter(limit=1))

    assert (answer.matching, [job.workload for job in answer.jobs]) == (2, ["wide"])


def test_a_filter_that_makes_no_sense_is_refused() -> None:
    """With the field, the value and what it may be."""
    with pytest.raises(WireError, match=r'phase.*"asleep".*"queued"'):
        JobFilter.of({"phase": ["asleep"]})


def test_nodes_show_who_holds_what(story: Story) -> None:
    """Two nodes are full, two are free."""
    answer = nodes(story.state)

    assert [(node.node, node.free, [held.workload for held in node.held]) for node in answer.nodes] == [
        ("n1", 0, ["gang"]),
        ("n2", 0, ["gang"]),
        ("n3", 8, []),
        ("n4", 8, []),
    ]


def test_nodes_show_what_is_kept_for_whom() -> None:
    """A gang that lost n2 keeps n1, at first with its run still there, then alone; n1 is free for nobody else."""
    pair = TopologyRequest(layers=(Layer(level="sp"),))
    story = Story(budgets(a=1), stories.adopted(levels=(Levels(names=("sp",)),)), stories.nodes(2, domains=("A",)))
    story.tell(submitted("gang", ranks=2, topology=pair))
    story.round()
    story.start("gang")

    story.tell(stories.health("n2", NodeHealth.UNHEALTHY, fatal=True))
    first, _ = nodes(story.state).nodes
    story.tell(stories.released("n1", "gang", outcome=ReleaseOutcome.STOPPED))
    then, _ = nodes(story.state).nodes

    assert ([held.workload for held in first.held], first.pinned) == (["gang"], (PinnedFor(workload="gang", gpus=8),))
    assert (then.held, then.pinned, then.free) == ((), first.pinned, 0)


def test_shares_show_the_limits_of_gpus_at_a_time() -> None:
    """4 of 6 unallocated GPUs run in `a`, which has no limit of its own, and count in `p`; the root has no limit."""
    limited = (
        BudgetShare(budget="p", fraction_nano=WHOLE, max_allocated_gpus=8, max_unallocated_gpus=6),
        BudgetShare(budget="p/a", fraction_nano=WHOLE),
    )
    story = Story(*stories.nodes(1), BudgetTreeChanged(change="limits", budgets=limited, reason="a test"))
    story.tell(unallocated("w", budget="p/a", gpus_per_rank=4))
    story.round()

    limits = {
        share.budget: (
            share.allocated_slots,
            share.max_allocated_gpus,
            share.unallocated_slots,
            share.max_unallocated_gpus,
        )
        for share in shares(story.state).shares
    }
    assert limits == {"": (0, None, 4, None), "p": (0, 8, 4, 6), "p/a": (0, None, 4, None)}


def test_shares_are_the_specifications_formulas(story: Story) -> None:
    """At 2 h: 16 GPUs charged for 1 h and committed for 1 h; entitled is the floor, quota x 32 GPUs x 8 h."""
    answer = shares(story.state)

    by_budget = {share.budget: share for share in answer.shares}
    assert [share.budget for share in answer.shares] == ["", "p", "p/a", "q"]
    leaf = by_budget["p/a"]
    assert (leaf.depth, leaf.is_leaf, leaf.of_parent, leaf.of_cluster) == (2, True, 500_000_000, 250_000_000)
    assert leaf.charged_gpu_ms == 16 * HOUR
    assert leaf.committed_gpu_ms == 16 * HOUR
    assert leaf.entitled_gpu_ms == 32 * 8 * HOUR // 4
    assert leaf.usage_ratio == 0.5
    assert by_budget["p"].usage_ratio == 0.25
    assert by_budget["q"].unallocated_gpu_ms == 4 * 30 * MINUTE
    assert (by_budget["q"].charged_gpu_ms, by_budget["q"].queued_gpus) == (0, 32)
    assert (answer.change, answer.capacity_gpus) == ("b1", 32)


def test_a_budget_that_is_due_nothing_has_no_ratio() -> None:
    """Nothing is divided by nothing."""
    answer = shares(Story(budgets(a=0.0)).state)

    assert [share.usage_ratio for share in answer.shares] == [None, None]


def test_an_explanation_has_the_story_and_the_verdict(story: Story) -> None:
    """The waiting gang needs 4 ranks of 8 GPUs, and 2 would fit on what is free."""
    answer = explain(story.state, observed(story), "wide")

    assert answer is not None
    assert answer.job.phase is Phase.QUEUED
    assert [line.event for line in answer.story] == ["workload_submitted"]
    assert answer.verdict.fit is not None
    assert (answer.verdict.fit.ranks_needed, answer.verdict.fit.ranks_free) == (4, 2)


def test_an_ended_workload_is_explained(story: Story) -> None:
    """As long as it is remembered."""
    answer = explain(story.state, observed(story), "short")

    assert answer is not None
    assert (answer.job.phase, answer.verdict.code) == (Phase.SUCCEEDED, "ended")


def test_a_stranger_is_not_explained(story: Story) -> None:
    """There is no answer about what was never there."""
    assert explain(story.state, observed(story), "stranger") is None


def test_answers_survive_json(story: Story) -> None:
    """What a service gives and what a client reads are equal."""
    chronicle = observed(story)
    listed = jobs(story.state, chronicle, EVERY_JOB)
    explained = explain(story.state, chronicle, "gang")
    assert explained is not None

    assert Jobs.model_validate_json(listed.model_dump_json()) == listed
    assert Explanation.model_validate_json(explained.model_dump_json(), strict=False) == explained


def test_a_summary_counts(story: Story) -> None:
    """One runs, one waits, one has ended."""
    answer = summary(story.state)

    assert answer.live == {Phase.QUEUED: 1, Phase.RUNNING: 1}
    assert answer.ended == {Phase.SUCCEEDED: 1}
    assert answer.cursor == len(story.records) - 1
    assert len(answer.digest) == 64
