"""The command that runs a study: the variants of a study file side by side, and whether its hypothesis holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamsched.cli.options import AsJson

if TYPE_CHECKING:
    from streamsched.cli.study_files import Study, Variant
    from streamsched.reporting.simulations import RecordedSimulation, Simulation


def study(
    file: Annotated[Path, typer.Argument(help="A study file; `replay/README.md` describes them.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the result is written, as Markdown; else it is only printed."),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML page.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; one for each CPU.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run the variants of a study file, and say whether its hypothesis is confirmed.

    The same file gives the same numbers on any machine. Exit code 1 when the hypothesis is not confirmed.

    JSON: `{"title", "confirmed", "claims": [{..., "by_seed": [{"seed", "value", "compared_with", "holds"}], "holds"}],
    "runs": [{"variant", "seed", "records", "cpu_seconds", "digest", "ledger", "outcomes"}], "result", "report"}`.

    Examples: `streamsched study replay/studies/debug-latency.yaml`,
    `streamsched study replay/studies/debug-latency.yaml --out result.md --report study.html`
    """
    import json
    import os
    import shlex

    from streamsched.cli import exits
    from streamsched.cli.simulate import refuse_target, simulation_progress, written_to
    from streamsched.cli.study_files import read_study
    from streamsched.cli.study_results import as_json as result_as_json
    from streamsched.cli.study_results import judged, page
    from streamsched.reporting.report import ReportText, write_report
    from streamsched.reporting.simulations import run_all

    refuse_target(out)
    refuse_target(report)
    asked = read_study(file)
    cores = os.cpu_count() or 1
    simulations = _simulations(asked, file)
    with simulation_progress([simulation.name for simulation in simulations]) as tell:
        found = run_all(simulations, jobs or cores, tell)
    seeds = len(asked.seeds)
    runs = {variant.name: found[number * seeds :][:seeds] for number, variant in enumerate(asked.variants)}
    verdicts = judged(asked, runs)
    result = page(asked, runs, verdicts, f"streamsched study {shlex.quote(str(file))}", cores)
    if out is not None:
        written_to(out, lambda: _write_text(out, result))
    if report is not None:
        written_to(report, lambda: write_report(report, [one.run for one in found], ReportText(asked.title)))
    if as_json:
        written = {"result": None if out is None else str(out), "report": None if report is None else str(report)}
        typer.echo(json.dumps(result_as_json(asked, runs, verdicts) | written, separators=(",", ":")))
    else:
        typer.echo(result, nl=False)
    if not all(verdict.holds for verdict in verdicts):
        raise typer.Exit(exits.NEGATIVE)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _simulations(asked: Study, file: Path) -> list[Simulation | RecordedSimulation]:
    """Return the run of each variant with each seed, seeds within variants."""
    if asked.demand.ledger is not None:
        return list(_served(asked, file))
    return [
        _simulated(asked, variant, seed, file, f"variants[{number}]")
        for number, variant in enumerate(asked.variants)
        for seed in asked.seeds
    ]


def _name(asked: Study, variant: Variant, seed: int) -> str:
    return variant.name if len(asked.seeds) == 1 else f"{variant.name}, seed {seed}"


def _knobs(variant: Variant) -> list[str]:
    return [f"{knob}={value}" for knob, value in variant.knobs.items()]


def _simulated(asked: Study, variant: Variant, seed: int, file: Path, where: str) -> Simulation:
    from streamsched.cli.simulate import INSTITUTES, asked_of_institute, asked_of_trace, policy_called
    from streamsched.errors import RequestError
    from streamsched.wire.refusals import closest

    demand = asked.demand
    nodes = variant.nodes or asked.nodes
    with _naming(file, "demand"):
        if demand.institute is not None:
            if demand.institute.lower() not in INSTITUTES:
                remedy = closest(demand.institute, list(INSTITUTES))
                raise RequestError("invalid", f"demand.institute is {demand.institute!r}; {remedy}")
            found = asked_of_institute(
                demand.institute.lower(), demand.since, demand.until, nodes, seed, demand.one_pool
            )
        else:
            found = asked_of_trace(
                file.parent / (variant.trace or demand.trace or ""),
                demand.since,
                demand.until,
                demand.max_gpus,
                nodes,
                None if variant.budgets is None else file.parent / variant.budgets,
                20 if demand.unallocated is None else demand.unallocated,
                seed,
                demand.one_pool,
                demand.format,
                demand.zone,
            )
    with _naming(file, where):
        policy = policy_called(_policy_name(variant, file) or "over-the-week", _knobs(variant))
    with _naming(file, "study"):
        return found.under(
            _name(asked, variant, seed),
            policy,
            stop=asked.stop,
            warm_up=asked.warm_up,
            ideal=asked.ideal,
            seed=seed,
        )


def _served(asked: Study, file: Path) -> Iterator[RecordedSimulation]:
    from streamsched.cli.moments import duration_ms
    from streamsched.cli.policy_files import read_policy
    from streamsched.cli.running import folding
    from streamsched.cli.what_if import change_of, recorded_demand
    from streamsched.model.quantities import HOUR
    from streamsched.reporting.simulations import RecordedSimulation

    with _naming(file, "demand"), folding() as progress:
        _, demand = recorded_demand(str(file.parent / (asked.demand.ledger or "")), progress)
    with _naming(file, "study"):
        warm_ms = 0 if asked.warm_up is None else duration_ms(asked.warm_up, "--warm-up")
    # Due time is counted by the hour.
    from_ms = -(-(demand.since_ms + warm_ms) // HOUR) * HOUR if warm_ms else 0
    for number, variant in enumerate(asked.variants):
        with _naming(file, f"variants[{number}]"):
            budgets = None if variant.budgets is None else file.parent / variant.budgets
            change = change_of(demand, budgets, variant.add_nodes, variant.lose_nodes, variant.min_runtime)
            if variant.policy is not None or variant.knobs:
                policy = read_policy(_policy_name(variant, file), _knobs(variant), base=demand.policy)
                change = replace(change, policy=policy)
        for seed in asked.seeds:
            yield RecordedSimulation(_name(asked, variant, seed), demand, change, from_ms, asked.ideal, seed)


def _policy_name(variant: Variant, file: Path) -> str | None:
    """Return a policy's name, or its file as seen from here."""
    if variant.policy is None or not variant.policy.endswith(".toml"):
        return variant.policy
    return str(file.parent / variant.policy)


@contextmanager
def _naming(file: Path, where: str) -> Iterator[None]:
    """Say of an error in what part of which file it is. What is an option elsewhere is a field here."""
    from streamsched.errors import ConfigurationError, RequestError

    try:
        yield
    except typer.BadParameter as error:
        option = str(error.param_hint or "").lstrip("-").replace("-", "_")
        raise RequestError("invalid", f"{file}: {where}: {option}: {error.message}") from None
    except (RequestError, ConfigurationError) as error:
        raise RequestError("invalid", f"{file}: {where}: {error}") from None
