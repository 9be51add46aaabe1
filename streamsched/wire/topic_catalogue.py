"""The topics as typed values: what ``topics/*.toml`` says, checked.

The files are the contract between teams. They live at the top of the project, where people look for them, and travel
inside an installed package.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import to_json

from streamsched.errors import ConfigurationError

#: What the names of topics begin with on a broker that streamsched shares with others.
DEFAULT_PREFIX = "streamsched."


class Party(StrEnum):
    """Who writes or reads a topic."""

    TOOLING = "tooling"
    ADMINS = "admins"
    NODE_AGENTS = "node-agents"
    INTAKE = "intake"
    HEALTH = "health"
    SCHEDULERS = "schedulers"
    VIEWS = "views"
    AUDITORS = "auditors"
    PEOPLE = "people"


#: The parties that are agents of the service; the others are its clients, or watch it.
SERVICE = frozenset({Party.INTAKE, Party.HEALTH, Party.SCHEDULERS, Party.VIEWS})


class Cleanup(StrEnum):
    """What a broker does with old records."""

    DELETE = "delete"
    COMPACT = "compact"


class Timestamps(StrEnum):
    """Whose clock a record's timestamp is."""

    WRITER = "CreateTime"
    BROKER = "LogAppendTime"


class PartitionedBy(StrEnum):
    """What chooses a record's partition."""

    KEY = "key"
    CLUSTER = "cluster"


class Topic(BaseModel):
    """One topic: what is on it, and how a broker must keep it.

    Attributes:
        name: Without the prefix: ``workloads.v1``. The number is that of the contract; it changes when readers must.
        description: What is on it, in one sentence.
        key: What a record's key is, and why.
        messages: The types of events, commands or receipts it carries.
        payload: What a record's value is, where it is none of ours.
        partitions: How many. Where keys choose, it never changes while there are records; where each cluster has
            its own, it is the least.
        retention_ms: How long records are kept, in milliseconds; -1 is for ever.
        max_message_bytes: The largest record, compressed and with its overhead.
        min_insync_replicas: How many replicas have a record before it is acknowledged, where there are that many.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z]+(-[a-z]+)*\.v[1-9][0-9]*$")]
    description: Annotated[str, Field(min_length=1)]
    key: Annotated[str, Field(min_length=1)]
    messages: tuple[str, ...]
    payload: str | None = None
    written_by: Annotated[tuple[Party, ...], Field(min_length=1)]
    read_by: Annotated[tuple[Party, ...], Field(min_length=1)]
    partitions: int = Field(ge=1)
    partitioned_by: PartitionedBy = PartitionedBy.KEY
    cleanup: Cleanup
    retention_ms: int = Field(ge=-1)
    timestamps: Timestamps
    max_message_bytes: int = Field(ge=1)
    min_insync_replicas: int = Field(ge=1)

    @model_validator(mode="after")
    def _says_what_it_carries(self) -> Self:
        if bool(self.messages) == (self.payload is not None):
            raise ValueError("give either messages or payload: what is on a topic is said once")
        return self


@cache
def catalogue() -> Mapping[str, Topic]:
    """Return every topic by its name without prefix, in order of names.

    Raises:
        ConfigurationError: A file does not say what a topic needs; the message names the file and the field.
    """
    topics = [read_topic(file) for file in _folder().iterdir() if file.name.endswith(".toml")]
    return MappingProxyType({topic.name: topic for topic in sorted(topics, key=lambda topic: topic.name)})


def read_topic(file: Traversable) -> Topic:
    """Return the topic that one file describes.

    Raises:
        ConfigurationError: The file does not say what a topic needs.
    """
    try:
        # By way of JSON, where strict models take lists for tuples and words for enums.
        return Topic.model_validate_json(to_json(tomllib.loads(file.read_text("utf-8"))))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigurationError(f"topics/{file.name} is wrong: {error}") from error


def _folder() -> Traversable:
    """Return the folder of topic files: inside an installed package, or else at the top of the checkout."""
    installed = files("streamsched") / "topics_data"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "topics"
