"""`coppice train estimate`: the time of an iteration of a model on a cluster, and where it goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.cli.options.inputs import BoxesOption, JsonOption, RatesOption, SetOption, load_topology
from coppice.cli.options.names import CALIBRATED, PIPELINE_ORDERS
from coppice.cli.output.render import print_fields, print_json
from coppice.errors import CheckError, InputError
from coppice.iteration.models import MODELS, model_named
from coppice.iteration.transformer import Layout, Recompute, Shard
from coppice.text import seconds_text

if TYPE_CHECKING:
    from coppice.iteration.job import SimulatedJob

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
            help=f"Simulate the pipeline in an order: {', '.join(PIPELINE_ORDERS)}.",
        ),
    ] = None,
    collectives: Annotated[
        str,
        typer.Option(
            "--collectives",
            metavar="NAME",
            help="What collectives cost: calibrated (rings by formula), nccl (what it would pick), forest (our "
            "optimum) or an algorithm such as ring, all but the first simulated with all groups at once.",
        ),
    ] = CALIBRATED,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Write the simulated tasks for Perfetto [implies --order]."
        ),
    ] = None,
    rates: RatesOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate the time of a training iteration, and say where it goes and what it keeps in memory.

    Exit code 1 if it does not fit the memory of a GPU.

    \b
    Examples:
      coppice train estimate gpt-175b --cluster dgx-a100 --boxes 64 --parallel tp=8,pp=16,dp=4 --global-batch 512
      coppice train estimate gpt-175b --cluster dgx-h100 --boxes 128 --parallel tp=8,pp=8,dp=16 --collectives nccl
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.cluster import cluster_of
    from coppice.iteration.costs.named import with_collectives
    from coppice.iteration.estimate import estimate as run
    from coppice.iteration.job import simulate_job
    from coppice.iteration.memory import memory_of
    from coppice.iteration.trace import write_task_trace
    from coppice.simulation.models import DEFAULT_MODEL

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
    machines = with_collectives(cluster_of(topology, device), topology, collectives)
    found, held = run(chosen, layout, machines), memory_of(chosen, layout)
    if trace is not None and order is None:
        order = "interleaved" if layout.chunks > 1 else "1f1b"
    simulated = None if order is None else simulate_job(chosen, layout, machines, order)
    if simulated is not None and trace is not None:
        write_task_trace(simulated.times, trace)
    fits = held.total <= machines.device.memory_bytes
    times = {name: getattr(found, name) for name in _PARTS}
    memory = {name: getattr(held, name) for name in ("parameters", "gradients", "optimizer", "activations")}
    if as_json:
        print_json(
            {
                "iteration_seconds": found.seconds,
                "mfu": found.mfu,
                "tokens_per_second": global_batch * chosen.seq / found.seconds,
                "seconds_by_part": times,
                "memory_bytes": held.total,
                "memory_by_part": memory,
                "fits": fits,
                "collectives": collectives,
                "device": machines.device.name,
                "least_seconds": found.compute + found.head + found.optimizer,
                **_simulated_record(simulated),
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
            ("tokens/s", f"{global_batch * chosen.seq / found.seconds:,.0f}"),
            ("goes to", parts),
            ("best order", f"no order takes less than {seconds_text(least)}: what the busiest GPU computes"),
            ("memory", f"{held.total / 1e9:.3g} GB of a {machines.device.name}{room}"),
            ("of it (GB)", kept),
        ]
        if collectives != CALIBRATED:
            words = f"{collectives}, simulated with all groups at once, model {DEFAULT_MODEL.name}"
            fields.insert(3, ("collectives", words))
        if simulated is not None:
            beyond = max(0.0, simulated.seconds / simulated.lower_bound_seconds - 1)
            words = f"{seconds_text(simulated.seconds)} without the optimizer"
            words += f", {beyond:.2%} above the bound of any order"
            fields.insert(1, (f"as {simulated.order}", words))
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
    "sends": "sends between stages",
    "bubble": "bubble",
    "gradients": "sums of gradients",
    "optimizer": "optimizer",
}


def _simulated_record(simulated: SimulatedJob | None) -> dict[str, Any]:
    """The simulation as JSON values."""
    if simulated is None:
        return {}
    bound = simulated.lower_bound_seconds
    return {"order": simulated.order, "simulated_seconds": simulated.seconds, "lower_bound_seconds": bound}


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
