"""Cases in files: what is given, what must come out, where it was published, and what it means for us."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Relation(StrEnum):
    """What a published case means for our scheduler; the words are those of the files."""

    DERIVED = "derived"
    MATCH = "match"
    VARIANT = "variant"
    HELPER = "helper"
    DIFFERS = "differs"
    INFORMATIVE = "informative"
    OUT_OF_SCOPE = "n/a"
    #: Of a placement: any correct scheduler must reproduce it, or it depends on the policy that the case names.
    HARD = "hard"
    POLICY = "policy"

    @property
    def must_hold(self) -> bool:
        """Whether our scheduler must give what the case expects."""
        return self in (Relation.DERIVED, Relation.MATCH, Relation.VARIANT, Relation.HARD, Relation.POLICY)


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a file.

    Attributes:
        kind: Which question it asks; each kind has one way to be run.
        given: The facts, in the form of its kind.
        expected: What must come out, in the form of its kind.
        note: What the file says of its relation to us.
        origin: Where it comes from, for people.
    """

    id: str
    kind: str
    title: str
    given: Mapping[str, Any]
    expected: Any
    relation: Relation
    note: str
    origin: str


def load(path: Path) -> list[Case]:
    """Read the cases of a file: the derived ones first, then the published ones, each group as it stands there."""
    document = json.loads(path.read_text(encoding="utf-8"))
    derived = [_case(entry, Relation.DERIVED) for entry in document.get("derived_cases", ())]
    return derived + [_published_case(entry) for entry in document["cases"]]


def _published_case(entry: Mapping[str, Any]) -> Case:
    """Read a published case; those of topology have their facts beside their name."""
    if "hard_constraint_only" not in entry:
        return _case(entry, Relation(entry["ours"]["relation"]))
    return Case(
        id=entry["id"],
        kind=entry["kind"],
        title=entry["title"],
        given=entry,
        expected=entry["expect"],
        relation=Relation.HARD if entry["hard_constraint_only"] else Relation.POLICY,
        note="",
        origin=_origin(entry["origin"]),
    )


def _case(entry: Mapping[str, Any], relation: Relation) -> Case:
    return Case(
        id=entry["id"],
        kind=entry["kind"],
        title=entry["title"],
        given=entry["input"],
        expected=entry["expected"],
        relation=relation,
        note=entry.get("ours", {}).get("note", ""),
        origin=_origin(entry.get("origin") or {}),
    )


def _origin(origin: Mapping[str, Any]) -> str:
    repo = origin.get("repo")
    file, section = origin.get("file", origin.get("where")), origin.get("test_or_section", origin.get("test"))
    commit = str(origin.get("commit") or "")[:10]
    where = f"{repo}@{commit}" if repo and commit else repo
    return ", ".join(str(part) for part in (where, file, section) if part)
