"""What people type about the network, and what they see of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamsched.cli import places
from streamsched.cli.policy_files import read_policy, written
from streamsched.cli.topology_requests import labels_of, topology_of
from streamsched.cli.tree import app
from streamsched.errors import RequestError
from streamsched.model.commands import Receipt, ReceiptStatus
from streamsched.model.events import (
    NodeHealth,
    NodeLabels,
    NodesRelabelled,
    ProposedPlacement,
    RoundProposed,
    Seat,
    WorkloadSubmitted,
)
from streamsched.model.policy import Levels
from streamsched.model.quantities import MINUTE
from streamsched.model.topology import Group, Layer, Preference, Recovery, TopologyRequest, Wish
from tests.stories import Story, adopted, budgets, health, node, relabelled, submitted
from tests.unit.cli.test_commands import written as in_file

Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    """Runs a command; gives its result, with `.exit_code`, `.stdout` and `.stderr`."""
    runner = CliRunner(env={"STREAMSCHED_FROM": None, "NO_COLOR": "1"})
    return lambda *arguments: runner.invoke(app, [str(argument) for argument in arguments], prog_name="streamsched")


class Listener:
    """A place that takes every request."""

    def __init__(self) -> None:
        self.heard: list[WorkloadSubmitted | NodesRelabelled] = []

    def submit(self, request: WorkloadSubmitted) -> Receipt:
        self.heard.append(request)
        return Receipt(status=ReceiptStatus.ACCEPTED, cursor=1, workload=request.workload)

    def control(self, request: NodesRelabelled) -> Receipt:
        self.heard.append(request)
        return Receipt(status=ReceiptStatus.ACCEPTED, cursor=1)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    """Hears what commands send."""
    listener = Listener()
    monkeypatch.setattr(places, "place_of", lambda _address: listener)
    return listener


# --- what a gang asks -------------------------------------------------------------------------------------------------


def test_layers_as_options() -> None:
    """Coarse to fine as they are written, required unless they say otherwise."""
    asked = topology_of(
        layers=["supernode", "rack=8:preferred", "node=2:required"], preference="bandwidth_first", recovery="in_place"
    )

    assert asked == TopologyRequest(
        layers=(
            Layer(level="supernode"),
            Layer(level="rack", ranks=8, wish=Wish.PREFERRED),
            Layer(level="node", ranks=2),
        ),
        preference=Preference.BANDWIDTH_FIRST,
        recovery=Recovery.IN_PLACE,
    )
    assert topology_of() is None


def test_groups_as_options() -> None:
    """Ranks, GPUs and layers of each role, in rank order."""
    asked = topology_of(groups=["lead=1", "prefill=4x8@rack", "decode=16x2@rack=4,node=2:preferred"])

    assert asked is not None
    assert asked.groups == (
        Group(name="lead", ranks=1),
        Group(name="prefill", ranks=4, gpus_per_rank=8, layers=(Layer(level="rack"),)),
        Group(
            name="decode",
            ranks=16,
            gpus_per_rank=2,
            layers=(Layer(level="rack", ranks=4), Layer(level="node", ranks=2, wish=Wish.PREFERRED)),
        ),
    )


def test_a_file_and_options_beside_it(tmp_path: Path) -> None:
    """TOML and JSON say the same; an option replaces what the file says of it."""
    toml, as_json = tmp_path / "asked.toml", tmp_path / "asked.json"
    toml.write_text('preference = "bandwidth_first"\nlayers = [{level = "rack", ranks = 2, wish = "preferred"}]\n')
    as_json.write_text(
        '{"preference": "bandwidth_first", "layers": [{"level": "rack", "ranks": 2, "wish": "preferred"}]}'
    )
    asked = topology_of(toml)

    assert asked == topology_of(as_json)
    assert asked == topology_of(preference="bandwidth_first", layers=["rack=2:preferred"])
    assert topology_of(toml, layers=["supernode"]) == topology_of(preference="bandwidth_first", layers=["supernode"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": ["rack=many"]}, "--layer: 'rack=many' is no layer; write LEVEL, LEVEL=RANKS or"),
        ({"layers": ["rack=2:soft"]}, "--layer: 'rack=2:soft' is no layer"),
        ({"layers": ["Rack"]}, 'layers[0].level is "Rack"'),
        ({"layers": ["rack=0"]}, "layers[0].ranks is 0; it must be a whole number from 1 to 100000"),
        ({"groups": ["decode"]}, "--group is 'decode'; write NAME=RANKS, NAME=RANKSxGPUS or"),
        ({"groups": ["decode=4x8@rack=x"]}, "--group decode: 'rack=x' is no layer"),
        ({"groups": ["a=1", "a=2"]}, "Groups: 'a' is named twice"),
        ({"preference": "speed"}, 'preference is "speed"; it must be one of "utilization_first", "bandwidth_first"'),
        ({"file": Path("no-such.toml")}, "no-such.toml cannot be read"),
    ],
)
def test_what_cannot_be_read(options: dict[str, Any], words: str) -> None:
    """Each message names the option or the field, its value, and what would be right."""
    with pytest.raises(RequestError) as error:
        topology_of(options.pop("file", None), **options)

    assert words in str(error.value)


def test_submit(run: Run, listener: Listener) -> None:
    """The request holds the layers; the gang is as large as its groups, of the least of their GPUs."""
    layered = run("submit", "-b", "a", "-r", 4, "-g", 8, "--layer", "rack=2", "--symmetric", "--", "train")
    roles = run("submit", "-b", "a", "--group", "prefill=4x8@rack", "--group", "decode=8x2", "--", "serve")

    assert (layered.exit_code, roles.exit_code) == (0, 0)
    one, other = listener.heard
    assert isinstance(one, WorkloadSubmitted)
    assert one.topology == TopologyRequest(layers=(Layer(level="rack", ranks=2),), symmetric=True)
    assert isinstance(other, WorkloadSubmitted)
    assert (other.ranks, other.gpus_per_rank) == (12, 2)


def test_submit_what_does_not_divide(run: Run, listener: Listener) -> None:
    """It never leaves the client, and the exit code says that nothing was done."""
    result = run("submit", "-b", "a", "-r", 5, "--layer", "rack=2", "--", "train")

    assert result.exit_code == 2
    assert "a block of 2 ranks in one rack does not divide the 5 ranks of the gang" in result.stderr
    assert not listener.heard


# --- where nodes are --------------------------------------------------------------------------------------------------


def test_relabel(run: Run, listener: Listener, tmp_path: Path) -> None:
    """Several nodes in one place, as they report it again, or each as a file says."""
    file = tmp_path / "places.json"
    file.write_text('[{"node": "n1", "tree": "t"}, {"node": "n2", "domains": ["s1", "r1"]}]')

    for arguments in (("n1", "n2", "--tree", "cut-off", "--domains", "s9/r9"), ("n1",), ("--file", file)):
        assert run("node", "relabel", *arguments, "--reason", "spine 3 is down").exit_code == 0

    split, back, listed = listener.heard
    assert isinstance(split, NodesRelabelled)
    assert split.labels == tuple(NodeLabels(node=n, tree="cut-off", domains=("s9", "r9")) for n in ("n1", "n2"))
    assert isinstance(back, NodesRelabelled)
    assert back.labels == (NodeLabels(node="n1"),)
    assert isinstance(listed, NodesRelabelled)
    assert listed.labels == (NodeLabels(node="n1", tree="t"), NodeLabels(node="n2", domains=("s1", "r1")))


def test_labels_that_say_it_twice_or_not_at_all(tmp_path: Path) -> None:
    """Nodes or a file, and one of them."""
    file = tmp_path / "places.json"
    file.write_text('{"n1": "t"}')

    for nodes, given, words in (((), None, "no node is named"), (("n1",), file, "leave out"), ((), file, "no list")):
        with pytest.raises(RequestError, match=words):
            labels_of(nodes, given, domains=None, tree=None)


# --- what is seen -----------------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Two racks of two nodes; a gang of two pairs runs on them, and n4 was moved away from n3. N2 is ill."""
    story = Story(
        budgets(a=1),
        adopted(levels=(Levels(names=("supernode", "rack")),)),
        (node(f"n{n}", tree="t", domains=("s1", f"r{(n + 1) // 2}")) for n in range(1, 6)),
        submitted("gang", ranks=4, topology=TopologyRequest(layers=(Layer(level="rack", ranks=2),))),
    )
    seats = tuple(Seat(rank=rank, node=f"n{rank + 1}", gpu_mask=0xFF) for rank in range(4))
    placement = ProposedPlacement(workload="gang", attempt=1, seats=seats, shares=())
    story.tell(RoundProposed(round=1, based_on=0, policy_version=0, placements=(placement,)))
    story.start("gang")
    story.at(MINUTE).tell(
        health("n2", NodeHealth.UNHEALTHY), relabelled(NodeLabels(node="n4", domains=("s1", "r9")), reason="recabled")
    )
    return in_file(tmp_path / "day.sqlite", story)


