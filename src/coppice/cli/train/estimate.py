"""`coppice train estimate`: the time of an iteration of a model on a cluster, and where it goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.cli.options.inputs import BoxesOption, JsonOption, RatesOption, SetOption
from coppice.cli.options.names import PIPELINE_ORDERS
from coppice.cli.output.render import print_fields, print_json, print_lines
from coppice.cli.train.asked import (
    BatchOption,
    ClusterOption,
    DeviceOption,
    FusedOption,
    JobArgument,
    asked_record,
    load_of_job,
    parse_degrees,
)
from coppice.cli.train.changes import DegradeOption, WhatIfOption, answers, answers_record, answers_table
from coppice.errors import CheckError
from coppice.text import seconds_text

if TYPE_CHECKING:
    from coppice.iteration.job import SimulatedJob
    from coppice.iteration.transformer import Transformer
    from coppice.iteration.workload.model import LayeredModel

__all__ = ["estimate"]


def estimate(
    job: JobArgument,
    *,
    cluster: ClusterOption = None,
    boxes: BoxesOption = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            "--parallel",
            metavar="LIST",
            help="Degrees, such as tp=8,pp=16,dp=4: tensor, pipeline, data, context (cp), experts (ep), chunks of a "
            "device (vp).",
        ),
    ] = None,
    global_batch: BatchOption = None,
    micro_batch: Annotated[
        int | None, typer.Option("--micro-batch", min=1, help="Samples of a micro-batch [default: 1].")
    ] = None,
    recompute: Annotated[
        str | None,
        typer.Option(
            "--recompute", metavar="WHAT", help="Computed again: none, selective (default) or full."
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="WHAT",
            help="What replicas share out: none (default), zero1, zero2, zero3, fsdp.",
        ),
    ] = None,
    sequence_parallel: Annotated[
        bool | None,
        typer.Option(
            "--sequence-parallel/--no-sequence-parallel",
            help="Share out norms along the sequence [default: they are].",
        ),
    ] = None,
    fused_attention: FusedOption = None,
    device: DeviceOption = None,
    order: Annotated[
        str | None,
        typer.Option(
            "--order",
            metavar="NAME",
            help=f"Simulate the pipeline in an order: {', '.join(PIPELINE_ORDERS)}.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Write the simulated tasks for Perfetto [implies --order]."
        ),
    ] = None,
    what_if: WhatIfOption = None,
    degrade: DegradeOption = None,
    rates: RatesOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the time of a training iteration, and say where it goes and what it keeps in memory.

    Exit code 1 if it does not fit the memory of a GPU.

    \b
    Examples:
      coppice train estimate gpt-175b --cluster dgx-a100 --boxes 64 --parallel tp=8,pp=16,dp=4 --global-batch 512
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.job import simulate_job
    from coppice.iteration.job.job import job_of
    from coppice.iteration.job.paced import estimate_of_job
    from coppice.iteration.memory import memory_of
    from coppice.iteration.trace import write_task_trace

    record, folder = asked_record(
        job,
        cluster={"topology": cluster, "boxes": boxes, "device": device},
        layout={
            **parse_degrees(parallel),
            "global_batch": global_batch,
            "micro_batch": micro_batch,
            "recompute": recompute,
            "shard": shard,
            "sequence_parallel": sequence_parallel,
            "fused_attention": fused_attention,
        },
        run={"order": order},
        rates=rates,
        settings=settings,
    )
    asked = job_of(record, folder=folder, loaded=load_of_job)
    chosen, layout, machines = asked.model, asked.layout, asked.cluster
    found, held = estimate_of_job(asked), memory_of(chosen, layout)
    order = asked.run.order
    changed = answers(asked, what_if, degrade)
    if trace is not None and order is None:
        order = "interleaved" if layout.chunks > 1 else "1f1b"
    simulated = None if order is None else simulate_job(chosen, layout, machines, order)
    if simulated is not None and trace is not None:
        write_task_trace(simulated.times, trace)
    tokens = layout.global_batch * getattr(chosen, "seq", 0) / found.seconds or None
    fits = held.total <= machines.device.memory_bytes
    times = {name: getattr(found, name) for name in _PARTS}
    memory = {name: getattr(held, name) for name in ("parameters", "gradients", "optimizer", "activations")}
    if as_json:
        print_json(
            {
                "iteration_seconds": found.seconds,
                "mfu": found.mfu,
                "samples_per_second": layout.global_batch / found.seconds,
                "tokens_per_second": tokens,
                "seconds_by_part": times,
                "memory_bytes": held.total,
                "memory_by_part": memory,
                "fits": fits,
                "device": machines.device.name,
                "least_seconds": found.compute + found.head + found.optimizer,
                **_simulated_record(simulated),
                **answers_record(changed),
            }
        )
    else:
        parts = ", ".join(
            f"{_PARTS[name]} {100 * value / found.seconds:.3g}%" for name, value in times.items() if value
        )
        least = found.compute + found.head + found.optimizer
        kept = ", ".join(f"{name} {value / 1e9:.3g}" for name, value in memory.items())
        room = "" if fits else f": more than the {machines.device.memory_bytes / 1e9:.0f} GB of it"
        fields = [
            ("iteration", f"{seconds_text(found.seconds)}, {100 * found.mfu:.3g}% of the peak (MFU)"),
            _pace(chosen, layout.global_batch / found.seconds),
            ("goes to", parts),
            ("best order", f"no order takes less than {seconds_text(least)}: what the busiest GPU computes"),
            ("memory", f"{held.total / 1e9:.3g} GB of a {machines.device.name}{room}"),
            ("of it (GB)", kept),
        ]
        if simulated is not None:
            beyond = max(0.0, simulated.seconds / simulated.lower_bound_seconds - 1)
            words = f"{seconds_text(simulated.seconds)} without the optimizer"
            words += f", {beyond:.2%} above the bound of any order"
            fields.insert(1, (f"as {simulated.order}", words))
        print_fields(f"{asked.name} on {asked.machines.name}", fields)
        print_lines(answers_table(changed))
    if not fits:
        msg = (
            f"expected a job that fits {machines.device.memory_bytes / 1e9:.0f} GB, found {held.total / 1e9:.3g} GB: "
            "raise tp, pp or --recompute, or share out with --shard."
        )
        raise CheckError(msg)


_PARTS = {
    "compute": "layers",
    "head": "head and loss",
    "tensor": "sums of tensor parallelism",
    "sends": "sends between stages",
    "exchange": "all-to-alls",
    "bubble": "bubble",
    "gradients": "sums of gradients",
    "optimizer": "optimizer",
}


def _pace(model: Transformer | LayeredModel, samples_per_second: float) -> tuple[str, str]:
    """What is trained in a second: tokens of text, otherwise samples."""
    if model.sample == "sequence":
        return "tokens/s", f"{samples_per_second * getattr(model, 'seq', 1):,.0f}"
    return f"{model.sample}s/s", f"{samples_per_second:,.0f}"


def _simulated_record(simulated: SimulatedJob | None) -> dict[str, Any]:
    """The simulation as JSON values."""
    if simulated is None:
        return {}
    bound = simulated.lower_bound_seconds
    return {"order": simulated.order, "simulated_seconds": simulated.seconds, "lower_bound_seconds": bound}
