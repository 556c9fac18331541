"""`coppice train import`: import a trace or a PyTorch module, and simulate its step on a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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
    from coppice.verbs.train_files import (
        ImportedProfile,
        ImportedTraces,
        MachinesOptions,
        ModuleCall,
        TraceCall,
    )


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
    num_ranks: NumRanksOption = None,
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
    _, is_module, function = sources[0].partition(".py")
    if is_module and function[:1] in ("", ":"):
        _refuse({"--what-if": scale, "--step": step}, "a module")
        if len(sources) > 1:
            raise InputError(
                f"expected one module, found {len(sources)} arguments: name one, as model.py:build."
            )
        from coppice.verbs.train_files import ModuleCall

        show_module(
            ModuleCall(
                source=sources[0],
                topology=topology,
                boxes=boxes,
                device=device,
                parallel=parallel,
                num_ranks=num_ranks,
                shard=shard,
                inputs=inputs or (),
            ),
            _machines,
            output=output,
            trace=trace,
            as_json=as_json,
        )
        return
    of_modules = {"--num-ranks": num_ranks, "--parallel": parallel, "--input": inputs, "--output": output}
    _refuse({**of_modules, "--shard": None if shard == "none" else shard}, "a trace")
    from coppice.iteration.trace import write_task_trace
    from coppice.verbs.train_files import ImportedProfile, TraceCall, imported_trace

    title = sources[0] if len(sources) == 1 else f"{sources[0]} and {len(sources) - 1} more"
    call = TraceCall(
        sources=sources,
        step=step,
        what_if=_factors(scale),
        topology=topology,
        boxes=boxes,
        device=device,
    )
    found = imported_trace(call, lambda: _machines(call))
    if trace is not None:
        write_task_trace(found.replay.times, trace)
    if isinstance(found, ImportedProfile):
        _show_profile(found, title, call.what_if or {}, as_json=as_json)
    else:
        _show_traces(found, title, call, as_json=as_json)


def _refuse(options: Mapping[str, Any], what: str) -> None:
    """Raise an error if one of some options is given.

    Raises:
        InputError: If so.
    """
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} is not for {what}: leave it out.")


def _machines(asked: MachinesOptions) -> Cluster | None:
    """The cluster, or the box of a device; what readers warn of is printed."""
    if asked.topology is None:
        return asked.machines()
    return asked.machines(load_topology(asked.topology, boxes=asked.boxes, rates=None, settings=None))


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


def _show_profile(found: ImportedProfile, title: str, factors: Mapping[str, float], *, as_json: bool) -> None:
    """A trace of PyTorch's profiler."""
    measured, replay = found.measured, found.replay
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
                "scale": dict(factors),
                "replay_us": 1e6 * replay.seconds,
                "notes": list(measured.notes),
            },
        )
        return
    for note in measured.notes:
        print_note(f"note: {found.file.name}: {note}.")
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


def _show_traces(found: ImportedTraces, title: str, asked: TraceCall, *, as_json: bool) -> None:
    """Execution traces."""
    from coppice.iteration.totals import collective_totals

    traces, replay, factors = found.traces, found.replay, dict(asked.what_if or {})
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
        named = asked.topology is not None or asked.device is not None
        instead = "name another --topology" if named else "name their --topology"
        fields.append(("without times", f"{replay.timeless} collectives and sends take nothing: {instead}"))
    if traces[0].kind == "PyTorch":
        fields.append(
            ("operators", "have no times in such a trace: import the profile of the same run for them")
        )
    print_fields(title, fields)


def show_module(
    asked: ModuleCall,
    machines: Callable[[ModuleCall], Cluster | None],
    *,
    output: Path | None,
    trace: Path | None,
    as_json: bool,
) -> None:
    """Trace a module, time it on a cluster if given, and print its operations.

    Args:
        machines: The cluster of the options.

    Raises:
        InputError: As :func:`coppice.verbs.train_files.import_module`, or if times are asked for without a cluster.
    """
    from coppice.iteration.trace import write_task_trace
    from coppice.verbs.train_files import imported_module

    cluster = machines(asked)
    for name, wanted in (("--output", output), ("--trace", trace)):
        if wanted is not None and cluster is None:
            raise InputError(
                f"expected GPUs for the times of {name}, found none: name --topology TOPOLOGY, or --device NAME."
            )
    made = imported_module(asked, cluster)
    found, timed = made.trace, made.timed
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
    where = f"{asked.source.partition(':')[0]} on {plural(found.ranks, 'rank')}"
    print_fields(f"{found.module} of {where} ({degrees})", fields)


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
