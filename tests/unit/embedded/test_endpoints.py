"""The HTTP intake: what is wrong is named, what is repeated is answered alike, and nothing is answered too early."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from streamsched.embedded.endpoints import BODY_BYTES_MAX, application
from streamsched.embedded.engine import Engine
from streamsched.ledgers.memory import MemoryLedger
from streamsched.model.events import BudgetTreeChanged, Event
from tests import stories

Service = TestClient[Any, Any]

SUBMISSION: dict[str, Any] = {
    "workload": "llama",
    "budget": "a",
    "ranks": 2,
    "gpus_per_rank": 8,
    "min_runtime_ms": 3_600_000,
    "resumable": True,
}


@pytest.fixture
async def ledger() -> MemoryLedger:
    clock = iter(range(1_000, 10_000_000))
    return MemoryLedger(lambda: next(clock))


@pytest.fixture
async def engine(ledger: MemoryLedger) -> AsyncIterator[Engine]:
    """A cluster of two nodes and the budgets a and b, live."""
    engine = await Engine.recover(ledger, lambda _commands: None, clock=lambda: 1_000)
    events: list[Event] = [*stories.nodes(2), stories.budgets(a=0.5, b=0.5)]
    for event in events:
        await engine.report(event)
    running = asyncio.ensure_future(engine.run())
    yield engine
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def service(engine: Engine) -> AsyncIterator[Service]:
    async with TestClient(TestServer(application(engine, host="127.0.0.1"))) as client:
        yield client


def tree(change: str, fraction: float) -> BudgetTreeChanged:
    """Another fraction for a, as a change made on the first tree."""
    return stories.budgets(change, "b1", a=fraction)


async def submit(service: Service, **fields: Any) -> tuple[int, Any]:
    response = await service.post("/v1/workloads", json={**SUBMISSION, **fields})
    return response.status, await response.json()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ranks": 0}, ["ranks", "0", "from 1 to 100000"]),
        ({"ranks": "two"}, ["ranks", '"two"', "whole number"]),
        ({"ranks": 1.5}, ["ranks", "1.5", "whole number"]),
        ({"gpus_per_rank": 17}, ["gpus_per_rank", "17", "from 1 to 16"]),
        ({"min_runtime_ms": -1}, ["min_runtime_ms", "-1"]),
        ({"budget": "a/../b"}, ["budget", "a/../b", "path"]),
        ({"workload": "-x"}, ["workload", "-x", "starting with a letter or digit"]),
        ({"workload": "x\n"}, ["workload"]),
        ({"resumable": None}, ["resumable", "true or false"]),
        ({"rank": 2}, ["rank", "did you mean", "ranks"]),
        ({"src": "workloads.v1/0", "seq": 1}, ["src", "leave it out"]),
        ({"type": "tick"}, ["type", "tick"]),
        ({"v": 2}, ["version 2"]),
    ],
)
async def test_a_wrong_field_is_named_with_its_value_and_the_remedy(
    service: Service, ledger: MemoryLedger, fields: dict[str, Any], words: list[str]
) -> None:
    """And a request that is wrong leaves nothing in the ledger."""
    before = await ledger.end()

    status, answer = await submit(service, **fields)

    assert status == 400
    assert set(answer) == {"error"}
    for word in words:
        assert word in answer["error"]["reason"]
    assert await ledger.end() == before


@pytest.mark.parametrize("missing", ["workload", "budget", "ranks", "gpus_per_rank", "min_runtime_ms", "resumable"])
async def test_a_missing_field_is_named(service: Service, missing: str) -> None:
    """Nothing that decides over GPUs has a default."""
    body = {name: value for name, value in SUBMISSION.items() if name != missing}

    response = await service.post("/v1/workloads", json=body)

    assert response.status == 400
    assert (await response.json())["error"]["code"] == "missing_field"
    assert missing in (await response.json())["error"]["reason"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "missing_field"),
        (b"{", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b"[]", "not_an_object"),
        (b"7", "not_an_object"),
        (b'{"workload":"x","workload":"y"}', "duplicate_field"),
        (b'{"ranks":NaN}', "not_json"),
    ],
)
async def test_bytes_that_are_no_request_are_refused(service: Service, body: bytes, code: str) -> None:
    """Whatever the bytes, the answer is JSON and says what is wrong."""
    response = await service.post("/v1/workloads", data=body, headers={"Content-Type": "application/json"})

    assert response.status == 400
    assert (await response.json())["error"]["code"] == code


async def test_an_accepted_submission_is_in_the_ledger_and_in_the_state(
    service: Service, engine: Engine, ledger: MemoryLedger
) -> None:
    """The receipt names the cursor of the record, and the workload is there when the answer is."""
    status, receipt = await submit(service, corr="c-1")

    assert status == 200
    assert (receipt["status"], receipt["workload"], receipt["corr"]) == ("accepted", "llama", "c-1")
    entries = [entry async for page in ledger.read(receipt["cursor"]) for entry in page]
    assert json.loads(entries[0].data)["workload"] == "llama"
    assert "llama" in engine.state.workloads


async def test_the_same_submission_again_is_the_same_workload(service: Service, engine: Engine) -> None:
    """A client that did not hear the answer may ask again; nothing is queued twice."""
    first = await submit(service)
    second = await submit(service, actor="somebody else's retry")

    assert (first[0], second[0]) == (200, 200)
    assert first[1]["status"] == second[1]["status"] == "accepted"
    assert list(engine.state.workloads) == ["llama"]


async def test_another_submission_of_the_same_id_is_a_conflict(service: Service, engine: Engine) -> None:
    """An id is never reused; the first submission stands."""
    await submit(service)

    status, receipt = await submit(service, ranks=1)

    assert status == 409
    assert receipt["status"] == "rejected"
    assert "llama" in receipt["reason"]
    assert engine.state.workloads["llama"].ranks == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"budget": "c"}, ["budget", "'c'"]),
        ({"min_runtime_ms": 1_000}, ["min_runtime_ms", "1000", "5m to 8h"]),
        ({"ranks": 3}, ["ranks", "3", "is 2"]),
    ],
)
async def test_what_the_cluster_cannot_take_is_rejected_alike_each_time(
    service: Service, fields: dict[str, Any], words: list[str]
) -> None:
    """A well-formed request that the scheduler rejects has a receipt that says why; a retry has the same status."""
    for _ in range(2):
        status, receipt = await submit(service, **fields)
        assert (status, receipt["status"]) == (422, "rejected")
        for word in words:
            assert word in receipt["reason"]


@pytest.mark.parametrize("way", ["post", "delete"])
async def test_a_cancellation_is_answered_when_it_is_folded(service: Service, engine: Engine, way: str) -> None:
    """Both ways of saying it; cancelling again is harmless."""
    await submit(service, ranks=2)

    async def cancel(workload: str) -> tuple[int, Any]:
        if way == "post":
            response = await service.post(f"/v1/workloads/{workload}/cancel", json={"reason": "wrong data"})
        else:
            response = await service.delete(f"/v1/workloads/{workload}")
        return response.status, await response.json()

    status, receipt = await cancel("llama")
    assert (status, receipt["status"]) == (200, "accepted")
    assert engine.state.workloads["llama"].cancelled or "llama" in engine.state.finished
    assert (await cancel("llama"))[0] == 200
    status, receipt = await cancel("nobody")
    assert (status, receipt["status"]) == (404, "rejected")
    assert "nobody" in receipt["reason"]


async def test_a_cancellation_names_one_workload(service: Service) -> None:
    """A body that contradicts the path is refused."""
    response = await service.post("/v1/workloads/llama/cancel", json={"workload": "other"})

    assert response.status == 400
    assert "other" in (await response.json())["error"]["reason"]


async def test_budgets_are_changed_on_the_tree_that_was_read(service: Service, engine: Engine) -> None:
    """A change made on an older tree is refused, so that no edit is lost; the same change twice is one."""

    async def change(event: Event) -> tuple[int, Any]:
        response = await service.post("/v1/events", json=event.model_dump(exclude_none=True))
        return response.status, await response.json()

    assert (await change(tree("b2", 0.25)))[0] == 200
    status, receipt = await change(tree("b3", 0.75))
    assert (status, receipt["status"]) == (409, "rejected")
    assert "'b2'" in receipt["reason"]
    assert (await change(tree("b2", 0.25)))[0] == 200
    assert engine.state.budgets.by_id["a"].fraction_nano == 250_000_000


async def test_a_policy_is_adopted(service: Service, engine: Engine) -> None:
    """Policies have no receipt in the fold; the answer says at which cursor it was adopted."""
    event = stories.adopted(grace_ms=1_000)

    response = await service.post("/v1/events", json=event.model_dump(exclude_none=True))

    assert response.status == 200
    assert engine.state.policy.grace_ms == 1_000


async def test_facts_of_nodes_are_not_taken(service: Service) -> None:
    """Nobody may say over HTTP that a run has ended."""
    event = stories.released("n1", "llama")

    response = await service.post("/v1/events", json=event.model_dump(exclude_none=True))

    assert response.status == 400
    assert "run_released" in (await response.json())["error"]["reason"]


async def test_questions_are_answered(service: Service) -> None:
    """Each path gives its own answer, all as of one cursor."""
    await submit(service)
    await asyncio.sleep(0.01)

    async def ask(path: str) -> Any:
        response = await service.get(path)
        assert response.status == 200, path
        return await response.json()

    assert [job["workload"] for job in (await ask("/v1/jobs"))["jobs"]] == ["llama"]
    assert (await ask("/v1/jobs?phase=running"))["jobs"] == []
    assert (await ask("/v1/jobs?budget=b"))["jobs"] == []
    assert (await ask("/v1/jobs/llama"))["story"][0]["event"] == "workload_submitted"
    assert [share["budget"] for share in (await ask("/v1/shares"))["shares"]] == ["", "a", "b"]
    assert [node["free"] for node in (await ask("/v1/nodes"))["nodes"]] == [0, 0]
    assert (await ask("/v1/state"))["live"] == {"bound": 1}
    assert (await ask("/healthz"))["status"] == "ok"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/v1/jobs/nobody", 404, ["nobody"]),
        ("/v1/jobs?phase=sleeping", 400, ["phase", "sleeping", "queued"]),
        ("/v1/jobs?limit=0", 400, ["limit", "0"]),
        ("/v1/jobs?phaze=queued", 400, ["phaze", "phase"]),
        ("/v1/jbos", 404, ["/v1/jbos"]),
        ("/v1/workloads", 405, ["GET", "/v1/workloads"]),
    ],
)
async def test_a_wrong_question_is_answered_in_json(service: Service, path: str, status: int, words: list[str]) -> None:
    """A path or a query that is not there, with what is wrong."""
    response = await service.get(path)

    assert response.status == status
    reason = (await response.json())["error"]["reason"]
    for word in words:
        assert word in reason


async def test_metrics_add_up(service: Service) -> None:
    """GPUs by state are all GPUs: two nodes of 8, all bound to the gang."""
    await submit(service)
    await asyncio.sleep(0.01)

    text = await (await service.get("/metrics")).text()

    gpus = {
        line.split("}")[0]: float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("streamsched_gpus{")
    }
    assert sum(gpus.values()) == 16
    assert gpus['streamsched_gpus{state="allocated"'] == 16
    assert 'streamsched_workloads{phase="bound"} 1.0' in text


async def test_what_a_web_page_could_send_is_refused(service: Service) -> None:
    """A page of another origin can post plain text without asking, and can name this host as its own."""
    plain = await service.post("/v1/workloads", data=json.dumps(SUBMISSION), headers={"Content-Type": "text/plain"})
    rebound = await service.get("/v1/jobs", headers={"Host": "evil.example"})

    assert plain.status == 415
    assert "application/json" in (await plain.json())["error"]["reason"]
    assert rebound.status == 421
    assert "evil.example" in (await rebound.json())["error"]["reason"]


async def test_a_service_for_a_network_answers_to_every_name(engine: Engine) -> None:
    """Whoever opens it to others gives it names that only they know."""
    async with TestClient(TestServer(application(engine, host="0.0.0.0"))) as service:
        assert (await service.get("/healthz", headers={"Host": "gpu-head.example:7070"})).status == 200


async def test_a_body_that_is_too_large_is_refused(service: Service) -> None:
    """With JSON, as everything is."""
    response = await service.post(
        "/v1/workloads", data=io.BytesIO(b" " * (BODY_BYTES_MAX + 1)), headers={"Content-Type": "application/json"}
    )

    assert response.status == 413
    assert (await response.json())["error"]["code"] == "too_large"


async def test_a_body_that_is_not_what_its_headers_say_is_refused(service: Service) -> None:
    """It is the client's fault, and no fault of the scheduler."""
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    response = await service.post("/v1/workloads", data=b"no gzip", headers=headers)

    assert response.status == 400
    assert (await response.json())["error"]["code"] == "unreadable_body"
    assert (await submit(service))[0] == 200


