"""Several jobs at once, from a file: `coppice simulate --jobs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from coppice.cli.output.render import Stages, print_fields, print_json, print_lines
from coppice.cli.simulate.text import model_text
from coppice.comparison.table import aligned, number
from coppice.errors import InputError
from coppice.files import read_bytes
from coppice.schedule.files.plan_file import read_plan
from coppice.simulation.best_pieces import best_pieces
from coppice.simulation.jobs import Job, JobResult, Together, simulate_together
from coppice.simulation.model import Model
from coppice.simulation.trace import write_trace
from coppice.text import parse_size, plural, short_size
from coppice.topology.model import Topology
from coppice.topology.sources import resolve

__all__ = ["print_jobs", "read_jobs"]

FORMAT = "coppice-jobs"
VERSION = 1


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    plan: str
    size: str | int
    start_us: float = 0.0
    pieces: int | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    jobs: list[_Row]
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
        document = msgspec.json.decode(data, type=_File)
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


def print_jobs(path: Path, *, model: Model, pieces: int | None, trace: Path | None, as_json: bool) -> None:
    """Simulate the jobs of a file together, and print what becomes of each."""
    with Stages() as progress:
        progress.begin("reading the plans")
        jobs, topology = read_jobs(path, model=model, pieces=pieces)
        progress.begin("simulating")
        found = simulate_together(jobs, model=model, topology=topology)
        if trace is not None:
            progress.begin("writing the trace")
            firsts = zip(found.results, found.first.tolist(), strict=False)
            write_trace(found.timeline, trace, jobs=[(result.job.name, first) for result, first in firsts])
    if as_json:
        print_json(_record(found))
        return
    fields = [("model", model_text(model)), ("all done", f"after {number(found.time_us)} us")]
    if trace is not None:
        fields.append(("trace", str(trace)))
    print_fields(f"{plural(len(jobs), 'job')} on {found.topology.name}", fields)
    print_lines(["", *_table(found)])


def _topology(spec: str, path: Path) -> Topology:
    """The cluster: a file beside the jobs, or what a command line takes."""
    beside = path.parent / spec
    return resolve(str(beside) if beside.is_file() else spec)


def _table(found: Together) -> list[str]:
    heads = [
        ("job", ""),
        ("collective", ""),
        ("size", "(B)"),
        ("start", "(us)"),
        ("time", "(us)"),
        ("alone", "(us)"),
        ("slowdown", ""),
        ("shared link", ""),
    ]
    rows = [
        [
            result.job.name,
            result.job.body.collective.value,
            short_size(result.job.size_bytes),
            number(result.job.start_us),
            number(result.time_us),
            number(result.alone_us),
            f"{result.slowdown:.2f}",
            _shared_text(result),
        ]
        for result in found.results
    ]
    return aligned(heads, rows)


def _shared_text(result: JobResult) -> str:
    shared = result.shared
    if shared is None:
        return "none" if result.slowdown <= 1 else "none: it waits for engines"
    others = ", ".join(f"{name} {number(us)} us" for name, us in list(shared.others_us.items())[:3])
    more = len(shared.others_us) - 3
    rest = f" and {more} more" if more > 0 else ""
    return f"{shared.src} -> {shared.dst}: own {number(shared.own_us)} us, {others}{rest}"


def _record(found: Together) -> dict[str, Any]:
    return {
        "topology": found.topology.name,
        "ranks": found.topology.num_ranks,
        "time_us": found.time_us,
        "jobs": [
            {
                "name": result.job.name,
                "collective": result.job.body.collective.value,
                "size_bytes": result.job.size_bytes,
                "start_us": result.job.start_us,
                "pieces": result.job.pieces,
                "time_us": result.time_us,
                "alone_us": result.alone_us,
                "slowdown": result.slowdown,
                "shared_link": None
                if result.shared is None
                else {
                    "link": [result.shared.src, result.shared.dst],
                    "own_us": result.shared.own_us,
                    "others_us": result.shared.others_us,
                },
            }
            for result in found.results
        ],
    }
