"""Creates the topics of `topics/` on a broker, and says where a broker differs from them.

Nothing is ever altered or deleted here: a topic with a wrong partition count, or one that was compacted, may hold
records that a change would harm. What must be changed is said, and a person decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAlreadyExistsError, for_code

from streamsched.errors import ConfigurationError, UnreachableError
from streamsched.ledgers.kafka import KafkaSecurity
from streamsched.wire.topic_catalogue import DEFAULT_PREFIX, PartitionedBy, Party, Topic, catalogue

#: The topic whose records everything else follows from.
LEDGER = "ledger.v1"
_NOT_UNDER_A_LEDGER = (
    "it begins at offset 0, and what it then carries is taken for repeats of what it carried before. "
    "Restore it, or begin under a new prefix (STREAMSCHED_TOPIC_PREFIX)."
)
#: With three replicas one broker may be lost and every acknowledged record is still held twice.
REPLICATION = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that a broker has otherwise than `topics/` says.

    Attributes:
        topic: The full name.
        setting: ``existence``, ``partitions``, or the name of a topic setting of Kafka.
        wanted: What it must be.
        found: What it is.
        remedy: What to change, in one sentence.
    """

    topic: str
    setting: str
    wanted: str
    found: str
    remedy: str

    def __str__(self) -> str:
        if self.setting == "existence":
            return f"{self.topic} is {self.found}. {self.remedy}"
        return f"{self.topic}: {self.setting} is {self.found} and must be {self.wanted}. {self.remedy}"


async def apply(
    bootstrap: str,
    prefix: str = DEFAULT_PREFIX,
    *,
    replication: int | None = None,
    security: KafkaSecurity | None = None,
) -> list[str]:
    """Create every topic that does not exist yet; return the full names of those created.

    Args:
        bootstrap: Brokers to begin with, ``host:port[,host:port...]``.
        prefix: What the names begin with.
        replication: Replicas of each new topic; `REPLICATION`, or as many as there are brokers, when None.
        security: Passed to aiokafka; plain text when None.

    Raises:
        ConfigurationError: An existing topic is not what it must be, or a source topic is gone under a ledger that has
            records, and then nothing was created; or a broker refused.
        UnreachableError: No broker answered.
    """
    async with _admin(bootstrap, security) as admin:
        existing = await _existing(admin, prefix)
        if differences := _differences(existing, prefix):
            raise ConfigurationError("topics exist that are not as they must be:\n" + "\n".join(map(str, differences)))
        missing = [topic for name, topic in catalogue().items() if prefix + name not in existing]
        if not missing:
            return []
        lost = [prefix + topic.name for topic in missing if Party.INTAKE in topic.read_by]
        ledger = existing.get(prefix + LEDGER)
        if lost and ledger and await _has_records(bootstrap, prefix + LEDGER, ledger.partitions, security):
            raise ConfigurationError(
                f"{', '.join(lost)} would be new under a ledger that has records: {_NOT_UNDER_A_LEDGER}"
            )
        if replication is None:
            replication = min(REPLICATION, len((await admin.describe_cluster())["brokers"]))
        response = await admin.create_topics([_new_topic(topic, prefix, replication) for topic in missing])
        created: list[str] = []
        refused: dict[str, list[str]] = {}
        for name, code, words in response.topic_errors:
            if code == 0:
                created.append(name)
            elif for_code(code) is not TopicAlreadyExistsError:  # Another `apply` was faster.
                refused.setdefault(words or for_code(code).__name__, []).append(name)
        if refused:
            said = "; ".join(f"{', '.join(names)}: {words}" for words, names in refused.items())
            raise ConfigurationError(
                f"{bootstrap} did not create all topics. It says of {said} "
                "Correct that and apply again: what exists is left as it is."
            )
        return created


async def check(
    bootstrap: str, prefix: str = DEFAULT_PREFIX, *, security: KafkaSecurity | None = None
) -> list[Difference]:
    """Return every way in which a broker's topics are not what `topics/` says, missing ones first.

    Raises:
        ConfigurationError: A broker refused.
        UnreachableError: No broker answered.
    """
    async with _admin(bootstrap, security) as admin:
        existing = await _existing(admin, prefix)
    missing = [
        Difference(prefix + name, "existence", "there", "missing", "Run `streamsched topics apply`.")
        for name in catalogue()
        if prefix + name not in existing
    ]
    return missing + _differences(existing, prefix)


