"""The HTTP intake and the questions of an embedded cluster.

A request about a workload is answered when it is durable and folded, so an answer is never taken back. What does not
validate is answered at once and leaves nothing in the ledger; errors are JSON and name the field, the value and the
remedy.

Who can reach the port may do everything. It listens on loopback, and it refuses what a web page of another origin
could make a browser send: bodies that are not ``application/json``, and names for this host that are not its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from streamsched import __version__
from streamsched.client.exchanges import Health, Problem
from streamsched.embedded.engine import Engine, Settle
from streamsched.embedded.measures import registry_of
from streamsched.errors import InvariantError, LedgerError, WireError
from streamsched.model.commands import Effects, Receipt, ReceiptStatus
from streamsched.model.events import WorkloadCancelled, WorkloadSubmitted
from streamsched.replay import answers
from streamsched.replay.answers import JobFilter
from streamsched.state.cluster import ClusterState
from streamsched.state.workloads import contract_fingerprint
from streamsched.wire import codec

#: The largest body taken: only a budget tree is as large.
BODY_BYTES_MAX = codec.TREE_MAX_BYTES

#: What `/v1/events` takes.
CONTROL = frozenset(
    {
        "budget_tree_changed",
        "usage_adjusted",
        "policy_adopted",
        "workload_reprioritized",
        "run_extended",
        "node_drain_changed",
        "nodes_relabelled",
    }
)

_Answer = tuple[Receipt, HTTPStatus]


def application(engine: Engine, *, host: str) -> web.Application:
    """Return the HTTP application of an engine.

    Args:
        engine: Live, or about to be.
        host: The address it listens at. At a loopback address, requests may not name another host.
    """
    endpoints = _Endpoints(engine)
    app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[_guard(host), _problems_as_json])
    app.add_routes(
        [
            web.post("/v1/workloads", endpoints.submit),
            web.post("/v1/workloads/{workload}/cancel", endpoints.cancel),
            web.delete("/v1/workloads/{workload}", endpoints.cancel),
            web.post("/v1/events", endpoints.control),
            web.get("/v1/jobs", endpoints.jobs),
            web.get("/v1/jobs/{workload}", endpoints.explain),
            web.get("/v1/shares", endpoints.shares),
            web.get("/v1/nodes", endpoints.nodes),
            web.get("/v1/policy", endpoints.policy),
            web.get("/v1/state", endpoints.state),
            web.get("/healthz", endpoints.health),
            web.get("/metrics", endpoints.metrics),
        ]
    )
    return app


class _Endpoints:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._registry = registry_of(engine)

    async def submit(self, request: web.Request) -> web.Response:
        body = _completed(await request.read(), {"type": "workload_submitted"})
        event = codec.admit(body, allowed=frozenset({"workload_submitted"}), src=None, seq=None)
        assert isinstance(event, WorkloadSubmitted)
        return _json(*await self._engine.record(event, _submission_answer(event)))

    async def cancel(self, request: web.Request) -> web.Response:
        named = request.match_info["workload"]
        body = _completed(await request.read(), {"type": "workload_cancelled", "workload": named})
        event = codec.admit(body, allowed=frozenset({"workload_cancelled"}), src=None, seq=None)
        assert isinstance(event, WorkloadCancelled)
        if event.workload != named:
            raise WireError(
                "invalid_field", f"workload is {event.workload!r} in the body and {named!r} in the path; leave it out."
            )
        return _json(*await self._engine.record(event, _cancellation_answer))

    async def control(self, request: web.Request) -> web.Response:
        event = codec.admit(await request.read(), allowed=CONTROL, src=None, seq=None)
        return _json(*await self._engine.record(event, _control_answer))

    async def jobs(self, request: web.Request) -> web.Response:
        return _json(answers.jobs(self._engine.state, self._engine.chronicle, _filter(request)))

    async def explain(self, request: web.Request) -> web.Response:
        workload = request.match_info["workload"]
        explanation = answers.explain(self._engine.state, self._engine.chronicle, workload)
        if explanation is None:
            return _problem(HTTPStatus.NOT_FOUND, "not_found", answers.unknown_workload(workload))
        return _json(explanation)

    async def shares(self, _request: web.Request) -> web.Response:
        return _json(answers.shares(self._engine.state))

    async def nodes(self, _request: web.Request) -> web.Response:
        return _json(answers.nodes(self._engine.state))

    async def policy(self, _request: web.Request) -> web.Response:
        return _json(answers.policy(self._engine.state))

    async def state(self, _request: web.Request) -> web.Response:
        return _json(answers.summary(self._engine.state))

    async def health(self, _request: web.Request) -> web.Response:
        state = self._engine.state
        return _json(Health(next_cursor=state.next_cursor, at_ms=state.now_ms, version=__version__))

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


# --- answers, made at the moment of the fold --------------------------------------------------------------------------


def _submission_answer(event: WorkloadSubmitted) -> Settle[_Answer]:
    def settle(cursor: int, effects: Effects, state: ClusterState) -> _Answer:
        receipt = _receipt(cursor, effects)
        if receipt.status is ReceiptStatus.ACCEPTED:
            return receipt, HTTPStatus.OK
        live, ended = state.workloads.get(event.workload), state.finished.get(event.workload)
        known = live.fingerprint() if live is not None else ended.fingerprint if ended is not None else None
        taken = known is not None and known != contract_fingerprint(event)
        return receipt, HTTPStatus.CONFLICT if taken else HTTPStatus.UNPROCESSABLE_ENTITY

    return settle


def _cancellation_answer(cursor: int, effects: Effects, _state: ClusterState) -> _Answer:
    receipt = _receipt(cursor, effects)
    return receipt, HTTPStatus.OK if receipt.status is ReceiptStatus.ACCEPTED else HTTPStatus.NOT_FOUND


def _control_answer(cursor: int, effects: Effects, _state: ClusterState) -> _Answer:
    receipt = _receipt(cursor, effects)
    return receipt, HTTPStatus.OK if receipt.status is ReceiptStatus.ACCEPTED else HTTPStatus.CONFLICT


def _receipt(cursor: int, effects: Effects) -> Receipt:
    for receipt in effects.receipts:
        if receipt.cursor == cursor and receipt.status is not ReceiptStatus.NOTICE:
            return receipt
    raise InvariantError(f"the fold of the request at cursor {cursor} gave no receipt")


# --- requests and responses -------------------------------------------------------------------------------------------


def _completed(body: bytes, implied: Mapping[str, str]) -> bytes:
    """Return the body with the fields that the path implies, where it leaves them out.

    They are put before what was sent, so that `admit` still sees all of it: names given twice, for example.
    """
    stripped = body.strip() or b"{}"
    try:
        fields = orjson.loads(stripped)
    except orjson.JSONDecodeError:
        return body  # `admit` says what is wrong with it.
    if not isinstance(fields, dict):
        return body
    missing = {name: value for name, value in implied.items() if name not in fields}
    if not missing:
        return body
    return orjson.dumps(missing)[:-1] + (b"," if fields else b"") + stripped[1:]


def _filter(request: web.Request) -> JobFilter:
    query = request.query
    fields: dict[str, object] = {name: query[name] for name in query}
    if "phase" in fields:
        fields["phase"] = query.getall("phase")
    return JobFilter.of(fields)


def _json(value: BaseModel, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.Response(body=value.model_dump_json().encode(), status=status, content_type="application/json")


def _problem(status: HTTPStatus, code: str, reason: str) -> web.Response:
    body = orjson.dumps({"error": Problem(code=code, reason=reason).model_dump()})
    return web.Response(body=body, status=status, content_type="application/json")


@web.middleware
async def _problems_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except WireError as error:
        return _problem(HTTPStatus.BAD_REQUEST, error.code, error.reason)
    except web.RequestPayloadError as error:
        response = _problem(
            HTTPStatus.BAD_REQUEST,
            "unreadable_body",
            f"the body is not what its headers say ({error}); send plain JSON, or what Content-Encoding names.",
        )
        response.force_close()  # Where the next request begins is not known.
        return response
    except web.HTTPRequestEntityTooLarge:
        return _problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "too_large",
            f"the body is larger than {BODY_BYTES_MAX} bytes; send less.",
        )
    except web.HTTPException as error:
        routes = "see `streamsched up --help` for the paths"
        return _problem(
            HTTPStatus(error.status), "no_such_path", f"{request.method} {request.path}: {error.reason}; {routes}."
        )
    except LedgerError as error:
        return _problem(HTTPStatus.SERVICE_UNAVAILABLE, "ledger_unavailable", str(error))
    except Exception as error:
        # The engine has halted, or we have a bug; either way the request may be in the ledger.
        reason = (
            f"the scheduler has failed ({type(error).__name__}); see its own messages, then send the request again."
        )
        return _problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", reason)


def _guard(listens_at: str) -> Middleware:
    """Return the check that no web page of another origin is behind a request."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = urlsplit(f"//{request.host}").hostname or ""
        if _is_loopback(listens_at) and not _is_loopback(name):
            return _problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "wrong_host",
                f"Host is {name!r}, which is not this service; write {listens_at}.",
            )
        if request.method == "POST" and request.content_type != "application/json":
            return _problem(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "wrong_content_type",
                f"Content-Type is {request.content_type!r}; send the header Content-Type: application/json.",
            )
        return await handler(request)

    return guard


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
