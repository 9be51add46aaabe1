"""Histories as files: one ledger record a line, its event in canonical JSON; and what was decided, in words."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from streamsched.model.commands import Effects, Place, Stop
from streamsched.model.events import Record, RoundProposed, Unreadable
from streamsched.model.ledger import Entry
from streamsched.model.quantities import format_duration
from streamsched.scheduling.decision import decide
from streamsched.state.cluster import ClusterState
from streamsched.state.snapshot import digest
from streamsched.wire.codec import encode, read

HISTORIES = Path(__file__).parents[2] / "replay" / "histories"


def write_history(records: Iterable[Record]) -> bytes:
    """Return a history's file."""
    lines = []
    for record in records:
        if isinstance(record.event, Unreadable):
            raise TypeError(f"cursor {record.cursor} has no event")
        event = encode(record.event).decode()
        lines.append(f'{{"cursor":{record.cursor},"append_ms":{record.append_ms},"event":{event}}}\n')
    return "".join(lines).encode()


def read_history(path: Path) -> Iterator[Record]:
    """Yield the records of a history's file, decoded from the very bytes that a ledger would hold."""
    for line in path.read_bytes().splitlines():
        fields = orjson.loads(line)
        data = orjson.dumps(fields["event"], option=orjson.OPT_SORT_KEYS)
        yield read(Entry(fields["cursor"], fields["append_ms"], data))


def decide_again(records: Iterable[Record]) -> Iterator[tuple[RoundProposed, RoundProposed | None]]:
    """Yield each proposal that closed a round with what the core decides there now, envelope apart."""
    state = ClusterState()
    for record in records:
        event = record.event
        if isinstance(event, RoundProposed) and event.round == state.closed_round + 1:
            yield event, decide(state)
        state.apply(record)


def transcript(records: Iterable[Record]) -> str:
    """Return what happened to whom, one line each, and the digest at the end."""
    state = ClusterState()
    lines = [f"{'cursor':>6}  {'after':>8}  {'verdict':<10} {'workload':<10} {'gpus':>4}  because"]
    begin: int | None = None
    for record in records:
        before = dict(state.finished)
        effects = state.apply(record)
        begin = state.now_ms if begin is None else begin
        lines += [
            f"{record.cursor:>6}  {format_duration(state.now_ms - begin):>8}  {line}"
            for line in _lines(state, effects, [end for end in state.finished if end not in before])
        ]
    lines.append(f"digest {digest(state)} after {state.next_cursor} records")
    return "\n".join(lines) + "\n"


def _lines(state: ClusterState, effects: Effects, ended: list[str]) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for command in effects.commands:
        if (command.type, command.workload) in seen:
            continue
        seen.add((command.type, command.workload))
        workload = state.workloads.get(command.workload)
        gpus = workload.gpus if workload is not None else 0
        same = [other for other in effects.commands if (other.type, other.workload) == (command.type, command.workload)]
        where = ", ".join(other.node for other in same)
        if isinstance(command, Place):
            yield f"{'placed':<10} {command.workload:<10} {gpus:>4}  attempt {command.attempt} on {where}"
        elif isinstance(command, Stop):
            whom = f" for {command.beneficiary}" if command.beneficiary else ""
            yield f"{'stops':<10} {command.workload:<10} {gpus:>4}  {command.reason}{whom} on {where}"
    for name in effects.workloads:
        workload = state.workloads.get(name)
        if workload is not None and workload.phase == "planned":
            awaited = sum(mask.bit_count() for mask in workload.run.awaited.values()) if workload.run else 0
            yield f"{'displaces':<10} {name:<10} {workload.gpus:>4}  waits for {awaited} GPUs to be released"
        elif workload is not None and workload.phase == "queued" and workload.requeued:
            yield f"{'requeued':<10} {name:<10} {workload.gpus:>4}  after attempt {workload.attempt}"
    for name in ended:
        yield f"{state.finished[name].phase:<10} {name:<10} {'':>4}  {state.finished[name].reason}"


def fingerprint(path: Path) -> str:
    """Return a digest over every proposal that the core derives from a history, and over the state at its end."""
    records = list(read_history(path))
    summed = hashlib.sha256()
    for _, derived in decide_again(records):
        summed.update(b"nothing" if derived is None else encode(derived))
    state = ClusterState()
    for record in records:
        state.apply(record)
    summed.update(digest(state).encode())
    return summed.hexdigest()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stdout.write(f"{fingerprint(Path(name))}\n")
