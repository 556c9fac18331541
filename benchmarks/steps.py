"""Time and memory of simulating training steps: `python benchmarks/steps.py [--write]`.

Every job is simulated in a process of its own: the order of its pipeline, the tasks, when they run, where the time
goes, and the bound of any order. Seconds are those of the processor, on one core; peaks are those of the process, with
all that is loaded.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

from coppice.iteration.layout import Layout, Recompute, Shard
from coppice.iteration.machine import cluster_of
from coppice.iteration.models import model_named
from coppice.iteration.policies.step_plans import plan_named
from coppice.iteration.step.blocks import transformer_step
from coppice.iteration.step.simulated import order_for, simulate_step
from coppice.topology.presets import preset
from tables import Table, replace_generated

PAGE = Path(__file__).resolve().parent / "steps.md"
JOBS = (
    ("gpt-175b", 16, 8, 1, 512, None, "none", Shard.NONE),
    ("gpt-175b", 16, 8, 1, 512, None, "ddp", Shard.NONE),
    ("gpt-175b", 16, 8, 1, 512, None, "megatron", Shard.ZERO1),
    ("gpt-175b", 16, 8, 1, 512, None, "fsdp", Shard.ZERO3),
    ("gpt-175b", 16, 8, 3, 512, None, "megatron", Shard.ZERO1),
    ("gpt-175b", 16, 8, 2, 512, "dualpipe-v", "none", Shard.NONE),
    ("gpt-1t", 64, 32, 1, 2048, None, "none", Shard.NONE),
    ("gpt-1t", 64, 32, 2, 2048, None, "megatron", Shard.ZERO1),
    ("gpt-1t", 64, 32, 1, 2048, None, "fsdp", Shard.ZERO3),
)
"""Model, stages, replicas, chunks, micro-batches, order, overlap, what replicas shard; tensor parallelism is 8."""


def measure(number: int) -> dict[str, float | str]:
    """Simulate a job in this process."""
    name, pipeline, data, chunks, micro_batches, order, overlap, shard = JOBS[number]
    layout = Layout(
        tensor=8,
        pipeline=pipeline,
        data=data,
        chunks=chunks,
        global_batch=micro_batches * data,
        recompute=Recompute.SELECTIVE,
        sequence_parallel=True,
        fused_attention=True,
        shard=shard,
    )
    cluster = cluster_of(preset("dgx-a100", boxes=pipeline * data))
    begin = time.process_time()
    chosen, programs = order_for(order, pipeline, micro_batches, chunks)
    step = transformer_step(model_named(name), layout, cluster)
    found = simulate_step(step, plan_named(overlap, step, programs), name=chosen)
    above = found.seconds / found.lower_bound_seconds - 1
    return {
        "job": f"{name} on {layout.gpus:,} GPUs",
        "order": chosen + (f" x {chunks}" if chunks > 1 else ""),
        "overlap": overlap,
        "micro-batches": f"{micro_batches:,}",
        "tasks": f"{len(found.times.graph):,}",
        "iteration": f"{found.seconds:.4g} s",
        "above the bound": f"{above:.1%}",
        "s": f"{time.process_time() - begin:.2f}",
        "GiB": f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f}",
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(measure(options.case)))
        return
    rows = []
    for number in range(len(JOBS)):
        shown = subprocess.run(
            [sys.executable, __file__, "--case", str(number)], capture_output=True, text=True, check=True
        )
        rows.append(json.loads(shown.stdout))
    table = Table(title="Simulated steps", header=tuple(rows[0]))
    table.rows = [tuple(map(str, row.values())) for row in rows]
    print(table.text())
    if options.write:
        where = f"`python benchmarks/steps.py` on {platform.system()} {platform.machine()}, one core.\n\n"
        replace_generated(PAGE, "steps.py", where + table.markdown())


if __name__ == "__main__":
    main()
