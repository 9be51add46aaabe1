"""The producer of a process for everything but the ledger: commands, receipts, views and dead letters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streamsched.errors import LedgerUnavailableError
from streamsched.service.fail_stop import fail_stop

if TYPE_CHECKING:
    from streamsched.ledgers.kafka import KafkaSecurity

#: The largest record that any of our topics takes; see `topics/`.
REQUEST_BYTES = 8 * 1024 * 1024


class Outbox:
    """Sends in the order in which it is told to, many at once, and ends the process if one is not confirmed.

    Node agents obey a command only if it is later than the last one they obeyed, so commands must not overtake each
    other: one task sends, and the producer is idempotent.
    """

    def __init__(self, producer: AIOKafkaProducer) -> None:
        """Send with a started producer; `stop` stops it."""
        self._producer = producer
        self._sending: set[asyncio.Future[object]] = set()

    @classmethod
    async def start(cls, bootstrap: str, security: KafkaSecurity) -> Outbox:
        """Connect.

        Raises:
            LedgerUnavailableError: No broker answered, or it refused.
        """
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, acks="all", max_request_size=REQUEST_BYTES, **security
        )
        try:
            await producer.start()
        except (KafkaError, OSError) as error:
            await producer.stop()
            raise LedgerUnavailableError(
                f"no broker at {bootstrap} answered: {error}. "
                "Check the address, that the brokers are up, and the security settings."
            ) from error
        return cls(producer)

    async def send(
        self,
        topic: str,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> asyncio.Future[object]:
        """Hand one record to the producer; the future is done when the broker has it."""
        sent: asyncio.Future[object] = await self._producer.send(topic, value=value, key=key, headers=headers)
        self._sending.add(sent)
        sent.add_done_callback(self._confirm)
        return sent

    async def delivered(self) -> None:
        """Wait until the broker has all that was sent before this call."""
        if self._sending:
            await asyncio.wait(self._sending.copy())

    async def stop(self) -> None:
        """Wait until everything is delivered, then disconnect."""
        await self._producer.stop()

    def _confirm(self, sent: asyncio.Future[object]) -> None:
        self._sending.discard(sent)
        if not sent.cancelled() and (error := sent.exception()) is not None:
            fail_stop("a record was not confirmed by the broker", error)
