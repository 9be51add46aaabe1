"""One history, folded and decided in processes that hash strings differently."""

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]

#: Plays some thousand records; the decisions among them are made on the way, so the last line depends on all of them.
PLAYED = """
from hashlib import sha256
from random import Random
from streamsched.model.events import RoundProposed, Unreadable
from streamsched.state.snapshot import digest
from streamsched.wire.codec import encode
from tests.properties.histories import play

random = Random(1)
history = play([random.randrange(1, 1 << 20) for _ in range(3_000)])
events = [record.event for record in history.records if not isinstance(record.event, Unreadable)]
proposals = b"".join(encode(event) for event in events if isinstance(event, RoundProposed))
print(len(history.records), sha256(proposals).hexdigest(), digest(history.state))
"""


def test_equal_decisions_and_digests_under_other_hash_seeds() -> None:
    """Nothing is chosen by the order of a set of strings: proposals and states are equal, byte for byte."""
    folding = [
        subprocess.Popen(
            [sys.executable, "-c", PLAYED],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "20261130")
    ]
    lines = {process.communicate()[0] for process in folding}
    assert [process.returncode for process in folding] == [0, 0, 0]
    assert len(lines) == 1
    assert int(lines.pop().split()[0]) > 2_000
