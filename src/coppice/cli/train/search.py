"""`coppice train search`: the layouts of a model on a cluster that fit into memory, the fastest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.cli.options.inputs import BoxesOption, JsonOption, RatesOption, SetOption, load_topology
from coppice.cli.output.render import print_json, print_lines
from coppice.errors import InputError
from coppice.iteration.models import MODELS, model_named
from coppice.text import plural, seconds_text

if TYPE_CHECKING:
    from coppice.iteration.search import FoundLayout

__all__ = ["search"]


def search(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"One of: {', '.join(MODELS)}.")],
    *,
    cluster: Annotated[str, typer.Option("--cluster", metavar="TOPOLOGY", help="Preset or topology file.")],
    boxes: BoxesOption = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, help="So many of its GPUs, whole boxes [default: all].")
    ] = None,
    global_batch: Annotated[
        int, typer.Option("--global-batch", min=1, help="Sequences of an iteration.")
    ] = 1,
    top: Annotated[int, typer.Option("--top", min=1, help="How many to print.")] = 10,
    fused_attention: Annotated[
        bool, typer.Option("--fused-attention/--no-fused-attention", help="Scores stay on the chip.")
    ] = True,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="GPU [default: by the topology's name].")
    ] = None,
    rates: RatesOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try every layout of a model on a cluster, and print those that fit into memory, the fastest first.

    Degrees are tp (tensor parallelism, inside a box), pp (stages), dp (replicas), vp (chunks of a device), mb
    (micro-batch); of recomputation the least that fits is taken; states of the optimizer are shared out by replicas
    (zero1) or not.

    \b
    Examples:
      coppice train search gpt-175b --cluster dgx-a100 --boxes 64 --global-batch 1536
      coppice train search llama3-70b --cluster dgx-h100 --gpus 64 --global-batch 256 --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.cluster import cluster_of
    from coppice.iteration.search import search_layouts

    chosen = model_named(model)
    topology = load_topology(cluster, boxes=boxes, rates=rates, settings=settings)
    machines = cluster_of(topology, device)
    count = gpus if gpus is not None else topology.num_ranks
    if count > topology.num_ranks and boxes is None and topology.num_ranks == machines.device.box:
        topology = load_topology(
            cluster, boxes=-(-count // machines.device.box), rates=rates, settings=settings
        )
        machines = cluster_of(topology, device)
    if count > topology.num_ranks:
        msg = f"expected at most the {topology.num_ranks} GPUs of {topology.name}, found {count}: raise --boxes."
        raise InputError(msg)
    result = search_layouts(chosen, machines, count, global_batch, fused_attention=fused_attention)
    if as_json:
        print_json(
            {
                "tried": result.tried,
                "too_large": result.too_large,
                "fitting": len(result.found),
                "layouts": [_record(each) for each in result.found[:top]],
            }
        )
        return
    size = machines.device.memory_bytes / 1e9
    lines = [f"{model} on {plural(count, 'GPU')} of {topology.name}: {plural(result.tried, 'layout')}"]
    lines[0] += f", {len(result.found)} fit {size:.0f} GB"
    lines.append(" tp  pp   dp  vp  mb  recompute  states     time    MFU    GB  costs most")
    for each in result.found[:top]:
        layout = each.layout
        lines.append(
            f"{layout.tensor:>3} {layout.pipeline:>3} {layout.data:>4} {layout.chunks:>3} {layout.micro_batch:>3}  "
            f"{layout.recompute.value:<9}  {layout.shard.value:<6}  {seconds_text(each.estimate.seconds):>7}  "
            f"{100 * each.estimate.mfu:>4.1f}%  {each.memory.total / 1e9:>4.0f}  {each.why}"
        )
    print_lines(lines)


def _record(each: FoundLayout) -> dict[str, Any]:
    """A layout as JSON values."""
    layout = each.layout
    return {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "data": layout.data,
        "chunks": layout.chunks,
        "micro_batch": layout.micro_batch,
        "recompute": layout.recompute.value,
        "shard": layout.shard.value,
        "iteration_seconds": each.estimate.seconds,
        "mfu": each.estimate.mfu,
        "memory_bytes": each.memory.total,
        "why": each.why,
    }
