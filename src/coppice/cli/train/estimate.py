"""`coppice train estimate`: the time of an iteration of a model on a cluster, and where it goes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.cli.options.inputs import BoxesOption, JsonOption, RatesOption, SetOption, load_topology
from coppice.cli.options.names import OVERLAPS, PIPELINE_ORDERS
from coppice.cli.output.render import print_fields, print_json
from coppice.errors import CheckError, InputError
from coppice.iteration.models import MODELS, model_named
from coppice.iteration.transformer import Layout, Recompute, Shard
from coppice.text import seconds_text

if TYPE_CHECKING:
    from coppice.iteration.step.simulated import SimulatedStep

__all__ = ["estimate"]

_DEGREES = {"tp": "tensor", "pp": "pipeline", "dp": "data", "cp": "context", "vp": "chunks"}


def estimate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"One of: {', '.join(MODELS)}.")],
    *,
    cluster: Annotated[str, typer.Option("--cluster", metavar="TOPOLOGY", help="Preset or topology file.")],
    boxes: BoxesOption = None,
    parallel: Annotated[
        str,
        typer.Option(
            "--parallel",
            metavar="LIST",
            help="Degrees, such as tp=8,pp=16,dp=4: tensor, pipeline, data, context (cp), chunks of a device (vp).",
        ),
    ] = "tp=1",
    global_batch: Annotated[
        int, typer.Option("--global-batch", min=1, help="Sequences of an iteration.")
    ] = 1,
    micro_batch: Annotated[int, typer.Option("--micro-batch", min=1, help="Sequences of a micro-batch.")] = 1,
    recompute: Annotated[
        Recompute, typer.Option("--recompute", help="What is computed again.")
    ] = Recompute.SELECTIVE,
    shard: Annotated[Shard, typer.Option("--shard", help="What replicas share out.")] = Shard.NONE,
    sequence_parallel: Annotated[
        bool,
        typer.Option(
            "--sequence-parallel/--no-sequence-parallel", help="Share out norms along the sequence."
        ),
    ] = True,
    fused_attention: Annotated[
        bool, typer.Option("--fused-attention/--no-fused-attention", help="Scores stay on the chip.")
    ] = True,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="GPU [default: by the topology's name].")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            "--order",
            metavar="NAME",
            help=f"Order of the pipeline: {', '.join(PIPELINE_ORDERS)} [default: 1f1b, of chunks interleaved].",
        ),
    ] = None,
    overlap: Annotated[
        str,
        typer.Option(
            "--overlap", metavar="NAME", help=f"What runs beside computation: {', '.join(OVERLAPS)}."
        ),
    ] = "none",
    contention: Annotated[
        float,
        typer.Option(
            "--contention",
            min=0.0,
            max=1.0,
            help="Share of a GPU for which communication competes with the computation it runs beside.",
        ),
    ] = 0.0,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write the simulated tasks for Perfetto."),
    ] = None,
    rates: RatesOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a training iteration, and say where its time goes, what it waits for, and what it keeps in memory.

    Exit code 1 if it does not fit the memory of a GPU.

    \b
    Examples:
      coppice train estimate gpt-175b --cluster dgx-a100 --boxes 64 --parallel tp=8,pp=16,dp=4 --global-batch 512
      coppice train estimate gpt-175b --cluster dgx-a100 --boxes 64 --parallel tp=8,pp=16,dp=4 --global-batch 512 \
        --shard zero1 --overlap megatron --trace step.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.cluster import cluster_of
    from coppice.iteration.memory import memory_of
    from coppice.iteration.step.blocks import transformer_step
    from coppice.iteration.step.simulated import order_for, simulate_step
    from coppice.iteration.trace import write_task_trace

    chosen = model_named(model)
    topology = load_topology(cluster, boxes=boxes, rates=rates, settings=settings)
    layout = Layout(
        **_degrees(parallel),
        global_batch=global_batch,
        micro_batch=micro_batch,
        recompute=recompute,
        shard=shard,
        sequence_parallel=sequence_parallel,
        fused_attention=fused_attention,
    )
    if layout.gpus != topology.num_ranks:
        msg = (
            f"expected degrees whose product is the {topology.num_ranks} GPUs of {topology.name}, found {layout.gpus}: "
            "change --parallel or --boxes."
        )
        raise InputError(msg)
    if chosen.layers % (layout.pipeline * layout.chunks):
        msg = (
            f"expected stages that divide {chosen.layers} layers, found {layout.pipeline} x {layout.chunks}: change pp "
            "or vp of --parallel."
        )
        raise InputError(msg)
    machines = cluster_of(topology, device)
    held = memory_of(chosen, layout)
    name, passes = order_for(order, layout.pipeline, layout.micro_batches, layout.chunks)
    step = transformer_step(chosen, layout, machines)
    found = simulate_step(step, passes, name=name, overlap=overlap, contention=contention)
    if trace is not None:
        write_task_trace(found.times, trace)
    fits = held.total <= machines.device.memory_bytes
    memory = {name: getattr(held, name) for name in ("parameters", "gradients", "optimizer", "activations")}
    tokens = global_batch * chosen.seq / found.seconds
    if as_json:
        print_json(
            {
                "iteration_seconds": found.seconds,
                "mfu": found.mfu,
                "tokens_per_second": tokens,
                "memory_bytes": held.total,
                "memory_by_part": memory,
                "fits": fits,
                "device": machines.device.name,
                **_record(found),
            }
        )
    else:
        room = "" if fits else f": more than the {machines.device.memory_bytes / 1e9:.0f} GB of it"
        kept = ", ".join(f"{part} {value / 1e9:.3g}" for part, value in memory.items())
        fields = [
            ("iteration", f"{seconds_text(found.seconds)}, {100 * found.mfu:.3g}% of the peak (MFU)"),
            (f"as {found.order}", _beside(found)),
            ("tokens/s", f"{tokens:,.0f}"),
            ("goes to", _shares({_PARTS[part]: value for part, value in found.parts.items()}, found.seconds)),
            ("waits for", _shares(found.exposed, found.seconds) or "nothing but computation"),
            (
                "best order",
                f"no order takes less than {seconds_text(found.lower_bound_seconds)}: {_limit(found)}",
            ),
            ("memory", f"{held.total / 1e9:.3g} GB of a {machines.device.name}{room}"),
            ("of it (GB)", kept),
        ]
        print_fields(f"{model} on {topology.name}", fields)
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
    "experts": "exchanges of experts",
    "context": "exchanges of context parallelism",
    "sends": "sends between stages",
    "bubble": "bubble",
    "gradients": "sums of gradients",
    "optimizer": "optimizer",
}
_BESIDE = {
    "none": "nothing overlaps",
    "fsdp": "parameters are gathered and gradients scattered beside passes",
    "megatron": "gradients are scattered and parameters gathered in buckets beside passes",
}


def _beside(found: SimulatedStep) -> str:
    """What runs beside what, in words."""
    return _BESIDE.get(found.overlap, f"gradients are sent beside passes by policy {found.overlap}")


def _shares(seconds: Mapping[str, float], whole: float) -> str:
    """Names with their shares of the iteration; what is less than a thousandth of a percent is left out."""
    return ", ".join(
        f"{name} {100 * value / whole:.3g}%" for name, value in seconds.items() if value > 1e-5 * whole
    )


def _limit(found: SimulatedStep) -> str:
    """What the bound is the time of."""
    bounds = found.bounds
    if bounds.path >= bounds.seconds:
        return "the longest chain of passes"
    if bounds.stream_seconds >= bounds.seconds:
        return f"what {bounds.stream} does"
    return f"what {bounds.link} carries"


def _record(found: SimulatedStep) -> dict[str, Any]:
    """The simulation as JSON values."""
    bounds = found.bounds
    return {
        "order": found.order,
        "overlap": found.overlap,
        "simulated_seconds": found.seconds,
        "seconds_by_part": dict(found.parts),
        "critical_path": [
            {
                "part": each.part,
                "name": each.name,
                "group": each.group,
                "link": each.link,
                "seconds": each.seconds,
            }
            for each in found.path
        ],
        "least_seconds": found.parts["compute"] + found.parts["head"] + found.parts["optimizer"],
        "lower_bound_seconds": bounds.seconds,
        "lower_bounds": {
            "path_seconds": bounds.path,
            "stream": bounds.stream,
            "stream_seconds": bounds.stream_seconds,
            "link": bounds.link,
            "link_seconds": bounds.link_seconds,
        },
    }


def _degrees(text: str) -> dict[str, int]:
    """The degrees of ``tp=8,pp=4``.

    Raises:
        InputError: If a name is none, or a degree is no number of 1 or more.
    """
    found = {}
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        if name not in _DEGREES or not value.isdigit() or int(value) < 1:
            msg = f"expected --parallel such as tp=8,pp=4,dp=2 (of {', '.join(_DEGREES)}), found {word.strip()!r}."
            raise InputError(msg)
        found[_DEGREES[name]] = int(value)
    return found
