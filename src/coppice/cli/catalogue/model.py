"""`coppice model`: time models for simulation, and models fitted to measurements."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from coppice.bounds.problem import Problem
from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import ProblemOptions, print_warnings
from coppice.cli.options.measuring import chosen_model
from coppice.cli.output import (
    Stages,
    print_fields,
    print_json,
    print_lines,
    print_note,
    to_stdout,
    write_text,
)
from coppice.collectives import Collective
from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.files import read_bytes
from coppice.fitting.time_model import LIBRARY, FittedModel, MeasuredTime, bodies_of, fit
from coppice.logs.reading import parse_log
from coppice.options import argument, option
from coppice.options.shared import JsonOption, ModelOption, OutputOption
from coppice.simulation.models import model_bytes, named_models
from coppice.simulation.simulated import model_record
from coppice.text import plural

if TYPE_CHECKING:
    from coppice.outputs.shapes.timing import FittedModelJson

app = typer.Typer(
    help="List, show and fit time models: the cost of messages on top of link rates and latencies."
)


@app.command("list")
@with_options()
def list_models(*, as_json: JsonOption = False) -> None:
    """List the named time models; the first is the default.

    \b
    Examples:
      coppice model list
    """  # noqa: D301 (\b is for the help formatter)
    found = named_models()
    if as_json:
        print_json(
            "model-list",
            {"models": [{**model_record(each.model), "about": each.about} for each in found.values()]},
        )
        return
    print_lines([f"{name:<10}  {each.about}" for name, each in found.items()])


@app.command()
@with_options()
def show(
    name: Annotated[str, argument("Name of a model, or a file with one.", metavar="NAME|FILE")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Show the figures of a time model, and their sources.

    \b
    Examples:
      coppice model show nccl-2.30
      coppice model show mine.json --json
    """  # noqa: D301 (\b is for the help formatter)
    model = chosen_model(name)
    known = named_models().get(name)
    sources = {} if known is None else known.sources
    if as_json:
        print_json("model", {**model_record(model), "sources": sources})
        return
    about = [] if known is None else [("about", known.about)]
    print_fields(model.text, [*about, *((f"from: {key}", text) for key, text in sources.items())])


