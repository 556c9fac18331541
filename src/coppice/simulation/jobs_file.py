"""Files of several jobs that run at once: their plans, sizes and starts, as docs/simulation.md describes them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from coppice.errors import InputError
from coppice.files import read_bytes
from coppice.schedule.files.plan_file import read_plan
from coppice.simulation.best_pieces import best_pieces
from coppice.simulation.jobs import Job
from coppice.simulation.model import Model
from coppice.text import parse_size
from coppice.topology.model import Topology
from coppice.topology.sources import resolve

__all__ = ["read_jobs"]

FORMAT = "coppice-jobs"
VERSION = 1


class _JobRow(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    plan: str
    size: str | int
    start_us: float = 0.0
    pieces: int | None = None


class _JobsFile(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    jobs: list[_JobRow]
    topology: str | None = None


def read_jobs(path: Path, *, model: Model, pieces: int | None) -> tuple[list[Job], Topology | None]:
    """The jobs of a file, with their plans, and the cluster that it names.

    Args:
        path: The file; plans and a topology file are found from where it lies.
        model: For the number of pieces that is the best.
        pieces: Pieces of jobs that name no number; None is the best for each alone.

    Raises:
        InputError: If a file cannot be read or is no such file.
    """
    try:
        data = read_bytes(path, what="the jobs", hint="check the name")
        document = msgspec.json.decode(data, type=_JobsFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        msg = f"expected jobs as docs/simulation.md describes in {path}, found: {str(error).rstrip('.')}."
        raise InputError(msg) from None
    if (document.format, document.version) != (FORMAT, VERSION):
        found = f"{document.format[:40]!r}, version {document.version}"
        msg = f'expected format "{FORMAT}", version {VERSION} in {path}, found {found}.'
        raise InputError(msg)
    jobs = []
    for place, row in enumerate(document.jobs):
        plan = read_plan(path.parent / row.plan)
        size = row.size if isinstance(row.size, int) else parse_size(row.size, option=f"$.jobs[{place}].size")
        count = row.pieces if row.pieces is not None else pieces
        if count is None:
            count = best_pieces(plan.body, size, model=model)[0]
        jobs.append(Job(name=row.name, body=plan.body, size_bytes=size, start_us=row.start_us, pieces=count))
    return jobs, None if document.topology is None else _topology(document.topology, path)


def _topology(spec: str, path: Path) -> Topology:
    """The cluster: a file beside the jobs, or what a command line takes."""
    beside = path.parent / spec
    return resolve(str(beside) if beside.is_file() else spec)
