"""Messages to test with: the golden ones, and any that a model's own JSON Schema allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

from streamsched.model.quantities import WHOLE
from streamsched.wire.codec import COMMAND_TYPES, EVENT_TYPES, RECEIPT_TYPES

GOLDEN = Path(__file__).parent / "golden"
#: All that the codec reads and writes.
MODELS: dict[str, type[BaseModel]] = {**EVENT_TYPES, **COMMAND_TYPES, **RECEIPT_TYPES}
LARGEST_INTEGER = 2**63 - 1


def golden(name: str) -> dict[str, Any]:
    """Return the fields of the newest golden message of a type."""
    fields: dict[str, Any] = json.loads((GOLDEN / f"{name}.v1.json").read_bytes())
    return fields


def submission(**changes: Any) -> dict[str, Any]:
    """Return the fields of a small lawful submission; a change to None leaves a field out."""
    fields: dict[str, Any] = {
        "type": "workload_submitted",
        "v": 1,
        "workload": "llama",
        "budget": "nlp/llama",
        "ranks": 2,
        "gpus_per_rank": 8,
        "min_runtime_ms": 0,
        "resumable": True,
    } | changes
    return {name: value for name, value in fields.items() if value is not None}


def as_json(value: Any) -> bytes:
    """Return JSON as any client may write it: not canonical."""
    return json.dumps(value).encode()


def any_fields(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Give the fields of lawful messages of one type, as JSON has them."""
    schema = MODELS[name].model_json_schema()
    fields = _lawful(schema, schema.get("$defs", {}))
    if name == "workload_submitted":
        return fields.map(_as_layers)
    if name == "nodes_relabelled":
        return fields.map(_naming_each_once)
    return fields.map(_as_an_interval) if name == "usage_adjusted" else fields


def _as_layers(fields: dict[str, Any]) -> dict[str, Any]:
    """Let each layer hold the whole gang in a rack, without groups; no schema says what else goes together."""
    if fields.get("topology") is None:
        return fields
    layers = [{**layer, "level": "rack", "ranks": None} for layer in fields["topology"].get("layers", ())]
    layers = layers or [{"level": "rack"}]
    return fields | {"topology": {**fields["topology"], "layers": layers, "groups": []}}


def _naming_each_once(fields: dict[str, Any]) -> dict[str, Any]:
    """Let no node have two places, which no schema can say."""
    return fields | {"labels": list({label["node"]: label for label in fields["labels"]}.values())}


def _as_an_interval(fields: dict[str, Any]) -> dict[str, Any]:
    """Let an interval begin before it ends, which no schema can say."""
    since_ms, until_ms = sorted((fields["from_ms"], fields["to_ms"]))
    return fields | ({"from_ms": since_ms, "to_ms": until_ms} if since_ms < until_ms else {"from_ms": 0, "to_ms": 1})


def _lawful(node: dict[str, Any], definitions: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "$ref" in node:
        return _lawful(definitions[node["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in node:
        return st.one_of(*(_lawful(choice, definitions) for choice in node["anyOf"]))
    if "const" in node:
        return st.just(node["const"])
    if "enum" in node:
        return st.sampled_from(node["enum"])
    match node["type"]:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(node["minimum"], node.get("maximum", LARGEST_INTEGER))
        case "string" if "pattern" in node:
            return st.from_regex(node["pattern"], fullmatch=True, alphabet=st.characters(codec="utf-8"))
        case "string":
            characters = st.characters(codec="utf-8")
            longest = min(node.get("maxLength", 30), 30)
            return st.text(characters, min_size=node.get("minLength", 0), max_size=longest)
        case "array" if node["items"].get("$ref", "").endswith("/BudgetShare"):
            return trees()
        case "array":
            least = node.get("minItems", 0)
            return st.lists(_lawful(node["items"], definitions), min_size=least, max_size=least + 3)
        case "object" if "window_ms" in node["properties"]:
            return policies()
        case _:
            required = {"type", "v", *node.get("required", [])}
            fields = {name: _lawful(field, definitions) for name, field in node["properties"].items()}
            return st.fixed_dictionaries(
                {name: field for name, field in fields.items() if name in required},
                optional={name: field for name, field in fields.items() if name not in required},
            )


def trees() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Give lawful budget trees of two levels: parents first, and no parent's children above the whole."""
    leaves = st.lists(st.integers(0, WHOLE // 3), max_size=3)
    return st.lists(leaves, max_size=3).map(
        lambda teams: [
            share
            for team, fractions in enumerate(teams)
            for share in (
                {"budget": f"team-{team}", "fraction_nano": WHOLE // 3},
                *(
                    {"budget": f"team-{team}/{leaf}", "fraction_nano": fraction}
                    for leaf, fraction in enumerate(fractions)
                ),
            )
        ]
    )


def policies() -> st.SearchStrategy[dict[str, Any]]:
    """Give lawful policies that change two knobs."""
    return st.fixed_dictionaries(
        {}, optional={"resend_ms": st.integers(1, 60_000), "placements_per_round": st.integers(1, 1_000)}
    )
