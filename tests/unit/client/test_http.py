"""Both HTTP clients against a real server: answers, rejections, and nobody there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from streamsched.client import AsyncClient, Client
from streamsched.client.requests import submission
from streamsched.embedded.endpoints import application
from streamsched.embedded.engine import Engine
from streamsched.errors import RequestError, UnreachableError
from streamsched.ledgers.memory import MemoryLedger
from streamsched.model.commands import ReceiptStatus
from streamsched.model.events import Event
from streamsched.replay.answers import JobFilter
from streamsched.state.workloads import Phase
from tests import stories

R = TypeVar("R")


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """A service with two nodes that never decides, so that what is submitted stays queued."""
    clock = iter(range(1_000, 10_000_000))
    engine = await Engine.recover(MemoryLedger(lambda: next(clock)), lambda _commands: None)
    events: list[Event] = [*stories.nodes(2), stories.budgets(a=1.0)]
    for event in events:
        await engine.report(event)
    async with TestServer(application(engine, host="127.0.0.1")) as server:
        yield str(server.make_url("")).rstrip("/")


async def waiting(url: str, use: Callable[[Client], R]) -> R:
    """Use the waiting client in a thread, since the server runs in this loop."""

    def work() -> R:
        with Client(url) as client:
            return use(client)

    return await asyncio.to_thread(work)


async def test_both_clients_hear_the_same(url: str) -> None:
    """Submit with one, ask with both."""
    request = submission(budget="a", workload="w", min_runtime_ms=600_000)

    receipt = await waiting(url, lambda client: client.submit(request))
    async with AsyncClient(url) as client:
        again = await client.submit(request)
        theirs = (
            await client.jobs(),
            await client.explain("w"),
            await client.shares(),
            await client.nodes(),
            await client.summary(),
            await client.health(),
        )
    ours = await waiting(url, lambda c: (c.jobs(), c.explain("w"), c.shares(), c.nodes(), c.summary(), c.health()))

    assert (receipt.status, again.status) == (ReceiptStatus.ACCEPTED, ReceiptStatus.ACCEPTED)
    assert receipt.corr == request.corr
    assert ours == theirs
    assert [job.workload for job in ours[0].jobs] == ["w"]


async def test_a_rejection_is_an_answer(url: str) -> None:
    """A request that the cluster cannot take is answered with a receipt that says why, by status 409, 422 or 404."""
    await waiting(url, lambda client: client.submit(submission(budget="a", workload="w")))

    taken = await waiting(url, lambda client: client.submit(submission(budget="a", workload="w", ranks=2)))
    nowhere = await waiting(url, lambda client: client.submit(submission(budget="nobody")))
    unknown = await waiting(url, lambda client: client.cancel("stranger"))
    stale = await waiting(url, lambda client: client.control(stories.budgets("b9", "b0", a=0.5)))

    for receipt, words in [(taken, "'w'"), (nowhere, "'nobody'"), (unknown, "'stranger'"), (stale, "'b0'")]:
        assert receipt.status is ReceiptStatus.REJECTED
        assert words in (receipt.reason or "")


async def test_a_cancelled_workload_leaves_the_list(url: str) -> None:
    """And is found among the ended."""
    await waiting(url, lambda client: client.submit(submission(budget="a", workload="w")))

    receipt = await waiting(url, lambda client: client.cancel("w", reason="wrong data"))

    assert receipt.status is ReceiptStatus.ACCEPTED
    assert (await waiting(url, lambda client: client.jobs())).jobs == ()
    ended = await waiting(url, lambda client: client.jobs(JobFilter(phase=(Phase.CANCELLED,), budget="a", limit=5)))
    assert [(job.workload, job.reason) for job in ended.jobs] == [("w", "cancelled: wrong data")]


async def test_a_stranger_is_not_found(url: str) -> None:
    """By both clients, with a code for programs."""
    with pytest.raises(RequestError, match="stranger") as refused:
        await waiting(url, lambda client: client.explain("stranger"))
    assert refused.value.code == "not_found"
    async with AsyncClient(url) as client:
        with pytest.raises(RequestError, match="stranger"):
            await client.explain("stranger")


async def test_nobody_there_is_told_as_that() -> None:
    """With what to do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"

    with pytest.raises(UnreachableError, match="streamsched up"):
        await waiting(url, lambda client: client.jobs())
    async with AsyncClient(url) as client:
        with pytest.raises(UnreachableError, match="streamsched up"):
            await client.jobs()


@pytest.mark.parametrize(
    ("status", "body"), [(200, "<html>a router's login</html>"), (404, "no such page"), (503, ""), (200, "{}")]
)
async def test_somebody_else_at_the_address_is_told_as_that(status: int, body: str) -> None:
    """What is no answer of ours is not taken for one."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    app = web.Application()
    app.add_routes([web.get("/v1/jobs", answer)])
    async with TestServer(app) as server:
        with pytest.raises(UnreachableError, match="Check the address"):
            await waiting(str(server.make_url("")), lambda client: client.jobs())


async def test_a_closed_idle_connection_is_opened_again() -> None:
    """A service closes connections that are not used; the next request must not fail for that."""
    served: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        served.append(request.transport)
        return web.json_response({"status": "ok", "next_cursor": 0, "at_ms": 0, "version": "0"})

    app = web.Application()
    app.add_routes([web.get("/healthz", answer)])
    async with TestServer(app) as server:

        def ask(client: Client, loop: asyncio.AbstractEventLoop) -> None:
            client.health()
            loop.call_soon_threadsafe(served[-1].close)
            while not served[-1].is_closing():
                pass
            client.health()

        loop = asyncio.get_running_loop()
        await waiting(str(server.make_url("")), lambda client: ask(client, loop))
    assert len(served) == 2


@pytest.mark.parametrize("url", ["ftp://x", "http://", "127.0.0.1:7070", "http://h:notaport", "http://h/path"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Before anything is sent."""
    with pytest.raises(RequestError, match="http://"):
        Client(url)
