"""The commands on a real broker: topics, the service and virtual nodes as processes, requests and questions."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from streamsched.client import KafkaClient
from streamsched.client.requests import submission
from streamsched.errors import UnreachableError
from streamsched.model.commands import ReceiptStatus
from tests.brokers import Broker
from tests.embedded.processes import PATIENCE_SECONDS, PROGRAM, eventually, run
from tests.integration.services import free_port

pytestmark = pytest.mark.kafka


@pytest.fixture
def prefix() -> str:
    return f"commands-{uuid4().hex}."


@pytest.fixture
def cluster(kafka: Broker, prefix: str, tmp_path: Path) -> Iterator[str]:
    """Topics, one service with every role, and two virtual nodes: all by commands. Gives the address of the place."""
    applied = run("topics", "apply", "--bootstrap", kafka.bootstrap, "--prefix", prefix, "--replication", "1")
    assert applied.returncode == 0, applied.stderr
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STREAMSCHED_")}
    settings = {
        "STREAMSCHED_BOOTSTRAP": kafka.bootstrap,
        "STREAMSCHED_TOPIC_PREFIX": prefix,
        "STREAMSCHED_DATA_DIR": str(tmp_path / "serve"),
        "STREAMSCHED_WEB_PORT": str(free_port()),
        "STREAMSCHED_METRICS_PORT": str(free_port()),
        "STREAMSCHED_FROM": "http://127.0.0.1:1",
    }
    nodes = (
        "node",
        "virtual",
        "--nodes",
        "2x8:h100",
        "--name",
        "n",
        "--state",
        str(tmp_path / "nodes"),
        "--speed",
        "100",
    )
    with (tmp_path / "log").open("wb") as log:
        processes = [
            subprocess.Popen([*PROGRAM, "serve"], env=inherited | settings, stdout=log, stderr=log),
            subprocess.Popen(
                [*PROGRAM, *nodes, "--bootstrap", kafka.bootstrap, "--prefix", prefix],
                env=inherited, stdout=log, stderr=log,
            ),
        ]  # fmt: skip
        try:
            yield f"kafka://{kafka.bootstrap}/{prefix}"
            assert [process.poll() for process in processes] == [None, None], (tmp_path / "log").read_text()[-4_000:]
            processes[1].send_signal(signal.SIGTERM)
            assert processes[1].wait(PATIENCE_SECONDS) == 0
        finally:
            for process in processes:
                process.kill()
                process.wait()


def test_a_session_on_kafka(cluster: str, tmp_path: Path) -> None:
    """Budgets, a submission that runs to its end, its story from the ledger, and a look back at the whole."""
    tree = tmp_path / "budgets.toml"
    tree.write_text('a = "60%"\nb = "40%"\n')
    at = {"STREAMSCHED_FROM": cluster}

    applied = run("budgets", "apply", str(tree), **at)
    assert (applied.returncode, applied.stderr) == (0, "")
    eventually(lambda: len(json.loads(run("nodes", "--json", **at).stdout)["nodes"]) == 2)
    submitted = run(
        "submit", "-b", "a", "-r", "2", "-g", "8", "--min-runtime", "10m", "--id", "gang", "--", "sleep", "60", **at
    )
    assert (submitted.returncode, submitted.stderr) == (0, "")
    rejected = run("submit", "-b", "nobody", "--id", "lost", "--", "sleep", "1", **at)
    assert rejected.returncode == 1
    assert "'nobody'" in rejected.stderr
    eventually(lambda: "succeeded" in run("jobs", "--ended", **at).stdout)

    explained = json.loads(run("explain", "gang", "--json", **at).stdout)
    phases = dict.fromkeys(line["phase"] for line in explained["story"])
    assert list(phases) == ["queued", "bound", "running", "succeeded"]
    assert run("cancel", "stranger", **at).returncode == 1
    audit = json.loads(run("replay", f"{cluster}ledger.v1", "--json").stdout)["audit"]
    assert audit["gaps"] == []
    assert audit["accepted"] == 1


def test_many_requests_share_one_client(cluster: str, tmp_path: Path) -> None:
    """Fifty at a time; each hears of its own, and a repeat hears the same."""
    tree = tmp_path / "budgets.toml"
    tree.write_text('a = "100%"\n')
    assert run("budgets", "apply", str(tree), "--to", cluster).returncode == 0
    bootstrap, _, prefix = cluster.removeprefix("kafka://").partition("/")
    requests = [submission(budget="a", command=("sleep", "1")) for _ in range(50)]

    async def submit_all() -> None:
        async with KafkaClient(bootstrap, prefix) as client:
            for _ in range(2):
                receipts = await asyncio.gather(*(client.submit(request) for request in requests))
                assert {receipt.status for receipt in receipts} == {ReceiptStatus.ACCEPTED}
                assert [receipt.workload for receipt in receipts] == [request.workload for request in requests]
                assert [receipt.corr for receipt in receipts] == [request.corr for request in requests]

    asyncio.run(submit_all())


def test_topics_that_are_missing_are_told(kafka: Broker, prefix: str) -> None:
    """`topics check` answers no, and a client says what to do."""
    checked = run("topics", "check", "--bootstrap", kafka.bootstrap, "--prefix", prefix)
    submitted = run("submit", "-b", "a", "--to", f"kafka://{kafka.bootstrap}/{prefix}", "--", "sleep", "1")

    assert checked.returncode == 1
    assert f"{prefix}workloads.v1" in checked.stdout
    assert submitted.returncode == 3
    assert "streamsched topics apply" in submitted.stderr


def test_a_receipt_that_does_not_come_is_told(kafka: Broker, prefix: str) -> None:
    """No service runs: the request may be taken later, and the client says so."""
    applied = run("topics", "apply", "--bootstrap", kafka.bootstrap, "--prefix", prefix, "--replication", "1")
    assert applied.returncode == 0

    async def submit() -> None:
        async with KafkaClient(kafka.bootstrap, prefix, receipt_seconds=2) as client:
            await client.submit(submission(budget="a"))

    with pytest.raises(UnreachableError, match="may have been taken"):
        asyncio.run(submit())


def test_no_broker_is_told() -> None:
    """With exit code 3."""
    result = run("submit", "-b", "a", "--to", f"kafka://127.0.0.1:{free_port()}/x.", "--", "sleep", "1")

    assert result.returncode == 3
    assert "Traceback" not in result.stderr
