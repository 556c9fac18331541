"""`coppice train search`: rank the parallel layouts of a model that fit into memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from coppice.cli.options.declaring import with_options
from coppice.cli.output import print_json, print_lines
from coppice.cli.train.jobs import load_of_job
from coppice.options.shared import JsonOption
from coppice.text import plural, seconds_text
from coppice.verbs.train import MOST_SIMULATED, SearchOptions, layouts_of

if TYPE_CHECKING:
    from coppice.iteration.search import SimulatedLayout
    from coppice.outputs.shapes.training import LayoutJson


@with_options(
    "job topology boxes num_ranks global_batch top anchor device framework attention rates settings as_json"
)
def search(options: SearchOptions, *, as_json: JsonOption = False) -> None:
    """Try every parallel layout of a model on a cluster, and print those that fit into memory, the fastest first.

    A closed form orders all of them; the 32 best are simulated, and ordered by that.

    Layouts that take nearly the memory of a GPU may not fit; they come last, and are marked "tight". Estimates of two
    layouts differ by some percent more or less than measurements do: a line says how many cannot be told apart, and
    --anchor narrows that down.

    Degrees are tp (tensor parallelism, inside a box), pp (stages), dp (replicas), vp (chunks of a device), mb
    (micro-batch); of recomputation the least that fits is taken; states of the optimizer are sharded by replicas
    (zero1) or not.

    \b
    Examples:
      coppice train search gpt-175b --topology dgx-a100 --boxes 64 --global-batch 1536
      coppice train search llama3-70b --topology dgx-h100 --num-ranks 64 --global-batch 256 --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.accuracy import APART
    from coppice.iteration.memory import MemoryFit
    from coppice.iteration.transformer import Transformer

    found = layouts_of(options, load_of_job)
    model, machines, count, result, best = found.model, found.machines, found.gpus, found.tried, found.best
    if as_json:
        print_json(
            "train-search",
            {
                "tried": result.tried,
                "too_large": result.too_large,
                "fitting": result.fitting,
                "simulated": min(len(result.found), max(MOST_SIMULATED, options.top)),
                "layouts": [_record(each) for each in best],
                "indistinguishable": found.alike,
            },
        )
        return
    size = machines.cluster.device.memory_bytes / 1e9
    name = found.record.model.name or "transformer"
    lines = [f"{name} on {plural(count, 'GPU')} of {machines.name}: {plural(result.tried, 'layout')}"]
    lines[0] += f", {result.fitting} fit {size:.0f} GB"
    mixture = isinstance(model, Transformer) and bool(model.experts)
    lines.append(
        f" tp  pp   dp {' ep ' if mixture else ''} vp  mb  recompute  states     time    MFU    GB  costs most"
    )
    for each in best:
        layout = each.found.layout
        expert = f"{layout.expert:>3} " if mixture else ""
        degrees = f"{layout.tensor:>3} {layout.pipeline:>3} {layout.data:>4} {expert}{layout.chunks:>3}"
        lines.append(
            f"{degrees} {layout.micro_batch:>3}  {layout.recompute.value:<9}  {layout.shard.value:<6}  "
            f"{seconds_text(each.seconds):>7}  {100 * each.mfu:>4.1f}%  "
            f"{each.found.memory.total / 1e9:>4.0f}  {each.why}"
            f"{', tight' if each.found.fit is MemoryFit.TIGHT else ''}"
        )
    if found.alike > 1:
        lines.append(
            f"The fastest {found.alike} are within {100 * math.expm1(APART):.0f}%, which estimates cannot tell apart: "
            "measure them."
        )
    print_lines(lines)


def _record(each: SimulatedLayout) -> LayoutJson:
    """A layout as JSON values."""
    layout = each.found.layout
    return {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "data": layout.data,
        "expert": layout.expert,
        "chunks": layout.chunks,
        "micro_batch": layout.micro_batch,
        "recompute": layout.recompute.value,
        "shard": layout.shard.value,
        "iteration_seconds": each.seconds,
        "simulated_seconds": each.simulated_seconds,
        "closed_form_seconds": each.found.estimate.seconds,
        "mfu": each.mfu,
        "memory_bytes": each.found.memory.total,
        "fit": each.found.fit.value,
        "why": each.why,
    }
