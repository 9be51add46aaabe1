"""Recorded histories still lead to the recorded decisions, byte for byte, on any machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from streamsched.wire.codec import encode
from tests.replays.histories import HISTORIES, decide_again, fingerprint, read_history, transcript, write_history
from tests.replays.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_gives_its_history_and_transcript(name: str, request: pytest.FixtureRequest) -> None:
    """The same world gives the same ledger, and the words that a reviewer reads in a diff."""
    records = SCENARIOS[name]()
    history, words = HISTORIES / f"{name}.jsonl", HISTORIES / f"{name}.transcript"
    if request.config.getoption("--update-transcripts"):
        history.write_bytes(write_history(records))
        words.write_text(transcript(records), encoding="utf-8")

    assert transcript(records) == words.read_text(encoding="utf-8")
    assert write_history(records) == history.read_bytes()


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_recorded_proposal_is_decided_again(name: str) -> None:
    """Folded up to a proposal, the core decides the same bytes."""
    pairs = list(decide_again(read_history(HISTORIES / f"{name}.jsonl")))

    assert len(pairs) > 5
    for recorded, derived in pairs:
        assert derived is not None
        assert encode(derived) == encode(recorded)


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "0"},
        {"PYTHONHASHSEED": "1"},
        {"PYTHONHASHSEED": "4711"},
        {"PYTHONHASHSEED": "2", "NPY_DISABLE_CPU_FEATURES": "X86_V4,X86_V3,AVX512F,AVX2,FMA3"},
    ],
    ids=lambda environment: ",".join(environment.values()),
)
def test_hash_seeds_and_processors_decide_nothing(environment: Mapping[str, str]) -> None:
    """The order of sets and the width of vectors differ; proposals and digests do not."""
    paths = [HISTORIES / f"{name}.jsonl" for name in SCENARIOS]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.replays.histories", *map(str, paths)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [fingerprint(path) for path in paths]
