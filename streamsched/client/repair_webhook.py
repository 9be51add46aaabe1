"""Tells whoever repairs nodes that one has become empty, until they have taken it.

Nothing waits for it: what is to be told is queued, and told again, less and less often, as long as the node waits for
its repair. The receiver may hear of the same node twice, from two schedulers or after a restart; the header
``Idempotency-Key`` tells that from another time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import aiohttp

from streamsched.model.commands import NodeEmptied
from streamsched.model.events import NodeRepairBegan

#: How long the receiver may take to answer.
ANSWER_SECONDS = 10.0
#: Time before it is told again: doubles from the first to the last.
FIRST_SECONDS = 1.0
LAST_SECONDS = 300.0
#: How many are told of at once.
AT_ONCE = 8


class RepairWebhook:
    """One address that wants a POST with the JSON of `NodeEmptied` for each node that has become empty."""

    def __init__(
        self,
        url: str,
        *,
        still_waits: Callable[[NodeEmptied], bool],
        began: Callable[[NodeRepairBegan], Awaitable[object]],
        failed: Callable[[NodeEmptied, str], None],
        first_seconds: float = FIRST_SECONDS,
    ) -> None:
        """Prepare; `run` must be running for anything to be told.

        Args:
            url: Where to POST.
            still_waits: Whether a node is still empty and nobody repairs it.
            began: Takes the fact that the receiver has taken a node.
            failed: Told why the receiver did not; it will be asked again.
            first_seconds: Time before the second try.
        """
        self._url = url
        self._still_waits = still_waits
        self._began = began
        self._failed = failed
        self._first_seconds = first_seconds
        self._untold: asyncio.Queue[tuple[NodeEmptied, float]] = asyncio.Queue()

    def tell(self, emptied: NodeEmptied, after_seconds: float = 0.0) -> None:
        """Tell of a node as soon as may be, or after a while in which somebody else may do so. Never waits."""
        self._untold.put_nowait((emptied, after_seconds))

    async def run(self) -> None:
        """Tell, until cancelled.

        Raises:
            ExceptionGroup: The fact that a repair began was not taken.
        """
        at_once = asyncio.Semaphore(AT_ONCE)
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as telling:
            while True:
                emptied, after_seconds = await self._untold.get()
                telling.create_task(self._tell(session, at_once, emptied, after_seconds))

    async def _tell(
        self, session: aiohttp.ClientSession, at_once: asyncio.Semaphore, emptied: NodeEmptied, after_seconds: float
    ) -> None:
        await asyncio.sleep(after_seconds)
        for tries in count():
            async with at_once:
                if not self._still_waits(emptied):
                    return
                problem = await self._post(session, emptied)
            if problem is None:
                await self._began(NodeRepairBegan(node=emptied.node, emptied=emptied.cursor))
                return
            self._failed(emptied, problem)
            await asyncio.sleep(min(self._first_seconds * 2 ** min(tries, 20), LAST_SECONDS))

    async def _post(self, session: aiohttp.ClientSession, emptied: NodeEmptied) -> str | None:
        """Return None when it was taken, else why it was not."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"{emptied.node}/{emptied.cursor}"}
        body = emptied.model_dump_json(exclude_none=True).encode()
        try:
            async with session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                return None if response.status < 300 else f"HTTP status {response.status}"
        except TimeoutError:
            return f"no answer within {ANSWER_SECONDS:g} s"
        except aiohttp.ClientError as error:
            return str(error) or type(error).__name__
