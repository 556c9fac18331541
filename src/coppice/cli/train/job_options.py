"""Build a training job from command-line options: a model with options, or a job file with overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coppice.cli.options.inputs import load_topology, parse_settings
from coppice.cli.output.render import print_note
from coppice.errors import InputError
from coppice.text import suggestion

if TYPE_CHECKING:
    from coppice.iteration.job import TrainingJob
    from coppice.iteration.job.job import JobRecord
    from coppice.topology.model import Topology

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Job file (.toml), or name of a model (`coppice train models`); options replace keys of the file.",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="TOPOLOGY", help="Preset or topology file [needed without a job file]."
    ),
]
BatchOption = Annotated[
    int | None, typer.Option("--global-batch", min=1, help="Samples of an iteration [default: one each].")
]
FusedOption = Annotated[
    bool | None,
    typer.Option(
        "--fused-attention/--no-fused-attention", help="Scores stay on the chip [default: they do]."
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="NAME", help="GPU, or file of a measured one [default: by the topology's name]."
    ),
]

_DEGREES = {"tp": "tp", "pp": "pp", "dp": "dp", "cp": "cp", "ep": "ep", "vp": "chunks"}


def job_record_of_options(
    job: str,
    *,
    cluster: Mapping[str, Any],
    layout: Mapping[str, Any],
    run: Mapping[str, Any] | None = None,
    rates: str | None = None,
    settings: Sequence[str] | None = None,
) -> tuple[JobRecord, Path | None]:
    """Job record of the options, and the folder of its file; options override keys of the file.

    Args:
        job: Name of a model, or of a job file.
        cluster: Keys of the table of the cluster; None: not given.
        layout: Those of the layout.
        run: Those of how it runs.
        rates: Rates of a preset.
        settings: ``KEY=VALUE`` options of the policy, the others parameters of a preset.

    Raises:
        InputError: If the file cannot be read, or nothing says which cluster.
    """
    from coppice.iteration.job.file import read_job_record, with_values
    from coppice.iteration.job.job import JobRecord, ModelTable

    folder = None
    if job.endswith(".toml"):
        record, folder = read_job_record(job), Path(job).parent
    else:
        record = JobRecord(model=ModelTable(name=job))
        if cluster.get("topology") is None:
            raise InputError(
                "expected `cluster`, a preset or topology file, found none: name it, or give a job file."
            )
        layout = {"dp": 1} | dict(layout)
    values = dict(cluster) | {"rates": rates}
    run = dict(run or {})
    if settings:
        given = parse_settings(settings)
        policy = run.get("policy") or record.run.policy
        of_policy = _settings_of(policy, given) if policy is not None else {}
        if of_policy:
            run["settings"] = (record.run.settings or {} if run.get("policy") is None else {}) | of_policy
        of_preset = {key: value for key, value in given.items() if key not in of_policy}
        if of_preset:
            values["settings"] = (record.cluster.settings or {}) | of_preset
    if cluster.get("topology") is not None:
        record.cluster.mixed = None
    return with_values(record, {"cluster": values, "layout": layout, "run": run}), folder


def _settings_of(policy: str, given: Mapping[str, str]) -> dict[str, str]:
    """Those of some ``KEY=VALUE`` that are options of policies.

    Raises:
        InputError: If there is no such policy.
    """
    from coppice.iteration.composing.composition import named_policies, owners_of

    names = named_policies(policy)
    return {key: value for key, value in given.items() if owners_of(key, names)}


def job_from_options(
    job: str,
    *,
    cluster: str | None,
    boxes: int | None,
    device: str | None,
    parallel: str | None,
    run: Mapping[str, Any],
    rates: str | None,
    settings: Sequence[str] | None,
    **layout: Any,
) -> TrainingJob:
    """Training job of the options of an estimate.

    Args:
        job: Name of a model, or of a job file.
        cluster: Preset or topology file.
        boxes: Boxes of a preset.
        device: GPU, or file of a measured one.
        parallel: Degrees, such as ``tp=8,pp=4``.
        run: Keys of the table of how it runs.
        rates: Rates of a preset.
        settings: ``KEY=VALUE`` parameters of a preset.
        layout: Keys of the table of the layout, but the degrees.

    Raises:
        InputError: If the file cannot be read, nothing says which cluster, or the layout does not suit it.
    """
    from coppice.iteration.job.job import job_of

    record, folder = job_record_of_options(
        job,
        cluster={"topology": cluster, "boxes": boxes, "device": device},
        layout={**parse_degrees(parallel), **layout},
        run=run,
        rates=rates,
        settings=settings,
    )
    found = job_of(record, folder=folder, loaded=load_of_job)
    note_constants(found)
    return found


def note_constants(job: TrainingJob) -> None:
    """Print a note about GPUs whose constants were fitted to another one."""
    from coppice.iteration.cluster import constants_borrowed

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


def parse_degrees(text: str | None, *, option: str = "--parallel") -> dict[str, int]:
    """Parse ``tp=8,pp=4`` into keys of the layout table.

    Args:
        text: The degrees; None is none.
        option: The option that they were given to, for messages.

    Examples:
        >>> parse_degrees("tp=8,vp=2"), parse_degrees(None)
        ({'tp': 8, 'chunks': 2}, {})

    Raises:
        InputError: If a name is none, or a degree is no number of 1 or more.
    """
    found: dict[str, int] = {}
    for word in text.split(",") if text is not None else ():
        name, _, value = word.strip().partition("=")
        if name not in _DEGREES or not value.isdigit() or int(value) < 1:
            hint = "" if name in _DEGREES or not name else f": {suggestion(name, _DEGREES)}"
            raise InputError(f"expected {option} such as tp=8,pp=4,dp=2, found {word.strip()!r}{hint or '.'}")
        if _DEGREES[name] in found:
            raise InputError(
                f"expected each degree once in {option}, found {name} twice in {text!r}: leave one out."
            )
        found[_DEGREES[name]] = int(value)
    return found
