"""`coppice synthesize`: run a published synthesis method, verify its schedule, and compare it with the bound."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.cli.options.declaring import with_options
from coppice.cli.options.problem import ProblemOptions
from coppice.cli.output.render import Stages, print_fields, print_json, to_stdout
from coppice.cli.plan import plan_fields
from coppice.errors import InputError
from coppice.options import option, parse_settings
from coppice.options.names import SYNTHESIS_METHODS
from coppice.options.shared import JsonOption, OutputOption, ParameterOption
from coppice.text import percent_text, seconds_text

if TYPE_CHECKING:
    from coppice.planners.synthesis.groups import GroupPlans
    from coppice.planners.synthesis.synthesizing import SynthesizedResult

INTERRUPTED = 130
NOT_FOUND = 1


@with_options(
    "topology collective method groups sketch chunk_size steps rounds chunks pareto seed time_limit parameters output "
    "boxes root weights ranks relays rates settings round_digits as_json"
)
def synthesize(
    asked: ProblemOptions,
    *,
    method: Annotated[str, option(f"One of: {', '.join(SYNTHESIS_METHODS)}.", metavar="NAME")],
    sketch: Annotated[Path | None, option("Sketch file of TACCL's format.", metavar="FILE")] = None,
    chunk_size: Annotated[
        str | None,
        option("Size of a chunk, such as 1M, where latency counts.", metavar="SIZE"),
    ] = None,
    steps: Annotated[int | None, option("Steps S of sccl.", ge=0)] = None,
    rounds: Annotated[int | None, option("Rounds R of sccl.", ge=0)] = None,
    chunks: Annotated[int | None, option("Chunks of each rank.", ge=1)] = None,
    pareto: Annotated[bool, option("All optimal pairs of latency and bandwidth (sccl).")] = False,
    groups: Annotated[
        str | None,
        option(
            "Several groups at once, with tacos: 8 (of 8 ranks in a row), 8:4 (of 8 ranks 4 apart), or 0-3/4-7.",
            metavar="LIST",
        ),
    ] = None,
    seed: Annotated[int, option("Where random choices begin.", ge=0)] = 0,
    time_limit: Annotated[
        float | None,
        option("Then the best found so far counts [default: none].", metavar="SECONDS"),
    ] = None,
    parameters: ParameterOption = None,
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Synthesise a schedule by a published method, verify it, and print its distance from the exact bound.

    Exit code 1 if there is no such schedule or none was found in time; Ctrl-C keeps the best found so far.

    \b
    Examples:
      coppice synthesize dgx-1v --collective all_gather --method sccl --steps 2 --rounds 3 --chunks 2
      coppice synthesize dgx-h100 --boxes 4 --collective all_reduce --method tacos --groups 4:8 -o jobs.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.planners.synthesis.synthesizing import synthesize as run
    from coppice.schedule.explanation import title_of
    from coppice.schedule.files.plan_file import write_plan

    if groups is not None:
        _together(
            asked,
            method,
            groups,
            {"chunks": chunks, "seed": seed, "time_limit_s": time_limit},
            refused=sketch or chunk_size or steps or rounds or pareto or parameters,
            output=output,
            as_json=as_json,
        )
        return
    printed = to_stdout(output, as_json=as_json)
    named = {
        "sketch": None if sketch is None else str(sketch),
        "chunk_size": chunk_size,
        "steps": steps,
        "rounds": rounds,
        "chunks": chunks,
        "pareto": pareto or None,
    }
    options: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
    options |= parse_settings(parameters or (), option="--parameter")
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
        print_json(result.record())
    else:
        fields = _fields(result)
        if output is not None and result.planned is not None and not printed:
            fields.append(("written to", str(output)))
        print_fields(title_of(problem), fields, file=sys.stderr if printed else sys.stdout)
    if result.synthesis.interrupted:
        raise typer.Exit(INTERRUPTED)
    if result.planned is None and not pareto:
        raise typer.Exit(NOT_FOUND)


def _together(
    asked: ProblemOptions,
    method: str,
    text: str,
    options: dict[str, Any],
    *,
    refused: object,
    output: Path | None,
    as_json: bool,
) -> None:
    """Several groups at once: print what they reach, and write a plan for each and the list of jobs that names them.

    Raises:
        InputError: If another method or an option of one is asked for.
    """
    from coppice.planners.synthesis.groups import read_groups, synthesize_groups

    if method != "tacos" or refused or asked.root is not None or asked.weights is not None:
        raise InputError(
            "several groups at once are matched by tacos with --chunks, --seed and --time-limit: leave out the rest."
        )
    with Stages() as stages:
        stages.begin("reading the topology")
        topology = asked.load()
        members = read_groups(text, topology.num_ranks)
        stages.begin("matching all groups")
        found = synthesize_groups(topology, asked.collective, members, on_stage=stages.begin, **options)
        if output is not None:
            _write_groups(found, output)
    if as_json:
        print_json(found.record())
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
                ("written to", f"{output}, for `coppice simulate --jobs`, and a plan for each group")
            )
        print_fields(f"{found.collective} on {topology.name}, {text}", fields)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)


def _write_groups(found: GroupPlans, output: Path) -> None:
    """The list of jobs, and beside it the plan of each group."""
    import json

    from coppice.files import write_atomically
    from coppice.schedule.files.plan_file import write_plan

    jobs = []
    for number, plan in enumerate(found.plans):
        path = output.with_name(f"{output.stem}-{number}.json")
        write_plan(plan, path)
        jobs.append({"name": f"group {number}", "plan": path.name, "size": "64M"})
    text = json.dumps({"format": "coppice-jobs", "version": 1, "jobs": jobs}, indent=1)
    write_atomically(output, f"{text}\n".encode())


def _fields(result: SynthesizedResult) -> list[tuple[str, str]]:
    """What is printed about a result."""
    words = list(result.synthesis.words)
    ended = " (interrupted: the best found so far)" if result.synthesis.interrupted else ""
    fields = [(result.method, f"{result.status} after {seconds_text(result.seconds)}{ended}"), *words]
    if result.planned is None:
        return fields
    gap = ("gap to the bound", percent_text(result.planned.loss) if result.planned.loss else "none")
    return [*fields, gap, *plan_fields(result.planned, [])]
