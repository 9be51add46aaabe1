"""Study files: a hypothesis, the runs that test it, and what must hold of them, in YAML.

All scalars are read as texts and mean what they mean on the command line: ``0.5`` is five tenths and not the nearest
binary fraction, and ``2017-10-02`` is a day of the trace's wall clock. `replay/README.md` describes the fields;
``python -m streamsched.cli.study_files`` writes their JSON Schema to `replay/studies/study.schema.json`.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from streamsched.errors import RequestError
from streamsched.reporting.measures import COMPARED, OF_A_TEAM
from streamsched.wire.refusals import closest, refusal_of

#: A study file is written by hand; whatever is larger is something else.
_MOST_BYTES: Final = 1_000_000
#: And so is what is nested deeper.
_DEEPEST: Final = 20

Name = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^|\x00-\x1f]+$")]
Words = Annotated[str, Field(min_length=1, max_length=4_000)]
Number = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})?$", description="A decimal number, such as 0.5.")]
Quantity = Annotated[
    str,
    Field(
        pattern=r"^([0-9]{1,12}(\.[0-9]{1,9})?%?|([0-9]{1,9}(ms|s|m|h|d))+)$",
        description="A number, a percentage or a duration, such as 12, 95% or 30s.",
    ),
]


class Comparison(StrEnum):
    """How a value must stand to another one."""

    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="
    EQUAL = "=="


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Asked(_Part):
    """What is asked for: a trace, a made-up institute, or what a ledger records.

    Files are named as seen from the folder of the study.

    Attributes:
        trace: A trace file.
        institute: ai2-M or ai2-H.
        ledger: An SQLite file or an archive.
        since: As for `simulate`.
        until: As for `simulate`.
        max_gpus: As for `simulate`.
        unallocated: As for `simulate`, in percent.
        one_pool: As for `simulate`.
        format: As for `simulate`.
        zone: As for `simulate`.
    """

    trace: str | None = None
    institute: str | None = None
    ledger: str | None = None
    since: str | None = None
    until: str | None = None
    max_gpus: Annotated[int, Field(ge=1)] | None = None
    unallocated: Annotated[int, Field(ge=0, le=100)] | None = None
    one_pool: bool = False
    format: str | None = None
    zone: str | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(source is not None for source in (self.trace, self.institute, self.ledger)) != 1:
            raise ValueError("name one of trace, institute and ledger")
        of_traces = {"max_gpus", "unallocated", "format", "zone"}
        meaningless = set() if self.trace else of_traces
        if self.ledger:
            meaningless |= {"since", "until", "one_pool"}
        if wrong := sorted(meaningless & self.model_fields_set):
            raise ValueError(f"{wrong[0]} has no meaning for {'a ledger' if self.ledger else 'an institute'}; drop it")
        return self


class Variant(_Part):
    """One run of each seed: what it is called, and what decides, who pays and what there is in it.

    Attributes:
        name: What readers tell it by.
        policy: A name or a TOML file; the default policy, or that of the ledger, where it is left out.
        knobs: Knobs set besides, as written after `--set`.
        trace: Another trace file than that of the study.
        budgets: A file as for `--budgets`; for traces and ledgers.
        nodes: Other nodes than those of the study, each COUNTxGPUS[:POOL]; for traces and institutes.
        add_nodes: As for `whatif`; for ledgers, as the next two.
        lose_nodes: NODE[@TIME] each.
        min_runtime: Of what people declared, what they declare, in percent.
    """

    name: Name
    policy: str | None = None
    knobs: dict[str, str] = Field(default_factory=dict)
    trace: str | None = None
    budgets: str | None = None
    nodes: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    add_nodes: tuple[str, ...] = ()
    lose_nodes: tuple[str, ...] = ()
    min_runtime: Annotated[int, Field(ge=0, le=10_000)] = 100


class Claim(_Part):
    """What must hold: a measure of a variant against one of a baseline, or against a value; with every seed.

    Attributes:
        measure: One of those that are compared; of a team, one of those of teams.
        team: The budget, where it is one team that counts.
        variant: Whose measure it is.
        must_be: How it must stand.
        baseline: To the same measure of this variant,
        times: so many times that.
        value: Or to this value.
    """

    measure: str
    team: str | None = None
    variant: str
    must_be: Comparison
    baseline: str | None = None
    times: Number = "1"
    value: Quantity | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.baseline is None) == (self.value is None):
            raise ValueError("name either a baseline or a value to compare with")
        if self.value is not None and "times" in self.model_fields_set:
            raise ValueError("times needs a baseline; write the value itself")
        known = [measure.name for measure in (OF_A_TEAM if self.team else COMPARED)]
        if self.measure not in known:
            raise ValueError(f"measure is {self.measure!r}; {closest(self.measure, known)}")
        return self


class Study(_Part):
    """A study file.

    Attributes:
        title: What it is about.
        hypothesis: What is thought to be so, and why.
        demand: What is asked for.
        seeds: A run of each variant for each; all draws of a run follow from its seed.
        nodes: COUNTxGPUS[:POOL] each; as for `simulate` where they are left out.
        ideal: Whether nodes start and stop work at once.
        stop: Whether all ends at `until`, whatever waits or runs then.
        warm_up: A first stretch in which nothing counts.
        variants: What is run. The first is the baseline of the report.
        measures: What the result shows.
        confirmed_if: What must hold. The hypothesis is confirmed if all of it does.
    """

    title: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f]+$")]
    hypothesis: Words
    demand: Asked
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, le=2**31)], ...], Field(min_length=1, max_length=100)] = (0,)
    nodes: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    ideal: bool = False
    stop: bool = False
    warm_up: str | None = None
    variants: Annotated[tuple[Variant, ...], Field(min_length=1, max_length=50)]
    measures: Annotated[tuple[str, ...], Field(min_length=1)]
    confirmed_if: Annotated[tuple[Claim, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = [variant.name for variant in self.variants]
        for what, values in (("variants", names), ("seeds", list(map(str, self.seeds))), ("measures", self.measures)):
            if twice := next((value for value in values if list(values).count(value) > 1), None):
                raise ValueError(f"the {what} name {twice!r} twice; name each once")
        known = [measure.name for measure in COMPARED]
        for measure in self.measures:
            if measure not in known:
                raise ValueError(f"the measures name {measure!r}; {closest(measure, known)}")
        for number, claim in enumerate(self.confirmed_if):
            for field, name in (("variant", claim.variant), ("baseline", claim.baseline)):
                if name is not None and name not in names:
                    raise ValueError(f"the {field} of confirmed_if[{number}] is {name!r}; {closest(name, names)}")
        self._refuse_what_means_nothing()
        return self

    def _refuse_what_means_nothing(self) -> None:
        if self.demand.ledger:
            what, common, of_variant = "a ledger", {"nodes", "stop"}, {"nodes", "trace"}
        elif self.demand.institute:
            what, common, of_variant = "an institute", set(), {"trace", "budgets"}
        else:
            what, common, of_variant = "a trace", set(), set()
        if not self.demand.ledger:
            of_variant |= {"add_nodes", "lose_nodes", "min_runtime"}
        if wrong := sorted(common & self.model_fields_set):
            raise ValueError(f"the field {wrong[0]} has no meaning for {what}; drop it")
        for number, variant in enumerate(self.variants):
            if wrong := sorted(of_variant & variant.model_fields_set):
                raise ValueError(f"the field {wrong[0]} of variants[{number}] has no meaning for {what}; drop it")


def read_study(path: Path) -> Study:
    """Read a study file.

    Raises:
        RequestError: It cannot be read or is none; the message names the field, its value and the remedy.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("invalid", f"{path} cannot be read: {error}. Name a YAML file of a study.") from error
    if len(data) > _MOST_BYTES:
        raise RequestError("invalid", f"{path} has more than {_MOST_BYTES:,} bytes; name the YAML file of a study.")
    try:
        fields = _plain(yaml.compose(text, Loader=yaml.BaseLoader), set())
    except yaml.YAMLError as error:
        raise RequestError("invalid", f"{path} is no YAML: {' '.join(str(error).split())}.") from error
    except RecursionError:
        raise RequestError("invalid", f"{path} is nested too deeply; name the YAML file of a study.") from None
    except ValueError as error:
        raise RequestError("invalid", f"{path}, {error}.") from None
    try:
        return Study.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise RequestError("invalid", f"{path}: {refusal_of(error, Study, 'a study', None).reason}") from None


def _plain(node: yaml.Node | None, seen: set[int], depth: int = 0) -> Any:
    """Return mappings, lists and texts.

    A key that stands twice would hide what was written first, and a few aliases of aliases make more than fits into any
    memory: both are refused.
    """
    if node is None:
        return None
    if id(node) in seen:
        raise ValueError(f"{_place(node)}: an alias points here; write it out where it is meant")
    seen.add(id(node))
    if depth > _DEEPEST:
        raise ValueError(f"{_place(node)}: this is nested too deeply; a study has no such field")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(part, seen, depth + 1) for part in node.value]
    if isinstance(node, yaml.MappingNode):
        fields: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError(f"{_place(key)}: this is no name of a field; write NAME: VALUE")
            if key.value in fields:
                raise ValueError(f"{_place(key)}: {key.value!r} stands here for the second time; write it once")
            fields[key.value] = _plain(value, seen, depth + 1)
        return fields
    return node.value


def _place(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def schema() -> str:
    """Return the JSON Schema of study files, as text."""
    described = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Study.model_json_schema()}
    return json.dumps(described, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (Path(__file__).resolve().parents[2] / "replay" / "studies" / "study.schema.json").write_text(schema(), "utf-8")
