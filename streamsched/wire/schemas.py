"""JSON Schemas and an AsyncAPI document, generated from the models and the topic files.

``python -m streamsched.wire.schemas`` writes them into ``topics/``; a test fails when they are not what it would write.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from streamsched.wire.codec import COMMAND_TYPES, EVENT_TYPES, RECEIPT_TYPES
from streamsched.wire.heartbeats import Heartbeat
from streamsched.wire.refusals import STAMPED
from streamsched.wire.topic_catalogue import DEFAULT_PREFIX, SERVICE, Party, Topic, catalogue

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCHEMA_FORMAT = "application/schema+json;version=draft-2020-12"

#: Every model that has a topic, by its type.
MODELS: Mapping[str, type[BaseModel]] = {
    **EVENT_TYPES,
    **COMMAND_TYPES,
    **RECEIPT_TYPES,
    "heartbeat": Heartbeat,
}


def documents() -> dict[str, str]:
    """Return the text of every generated file, by its path below ``topics/``."""
    generated: dict[str, Any] = {f"schemas/{name}.json": schema(model) for name, model in MODELS.items()}
    generated["asyncapi.json"] = asyncapi()
    return {path: json.dumps(document, indent=2, ensure_ascii=False) + "\n" for path, document in generated.items()}


def schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of one model, with the words of its docstring."""
    described = model.model_json_schema(schema_generator=_Documented)
    # What tells messages apart has a default in Python, but on the wire it must be there.
    described["required"] = ["type", *described.get("required", [])]
    return {"$schema": DIALECT, **described}


def asyncapi() -> dict[str, Any]:
    """Return the AsyncAPI 3 document of the service: its channels, and what it receives and sends on them."""
    channels = {name: _channel(topic) for name, topic in catalogue().items()}
    messages = {name: _message(name) for name in MODELS}
    for topic in catalogue().values():
        if Party.INTAKE in topic.read_by:
            messages |= {_request(name): _message(name, is_request=True) for name in topic.messages}
    operations = {
        f"{action}_{topic.name.partition('.')[0].replace('-', '_')}": {
            "action": action,
            "channel": {"$ref": f"#/channels/{topic.name}"},
            "messages": [
                {"$ref": f"#/channels/{topic.name}/messages/{message}"} for message in channels[name]["messages"]
            ],
        }
        for name, topic in catalogue().items()
        for action, parties in (("receive", topic.read_by), ("send", topic.written_by))
        if SERVICE.intersection(parties)
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "streamsched",
            "version": "1.0.0",
            "description": "The topics of the streamsched service, as the service sees them. "
            "Generated from the models and topics/*.toml.",
            "license": {"name": "Apache-2.0"},
        },
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


def write(folder: Path) -> None:
    """Write every generated file below `folder`, and remove schemas of what is no more."""
    generated = documents()
    (folder / "schemas").mkdir(parents=True, exist_ok=True)
    for path, text in generated.items():
        (folder / path).write_text(text, "utf-8")
    for file in (folder / "schemas").glob("*.json"):
        if f"schemas/{file.name}" not in generated:
            file.unlink()


def _channel(topic: Topic) -> dict[str, Any]:
    is_intake = Party.INTAKE in topic.read_by
    messages: dict[str, Any] = {
        name: {"$ref": f"#/components/messages/{_request(name) if is_intake else name}"} for name in topic.messages
    }
    if topic.payload is not None:
        messages = {"record": {"name": "record", "summary": topic.payload}}
    return {
        "address": DEFAULT_PREFIX + topic.name,
        "description": f"{topic.description} Key: {topic.key}.",
        "messages": messages,
        "bindings": {
            "kafka": {
                "topic": DEFAULT_PREFIX + topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": {
                    "cleanup.policy": [topic.cleanup.value],
                    "retention.ms": topic.retention_ms,
                    "max.message.bytes": topic.max_message_bytes,
                },
                "bindingVersion": "0.5.0",
            }
        },
    }


def _request(name: str) -> str:
    """Return the name of an event's message while it is still a request."""
    return f"{name}_request"


def _message(name: str, *, is_request: bool = False) -> dict[str, Any]:
    payload: dict[str, Any] = {"$ref": f"./schemas/{name}.json"}
    if is_request:
        payload = {"allOf": [payload, {"not": {"anyOf": [{"required": [field]} for field in STAMPED]}}]}
    return {
        "name": name,
        "summary": _prose(MODELS[name]).partition("\n")[0],
        "contentType": "application/json",
        "payload": {"schemaFormat": _SCHEMA_FORMAT, "schema": payload},
    }


class _Documented(GenerateJsonSchema):
    """Puts the docstring of a model where schemas have it: its prose, and a line for each field."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        model = cast(type[BaseModel], schema["cls"])
        described["description"] = _prose(model)
        for ancestor in reversed(model.__mro__):  # The nearest class has the last word.
            for field, words in _attributes(ancestor).items():
                if field in described["properties"]:
                    described["properties"][field]["description"] = words
        return described

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002  the signature is pydantic's
        return False


def _prose(model: type) -> str:
    """Return a class's docstring without its list of attributes."""
    return _markdown(re.split(r"\n\nAttributes:\n", inspect.getdoc(model) or "")[0])


def _attributes(model: type) -> dict[str, str]:
    """Return what the ``Attributes:`` of a class's own docstring say, by field."""
    _, _, listed = inspect.cleandoc(model.__doc__ or "").partition("\n\nAttributes:\n")
    entries = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", listed, re.MULTILINE)
    return {field: _markdown(re.sub(r"\s+", " ", words)) for field, words in entries}


def _markdown(text: str) -> str:
    return text.replace("``", "`")


if __name__ == "__main__":
    write(Path(__file__).parents[2] / "topics")
