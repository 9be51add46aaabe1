"""Budget trees as people write them, in TOML or JSON.

A budget with a fraction of its parent is a leaf; a table is an inner budget, or a leaf of which more is to be said. Its
own fraction is its key ``fraction``; who may change it and what is below it, its key ``managers``; and how many GPUs it
may have at a time, its keys ``max_allocated_gpus`` and ``max_unallocated_gpus``::

    product = "40%"

    [research]
    fraction = "60%"
    managers = ["ana@example.org"]
    max_unallocated_gpus = 64
    llama = "1/2"
    vision = 0.35
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from streamsched.errors import RequestError
from streamsched.model.events import BudgetShare, BudgetTreeChanged
from streamsched.model.identifiers import Actor, BudgetId
from streamsched.model.quantities import parse_fraction

#: The keys of a budget's own fraction, of its managers and of its limits; no budget below another can have these names.
FRACTION = "fraction"
MANAGERS = "managers"
LIMITS = ("max_allocated_gpus", "max_unallocated_gpus")
_BUDGET: TypeAdapter[str] = TypeAdapter(BudgetId)
_MANAGERS: TypeAdapter[tuple[str, ...]] = TypeAdapter(Annotated[tuple[Actor, ...], Field(max_length=100)])


def read_budgets(path: Path) -> tuple[BudgetShare, ...]:
    """Read the tree in a file: JSON where its name ends in ``.json``, else TOML.

    Raises:
        RequestError: The file cannot be read, or does not describe a tree; the message names the place.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            "invalid", f"{path} cannot be read: {error}. Name a TOML or JSON file of budgets."
        ) from error
    try:
        # Numbers stay text, so that 0.1 is a tenth and not the nearest binary fraction.
        if path.suffix == ".json":
            tree = json.loads(text, parse_float=str, parse_int=str)
        else:
            tree = tomllib.loads(text, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise RequestError("invalid", f"{path} is neither TOML nor JSON as its name says: {error}.") from error
    if not isinstance(tree, dict):
        raise RequestError("invalid", f'{path} holds no budgets; write lines such as: research = "60%"')
    return _checked(tuple(_shares(tree, None, str(path))), str(path))


def parse_budgets(texts: Sequence[str]) -> tuple[BudgetShare, ...]:
    """Read ``NAME=FRACTION`` texts, such as ``research=60%`` and ``research/llama=1/2``, as a tree.

    Raises:
        RequestError: A text is none such, or they do not make a tree.
    """
    shares: list[BudgetShare] = []
    for text in texts:
        name, equals, fraction = text.partition("=")
        if not equals:
            raise RequestError("invalid", f"--budget is {text!r}; write NAME=FRACTION, such as research=60%.")
        shares.append(_share(name, fraction, "--budget"))
    return _checked(tuple(shares), "--budget")


def _shares(tree: Mapping[str, object], parent: str | None, where: str) -> Iterator[BudgetShare]:
    for name, value in tree.items():
        if name in (FRACTION, MANAGERS, *LIMITS) and parent is not None:
            continue
        path = name if parent is None else f"{parent}/{name}"
        if isinstance(value, Mapping):
            if FRACTION not in value:
                raise RequestError(
                    "invalid", f'{where}: budget {path!r} has children and no {FRACTION}; add {FRACTION} = "60%" to it.'
                )
            share = _share(path, value[FRACTION], where, value.get(MANAGERS, []))
            yield _limited(share, {name: value[name] for name in LIMITS if name in value}, where)
            yield from _shares(value, path, where)
        else:
            yield _share(path, value, where)


def _share(path: str, fraction: object, where: str, managers: object = ()) -> BudgetShare:
    try:
        _BUDGET.validate_python(path)
    except ValidationError:
        raise RequestError(
            "invalid",
            f"{where}: {path!r} is no name of a budget; write letters, digits, '.', '_' and '-', levels joined by '/'.",
        ) from None
    if isinstance(fraction, bool) or not isinstance(fraction, str | int):
        raise RequestError("invalid", f'{where}: budget {path!r} holds {fraction!r}; write 0.35, "35%" or "7/20".')
    try:
        names = _MANAGERS.validate_python(managers)
    except ValidationError:
        raise RequestError(
            "invalid",
            f"{where}: budget {path!r} has the managers {managers!r}; write a list of at most 100 names, such as "
            '["ana@example.org"].',
        ) from None
    try:
        return BudgetShare(budget=path, fraction_nano=parse_fraction(str(fraction)), managers=names)
    except ValueError as error:
        raise RequestError("invalid", f"{where}: budget {path!r}: {error}.") from None


def _limited(share: BudgetShare, limits: Mapping[str, object], where: str) -> BudgetShare:
    try:
        return BudgetShare.model_validate({**dict(share), **{name: _whole(limits[name]) for name in limits}})
    except ValueError:
        said = " and ".join(f"{name} = {limit!r}" for name, limit in limits.items())
        raise RequestError(
            "invalid", f"{where}: budget {share.budget!r} has {said}; write a whole number of GPUs, such as 64."
        ) from None


def _whole(limit: object) -> object:
    """Return the number that a text of digits is; anything else as it stands, to be refused."""
    return int(limit) if isinstance(limit, str) and limit.isdecimal() else limit


def _checked(shares: tuple[BudgetShare, ...], where: str) -> tuple[BudgetShare, ...]:
    if not shares:
        raise RequestError("invalid", f'{where} names no budget; write lines such as: research = "60%"')
    try:
        BudgetTreeChanged(change="check", reason="check", budgets=shares)
    except ValidationError as error:
        message = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise RequestError("invalid", f"{where}: {message}.") from None
    return shares
