"""Advice for a cluster and the library that is installed there: rows of calls, changes, and what was found of hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coppice.advice.changes import Change
from coppice.advice.environment import unset_changes
from coppice.advice.fabric import order_changes, order_file_name, order_text
from coppice.advice.hosts import host_changes, host_diagnoses
from coppice.advice.measured import fit_of, logged_rows, measured_rows, swept_rows
from coppice.advice.mpi import PASSED_ON, MpiRequest, mpi_advice, passes_on, reordered
from coppice.advice.nccl import TUNED, NcclState, nccl_rows
from coppice.advice.rccl import rccl_rows
from coppice.advice.rows import AdviceRow
from coppice.advice.step import StepAdvice, step_advice
from coppice.advice.topology_file import is_dump, topology_files
from coppice.advice.writing import (
    AdvisedFile,
    environment_file,
    measured_file,
    simulated_rules,
    simulated_variables,
    write_files,
)
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.doctor.framework import Diagnosis
from coppice.errors import InputError
from coppice.export.open_mpi.rules_file import installed_version
from coppice.fitting.open_mpi import COMPARED
from coppice.fitting.rank_order import RankOrder
from coppice.iteration.job.job import TrainingJob
from coppice.logs.records import Log
from coppice.selection.nccl.machines import machines_of
from coppice.selection.nccl.releases import constants, nearest_release
from coppice.simulation.models import Model, model_of
from coppice.text import suggestion
from coppice.topology.model import Topology
from coppice.tuning.fit import fit_runs
from coppice.tuning.records import TimedRun

if TYPE_CHECKING:
    from coppice.outputs.shapes.deploying import LibraryAdviceJson

LIBRARIES = {"nccl": "NCCL", "rccl": "RCCL", "open-mpi": "Open MPI", "mpich": "MPICH"}
"""Libraries that are advised on, with the names that they give themselves."""

MPI_MODEL = "mpi-tcp"
"""Model of time of MPI libraries where none is given."""

USUAL_SIZES = tuple(4**k for k in range(5, 16))
"""1 KiB to 1 GiB."""

USUAL_OF_MPI = tuple(4**k for k in range(5, 13))
"""1 KiB to 16 MiB: all algorithms are simulated."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LibraryAdvice(Brief):
    """What to change today."""

    topology: Topology  # The cluster
    library: str  # A key of :data:`LIBRARIES`
    version: str  # Its version, empty where nothing says it
    version_from: str  # What says so
    rows: tuple[AdviceRow, ...]  # By group, collective and size
    changes: tuple[Change, ...]  # What can be changed
    assumptions: tuple[str, ...]  # What nothing said
    notes: tuple[str, ...]  # What was not looked at, and why
    files: tuple[AdvisedFile, ...] = ()  # What carries the changes
    environment: Mapping[str, str] = field(default_factory=dict)  # Variables of the job, as logs have them
    step: StepAdvice | None = None  # What the changes bring to the step of a job, None without one
    folder: str | None = None  # Where the files were written, None where they were not
    hosts: tuple[Diagnosis, ...] = ()  # What the doctor finds of hosts: of the cluster, and of each file

    @property
    def gaining(self) -> tuple[AdviceRow, ...]:
        """Rows in which something is gained."""
        return tuple(row for row in self.rows if row.saves)

    def written(self, folder: str | Path) -> LibraryAdvice:
        """Write the files into a folder, which is made if it is not there.

        Raises:
            InputError: If one cannot be written.
        """
        write_files(self.files, Path(folder))
        return replace(self, folder=str(folder))

    def record(self) -> LibraryAdviceJson:
        """The advice as JSON values."""
        return {
            "library": self.library,
            "library_version": self.version,
            "version_source": self.version_from,
            "topology": self.topology.name,
            "ranks": self.topology.num_ranks,
            "rows": [row.record() for row in self.rows],
            "changes": [change.record() for change in self.changes],
            "findings": [
                {
                    "file": one.file,
                    "rule": each.rule,
                    "severity": each.severity.value,
                    "line": each.line,
                    "text": each.text,
                    "fix": each.fix,
                }
                for one in self.hosts
                for each in one.findings
            ],
            "job_step": None if self.step is None else self.step.record(),
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "files": [
                {
                    "output": None if self.folder is None else str(Path(self.folder) / each.name),
                    "text": each.what,
                    "undo": each.undo,
                    "judged": each.judged,
                }
                for each in self.files
            ],
        }


