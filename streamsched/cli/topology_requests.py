"""What a gang asks of the topology, and where nodes are said to be, as people write it.

    --layer supernode                   the whole gang in one supernode, or it waits
    --layer rack=8                      ranks 0 to 7 in one rack, 8 to 15 in one rack, ...
    --layer rack=8:preferred            if that can be had now; otherwise in one domain of the next coarser level
    --group prefill=4x8@rack            four ranks of 8 GPUs in one rack,
    --group decode=16x2@rack=4,node=2   then sixteen of 2 GPUs: four in a rack, and two of those on a node

A file says the same with the names of `TopologyRequest`, in TOML or JSON::

    preference = "bandwidth_first"
    layers = [{level = "supernode"}, {level = "rack", ranks = 8, wish = "preferred"}]
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streamsched.errors import RequestError
from streamsched.model.topology import TopologyRequest, Wish
from streamsched.wire.refusals import refusal_of

_LAYER = re.compile(r"([^=:@,]+)(?:=(\d{1,6}))?(?::(\w+))?")
_GROUP = re.compile(r"([^=@]+)=(\d{1,6})(?:x(\d{1,2}))?(?:@(.+))?")


def topology_of(
    file: Path | None = None,
    *,
    layers: Sequence[str] = (),
    groups: Sequence[str] = (),
    preference: str | None = None,
    symmetric: bool = False,
    recovery: str | None = None,
) -> TopologyRequest | None:
    """Return the request that a file and options make; what an option says goes before the file. None for neither.

    Args:
        file: TOML, or JSON where its name ends in ``.json``.
        layers: ``LEVEL[=RANKS][:preferred]``, coarse to fine.
        groups: ``NAME=RANKS[xGPUS][@LAYER[,LAYER...]]``, in rank order.
        preference: A word of `Preference`.
        symmetric: See `TopologyRequest`.
        recovery: A word of `Recovery`.

    Raises:
        RequestError: Naming the option or the field at fault, and what would be right.
    """
    fields: dict[str, Any] = {} if file is None else _read(file)
    if layers:
        fields["layers"] = [_layer(text, "--layer") for text in layers]
    if groups:
        fields["groups"] = [_group(text) for text in groups]
    fields |= {
        name: value
        for name, value in (("preference", preference), ("symmetric", symmetric), ("recovery", recovery))
        if value
    }
    if not fields:
        return None
    try:
        return TopologyRequest.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        reason = refusal_of(error, TopologyRequest, "a topology request", None).reason
        raise RequestError("invalid", f"{file or 'topology'}: {reason}") from None


def _layer(text: str, where: str) -> dict[str, Any]:
    match = _LAYER.fullmatch(text.strip())
    if match is None or (match[3] is not None and match[3] not in set(Wish)):
        raise RequestError(
            "invalid",
            f"{where}: {text!r} is no layer; write LEVEL, LEVEL=RANKS or LEVEL=RANKS:preferred, such as rack=8.",
        )
    return {
        "level": match[1],
        "ranks": None if match[2] is None else int(match[2]),
        "wish": match[3] or Wish.REQUIRED.value,
    }


def _group(text: str) -> dict[str, Any]:
    match = _GROUP.fullmatch(text.strip())
    if match is None:
        raise RequestError(
            "invalid",
            f"--group is {text!r}; write NAME=RANKS, NAME=RANKSxGPUS or NAME=RANKSxGPUS@LAYER,..., such as "
            "decode=16x2@rack=4.",
        )
    inside = [] if match[4] is None else match[4].split(",")
    return {
        "name": match[1],
        "ranks": int(match[2]),
        "gpus_per_rank": None if match[3] is None else int(match[3]),
        "layers": [_layer(layer, f"--group {match[1]}") for layer in inside],
    }


def labels_of(
    nodes: Sequence[str], file: Path | None, *, domains: str | None, tree: str | None
) -> list[dict[str, Any]]:
    """Return where nodes are from now on, as the fields of `NodeLabels`.

    Args:
        nodes: Their names; all are put in the same place.
        file: Or one place for each node: a JSON list of objects with the keys node, domains and tree.
        domains: Coarse to fine, joined by ``/``; None for those that a node reports.
        tree: The tree; None for the one that a node reports.

    Raises:
        RequestError: Naming what is wrong, and what would be right.
    """
    if file is not None:
        if nodes or domains is not None or tree is not None:
            raise RequestError("invalid", "--file says where each node is; leave out nodes, --domains and --tree.")
        labels = _read(file, whole_list=True)
        return [{**label, "domains": _as_tuple(label.get("domains"))} for label in labels]
    if not nodes:
        raise RequestError("invalid", "no node is named; name at least one, or a file of them with --file.")
    path = None if domains is None else tuple(domains.split("/"))
    return [{"node": node, "tree": tree, "domains": path} for node in nodes]


def _as_tuple(domains: Any) -> Any:
    return tuple(domains) if isinstance(domains, list) else domains


def _read(file: Path, *, whole_list: bool = False) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("invalid", f"{file} cannot be read: {error}.") from error
    try:
        fields = json.loads(text) if whole_list or file.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if whole_list else "neither TOML nor JSON as its name says"
        raise RequestError("invalid", f"{file} is {'no ' if whole_list else ''}{kind}: {error}.") from error
    if whole_list and not (isinstance(fields, list) and all(isinstance(label, dict) for label in fields)):
        raise RequestError("invalid", f'{file} is no list of labels; write [{{"node": "n1", "tree": "a"}}, ...].')
    if not whole_list and not isinstance(fields, dict):
        raise RequestError("invalid", f'{file} holds no request; write lines such as: layers = [{{level = "rack"}}]')
    return fields
