"""`coppice train pipeline` and `torch-profile`: export a job's pipeline order or its collective costs for PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from coppice.cli.options.declaring import with_options
from coppice.cli.output import print_fields, print_json, write_text
from coppice.cli.train.jobs import LAYOUT_OPTIONS, load_job
from coppice.iteration.job_options import JobOptions
from coppice.options import option
from coppice.options.names import CALIBRATED, TORCH_ORDERS
from coppice.options.shared import JsonOption
from coppice.text import plural, seconds_text

if TYPE_CHECKING:
    from coppice.iteration.job.job import TrainingJob
    from coppice.iteration.step.simulated import SimulatedStep


@with_options(f"job output policy {LAYOUT_OPTIONS} collectives model rates settings ...")
def pipeline(
    options: JobOptions,
    *,
    output: Annotated[Path, option("CSV file to write.", "-o", "--output")],
    policy: Annotated[
        str | None,
        option(
            f"Policies, joined by +, one of them an order: {', '.join(TORCH_ORDERS)} [default: 1f1b, of chunks "
            "interleaved].",
            metavar="NAME",
            was=["--pipeline-order +{}", "--order +{}", "--overlap +{}"],
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a job's pipeline order for PyTorch: a row per rank, with actions such as 2F0, 2B0, 2I0 and 2W0.

    `_PipelineScheduleRuntime._load_csv(FILE, format="compute_only")` of torch.distributed.pipelining loads it. Passes
    are counted, and all ranks run against each other, before it is written; its bubble is simulated.

    \b
    Examples:
      coppice train pipeline gpt-7.5b --topology dgx-a100 --parallel pp=8 --global-batch 32 --policy zero-bubble -o order.csv
      coppice train pipeline gpt-7.5b --topology dgx-a100 --parallel pp=4,tp=2,vp=3 --global-batch 16 \
        --policy breadth-first -o order.csv
    """  # noqa: D301, E501 (\b is for the help formatter)
    import sys

    from coppice.iteration.pipeline.torch_csv import order_csv, placement
    from coppice.verbs.train_files import pipelined

    asked = load_job(replace(options, policy=policy))
    found = pipelined(asked)
    passes = found.given[1].order
    write_text(order_csv(passes), output)
    to_stdout = str(output) == "-"
    ranks, where = len(passes.devices), placement(passes)
    bubble = found.parts["bubble"]
    if as_json and not to_stdout:
        print_json(
            "train-pipeline",
            {
                "order": found.order,
                "ranks": ranks,
                "stages": passes.stages,
                "micro_batches": passes.micro_batches,
                "placement": where,
                "iteration_seconds": found.seconds,
                "bubble_seconds": bubble,
                "model_name": _model(asked),
                "model": _model(asked),
                "device": asked.cluster.device.name,
                "output": str(output),
            },
        )
        return
    own = [stage for stage, device in sorted(passes.device_of().items()) if device == 0]
    size = f"{plural(ranks, 'rank')}, {plural(passes.stages, 'stage')}, {plural(passes.micro_batches, 'micro-batch')}"
    fields = [
        ("order", f"{found.order}, {size}"),
        ("rank 0 has", f"{'stages' if len(own) > 1 else 'stage'} {', '.join(map(str, own))}{_WHERE[where]}"),
        ("bubble", _bubble(found, asked)),
    ]
    if not to_stdout:
        fields.append(("wrote", str(output)))
    print_fields(f"{asked.name} on {asked.machines.name}", fields, file=sys.stderr if to_stdout else None)


_WHERE = {"loop": "", "v": " (V placement)", None: " (a placement of its own)"}


def _model(asked: TrainingJob) -> str:
    """By what collectives are told."""
    from coppice.simulation.models import model_of

    costs = asked.run.collectives or CALIBRATED
    return CALIBRATED if costs == CALIBRATED else model_of(asked.run.model).name


def _bubble(found: SimulatedStep, asked: TrainingJob) -> str:
    """The share of an iteration in which the busiest rank waits."""
    bubble = found.parts["bubble"]
    share = f"{100 * bubble / found.seconds:.3g}% of {seconds_text(found.seconds)}"
    return f"{share}, simulated with model {_model(asked)} ({asked.cluster.device.name})"


@with_options(f"job output {LAYOUT_OPTIONS} collectives model rates settings ...")
def torch_profile(
    options: JobOptions,
    *,
    output: Annotated[Path, option("JSON file to write.", "-o", "--output")],
    as_json: JsonOption = False,
) -> None:
    """Write collective times over a job's groups as a profile for torch.compile's runtime estimates.

    Name the file in `torch._inductor.config.aten_distributed_optimizations.profile_guided_estimations_profile_path`
    (torch 2.13): its scheduler of overlap then places collectives by what they take on this cluster.

    \b
    Example:
      coppice train torch-profile llama3-8b --topology dgx-h100 --boxes 2 --parallel tp=8,dp=2 -o estimates.json
    """  # noqa: D301 (\b is for the help formatter)
    import json

    from coppice.iteration.costs.profile import groups_of
    from coppice.simulation.models import model_of
    from coppice.verbs.train_files import profile_of

    asked = load_job(options)
    groups = groups_of(asked.layout)
    made = profile_of(asked)
    write_text(json.dumps(made) + "\n", output)
    if str(output) == "-":
        return
    costs = asked.run.collectives or CALIBRATED
    model = CALIBRATED if costs == CALIBRATED else model_of(asked.run.model).name
    if as_json:
        shown = [{"ranks": group.ranks, "stride": group.stride} for group in groups]
        print_json(
            "train-torch-profile",
            {
                "groups": shown,
                "time_count": len(made["traceEvents"]),
                "times": len(made["traceEvents"]),
                "collective_costs": costs,
                "collectives": costs,
                "model_name": model,
                "model": model,
                "output": str(output),
            },
        )
        return
    fields = [
        ("groups", ", ".join(f"{group.ranks} ranks {group.stride} apart" for group in groups)),
        ("times", f"{plural(len(made['traceEvents']), 'time')}, collectives {costs}, model {model}"),
        ("wrote", str(output)),
    ]
    print_fields(f"{asked.name} on {asked.machines.name}", fields)
