"""`coppice train import`: a measured trace of training, where its time goes, and its replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coppice.cli.options.inputs import JsonOption, parse_settings
from coppice.cli.output.render import print_fields, print_json
from coppice.errors import InputError

__all__ = ["import_trace"]


def import_trace(
    file: Annotated[
        Path,
        typer.Argument(metavar="TRACE", help="Trace of PyTorch's profiler of one rank (JSON, also gzipped)."),
    ],
    *,
    scale: Annotated[
        list[str] | None,
        typer.Option(
            "--scale",
            metavar="KIND=FACTOR",
            help="Replay with times of compute, communication or host multiplied; may be repeated.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write the replayed tasks for Perfetto.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read a trace of training, say where its time goes, and replay it as tasks.

    With --scale the replay answers what would change: operations run after the calls that launch them, after what is
    before them on their stream, and after what they waited for.

    \b
    Examples:
      coppice train import trace.json.gz
      coppice train import trace.json.gz --scale communication=0.5
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.kineto import read_kineto
    from coppice.iteration.trace import write_task_trace

    factors = {}
    for kind, text in parse_settings(scale or (), option="--scale").items():
        try:
            factors[kind] = float(text)
        except ValueError:
            msg = f"expected a factor such as 0.5 for --scale {kind}, found {text!r}."
            raise InputError(msg) from None
    measured = read_kineto(file)
    replay = measured.replay(factors)
    if trace is not None:
        write_task_trace(replay.times, trace)
    span, busy = measured.span_us, measured.busy_us()
    if as_json:
        print_json(
            {
                "span_us": span,
                "steps_us": list(measured.steps),
                "operations": len(measured.operations),
                "busy_us": busy,
                "scale": factors,
                "replay_us": 1e6 * replay.seconds,
            }
        )
        return
    change = 1e6 * replay.seconds / span - 1
    named = (
        "replayed"
        if not factors
        else "with " + ", ".join(f"{kind} x {value:g}" for kind, value in factors.items())
    )
    fields = [
        ("trace", f"{span / 1e3:.6g} ms, {len(measured.operations)} operations of the device"),
        *(
            (kind.replace("_", " "), f"{value / 1e3:.6g} ms, {value / span:.1%}")
            for kind, value in busy.items()
        ),
        (named, f"{1e3 * replay.seconds:.6g} ms, {change:+.2%}"),
    ]
    if measured.steps:
        fields.insert(
            1, ("steps", f"{len(measured.steps)} of {sum(measured.steps) / len(measured.steps) / 1e3:.6g} ms")
        )
    print_fields(str(file), fields)
