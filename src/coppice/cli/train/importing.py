"""`coppice train import`: import a trace or a PyTorch module, and simulate it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.output.render import print_fields, print_json, print_note
from coppice.cli.train.collectives import collective_fields, collective_records
from coppice.errors import InputError
from coppice.options import argument, option, parse_settings
from coppice.options.shared import BoxesOption, JsonOption, NumRanksOption
from coppice.text import plural

if TYPE_CHECKING:
    from coppice.iteration.machine import Cluster


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
        from coppice.cli.train.modules import show_module

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
