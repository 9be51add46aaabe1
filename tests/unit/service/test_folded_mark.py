"""Does a scheduler remember how far it has folded, so that it sees a ledger that was cut short?"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamsched.errors import ConfigurationError, LedgerTruncatedError
from streamsched.service.folded_mark import FoldedMark


def test_the_mark_survives_and_never_goes_back(tmp_path: Path) -> None:
    """A lower number is that of a fold under way, not of a shorter ledger."""
    path = tmp_path / "data" / "mark"
    mark = FoldedMark(path)
    mark.reach(10)
    mark.reach(7)

    assert FoldedMark(path).folded == 10


def test_a_ledger_that_ends_before_the_mark_is_refused(tmp_path: Path) -> None:
    """One that ends at it is whole."""
    mark = FoldedMark(tmp_path / "mark")
    mark.reach(10)

    mark.check(10)
    with pytest.raises(LedgerTruncatedError, match="ends at cursor 9, but cursor 10"):
        mark.check(9)


def test_a_damaged_mark_is_not_taken_for_none(tmp_path: Path) -> None:
    """To guess would be to accept a truncated ledger."""
    (tmp_path / "mark").write_text("12x")

    with pytest.raises(ConfigurationError, match="which is no number of records"):
        FoldedMark(tmp_path / "mark")
