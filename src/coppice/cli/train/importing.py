"""`coppice train import`: import a trace or a PyTorch module, and simulate its step on a cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.output import print_fields, print_json, print_note
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.options import argument, option, parse_settings
from coppice.options.shared import BoxesOption, JsonOption, NumRanksOption
from coppice.text import plural, seconds_text, size_text

if TYPE_CHECKING:
    from coppice.iteration.machine import Cluster
    from coppice.iteration.modules.timed import TimedModule
    from coppice.iteration.modules.tracing import ModuleTrace
    from coppice.iteration.totals import CollectiveTotal


@with_options()
def import_trace(
    sources: Annotated[
        list[str],
        argument(
            "Trace of PyTorch's profiler of one rank; execution traces (PyTorch's JSON, Chakra's .et), one a rank "
            "or their folder; or model.py:FUNCTION, which returns a module or (module, inputs).",
            metavar="SOURCE...",
        ),
    ],
    *,
    scale: Annotated[
        list[str] | None,
        option(
            "Replay with times of compute, communication or host multiplied; may be repeated.",
            "--what-if",
            metavar="KIND=FACTOR",
            was=["--scale"],
        ),
    ] = None,
    step: Annotated[
        int | None,
        option("Only ProfilerStep#N of a profile [default: all].", metavar="N"),
    ] = None,
    topology: Annotated[
        str | None,
        option("Preset or topology file: times of what has none.", metavar="TOPOLOGY", was=["--topology"]),
    ] = None,
    boxes: BoxesOption = None,
    device: Annotated[str | None, option("GPU [default: by the topology's name].", metavar="NAME")] = None,
    ranks: NumRanksOption = None,
    parallel: Annotated[
        str | None,
        option(
            "Device mesh of a module, the slowest degree first, such as dp=2,tp=8 [default: dp].",
            metavar="LIST",
        ),
    ] = None,
    shard: Annotated[
        str,
        option("What replicas of a module shard: none, zero3 (FSDP2).", metavar="WHAT"),
    ] = "none",
    inputs: Annotated[
        list[str] | None,
        option("Input of a module, such as 8x256:float32; may be repeated.", "--input", metavar="SHAPE"),
    ] = None,
    output: Annotated[
        Path | None,
        option("Write the layers of a module for `train policy` (JSON).", "-o", "--output", metavar="FILE"),
    ] = None,
    trace: Annotated[Path | None, option("Write the simulated tasks for Perfetto.", metavar="FILE")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read a trace of training, or trace a module of PyTorch, and simulate it as tasks.

    A profile is replayed: operations run after the calls that launch them, after what is before them on their stream,
    and after what they waited for; with --what-if the replay answers what would change. Execution traces of several
    ranks are replayed together. A module is traced on fake tensors with a fake process group: nothing is computed.

    \b
    Examples:
      coppice train import trace.json.gz --step 4
      coppice train import trace.json.gz --what-if communication=0.5
      coppice train import traces/ --topology dgx-a100
      coppice train import model.py:build --parallel dp=16 --topology dgx-a100 --boxes 2 -o workload.json
    """  # noqa: D301 (\b is for the help formatter)
    path, is_module, function = sources[0].partition(".py")
    if is_module and function[:1] in ("", ":"):
        _refuse({"--what-if": scale, "--step": step}, "a module")
        if len(sources) > 1:
            raise InputError(
                f"expected one module, found {len(sources)} arguments: name one, as model.py:build."
            )

        show_module(
            f"{path}.py",
            function[1:] or "build",
            machines=_machines(topology, boxes, device),
            one_box=topology is None,
            ranks=ranks,
            parallel=parallel,
            shard=shard,
            inputs=inputs or [],
            output=output,
            trace=trace,
            as_json=as_json,
        )
        return
    of_modules = {"--num-ranks": ranks, "--parallel": parallel, "--input": inputs, "--output": output}
    _refuse({**of_modules, "--shard": None if shard == "none" else shard}, "a trace")
    from coppice.iteration.traces.kinds import TraceKind, kind_of, read_trace_bytes, trace_files

    files = trace_files([Path(each) for each in sources])
    contents = [(each.name, read_trace_bytes(each)) for each in files]
    title = sources[0] if len(sources) == 1 else f"{sources[0]} and {len(sources) - 1} more"
    if len(files) == 1 and kind_of(contents[0][1], file=files[0].name) is TraceKind.PROFILER:
        _refuse({"--topology": topology, "--boxes": boxes, "--device": device}, "a profile, which has times")
        _show_profile(files[0], title, step, _factors(scale), trace, as_json=as_json)
        return
    _refuse({"--step": step}, "an execution trace")
    _show_traces(contents, title, _machines(topology, boxes, device), _factors(scale), trace, as_json=as_json)


