"""Keep the ledger of a simulation in a file that replay, the command line and an auditor can open."""

from __future__ import annotations

from pathlib import Path

from streamsched.ledgers.sqlite import SqliteHistoryWriter
from streamsched.model.commands import Effects
from streamsched.model.events import Record, Unreadable
from streamsched.model.ledger import Entry
from streamsched.state.cluster import ClusterState
from streamsched.wire.codec import encode

#: Entries held back before they are written together.
_BATCH = 5_000


class HistoryKeeper:
    """An observer that writes every record, with its simulated append time, to a new SQLite ledger.

    Use it as a context manager: the file is whole once it is left. The cursors are those of the simulation, dense
    from 0.
    """

    def __init__(self, path: Path, cluster: str, since_ms: int) -> None:
        """Create the file.

        Args:
            path: Where; nothing may be there yet.
            cluster: The name of the cluster, which the file bears.
            since_ms: When the simulation begins.

        Raises:
            ConfigurationError: The file exists or cannot be created.
        """
        self._writer = SqliteHistoryWriter(path, cluster, since_ms)
        self._held: list[Entry] = []

    def __enter__(self) -> HistoryKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._writer.close()

    def __call__(self, record: Record, _effects: Effects, _state: ClusterState) -> None:
        cursor, append_ms, event = record
        if isinstance(event, Unreadable):
            raise TypeError(f"cursor {cursor} was made by a simulation and has no event")
        self._held.append(Entry(cursor, append_ms, encode(event)))
        if len(self._held) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        self._writer.write(self._held)
        self._held.clear()
