"""`coppice train capture`: run a training script without a GPU, and record a step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.output import print_fields, print_json, print_note
from coppice.cli.train.importing import collective_fields, collective_records
from coppice.errors import InputError
from coppice.options import argument, option
from coppice.options.shared import BoxesOption, JsonOption, NumRanksOption
from coppice.text import plural, seconds_text, size_text

if TYPE_CHECKING:
    from coppice.iteration.capture.request import CapturedRank
    from coppice.verbs.capturing import CapturedScript


@with_options()
def capture(
    script: Annotated[str, argument("Training script of PyTorch, as torchrun takes it.", metavar="SCRIPT")],
    arguments: Annotated[list[str] | None, argument("Its arguments, behind --.", metavar="-- ARGS")] = None,
    *,
    num_ranks: NumRanksOption = None,
    rank: Annotated[int, option("The rank that is captured.", metavar="R", ge=0)] = 0,
    step: Annotated[
        int, option("The training step that is recorded; the script is stopped behind it.", metavar="N", ge=1)
    ] = 2,
    device: Annotated[
        str | None,
        option("GPU that the script is told about [default: the topology's, or H100].", metavar="NAME"),
    ] = None,
    topology: Annotated[
        str | None, option("Preset or topology file: times of a step there.", metavar="TOPOLOGY")
    ] = None,
    boxes: BoxesOption = None,
    values: Annotated[
        list[str] | None,
        option(
            "Value that a line of the script reads: a number, true or false, or a list; may be repeated; none: refuse "
            "every value that is not given.",
            "--value",
            metavar="FILE:LINE=VALUE|none",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "Write the job for `train estimate` (.toml), or its layers for `train policy` (.json).",
            "-o",
            "--output",
            metavar="FILE",
        ),
    ] = None,
    trace: Annotated[
        Path | None, option("Write the simulated operations of the rank for Perfetto.", metavar="FILE")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run an unmodified training script without a GPU, and record a step of a rank.

    The script runs as torchrun would run it, on fake tensors with a fake process group: shapes are kept, nothing is
    computed on the GPU, and host tensors are real. Out come FLOPs, every collective with its group and bytes, the most
    memory, and the job, which `train estimate` reads. Numbers that the script reads from GPU tensors, such as a loss
    that it prints, are taken to be 1, which is noted; other values that it needs are refused with its line.

    \b
    Examples:
      coppice train capture train.py --num-ranks 8 -- --batch 4
      coppice train capture train.py --topology dgx-h100 --boxes 2 -o job.toml -- --tp 8
      coppice train capture train.py --num-ranks 16 --rank 15 --json
      coppice train capture moe.py --num-ranks 4 --value moe.py:57=16
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.capture.capturing import ScriptError
    from coppice.iteration.trace import write_task_trace
    from coppice.verbs.capturing import CaptureCall, captured_script

    if trace is not None and topology is None:
        raise InputError("expected GPUs for the times of --trace, found none: name --topology TOPOLOGY.")
    call = CaptureCall(
        script=script,
        arguments=arguments or (),
        num_ranks=num_ranks,
        rank=rank,
        step=step,
        device=device,
        topology=topology,
        boxes=boxes,
        strict="none" in (values or ()),
        values=_values([each for each in values or () if each != "none"]),
        show=not as_json,
    )
    loaded = None if topology is None else load_topology(topology, boxes=boxes, rates=None, settings=None)
    try:
        found = captured_script(call, loaded)
    except ScriptError as error:
        print_note(error.traceback.rstrip("\n"))
        raise
    if output is not None:
        found.write(output)
    if trace is not None and found.timed is not None:
        write_task_trace(found.timed.times, trace)
    for note in found.captured.notes:
        print_note(f"note: {note}.")
    if as_json:
        print_json("train-capture", _record(found))
    else:
        print_fields(_title(found), _fields(found, output))


def _values(words: Sequence[str]) -> dict[str, Any]:
    """Values by line of ``FILE:LINE=VALUE``.

    Raises:
        InputError: If one is none.
    """
    found: dict[str, Any] = {}
    for word in words:
        place, is_value, text = word.partition("=")
        file, _, line = place.rpartition(":")
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not (is_value and file and line.isdigit() and isinstance(value, int | float | list)):
            raise InputError(f"expected --value such as train.py:57=16 or moe.py:57=[16,16], found {word!r}.")
        found[place] = value
    return found


def _title(found: CapturedScript) -> str:
    return f"{' '.join(found.command)} as rank {found.captured.rank} of {found.num_ranks} on a {found.device}"


def _fields(found: CapturedScript, output: Path | None) -> list[tuple[str, str]]:
    """The step for people."""
    rank, job = found.captured, found.job
    flops = _flops(rank)
    passes = ", ".join(f"{name} {value:.4g}" for name, value in flops.items() if value)
    parts = {name: size for name, size in rank.peak_parts.items() if size}
    fields = [
        ("steps", f"{rank.steps}, of which the last is recorded"),
        ("FLOPs", f"{rank.flops:.6g} ({passes})"),
        ("operations", f"{len(rank.operations)}, of them {plural(len(rank.collectives), 'collective')}"),
        *collective_fields(_totals(rank)),
        (
            "memory",
            f"{size_text(rank.peak_bytes)} at most: "
            + ", ".join(
                f"{_PARTS.get(name, name.lower())} {size_text(size)}"
                for name, size in sorted(parts.items(), key=lambda each: -each[1])
            ),
        ),
    ]
    others = [each for each in found.ranks.values() if each is not rank]
    if others:
        words = ", ".join(
            f"rank {each.rank} {each.flops:.4g}, {size_text(each.peak_bytes)}" for each in others
        )
        fields.append(("other stages", f"FLOPs and memory: {words}"))
    fields.append(("weights", f"{job.weights:,}"))
    if job.record is not None:
        fields += [("job", _job_text(found)), *(("not recognised", note) for note in job.notes)]
    else:
        fields += [("no job", note) for note in job.notes]
    if found.estimate is not None:
        fields.append(
            ("iteration", f"{seconds_text(found.estimate.seconds)}, the job by `coppice train estimate`")
        )
    if found.timed is not None:
        exposed = max(0.0, found.timed.seconds - found.timed.compute_seconds)
        words = f"{seconds_text(found.timed.seconds)} on this rank, of it {seconds_text(exposed)} communicates alone"
        fields.append(("one by one", f"{words}; it waits for no other rank"))
    if output is not None:
        fields.append(("written", str(output)))
    return fields


_PARTS = {
    "Parameter": "parameters",
    "Buffer": "buffers",
    "Gradient": "gradients",
    "Activation": "activations",
    "Temp": "temporaries of the backward pass",
    "Optstate": "optimizer",
    "Other": "others",
}
"""Kinds of PyTorch's tracker of memory."""


