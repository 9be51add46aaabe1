"""How a part of the service dies: at once, and with nothing acknowledged.

Faust acknowledges and commits the event in whose handling an exception was raised, and goes on with the next: the
event would be lost without a trace. `os._exit` is the only stop after which it comes again.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import structlog

#: ``EX_SOFTWARE``: something that must not happen. A supervisor starts the process again.
EXIT_FAIL_STOP = 70

_log = structlog.get_logger(__name__)


def fail_stop(happened: str, error: BaseException | None = None, **facts: object) -> NoReturn:
    """Log one critical line and end the process without clean-up, so that what is in hand is delivered again."""
    _log.critical(happened, exit=EXIT_FAIL_STOP, exc_info=error, **facts)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_FAIL_STOP)
