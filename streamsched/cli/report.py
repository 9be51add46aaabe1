"""The command that shows what recorded ledgers came to: a report, and the same as pictures, traces and tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamsched.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamsched.model.ledger import Ledger
    from streamsched.replay.replayer import Progress
    from streamsched.reporting.runs import ReportedRun


def report(
    ledgers: Annotated[
        list[str],
        typer.Argument(
            metavar="LEDGER...",
            help="SQLite files, archives, data directories of `streamsched up`, or kafka://HOST:PORT/PREFIX. The first "
            "is the baseline.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the HTML page goes.")] = Path("report.html"),
    name: Annotated[
        list[str] | None,
        typer.Option(help="What a ledger is called in the report; once for each, in their order."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Count nothing before this; a whole hour. A cluster must first fill."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Read nothing after this.")] = None,
    title: Annotated[str | None, typer.Option(help="The heading of the page.")] = None,
    pictures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write every picture there, as PNG and SVG.")
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write who sat where as a trace for Perfetto; .gz is deflated."),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write workloads, runs and hours as Parquet. Needs pyarrow."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what recorded ledgers came to: one page that opens offline, each ledger beside the first.

    The figures are defined in `streamsched/simulation/OUTCOMES.md`.

    JSON: `{"report", "runs": [{"name", "outcomes"}]}`.

    Examples: `streamsched report streamsched-data --out week.html`,
    `streamsched report old.sqlite new.sqlite --name before --name after --pictures pictures --perfetto trace.json.gz`
    """
    import json

    from streamsched.cli.moments import instant_ms
    from streamsched.cli.running import folding
    from streamsched.errors import ConfigurationError
    from streamsched.model.quantities import HOUR
    from streamsched.reporting.perfetto import write_perfetto
    from streamsched.reporting.pictures import write_pictures
    from streamsched.reporting.report import ReportText, write_report
    from streamsched.reporting.tables import write_tables

    since_ms = 0 if since is None else instant_ms(since, "--since")
    if since_ms % HOUR:
        raise typer.BadParameter(f"{since!r} is no whole hour; due time is counted by the hour.", param_hint="--since")
    until_ms = None if until is None else instant_ms(until, "--until")
    names = _names(ledgers, name or [])
    with folding() as progress:
        runs = [
            _run(ledger, called, since_ms, until_ms, progress) for ledger, called in zip(ledgers, names, strict=True)
        ]
    text = ReportText(
        title=title or f"What {', '.join(names)} came to",
        commands=[f"streamsched replay {ledger} --verify" for ledger in ledgers],
    )
    written: list[Path] = [out]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_report(out, runs, text)
        if pictures is not None:
            write_pictures(pictures, runs)
            written.append(pictures)
        if perfetto is not None:
            write_perfetto(perfetto, runs)
            written.append(perfetto)
        if tables is not None:
            for run in runs:
                write_tables(tables if len(runs) == 1 else tables / run.name, run)
            written.append(tables)
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename}: {error.strerror}; name another place") from error
    if as_json:
        outcomes = [{"name": run.name, "outcomes": run.outcomes.as_json()} for run in runs]
        typer.echo(json.dumps({"report": str(out), "runs": outcomes}))
    else:
        _show(runs, written)


def _names(ledgers: Sequence[str], given: Sequence[str]) -> list[str]:
    """Return what the ledgers are called: as it was given, or by the last part of where they lie if that tells them."""
    if given:
        if len(given) != len(ledgers) or len(set(given)) < len(given):
            raise typer.BadParameter(
                f"{len(given)} names for {len(ledgers)} ledgers; give each its own, in their order.",
                param_hint="--name",
            )
        return list(given)
    if len(set(ledgers)) < len(ledgers):
        raise typer.BadParameter("a ledger is named twice; give both a --name.", param_hint="LEDGER...")
    short = [Path(ledger).stem or ledger for ledger in ledgers]
    return short if len(set(short)) == len(short) else list(ledgers)


def _run(address: str, name: str, since_ms: int, until_ms: int | None, progress: Progress) -> ReportedRun:
    import asyncio

    from streamsched.cli.places import open_recorded

    async def folded() -> ReportedRun:
        ledger = await open_recorded(address)
        try:
            return await _folded(ledger, name, since_ms, until_ms, progress)
        finally:
            await ledger.close()

    return asyncio.run(folded())


async def _folded(ledger: Ledger, name: str, since_ms: int, until_ms: int | None, progress: Progress) -> ReportedRun:
    from streamsched.errors import RequestError
    from streamsched.model.quantities import format_instant
    from streamsched.replay.replayer import fold
    from streamsched.reporting.runs import RunRecorder

    recorder = RunRecorder(from_ms=since_ms)
    state = await fold(ledger, at_ms=until_ms, observe=recorder, progress=progress)
    if not state.next_cursor:
        raise RequestError("not_found", f"{name} has no record by then: there is nothing to report.")
    if state.now_ms < since_ms:
        last = format_instant(state.now_ms)
        raise RequestError("not_found", f"{name} ends at {last}, before --since: there is nothing to report.")
    return recorder.run(name, state, until_ms=until_ms if until_ms is not None else state.now_ms)


def _show(runs: Sequence[ReportedRun], written: Sequence[Path]) -> None:
    from streamsched.cli.screens import console
    from streamsched.reporting.terminal import comparison_tables, outcome_tables

    screen = console()
    screen.print(outcome_tables(runs[0].outcomes) if len(runs) == 1 else comparison_tables(runs))
    for path in written:
        screen.print("\nwritten ", str(path), soft_wrap=True, end="")
    screen.print()
