"""Virtual nodes as people type them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from streamsched.errors import RequestError
from streamsched.model.identifiers import DomainId, NodeId, PoolId
from streamsched.model.topology import MAX_LEVELS
from streamsched.node.virtual_node import NodeSpec

_FLEET = re.compile(r"([1-9]\d{0,4})x(\d{1,2})(?::([^@]+))?(?:@(.+))?")
_POOL: TypeAdapter[str] = TypeAdapter(PoolId)
_NODE: TypeAdapter[str] = TypeAdapter(NodeId)
_DOMAINS: TypeAdapter[tuple[str, ...]] = TypeAdapter(Annotated[tuple[DomainId, ...], Field(max_length=MAX_LEVELS)])


def parse_fleets(texts: Sequence[str], pool: str, prefix: str) -> tuple[NodeSpec, ...]:
    """Read texts such as ``4x8``, ``2x4:a100`` or ``2x8@s1/r1`` as nodes that are numbered from 1.

    Args:
        texts: COUNTxGPUS[:POOL][@DOMAIN/DOMAIN...] each, domains coarse to fine.
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
                "invalid",
                f"--nodes is {text!r}; write COUNTxGPUS or COUNTxGPUS:POOL with 1 to 16 GPUs, such as 4x8, and "
                "@DOMAIN/DOMAIN after it for where they are.",
            )
        kind = match[3] or pool
        try:
            _POOL.validate_python(kind)
        except ValidationError:
            raise RequestError(
                "invalid", f"{kind!r} is no name of a pool; write letters and digits, such as h100."
            ) from None
        try:
            domains = _DOMAINS.validate_python(tuple(match[4].split("/")) if match[4] else ())
        except ValidationError:
            raise RequestError(
                "invalid",
                f"--nodes is {text!r}; after @ write 1 to {MAX_LEVELS} names of domains, such as s1/r1.",
            ) from None
        for _ in range(int(match[1])):
            specs.append(NodeSpec(f"{prefix}-{len(specs) + 1}", kind, int(match[2]), domains))
    try:
        _NODE.validate_python(specs[-1].node)
    except ValidationError:
        raise RequestError(
            "invalid", f"--name is {prefix!r}; write letters, digits, '.', '_' and '-', such as rack-a."
        ) from None
    return tuple(specs)
