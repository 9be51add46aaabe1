"""Dead letters: source records that are no event of ours, kept for people with where they came from and why.

The value of a dead letter is the value of the source record, byte for byte; all else is in headers, so that any Kafka
tool shows it and the same bytes can be sent again once the cause is mended.
"""

from __future__ import annotations

import asyncio

from streamsched.errors import WireError
from streamsched.service.outbox import Outbox

#: A compressed source record may unfold to more than a topic takes; what is cut off is still in the source topic.
KEPT_BYTES = 4 * 1024 * 1024
#: Likewise of the key.
KEPT_KEY_BYTES = 1024


class DeadLetters:
    """Writes the dead-letter topic."""

    def __init__(self, outbox: Outbox, topic: str) -> None:
        """Write to `topic`, its full name."""
        self._outbox = outbox
        self._topic = topic

    async def send(
        self, why: WireError, *, topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None
    ) -> asyncio.Future[object]:
        """Send one record; the future that is returned is done once the broker has it.

        Headers: ``source.topic``, ``source.partition``, ``source.offset``, ``code``, ``reason``; ``source.key`` where
        there is one, and ``source.bytes``, the full size, where the value had to be cut.
        """
        headers = [
            ("source.topic", topic.encode()),
            ("source.partition", str(partition).encode()),
            ("source.offset", str(offset).encode()),
            ("code", why.code.encode()),
            ("reason", why.reason.encode("utf-8", "replace")),
        ]
        if key is not None:
            headers.append(("source.key", key[:KEPT_KEY_BYTES]))
        if value is not None and len(value) > KEPT_BYTES:
            headers.append(("source.bytes", str(len(value)).encode()))
            value = value[:KEPT_BYTES]
        return await self._outbox.send(self._topic, key=f"{topic}/{partition}".encode(), value=value, headers=headers)
