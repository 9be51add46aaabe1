"""Why bytes were refused, in words that say what to change.

Every sentence names the field, the value and what the field may be. What the field may be is read from the model's
own JSON Schema, so that it cannot drift from the rule that refused.
"""

from __future__ import annotations

import difflib
import json
from enum import StrEnum
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from streamsched.errors import WireError
from streamsched.model.identifiers import Actor, Argument, BudgetId, CommandId, NodeId, PoolId, Reason, WorkloadId

#: The fields of an event that intake sets, and a request may not: which source record it came from.
STAMPED = ("src", "seq")
#: A longer value is cut in a message.
_SHOWN_CHARS = 80
#: More mistakes than this in one message are only counted.
_SHOWN_MISTAKES = 3
#: What `streamsched.model.identifiers.Reason` takes, since a reason comes back to clients in receipts.
_REASON_CHARS = 2_000


class RefusalCode(StrEnum):
    """The kinds of refusal. Closed: dashboards and alerts read these words."""

    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    TOO_LARGE = "too_large"
    UNKNOWN_TYPE = "unknown_type"
    WRONG_TYPE_FOR_TOPIC = "wrong_type_for_topic"
    UNSUPPORTED_VERSION = "unsupported_version"
    DUPLICATE_FIELD = "duplicate_field"
    RESERVED_FIELD = "reserved_field"
    UNKNOWN_FIELD = "unknown_field"
    MISSING_FIELD = "missing_field"
    INVALID_FIELD = "invalid_field"


def refusal(code: RefusalCode, reason: str, workload: str | None = None) -> WireError:
    """Return the error for a refusal; its reason is cut and stripped of what a receipt may not carry."""
    printable = "".join(
        char if char == "\n" or (char >= " " and char != "\x7f") else "\N{REPLACEMENT CHARACTER}" for char in reason
    )
    if len(printable) > _REASON_CHARS:
        printable = printable[: _REASON_CHARS - 1] + "…"
    return WireError(code.value, printable, workload)


def refusal_of(error: ValidationError, model: type[BaseModel], event_type: str, workload: str | None) -> WireError:
    """Return what `error` says about bytes that should have been a `model`, in words."""
    found = error.errors(include_url=False)
    # A list whose items are refused is reported too, as too short: the items alone say what to change.
    mistakes = [one for one in found if not any(_lies_inside(other["loc"], one["loc"]) for other in found)]
    sentences = [_sentence(mistake, model, event_type) for mistake in mistakes[:_SHOWN_MISTAKES]]
    if len(mistakes) > _SHOWN_MISTAKES:
        sentences.append(f"There are {len(mistakes) - _SHOWN_MISTAKES} more mistakes.")
    return refusal(_code(mistakes[0]["type"]), " ".join(sentences), workload)


def shown(value: object) -> str:
    """Return a value from outside as JSON on one line, cut to 80 characters.

    >>> shown({"ranks": 0})
    '{"ranks": 0}'
    """
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def closest(name: str, known: list[str]) -> str:
    """Return the remedy for a name that is not among `known`: the one that was probably meant, or all of them."""
    if near := difflib.get_close_matches(name, known, n=1):
        return f'did you mean "{near[0]}"?'
    return f"known are {', '.join(sorted(known))}."


def _lies_inside(inner: tuple[str | int, ...], outer: tuple[str | int, ...]) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def _code(mistake: str) -> RefusalCode:
    match mistake:
        case "json_invalid":
            return RefusalCode.NOT_JSON
        case "missing":
            return RefusalCode.MISSING_FIELD
        case "extra_forbidden":
            return RefusalCode.UNKNOWN_FIELD
        case _:
            return RefusalCode.INVALID_FIELD


def _sentence(mistake: Any, model: type[BaseModel], event_type: str) -> str:
    where: tuple[str | int, ...] = mistake["loc"]
    match mistake["type"]:
        case "json_invalid":
            return f"This is no JSON: {mistake['ctx']['error']}."
        case "missing":
            return f"{_path(where)} is missing; it must be {_rule(model, where)}."
        case "extra_forbidden":
            owner = _path(where[:-1]) or event_type
            known = sorted(set(_node(model, where[:-1]).get("properties", {})) - set(STAMPED))
            remedy = closest(str(where[-1]), known)
            return f"{shown(_path(where))} is no field of {owner}; {remedy}"
        case "value_error":  # Raised by a model about several fields; its message names them and the remedy.
            message = str(mistake["ctx"]["error"])
            return f"{_path(where)}: {message}." if where else f"{message[0].upper()}{message[1:]}."
        case _:
            return f"{_path(where) or event_type} is {shown(mistake['input'])}; it must be {_rule(model, where)}."


def _path(where: tuple[str | int, ...]) -> str:
    """Return a place in the fields as people write it: ``budgets[3].fraction_nano``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).removeprefix(".")


# --- what a field may be, from the schema ---------------------------------------------------------------------------


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _node(model: type[BaseModel], where: tuple[str | int, ...]) -> dict[str, Any]:
    """Return the schema of one place in a model; empty when there is no such place."""
    root = _schema(model)
    node = root
    for part in where:
        node = _resolved(node, root)
        node = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
    return _resolved(node, root)


def _resolved(node: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference, or an optional schema, stands for."""
    for choice in node.get("anyOf", ()):
        if choice.get("type") != "null":
            return _resolved(choice, root)
    if "$ref" in node:
        definition: dict[str, Any] = root["$defs"][node["$ref"].rpartition("/")[2]]
        return definition
    return node


def _rule(model: type[BaseModel], where: tuple[str | int, ...]) -> str:
    """Return what may stand at one place of a model, in words."""
    node = _node(model, where)
    if "const" in node:
        return shown(node["const"])
    if "enum" in node:
        return "one of " + ", ".join(map(shown, node["enum"]))
    match node.get("type"):
        case "integer":
            return "a whole number" + _bounds(node.get("minimum"), node.get("maximum"))
        case "string" if "pattern" in node:
            return _PATTERNS.get(node["pattern"], f"text that matches {node['pattern']}")
        case "string":
            return "text" + _bounds(node.get("minLength"), node.get("maxLength"), " characters")
        case "boolean":
            return "true or false"
        case "array":
            return "a list" + _bounds(node.get("minItems"), node.get("maxItems"), " items")
        case _:
            return "an object"


def _bounds(least: int | None, most: int | None, unit: str = "") -> str:
    match least, most:
        case None, None:
            return ""
        case int(), None:
            return f" of at least {least}{unit}"
        case None, int():
            return f" of at most {most}{unit}"
        case _:
            return f" from {least} to {most}{unit}"


def _pattern(identifier: Any) -> str:
    pattern: str = TypeAdapter(identifier).json_schema()["pattern"]
    return pattern


_NAME = "letters, digits, '.', '_' and '-', starting with a letter or digit"
#: The patterns of `streamsched.model.identifiers`, in words.
_PATTERNS = {
    _pattern(WorkloadId): "1 to 128 letters, digits, '.', '_', ':' and '-', starting with a letter or digit",
    _pattern(NodeId): "1 to 128 letters, digits, '.', '_', ':' and '-', starting with a letter or digit",
    _pattern(BudgetId): f"a path of 1 to 12 names joined by '/', each 1 to 63 {_NAME}",
    _pattern(PoolId): f"1 to 63 {_NAME}",
    _pattern(CommandId): 'a command id as it was sent, such as "4711/0"',
    _pattern(Argument): "text of at most 8192 characters without NUL",
    _pattern(Actor): "1 to 200 characters without control characters",
    _pattern(Reason): "1 to 2000 characters; line breaks are allowed, other control characters are not",
}
