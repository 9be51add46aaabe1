"""Does the core keep away from the world? It has no clock, no randomness, no network, no logging and no await."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamsched

PACKAGE = Path(streamsched.__file__).parent
CORE = ("model", "state", "scheduling")

#: What would make two folds of one history differ, or make the core wait, or tie it to a shell.
WORLDLY = frozenset(
    {
        "aiokafka",
        "asyncio",
        "datetime",
        "faust",
        "logging",
        "os",
        "random",
        "secrets",
        "socket",
        "structlog",
        "threading",
        "time",
        "uuid",
    }
)


def modules_of_the_core() -> list[Path]:
    return sorted(module for package in CORE for module in (PACKAGE / package).rglob("*.py"))


def imported_by(tree: ast.Module) -> Iterator[str]:
    """The top-level package of every import, wherever it stands in the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("module", modules_of_the_core(), ids=lambda module: str(module.relative_to(PACKAGE)))
def test_the_core_knows_no_world(module: Path) -> None:
    """No module of the core imports a clock, chance, the machine, or a shell's library; none of it awaits."""
    tree = ast.parse(module.read_text(encoding="utf-8"))

    assert WORLDLY.isdisjoint(imported_by(tree))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)]


def test_a_worldly_import_is_seen_wherever_it_stands() -> None:
    """The rule above looks inside functions and at submodules too."""
    tree = ast.parse("def f():\n    import os.path\n    from datetime import timezone\n")

    assert set(imported_by(tree)) == {"os", "datetime"}
