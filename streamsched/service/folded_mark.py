"""How far a scheduler has folded, kept in a small file: what tells a truncated ledger from a short one."""

from __future__ import annotations

import os
from pathlib import Path

from streamsched.errors import ConfigurationError, LedgerTruncatedError


class FoldedMark:
    """The highest number of records that this replica has folded, ever."""

    def __init__(self, path: Path) -> None:
        """Read the file, or start at 0 when there is none.

        Raises:
            ConfigurationError: The file or its folder cannot be used.
        """
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text("ascii").strip() if path.exists() else "0"
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"{path} cannot be read: {error}. Set data_dir to a folder that can be written."
            ) from error
        if not text.isdecimal():
            raise ConfigurationError(
                f"{path} holds {text[:80]!r}, which is no number of records. Remove the file once you know why; "
                "without it a truncated ledger cannot be told."
            )
        self.folded = int(text)

    def check(self, end: int) -> None:
        """Refuse a ledger that ends before what was folded once.

        Raises:
            LedgerTruncatedError: It does.
        """
        if end < self.folded:
            raise LedgerTruncatedError(self.folded, end)

    def reach(self, folded: int) -> None:
        """Keep a higher mark, so that it survives a crash of the machine."""
        if folded <= self.folded:
            return
        self.folded = folded
        fresh = self._path.with_suffix(".new")
        with fresh.open("w", encoding="ascii") as file:
            file.write(f"{folded}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
