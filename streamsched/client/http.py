"""Clients of the embedded service: one that waits, and one for asyncio.

Every request may be sent again: a submission carries its workload's id, and the service gives a repeat the answer of
the first. Neither client does so by itself, except that the waiting one opens a closed connection again.
"""

from __future__ import annotations

import http.client
import io
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel

from streamsched.client import exchanges
from streamsched.client.exchanges import ControlEvent, Exchange, Health
from streamsched.client.requests import cancellation
from streamsched.errors import RequestError, UnreachableError
from streamsched.model.commands import Receipt
from streamsched.model.events import WorkloadSubmitted
from streamsched.replay.answers import EVERY_JOB, Explanation, JobFilter, Jobs, Nodes, PolicyInForce, Shares, Summary

if TYPE_CHECKING:
    import aiohttp

#: How long an answer may take. A submission is answered once it is durable and folded: milliseconds, on a sound disk.
ANSWER_SECONDS = 30.0

A = TypeVar("A", bound=BaseModel)


class Client:
    """Talks to an embedded service and waits for each answer. One request at a time; for one thread."""

    def __init__(self, url: str, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        """Prepare; nothing is sent before the first request.

        Args:
            url: Where the service listens, ``http://127.0.0.1:7070``.
            answer_seconds: How long to wait for an answer.

        Raises:
            RequestError: The URL is no such address.
        """
        self.url = url
        host, port = _address(url)
        self._connection = http.client.HTTPConnection(host, port, timeout=answer_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. A later request opens another."""
        self._connection.close()

    def submit(self, submission: WorkloadSubmitted) -> Receipt:
        """Ask for GPUs; return once the request is durable and settled.

        See `streamsched.client.requests.submission` for an easy way to make one.

        Raises:
            RequestError: The request is malformed; its message names the field, the value and the remedy.
            UnreachableError: No answer. The request may have been taken: send the same one again.
        """
        return self._ask(exchanges.submit(submission))

    def cancel(self, workload: str, *, reason: str | None = None, actor: str | None = None) -> Receipt:
        """Take a workload back, queued or running. Raises like `submit`."""
        return self._ask(exchanges.cancel(cancellation(workload, reason=reason, actor=actor)))

    def control(self, event: ControlEvent) -> Receipt:
        """Change the budget tree, the policy, or a priority. Raises like `submit`."""
        return self._ask(exchanges.control(event))

    def jobs(self, wanted: JobFilter = EVERY_JOB) -> Jobs:
        """Return the workloads that pass the filter."""
        return self._ask(exchanges.jobs(wanted))

    def explain(self, workload: str) -> Explanation:
        """Return what happened to a workload and why it is where it is.

        Raises:
            RequestError: There is no such workload (code ``not_found``).
            UnreachableError: No answer.
        """
        return self._ask(exchanges.explain(workload))

    def shares(self) -> Shares:
        """Return the budget tree with what each part of it used."""
        return self._ask(exchanges.shares())

    def nodes(self) -> Nodes:
        """Return the machines."""
        return self._ask(exchanges.nodes())

    def policy(self) -> PolicyInForce:
        """Return how the cluster is scheduled."""
        return self._ask(exchanges.policy())

    def summary(self) -> Summary:
        """Return the state in a few numbers, its digest among them."""
        return self._ask(exchanges.summary())

    def health(self) -> Health:
        """Return how the service is."""
        return self._ask(exchanges.health())

    def _ask(self, exchange: Exchange[A]) -> A:
        had_connection = self._connection.sock is not None
        try:
            try:
                status, body = self._send(exchange)
            except (ConnectionError, http.client.BadStatusLine):
                if not had_connection:
                    raise
                status, body = self._send(exchange)  # The service had closed an idle connection.
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise _unreachable(self.url, error) from error
        return exchange.read(status, body)

    def _send(self, exchange: Exchange[A]) -> tuple[int, bytes]:
        try:
            self._connection.request(exchange.method, exchange.target, exchange.body, dict(exchange.headers))
            response = self._connection.getresponse()
            return response.status, response.read()
        except BaseException:
            self._connection.close()
            raise


class AsyncClient:
    """Talks to an embedded service from asyncio; any number of requests at a time. An async context manager."""

    def __init__(self, url: str, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        """Prepare; connections are opened in the context. See `Client` for the arguments and what is raised."""
        host, port = _address(url)
        self.url = url
        self._origin = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._answer_seconds = answer_seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._answer_seconds))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def submit(self, submission: WorkloadSubmitted) -> Receipt:
        """Ask for GPUs; see `Client.submit`."""
        return await self._ask(exchanges.submit(submission))

    async def cancel(self, workload: str, *, reason: str | None = None, actor: str | None = None) -> Receipt:
        """Take a workload back; see `Client.cancel`."""
        return await self._ask(exchanges.cancel(cancellation(workload, reason=reason, actor=actor)))

    async def control(self, event: ControlEvent) -> Receipt:
        """Change the budget tree, the policy, or a priority; see `Client.control`."""
        return await self._ask(exchanges.control(event))

    async def jobs(self, wanted: JobFilter = EVERY_JOB) -> Jobs:
        """Return the workloads that pass the filter."""
        return await self._ask(exchanges.jobs(wanted))

    async def explain(self, workload: str) -> Explanation:
        """Return what happened to a workload; see `Client.explain`."""
        return await self._ask(exchanges.explain(workload))

    async def shares(self) -> Shares:
        """Return the budget tree with what each part of it used."""
        return await self._ask(exchanges.shares())

    async def nodes(self) -> Nodes:
        """Return the machines."""
        return await self._ask(exchanges.nodes())

    async def policy(self) -> PolicyInForce:
        """Return how the cluster is scheduled."""
        return await self._ask(exchanges.policy())

    async def summary(self) -> Summary:
        """Return the state in a few numbers, its digest among them."""
        return await self._ask(exchanges.summary())

    async def health(self) -> Health:
        """Return how the service is."""
        return await self._ask(exchanges.health())

    async def _ask(self, exchange: Exchange[A]) -> A:
        import aiohttp
        from yarl import URL

        if self._session is None:
            raise RuntimeError("AsyncClient is used inside `async with`")
        url = URL(self._origin + exchange.target, encoded=True)
        body = None if exchange.body is None else io.BytesIO(exchange.body)
        try:
            async with self._session.request(exchange.method, url, data=body, headers=exchange.headers) as response:
                return exchange.read(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unreachable(self.url, error) from error


def _address(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise RequestError("invalid", f"{url!r} is no address of a service: {error}") from error
    if parts.scheme != "http" or not host or parts.path not in ("", "/") or parts.query:
        raise RequestError(
            "invalid", f"{url!r} is no address of a service; write http://HOST:PORT, such as http://127.0.0.1:7070",
        )  # fmt: skip
    return host, 80 if port is None else port


def _unreachable(url: str, error: Exception) -> UnreachableError:
    why = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    return UnreachableError(
        f"nobody answers at {url} ({why}). Start a service with `streamsched up`, or say where it is with --from."
    )