def test_the_trees(run: Run, ledger: Path) -> None:
    """Domains below those they are in: nodes, those in use, those wholly free, GPUs and free ones."""
    text, machine = run("topology", "--from", ledger), run("topology", "--from", ledger, "--json")
    coarse = run("topology", "--from", ledger, "--level", "supernode", "--json")

    assert text.exit_code == machine.exit_code == coarse.exit_code == 0
    lines = [line.split() for line in text.stdout.splitlines()]
    assert lines[0] == ["h100,", "tree", "t:", "supernode", ">", "rack", ">", "node"]
    assert lines[2:8] == [
        ["(all)", "5", "4", "1", "40", "8"],
        ["s1", "supernode", "5", "4", "1", "40", "8"],
        ["r1", "rack", "2", "1", "0", "16", "0"],
        ["r2", "rack", "1", "1", "0", "8", "0"],
        ["r3", "rack", "1", "1", "1", "8", "8"],
        ["r9", "rack", "1", "1", "0", "8", "0"],
    ]
    (tree,) = json.loads(machine.stdout)["trees"]
    assert (tree["pool"], tree["tree"], tree["levels"]) == ("h100", "t", ["supernode", "rack"])
    assert [domain["path"] for domain in tree["domains"]][:2] == [["s1"], ["s1", "r1"]]
    assert [domain["path"] for domain in json.loads(coarse.stdout)["trees"][0]["domains"]] == [["s1"]]


