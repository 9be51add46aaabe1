"""Runs ``streamsched`` as people do: as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

#: How long a process may take to answer or to end; the machine may be busy.
PATIENCE_SECONDS = 60.0

_UP = re.compile(r"streamsched is up at (http://\S+)")
PROGRAM = (sys.executable, "-c", "from streamsched.cli import main; main()")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=_environment(environment),
    )


class Up:
    """A running ``streamsched up``."""

    def __init__(self, data: Path, arguments: Sequence[str] = ()) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [*PROGRAM, "up", "--data", str(data), "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment({}),
        )
        self.said: list[str] = []
        self.url = self._await_url()
        # What it says later must not fill the pipe.
        threading.Thread(target=self._drain, daemon=True).start()

    def _await_url(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if line.startswith("Stop with"):  # The last line of what it says when it is up.
                match = _UP.search(self.said[0])
                assert match is not None
                return match[1]
        _, errors = self.process.communicate(timeout=PATIENCE_SECONDS)
        pytest.fail(f"streamsched up ended with {self.process.returncode}: {errors}")

    def _drain(self) -> None:
        assert self.process.stdout is not None
        self.said.extend(self.process.stdout)

    def kill(self) -> None:
        """Let it die at once, as by ``kill -9``."""
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def up(data: Path, *arguments: str) -> Iterator[Up]:
    """Run ``streamsched up`` while the context is open."""
    service = Up(data, arguments)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.kill()
        for pipe in (service.process.stdout, service.process.stderr):
            assert pipe is not None
            pipe.close()


def eventually(holds: Callable[[], bool]) -> None:
    """Ask until it holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"not so after {PATIENCE_SECONDS:g} s")
        time.sleep(0.1)


def _environment(extra: dict[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STREAMSCHED_")}
    return {**inherited, "COLUMNS": "100", **extra}
