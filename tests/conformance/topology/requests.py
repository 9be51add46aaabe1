"""What the jobs of the cases ask, in our words: pods are ranks, a scope is a layer of the whole gang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsched.model.topology import Group, Layer, Preference, Wish
from streamsched.scheduling.affinity import Ask

#: The preference under which the outcomes of a published policy are looked at. Ours by name; of the others, what comes
#: closest: best fit and blocks use few domains, and least free and packing use up what is small.
PREFERENCES: Mapping[str, Preference] = {
    "utilization_first": Preference.UTILIZATION_FIRST,
    "bandwidth_first": Preference.BANDWIDTH_FIRST,
    "least_free": Preference.UTILIZATION_FIRST,
    "best_fit": Preference.BANDWIDTH_FIRST,
    "binpack": Preference.UTILIZATION_FIRST,
    "block": Preference.BANDWIDTH_FIRST,
}


def ask_of(job: Mapping[str, Any], preference: Preference) -> Ask:
    """Return what a job asks of one tree. Utilization first is searched as it was published, without the exact fit."""
    groups = _groups(job)
    return Ask(
        ranks=job.get("pods") or sum(group.ranks for group in groups),
        gpus_per_rank=job.get("gpus_per_pod") or 1,
        layers=(
            *_scope(job),
            *(
                Layer(level=layer["level"], ranks=layer["pods"], wish=Wish(layer["mode"]))
                for layer in job.get("layers", ())
            ),
        ),
        groups=groups,
        preference=preference,
        exact_fit=False,
    )


def _groups(job: Mapping[str, Any]) -> tuple[Group, ...]:
    groups = [Group(name=group["name"], ranks=group["pods"], layers=_scope(group)) for group in job.get("groups", ())]
    roles = [
        Group(name=role["name"], ranks=role["pods"], gpus_per_rank=role["gpus_per_pod"])
        for role in job.get("roles", ())
    ]
    gangs = [Group(name=f"gang{number}", ranks=ranks) for number, ranks in enumerate(job.get("gangs", ()))]
    return (*groups, *roles, *gangs)


def _scope(job: Mapping[str, Any]) -> tuple[Layer, ...]:
    scope = job["scope"]
    return () if scope["level"] is None else (Layer(level=scope["level"], wish=Wish(scope["mode"])),)
