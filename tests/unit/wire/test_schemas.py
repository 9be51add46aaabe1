"""Do the published contracts say what the code does?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from streamsched.errors import WireError
from streamsched.wire.codec import EVENT_TYPES, admit
from streamsched.wire.refusals import STAMPED
from streamsched.wire.schemas import MODELS, documents, schema, write
from streamsched.wire.topic_catalogue import catalogue
from tests.unit.wire.messages import MODELS as CODED
from tests.unit.wire.messages import any_fields, as_json, golden, submission

TOPICS = Path(__file__).parents[3] / "topics"
VALIDATORS = {name: Draft202012Validator(schema(model)) for name, model in MODELS.items()}


def is_admitted(fields: dict[str, Any]) -> bool:
    try:
        admit(as_json(fields), allowed=frozenset(EVENT_TYPES), src=None, seq=None)
    except WireError:
        return False
    return True


def test_the_committed_contracts_are_what_the_models_say() -> None:
    """On failure run ``python -m streamsched.wire.schemas`` and commit what it wrote, if you meant the change."""
    committed = {
        str(file.relative_to(TOPICS)): file.read_text("utf-8")
        for file in [TOPICS / "asyncapi.json", *(TOPICS / "schemas").glob("*.json")]
    }

    generated = documents()

    stale = sorted(path for path in generated.keys() | committed.keys() if generated.get(path) != committed.get(path))
    assert not stale, f"{', '.join(stale)} differ in topics/: run `python -m streamsched.wire.schemas`"


def test_writing_removes_the_schema_of_what_is_no_more(tmp_path: Path) -> None:
    """And writes the same files each time."""
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "job_sent.json").write_text("{}")

    write(tmp_path)

    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.json")}
    assert written == set(documents())


@pytest.mark.parametrize("name", MODELS)
def test_a_schema_is_one_and_describes_every_message(name: str) -> None:
    """It is lawful JSON Schema, has the words of the docstring, and demands the type."""
    Draft202012Validator.check_schema(schema(MODELS[name]))

    assert schema(MODELS[name])["description"]
    assert "Attributes" not in json.dumps(schema(MODELS[name]))
    assert "type" in schema(MODELS[name])["required"]


def test_fields_have_the_words_of_their_docstrings() -> None:
    """Those of the envelope too, and those of parts."""
    submitted = schema(MODELS["workload_submitted"])["properties"]
    line = schema(MODELS["round_proposed"])["$defs"]["ShareLine"]["properties"]

    assert submitted["ranks"]["description"] == "Gang size, at least 1. All ranks start together or none does."
    assert submitted["actor"]["description"] == "Who caused it."
    assert line["budget"]["description"] == "The vertex of the tree."


@pytest.mark.parametrize("name", CODED)
def test_golden_messages_satisfy_their_schemas(name: str) -> None:
    """What was written once is lawful for ever."""
    VALIDATORS[name].validate(golden(name))


@pytest.mark.parametrize(
    ("fields", "is_lawful"),
    [
        (submission(), True),
        (submission(pool="h100", timeout_ms=1, priority=-1_000_000, command=["sleep", ""]), True),
        (submission() | {"pool": None}, True),
        (submission(v=None), True),
        (submission(ranks=100_000, gpus_per_rank=16), True),
        (submission(workload="a" * 128), True),
        (submission(budget="/".join(["a"] * 12)), True),
        (submission(type=None), False),
        (submission(v=2), False),
        (submission(v="1"), False),
        (submission(ranks=0), False),
        (submission(ranks=100_001), False),
        (submission(ranks=1.5), False),
        (submission(ranks=True), False),
        (submission(resumable=1), False),
        (submission(workload="a" * 129), False),
        (submission(workload="-a"), False),
        (submission(workload="ä"), False),
        (submission(budget="/".join(["a"] * 13)), False),
        (submission(budget="a/"), False),
        (submission(command="sleep 3"), False),
        (submission(command=["x"] * 1_025), False),
        (submission(timeout_ms=0), False),
        (submission(actor="a\tb"), False),
        (submission(gpus=8), False),
        ({"type": "node_health_changed", "v": 1, "node": "n-1", "health": "lost"}, True),
        ({"type": "node_health_changed", "v": 1, "node": "n-1", "health": "LOST"}, False),
    ],
)
def test_the_schema_and_the_codec_agree(fields: dict[str, Any], is_lawful: bool) -> None:
    """A producer that checks against the schema is not surprised by intake."""
    validator = VALIDATORS[fields.get("type", "workload_submitted")]

    assert (validator.is_valid(fields), is_admitted(fields)) == (is_lawful, is_lawful)


@pytest.mark.parametrize("name", EVENT_TYPES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_lawful_messages_with_one_wild_field_are_judged_alike(name: str, data: st.DataObject) -> None:
    """Whatever intake admits satisfies the schema, and what does not satisfy the schema is not admitted.

    What several fields say together (a tree's sums, an interval) no schema can say, and 2.0 is a whole number to a
    schema but not to the codec: intake is the stricter one.
    """
    fields = {field: value for field, value in data.draw(any_fields(name)).items() if field not in STAMPED}
    assert is_admitted(fields)
    assert VALIDATORS[name].is_valid(fields)

    # No line breaks: Python's regular expressions, unlike others, let one follow the end.
    words = st.text(st.characters(codec="utf-8", exclude_characters="\n"))
    wild = data.draw(st.none() | st.booleans() | st.integers() | words | st.lists(st.integers(), max_size=2))
    together = {"type", "budgets", "policy", "from_ms", "to_ms"}
    fields[data.draw(st.sampled_from(sorted(fields.keys() - together)))] = wild

    assert is_admitted(fields) == VALIDATORS[name].is_valid(fields)


# --- AsyncAPI -------------------------------------------------------------------------------------------------------


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def resolve(document: dict[str, Any], reference: str) -> Any:
    node: Any = document
    for part in reference.removeprefix("#/").split("/"):
        node = node[part]
    return node


@pytest.fixture(scope="module")
def asyncapi() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((TOPICS / "asyncapi.json").read_text("utf-8"))
    return document


def test_asyncapi_references_lead_somewhere(asyncapi: dict[str, Any]) -> None:
    """Inside the document, or to a schema file."""
    for reference in references(asyncapi):
        if reference.startswith("#/"):
            resolve(asyncapi, reference)
        else:
            assert (TOPICS / reference).is_file(), reference


def test_asyncapi_has_a_channel_for_each_topic_and_what_the_specification_demands(asyncapi: dict[str, Any]) -> None:
    """AsyncAPI 3.0.0: required fields, and an operation's messages are messages of its channel."""
    assert asyncapi["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= asyncapi["info"].keys()
    assert asyncapi["channels"].keys() == catalogue().keys()
    assert {operation["action"] for operation in asyncapi["operations"].values()} == {"send", "receive"}
    for name, operation in asyncapi["operations"].items():
        assert re.fullmatch(r"(send|receive)_[a-z_]+", name)
        assert resolve(asyncapi, operation["channel"]["$ref"])["messages"]
        assert all(message["$ref"].startswith(operation["channel"]["$ref"] + "/") for message in operation["messages"])


def test_asyncapi_says_who_receives_and_who_sends(asyncapi: dict[str, Any]) -> None:
    """As the service sees it: requests and reports come in, commands and receipts go out, the ledger is both."""
    assert asyncapi["operations"].keys() == {
        *("receive_workloads", "receive_control", "receive_node_reports", "receive_node_status"),
        *("receive_ledger", "send_ledger"),
        *("send_commands", "send_receipts", "send_dead_letters"),
        *("send_usage", "receive_usage", "send_topology", "receive_topology"),
    }


def test_asyncapi_forbids_requests_what_intake_sets(asyncapi: dict[str, Any]) -> None:
    """On the ledger an event has `src`; on its way to intake it may not."""
    channels = asyncapi["channels"]
    request = resolve(asyncapi, channels["workloads.v1"]["messages"]["workload_submitted"]["$ref"])
    event = resolve(asyncapi, channels["ledger.v1"]["messages"]["workload_submitted"]["$ref"])

    _, forbidden = request["payload"]["schema"]["allOf"]
    assert event["payload"]["schema"] == {"$ref": "./schemas/workload_submitted.json"}
    assert Draft202012Validator(forbidden).is_valid(submission())
    assert not Draft202012Validator(forbidden).is_valid(submission(src="workloads.v1/0"))
    assert not Draft202012Validator(forbidden).is_valid(submission(seq=1))


def test_the_example_in_the_readme_is_admitted() -> None:
    """Whoever copies it gets GPUs."""
    readme = (TOPICS / "README.md").read_text("utf-8")
    (example,) = re.findall(r"^\$ echo '(.*)' \|$", readme, re.MULTILINE)

    event = admit(example.encode(), allowed=frozenset(catalogue()["workloads.v1"].messages), src=None, seq=None)

    assert event.type == "workload_submitted"
