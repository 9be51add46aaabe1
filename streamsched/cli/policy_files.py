"""Policies as people name and write them: a name, a TOML file of knobs, and knobs set one by one.

The knobs have the names of `Policy`. Those that end in ``_ms`` are durations, and are written as such::

    base = "hour_by_hour"    # a named policy; the default one where it is left out
    window_ms = "5d"
    guard_relaxation_ms = "never"
    reservations = 4

    levels = "supernode/rack"

    [rates]
    h100 = 2

With ``--set`` a knob that holds a list is written in JSON, as ``policy show`` prints it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from streamsched.errors import RequestError
from streamsched.model.policy import DEFAULT_POLICY, NAMED_POLICIES, Policy
from streamsched.model.quantities import DAY, HOUR, MINUTE, SECOND, parse_duration
from streamsched.wire.refusals import closest, refusal_of

BASE = "base"
#: How a limit that is none is written: the knob is None.
NEVER = "never"
_KNOBS = tuple(Policy.model_fields)
_TRUTHS = {"true": True, "false": False}


class KnobChange(BaseModel):
    """A knob that differs between two policies, as it is written."""

    model_config = ConfigDict(frozen=True)

    knob: str
    before: str
    after: str


class Changes(BaseModel):
    """What one policy changes of another."""

    model_config = ConfigDict(frozen=True)

    changes: tuple[KnobChange, ...]


def read_policy(name: str | None, settings: Sequence[str] = (), *, base: Policy = DEFAULT_POLICY) -> Policy:
    """Return the policy that a name or a file, and knobs set besides, describe.

    Args:
        name: A name of `NAMED_POLICIES`, or the path of a TOML file; None for `base`.
        settings: ``KNOB=VALUE`` texts, such as ``window_ms=5d``. The last one of a knob counts.
        base: What is not said.

    Raises:
        RequestError: Naming the knob, its value and what it may be.
    """
    fields, where = (base.model_dump(mode="json"), "--set")
    if name is not None:
        fields, where = _named(name)
    for setting in settings:
        knob, equals, text = setting.partition("=")
        if not equals:
            raise RequestError("invalid", f"--set is {setting!r}; write KNOB=VALUE, such as window_ms=5d.")
        fields |= {_known(knob, "--set"): _value(knob, text, "--set")}
    return _checked(fields, where if not settings else "--set")


def changes(before: Policy, after: Policy) -> tuple[KnobChange, ...]:
    """Return the knobs in which two policies differ, in the order of `Policy`."""
    return tuple(
        KnobChange(knob=knob, before=written(knob, getattr(before, knob)), after=written(knob, getattr(after, knob)))
        for knob in _KNOBS
        if getattr(before, knob) != getattr(after, knob)
    )


def written(knob: str, value: Any) -> str:
    """Return the value of a knob as it is read back: ``7d``, ``true``, ``never``, ``h100:2``.

    >>> written("window_ms", 604_800_000), written("guard_relaxation_ms", None), written("guard", True)
    ('7d', 'never', 'true')
    """
    if value is None:
        return NEVER
    if isinstance(value, bool):
        return str(value).lower()
    if knob.endswith("_ms"):
        return _duration(value)
    if knob == "rates":
        return ",".join(f"{rate.pool}:{rate.rate}" for rate in value) or "none"
    if knob == "levels":
        return ",".join(f"{f'{of.pool}:' if of.pool else ''}{'/'.join(of.names)}" for of in value) or "none"
    if isinstance(value, tuple):
        return json.dumps([part.model_dump(mode="json", exclude_none=True) for part in value])
    return str(value)


def _duration(ms: int) -> str:
    """Return a duration with every unit it needs, so that it is read back as the same number."""
    parts = []
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1)):
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _named(name: str) -> tuple[dict[str, Any], str]:
    """Return the knobs of a named policy or of a file, and what to call it in messages."""
    if (named := NAMED_POLICIES.get(name)) is not None:
        return named.model_dump(mode="json"), f"policy {name}"
    path = Path(name)
    if path.suffix != ".toml":
        raise RequestError(
            "invalid",
            f"{name!r} is no named policy; {closest(name, list(NAMED_POLICIES))} A file of knobs has a name that ends "
            "in .toml.",
        )
    try:
        knobs = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("invalid", f"{name} cannot be read: {error}. Name a TOML file of knobs.") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RequestError("invalid", f"{name} is no TOML: {error}.") from error
    base = knobs.pop(BASE, None)
    if base is None:
        fields = DEFAULT_POLICY.model_dump(mode="json")
    elif isinstance(base, str) and base in NAMED_POLICIES:
        fields = NAMED_POLICIES[base].model_dump(mode="json")
    else:
        raise RequestError("invalid", f"{name}: base is {base!r}; {closest(str(base), list(NAMED_POLICIES))}")
    return fields | {_known(knob, name): _value(knob, value, name) for knob, value in knobs.items()}, name


def _known(knob: str, where: str) -> str:
    if knob not in _KNOBS:
        raise RequestError("invalid", f"{where}: {knob!r} is no knob of a policy; {closest(knob, list(_KNOBS))}")
    return knob


def _value(knob: str, value: object, where: str) -> Any:
    """Return a value as the model reads it from JSON. What is no form of the knob is left for the model to refuse."""
    if value == NEVER:
        return None
    if isinstance(value, str) and value.startswith("["):
        return _listed(knob, value, where)
    if knob == "rates" and not isinstance(value, list):
        return _rates(value, where)
    if knob == "levels" and not isinstance(value, list):
        return _levels(value, where)
    if isinstance(value, str) and knob.endswith("_ms"):
        return _duration_ms(knob, value, where)
    if isinstance(value, str) and Policy.model_fields[knob].annotation is bool:
        return _TRUTHS.get(value.lower(), value)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    return value


def _duration_ms(knob: str, text: str, where: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text[:18])
    try:
        return parse_duration(text)
    except ValueError as error:
        optional = f", or {NEVER}" if Policy.model_fields[knob].annotation is not int else ""
        raise RequestError("invalid", f"{where}: {knob}: {error}{optional}.") from None


def _listed(knob: str, text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError("invalid", f"{where}: {knob} is a list that is no JSON: {error}.") from None


def _rates(value: object, where: str) -> list[dict[str, object]]:
    """Read a rate card: ``h100:2,a100:1`` or a table of them."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, str):
        parts = [part.partition(":") for part in value.split(",")] if value not in ("", "none") else []
        pairs = [(pool, rate) for pool, _, rate in parts]
    else:
        pairs = [("", value)]
    rates: list[dict[str, object]] = []
    for pool, rate in pairs:
        number = int(rate) if isinstance(rate, str) and rate.isascii() and rate.isdigit() else rate
        if not pool or isinstance(number, bool) or not isinstance(number, int):
            raise RequestError(
                "invalid", f"{where}: rates is {value!r}; write POOL:RATE,..., such as h100:2,a100:1, or none."
            )
        rates.append({"pool": pool, "rate": number})
    return rates


def _levels(value: object, where: str) -> list[dict[str, object]]:
    """Read names of levels, coarse to fine: ``supernode/rack``, or ``h100:supernode/rack,hall`` or a table by pool."""
    if isinstance(value, Mapping):
        named = [(pool, names) for pool, names in value.items()]
    elif isinstance(value, str):
        parts = value.split(",") if value not in ("", "none") else []
        named = [(pool or None, names) for pool, _, names in (part.rpartition(":") for part in parts)]
    else:
        named = [(None, value)]
    levels: list[dict[str, object]] = []
    for pool, names in named:
        if not isinstance(names, str) or not names:
            raise RequestError(
                "invalid",
                f"{where}: levels is {value!r}; write them coarse to fine, such as supernode/rack, or POOL:LEVEL/LEVEL,"
                "... where pools differ, or none.",
            )
        levels.append({"pool": pool, "names": names.split("/")})
    return levels


def _checked(fields: dict[str, Any], where: str) -> Policy:
    try:
        return Policy.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise RequestError("invalid", f"{where}: {refusal_of(error, Policy, 'a policy', None).reason}") from None
