"""Is yesterday's version read as today's?"""

from __future__ import annotations

import pytest

from streamsched.errors import WireError
from streamsched.wire.codec import admit, decode
from streamsched.wire.upcasting import UPCASTS, Fields, upcast
from tests.unit.wire.messages import as_json, submission


def gpus_become_gpus_per_rank(fields: Fields) -> Fields:
    """A version that never was, where a gang's GPUs were counted together."""
    fields["gpus_per_rank"] = fields.pop("gpus") // fields["ranks"]
    return fields


def test_an_old_version_is_raised_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old fields give the same event as the new ones, in the ledger and at intake."""
    monkeypatch.setitem(UPCASTS, ("workload_submitted", 0), gpus_become_gpus_per_rank)
    old = as_json(submission(v=0, gpus=16, gpus_per_rank=None))
    today = decode(as_json(submission(v=1)))

    assert decode(old) == today
    assert admit(old, allowed=frozenset({"workload_submitted"}), src=None, seq=None) == today


def test_an_old_version_that_cannot_be_raised_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that raises versions may trust its fields: what it stumbles over is the sender's mistake."""
    monkeypatch.setitem(UPCASTS, ("workload_submitted", 0), gpus_become_gpus_per_rank)

    with pytest.raises(WireError, match=r"^v is 0, and workload_submitted cannot be raised from it to 1: 'gpus'"):
        decode(as_json(submission(v=0)))


def test_versions_are_raised_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three versions up are three functions, in order, and what was read stays as it was."""
    for version in (1, 2, 3):
        monkeypatch.setitem(
            UPCASTS, ("tick", version), lambda fields: fields | {"seen": [*fields["seen"], fields["v"]]}
        )
    fields: Fields = {"v": 1, "seen": []}

    assert upcast("tick", fields, version=1, newest=4) == {"v": 4, "seen": [1, 2, 3]}
    assert fields == {"v": 1, "seen": []}


def test_a_version_that_never_was_is_said() -> None:
    """There is no way up from it."""
    with pytest.raises(LookupError, match="there is no version 7 of tick"):
        upcast("tick", {}, version=7, newest=8)