def advised(
    topology: Topology,
    *,
    library: str | None = None,
    collectives: Sequence[Collective] = (),
    sizes: Sequence[int] | None = None,
    logs: Sequence[Log] = (),
    runs: Sequence[TimedRun] = (),
    reports: Mapping[str, bytes] | None = None,
    job: TrainingJob | None = None,
    environment: Mapping[str, str] | None = None,
    model: Model | str | Path | None = None,
    jobs: int | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> LibraryAdvice:
    """Advise on a cluster.

    Args:
        library: A key of :data:`LIBRARIES`; None: the library that runs on such GPUs.
        collectives: What is looked at; none: all that the library can be told about.
        sizes: Sizes M in bytes; None: :data:`USUAL_SIZES`, for MPI :data:`USUAL_OF_MPI`.
        logs: Logs of the library and results of benchmarks on that cluster.
        runs: Measurements of `coppice tune sweep` there.
        reports: Content of these logs and of outputs of `lspci -vv`, by their names, for what they report of hosts.
        job: A training job on that cluster, whose step is simulated before and after the changes (NCCL).
        environment: Variables of the job, on top of those that logs have.
        model: What messages cost, for MPI; None: :data:`MPI_MODEL`.

    Raises:
        InputError: If there is no such library, or it does not run there.
    """
    name = library or usual_library(topology)
    if name not in LIBRARIES:
        raise InputError(
            f"expected a library of {', '.join(LIBRARIES)}, found {name!r}: {suggestion(name, LIBRARIES)}"
        )
    if sizes is None:
        sizes = USUAL_SIZES if name in ("nccl", "rccl") else USUAL_OF_MPI
    variables = {key: text for log in logs for key, text in log.settings.items()} | dict(environment or {})
    rows: list[AdviceRow] = []
    changes: list[Change] = []
    notes: list[str] = []
    files: list[AdvisedFile] = []
    step: StepAdvice | None = None
    state: NcclState | None = None
    assumptions: tuple[str, ...] = ()
    if job is not None and name != "nccl":
        raise InputError(
            f"expected a job with NCCL, whose cost model prices its collectives, found {name}: leave the job out."
        )
    version, source = _version(name, logs)
    hosts = host_diagnoses(topology, reports or {})
    if name == "nccl":
        dumps = {file: data for file, data in (reports or {}).items() if is_dump(data)}
        state = NcclState(topology=topology, environment=variables, release=nearest_release(version))
        changes += [*unset_changes(variables), *host_changes(hosts)]
        for seen, correction, corrected in topology_files(topology, dumps):
            state = replace(state, seen=seen)
            changes += [] if correction is None else [correction]
            files += [] if corrected is None else [corrected]
        for change, order in order_changes(topology):
            changes.append(change)
            files.append(_order_file(change, order))
        rows = nccl_rows(state, collectives or TUNED, sizes, changes)
        assumptions = state.communicator()[1]
        notes += _other_release(version, state.release)
        if job is not None:
            step = step_advice(job, state, changes)
            changes = [each for each in changes if not _overruled(each, step)] + [*step.changes]
    elif runs:
        notes.append("what was measured is not simulated as well")
    elif name == "rccl":
        rows = logged_rows(logs, collectives or TUNED, sizes)
        if not rows:
            try:
                rows = rccl_rows(topology, collectives or TUNED, sizes)
            except InputError as unknown:  # other GPUs, or a board that RCCL searches
                notes.append(str(unknown))
            notes.append(
                "what RCCL could pick better takes a log with its cost model (NCCL_DEBUG_SUBSYS=INIT,TUNING) or times"
            )
    else:
        messages = model_of(MPI_MODEL if model is None else model)
        trusted = model is not None
        request = MpiRequest(
            library=name,
            collectives=tuple(collectives or COMPARED),
            sizes=tuple(sizes),
            model=messages,
            trusted=trusted,
            version=tuple(map(int, version.split("."))) if version else None,
            jobs=jobs,
            on_progress=on_progress,
        )
        found = mpi_advice(topology, request)
        assumptions += (PASSED_ON,) if passes_on(topology) else ()
        for change, order in order_changes(topology):
            assert change.mend is not None
            moved = reordered(found, mpi_advice(change.mend(topology), request), change)
            if moved is not None:
                found = moved
                changes.append(change)
                files.append(_order_file(change, order))
        rows = list(found.rows)
        files += simulated_rules(topology, found.choices, version)
        files += simulated_variables(topology, found.chosen)
    fit = fit_runs(runs) if runs else fit_of(logs, name) if name in ("nccl", "rccl") else None
    if runs:
        rows = swept_rows(fit) + rows
        version, source = version or runs[0].version, source if version else runs[0].origin
    files = [*environment_file(changes), *measured_file(fit), *files]
    if logs and name in ("nccl", "rccl"):
        if any(row.ranks is None for log in logs for row in log.measurements):
            assumptions += (
                "measurements of all ranks of the cluster, where a log does not say whose they are",
            )
        known = _reckoned(rows, logs, state)
        ranks, nodes = topology.num_ranks, max(1, len(set(topology.host[topology.rank_nodes].tolist())))
        rows = measured_rows(logs, fit, known, nodes=nodes, ranks=ranks) + rows
    return LibraryAdvice(
        topology=topology,
        library=name,
        version=version,
        version_from=source,
        rows=tuple(rows),
        changes=tuple(changes),
        assumptions=assumptions,
        notes=tuple(notes),
        environment=variables,
        hosts=hosts,
        step=step,
        files=tuple(files),
    )


def usual_library(topology: Topology) -> str:
    """The library of the GPUs of a cluster; Open MPI where their kind is not known."""
    arch = {each for each in topology.arch if each is not None}
    if any(each.startswith("gfx") for each in arch):
        return "rccl"
    nvidia = topology.source.startswith(("nvidia-smi", "NCCL"))
    return "nccl" if arch or nvidia or machines_of(topology).generation is not None else "open-mpi"


def _order_file(change: Change, order: RankOrder) -> AdvisedFile:
    text, use, judged = order_text(order)
    return AdvisedFile(name=order_file_name(), what=use, undo=change.undo, text=text, judged=judged)


def _reckoned(
    rows: Sequence[AdviceRow], logs: Sequence[Log], state: NcclState | None
) -> dict[tuple[Collective, int], float]:
    """Time that the library's own model reckons with, also at sizes that were measured."""
    whole = [row for row in rows if row.picked_us is not None and row.group == "all"]
    found = {(row.collective, row.size_bytes): row.picked_us or 0.0 for row in whole}
    if state is None:
        return found
    for row in (row for log in logs for row in log.measurements):
        key = (row.collective, row.size_bytes)
        if row.ranks in (None, state.topology.num_ranks) and key not in found and row.collective in TUNED:
            found[key] = state.picks(row.collective, [row.size_bytes])[row.size_bytes][0].time_us or 0.0
    return found


def _overruled(change: Change, step: StepAdvice) -> bool:
    """Whether a change unsets what the step of the job wants set."""
    return any(change.sets.keys() & each.sets.keys() for each in step.changes)


def _other_release(version: str, release: str) -> Iterator[str]:
    """What a user should know where NCCL's version was not read."""
    if version.split(".")[:2] != release.split(".")[:2]:
        yield f"NCCL {version} was not read: it is priced as {release}"


def _version(library: str, logs: Sequence[Log]) -> tuple[str, str]:
    """Version of the library, and what says so."""
    for log in logs:
        if log.version:
            return log.version, log.file
    if library == "open-mpi":
        found = installed_version()
        if found is not None:
            return ".".join(map(str, found)), "mpirun --version"
    if library == "nccl":
        return constants().version, "the cost model that is built in (a log says which one runs)"
    return "", ""
