"""The view agents: Faust tables of usage by budget and hour, and of the topology, for queries.

The tables hold absolute values under plain keys. Windowed tables would lose them: they expire windows by the wall
clock, so that a history of last year is gone as soon as it is replayed, and after a recovery they expire nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from pydantic import ValidationError

from streamsched.service.fail_stop import fail_stop
from streamsched.service.raw_topics import raw_topic
from streamsched.service.view_records import TOPOLOGY_TOPIC, USAGE_TOPIC, BudgetHour, NodeTopology

if TYPE_CHECKING:
    from faust.types import AppT, EventT, StreamT, TableT
    from faust.types.web import Request, Response
    from faust.web import View

_log = structlog.get_logger(__name__)


def attach_views(app: AppT, *, topic_prefix: str) -> None:
    """Give the app the tables, the agents that fill them, and the pages ``/usage`` and ``/topology``.

    A page answers from the partitions that this worker has; with one worker that is everything.
    """
    usage: TableT[str, dict[str, Any]] = app.Table("usage", key_type=str)
    topology: TableT[str, dict[str, Any]] = app.Table("topology", key_type=str)

    @app.agent(raw_topic(app, topic_prefix + USAGE_TOPIC), name="usage", concurrency=1)
    async def usage_agent(records: StreamT[bytes]) -> None:
        """Keep the newest value of each budget and hour."""
        async for event in records.events():
            _keep(usage, event, BudgetHour)

    @app.agent(raw_topic(app, topic_prefix + TOPOLOGY_TOPIC), name="topology", concurrency=1)
    async def topology_agent(records: StreamT[bytes]) -> None:
        """Keep the newest value of each node."""
        async for event in records.events():
            _keep(topology, event, NodeTopology)

    @app.page("/usage")
    async def usage_page(view: View, request: Request) -> Response:
        """Return the hours of one budget (``?budget=nlp/llama``; the whole cluster without it), oldest first."""
        budget = request.query.get("budget", "")
        rows = [row for row in usage.values() if row["budget"] == budget]
        return view.json({"budget": budget, "hours": sorted(rows, key=lambda row: row["hour_ms"])})

    @app.page("/topology")
    async def topology_page(view: View, request: Request) -> Response:  # noqa: ARG001  the signature is Faust's
        """Return every node, in order of names."""
        return view.json({"nodes": sorted(topology.values(), key=lambda row: row["node"])})


def _keep(
    table: TableT[str, dict[str, Any]], event: EventT[bytes], model: type[BudgetHour] | type[NodeTopology]
) -> None:
    """Write one value to the table unless a newer one is there. What is no value of ours is logged and passed over."""
    try:
        record = model.model_validate_json(event.message.value or b"")
    except ValidationError as error:
        _log.warning(
            "view record passed over", topic=event.message.topic, offset=event.message.offset, error=str(error)
        )
        return
    try:
        known = table.get(record.key)
        if known is None or known["as_of"] < record.as_of:
            table[record.key] = record.model_dump(mode="json")
    except Exception as error:
        fail_stop("a view could not be written", error, topic=event.message.topic, offset=event.message.offset)
