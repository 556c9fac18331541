"""`coppice simulate`: when every message of a plan runs, how long it takes, and what it waits for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coppice.cli.options.inputs import JsonOption
from coppice.cli.options.measuring import OverheadOption
from coppice.cli.output.render import Stages, print_fields, print_json, print_lines
from coppice.cli.simulate.text import (
    busiest_lines,
    job_lines,
    model_text,
    scenario_fields,
    single_fields,
    table_lines,
)
from coppice.comparison.table import number
from coppice.errors import InputError
from coppice.schedule.cost import HOP_OVERHEAD_US
from coppice.schedule.explanation import title_of
from coppice.schedule.files.plan_file import read_plan
from coppice.simulation.channels import Wire, wire_for
from coppice.simulation.critical import critical_lines
from coppice.simulation.jobs import read_jobs, simulate_together
from coppice.simulation.model import Model, Sharing
from coppice.simulation.simulated import Scenario, simulate_sizes, simulated_record
from coppice.simulation.trace import write_trace
from coppice.text import parse_sizes, plural

__all__ = ["simulate"]


def simulate(
    plan: Annotated[
        str | None,
        typer.Argument(metavar="[PLAN]", help="Plan file; - is standard input.", show_default=False),
    ] = None,
    *,
    size: Annotated[
        str,
        typer.Option(
            "--size",
            "-s",
            metavar="BYTES|LIST",
            help="Message size M: bytes, or with K, M, G in powers of 1024; a list or range such as 1K:1G for a table.",
        ),
    ] = "1M",
    pieces: Annotated[
        str, typer.Option("--pieces", metavar="N|best", help="Cut every chunk into so many pieces.")
    ] = "best",
    overhead: OverheadOption = HOP_OVERHEAD_US,
    sharing: Annotated[
        Sharing | None,
        typer.Option(
            "--sharing",
            metavar="fifo|fair",
            help="How messages share a link: one at a time, or all at max-min fair rates "
            "[default: fifo; fair with --jobs].",
            show_default=False,
        ),
    ] = None,
    store_and_forward: Annotated[
        bool, typer.Option("--store-and-forward", help="Switches forward whole messages only.")
    ] = False,
    engines: Annotated[
        int,
        typer.Option(
            "--engines",
            min=0,
            metavar="N",
            help="Messages that a GPU sends, and receives, at a time; 0: any number.",
        ),
    ] = 0,
    reduce_rate: Annotated[
        float | None,
        typer.Option(
            "--reduce-rate",
            metavar="GB/S",
            help="Rate at which a GPU adds what it receives [default: adding takes no time].",
            show_default=False,
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            metavar="simple|ll|ll128",
            help="Beside the nominal rate the one that is achievable with this protocol.",
            show_default=False,
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(
            "--channels", metavar="N", help="Channels of a GPU, for the achievable rate.", show_default=False
        ),
    ] = None,
    channel_rate: Annotated[
        float | None,
        typer.Option(
            "--channel-rate",
            metavar="GB/S",
            help="Rate of a channel [default: the protocol's for these GPUs].",
            show_default=False,
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="volta|ampere|hopper|blackwell",
            help="Generation of the GPUs, where the topology's name does not tell.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds",
            min=0,
            metavar="N",
            help="Hash default routes in N ways: median and 99th percentile of the time.",
        ),
    ] = 0,
    multipath: Annotated[
        bool, typer.Option("--multipath", help="Spread default routes evenly over all equally good ones.")
    ] = False,
    jobs: Annotated[
        Path | None,
        typer.Option(
            "--jobs",
            metavar="FILE",
            help="Instead of one plan: several at once, from a JSON file (see docs/simulation.md).",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Write a trace for ui.perfetto.dev.", show_default=False
        ),
    ] = None,
    links: Annotated[int, typer.Option("--links", min=0, metavar="N", help="Busiest links to list.")] = 5,
    stages: Annotated[
        int, typer.Option("--stages", min=0, metavar="N", help="Stages of the critical path to tell.")
    ] = 12,
    as_json: JsonOption = False,
) -> None:
    """Simulate a plan: its time at one size or many, its busiest links, and what it waits for.

    Every message starts when what it depends on has arrived, pays its overhead, and crosses links of limited rate and
    latency that it shares with others. With --protocol or --channels a second set of columns shows what is achievable.
    The plan is not verified: that is what `coppice verify` is for.

    \b
    Examples:
      coppice simulate plan.json --size 64M
      coppice simulate plan.json --size 1K:1G --protocol ll128 --channels 16
      coppice simulate plan.json --size 1M --pieces 4 --trace trace.json
      coppice simulate ring.json --size 16M --seeds 100
      coppice simulate --jobs jobs.json
    """  # noqa: D301 (\b is for the help formatter)
    model = Model(
        overhead_us=overhead,
        sharing=sharing or (Sharing.FIFO if jobs is None else Sharing.FAIR),
        store_and_forward=store_and_forward,
        send_engines=engines,
        receive_engines=engines,
        reduce_gb_per_s=reduce_rate,
    )
    count = _pieces(pieces)
    if jobs is not None:
        if plan is not None or protocol is not None or channels is not None or seeds or multipath:
            msg = "--jobs names its plans, and takes no plan, protocol, channels, seeds or multipath: leave them out."
            raise InputError(msg)
        _simulate_jobs(jobs, model=model, pieces=count, trace=trace, as_json=as_json)
        return
    if plan is None:
        msg = "expected a plan file, or several with `--jobs`, found none: make one with `coppice plan -o plan.json`."
        raise InputError(msg)
    sizes = parse_sizes(size, option="--size")
    if trace is not None and len(sizes) > 1:
        msg = f"a trace shows one size, found {len(sizes)} in --size {size}: give one."
        raise InputError(msg)
    if seeds and multipath:
        msg = "--seeds shows ideal multipath beside the seeds: leave out --multipath."
        raise InputError(msg)
    with Stages() as progress:
        progress.begin("reading the plan")
        loaded = read_plan(plan)
        wire: Wire | None = None
        if protocol is not None or channels is not None or channel_rate is not None:
            wire = wire_for(
                loaded.topology,
                protocol_name=protocol,
                channels=channels,
                channel_gb_per_s=channel_rate,
                generation=gpu,
            )
        scenario = Scenario(model=model, pieces=count, wire=wire)
        rows = simulate_sizes(
            loaded, sizes, scenario, seeds=seeds, multipath=multipath, on_stage=progress.begin
        )
        shown = None
        if trace is not None:
            progress.begin("writing the trace")
            shown = write_trace(rows[0].timeline, trace)
    if as_json:
        print_json(simulated_record(loaded, scenario, rows, links=links))
        return
    title = title_of(loaded.problem)
    if len(rows) > 1:
        print_fields(title, scenario_fields(loaded, scenario))
        print_lines(["", *table_lines(rows)])
        return
    fields = single_fields(rows[0], scenario)
    if trace is not None:
        fields.append(("trace", f"{trace}: {shown} of {plural(rows[0].timeline.messages.count, 'message')}"))
    print_fields(title, fields)
    if links:
        print_lines(["", "Busiest links", *busiest_lines(rows[0].timeline, links)])
    if stages:
        print_lines(
            ["", "Critical path (us)", *(f"  {line}" for line in critical_lines(rows[0].timeline, stages))]
        )


def _simulate_jobs(
    path: Path, *, model: Model, pieces: int | None, trace: Path | None, as_json: bool
) -> None:
    """Simulate the jobs of a file together, and print what becomes of each."""
    with Stages() as progress:
        progress.begin("reading the plans")
        jobs, topology = read_jobs(path, model=model, pieces=pieces)
        progress.begin("simulating")
        found = simulate_together(jobs, model=model, topology=topology)
        if trace is not None:
            progress.begin("writing the trace")
            firsts = zip(found.results, found.first.tolist(), strict=False)
            write_trace(found.timeline, trace, jobs=[(result.job.name, first) for result, first in firsts])
    if as_json:
        print_json(found.record())
        return
    fields = [("model", model_text(model)), ("all done", f"after {number(found.time_us)} us")]
    if trace is not None:
        fields.append(("trace", str(trace)))
    print_fields(f"{plural(len(jobs), 'job')} on {found.topology.name}", fields)
    print_lines(["", *job_lines(found)])


def _pieces(text: str) -> int | None:
    """The value of ``--pieces``: a number, or None for the best."""
    if text == "best":
        return None
    if not text.isdecimal() or len(text) > 7 or int(text) < 1:
        msg = f"expected --pieces to be a number of 1 or more, or best, found {text!r}."
        raise InputError(msg)
    return int(text)
