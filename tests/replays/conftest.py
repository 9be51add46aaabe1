"""The option that records histories and transcripts anew."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-transcripts``."""
    parser.addoption(
        "--update-transcripts",
        action="store_true",
        help="record the histories of tests/replays anew, with their transcripts; then read the diff",
    )