def test_a_level_that_no_tree_has(run: Run, ledger: Path) -> None:
    """The message names those there are."""
    result = run("topology", "--from", ledger, "--level", "hall")

    assert result.exit_code == 2
    assert "--level is 'hall'; the levels are supernode, rack." in result.stderr


def test_a_run_that_straddles(run: Run, ledger: Path) -> None:
    """It is marked in the list, and explained with its ranks and domains; the story says when and why."""
    listed, explained = run("jobs", "--from", ledger), run("explain", "gang", "--from", ledger)
    job = json.loads(run("explain", "gang", "--from", ledger, "--json").stdout)["job"]

    assert "straddling: n1, n2, n3, n4" in listed.stdout
    words = "ranks 2 to 3 must share one rack, and lie in 2: s1/r2, s1/r9"
    assert job["straddling"] == words
    assert f"It straddles: {words}. It goes on where it is." in explained.stdout
    assert "topology: each 2 in one rack" in explained.stdout
    assert f"Nodes were relabelled (recabled); it straddles: {words}; it goes on there." in explained.stdout


def test_the_gpus_of_groups_are_added_up(run: Run, tmp_path: Path) -> None:
    """4 x 8 + 16 x 2 = 64, in what is asked and in the story; no one number of GPUs is that of each rank."""
    prefill, decode = Group(name="prefill", ranks=4, gpus_per_rank=8), Group(name="decode", ranks=16)
    roles = submitted("roles", ranks=20, gpus_per_rank=2, topology=TopologyRequest(groups=(prefill, decode)))
    path = in_file(tmp_path / "groups.sqlite", Story(node("n1"), budgets(a=1), roles))

    explained = run("explain", "roles", "--from", path).stdout

    assert "a: 20 ranks = 64 GPUs" in explained
    assert "Submitted to a: 20 ranks = 64 GPUs" in explained


def test_where_a_node_is(run: Run, ledger: Path) -> None:
    """Its tree and its domains, in the list and by itself."""
    assert "t: s1/r9" in run("nodes", "--from", ledger).stdout
    assert "is in t: s1/r9" in run("node", "show", "n4", "--from", ledger).stdout


# --- the policy's knobs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("supernode/rack", (Levels(names=("supernode", "rack")),)),
        ("h100:supernode/rack,hall", (Levels(pool="h100", names=("supernode", "rack")), Levels(names=("hall",)))),
        ("none", ()),
    ],
)
def test_levels_as_they_are_written(text: str, levels: tuple[Levels, ...]) -> None:
    """Names coarse to fine, by pool where they differ; what is shown is read back as the same."""
    assert read_policy(None, [f"levels={text}"]).levels == levels
    assert written("levels", levels) == text


def test_levels_in_a_file(tmp_path: Path) -> None:
    """A text, or a table by pool."""
    file = tmp_path / "policy.toml"
    file.write_text('preference = "bandwidth_first"\n[levels]\nh100 = "supernode/rack"\n')

    policy = read_policy(str(file))

    assert policy.levels == (Levels(pool="h100", names=("supernode", "rack")),)
    assert policy.preference is Preference.BANDWIDTH_FIRST
    with pytest.raises(RequestError, match="levels is 'h100:'; write them coarse to fine"):
        read_policy(None, ["levels=h100:"])


def test_the_other_knobs_of_the_topology() -> None:
    """Words as they are, and a list of reserves in JSON, as they are shown."""
    policy = read_policy(
        None,
        [
            "levels=rack",
            "fragment_score=lexicographic",
            "recovery=in_place",
            "recovery_step_ms=30s",
            'domain_reserves=[{"level": "rack", "nodes": 1, "use": "recovery_only"}]',
        ],
    )

    assert (policy.recovery, policy.recovery_step_ms) == (Recovery.IN_PLACE, 30_000)
    shown = written("domain_reserves", policy.domain_reserves)
    assert read_policy(None, ["levels=rack", f"domain_reserves={shown}"]).domain_reserves == policy.domain_reserves


def test_a_file_that_nests_too_deeply_is_told(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(RequestError, match=r"deep\.json is neither TOML nor JSON"):
        topology_of(path)
    with pytest.raises(RequestError, match=r"deep\.json is no JSON"):
        labels_of((), path, domains=None, tree=None)


@pytest.mark.usefixtures("listener")
def test_of_labels_that_are_refused_only_the_mistake_is_told(run: Run) -> None:
    told = run("node", "relabel", "node-1", "--domains", "a//b", "--reason", "x").stderr
    assert 'labels[0].domains[1] is ""' in told
    assert "1 to 100000 items" not in told
