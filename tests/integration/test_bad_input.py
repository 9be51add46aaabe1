"""Ten thousand mutated records through intake: each is taken or a dead letter, and the scheduler decides on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from aiokafka import ConsumerRecord

from streamsched.model.commands import Place
from streamsched.model.events import Rejected
from streamsched.state.cluster import ClusterState
from streamsched.wire import codec
from streamsched.wire.refusals import RefusalCode
from tests.brokers import Broker
from tests.integration.services import deployed, eventually
from tests.stories import budgets, node, submitted

pytestmark = pytest.mark.kafka

COUNT = 10_000
_ODD_VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 17, 2**31, 2**63, 2**64, -(2**70), 0.5, 1e300, "", " ", "a", "A" * 300, "n\x00ul", "é",
    "🚀", "../..", "a/b", "<x>", [], [[]], {}, {"a": 1}, ["x"] * 50,
)  # fmt: skip


def _flip(random: Random, data: bytes) -> bytes:
    """Change, drop, double or insert some bytes."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        where = random.randrange(len(changed) or 1)
        match random.randrange(4):
            case 0 if changed:
                changed[where] ^= 1 << random.randrange(8)
            case 1 if changed:
                del changed[where : where + random.randint(1, 20)]
            case 2:
                changed[where:where] = changed[where : where + random.randint(1, 20)]
            case _:
                changed[where:where] = random.randbytes(random.randint(1, 6))
    return bytes(changed)


def _retype(random: Random, data: bytes) -> bytes:
    """Give a field another value, take one away, or add one."""
    fields = json.loads(data)
    name = random.choice(sorted(fields))
    match random.randrange(4):
        case 0:
            del fields[name]
        case 1:
            fields["surprise"] = random.choice(_ODD_VALUES)
        case _:
            fields[name] = random.choice(_ODD_VALUES)
    return json.dumps(fields, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")


def _rewrite(random: Random, data: bytes) -> bytes:
    """Break the form: cut, nest, repeat, or write something that is no JSON."""
    match random.randrange(6):
        case 0:
            return data[: random.randrange(len(data))]
        case 1:
            return b"[" * random.randint(1, 5_000) + data
        case 2:
            return data.replace(b'"ranks":1', b'"ranks":1,"ranks":2')
        case 3:
            return data.replace(b":1", random.choice((b":NaN", b":Infinity", b":1e999", b":01", b":0x1", b":1.0")))
        case 4:
            return b"\xef\xbb\xbf" + data
        case _:
            return random.randbytes(random.randint(0, 200))


def mutations(seed: int) -> list[bytes]:
    """Ten thousand submissions, each spoilt in one way or another; some are left whole by chance."""
    random = Random(seed)
    spoilers: tuple[Callable[[Random, bytes], bytes], ...] = (_flip, _retype, _rewrite)
    return [
        random.choice(spoilers)(random, codec.encode(submitted(f"w{number}", ranks=1, gpus_per_rank=1)))
        for number in range(COUNT)
    ]


def origin(letter: ConsumerRecord) -> tuple[str, int]:
    """Where a dead letter came from, as its `Rejected` names it."""
    headers = dict(letter.headers)
    return f"workloads.v1/{int(headers['source.partition'])}", int(headers["source.offset"])


async def test_ten_thousand_spoilt_records(kafka: Broker, tmp_path: Path) -> None:
    """Every one is an event or a dead letter with a reason, in its place, and work that follows is placed."""
    spoilt = mutations(seed=20261130)
    with deployed(kafka.bootstrap, tmp_path) as deployment:
        await deployment.apply_topics()
        deployment.serve("intake")
        scheduler = deployment.serve("scheduler")
        await deployment.tell("control.v1", [("test", budgets(a=1.0))])
        await deployment.tell("node-reports.v1", [("n1", node("n1"))])
        await deployment.send("workloads.v1", [("one-partition", data) for data in spoilt])
        await deployment.tell("workloads.v1", [("one-partition", submitted("sentinel", gpus_per_rank=1))])

        state = ClusterState()

        async def settled() -> bool:
            await deployment.fold(state)
            return sum(position + 1 for position in state.sources.values()) == COUNT + 3

        await eventually(settled, "every record", patience_seconds=90)
        letters = await deployment.read("dead-letters.v1")
        rejected = [record.event for record in await deployment.records() if isinstance(record.event, Rejected)]

        assert state.gaps == []
        assert state.rejected == len(letters) == len(rejected)
        assert 0.5 * COUNT < len(letters) < COUNT
        assert {letter.value for letter in letters} <= set(spoilt)
        assert {(fact.src, fact.seq) for fact in rejected} == {origin(letter) for letter in letters}
        for fact in rejected:
            assert fact.code in set(RefusalCode)
            assert len(fact.reason) > 10
        known = {*state.workloads, *state.finished}
        assert "sentinel" in known

        async def placed() -> list[str]:
            commands = [codec.decode_command(record.value) for record in await deployment.read("commands.v1")]
            return [command.workload for command in commands if isinstance(command, Place)]

        assert len(await eventually(placed, "placements")) >= 1
        assert scheduler.popen.poll() is None