def _refuse(options: Mapping[str, Any], what: str) -> None:
    """Raise an error if one of some options is given.

    Raises:
        InputError: If so.
    """
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} is not for {what}: leave it out.")


def _machines(name: str | None, boxes: int | None, device: str | None) -> Cluster | None:
    """The cluster, or the box of a device."""
    if name is None and device is None:
        if boxes is not None:
            raise InputError("--boxes goes with --topology: name a preset, such as --topology dgx-a100.")
        return None
    from coppice.iteration.cluster import box_of, cluster_of

    if name is None:
        return box_of(str(device))
    return cluster_of(load_topology(name, boxes=boxes, rates=None, settings=None), device)


def _factors(scale: Sequence[str] | None) -> dict[str, float]:
    """Factors by kind.

    Raises:
        InputError: If one is no number.
    """
    factors = {}
    for kind, text in parse_settings(scale or (), option="--what-if").items():
        try:
            factors[kind] = float(text)
        except ValueError:
            raise InputError(f"expected a factor such as 0.5 for --what-if {kind}, found {text!r}.") from None
    return factors


def _scaled(factors: Mapping[str, float]) -> str:
    """What a replay is called."""
    if not factors:
        return "replayed"
    return "with " + ", ".join(f"{kind} x {value:g}" for kind, value in factors.items())


def _show_profile(
    path: Path, title: str, step: int | None, factors: dict[str, float], trace: Path | None, *, as_json: bool
) -> None:
    """A trace of PyTorch's profiler."""
    from coppice.iteration.kineto import read_kineto
    from coppice.iteration.trace import write_task_trace

    measured = read_kineto(path)
    if step is not None:
        measured = measured.step(step)
    replay = measured.replay(factors)
    if trace is not None:
        write_task_trace(replay.times, trace)
    step_us = {str(each.number): each.end - each.begin for each in measured.profiled}
    span, busy, totals = measured.span_us, measured.busy_us(), measured.collectives()
    if as_json:
        print_json(
            "train-profile",
            {
                "kind": "profile",
                "span_us": span,
                "step_us": step_us,
                "steps": step_us,
                "steps_us": measured.steps,
                "operation_count": len(measured.operations),
                "operations": len(measured.operations),
                "busy_us_by_kind": busy,
                "busy_us": busy,
                "totals": collective_records(totals),
                "collectives": collective_records(totals),
                "scale": factors,
                "replay_us": 1e6 * replay.seconds,
                "notes": list(measured.notes),
            },
        )
        return
    for note in measured.notes:
        print_note(f"note: {path.name}: {note}.")
    change = 1e6 * replay.seconds / span - 1
    fields = [
        ("trace", f"{span / 1e3:.6g} ms, {len(measured.operations)} operations of the device"),
        *(
            (kind.replace("_", " "), f"{value / 1e3:.6g} ms, {value / span:.1%}")
            for kind, value in busy.items()
        ),
        *(collective_fields(totals) or [("collectives", "none: profile a rank of a job of several ranks")]),
        (_scaled(factors), f"{1e3 * replay.seconds:.6g} ms, {change:+.2%}"),
    ]
    steps = measured.profiled
    if steps:
        words = f"{len(steps)} of {sum(measured.steps) / len(steps) / 1e3:.6g} ms"
        words += (
            f" (--step {steps[0].number} to {steps[-1].number})"
            if len(steps) > 1
            else f" ({steps[0].number})"
        )
        fields.insert(1, ("steps", words))
    print_fields(title, fields)


