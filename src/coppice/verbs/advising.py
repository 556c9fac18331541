"""What to change today on a cluster, for the library that is installed there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.options import ANYTHING, AnySizes, argument, option
from coppice.options.calls import verb
from coppice.options.names import ADVISED
from coppice.options.shared import BatchOption, JobsOption, ModelOption, ParallelOption

if TYPE_CHECKING:
    from coppice.advice.advise import LibraryAdvice
    from coppice.iteration.job.job import TrainingJob
    from coppice.topology.model import Topology


LOGS = (
    option(
        "Log of the library, result of nccl-tests, runs of `coppice tune sweep`, of a host there `lspci -vv` or NCCL's "
        "dump of its topology; may be repeated.",
        "--log",
        metavar="FILE",
    ),
)


class AdviseOptions(Struct, frozen=True, kw_only=True):
    """Options of advice."""

    library: Annotated[
        str | None,
        option(
            f"One of: {', '.join(ADVISED)} [default: the one of such GPUs].",
            "--library",
            "-l",
            metavar="NAME",
        ),
    ] = None
    collectives: Annotated[
        str | Sequence[Collective | str] | None,
        ANYTHING,
        option(
            "Collectives, joined by commas [default: all that the library can be told about].",
            "--collective",
            "-c",
            metavar="LIST",
        ),
    ] = None
    sizes: Annotated[
        AnySizes | None,
        option(
            "Message sizes M, such as 64M or 1K:1G:4 [default: 1K:1G:4, of MPI 1K:16M:4].",
            "--size",
            "--sizes",
            "-s",
            metavar="SIZES",
        ),
    ] = None
    model: Annotated[Any, ANYTHING, *ModelOption.__metadata__] = None
    jobs: JobsOption = None
    job: Annotated[
        str | None,
        option(
            "What it brings to the step of a job on this cluster: job file (.toml), or a model with --parallel.",
            "--job",
            metavar="JOB",
        ),
    ] = None
    parallel: ParallelOption = None
    global_batch: BatchOption = None
    write: Annotated[
        str | None,
        option(
            "Write the files that carry the changes into this folder, judged by the doctor.", metavar="DIR"
        ),
    ] = None


class LibraryAdviceCall(AdviseOptions, frozen=True):
    """Advice on a cluster."""

    cluster: Annotated[Any, argument("The cluster: a topology, or the name of a preset or file.")]
    logs: Annotated[Sequence[str | os.PathLike[str]], ANYTHING, *LOGS] = ()


@verb(LibraryAdviceCall)
def advise(asked: LibraryAdviceCall) -> LibraryAdvice:
    """Advise on what to change today: what the library picks, what it could pick best, and what that brings.

    NCCL is judged by its own cost model over the channels that its search finds on this cluster; Open MPI and MPICH by
    simulation of all algorithms that they can be told to use; what logs measured comes first.

    Raises:
        InputError: If there is no such library or it does not run on the cluster, or a file cannot be read.

    Examples:
        >>> import coppice
        >>> advice = coppice.advise("dgx-a100", sizes="1M")
        >>> advice.library, len(advice.rows), advice.gaining
        ('nccl', 5, ())
    """
    from coppice.advice.advise import advised
    from coppice.topology.load import load

    cluster = load(asked.cluster)
    options = advised_options(asked)
    found = advised(
        cluster, job=job_on(cluster, asked), **read_reports(asked.logs, options["collectives"]), **options
    )
    return found if asked.write is None else found.written(asked.write)


def job_on(cluster: Topology, asked: AdviseOptions) -> TrainingJob | None:
    """The job of some options on a cluster, whatever cluster its file names; None where there is none.

    Raises:
        InputError: If there is a layout without a job, or the job cannot be read or does not fit.
    """
    from coppice.iteration.job_options import JobOptions

    if asked.job is None:
        for name in ("parallel", "global_batch"):
            if getattr(asked, name) is not None:
                raise InputError(f"expected `{name}` with `job`, found it alone: name a job.")
        return None
    options = JobOptions(
        job=asked.job, topology=cluster.name, parallel=asked.parallel, global_batch=asked.global_batch
    )
    return options.load(loaded=lambda *_, **__: cluster)


def read_reports(
    paths: Sequence[str | os.PathLike[str]], collectives: Sequence[Collective] = ()
) -> dict[str, Any]:
    """Logs, measurements and reports of hosts among some files, as :func:`coppice.advice.advise.advised` takes them.

    Args:
        collectives: What is advised on: a single one is that of tables that do not say theirs.

    Raises:
        InputError: If a file cannot be read, or is of no known kind.
    """
    from coppice.advice.hosts import is_lspci
    from coppice.advice.topology_file import is_dump
    from coppice.files import file_name, read_bytes
    from coppice.logs.reading import read_logs
    from coppice.tuning.records import read_runs

    reports = {file_name(path): read_bytes(path) for path in paths}
    swept = [path for path in paths if reports[file_name(path)].startswith(b'{"library":')]
    others = [
        path
        for path in paths
        if path not in swept
        and not is_lspci(reports[file_name(path)])
        and not is_dump(reports[file_name(path)])
    ]
    performed = collectives[0] if len(collectives) == 1 else None
    logs = read_logs(others, collective=performed)
    return {"logs": logs, "runs": read_runs(swept) if swept else (), "reports": reports}


def advised_options(asked: AdviseOptions) -> dict[str, Any]:
    """What :func:`coppice.advice.advise.advised` takes of some options."""
    from coppice.text import sizes_of

    names = asked.collectives.split(",") if isinstance(asked.collectives, str) else asked.collectives or ()
    return {
        "library": asked.library,
        "collectives": [Collective.named(name) for name in names],
        "sizes": None if asked.sizes is None else sizes_of(asked.sizes),
        "model": asked.model,
        "jobs": asked.jobs,
    }
