"""What a node agent must not forget, in one SQLite file: the record of each node, and how far commands were read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError

from streamsched.errors import ConfigurationError, StoreError
from streamsched.node.virtual_node import NodeRecord


class NodeStore:
    """Node records and read positions, changed together or not at all.

    A position is saved with what the commands before it led to, so a command is either obeyed and remembered, or it
    is read again. Commits reach the disk before they return.
    """

    def __init__(self, directory: Path) -> None:
        """Open the store in a directory, which is created when it is missing.

        Raises:
            ConfigurationError: The directory cannot be used, or another agent uses it.
        """
        self._path = path = directory / "nodes.sqlite"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=0, isolation_level=None)
            # Exclusive: two agents that both think they are these nodes would obey every command twice.
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("CREATE TABLE IF NOT EXISTS nodes (node TEXT PRIMARY KEY, record TEXT NOT NULL)")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS positions (partition INTEGER PRIMARY KEY, position INTEGER NOT NULL)"
            )
            self._database.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(
                f"the node agent cannot keep its state in {directory} ({error}); "
                "give it a directory of its own that it may write, and run one agent on it"
            ) from error

    def records(self) -> dict[str, NodeRecord]:
        """Return the record of every node that has one.

        Raises:
            ConfigurationError: A record cannot be read.
        """
        rows = self._database.execute("SELECT node, record FROM nodes").fetchall()
        try:
            return {node: NodeRecord.model_validate_json(record) for node, record in rows}
        except ValidationError as error:
            raise ConfigurationError(
                f"the state directory holds a node record that this streamsched cannot read ({error}); "
                "start the agent that wrote it, or give this one an empty directory: its runs will count as lost"
            ) from error

    def positions(self) -> dict[int, int]:
        """Return the next offset to read, by partition of the command topic."""
        return dict(self._database.execute("SELECT partition, position FROM positions").fetchall())

    def save(self, records: Iterable[NodeRecord], positions: Mapping[int, int]) -> None:
        """Keep these records and positions, in place of those of the same nodes and partitions.

        Raises:
            StoreError: The disk is full, or fails. What was saved before is still there.
        """
        rows = [(record.node, record.model_dump_json(exclude_none=True)) for record in records]
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("INSERT OR REPLACE INTO nodes VALUES (?, ?)", rows)
            self._database.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?)", list(positions.items()))
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(
                f"what the nodes hold cannot be written to {self._path} ({error}). "
                "Make room on the disk, or repair it, and start again."
            ) from error

    def close(self) -> None:
        """Let another agent have the directory."""
        self._database.close()
