"""What a node agent must not forget: a disk that takes no more is said in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamsched.errors import StoreError
from streamsched.node.durable import NodeStore
from streamsched.node.virtual_node import VirtualNode


def test_a_full_disk_is_named_with_the_remedy(tmp_path: Path) -> None:
    """What was saved before is still there."""
    store = NodeStore(tmp_path)
    store.save([VirtualNode("n1").record()], {0: 7})
    store._database.execute("PRAGMA max_page_count = 1")  # As on a full disk: the file may not grow.

    with pytest.raises(StoreError, match=r"nodes\.sqlite.*full.*Make room"):
        store.save([VirtualNode(f"m{number}").record() for number in range(200)], {0: 8})
    store.close()

    again = NodeStore(tmp_path)
    assert list(again.records()) == ["n1"]
    assert again.positions() == {0: 7}
    again.close()
