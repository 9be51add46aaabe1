"""Every exception streamsched raises, as one tree.

StreamschedError
├── ConfigurationError          settings, topics or policy, wrong before we started
├── WireError                   bytes we cannot read
│   └── UnsupportedVersionError     written by a newer streamsched: roll the readers forward first
├── LedgerError
│   ├── LedgerUnavailableError      the store did not answer; what was being written is in doubt
│   ├── LedgerClosedError           used after it was closed
│   ├── RecordTooLargeError         more bytes than the store takes in one record; nothing was written
│   ├── LedgerGapError              a cursor is missing: the history is not whole
│   ├── LedgerTruncatedError        the ledger ends before a cursor that we have seen
│   └── LedgerCorruptError          stored bytes do not match their hash
├── StoreError                  a node agent cannot keep what it must not forget
├── RequestError                what a client asked for cannot be taken; nothing was written
├── UnreachableError            the service or the broker did not answer
├── ReplayDivergenceError       a fold disagrees with a recorded digest
└── InvariantError              a bug of ours; stop rather than schedule on a wrong state
"""

from __future__ import annotations


class StreamschedError(Exception):
    """What every error of streamsched is."""


class ConfigurationError(StreamschedError):
    """Settings, topics or policy are wrong; nothing was started."""


class WireError(StreamschedError):
    """Bytes that are no event, command or report of ours.

    Attributes:
        code: Which kind of refusal, a word of `streamsched.wire.refusals.RefusalCode`; for metrics and `Rejected`.
        reason: The field, the value and the remedy, in words; fit to be sent back as a `Reason`.
        workload: The workload that the bytes spoke of, as far as that could be read.
    """

    def __init__(self, code: str, reason: str, workload: str | None = None) -> None:
        super().__init__(reason)
        self.code, self.reason, self.workload = code, reason, workload


class UnsupportedVersionError(WireError):
    """An event written by a newer streamsched than this one."""

    def __init__(self, event_type: str, version: int, known: int, workload: str | None = None) -> None:
        super().__init__(
            "unsupported_version",
            f"{event_type} has version {version}, and this streamsched knows versions up to {known}. "
            "Upgrade this reader before the writers.",
            workload,
        )
        self.event_type, self.version, self.known = event_type, version, known


class LedgerError(StreamschedError):
    """The ledger cannot be read or written as it must be."""


class LedgerUnavailableError(LedgerError):
    """The store did not confirm a write; the record may or may not be in the ledger."""


class LedgerClosedError(LedgerError):
    """A ledger was used after it had been closed."""

    def __init__(self, ledger: str) -> None:
        super().__init__(f"{ledger} is closed. Open it again to use it.")
        self.ledger = ledger


class RecordTooLargeError(LedgerError):
    """A record has more bytes than the store takes. Nothing was written, and the ledger can be used further."""

    def __init__(self, size_bytes: int, limit_bytes: int, remedy: str) -> None:
        super().__init__(f"a record of {size_bytes} bytes was refused: at most {limit_bytes} fit. {remedy}")
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class LedgerGapError(LedgerError):
    """A cursor is missing."""

    def __init__(self, expected: int, found: int) -> None:
        super().__init__(
            f"the ledger jumps from cursor {expected} to {found}: {found - expected} records are missing. "
            "The history is not whole; restore the ledger from its archive."
        )
        self.expected, self.found = expected, found


class LedgerTruncatedError(LedgerError):
    """The ledger ends before a cursor that was seen before."""

    def __init__(self, seen: int, end: int) -> None:
        super().__init__(
            f"the ledger ends at cursor {end}, but cursor {seen} was reached before: records were lost. "
            "Nothing is decided on a truncated history; restore the ledger from its archive."
        )
        self.seen, self.end = seen, end


class LedgerCorruptError(LedgerError):
    """Stored bytes do not match the hash that was stored with them."""


class StoreError(StreamschedError):
    """A node agent cannot write down what it must not forget, so it does nothing more."""


class RequestError(StreamschedError):
    """A request is malformed, or asks for something that is not there. Nothing was written.

    Attributes:
        code: A word from a closed list, for programs.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class UnreachableError(StreamschedError):
    """The service or the broker did not answer, or not in time. A request that was sent may have been taken."""


class ReplayDivergenceError(StreamschedError):
    """A fold of the ledger differs from the digest that a scheduler recorded."""

    def __init__(self, cursor: int, recorded: str, derived: str) -> None:
        super().__init__(
            f"the state after cursor {cursor} has the digest {derived[:16]}, but {recorded[:16]} was recorded: "
            f"the fold is no longer what it was. Compare with `streamsched replay LEDGER --at {cursor}` of the build "
            "that recorded it."
        )
        self.cursor, self.recorded, self.derived = cursor, recorded, derived


class InvariantError(StreamschedError):
    """Something that must always hold does not. A bug of ours."""
