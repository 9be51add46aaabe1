"""A client that writes straight to the topics of a cluster on Kafka and waits for its receipts.

The answer comes from the schedulers, by way of ``receipts.v1``: it says what the ledger holds. It is found by the
correlation id of the request. A request that is not answered in time may have been taken; sending it again is harmless.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, for_code

from streamsched.client.requests import cancellation, new_id
from streamsched.errors import UnreachableError, WireError
from streamsched.ledgers.kafka import KafkaSecurity
from streamsched.model.commands import Receipt
from streamsched.model.events import (
    BudgetTreeChanged,
    NodeDrainChanged,
    NodesRelabelled,
    PolicyAdopted,
    RunExtended,
    UsageAdjusted,
    WorkloadCancelled,
    WorkloadReprioritized,
    WorkloadSubmitted,
)
from streamsched.wire import codec
from streamsched.wire.topic_catalogue import DEFAULT_PREFIX

#: How long a receipt may take. Usually it takes tens of milliseconds; a scheduler that restarts takes seconds.
RECEIPT_SECONDS = 30.0

#: One key for all that administrators send, so that their changes keep their order.
CONTROL_KEY = b"cluster"

Request = (
    WorkloadSubmitted
    | WorkloadCancelled
    | WorkloadReprioritized
    | RunExtended
    | BudgetTreeChanged
    | UsageAdjusted
    | PolicyAdopted
    | NodeDrainChanged
    | NodesRelabelled
)


class KafkaClient:
    """Talks to a cluster on Kafka; any number of requests at a time. An async context manager."""

    def __init__(
        self,
        bootstrap: str,
        prefix: str = DEFAULT_PREFIX,
        *,
        security: KafkaSecurity | None = None,
        receipt_seconds: float = RECEIPT_SECONDS,
    ) -> None:
        """Prepare; connections are opened in the context.

        Args:
            bootstrap: Brokers to begin with, ``host:port[,host:port...]``.
            prefix: What the names of the cluster's topics begin with.
            security: How to connect, as aiokafka names it; plain text when None.
            receipt_seconds: How long to wait for a receipt.
        """
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._security = security or KafkaSecurity()
        self._receipt_seconds = receipt_seconds
        self._open = AsyncExitStack()
        self._waiting: dict[str, asyncio.Future[Receipt]] = {}
        self._producer: AIOKafkaProducer | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._connect()
        except BaseException:
            await self._open.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def submit(self, submission: WorkloadSubmitted) -> Receipt:
        """Ask for GPUs; return what became of the request.

        Raises:
            UnreachableError: The broker did not take it, or no receipt came in time: then it may have been taken.
        """
        return await self.send(submission)

    async def cancel(self, workload: str, *, reason: str | None = None, actor: str | None = None) -> Receipt:
        """Take a workload back, queued or running. Raises like `submit`, and `RequestError` for a malformed id."""
        return await self.send(cancellation(workload, reason=reason, actor=actor))

    async def send(self, request: Request) -> Receipt:
        """Send any request and wait for its receipt. Raises like `submit`."""
        if self._producer is None:
            raise RuntimeError("KafkaClient is used inside `async with`")
        if request.corr is None:
            request = request.model_copy(update={"corr": new_id()})
        corr = request.corr or ""
        if isinstance(request, BudgetTreeChanged | UsageAdjusted | PolicyAdopted | NodeDrainChanged | NodesRelabelled):
            topic, key = "control.v1", CONTROL_KEY
        else:
            topic, key = "workloads.v1", request.workload.encode()
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting[corr] = receipt
        try:
            async with asyncio.timeout(self._receipt_seconds):
                await self._producer.send_and_wait(self._prefix + topic, codec.encode(request), key=key)
                return await receipt
        except TimeoutError as error:
            raise UnreachableError(
                f"no receipt from {self._prefix}receipts.v1 at {self._bootstrap} within {self._receipt_seconds:g} s. "
                "The request may have been taken: send the same one again, and check that `streamsched serve` runs."
            ) from error
        except KafkaError as error:
            raise self._unreachable(error) from error
        finally:
            del self._waiting[corr]

    async def _connect(self) -> None:
        try:
            partitions = await self._receipt_partitions()
            # Registered before they start: a client that failed to start has connections too.
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, enable_idempotence=True, acks="all", **self._security
            )
            self._open.push_async_callback(producer.stop)
            await producer.start()
            consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, group_id=None, **self._security)
            self._open.push_async_callback(consumer.stop)
            await consumer.start()
            consumer.assign(partitions)
            # Positions are fetched now: a receipt that comes before the first poll must not be missed.
            await consumer.seek_to_end(*partitions)
            for partition in partitions:
                await consumer.position(partition)
        except (KafkaError, OSError) as error:
            raise self._unreachable(error) from error
        listening = asyncio.create_task(self._listen(consumer))
        self._open.callback(listening.cancel)
        self._producer = producer

    async def _receipt_partitions(self) -> list[TopicPartition]:
        """Return the partitions of the receipts; ask without creating a topic, as a consumer or producer might."""
        topic = f"{self._prefix}receipts.v1"
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap, **self._security)
        try:
            await admin.start()
            (described,) = await admin.describe_topics([topic])
        finally:
            await admin.close()
        if described["error_code"]:
            why = for_code(described["error_code"]).__name__
            raise UnreachableError(
                f"there is no topic {topic} at {self._bootstrap} ({why}). Check the prefix, or create the topics with "
                "`streamsched topics apply`."
            )
        return [TopicPartition(topic, partition["partition"]) for partition in described["partitions"]]

    async def _listen(self, consumer: AIOKafkaConsumer) -> None:
        async for message in consumer:
            try:
                receipt = codec.decode_receipt(message.value or b"")
            except WireError:
                continue  # Of a newer scheduler, for somebody else; ours would be missed loudly, by its timeout.
            waiting = self._waiting.get(receipt.corr or "")
            if waiting is not None and not waiting.done():
                waiting.set_result(receipt)

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"no broker of Kafka answers at {self._bootstrap}: {error}. Check the address and that it runs."
        )