async def test_a_fold_that_fails_is_answered_and_stops_the_engine(
    service: Service, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in the fold ends the engine: nothing is folded past it, and every waiting request hears of it."""

    def broken(_record: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(engine, "_fold", broken)

    status, answer = await submit(service)
    again, _ = await submit(service, workload="later")

    assert (status, answer["error"]["code"]) == (500, "internal")
    assert again == 500
    with pytest.raises(RuntimeError, match="a bug"):
        await engine.run()


async def test_a_drain_is_answered_and_shown(service: Service) -> None:
    """With who ordered it and what the node waits for; one of an unknown node is refused."""
    order = {"type": "node_drain_changed", "node": "n1", "drain": "soft", "reason": "new fans", "actor": "ana"}
    response = await service.post("/v1/events", json=order)
    assert (response.status, (await response.json())["status"]) == (200, "accepted")

    (shown, _) = (await (await service.get("/v1/nodes")).json())["nodes"]
    assert [shown[name] for name in ("state", "drain", "by", "reason", "waits_for")] == [
        "empty", "soft", "ana", "new fans", "an undrain"
    ]  # fmt: skip

    response = await service.post("/v1/events", json={**order, "node": "n9"})
    assert (response.status, (await response.json())["status"]) == (409, "rejected")
    response = await service.post("/v1/events", json={**order, "reason": None})
    assert response.status == 400


async def test_a_notice_is_no_answer(engine: Engine, service: Service) -> None:
    """Whoever asks for something when a session is warned hears of their own request."""
    await engine.report(stories.adopted(warning_ms=3_600_000))
    await submit(service, interactive=True)
    async with asyncio.timeout(10):
        while engine.state.workloads["llama"].run is None:
            await asyncio.sleep(0)
    for name in ("n1", "n2"):
        await engine.report(stories.started(name, "llama"))
    response = await service.post("/v1/workloads/other/cancel", json={})

    answer = await response.json()
    assert (answer["status"], answer["reason"]) == ("rejected", "workload: there is no workload 'other'")
