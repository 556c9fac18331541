"""`coppice train job`, `models` and `measure`: the parts of a training job, and the job of a command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.options.inputs import load_topology
from coppice.cli.output import print_fields, print_json, print_lines, print_note, write_text
from coppice.errors import InputError
from coppice.iteration.job_options import JobOptions
from coppice.options import argument, option
from coppice.options.shared import JsonOption, TimeLimitOption
from coppice.text import columns

if TYPE_CHECKING:
    from coppice.iteration.job import TrainingJob
    from coppice.iteration.layout import Layout
    from coppice.topology.model import Topology


_FIELDS = JobOptions.__struct_fields__
LAYOUT_OPTIONS = " ".join(_FIELDS[1 : _FIELDS.index("attention") + 1])
"""Options of what runs and where, in the order of helps."""


def load_job(options: JobOptions) -> TrainingJob:
    """Load the job of the options.

    Raises:
        InputError: As :meth:`coppice.iteration.job_options.JobOptions.load`.
    """
    found = options.load(load_of_job, note=print_note)
    note_constants(found)
    return found


def note_constants(job: TrainingJob) -> None:
    """Print a note about GPUs whose constants were fitted to another one."""
    from coppice.iteration.machine import constants_borrowed

    told = (constants_borrowed(each.cluster) for each in job.machines.kinds)
    for words in dict.fromkeys(filter(None, told)):
        print_note(f"note: {words}.")


def load_of_job(
    spec: str, boxes: int | None, rates: str | None, settings: Mapping[str, object] | None
) -> Topology:
    """Load a topology of a job, printing reader warnings on standard error."""
    return load_topology(
        spec,
        boxes=boxes,
        rates=rates,
        settings=[f"{key}={value}" for key, value in (settings or {}).items()],
    )


@with_options()
def job(
    file: Annotated[str | None, argument("Job file (TOML); - is standard input.", metavar="FILE")] = None,
    *,
    schema: Annotated[bool, option("Print the JSON schema of job files.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a job file, and show the resulting job.

    \b
    Examples:
      coppice train job examples/iteration/gpt-175b.toml
      coppice train job --schema
    """  # noqa: D301 (\b is for the help formatter)
    import json

    import msgspec

    from coppice.iteration.job.file import read_job_record
    from coppice.iteration.job.job import job_of
    from coppice.iteration.job.tables import JobRecord
    from coppice.iteration.layout import recomputation_text
    from coppice.iteration.machine import gpu_text
    from coppice.iteration.transformer import Transformer

    if schema:
        write_text(json.dumps(msgspec.json.schema(JobRecord), indent=2) + "\n", None)
        return
    if file is None:
        raise InputError("expected a job file, found none: name one, or take `schema`.")
    record = read_job_record(file)
    found = job_of(record, folder=Path(file).parent, loaded=load_of_job)
    note_constants(found)
    if as_json:
        print_json("train-job", msgspec.to_builtins(record))
        return
    layout, model = found.layout, found.model
    degrees = {
        "tp": layout.tensor,
        "pp": layout.pipeline,
        "dp": layout.data,
        "cp": layout.context,
        "ep": layout.expert,
        "chunks": layout.chunks,
    }
    batch = (
        f"{layout.global_batch} {model.sample}s, {layout.micro_batches} micro-batches of {layout.micro_batch}"
    )
    words = f"{model.parameters / 1e9:.4g} billion weights, {model.layers} layers"
    if isinstance(model, Transformer) and model.experts:
        words += f", {model.experts_per_token} of {model.experts} experts a token"
    fields = [
        ("model", words),
        ("cluster", f"{found.machines.name}, {found.machines.gpus} GPUs"),
        ("GPU", ", ".join(dict.fromkeys(gpu_text(each.cluster) for each in found.machines.kinds))),
        (
            "layout",
            ", ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "one GPU",
        ),
        ("batch", batch),
        ("keeps", f"recomputation {recomputation_text(layout)}, sharded {_shards_text(layout)}"),
    ]
    print_fields(found.name, fields)


def _shards_text(layout: Layout) -> str:
    """What replicas shard, and in which groups."""
    words = layout.shard.value
    if layout.sharing < layout.replicas:
        words += f" in groups of {layout.sharing}"
    return (
        f"{words}, a second copy in groups of {layout.secondary_ranks}" if layout.secondary_ranks else words
    )


@with_options()
def models(*, as_json: JsonOption = False) -> None:
    """List the models for jobs: their weights, and operations of a forward pass of a sample.

    A multiply-add counts as two operations; of a mixture of experts, weights that a token meets stand beside all.

    \b
    Example:
      coppice train models
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.transformer import Transformer
    from coppice.verbs.train_files import models as known

    found = list(known().items())
    if as_json:
        records = [
            {
                "name": name,
                "sample": model.sample,
                "layer_count": model.layers,
                "layers": model.layers,
                "parameter_count": round(model.parameters),
                "parameters": round(model.parameters),
                "forward_flops": model.forward_flops(1),
            }
            for name, model in found
        ]
        print_json("train-models", {"models": records})
        return
    rows = [("name", "layers", "weights", "active", "GFLOP", "")]
    for name, model in found:
        active = ""
        if isinstance(model, Transformer) and model.experts:
            active = _count(model.active_parameters)
        flops = f"{model.forward_flops(1) / 1e9:,.4g}" if model.forward_flops(1) < 1e13 else ""
        flops = flops or f"{model.forward_flops(1) / 1e9:,.0f}"
        rows.append((name, str(model.layers), _count(model.parameters), active, flops, f"per {model.sample}"))
    print_lines(columns(rows, "lrrrrl"))


def _count(number: float) -> str:
    """Weights with a unit: 175B, 25.6M."""
    return f"{number / 1e9:,.{0 if number >= 1e11 else 1}f}B" if number >= 1e9 else f"{number / 1e6:.3g}M"


@with_options()
def measure(
    *,
    output: Annotated[Path, option("Device file to write.", "-o", "--output", metavar="FILE")] = Path(
        "device.json"
    ),
    kind: Annotated[
        str | None,
        option("cuda or cpu [default: cuda where there is a GPU].", metavar="KIND"),
    ] = None,
    seconds: TimeLimitOption = 20.0,
    as_json: JsonOption = False,
) -> None:
    """Measure matrix products, copies of memory and attention with PyTorch, and write them as a device file.

    Give the file to `--device`: estimates then take its rates, and what lies between, instead of fitted constants.

    \b
    Example:
      coppice train measure -o device.json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.verbs.train_files import MeasureCall, measured_device

    record = measured_device(MeasureCall(output=output, kind=kind, time_limit=seconds), say=print_note)
    best = max(each["tflops_per_s"] for each in record["matrices"])
    rate = max(each["bytes_per_second"] for each in record["copies"])
    if as_json:
        print_json(
            "train-measure",
            {"name": record["name"], "tflops_per_s": best, "bytes_per_second": rate, "output": str(output)},
        )
        return
    fields = [
        ("products", f"{best:.4g} TFLOP/s at most, {len(record['matrices'])} sizes"),
        ("copies", f"{rate / 1e9:.4g} GB/s at most"),
        ("launch", f"{1e6 * record['launch_seconds']:.3g} us"),
        ("wrote", str(output)),
    ]
    print_fields(record["name"], fields)
