"""Makes topics for ledgers on a real broker, each test its own."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from aiokafka.admin import AIOKafkaAdminClient, NewTopic


async def create_ledger_topic(bootstrap: str, topic: str | None = None, **config: str) -> str:
    """Create a topic of one partition that can be a ledger, and return its name.

    Args:
        bootstrap: The broker.
        topic: Its name; a new one when None.
        config: Settings to have otherwise, with ``_`` for ``.``.
    """
    topic = topic or f"ledger-{uuid4().hex}"
    settings = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    settings |= {name.replace("_", "."): value for name, value in config.items()}
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        created = await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=settings)])
        assert [error_code for _, error_code, _ in created.topic_errors] == [0]
        while (await admin.describe_topics([topic]))[0]["error_code"]:
            await asyncio.sleep(0.02)
    finally:
        await admin.close()
    return topic
