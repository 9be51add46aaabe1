"""``streamsched up`` as a process: what it has answered outlives ``kill -9``, and its ledger proves it."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from streamsched.client.http import Client
from streamsched.client.requests import submission
from streamsched.errors import UnreachableError
from streamsched.ledgers.archive import ArchiveLedger, archive_ledger
from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.model.commands import Receipt, ReceiptStatus
from streamsched.model.events import Drain, NodeDrainChanged, WorkloadSubmitted
from streamsched.model.ledger import Ledger
from streamsched.replay.answers import JobFilter
from streamsched.replay.audit import Audit, audit
from streamsched.replay.replayer import fold
from streamsched.state.snapshot import digest
from tests.embedded.processes import Up, eventually, run, up

CLUSTER = ("--nodes", "16x8", "--budget", "a=50%", "--budget", "b=50%", "--speed", "100")
EVERYTHING = JobFilter(ended=True)


def test_kill_9_in_the_middle_of_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Three hundred submissions by several writers, the process killed among them: each acknowledged one is there.

    The runs go on where they were: no workload needs a second attempt. Sending everything again is harmless.
    """
    requests = [submission(budget="ab"[n % 2], gpus_per_rank=1 + n % 4, command=("sleep", "20")) for n in range(300)]
    acknowledged: dict[str, Receipt] = {}
    with up(tmp_path, *CLUSTER) as service:
        killer = threading.Thread(target=_kill_after, args=(service, acknowledged, 100))
        killer.start()
        _submit_all(service.url, requests, acknowledged)
        killer.join()
    assert 0 < len(acknowledged) < len(requests), "the kill came in the middle"

    with up(tmp_path, *CLUSTER) as service, Client(service.url) as client:
        known = {job.workload for job in client.jobs(EVERYTHING).jobs}
        assert set(acknowledged) <= known

        again: dict[str, Receipt] = {}
        _submit_all(service.url, requests, again)
        assert len(again) == len(requests)
        assert {receipt.status for receipt in again.values()} == {ReceiptStatus.ACCEPTED}
        eventually(lambda: not client.jobs().jobs)
        ended = client.jobs(EVERYTHING).jobs
        assert {job.workload for job in ended} == {request.workload for request in requests}
        assert {(job.phase.value, job.attempt) for job in ended} == {("succeeded", 1)}
        assert service.stop() == 0

    account = _audited(tmp_path)
    assert account.gaps == ()
    assert account.accepted == len(requests), "every workload was placed exactly once"


def test_the_ledger_and_its_archive_fold_to_the_live_state(tmp_path: Path) -> None:
    """What the service says of its state at a cursor, a replay of its file says too, and of an archived copy."""
    with up(tmp_path / "data", *CLUSTER) as service, Client(service.url) as client:
        for number in range(20):
            client.submit(submission(budget="a", gpus_per_rank=4, min_runtime_ms=600_000, command=("sleep", "30")))
            if number % 5 == 0:
                client.submit(submission(budget="b", ranks=16, gpus_per_rank=8, command=("sleep", "30")))
        eventually(lambda: not client.jobs().jobs)
        live = client.summary()
        assert service.stop() == 0

    async def digests() -> tuple[str, str]:
        ledger = await SqliteLedger.open(tmp_path / "data" / "ledger.sqlite", readonly=True)
        try:
            folded = digest(await fold(ledger, until_cursor=live.cursor + 1))
            await archive_ledger(ledger, tmp_path / "archive", records_per_segment=50)
        finally:
            await ledger.close()
        return folded, await _archived_digest(tmp_path / "archive", live.cursor + 1)

    assert asyncio.run(digests()) == (live.digest, live.digest)


def test_a_restart_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """A running workload goes on under the same attempt, on the nodes of the last time, which need not be named."""
    with up(tmp_path, "--nodes", "2x4:a100", "--budget", "a=100%") as service, Client(service.url) as client:
        client.submit(
            submission(workload="long", budget="a", gpus_per_rank=4, min_runtime_ms=600_000, command=("sleep", "8"))
        )
        eventually(lambda: client.explain("long").job.phase == "running")
        before = client.explain("long").job
        assert service.stop(signal.SIGINT) == 0

    with up(tmp_path) as service, Client(service.url) as client:
        assert [(node.node, node.pool, node.gpus) for node in client.nodes().nodes] == [
            ("node-1", "a100", 4),
            ("node-2", "a100", 4),
        ]
        job = client.explain("long").job
        assert (job.attempt, job.bound_ms, job.started_ms) == (1, before.bound_ms, before.started_ms)
        eventually(lambda: client.explain("long").job.phase == "succeeded")
        assert client.explain("long").job.attempt == 1


def test_an_allocated_request_takes_the_gpus_of_unallocated_work(tmp_path: Path) -> None:
    """The victim leaves, the other starts at its first attempt on the freed GPUs, and both stories say why."""
    with up(tmp_path, *CLUSTER[2:], "--nodes", "2x8") as service, Client(service.url) as client:
        client.submit(
            submission(
                workload="batch", budget="b", ranks=2, gpus_per_rank=8, resumable=True, command=("sleep", "9000")
            )
        )
        eventually(lambda: client.explain("batch").job.phase == "running")
        client.submit(
            submission(
                workload="urgent", budget="a", gpus_per_rank=8, min_runtime_ms=3_600_000, command=("sleep", "9000")
            )
        )
        eventually(lambda: client.explain("urgent").job.phase == "running")

        urgent, batch = client.explain("urgent"), client.explain("batch")
        assert urgent.job.attempt == 1
        assert [line.phase.value for line in urgent.story] == ["queued", "planned", "bound", "running"]
        assert batch.job.phase == "queued"
        assert "for urgent" in " ".join(line.text for line in batch.story)
        assert batch.verdict.code == "held", "displaced work backs off for a minute before it is placed again"


