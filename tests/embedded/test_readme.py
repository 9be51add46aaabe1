"""What the README shows a researcher is what happens."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

from tests.embedded.processes import PATIENCE_SECONDS, run, up

README = Path(__file__).parents[2] / "README.md"


def shown_session() -> list[tuple[str, list[str]]]:
    """Return the commands of the README's console block, each with the lines that it shows."""
    match = re.search(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    session: list[tuple[str, list[str]]] = []
    for line in match[1].splitlines():
        if line.startswith("$ "):
            session.append((line.removeprefix("$ "), []))
        elif line:
            session[-1][1].append(line)
    return session


def blurred(line: str) -> str:
    """Return a line without its numbers and spaces: times, cursors and use differ each time."""
    return re.sub(r"[\d.]+", "N", line).replace(" ", "")


def test_the_session_of_the_readme(tmp_path: Path) -> None:
    """Each command succeeds, and says what the README says it does."""
    (first, _), *session = shown_session()
    program, verb, *arguments = shlex.split(first.removesuffix("&"))
    assert (program, verb) == ("streamsched", "up")
    with up(tmp_path, *arguments) as service:
        for command, lines in session:
            expected = {blurred(line) for line in lines}
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                done = run(*shlex.split(command)[1:], STREAMSCHED_FROM=service.url, COLUMNS="200")
                assert done.returncode == 0, done.stderr
                missing = expected - {blurred(line) for line in done.stdout.splitlines()}
                if not missing:
                    break
                # What was submitted a moment ago may not have started yet.
                assert time.monotonic() < deadline, f"{command} does not say {missing}, but:\n{done.stdout}"
                time.sleep(0.5)
