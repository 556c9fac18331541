"""`coppice compile`: compile a collective written in Python to a plan, and to thread blocks of a runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.output import Stages, print_fields, print_json, to_stdout
from coppice.errors import InputError
from coppice.options import argument, option, parse_settings
from coppice.options.shared import (
    BoxesOption,
    JsonOption,
    OutputOption,
    RatesOption,
    RelayGpusOption,
    SetOption,
)
from coppice.text import bandwidth_text, percent_text, plural

if TYPE_CHECKING:
    from coppice.export.formats import Exported
    from coppice.language.compiled import CompiledProgram
    from coppice.topology.model import Topology

_INTERRUPTED = 130


@with_options()
def compile_file(
    file: Annotated[
        str,
        argument(
            "Python file that leaves a ChunkProgram called program, or a function that makes one; - is standard "
            "input. It is executed.",
            metavar="FILE",
        ),
    ],
    *,
    output: OutputOption = None,
    parameters: Annotated[
        list[str] | None,
        option(
            "Argument of the function program, such as ranks=8; may be repeated.",
            "--parameter",
            "-p",
            metavar="KEY=VALUE",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        option(
            "Where its ranks are: preset or file [default: what the program names, or all GPUs at one switch].",
            metavar="TOPOLOGY",
        ),
    ] = None,
    program: Annotated[
        Path | None,
        option(
            "Write its thread blocks, channels and steps as MSCCL XML for --target, hints kept.",
            metavar="FILE",
        ),
    ] = None,
    target: Annotated[
        str | None,
        option("Who reads --program: rccl, azure-executor or msccl.", metavar="NAME"),
    ] = None,
    boxes: BoxesOption = None,
    relay_gpus: RelayGpusOption = False,
    rates: RatesOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile a collective written in Python, chunk by chunk, to a plan.

    The file is executed, with all your rights: compile only what you would run. What it does to every chunk is
    checked line by line: races, chunks that are not there, deadlocks by hints, wrong results. The plan is verified,
    and is taken by every other command; the thread blocks of --program have the channels, thread blocks, instances
    and the protocol that the file asks for.

    \b
    Examples:
      coppice compile examples/language/all_reduce_ring.py -o plan.json
      coppice compile examples/language/all_reduce_ring.py --parameter ranks=16 --json
      coppice compile examples/language/all_to_all_two_step.py --topology dgx-a100 --boxes 2 -o plan.json
      coppice compile examples/language/all_reduce_ring.py --program ring.xml --target msccl
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.language.compiled import compile_program
    from coppice.schedule.files.plan_file import write_plan

    if topology is None and (boxes is not None or rates is not None or settings):
        raise InputError("--boxes, --rates and --set belong to a topology: give one with --topology.")
    if (program is None) != (target is None):
        raise InputError(
            "--program and --target belong together: give both, or export the plan with `coppice export`."
        )
    printed = to_stdout(output, as_json=as_json)

    def place() -> Topology:
        return load_topology(topology or "", boxes=boxes, rates=rates, settings=settings)

    try:
        with Stages() as stages:
            made = compile_program(
                file,
                topology=None if topology is None else place,
                parameters=parse_settings(parameters or (), option="--parameter"),
                relay_gpus=relay_gpus,
                on_stage=stages.begin,
            )
            written = None if program is None or target is None else _written(made, program, target)
            if output is not None:
                write_plan(made.plan, output)
    except KeyboardInterrupt as interrupt:
        if not interrupt.args:
            raise
        typer.echo(f"error: {interrupt.args[0]}: interrupted here: does a loop not end?", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    if printed:
        return
    if as_json:
        files = {"output": output, "program_file": program}
        print_json(
            "compile",
            {**made.record(), **{key: None if each is None else str(each) for key, each in files.items()}},
        )
        return
    fields = _fields(made)
    if output is not None:
        fields.append(("written to", str(output)))
    if written is not None:
        fields.append(("thread blocks in", f"{program}, for {target}"))
    from coppice.schedule.explanation import title_of

    print_fields(title_of(made.plan.problem), fields)


def _written(made: CompiledProgram, path: Path, target: str) -> Exported:
    """The thread blocks in a file for a target.

    Raises:
        InputError: If no runtime takes the program.
        CheckError: If it does not fit the target.
    """
    from coppice.export.msccl.targets import target_named
    from coppice.export.registry import export
    from coppice.language.compiled import per_rank_program

    chosen = target_named(target)
    if made.program is None:
        raise InputError(
            "no runtime takes an all-to-all with demands: leave --program out, and run the plan."
        )
    found = per_rank_program(made.source, fused=False) if chosen.refused_types else made.program
    return export(found, "msccl-xml", path, target=target)


def _fields(made: CompiledProgram) -> list[tuple[str, str]]:
    """The lines about a compiled program."""
    plan, source = made.plan, made.source
    busbw = plan.algbw_gb_per_s * plan.problem.busbw_factor
    loss = f"{percent_text(made.loss)} below the optimum" if made.loss else "optimal"
    fields = [
        (
            "program",
            f"{source.name}: {plural(source.num_operations, 'operation')} on {plural(source.num_chunks, 'chunk')}",
        ),
        ("checked", "no race, no missing chunk, no deadlock, the right result"),
        ("plan", f"{plural(made.schedule.num_transfers, 'transfer')}, {made.report.proof_in_words}"),
        ("reaches", f"{bandwidth_text(plan.algbw_gb_per_s, busbw)} by its busiest link: {loss}"),
    ]
    if made.program is not None:
        found = made.program
        blocks = (
            f"{plural(found.most_blocks, 'thread block')} a GPU on {plural(found.num_channels, 'channel')}"
        )
        form = f"{plural(source.instances, 'instance')}, {source.protocol}"
        fields.append(("thread blocks", f"{blocks}, up to {plural(found.most_steps, 'step')} each ({form})"))
    return fields
