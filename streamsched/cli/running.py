"""What takes its time: services until they are told to stop, and folds of long ledgers that say how far they are."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from streamsched.cli.moments import Moment
from streamsched.cli.places import open_recorded, until_cursor
from streamsched.cli.screens import console
from streamsched.ledgers.archive import archive_ledger
from streamsched.replay.answers import Summary, summary
from streamsched.replay.audit import Audit, audited_state
from streamsched.replay.replayer import Progress
from streamsched.replay.verify import Verification, Verifier

if TYPE_CHECKING:
    from streamsched.embedded.app import Started


class Replayed(BaseModel):
    """The account of a ledger, the state it leads to, and what deciding again came to where that was asked for."""

    model_config = ConfigDict(frozen=True)

    audit: Audit
    state: Summary
    verification: Verification | None = None


class Archived(BaseModel):
    """An archive after a copy."""

    model_config = ConfigDict(frozen=True)

    records: int
    directory: str


async def replayed(ledger: str, at: Moment | None, progress: Progress, *, verify: bool = False) -> Replayed:
    """Fold a ledger up to a moment, or whole; decide again on the way where that is asked for."""
    opened = await open_recorded(ledger)
    try:
        verifier = await Verifier.of(opened) if verify else None
        account, state = await audited_state(
            opened,
            until_cursor=await until_cursor(opened, at),
            at_ms=at.at_ms if at is not None else None,
            observers=() if verifier is None else (verifier.observe,),
            progress=progress,
        )
        verification = None if verifier is None else await verifier.close(opened)
        return Replayed(audit=account, state=summary(state), verification=verification)
    finally:
        await opened.close()


async def archived(ledger: str, directory: Path) -> int:
    """Copy a ledger into an archive; return how many records that holds."""
    opened = await open_recorded(ledger)
    try:
        return await archive_ledger(opened, directory)
    finally:
        await opened.close()


@contextmanager
def folding() -> Iterator[Progress]:
    """Show on a terminal how many records have been folded; nothing in a pipe."""
    columns = (SpinnerColumn(), TextColumn("folded {task.completed} records"), TimeElapsedColumn())
    terminal = console(stderr=True)
    with Bar(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("fold", total=None)
        yield lambda records: bar.update(task, completed=records)


def folded(records: int) -> None:
    """Say how far a restart has come, for those who wait for a long ledger."""
    if records and records % 100_000 == 0:
        console(stderr=True).print(f"folded {records} records")


def told_up(started: Started) -> None:
    """Say that the embedded service answers, and what to do next."""
    before = f"went on after {started.records} records" if started.records else "new"
    nodes = f"{started.nodes} virtual with {started.gpus} GPUs"
    budgets = str(started.budgets)
    lines = [
        f"streamsched is up at {started.url}",
        f"  ledger   {started.ledger}, {before}",
        f"  nodes    {nodes if started.nodes else _NO_NODES}",
        f"  budgets  {budgets if started.budgets else _NO_BUDGETS}",
        *([f"  live     {started.live} workloads go on"] if started.live else []),
        "Stop with Ctrl-C. Ask with: streamsched jobs, streamsched shares, streamsched nodes",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


_NO_NODES = "none: start with --nodes 4x8 for four virtual ones of 8 GPUs"
_NO_BUDGETS = "none: start with --budget NAME=FRACTION, or run `streamsched budgets apply FILE`"


def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run until the work ends, or SIGTERM or SIGINT ask it to stop."""

    async def run() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    asyncio.run(run())
