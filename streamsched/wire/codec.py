"""Events, commands and receipts to bytes and back.

There is one rendering of every value: sorted keys, nothing that is absent, integers only. So equal values are equal
bytes on every machine, and a hash of the ledger means something.

Reading is generous where it may be and strict where it must be. What stands in the ledger was admitted once: unknown
fields are ignored, since a newer writer may add some, and old versions are raised. Intake forbids what it does not
know, since there a misspelt field is a wish that would silently not come true.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

import orjson
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from streamsched.errors import UnsupportedVersionError, WireError
from streamsched.model.commands import Command, Receipt
from streamsched.model.events import Event, Record, Unreadable, Value
from streamsched.model.identifiers import WorkloadId
from streamsched.model.ledger import Entry
from streamsched.wire.refusals import STAMPED, RefusalCode, closest, refusal, refusal_of, shown
from streamsched.wire.upcasting import Fields, upcast

V = TypeVar("V", bound=Value)

#: The most bytes of one request. A gang's command line fits many times; a whole budget tree needs more.
REQUEST_MAX_BYTES = 256 * 1024
TREE_MAX_BYTES = 4 * 1024 * 1024

_LARGEST_VERSION = 1_000_000


def encode(event: Event) -> bytes:
    """Return the canonical bytes of an event."""
    return _canonical(event)


def decode(data: bytes) -> Event:
    """Return the event that `data` was, as far as this version of streamsched knows its fields.

    Raises:
        UnsupportedVersionError: A newer streamsched wrote it.
        WireError: It is no event.
    """
    return _EVENTS.read(data)


def read(entry: Entry) -> Record:
    """Return a ledger entry as the fold takes it. Bytes that are no event become `Unreadable`: the fold is total.

    Raises:
        WireError: A newer streamsched wrote it, a type or a version that we do not know; folding on without it would
            part from the others.
    """
    event: Event | Unreadable
    try:
        event = decode(entry.data)
    except UnsupportedVersionError:
        raise
    except WireError as error:
        if error.code == RefusalCode.UNKNOWN_TYPE:
            raise  # Only a newer streamsched writes events that we have never heard of: going on would be guessing.
        event = Unreadable(error.reason)
    return Record(entry.cursor, entry.append_ms, event)


def admit(data: bytes, *, allowed: frozenset[str], src: str | None, seq: int | None) -> Event:
    """Return the event that a request asks for, stamped with where it came from.

    Args:
        data: The bytes of the source record.
        allowed: The event types that its topic carries.
        src: The source's topic and partition, ``workloads.v1/3``; None when there is no source topic.
        seq: The source record's offset; None exactly when `src` is.

    Raises:
        WireError: It cannot be admitted: `code` says in which way, `reason` which field, which value and what to do.
            Nothing else is raised, whatever the bytes are.
    """
    event_type, fields = _EVENTS.open(data, allowed)
    workload = _workload(fields)
    limit = TREE_MAX_BYTES if event_type == "budget_tree_changed" else REQUEST_MAX_BYTES
    if len(data) > limit:
        raise refusal(
            RefusalCode.TOO_LARGE,
            f"This {event_type} has {len(data)} bytes, and at most {limit} are taken. Put long arguments and data into "
            "a file that the nodes can read, and name the file.",
            workload,
        )
    for name in STAMPED:
        if name in fields:
            raise refusal(
                RefusalCode.RESERVED_FIELD,
                f"{name} is {shown(fields[name])}, but it is intake that sets {name}; leave it out.",
                workload,
            )
    if (repeated := _repeated_field(data)) is not None:
        raise refusal(
            RefusalCode.DUPLICATE_FIELD,
            f"{shown(repeated)} is given twice in one object, so it is not clear which was meant; give it once.",
            workload,
        )
    event = _EVENTS.validate(event_type, fields, data, extra="forbid")
    return event.model_copy(update={"src": src, "seq": seq})


def encode_command(command: Command) -> bytes:
    """Return the canonical bytes of a command."""
    return _canonical(command)


def decode_command(data: bytes) -> Command:
    """Return the command that `data` was.

    Raises:
        UnsupportedVersionError: A newer scheduler wrote it: upgrade the node agent.
        WireError: It is no command.
    """
    return _COMMANDS.read(data)


def encode_receipt(receipt: Receipt) -> bytes:
    """Return the canonical bytes of a receipt."""
    return _canonical(receipt)


def decode_receipt(data: bytes) -> Receipt:
    """Return the receipt that `data` was.

    Raises:
        UnsupportedVersionError: A newer scheduler wrote it: upgrade the client.
        WireError: It is no receipt.
    """
    return _RECEIPTS.read(data)


def _canonical(value: Value) -> bytes:
    try:
        return orjson.dumps(_present(value), default=_present, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError as error:
        raise error.__cause__ or error from None


def _present(value: Value) -> dict[str, Any]:
    """Return the fields of a value that are there. orjson asks for those of the values inside by itself."""
    fields = value.__dict__
    if None in fields.values():
        told = _told_when_none(type(value))
        fields = {name: field for name, field in fields.items() if field is not None or name in told}
    if float in map(type, fields.values()):  # It went round validation, and is not to become bytes.
        raise ValueError(f"a float among the fields of {value!r}; only whole numbers are written")
    return fields


@cache
def _told_when_none(model: type[Value]) -> frozenset[str]:
    """Return the fields whose absence is read as something else than None."""
    return frozenset(name for name, field in model.model_fields.items() if field.get_default() is not None)


class _Family(Generic[V]):
    """A closed set of models that are told apart by their ``type``."""

    def __init__(self, members: Any) -> None:
        self.models: Mapping[str, type[V]] = {_only(model, "type"): model for model in get_args(members) or (members,)}
        tagged: Any = Annotated[members, Field(discriminator="type")]
        self._adapter: TypeAdapter[V] = TypeAdapter(tagged if len(self.models) > 1 else members)

    def read(self, data: bytes) -> V:
        """Return what `data` was; unknown fields are ignored. Fast for what we wrote ourselves."""
        try:
            value = self._adapter.validate_json(data, extra="ignore")
        except ValidationError:
            pass  # An old version, or a mistake whose name takes a closer look.
        else:
            given = value.model_fields_set
            if "v" in given and "type" in given:
                return value
        event_type, fields = self.open(data, self.models)
        return self.validate(event_type, fields, data, extra="ignore")

    def open(self, data: bytes, expected: Collection[str]) -> tuple[str, Fields]:
        """Return the type and the fields of what `data` holds, not validated yet."""
        try:
            fields = from_json(data, allow_inf_nan=False)
        except ValueError as error:
            reason = f"This is no JSON: {error}." if data else "The record is empty; it must be a JSON object."
            raise refusal(RefusalCode.NOT_JSON, reason) from None
        if not isinstance(fields, dict):
            raise refusal(RefusalCode.NOT_AN_OBJECT, f"This is {shown(fields)}; it must be a JSON object.")
        workload = _workload(fields)
        if "type" not in fields:
            reason = f"type is missing; {closest('', sorted(expected))}"
            raise refusal(RefusalCode.MISSING_FIELD, reason, workload)
        event_type = fields["type"]
        if isinstance(event_type, str) and event_type in expected:
            return event_type, fields
        reason = (
            f"type is {shown(event_type)}, which is not expected here; {closest(str(event_type), sorted(expected))}"
        )
        code = RefusalCode.UNKNOWN_TYPE
        if not isinstance(event_type, str):
            code = RefusalCode.INVALID_FIELD
        elif event_type in self.models:
            code = RefusalCode.WRONG_TYPE_FOR_TOPIC
        raise refusal(code, reason, workload)

    def validate(self, event_type: str, fields: Fields, data: bytes, *, extra: Literal["ignore", "forbid"]) -> V:
        """Return the value that opened bytes hold, raised to the newest version."""
        model = self.models[event_type]
        workload = _workload(fields)
        newest: int = _only(model, "v")
        version = fields.get("v", 1)  # The version of those who do not know that there are versions.
        if type(version) is not int or abs(version) > _LARGEST_VERSION:
            reason = f"v is {shown(version)}; it must be a whole number, and {newest} is the newest of {event_type}."
            raise refusal(RefusalCode.INVALID_FIELD, reason, workload)
        if version > newest:
            raise UnsupportedVersionError(event_type, version, newest, workload)
        if version < newest:
            try:
                data = to_json(upcast(event_type, fields, version=version, newest=newest))
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                reason = f"v is {version}, and {event_type} cannot be raised from it to {newest}: {error}."
                raise refusal(RefusalCode.INVALID_FIELD, reason, workload) from error
        try:
            return model.model_validate_json(data, extra=extra)
        except ValidationError as error:
            raise refusal_of(error, model, event_type, workload) from None


def _only(model: type[Value], field: str) -> Any:
    """Return the one value that a field of type ``Literal[...]`` may have."""
    return get_args(model.model_fields[field].annotation)[0]


def _workload(fields: Fields) -> str | None:
    """Return the workload that unvalidated fields speak of, as far as that can be read."""
    try:
        return _WORKLOAD_ID.validate_python(fields.get("workload"), strict=True)
    except ValidationError:
        return None


def _repeated_field(data: bytes) -> str | None:
    """Return a name that some object of a JSON text gives twice: most parsers take the last in silence."""
    repeated: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        names = set[str]()
        for name, _ in pairs:
            if name in names:
                repeated.append(name)
            names.add(name)

    json.loads(data, object_pairs_hook=note)
    return repeated[0] if repeated else None


_WORKLOAD_ID: TypeAdapter[str] = TypeAdapter(WorkloadId)
_EVENTS = _Family[Event](Event)
_COMMANDS = _Family[Command](Command)
_RECEIPTS = _Family[Receipt](Receipt)

#: Every model that goes over a wire, by its type.
EVENT_TYPES = _EVENTS.models
COMMAND_TYPES = _COMMANDS.models
RECEIPT_TYPES = _RECEIPTS.models