def _job_text(found: CapturedScript) -> str:
    """The job in one line."""
    from coppice.iteration.job.job import layout_of
    from coppice.iteration.layout import recomputation_text

    record = found.job.record
    if record is None:
        return ""
    model, layout = record.model, record.layout
    degrees = ((name, getattr(layout, name)) for name in ("tp", "pp", "dp", "cp", "ep"))
    words = [f"{name} {value}" for name, value in degrees if value not in (None, 1)] or ["one GPU"]
    batch = f"{layout.global_batch} sequences of {model.seq} tokens in micro-batches of {layout.micro_batch}"
    again = recomputation_text(layout_of(layout, found.num_ranks))
    kept = f"recomputation {again}, sharded {layout.shard}, policy {record.run.policy}"
    return f"{model.layers} layers of width {model.hidden}; {', '.join(words)}; {batch}; {kept}"


def _totals(rank: CapturedRank) -> Any:
    from coppice.iteration.totals import collective_totals, group_text

    return collective_totals(
        (each.collective, group_text(each.ranks), len(each.ranks), each.size_bytes)
        for each in rank.collectives
    )


def _flops(rank: CapturedRank) -> dict[str, int]:
    """FLOPs by pass."""
    again = rank.facts.recomputed_flops
    backward = sum(each.flops for each in rank.operations if each.backward and not each.update)
    forward = sum(each.flops for each in rank.operations if not each.backward and not each.update)
    return {"forward": forward, "backward": backward - again, "recomputed": again}


def _record(found: CapturedScript) -> dict[str, Any]:
    """The step as JSON values."""
    rank, job = found.captured, found.job
    flops = _flops(rank)
    record: dict[str, Any] = {
        "script": found.command[0],
        "arguments": list(found.command[1:]),
        "rank": rank.rank,
        "rank_count": found.num_ranks,
        "step_count": rank.steps,
        "device": found.device,
        "torch": rank.torch,
        "flops": rank.flops,
        "forward_flops": flops["forward"],
        "backward_flops": flops["backward"],
        "recomputed_flops": flops["recomputed"],
        "peak_memory_bytes": rank.peak_bytes,
        "memory_bytes_by_kind": rank.peak_parts,
        "parameter_count": job.weights,
        "totals": collective_records(_totals(rank)),
        "issued": [_collective(each, rank) for each in rank.collectives],
        "setup_totals": collective_records(_totals_of_setup(rank)),
        "captured_ranks": [
            {"rank": each.rank, "flops": each.flops, "peak_memory_bytes": each.peak_bytes}
            for each in found.ranks.values()
        ],
        "job_text": None if job.record is None else found.job_text(),
        "not_recognised": list(job.notes),
        "notes": list(rank.notes),
    }
    if found.estimate is not None:
        record["iteration_seconds"] = found.estimate.seconds
    if found.timed is not None:
        record |= {
            "operations_seconds": found.timed.seconds,
            "compute_seconds": found.timed.compute_seconds,
            "communication_seconds": found.timed.communication_seconds,
        }
    return record


def _totals_of_setup(rank: CapturedRank) -> Any:
    from coppice.iteration.totals import collective_totals, group_text

    return collective_totals(
        (each.collective, group_text(each.ranks), len(each.ranks), each.size_bytes) for each in rank.setup
    )


def _collective(each: Any, rank: CapturedRank) -> dict[str, Any]:
    phase = "update" if each.update else "backward" if each.backward else "forward"
    return {
        "collective": each.collective,
        "size_bytes": each.size_bytes,
        "rank_list": each.ranks,
        "layer": rank.layers[each.layer].name if 0 <= each.layer < len(rank.layers) else None,
        "pass": phase,
    }