@app.command("fit")
@with_options(
    "results topology collective algorithm model name output boxes root ranks relays rates settings as_json"
)
def fit_model(
    asked: ProblemOptions,
    *,
    results: Annotated[
        Path,
        argument(
            "Printed table of nccl-tests, or what `coppice bench --json` printed; - is standard input.",
            metavar="RESULTS",
        ),
    ],
    algorithm: Annotated[
        str | None,
        option(
            "Algorithm that nccl-tests measured [default: the library's rings or tree, the faster].",
            metavar="NAME",
        ),
    ] = None,
    model: ModelOption = None,
    name: Annotated[str, option("Name of the fitted model.")] = "fitted",
    output: OutputOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a time model to measured times, and print its prediction error.

    Launch, occupancy of workers, efficiency of links and, where the model has no protocols, what a message costs are
    chosen so that the simulated times of the measured algorithms come closest; so are the rates of copying, the cache
    and the burst of links, where the model has them. What ran in a known number of pieces is simulated in so many. Give
    the result to other commands with --model.

    \b
    Examples:
      coppice model fit all_reduce_perf.txt dgx-a100 --collective all_reduce -o mine.json
      coppice model fit bench.json ring --set gpus=8 --collective all_gather --model mpi-tcp -o mine.json
      coppice compare dgx-a100 --collective all_reduce --model mine.json
    """  # noqa: D301 (\b is for the help formatter)
    printed = to_stdout(output, as_json=as_json)
    start = chosen_model(model)
    with Stages() as stages:
        stages.begin("reading the times")
        problem = asked.load_problem()
        times = _times(results, problem, algorithm or LIBRARY)
        stages.begin("planning")
        names = list(dict.fromkeys(row.algorithm for row in times))
        bodies = bodies_of(problem.topology, problem.collective, names, root=problem.root or 0)
        found = fit(
            times,
            bodies,
            start,
            name=name,
            on_progress=lambda tried, error: stages.begin(f"{tried} models tried, {100 * error:.1f}% off"),
        )
    if output is not None:
        sources = {
            "fitted": f"{plural(len(times), 'time')} of {problem.collective} on {problem.topology.name}"
        }
        write_text(
            model_bytes(found.model, about=f"fitted from {start.name}", sources=sources).decode(), output
        )
    if as_json:
        print_json("model-fit", _record(found, times))
        return
    error = f"{100 * found.mean_error:.1f}% on average, {100 * found.worst_error:.1f}% at most"
    if not found.judged:
        figures = plural(len(found.figures), "figure")
        error = f"not known: {figures} fit any {plural(len(times), 'time')}; measure more sizes"
    fields = [
        ("model", found.model.text),
        ("fitted to", f"{plural(len(times), 'time')} of {', '.join(names)}"),
        ("error", error),
    ]
    if output is not None and not printed:
        fields.append(("written to", str(output)))
    print_fields(
        f"{problem.collective} on {problem.topology.name}", fields, file=sys.stderr if printed else sys.stdout
    )


def _record(found: FittedModel, times: list[MeasuredTime]) -> FittedModelJson:
    """The fit as JSON values."""
    return {
        "model": model_record(found.model),
        "figures": list(found.figures),
        "mean_error": found.mean_error,
        "worst_error": found.worst_error,
        "rows": [
            {
                "algorithm": row.algorithm,
                "size_bytes": row.size_bytes,
                "time_us": row.time_us,
                "predicted_us": row.time_us * (1 + error),
            }
            for row, error in zip(times, found.errors, strict=True)
        ],
    }


class _BenchRow(msgspec.Struct):
    """What is needed of a line of `coppice bench --json`."""

    collective: str
    algorithm: str
    size_bytes: int
    time_us: float
    pieces: int = 0
    refusal: str = ""


def _times(path: Path, problem: Problem, algorithm: str) -> list[MeasuredTime]:
    """The times in a file of either kind.

    Raises:
        InputError: If there are none of the collective.
    """
    data = read_bytes(path, what="the measured times")
    collective = problem.collective
    found = _bench_times(data, collective)
    if found is None:
        found = _logged_times(data, path, problem, algorithm)
    if not found:
        raise InputError(
            f"expected measured times of {collective} in {path}, found none: give what `coppice bench --json` "
            "printed, or the table of nccl-tests."
        )
    return found


def _logged_times(data: bytes, path: Path, problem: Problem, algorithm: str) -> list[MeasuredTime]:
    """The times of a table of nccl-tests; of sizes measured out of place and in place, those out of place.

    Raises:
        InputError: If they were measured on another number of ranks.
    """
    log = parse_log(data, file=str(path), collective=problem.collective)
    print_warnings([log])
    rows = [row for row in log.measurements if row.collective is problem.collective]
    ranks = {row.ranks for row in rows} - {None, problem.topology.num_ranks}
    if ranks:
        counts = ", ".join(str(count) for count in sorted(ranks, key=str))
        raise InputError(
            f"expected times of {problem.topology.num_ranks} ranks, as {problem.topology.name} has, found those of "
            f"{counts} in {path}: name the topology on which they were measured."
        )
    other = len(log.measurements) - len(rows)
    zero = [row for row in rows if not (row.size_bytes > 0 and row.time_us > 0)]
    for count, why in ((other, f"no times of {problem.collective}"), (len(zero), "of no size or no time")):
        if count:
            print_note(f"note: {plural(count, 'measurement')} in {path} are left out: {why}")
    apart = {row.size_bytes for row in rows if not row.in_place}
    return [
        MeasuredTime(algorithm=algorithm, size_bytes=row.size_bytes, time_us=row.time_us)
        for row in rows
        if row not in zero and (not row.in_place or row.size_bytes not in apart)
    ]


def _bench_times(data: bytes, collective: Collective) -> list[MeasuredTime] | None:
    """The times of our own algorithms in lines of JSON; None where these are none."""
    lines = [line for line in data.splitlines() if line.strip()]
    try:
        rows = [msgspec.json.decode(line, type=decodable(_BenchRow)) for line in lines]
    except msgspec.DecodeError:
        return None
    return [
        MeasuredTime(
            algorithm=row.algorithm, size_bytes=row.size_bytes, time_us=row.time_us, pieces=row.pieces or None
        )
        for row in rows
        if row.collective == collective
        and not row.refusal
        and row.size_bytes > 0
        and row.algorithm not in ("native", "direct")
    ]
