"""Measure everything, print it, and write `RESULTS.md`. Ends with 1 if a limit is missed."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from tests import brokers
from tests.benchmarks import core, results, round_trip, simulations, stores, topology
from tests.benchmarks.measuring import Result


def main() -> int:
    """Return the exit code."""
    # A new topic has no leader at first, and aiokafka says so each time it tries again.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    commit = results.commit_measured()
    sections: dict[str, list[Result]] = {}
    _tell(sections, "The core", core.measure())
    _tell(sections, "Topology", topology.measure())
    _tell(sections, "Simulations", simulations.measure())
    _tell(sections, "The codec", stores.measure_codec())
    with tempfile.TemporaryDirectory() as directory:
        try:
            broker = brokers.shared_broker(Path(directory))
        except brokers.PrerequisiteError as missing:
            print(f"There is no Kafka to measure: {missing}", file=sys.stderr)
            return 1
        try:
            asyncio.run(_tell_live(sections, broker, Path(directory)))
        finally:
            broker.release()
    results.write(sections, broker=broker.provider, commit=commit)
    print(f"\nWritten to {results.PAGE}")
    missed = [result.what for found in sections.values() for result in found if not result.is_met]
    for what in missed:
        print(f"A limit is missed: {what}", file=sys.stderr)
    return 1 if missed else 0


async def _tell_live(sections: dict[str, list[Result]], broker: brokers.Broker, directory: Path) -> None:
    heading = "The round trip on Kafka"
    _tell(sections, heading, await _all(round_trip.measure(broker.bootstrap, directory)))
    _tell(sections, "The ledgers", await _all(stores.measure_ledgers(directory, broker.bootstrap)))


async def _all(found: AsyncIterator[Result]) -> list[Result]:
    return [result async for result in found]


def _tell(sections: dict[str, list[Result]], heading: str, found: Iterable[Result]) -> None:
    print(f"\n{heading}")
    kept = sections[heading] = []
    for result in found:
        kept.append(result)
        print(f"  {result.what}: {results.shown(result)}  {results.verdict(result)}".rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