@dataclass(frozen=True, slots=True)
class _Existing:
    """A topic as a broker has it."""

    partitions: int
    replication: int
    settings: Mapping[str, str]


def _settings(topic: Topic, replication: int) -> dict[str, str]:
    """Return the settings of Kafka that make a topic what its file says."""
    return {
        "cleanup.policy": topic.cleanup.value,
        "retention.ms": str(topic.retention_ms),
        "retention.bytes": "-1",  # Time alone ends a record's life, whatever the broker's default is.
        "message.timestamp.type": topic.timestamps.value,
        "max.message.bytes": str(topic.max_message_bytes),
        "min.insync.replicas": str(min(topic.min_insync_replicas, replication)),
    }


def _new_topic(topic: Topic, prefix: str, replication: int) -> NewTopic:
    return NewTopic(prefix + topic.name, topic.partitions, replication, topic_configs=_settings(topic, replication))


def _differences(existing: Mapping[str, _Existing], prefix: str) -> list[Difference]:
    differences = []
    for name, topic in catalogue().items():
        full_name = prefix + name
        found = existing.get(full_name)
        if found is None:
            continue
        by_key = topic.partitioned_by is PartitionedBy.KEY
        if found.partitions < topic.partitions or (by_key and found.partitions != topic.partitions):
            differences.append(
                Difference(
                    full_name,
                    "partitions",
                    str(topic.partitions) if by_key else f"{topic.partitions} or more",
                    str(found.partitions),
                    f"With another count its keys ({topic.key}) would change partitions and lose their order. "
                    "While the ledger is empty, delete it and run `streamsched topics apply`; "
                    "after that, begin under a new prefix.",
                )
            )
        for setting, wanted in _settings(topic, found.replication).items():
            if (value := found.settings.get(setting, "unknown")) != wanted:
                differences.append(Difference(full_name, setting, wanted, value, _remedy(full_name, setting, wanted)))
    return differences


def _remedy(full_name: str, setting: str, wanted: str) -> str:
    return (
        f"Set it with `kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics --entity-name "
        f"{full_name} --add-config {setting}={wanted}`."
    )


async def _existing(admin: AIOKafkaAdminClient, prefix: str) -> dict[str, _Existing]:
    """Return the topics of the catalogue that a broker has, by full name."""
    names = {prefix + name for name in catalogue()}
    # All topics are asked for: to ask for one by its name may create it.
    described: Sequence[Mapping[str, Any]] = await admin.describe_topics()
    partitions = {topic["topic"]: topic["partitions"] for topic in described if topic["topic"] in names}
    if not partitions:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in sorted(partitions)]
    existing = {}
    for response in await admin.describe_configs(resources):
        for resource in response.to_object()["resources"]:
            name = resource["resource_name"]
            if resource["error_code"]:
                raise ConfigurationError(
                    f"the settings of {name} cannot be read: {for_code(resource['error_code']).__name__}. "
                    "Allow this user DescribeConfigs on the topic."
                )
            existing[name] = _Existing(
                partitions=len(partitions[name]),
                replication=min(len(partition["replicas"]) for partition in partitions[name]),
                settings={entry["config_names"]: entry["config_value"] for entry in resource["config_entries"]},
            )
    return existing


async def _has_records(bootstrap: str, topic: str, partitions: int, security: KafkaSecurity | None) -> bool:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=None, **(security or KafkaSecurity()))
    await consumer.start()
    try:
        ends = await consumer.end_offsets([TopicPartition(topic, partition) for partition in range(partitions)])
    finally:
        await consumer.stop()
    return any(ends.values())


@asynccontextmanager
async def _admin(bootstrap: str, security: KafkaSecurity | None) -> AsyncIterator[AIOKafkaAdminClient]:
    """Connect, and turn what aiokafka raises into our errors."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **(security or KafkaSecurity()))
    try:
        try:
            await admin.start()
        except ValueError as error:
            raise ConfigurationError(
                f"{bootstrap!r} is no address ({error}); write host:port[,host:port...]."
            ) from error
        yield admin
    except (KafkaConnectionError, TimeoutError, OSError) as error:
        raise UnreachableError(
            f"{bootstrap} did not answer about its topics: {str(error) or type(error).__name__}. "
            "Check the address, that the brokers are up, and the security settings."
        ) from error
    except KafkaError as error:
        raise ConfigurationError(
            f"{bootstrap} refused to say which topics it has: {str(error) or type(error).__name__}. "
            "Check the rights and the security settings."
        ) from error
    finally:
        await admin.close()
