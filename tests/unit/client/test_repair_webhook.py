"""Whoever repairs nodes is told of each empty one until they have taken it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from streamsched.client.repair_webhook import RepairWebhook
from streamsched.model.commands import NodeEmptied
from streamsched.model.events import Drain, NodeRepairBegan

EMPTIED = NodeEmptied(node="n1", cursor=42, emptied_ms=1_000, drain=Drain.SOFT, reason="GPU 3 is slow")
#: Long for a loopback address; nothing waits for it to pass.
PATIENCE_SECONDS = 10.0


class Receiver:
    """A local server that answers with these HTTP statuses in turn, the last one for ever."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.heard: list[tuple[str, dict[str, object]]] = []

    async def take(self, request: web.Request) -> web.Response:
        self.heard.append((request.headers["Idempotency-Key"], json.loads(await request.read())))
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        return web.Response(status=status)


@asynccontextmanager
async def listening(receiver: Receiver) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/repair", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/repair"
    finally:
        await runner.cleanup()


class World:
    """What a shell gives the webhook, and what came of it."""

    def __init__(self, still_waits: Callable[[NodeEmptied], bool] = lambda _: True) -> None:
        self.still_waits = still_waits
        self.began: asyncio.Queue[NodeRepairBegan] = asyncio.Queue()
        self.problems: list[str] = []

    @asynccontextmanager
    async def calling(self, url: str) -> AsyncIterator[RepairWebhook]:
        webhook = RepairWebhook(
            url,
            still_waits=self.still_waits,
            began=self.began.put,
            failed=lambda _, problem: self.problems.append(problem),
            first_seconds=0.001,
        )
        running = asyncio.ensure_future(webhook.run())
        try:
            yield webhook
        finally:
            running.cancel()
            await asyncio.wait({running})


async def test_an_empty_node_is_told_of_and_its_repair_has_begun() -> None:
    """With all that is known of it, and a key by which a repeat is recognised."""
    receiver, world = Receiver(200), World()
    async with listening(receiver) as url, world.calling(url) as webhook:
        webhook.tell(EMPTIED)
        began = await asyncio.wait_for(world.began.get(), PATIENCE_SECONDS)

    assert began == NodeRepairBegan(node="n1", emptied=42)
    fields = {
        "type": "node_emptied",
        "v": 1,
        "node": "n1",
        "cursor": 42,
        "emptied_ms": 1_000,
        "drain": "soft",
        "reason": "GPU 3 is slow",
    }
    assert receiver.heard == [("n1/42", fields)]


async def test_a_receiver_that_fails_is_told_again() -> None:
    """Whatever it answers that is no success; a redirection is none, since it would drop the body."""
    receiver, world = Receiver(503, 302, 202), World()
    async with listening(receiver) as url, world.calling(url) as webhook:
        webhook.tell(EMPTIED)
        await asyncio.wait_for(world.began.get(), PATIENCE_SECONDS)

    assert world.problems == ["HTTP status 503", "HTTP status 302"]
    assert [key for key, _ in receiver.heard] == ["n1/42"] * 3


async def test_nobody_is_told_of_a_node_that_does_not_wait_any_more() -> None:
    """It was put back, or another scheduler told of it."""
    receiver, world = Receiver(200), World(still_waits=lambda emptied: emptied.node != "n1")
    async with listening(receiver) as url, world.calling(url) as webhook:
        webhook.tell(EMPTIED)
        webhook.tell(EMPTIED.model_copy(update={"node": "n2"}))
        began = await asyncio.wait_for(world.began.get(), PATIENCE_SECONDS)

    assert began.node == "n2"
    assert [key for key, _ in receiver.heard] == ["n2/42"]


async def test_a_receiver_that_is_not_there_holds_up_nothing_else() -> None:
    """Telling never waits; the problem is said, and the next try comes later."""
    receiver, world = Receiver(200), World()
    async with listening(receiver) as url:
        pass  # Nobody listens there any more.
    async with world.calling(url) as webhook:
        webhook.tell(EMPTIED)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(world.problems) < 2:
                await asyncio.sleep(0.001)

    assert world.began.empty()
