"""Sizes of teams, which their quotas are in proportion to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from streamsched.errors import ConfigurationError
from streamsched.simulation.demand import DroppedRow
from streamsched.simulation.traces.rows import is_count, table_rows, team

#: Nodes of 8 GPUs of Philly's virtual clusters: S-Lab-System-Group/HeliosArtifact (MIT; Q. Hu et al., SC 2021),
#: `framework/QSSF Service/data/philly_vc.csv`.
PHILLY_VC_NODES: Final[Mapping[str, int]] = {
    "6214e9": 64,
    "7f04ca": 32,
    "11cb48": 16,
    "b436b2": 64,
    "ee9e8c": 64,
    "e13805": 16,
    "6c71a0": 32,
    "2869ce": 16,
    "ed69ec": 8,
    "103959": 8,
    "0e4a51": 32,
}


def read_sizes(path: Path, day: str | None = None) -> dict[str, int]:
    """Read the sizes of teams from a CSV file: of each a name and a number, or the daily GPUs of Helios' VCs.

    Args:
        path: The file, with a header. Of a table by day the first column is ``date`` and the others are teams.
        day: Of a table by day the row that counts, such as ``2020-05-01``: it, or the last one before it; the first
            row where there is none.

    Raises:
        ConfigurationError: It cannot be read, or is no such list.
    """
    rows = table_rows(path)
    _, header = next(rows, (1, []))
    if isinstance(header, DroppedRow) or len(header) < 2 or (len(header) != 2 and header[0] != "date"):
        there = header.reason if isinstance(header, DroppedRow) else header
        raise ConfigurationError(
            f"{path} has the columns {there}; a list of VC sizes has a name and a number of nodes, or a date and a "
            "column for each VC"
        )
    sizes: dict[str, int] = {}
    for line, row in rows:
        if isinstance(row, DroppedRow) or not all(is_count(field) for field in row[1:]):
            raise ConfigurationError(f"{path}, line {line}: {row!r} is no VC and number of nodes, such as 6214e9,64")
        if header[0] != "date":
            sizes[_named(row[0], path, line)] = int(row[1])
        elif not sizes or (day is not None and row[0] <= day):
            sizes = {
                _named(name, path, line): int(gpus)
                for name, gpus in zip(header[1:], row[1:], strict=True)
                if name != "total" and int(gpus)
            }
    return sizes


def first_sizes(path: Path) -> dict[str, int]:
    """Return the GPUs of each VC in its first sample of a Helios sequence; those that are no number count nothing."""
    rows = table_rows(path)
    _, header = next(rows, (1, []))
    sizes: dict[str, int] = {}
    if isinstance(header, DroppedRow):
        return sizes
    vc, gpus = header.index("vc"), header.index("total_gpu_num")
    for _, row in rows:
        if not isinstance(row, DroppedRow) and is_count(row[gpus]):
            try:
                sizes.setdefault(team("vc", row[vc]), int(row[gpus]))
            except ValueError:
                continue
    return sizes


def _named(name: str, path: Path, line: int) -> str:
    try:
        return team("vc", name)
    except ValueError as error:
        raise ConfigurationError(f"{path}, line {line}: {error}; such as 6214e9,64") from None