def test_nodes_that_are_not_hosted_any_more_are_lost(tmp_path: Path) -> None:
    """A cluster that is started with fewer nodes loses what ran on the others, says so, and requeues it."""
    with up(tmp_path, "--nodes", "2x8", "--budget", "a=100%") as service, Client(service.url) as client:
        client.submit(
            submission(workload="wide", budget="a", ranks=2, gpus_per_rank=8, resumable=True, command=("sleep", "600"))
        )
        eventually(lambda: client.explain("wide").job.phase == "running")

    with up(tmp_path, "--nodes", "1x8") as service, Client(service.url) as client:
        assert [node.health.value for node in client.nodes().nodes] == ["healthy", "lost"]
        eventually(lambda: client.explain("wide").job.phase == "queued")
        assert "node node-2 became lost" in " ".join(line.text.lower() for line in client.explain("wide").story)


def test_whoever_repairs_nodes_is_called_for_one_that_is_drained(tmp_path: Path) -> None:
    """Not before it is empty, also when they did not answer before the process was killed; an undrain ends it."""
    heard: list[dict[str, object]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(503 if len(heard) == 1 else 202)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    def order(client: Client, drain: Drain) -> None:
        assert client.control(NodeDrainChanged(node="node-1", drain=drain, reason="new fans")).status == "accepted"

    def state(client: Client) -> str:
        return client.nodes().nodes[0].state.value

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        arguments = ("--repair-webhook", f"http://127.0.0.1:{receiver.server_port}/repair")
        with up(tmp_path, "--nodes", "1x8", "--budget", "a=100%", *arguments) as service, Client(service.url) as client:
            client.submit(submission(workload="w", budget="a", min_runtime_ms=600_000, command=("sleep", "600")))
            eventually(lambda: client.explain("w").job.phase == "running")
            order(client, Drain.SOFT)
            assert state(client) == "draining"
            assert not heard
            order(client, Drain.HARD)
            eventually(lambda: bool(heard))
            service.kill()

        with up(tmp_path, *arguments) as service, Client(service.url) as client:
            eventually(lambda: state(client) == "repair")
            assert heard[0] == heard[-1]
            assert (heard[0]["node"], heard[0]["reason"]) == ("node-1", "new fans")
            order(client, Drain.NONE)
            assert state(client) == "healthy"
        receiver.shutdown()


def test_a_second_process_on_the_same_data_is_refused(tmp_path: Path) -> None:
    """Two processes on one ledger would be two histories; the second says who has it and ends."""
    with up(tmp_path) as service:
        second = run("up", "--data", str(tmp_path), "--port", "0")

        assert second.returncode == 2
        assert f"process {service.process.pid}" in second.stderr
        assert "Traceback" not in second.stderr


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """A second cluster at the same port ends, and leaves the first alone."""
    with up(tmp_path / "one") as service:
        port = service.url.rpartition(":")[2]
        second = run("up", "--data", str(tmp_path / "two"), "--port", port)

        assert second.returncode == 2
        assert f"cannot listen at 127.0.0.1:{port}" in second.stderr
        with Client(service.url) as client:
            assert client.health().status == "ok"


def test_other_budgets_than_the_ledger_has_are_refused(tmp_path: Path) -> None:
    """Budgets at the start are for a new cluster; an old one is changed by an event, not by a flag."""
    with up(tmp_path, "--budget", "a=50%"):
        pass

    second = run("up", "--data", str(tmp_path), "--port", "0", "--budget", "a=60%")

    assert second.returncode == 2
    assert "streamsched budgets apply FILE" in second.stderr


def test_a_ledger_that_is_not_whole_is_not_scheduled_on(tmp_path: Path) -> None:
    """A record is missing: the process stops with a code of its own rather than decide on another history."""
    with up(tmp_path, "--nodes", "2x8"):
        pass
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        database.execute("DELETE FROM records WHERE cursor = 0")
    database.close()

    second = run("up", "--data", str(tmp_path), "--port", "0")

    assert second.returncode == 70
    assert "jumps from cursor 0 to 1" in second.stderr
    assert "Traceback" not in second.stderr


def _submit_all(url: str, requests: list[WorkloadSubmitted], acknowledged: dict[str, Receipt]) -> None:
    """Submit by several writers, each with a connection of its own; stop where nobody answers any more."""

    def submit_some(part: list[WorkloadSubmitted]) -> None:
        with Client(url) as client:
            for request in part:
                try:
                    acknowledged[request.workload] = client.submit(request)
                except UnreachableError:
                    return

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(submit_some, [requests[first::4] for first in range(4)]))


def _kill_after(service: Up, acknowledged: dict[str, Receipt], count: int) -> None:
    while len(acknowledged) < count:
        time.sleep(0.001)
    service.kill()


def _audited(data: Path) -> Audit:
    async def account() -> Audit:
        ledger = await SqliteLedger.open(data / "ledger.sqlite", readonly=True)
        try:
            return await audit(ledger)
        finally:
            await ledger.close()

    return asyncio.run(account())


async def _archived_digest(directory: Path, cursor: int) -> str:
    archive: Ledger = await ArchiveLedger.open(directory)
    try:
        return digest(await fold(archive, until_cursor=cursor))
    finally:
        await archive.close()
