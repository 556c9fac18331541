"""`coppice train job`: check and show a job file, or print the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import print_fields, print_json, write_text
from coppice.cli.train.job_options import load_of_job, note_constants
from coppice.errors import InputError
from coppice.options import argument, option
from coppice.options.shared import JsonOption


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
        ("GPU", ", ".join(dict.fromkeys(each.cluster.device.name for each in found.machines.kinds))),
        (
            "layout",
            ", ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "one GPU",
        ),
        ("batch", batch),
        ("keeps", f"recomputation {layout.recompute.value}, sharded {layout.shard.value}"),
    ]
    print_fields(found.name, fields)
