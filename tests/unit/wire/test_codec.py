"""Is what is read what was written, and is everything else refused in words that help?"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from streamsched.errors import UnsupportedVersionError, WireError
from streamsched.model.commands import Receipt, ReceiptStatus
from streamsched.model.events import PolicyAdopted, Rejected, Tick, Unreadable, WorkloadCancelled, WorkloadSubmitted
from streamsched.model.identifiers import Reason
from streamsched.model.ledger import Entry
from streamsched.model.policy import Policy
from streamsched.model.topology import Group, Layer, Preference, Recovery, TopologyRequest, Wish
from streamsched.wire import codec
from streamsched.wire.codec import EVENT_TYPES, REQUEST_MAX_BYTES, admit, decode, encode, read
from streamsched.wire.refusals import RefusalCode
from tests.unit.wire.messages import GOLDEN, MODELS, any_fields, as_json, golden, submission

REQUESTS = frozenset({"workload_submitted", "workload_cancelled", "budget_tree_changed", "policy_adopted"})


def refused(data: bytes, allowed: frozenset[str] = REQUESTS) -> WireError:
    with pytest.raises(WireError) as caught:
        admit(data, allowed=allowed, src="workloads.v1/0", seq=1)
    return caught.value


def encode_any(value: Any) -> bytes:
    if value.type in EVENT_TYPES:
        return encode(value)
    return codec.encode_receipt(value) if isinstance(value, Receipt) else codec.encode_command(value)


def decode_any(name: str, data: bytes) -> Any:
    if name in EVENT_TYPES:
        return decode(data)
    return codec.decode_receipt(data) if name == "receipt" else codec.decode_command(data)


# --- canonical bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(name: str, data: st.DataObject) -> None:
    """Decoding undoes encoding, and the same value has the same bytes however it came."""
    value = MODELS[name].model_validate_json(as_json(data.draw(any_fields(name))))

    written = encode_any(value)

    assert decode_any(name, written) == value
    assert encode_any(decode_any(name, written)) == written
    shuffled = dict(reversed(json.loads(written).items()))
    assert encode_any(decode_any(name, json.dumps(shuffled, indent=1).encode())) == written


def test_what_is_asked_of_the_topology_is_read_back() -> None:
    """Layers and groups, as JSON of any client and as it is written to the ledger; fields left out are the defaults."""
    asked = {
        "layers": [{"level": "supernode"}, {"level": "rack", "ranks": 4, "wish": "preferred"}],
        "groups": [
            {"name": "prefill", "ranks": 4, "layers": [{"level": "rack"}]},
            {"name": "decode", "ranks": 8, "gpus_per_rank": 16},
        ],
        "preference": "bandwidth_first",
        "recovery": "in_place",
    }

    event = admit(as_json(submission(ranks=12, topology=asked)), allowed=REQUESTS, src="workloads.v1/0", seq=1)

    assert isinstance(event, WorkloadSubmitted)
    assert event.topology == TopologyRequest(
        layers=(Layer(level="supernode"), Layer(level="rack", ranks=4, wish=Wish.PREFERRED)),
        groups=(
            Group(name="prefill", ranks=4, layers=(Layer(level="rack"),)),
            Group(name="decode", ranks=8, gpus_per_rank=16),
        ),
        preference=Preference.BANDWIDTH_FIRST,
        recovery=Recovery.IN_PLACE,
    )
    assert decode(encode(event)) == event


def test_what_no_topology_can_keep_is_refused_with_the_field() -> None:
    """By intake, before it is in the ledger."""
    error = refused(as_json(submission(ranks=5, topology={"layers": [{"level": "rack", "ranks": 2}]})))

    assert error.reason == (
        "Topology.layers: a block of 2 ranks in one rack does not divide the 5 ranks of the gang; make the one a "
        "multiple of the other."
    )


def test_canonical_bytes_are_sorted_and_leave_out_what_is_absent() -> None:
    """The bytes of an event are a promise to auditors, so here they are, letter by letter."""
    cancelled = WorkloadCancelled(workload="llama", seq=0, src="workloads.v1/0", at_ms=None)

    assert encode(cancelled) == (
        b'{"seq":0,"src":"workloads.v1/0","type":"workload_cancelled","v":1,"workload":"llama"}'
    )


def test_none_is_written_where_leaving_it_out_means_something_else() -> None:
    """A guard that never fades is None, and 24 hours where nothing is said."""
    adopted = PolicyAdopted(policy=Policy(guard_relaxation_ms=None), reason="a test")

    assert b'"guard_relaxation_ms":null' in encode(adopted)
    assert decode(encode(adopted)) == adopted


def test_a_float_never_becomes_bytes() -> None:
    """A value that went round validation is stopped where it would be written."""
    unchecked: dict[str, Any] = {"tick": 1.5}
    broken = Tick.model_construct(**unchecked)

    with pytest.raises(ValueError, match="a float among the fields"):
        encode(broken)


@pytest.mark.parametrize("name", MODELS)
def test_no_message_has_room_for_a_float(name: str) -> None:
    """JSON Schema calls what is not a whole number a "number"; no field of any message is one."""
    assert '"number"' not in json.dumps(MODELS[name].model_json_schema())


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_every_type_has_a_golden_message(name: str) -> None:
    """A message of version 1 is read for ever, and as long as 1 is the newest, written again byte for byte."""
    file = GOLDEN / f"{name}.v1.json"
    assert file.is_file(), f"write a {name} with every field to {file.name}, as the codec encodes it: no newline"
    data = file.read_bytes()

    assert encode_any(decode_any(name, data)) == data


def test_every_golden_message_is_of_a_type_that_is_read() -> None:
    """A type that was ever written stays; its golden file is never removed, nor left without a reader."""
    assert {file.name.removesuffix(".v1.json") for file in GOLDEN.iterdir()} == set(MODELS)


def test_reading_ignores_fields_that_a_newer_writer_added() -> None:
    """At any depth, so that writers may be upgraded field by field."""
    fields = golden("round_proposed")
    fields["urgency"] = 1.5
    fields["placements"][0]["seats"][0]["numa"] = {"zone": 1}

    assert encode(decode(as_json(fields))) == (GOLDEN / "round_proposed.v1.json").read_bytes()


def test_a_missing_version_is_the_first() -> None:
    """Whoever does not know that there are versions writes version 1."""
    assert decode(as_json(submission(v=None))) == decode(as_json(submission()))


def test_a_newer_version_stops_the_reader() -> None:
    """Folding on without an event that others understand would part this fold from theirs."""
    data = as_json(submission(v=2))

    with pytest.raises(UnsupportedVersionError, match="workload_submitted has version 2") as caught:
        read(Entry(cursor=5, append_ms=7, data=data))

    assert (caught.value.event_type, caught.value.version, caught.value.known) == ("workload_submitted", 2, 1)


def test_reading_the_ledger_is_total() -> None:
    """Bytes that are no event are a record all the same: nothing is skipped."""
    lawful = read(Entry(cursor=5, append_ms=7, data=b'{"tick":3,"type":"tick","v":1}'))
    unlawful = read(Entry(cursor=6, append_ms=8, data=b'{"tick":0,"type":"tick","v":1}'))

    assert (lawful.cursor, lawful.append_ms, lawful.event) == (5, 7, Tick(tick=3))
    assert unlawful.event == Unreadable("tick is 0; it must be a whole number from 1 to 9223372036854775807.")


@pytest.mark.parametrize(
    ("reader", "data"),
    [
        (decode, b'{"type":"place","v":1}'),
        (codec.decode_command, b'{"type":"tick","v":1,"tick":1}'),
        (codec.decode_receipt, b'{"v":1,"workload":"llama","status":"accepted","cursor":1}'),
    ],
)
def test_events_commands_and_receipts_are_not_mistaken_for_each_other(reader: Any, data: bytes) -> None:
    """What says another type, or none, is refused."""
    with pytest.raises(WireError, match=r"^type is"):
        reader(data)


# --- intake ---------------------------------------------------------------------------------------------------------


def test_intake_stamps_where_a_request_came_from() -> None:
    """The stamp, and nothing else, is added."""
    event = admit(as_json(submission(corr="c-1")), allowed=REQUESTS, src="workloads.v1/3", seq=0)

    assert event == WorkloadSubmitted(
        src="workloads.v1/3",
        seq=0,
        corr="c-1",
        workload="llama",
        budget="nlp/llama",
        ranks=2,
        gpus_per_rank=8,
        min_runtime_ms=0,
        resumable=True,
    )


SMALL = as_json(submission(min_runtime_ms=0))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"", "not_json", id="nothing"),
        pytest.param(b"\x00", "not_json", id="a NUL"),
        pytest.param(b"\xff\xfe{\x00}\x00", "not_json", id="UTF-16"),
        pytest.param(b"\xef\xbb\xbf" + SMALL, "not_json", id="a byte order mark"),
        pytest.param(SMALL + b"}", "not_json", id="more than one value"),
        pytest.param(SMALL[:-1], "not_json", id="cut off"),
        pytest.param(SMALL.replace(b'"llama"', b'"\\ud800"'), "not_json", id="half a surrogate pair"),
        pytest.param(SMALL.replace(b'"llama"', b'"ll\xffama"'), "not_json", id="no UTF-8"),
        pytest.param(SMALL.replace(b'"llama"', b'"ll\x00ama"'), "not_json", id="a raw NUL in text"),
        pytest.param(SMALL.replace(b'"llama"', b'"ll\\u0000ama"'), "invalid_field", id="a NUL in a name"),
        pytest.param(SMALL.replace(b'"ranks": 2', b'"ranks": NaN'), "not_json", id="not a number"),
        pytest.param(SMALL.replace(b'"ranks": 2', b'"ranks": -Infinity'), "not_json", id="infinity"),
        pytest.param(SMALL.replace(b'"ranks": 2', b'"ranks": 1e309'), "invalid_field", id="infinity in disguise"),
        pytest.param(SMALL.replace(b'"ranks": 2', b'"ranks": 2e0'), "invalid_field", id="a whole float"),
        pytest.param(SMALL.replace(b'"ranks": 2', b'"ranks": 1' + b"0" * 4_000), "invalid_field", id="4,001 digits"),
        pytest.param(SMALL.replace(b'"ranks": 2', b'"ranks": 1' + b"0" * 5_000), "not_json", id="5,001 digits"),
        pytest.param(SMALL.replace(b'"v": 1', b'"v": 1' + b"0" * 4_000), "invalid_field", id="version 10^4000"),
        pytest.param(SMALL.replace(b'"ranks": 2', b'"ranks": ' + b"[" * 10_000), "not_json", id="10,000 brackets"),
        pytest.param(b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "not_json", id="10,000 braces"),
        pytest.param(SMALL.replace(b'"ranks": 2', b'"ranks": 2, "ranks": 2'), "duplicate_field", id="a field twice"),
    ],
)
def test_hostile_bytes_are_refused(data: bytes, code: str) -> None:
    """Nothing that a producer can send raises anything but a refusal, at intake or when reading."""
    assert refused(data).code == code
    if code != "duplicate_field":  # No writer of ours repeats a field; the last one counts, on every machine.
        with pytest.raises(WireError):
            decode(data)


def test_a_request_that_is_too_large_is_refused_by_its_size() -> None:
    """256 KiB are taken to the byte, and one more is not."""
    room = REQUEST_MAX_BYTES - len(as_json(submission(command=[""] * 40)))
    full = [8_192 * "x"] * (room // 8_192) + [room % 8_192 * "x"]
    command = full + [""] * (40 - len(full))

    admit(as_json(submission(command=command)), allowed=REQUESTS, src=None, seq=None)
    refusal = refused(as_json(submission(command=[*command[:-1], "x"])))

    assert (refusal.code, refusal.workload) == ("too_large", "llama")
    assert refusal.reason.startswith("This workload_submitted has 262145 bytes, and at most 262144 are taken.")


def test_a_large_budget_tree_is_taken() -> None:
    """A tree comes whole, so it may be larger than a submission; 10,000 budgets are about 500 KB."""
    budgets = [{"budget": f"team-{number:05}", "fraction_nano": 100_000} for number in range(10_000)]
    data = as_json({"type": "budget_tree_changed", "v": 1, "change": "c", "reason": "r", "budgets": budgets})

    assert len(data) > REQUEST_MAX_BYTES
    assert admit(data, allowed=REQUESTS, src=None, seq=None).type == "budget_tree_changed"


# --- whatever the bytes are -------------------------------------------------------------------------------------------

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
_REASON: TypeAdapter[str] = TypeAdapter(Reason)


def check_harmless(data: bytes) -> None:
    """Check that bytes are read or refused, and that a refusal can be told to everyone whom it concerns."""
    for reader in (decode, codec.decode_command, codec.decode_receipt):
        with suppress(WireError):
            reader(data)
    try:
        admitted = admit(data, allowed=frozenset(EVENT_TYPES), src="workloads.v1/0", seq=1)
    except WireError as error:
        RefusalCode(error.code)
        reason = _REASON.validate_python(error.reason)
        rejected = Rejected(code=error.code, reason=reason, workload=error.workload)
        assert decode(encode(rejected)) == rejected
        Receipt(workload=error.workload or "unknown", status=ReceiptStatus.REJECTED, cursor=1, reason=reason)
    else:
        assert decode(encode(admitted)) == admitted


@settings(deadline=None)
@given(data=st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Any bytes."""
    check_harmless(data)


@settings(deadline=None)
@given(fields=st.dictionaries(st.sampled_from([*submission(), "src", "corr"]) | st.text(), _VALUES))
def test_any_fields_are_read_or_refused(fields: dict[str, Any]) -> None:
    """Any object that claims to be a submission."""
    check_harmless(as_json(submission() | fields))


@settings(deadline=None)
@given(data=st.data())
def test_any_damage_to_a_message_is_read_or_refused(data: st.DataObject) -> None:
    """A lawful message with some bytes cut out and others put in."""
    whole = (GOLDEN / f"{data.draw(st.sampled_from(sorted(MODELS)))}.v1.json").read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(start + 8, len(whole))))

    check_harmless(whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:])


def test_an_event_type_that_is_not_known_yet_stops_the_reader() -> None:
    """Only a newer streamsched writes it, and a fold that went on without it would part from the others."""
    with pytest.raises(WireError, match="workload_hibernated"):
        read(Entry(cursor=0, append_ms=0, data=b'{"type":"workload_hibernated","v":1}'))
