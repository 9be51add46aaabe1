"""Kinds about what is counted: quotas, windows, decay, entitlement, hours due."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from typing import Any

from streamsched.model.events import BudgetShare, BudgetTreeChanged
from streamsched.model.policy import Policy, UsageMode
from streamsched.model.quantities import DAY, HOUR, MINUTE
from streamsched.scheduling.draft import Draft
from streamsched.scheduling.fair_share import Standing, comes_before, standing
from streamsched.state.cluster import ClusterState
from streamsched.state.hours import HourlyUse, Use
from tests.conformance.cases import Case
from tests.conformance.fair_share.worlds import BARE, Spell, World, hours, number, scale_of
from tests.stories import nodes, submitted


def quota(case: Case) -> tuple[Any, Any]:
    """A leaf's absolute share, and what it is worth in a day and in a window."""
    given = case.given
    window_ms = hours(given["window_h"])
    world = World({**BARE, "window_ms": window_ms}, nodes(given["pool_gpus"] // 8))
    fractions = {"/".join("pq"[: depth + 1]): number(part) for depth, part in enumerate(given["path_fraction"])}
    world.fund(fractions)
    world.pass_time(window_ms)
    leaf = world.state.budgets.by_id[list(fractions)[-1]]
    week = Fraction(leaf.entitled_gpu_ms(world.now_ms), HOUR)
    found = {
        "effective": Fraction(leaf.quota_nano, 10**9),
        "gpu_h_per_day": week * DAY / window_ms,
        "gpu_h_window": week,
    }
    return case.expected, found


def usage_window(case: Case) -> tuple[Any, Any]:
    """Use inside the sliding window, alone or against the capacity of the window."""
    return _usage_of_capacity(case) if "cluster_gpus" in case.given else _usage_against_buckets(case)


def _usage_of_capacity(case: Case) -> tuple[Any, Any]:
    given = case.given
    window_ms, gpus, use = hours(given["window_h"]), given["cluster_gpus"], given["usage_gpu_h"]
    world = World({**BARE, "window_ms": window_ms}, nodes(gpus, gpus=1))
    world.fund({"a": Fraction(1)})
    world.play([past_use("a", number(use) * HOUR, gpus, end_ms=window_ms - HOUR)])
    world.at(window_ms).tick()
    leaf = world.state.budgets.by_id["a"]
    return case.expected, {
        "normalised_usage": Fraction(leaf.charged_gpu_ms(window_ms), leaf.entitled_gpu_ms(window_ms))
    }


def _usage_against_buckets(case: Case) -> tuple[Any, Any]:
    """The sliding window is exact; the hours of the clock, which reports use, are not, whatever is done at the edge."""
    given = case.given
    window_ms, now_ms = hours(given["window_h"]), _instant(given["now"])
    spells = [Spell("a", run["gpus"], _instant(run["start"]), _instant(run["end"])) for run in given["runs"]]
    most = sum(spell.gpus for spell in spells)
    world = World({**BARE, "window_ms": window_ms}, nodes(most, gpus=1), at_ms=spells[0].start_ms)
    world.fund({"a": Fraction(1)})
    world.play(spells)
    world.at(now_ms).tick()
    by_hour = {begin: use.delivered_gpu_ms for begin, use in _hourly(world).hours("a").items()}
    edge = now_ms - window_ms
    partial = by_hour.get(edge // HOUR * HOUR, 0)
    whole = sum(held for begin, held in by_hour.items() if begin >= edge)
    found: dict[str, int | Fraction] = {
        "exact_gpu_h": world.state.budgets.by_id["a"].charged_gpu_ms(now_ms),
        "drop_partial_bucket": whole,
        "keep_partial_bucket": whole + partial,
        "prorate_partial_bucket": whole + Fraction(partial * (HOUR - edge % HOUR), HOUR),
    }
    return case.expected, {name: Fraction(value) / HOUR for name, value in found.items()}


def usage_decay(case: Case) -> tuple[Any, Any]:
    """Usage that fades with a half-life; or the order of those whose weight is nothing."""
    return _zero_weights(case) if "rows" in case.given else _faded(case)


def _faded(case: Case) -> tuple[Any, Any]:
    given = case.given
    policy = {**BARE, "usage": UsageMode.DECAY, "half_life_ms": hours(given["half_life_h"])}
    world = World(policy, nodes(given["gpus"], gpus=1))
    world.fund({"a": Fraction(1)})
    end_ms = hours(given["start_h_ago"] - given["end_h_ago"])
    world.play([Spell("a", given["gpus"], 0, end_ms)])
    world.at(hours(given["start_h_ago"])).tick()
    used = standing(world.state.budgets.by_id["a"], Draft(world.state), allocated=True).used
    # The core rounds faded usage to whole GPU-seconds, and the case gives four decimals of an hour, which is finer.
    return {"gpu_h": round(case.expected["gpu_h"], 3)}, {"gpu_h": Fraction(used, HOUR)}


def _zero_weights(case: Case) -> tuple[Any, Any]:
    """A weight of 0 comes after every other, used or idle; a negative one cannot be said."""
    found: list[Any] = []
    for row in case.given["rows"]:
        if row["queue_weight"] < 0:
            found.append("inf" if _is_refused(row["queue_weight"]) else "accepted")
            continue
        used = {"none": Fraction(sum(row["consumed"].values())), "some": Fraction(500)}
        world = _used_under(used, {"none": Fraction(row["queue_weight"]), "some": Fraction(1)})
        mine, other = (_standing_of(world, name) for name in ("none", "some"))
        is_last = comes_before(other, mine) is True and mine.entitled == 0
        found.append("inf" if is_last else str(mine))
    return case.expected, {"usage": found}


def entitlement(case: Case) -> tuple[Any, Any]:
    """A quota that was raised inside the window counts from then on, and not for the time before."""
    given = case.given
    window_ms, since_ms = hours(given["window_h"]), hours(given["hours_after_change"])
    world = World({**BARE, "window_ms": window_ms}, nodes(given["pool_gpus"], gpus=1))
    world.fund({"a": number(given["quota_before"])})
    world.at(window_ms - since_ms)
    world.fund({"a": number(given["quota_after"])})
    world.at(window_ms).tick()
    integral = world.state.budgets.by_id["a"].entitled_gpu_ms(window_ms)

    always = World({**BARE, "window_ms": window_ms}, nodes(given["pool_gpus"], gpus=1))
    always.fund({"a": number(given["quota_after"])})
    always.at(window_ms).tick()
    retroactive = always.state.budgets.by_id["a"].entitled_gpu_ms(window_ms)
    found = {
        "entitled_gpu_h_if_retroactive": Fraction(retroactive, HOUR),
        "entitled_gpu_h_integral": Fraction(integral, HOUR),
    }
    return case.expected, found


def hours_due(case: Case) -> tuple[Any, Any]:
    """What is due of an hour to a parent and to its children: each the less of its own quota and its own demand."""
    given = case.given
    children = given["children"]
    parent_quota = sum((number(child["quota"]) for child in children.values()), Fraction(0))
    world = World(BARE, nodes(given["pool_gpus"], gpus=1))
    world.fund(
        {
            "parent": parent_quota,
            **{f"parent/{name}": number(child["quota"]) / parent_quota for name, child in children.items()},
        }
    )
    for name, child in children.items():
        world.tell(
            submitted(f"w-{name}-{index}", budget=f"parent/{name}", gpus_per_rank=1) for index in range(child["demand"])
        )
    world.settle()
    world.at(HOUR).tick()
    use = _hourly(world)

    def due(budget: str) -> Fraction:
        hour: Use = use.hour(budget, 0)
        return Fraction(hour.due_gpu_ms, HOUR)

    return case.expected, {
        "due_children": {name: due(f"parent/{name}") for name in children},
        "due_parent": due("parent"),
    }


def past_use(leaf: str, gpu_ms: Fraction, gpus: int, *, end_ms: int) -> Spell:
    """Return a spell of so much GPU-time, on at most so many GPUs, that ends at a moment and fits before it."""
    for size in range(1, gpus + 1):
        length = gpu_ms / size
        if length.denominator == 1 and length <= end_ms:
            return Spell(leaf, size, end_ms - int(length), end_ms)
    raise AssertionError(f"{gpu_ms} GPU-ms do not fit on {gpus} GPUs before {end_ms}")


def compare(case: Case) -> tuple[Any, Any]:
    """Which of two siblings comes first, by what they used of what they are worth."""
    given = case.given
    if "pairs" in given:
        return case.expected, {"first": [_first_by_weight(pair) for pair in given["pairs"]]}
    return case.expected, {"first": _first_by_minimum(given)}


def _first_by_minimum(given: Any) -> str:
    """Over a window of ten hours a tenth of the minimum in GPUs is worth the minimum in GPU-hours."""
    minima = {name: number(side["min"]) / 10 for name, side in given.items()}
    scale = scale_of(minima.values())
    pool = int(sum(minima.values()) * scale)
    world = World({**BARE, "window_ms": 10 * HOUR}, nodes(pool, gpus=1))
    world.fund({name: minimum * scale / pool for name, minimum in minima.items()})
    world.play(
        past_use(name, number(side["used"]) * HOUR * scale, int(minima[name] * scale), end_ms=9 * HOUR)
        for name, side in given.items()
    )
    world.at(10 * HOUR).tick()
    return _winner(world, list(given))


def _first_by_weight(pair: Any) -> str:
    weights = {name: Fraction(side["weight"]) for name, side in pair.items()}
    used = {name: number(side["used"]) for name, side in pair.items()}
    return _winner(_used_under(used, weights), list(pair))


def _used_under(used: Mapping[str, Fraction], weights: Mapping[str, Fraction]) -> World:
    """Return a world in which leaves have used GPU-hours for a whole window under these weights.

    A weight of nothing takes no allocated work, so the runs begin while there is a quota and go on when it is lost.
    """
    gpus = 4
    world = World(BARE, nodes(gpus * len(used), gpus=1))
    world.fund({name: Fraction(1, len(used)) for name in used})
    for name, gpu_hours in used.items():
        if gpu_hours:
            world.spread(name, name, gpus, min_runtime_ms=5 * MINUTE)
    world.at(HOUR)
    heaviest = max(sum(weights.values()), Fraction(1))
    world.fund({name: weight / heaviest for name, weight in weights.items()})
    for name, gpu_hours in sorted(used.items(), key=lambda entry: entry[1]):
        if gpu_hours:
            world.at(HOUR + hours(gpu_hours / gpus))
            world.end(name)
    world.at(HOUR + 7 * DAY).tick()
    return world


def _winner(world: World, names: list[str]) -> str:
    one, other = names
    before = comes_before(_standing_of(world, one), _standing_of(world, other))
    return "neither" if before is None else one if before else other


def _standing_of(world: World, budget: str) -> Standing:
    return standing(world.state.budgets.by_id[budget], Draft(world.state), allocated=True)


def _is_refused(weight: int) -> bool:
    try:
        BudgetTreeChanged(change="c", reason="the case", budgets=(BudgetShare(budget="a", fraction_nano=weight),))
    except ValueError:
        return True
    return False


def _hourly(world: World) -> HourlyUse:
    """Read a story by the hours of the clock, up to its present."""
    state, use = ClusterState(Policy()), HourlyUse()
    for record in world.records:
        use.note(state, state.apply(record))
    use.settle(state.now_ms)
    return use


def _instant(text: str) -> int:
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1_000)
