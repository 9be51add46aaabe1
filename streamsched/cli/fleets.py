"""Virtual nodes as people type them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from streamsched.errors import RequestError
from streamsched.model.identifiers import NodeId, PoolId
from streamsched.node.virtual_node import NodeSpec

_FLEET = re.compile(r"([1-9]\d{0,4})x(\d{1,2})(?::(.+))?")
_POOL: TypeAdapter[str] = TypeAdapter(PoolId)
_NODE: TypeAdapter[str] = TypeAdapter(NodeId)


def parse_fleets(texts: Sequence[str], pool: str, prefix: str) -> tuple[NodeSpec, ...]:
    """Read texts such as ``4x8`` or ``2x4:a100`` as nodes that are numbered from 1.

    Args:
        texts: COUNTxGPUS or COUNTxGPUS:POOL each.
        pool: The kind of GPU where a text names none.
        prefix: What the names begin with; a hyphen and the number follow.

    Raises:
        RequestError: Naming the text at fault, and what would be right.
    """
    specs: list[NodeSpec] = []
    for text in texts:
        match = _FLEET.fullmatch(text)
        if match is None or not 1 <= int(match[2]) <= 16:
            raise RequestError(
                "invalid", f"--nodes is {text!r}; write COUNTxGPUS or COUNTxGPUS:POOL with 1 to 16 GPUs, such as 4x8."
            )
        kind = match[3] or pool
        try:
            _POOL.validate_python(kind)
        except ValidationError:
            raise RequestError(
                "invalid", f"{kind!r} is no name of a pool; write letters and digits, such as h100."
            ) from None
        for _ in range(int(match[1])):
            specs.append(NodeSpec(f"{prefix}-{len(specs) + 1}", kind, int(match[2])))
    try:
        _NODE.validate_python(specs[-1].node)
    except ValidationError:
        raise RequestError(
            "invalid", f"--name is {prefix!r}; write letters, digits, '.', '_' and '-', such as rack-a."
        ) from None
    return tuple(specs)
