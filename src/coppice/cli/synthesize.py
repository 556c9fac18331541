"""`coppice synthesize`: run a published synthesis method, verify its schedule, and compare it with the bound."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import ProblemOptions
from coppice.cli.output import Stages, print_fields, print_json, to_stdout
from coppice.cli.plan.command import plan_fields
from coppice.errors import InputError
from coppice.options import option, parse_settings
from coppice.options.names import SYNTHESIS_METHODS
from coppice.options.shared import JsonOption, OutputOption, SeedOption, TimeLimitOption
from coppice.text import percent_text, seconds_text

if TYPE_CHECKING:
    from coppice.planners.synthesis.groups import GroupPlans
    from coppice.planners.synthesis.synthesizing import SynthesizedResult

INTERRUPTED = 130
NOT_FOUND = 1


@with_options(
    "topology collective method parameters seed time_limit output boxes root weights demands ranks relays rates "
    "settings round_digits as_json"
)
def synthesize(
    asked: ProblemOptions,
    *,
    method: Annotated[str, option(f"One of: {', '.join(SYNTHESIS_METHODS)}.", metavar="NAME")],
    seed: SeedOption = 0,
    time_limit: TimeLimitOption = None,
    parameters: Annotated[
        list[str] | None,
        option(
            "Parameter of the method: sketch (file of TACCL's format), chunk_size (such as 1M, where latency counts), "
            "steps, rounds and chunks of a rank (sccl), pareto=true (sccl: all optimal pairs of latency and "
            "bandwidth), groups (tacos: several at once, 8 being 8 ranks in a row, 8:4 those 4 apart, or 0-3/4-7); "
            "may be repeated.",
            "--parameter",
            "-p",
            metavar="KEY=VALUE",
            was=[
                "--sketch sketch={}",
                "--chunk-size chunk_size={}",
                "--steps steps={}",
                "--rounds rounds={}",
                "--chunks chunks={}",
                "--pareto pareto=true",
                "--groups groups={}",
            ],
        ),
    ] = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Synthesise a schedule by a published method, verify it, and print its distance from the exact bound.

    Exit code 1 if there is no such schedule or none was found in time; Ctrl-C keeps the best found so far.

    \b
    Examples:
      coppice synthesize dgx-1v --collective all_gather --method sccl -p steps=2 -p rounds=3 -p chunks=2
      coppice synthesize dgx-h100 --boxes 4 --collective all_reduce --method tacos -p groups=4:8 -o jobs.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.planners.synthesis.synthesizing import synthesize as run
    from coppice.schedule.explanation import title_of
    from coppice.schedule.files.plan_file import write_plan

    options: dict[str, Any] = dict(parse_settings(parameters or (), option="--parameter"))
    if "groups" in options:
        _together(asked, method, options, seed=seed, time_limit_s=time_limit, output=output, as_json=as_json)
        return
    printed = to_stdout(output, as_json=as_json)
    with Stages() as stages:
        stages.begin("reading the topology")
        problem = asked.load_problem()
        result = run(
            problem, method=method, options=options, seed=seed, time_limit_s=time_limit, on_stage=stages.begin
        )
        if output is not None and result.planned is not None:
            stages.begin("writing the plan")
            write_plan(result.plan, output)
    if as_json:
        print_json("synthesize-none" if result.planned is None else "synthesize", result.record())
    else:
        fields = _fields(result)
        if output is not None and result.planned is not None and not printed:
            fields.append(("written to", str(output)))
        print_fields(title_of(problem), fields, file=sys.stderr if printed else sys.stdout)
    if result.synthesis.interrupted:
        raise typer.Exit(INTERRUPTED)
    if result.planned is None and options.get("pareto") != "true":
        raise typer.Exit(NOT_FOUND)


def _together(
    asked: ProblemOptions,
    method: str,
    options: dict[str, Any],
    *,
    seed: int,
    time_limit_s: float | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Several groups at once: print what they reach, and write a plan for each and the list of jobs that names them.

    Raises:
        InputError: If another method or an option of one is asked for.
    """
    from coppice.planners.synthesis.groups import read_groups, synthesize_groups

    if (
        method != "tacos"
        or {*options} - {"groups", "chunks"}
        or asked.root is not None
        or asked.weights is not None
        or asked.demands is not None
    ):
        raise InputError(
            "several groups at once are matched by tacos with groups, chunks, --seed and --time-limit: leave out the "
            "rest."
        )
    with Stages() as stages:
        stages.begin("reading the topology")
        topology = asked.load()
        members = read_groups(options["groups"], topology.num_ranks)
        stages.begin("matching all groups")
        found = synthesize_groups(
            topology,
            asked.collective,
            members,
            chunks=_chunks(options.get("chunks")),
            seed=seed,
            time_limit_s=time_limit_s,
            on_stage=stages.begin,
        )
        if output is not None:
            _write_groups(found, output)
    if as_json:
        print_json("synthesize-groups", found.record())
    else:
        rate = float(1 / found.ns_per_byte) if found.ns_per_byte else 0.0
        fields = [
            ("groups", f"{len(found.groups)} of {len(found.groups[0])} ranks, matched together"),
            ("each reaches", f"{rate:.6g} GB/s algbw while all run, chunk by chunk"),
            ("gap", f"{found.gap:.2%} below what no schedule of all groups can beat"),
            ("attempts", f"{found.attempts} done"),
            ("verified", f"yes: {len(found.plans)} plans"),
        ]
        if output is not None:
            fields.append(
                ("written to", f"{output}, for `coppice simulate --together`, and a plan for each group")
            )
        print_fields(f"{found.collective} on {topology.name}, {options['groups']}", fields)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)


def _chunks(text: str | None) -> int | None:
    if text is not None and not (text.isdecimal() and len(text) < 8 and int(text) > 0):
        raise InputError(f"expected chunks of 1 or more, found {text!r}.")
    return None if text is None else int(text)


def _write_groups(found: GroupPlans, output: Path) -> None:
    """The list of jobs, and beside it the plan of each group."""
    from coppice.schedule.files.jobs_file import JobRow, write_jobs
    from coppice.schedule.files.plan_file import write_plan

    jobs = []
    for number, plan in enumerate(found.plans):
        path = output.with_name(f"{output.stem}-{number}.json")
        write_plan(plan, path)
        jobs.append(JobRow(name=f"group {number}", plan=path.name, size="64M"))
    write_jobs(jobs, output)


def _fields(result: SynthesizedResult) -> list[tuple[str, str]]:
    """What is printed about a result."""
    words = list(result.synthesis.words)
    ended = " (interrupted: the best found so far)" if result.synthesis.interrupted else ""
    fields = [(result.method, f"{result.status} after {seconds_text(result.seconds)}{ended}"), *words]
    if result.planned is None:
        return fields
    gap = ("gap to the bound", percent_text(result.planned.loss) if result.planned.loss else "none")
    return [*fields, gap, *plan_fields(result.planned, [])]
