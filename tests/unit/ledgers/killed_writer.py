"""Run as a program: append to a ledger, eight at a time, saying each cursor once it is acknowledged, until killed.

python killed_writer.py sqlite|archive PATH
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from streamsched.ledgers.archive import ArchiveLedger
from streamsched.ledgers.sqlite import SqliteLedger
from streamsched.model.ledger import Ledger


def data_of(cursor: int) -> bytes:
    """What the writer's record at a cursor is: cursor and a tail of bytes that are no text."""
    return b"%d " % cursor + bytes([255 - cursor % 256]) * (cursor % 700)


async def main(kind: str, path: Path) -> None:
    """Append for ever."""
    ledger: Ledger
    if kind == "sqlite":
        ledger = await SqliteLedger.open(path)
    else:
        ledger = await ArchiveLedger.open(path, readonly=False, records_per_segment=150)
    while True:
        first = await ledger.end()
        for entry in await asyncio.gather(*(ledger.append(data_of(first + ahead)) for ahead in range(8))):
            os.write(1, b"%d\n" % entry.cursor)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
