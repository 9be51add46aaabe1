"""What the service writes to standard error: one JSON document on each line, whoever speaks."""

from __future__ import annotations

import json
import subprocess
import sys

SPEAKERS = """
import logging
import structlog
from streamsched.service.app import configure_logs

configure_logs()
structlog.get_logger("ours").info("folded", cursor=7)
logging.getLogger("aiokafka.consumer").info("not of interest")
logging.getLogger("aiokafka.consumer").warning("the coordinator of %s is dead", "a group")
try:
    raise OSError("no route")
except OSError:
    logging.getLogger("faust").exception("gave up")
"""


def test_libraries_write_json_too() -> None:
    """A collector of logs reads every line alike, tracebacks too."""
    told = subprocess.run([sys.executable, "-c", SPEAKERS], capture_output=True, text=True, check=True).stderr

    ours, warning, failure = map(json.loads, told.splitlines())
    assert (ours["event"], ours["level"], ours["cursor"]) == ("folded", "info", 7)
    assert (warning["event"], warning["level"]) == ("the coordinator of a group is dead", "warning")
    assert warning["logger"] == "aiokafka.consumer"
    assert failure["event"] == "gave up"
    assert "OSError: no route" in failure["exception"]
    assert all("timestamp" in line for line in (ours, warning, failure))
