"""What tooling imports: submit, cancel, ask, over HTTP or straight to Kafka.

>>> from streamsched.client import Client
>>> client = Client("http://127.0.0.1:7070")
>>> receipt = client.submit(budget="nlp", ranks=4, gpus_per_rank=8, min_runtime_ms=3_600_000)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamsched.client.http import AsyncClient, Client
    from streamsched.client.kafka import KafkaClient

__all__ = ["AsyncClient", "Client", "KafkaClient"]

_HOMES = {
    "AsyncClient": "streamsched.client.http",
    "Client": "streamsched.client.http",
    "KafkaClient": "streamsched.client.kafka",
}


def __getattr__(name: str) -> object:
    """Import a client when it is first named, so that HTTP tools do not load the Kafka library."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
