"""Yesterday's versions of events and commands, raised to today's.

Models exist only for the newest version. When a shape must change, its model gets the next ``v``, a pure function that
raises the fields of the version before by one is added to `UPCASTS`, and the old golden file stays where it is. The
ledger is never rewritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: The fields of one event as JSON has them.
Fields = dict[str, Any]

#: (type, version) to the function that makes fields of that version into fields of the next one.
UPCASTS: dict[tuple[str, int], Callable[[Fields], Fields]] = {}


def upcast(event_type: str, fields: Fields, *, version: int, newest: int) -> Fields:
    """Return `fields` raised from `version` to `newest`, one version at a time. The argument is not changed.

    Raises:
        LookupError: No function leads up from one of the versions: there never was such a version.
    """
    for step in range(version, newest):
        raised = UPCASTS.get((event_type, step))
        if raised is None:
            raise LookupError(f"there is no version {step} of {event_type}")
        fields = raised(dict(fields)) | {"v": step + 1}
    return fields
