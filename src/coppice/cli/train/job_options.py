"""Load the training job of a command line, with notes on standard error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coppice.cli.options.inputs import load_topology
from coppice.cli.output.render import print_note
from coppice.iteration.job_options import JobOptions

if TYPE_CHECKING:
    from coppice.iteration.job import TrainingJob
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
