"""`coppice probe`: measure the network between the processes that a launcher started."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from coppice.cli.options.inputs import BoxesOption, JsonOption, SetOption, load_topology
from coppice.cli.output.render import print_json, print_lines
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.run.probe.expect import LinkFinding
from coppice.run.probe.probe import RateMeasurement
from coppice.topology.model import Topology

__all__ = ["probe"]


def probe(
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the measured topology.", show_default=False
        ),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            "--expect",
            metavar="TOPOLOGY",
            help="What the network should be: say which of its links carry less; `-o` then writes it with their "
            "measured rates.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", metavar="torch|mpi|shm", help="What moves the data [default: by the launcher]."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("-n", "--rounds", min=1, help="Rounds of each experiment.")] = 3,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Longest wait for another rank, s.")
    ] = 300.0,
    boxes: BoxesOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure every pair of ranks alone, then ranks and groups of near ranks against the rest at once.

    Without --expect the result is a topology of groups and a network between them, which every other command
    takes. With it, each link is judged; exit code 1 if one carries less than 85% of its rate.

    \b
    Examples:
      torchrun --nproc-per-node 8 -m coppice probe -o measured.json
      mpirun -np 16 coppice probe --engine mpi --expect cluster.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.run.engines.launched import engine_name, open_engine
    from coppice.run.probe.expect import judge_links, with_measured_rates
    from coppice.run.probe.model import locality_groups, measured_topology
    from coppice.run.probe.probe import engine_rate, run_experiments
    from coppice.topology.writer import write_topology

    if expect is None and (boxes is not None or settings):
        msg = "--boxes and --set go with --expect PRESET: add it, or leave them out."
        raise InputError(msg)
    end = open_engine(engine_name(engine), timeout_s=timeout)
    try:
        expected = None if expect is None else load_topology(expect, boxes=boxes, settings=settings)
        if expected is not None and expected.num_ranks != end.ranks:
            msg = f"expected {expected.num_ranks} processes for {expected.name}, found {end.ranks}: start as many."
            raise InputError(msg)
        quiet = end.rank > 0 or not sys.stderr.isatty()
        with Progress(transient=True, disable=quiet) as progress:
            task = progress.add_task("measuring", total=None)
            measurements, groups = run_experiments(
                end.ranks,
                engine_rate(end, rounds=rounds, timeout_s=timeout),
                locality_groups,
                progress=lambda done, known: progress.update(task, completed=done, total=known),
            )
        if end.rank:
            return
        findings = [] if expected is None else judge_links(expected, measurements)
        made = (
            measured_topology(measurements, groups)
            if expected is None
            else with_measured_rates(expected, findings)
        )
        if output is not None:
            write_topology(made, output)
        below = [each for each in findings if each.below]
        if as_json:
            print_json(_facts(measurements, groups, made, findings))
        else:
            print_lines(_words(measurements, groups, made, findings))
    finally:
        end.close()
    if below:
        worst = min(below, key=lambda each: each.measured_gb_per_s / each.expected_gb_per_s)
        msg = (
            f"expected {worst.expected_gb_per_s:g} GB/s from {worst.src} to {worst.dst}, found "
            f"{worst.measured_gb_per_s:.3g}; {len(below)} of {len(findings)} links are below 85% of their rates: "
            "see the list."
        )
        raise CheckError(msg)


def _bottleneck(topology: Topology) -> tuple[list[str], Fraction]:
    from coppice.bounds.optimum import bound
    from coppice.bounds.problem import Problem

    found = bound(Problem(topology=topology, collective=Collective.ALL_GATHER))
    return [topology.node_ids[node] for node in found.cut], found.algbw_gb_per_s


def _words(
    measurements: list[RateMeasurement], groups: list[list[int]], made: Topology, findings: list[LinkFinding]
) -> list[str]:
    pairs = sorted(each.gb_per_s for each in measurements if each.experiment.kind == "pair")
    lines = [f"{len(measurements)} experiments"]
    if pairs:
        lines.append(
            f"pairs         {pairs[0]:.3g} to {pairs[-1]:.3g} GB/s, median {pairs[len(pairs) // 2]:.3g}"
        )
    shown = ["{" + ", ".join(map(str, group)) + "}" for group in groups]
    lines.append(f"near ranks    {' '.join(shown)}")
    for each in measurements:
        if each.experiment.kind == "group-out":
            ranks = ", ".join(map(str, sorted({src for src, _ in each.experiment.flows})))
            lines.append(f"              out of {{{ranks}}}: {each.total_gb_per_s:.3g} GB/s together")
    everybody = [each.total_gb_per_s for each in measurements if each.experiment.kind == "all"]
    if everybody:  # tried in more than one way: what the network carries is at least the best of them
        lines.append(f"              all groups to all others: {max(everybody):.3g} GB/s together")
    cut, algbw = _bottleneck(made)
    lines.append(f"bottleneck    {', '.join(cut)}: all-gather at {float(algbw):.4g} GB/s at most")
    lines.extend(
        f"below         {each.src} -> {each.dst}: {each.measured_gb_per_s:.3g} of {each.expected_gb_per_s:g} GB/s"
        for each in findings
        if each.below
    )
    untested = sum(not finding.tested for finding in findings)
    if untested:
        lines.append(f"not tested    {untested} of {len(findings)} links limit no experiment")
    return lines


def _facts(
    measurements: list[RateMeasurement], groups: list[list[int]], made: Topology, findings: list[LinkFinding]
) -> dict[str, Any]:
    cut, algbw = _bottleneck(made)
    return {
        "groups": groups,
        "experiments": [
            {
                "kind": each.experiment.kind,
                "flows": [list(flow) for flow in each.experiment.flows],
                "weights": list(each.experiment.sizes),
                "gb_per_s": each.gb_per_s,
            }
            for each in measurements
        ],
        "bottleneck_cut": cut,
        "all_gather_gb_per_s": float(algbw),
        "links": [
            {
                "from": each.src,
                "to": each.dst,
                "expected_gb_per_s": each.expected_gb_per_s,
                "measured_gb_per_s": each.measured_gb_per_s,
                "tested": each.tested,
                "below": each.below,
            }
            for each in findings
        ],
    }
