"""`coppice train torch-profile`: export collective costs of a job for torch's overlap scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import print_fields, print_json, write_text
from coppice.cli.train.job_options import LAYOUT_OPTIONS, load_job
from coppice.errors import InputError
from coppice.iteration.job_options import JobOptions
from coppice.options import option
from coppice.options.names import CALIBRATED
from coppice.options.shared import JsonOption
from coppice.text import plural

"""Options of the estimate that times of collectives do not take."""


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

    from coppice.iteration.costs.calibrated import costs_of
    from coppice.iteration.costs.profile import groups_of
    from coppice.iteration.costs.profile import torch_profile as profile_of
    from coppice.simulation.models import model_of

    asked = load_job(options)
    groups = groups_of(asked.layout)
    if not groups:
        raise InputError("expected groups that exchange something, found a rank in each: raise tp or dp.")
    made = profile_of(costs_of(asked.cluster), asked.layout)
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
