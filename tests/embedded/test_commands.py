"""The commands as processes: a whole session against a service, pipes, signals, and how soon help is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.processes import PATIENCE_SECONDS, PROGRAM, Up, eventually, run, up


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("session"), "--nodes", "2x8:h100") as running:
        yield running


def test_a_session(service: Up, tmp_path: Path) -> None:
    """What a person does on the first day: budgets, a submission, questions, a cancellation, a look back."""
    at = {"STREAMSCHED_FROM": service.url}
    assert "budgets apply FILE" in "".join(service.said)

    too_early = run("submit", "--budget", "research", "--", "sleep", "60", **at)
    assert too_early.returncode == 1
    assert "no budget exists yet" in too_early.stderr

    tree = tmp_path / "budgets.toml"
    tree.write_text('product = "40%"\n[research]\nfraction = "60%"\nllama = "1/2"\n')
    assert run("budgets", "apply", str(tree), **at).returncode == 0
    assert run("budgets", "apply", str(tree), "--reason", "again", **at).returncode == 0

    submit = ("submit", "-b", "research/llama", "-r", "2", "-g", "8", "--min-runtime", "1h", "--id", "gang", "--json")
    first, again = run(*submit, "--", "sleep", "600", **at), run(*submit, "--", "sleep", "600", **at)
    assert (first.returncode, again.returncode) == (0, 0)
    assert json.loads(first.stdout)["status"] == json.loads(again.stdout)["status"] == "accepted"
    other = run("submit", "-b", "product", "--id", "gang", "--", "sleep", "600", **at)
    assert (other.returncode, other.stdout) == (1, "")
    assert "'gang'" in other.stderr

    eventually(lambda: json.loads(run("explain", "gang", "--json", **at).stdout)["job"]["phase"] == "running")
    explained = run("explain", "gang", **at).stdout
    assert "The whole gang runs, protected until" in explained.replace("; the whole", "; The whole")
    nodes = json.loads(run("nodes", "--json", **at).stdout)["nodes"]
    assert [node["free"] for node in nodes] == [0, 0]

    assert run("cancel", "gang", "--reason", "wrong data", **at).returncode == 0
    eventually(lambda: "cancelled" in run("jobs", "--ended", **at).stdout)
    assert run("cancel", "stranger", **at).returncode == 1

    # The ledger may be read while the service writes it.
    story = run("explain", "gang", "--from", str(service.data)).stdout
    assert "Cancelled (wrong data)" in story
    assert run("replay", str(service.data)).returncode == 0


def test_a_day_of_an_administrator(tmp_path: Path) -> None:
    """A node is cordoned, drained and put back, each with a reason; and a session is extended once meanwhile."""
    with up(tmp_path, "--nodes", "1x8", "--budget", "a=100%") as service:
        at = {"STREAMSCHED_FROM": service.url}
        submit = ("submit", "-b", "a", "-g", "8", "--min-runtime", "1h", "--interactive", "--id", "notebook")
        assert run(*submit, "--", "sleep", "7200", **at).returncode == 0
        eventually(lambda: "running" in run("jobs", **at).stdout)
        assert run("extend", "notebook", "--by", "30m", **at).returncode == 0
        again = run("extend", "notebook", "--by", "30m", **at)
        assert (again.returncode, again.stdout) == (1, "")
        assert "was extended before" in again.stderr

        assert run("node", "cordon", "node-1", **at).returncode == 2, "a reason is required"
        assert run("node", "cordon", "node-1", "--reason", "odd noise", **at).returncode == 0
        assert "cordoned since" in run("node", "show", "node-1", **at).stdout
        drain = run("node", "drain", "node-1", "--reason", "new fans", "--actor", "ana", **at)
        assert (drain.returncode, drain.stdout.partition(" (")[0]) == (0, "accepted: drain soft of node node-1")
        shown = run("node", "show", "node-1", **at).stdout
        assert "draining since" in shown
        assert "set by ana: new fans" in shown
        assert "waits for 1 run to leave, by" in shown
        assert run("node", "undrain", "node-1", "--reason", "new fans are in", **at).returncode == 0
        assert "healthy since" in run("node", "show", "node-1", **at).stdout
        stranger = run("node", "drain", "node-9", "--hard", "--reason", "water", **at)
        assert (stranger.returncode, stranger.stdout) == (1, "")
        assert "there is no node 'node-9'" in stranger.stderr


def test_a_policy_is_adopted(service: Up) -> None:
    """Looked at first, then adopted with a reason; adopted again, it would change nothing."""
    at = {"STREAMSCHED_FROM": service.url}
    adopt = ("policy", "adopt", "hour_by_hour", "--set", "grace_ms=30s")

    looked = run(*adopt, "--dry-run", **at)
    assert [line.split() for line in looked.stdout.splitlines()[1:]] == [
        ["grace_ms", "1m", "30s"],
        ["order", "window", "due_first"],
    ]
    assert "none has been adopted" in run("policy", "show", **at).stdout
    done = run(*adopt, "--reason", "deliver what is due in its hour", "--actor", "ana", **at)
    assert (done.returncode, done.stdout.partition(" (")[0]) == (
        0,
        "accepted: policy with grace_ms 1m → 30s, order window → due_first",
    )
    shown = json.loads(run("policy", "show", "--json", **at).stdout)
    assert (shown["version"], shown["policy"]["order"], shown["policy"]["grace_ms"]) == (1, "due_first", 30_000)
    assert "nothing would change" in run(*adopt, "--reason", "again", **at).stdout


def test_output_into_a_pipe_is_plain_and_not_cut(service: Up) -> None:
    """No colour, no padding, no line cut to a width that nobody has."""
    long_id = "w" * 120
    run("submit", "-b", "product", "--id", long_id, "--", "sleep", "600", **{"STREAMSCHED_FROM": service.url})

    listed = run("jobs", "--ended", "--from", service.url, COLUMNS="20", FORCE_COLOR="")

    assert long_id in listed.stdout
    assert "\x1b" not in listed.stdout
    assert all(line == line.rstrip() for line in listed.stdout.splitlines())


def test_a_reader_that_goes_away_is_no_error(service: Up) -> None:
    """As in `streamsched jobs | head -1`: no traceback, and a code of its own."""
    process = subprocess.Popen(
        [*PROGRAM, "jobs", "--ended", "--from", service.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()

    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(PATIENCE_SECONDS) == 141
    assert errors == ""


def test_no_colour_where_it_is_not_wanted(service: Up) -> None:
    """NO_COLOR counts, on a terminal too."""
    coloured = _on_a_terminal("jobs", "--ended", "--from", service.url)
    plain = _on_a_terminal("jobs", "--ended", "--from", service.url, NO_COLOR="1")

    assert "\x1b[3" in coloured
    assert "\x1b[3" not in plain


def test_ctrl_c_ends_a_command_that_waits(tmp_path: Path) -> None:
    """With the code that shells expect, and without a traceback."""
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        process = subprocess.Popen(
            [*PROGRAM, "jobs", "--from", f"http://127.0.0.1:{silent.getsockname()[1]}"],
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        connection, _ = silent.accept()
        with connection:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE_SECONDS)

    assert process.returncode == 130
    assert "Traceback" not in errors


def test_help_loads_nothing_heavy() -> None:
    """Help is there at once because no library of the services is imported for it."""
    heavy = ("numpy", "aiohttp", "aiokafka", "faust", "matplotlib", "pydantic", "uvloop")
    script = (
        "import sys\nfrom streamsched.cli import main\nsys.argv = ['streamsched', '--help']\n"
        "try:\n    main()\nfinally:\n"
        f"    print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)\n"
    )

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)

    assert result.returncode == 0
    assert result.stderr.strip() == "[]"


def _on_a_terminal(*arguments: str, **environment: str) -> str:
    """Run a command on a pseudo terminal; return what it writes there."""
    import pty

    leader, follower = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [*PROGRAM, *arguments], stdout=follower, stderr=follower, env={**inherited, "TERM": "xterm", **environment}
    )
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65_536)
        except OSError:  # Linux says so when the last writer is gone.
            break
        if not part:
            break
        written += part
    os.close(leader)
    assert process.wait(PATIENCE_SECONDS) == 0
    return written.decode()


def test_a_gang_in_its_racks(tmp_path: Path) -> None:
    """Levels are named, a gang asks for them and gets them, a node is recabled, and everything can be seen."""
    fleets = ("--nodes", "2x8@s1/r1", "--nodes", "2x8@s1/r2", "--nodes", "2x8@s2/r3")
    with up(tmp_path, *fleets, "--budget", "a=100%") as service:
        at = {"STREAMSCHED_FROM": service.url}
        levels = ("policy", "adopt", "--set", "levels=supernode/rack", "--reason", "name the levels")
        assert run(*levels, **at).returncode == 0

        submit = ("submit", "-b", "a", "-g", "8", "--min-runtime", "1h", "-r", "4", "--layer", "supernode")
        assert run(*submit, "--layer", "rack=2", "--id", "gang", "--", "sleep", "600", **at).returncode == 0
        unknown = run(*submit, "--layer", "hall", "--id", "odd", "--", "sleep", "600", **at)
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "'hall' is no level of pool 'gpu', whose levels are supernode, rack, node" in unknown.stderr

        eventually(lambda: json.loads(run("explain", "gang", "--json", **at).stdout)["job"]["phase"] == "running")
        job = json.loads(run("explain", "gang", "--json", **at).stdout)["job"]
        assert job["nodes"] == ["node-1", "node-2", "node-3", "node-4"]
        assert [layer["level"] for layer in job["topology"]["layers"]] == ["supernode", "rack"]

        assert run(*submit, "--id", "next", "--", "sleep", "600", **at).returncode == 0
        verdict = json.loads(run("explain", "next", "--json", **at).stdout)["verdict"]
        assert verdict["misfit"]["closest"]["domain"] == "s1"
        assert verdict["misfit"]["closest"]["gpus_to_free"] == 32

        moved = run("node", "relabel", "node-2", "--domains", "s1/r2", "--reason", "recabled", **at)
        assert (moved.returncode, moved.stdout.partition(" (")[0]) == (0, "accepted: places of 1 node")
        straddling = json.loads(run("explain", "gang", "--json", **at).stdout)["job"]["straddling"]
        assert straddling == "ranks 0 to 1 must share one rack, and lie in 2: s1/r1, s1/r2"
        assert "straddling: node-1" in run("jobs", **at).stdout
        (tree,) = json.loads(run("topology", "--level", "rack", "--json", **at).stdout)["trees"]
        assert {"/".join(domain["path"]): domain["nodes"] for domain in tree["domains"]} == {
            "s1": 4,
            "s1/r1": 1,
            "s1/r2": 3,
            "s2": 2,
            "s2/r3": 2,
        }
