"""Do the topic files say what other code relies on?"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from streamsched.errors import ConfigurationError
from streamsched.wire.codec import EVENT_TYPES, REQUEST_MAX_BYTES, TREE_MAX_BYTES
from streamsched.wire.schemas import MODELS
from streamsched.wire.topic_catalogue import Cleanup, PartitionedBy, Party, Timestamps, Topic, catalogue, read_topic

PROJECT = Path(__file__).parents[3]


def test_every_topic_has_its_own_file() -> None:
    """The file of a topic is found by its name."""
    files = {file.stem: tomllib.loads(file.read_text())["name"] for file in (PROJECT / "topics").glob("*.toml")}

    assert {f"{stem}.v1" for stem in files} == set(files.values()) == set(catalogue())


def test_the_ledger_keeps_everything_in_one_order() -> None:
    """Facts are counted by their offsets and timed by the broker: no hole, no end, no other clock."""
    ledger = catalogue()["ledger.v1"]

    assert (ledger.partitions, ledger.partitioned_by) == (1, PartitionedBy.CLUSTER)
    assert (ledger.cleanup, ledger.retention_ms) == (Cleanup.DELETE, -1)
    assert ledger.timestamps is Timestamps.BROKER
    assert ledger.min_insync_replicas == 2


def test_the_ledger_carries_every_event() -> None:
    """A new event has a line in ``topics/ledger.toml``."""
    assert set(catalogue()["ledger.v1"].messages) == set(EVENT_TYPES)


def test_every_message_is_one_of_ours_and_has_a_topic() -> None:
    """What is on no topic would reach nobody."""
    assert {message for topic in catalogue().values() for message in topic.messages} == set(MODELS)


def test_a_request_that_is_a_little_too_large_still_reaches_intake() -> None:
    """Intake answers in words; a broker that refuses does not."""
    assert catalogue()["workloads.v1"].max_message_bytes >= 2 * REQUEST_MAX_BYTES
    assert catalogue()["control.v1"].max_message_bytes > TREE_MAX_BYTES
    assert catalogue()["ledger.v1"].max_message_bytes >= 2 * TREE_MAX_BYTES


def test_what_intake_reads_goes_into_the_ledger() -> None:
    """Whatever is admitted has a place there."""
    admitted = {name for topic in catalogue().values() if Party.INTAKE in topic.read_by for name in topic.messages}

    assert admitted < set(catalogue()["ledger.v1"].messages)


def test_the_readme_says_what_is_on_each_topic() -> None:
    """Every topic's name and sentence."""
    readme = (PROJECT / "topics" / "README.md").read_text()

    for topic in catalogue().values():
        assert f"`{topic.name}`" in readme
        assert topic.description in readme


def test_a_file_that_is_wrong_is_named_with_its_field(tmp_path: Path) -> None:
    """Whoever edits a topic file learns which line to look at."""
    file = tmp_path / "workloads.toml"
    file.write_text((PROJECT / "topics" / "workloads.toml").read_text().replace("partitions = 12", "partitions = 0"))

    with pytest.raises(ConfigurationError, match=r"(?s)topics/workloads\.toml is wrong.*partitions"):
        read_topic(file)


def test_a_topic_says_once_what_it_carries() -> None:
    """Messages of ours, or a payload in words; both or neither would leave a reader guessing."""
    fields = catalogue()["usage.v1"].model_dump()

    with pytest.raises(ValidationError, match="give either messages or payload"):
        Topic.model_validate(fields | {"payload": None})
    with pytest.raises(ValidationError, match="give either messages or payload"):
        Topic.model_validate(fields | {"messages": ("tick",)})
