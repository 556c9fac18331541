"""`coppice train import model.py:build`: trace a PyTorch module, and simulate its step on a cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coppice.cli.output.render import print_fields, print_json
from coppice.cli.train.collectives import collective_fields, collective_records
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.text import plural, seconds_text, size_text

if TYPE_CHECKING:
    from coppice.iteration.machine import Cluster
    from coppice.iteration.modules.timed import TimedModule
    from coppice.iteration.modules.tracing import ModuleTrace


def show_module(
    file: str,
    function: str,
    *,
    machines: Cluster | None,
    one_box: bool,
    ranks: int | None,
    parallel: str | None,
    shard: str,
    inputs: Sequence[str],
    output: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Trace a module, time it on a cluster if given, and print its operations.

    Raises:
        InputError: As :func:`coppice.iteration.modules.tracing.trace_module`, or if times are asked for without a
            cluster.
    """
    from coppice.iteration.modules.timed import time_module
    from coppice.iteration.modules.tracing import trace_module
    from coppice.iteration.trace import write_task_trace

    for option, wanted in (("--output", output), ("--trace", trace)):
        if wanted is not None and machines is None:
            raise InputError(
                f"expected GPUs for the times of {option}, found none: name --topology TOPOLOGY, or --device NAME."
            )
    mesh = _mesh(parallel, ranks)
    count = ranks or math.prod((mesh or {}).values())
    if machines is not None and one_box and count > machines.device.box:
        raise InputError(
            f"expected --topology for {count} ranks, found only the device of a box of {machines.device.box}: name the "
            "network between boxes, as --topology dgx-a100 --boxes 2."
        )
    found = trace_module(file, function, ranks=ranks or 0, mesh=mesh, shard=shard, inputs=inputs)
    found.require_collectives()
    timed = None if machines is None else time_module(found, machines)
    if timed is not None and output is not None:
        write_atomically(output, json.dumps(timed.workload().record(), indent=1).encode() + b"\n")
    if timed is not None and trace is not None:
        write_task_trace(timed.times, trace)
    if as_json:
        print_json(
            "train-module",
            {
                "kind": "module",
                "module": found.module,
                "torch": found.torch,
                "ranks": found.ranks,
                "mesh": found.mesh,
                "parameter_count": found.parameters,
                "parameters": found.parameters,
                "layers": _layer_records(found, timed),
                "totals": collective_records(found.collectives()),
                "collectives": collective_records(found.collectives()),
                **_times_record(timed),
                "operations": _operation_records(found, timed),
            },
        )
        return
    flops = [sum(each.flops for each in found.operations if each.backward is back) for back in (False, True)]
    moved = sum(each.moved_bytes for each in found.operations)
    degrees = ", ".join(f"{name}={degree}" for name, degree in found.mesh.items())
    fields = [
        ("layers", f"{len(found.layers)} with {found.parameters:,} parameters of this rank"),
        (
            "operations",
            f"{len(found.operations)}, forward {flops[0]:.4g} FLOPs, backward {flops[1]:.4g} FLOPs",
        ),
        ("memory", f"{size_text(moved)} read and written, operation by operation"),
        *collective_fields(found.collectives()),
    ]
    if timed is None:
        fields.append(("times", "name --topology TOPOLOGY, or --device NAME, for a simulation"))
    else:
        exposed = max(0.0, timed.seconds - timed.compute_seconds)
        fields += [
            ("forward, backward", seconds_text(timed.seconds)),
            (
                "computes",
                f"{seconds_text(timed.compute_seconds)} (roofline of the {timed.cluster.device.name})",
            ),
            (
                "communicates",
                f"{seconds_text(timed.communication_seconds)}, of it exposed {seconds_text(exposed)}",
            ),
            ("lower bound", f"{seconds_text(timed.lower_bound_seconds)} for any order of these operations"),
        ]
    if output is not None:
        fields.append(("workload", str(output)))
    print_fields(f"{found.module} of {file} on {plural(found.ranks, 'rank')} ({degrees})", fields)


def _mesh(parallel: str | None, ranks: int | None) -> dict[str, int] | None:
    """The degrees of ``dp=2,tp=8``.

    Raises:
        InputError: If one is no number of 1 or more, there are none, or a name is there twice.
    """
    if parallel is None:
        if ranks is None:
            raise InputError(
                "expected the ranks of the job, found none: give --parallel dp=16, or --num-ranks 16."
            )
        return None
    found: dict[str, int] = {}
    for word in parallel.split(","):
        name, _, value = word.strip().partition("=")
        if not name.isidentifier() or name in found or not value.isdigit() or int(value) < 1:
            raise InputError(
                f"expected --parallel such as dp=2,tp=8, each degree once, found {word.strip()!r}."
            )
        found[name] = int(value)
    return found


def _layer_records(found: ModuleTrace, timed: TimedModule | None) -> list[dict[str, Any]]:
    """Layers as JSON values."""
    columns = {
        "flops": found.layer_sums({number: each.flops for number, each in enumerate(found.operations)}),
        "moved_bytes": found.layer_sums(
            {number: each.moved_bytes for number, each in enumerate(found.operations)}
        ),
    }
    if timed is not None:
        columns["seconds"] = found.layer_sums(
            {
                number: timed.seconds_alone[number]
                for number, each in enumerate(found.operations)
                if not each.collective
            }
        )
    return [
        {
            "name": layer.name,
            "kind": layer.kind,
            "parameter_count": layer.parameters,
            "parameters": layer.parameters,
            "gradient_bytes": layer.gradient_bytes,
            **{f"forward_{name}": pair[0][number] for name, pair in columns.items()},
            **{f"backward_{name}": pair[1][number] for name, pair in columns.items()},
        }
        for number, layer in enumerate(found.layers)
    ]


def _times_record(timed: TimedModule | None) -> dict[str, Any]:
    """Times as JSON values."""
    if timed is None:
        return {}
    return {
        "device": timed.cluster.device.name,
        "iteration_seconds": timed.seconds,
        "compute_seconds": timed.compute_seconds,
        "communication_seconds": timed.communication_seconds,
        "lower_bound_seconds": timed.lower_bound_seconds,
    }


def _operation_records(found: ModuleTrace, timed: TimedModule | None) -> list[dict[str, Any]]:
    """Operations as JSON values."""
    records = []
    for number, each in enumerate(found.operations):
        record: dict[str, Any] = {
            "name": each.name,
            "layer": found.layers[each.layer].name if each.layer >= 0 else None,
            "pass": "backward" if each.backward else "forward",
        }
        if each.collective:
            record |= {"collective": each.collective, "size_bytes": each.size_bytes}
            record |= {"rank_list": each.ranks, "ranks": each.ranks}
        else:
            record |= {"flops": each.flops, "moved_bytes": each.moved_bytes}
        if timed is not None:
            record |= {
                "seconds": timed.seconds_alone[number],
                "start_seconds": float(timed.times.start[number]),
                "start": float(timed.times.start[number]),
                "finish_seconds": float(timed.times.finish[number]),
                "finish": float(timed.times.finish[number]),
            }
        records.append(record)
    return records