def _show_traces(
    contents: Sequence[tuple[str, bytes]],
    title: str,
    machines: Cluster | None,
    factors: dict[str, float],
    trace: Path | None,
    *,
    as_json: bool,
) -> None:
    """Execution traces."""
    from coppice.iteration.totals import collective_totals
    from coppice.iteration.trace import write_task_trace
    from coppice.iteration.traces.kinds import read_traces
    from coppice.iteration.traces.replay import replay_traces

    traces = read_traces(contents)
    replay = replay_traces(traces, cluster=machines, scale=factors)
    if trace is not None:
        write_task_trace(replay.times, trace)
    totals = collective_totals(row for each in traces for row in each.collective_rows())
    nodes = sum(len(each.nodes) for each in traces)
    if as_json:
        print_json(
            "train-traces",
            {
                "kind": traces[0].kind,
                "rank_list": [each.rank for each in traces],
                "ranks": [each.rank for each in traces],
                "node_count": nodes,
                "nodes": nodes,
                "totals": collective_records(totals),
                "collectives": collective_records(totals),
                "messages_met": replay.met,
                "messages_alone": replay.alone,
                "without_time": replay.timeless,
                "scale": factors,
                "replay_us": 1e6 * replay.seconds,
                "lower_bound_us": 1e6 * replay.lower_bound_seconds,
            },
        )
        return
    fields = [
        (f"{traces[0].kind} trace", f"{plural(len(traces), 'rank')}, {plural(nodes, 'node')}"),
        *(collective_fields(totals) or [("collectives", "none: trace a rank of a job of several ranks")]),
    ]
    if replay.met or replay.alone:
        words = f"{plural(replay.met, 'send')} met by receipts"
        if replay.alone:
            words += f", {replay.alone} whose other rank has no trace here"
        fields.append(("messages", words))
    fields.append((_scaled(factors), f"{1e3 * replay.seconds:.6g} ms"))
    fields.append(("lower bound", f"{1e3 * replay.lower_bound_seconds:.6g} ms for any order of these nodes"))
    if replay.timeless:
        instead = "name another --topology" if machines is not None else "name their --topology"
        fields.append(("without times", f"{replay.timeless} collectives and sends take nothing: {instead}"))
    if traces[0].kind == "PyTorch":
        fields.append(
            ("operators", "have no times in such a trace: import the profile of the same run for them")
        )
    print_fields(title, fields)


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

    for flag, wanted in (("--output", output), ("--trace", trace)):
        if wanted is not None and machines is None:
            raise InputError(
                f"expected GPUs for the times of {flag}, found none: name --topology TOPOLOGY, or --device NAME."
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


_MOST_SHOWN = 6


def collective_fields(totals: Sequence[CollectiveTotal]) -> list[tuple[str, str]]:
    """Collectives as fields, the largest ones; the others are counted."""
    fields = []
    for each in totals[:_MOST_SHOWN]:
        words = plural(each.count, "time")
        if each.size_bytes:
            words += f", {size_text(each.size_bytes)}"
        if each.ranks:
            words += f" over {plural(each.ranks, 'rank')}"
        if each.group:
            words += f" ({each.group})"
        fields.append((each.collective.replace("_", "-"), words))
    rest = totals[_MOST_SHOWN:]
    if rest:
        fields.append(("others", plural(sum(each.count for each in rest), "time")))
    return fields


def collective_records(totals: Sequence[CollectiveTotal]) -> list[dict[str, Any]]:
    """Collectives as JSON values."""
    names = ("collective", "group", "ranks", "count", "size_bytes")
    return [{name: getattr(each, name) for name in names} for each in totals]
