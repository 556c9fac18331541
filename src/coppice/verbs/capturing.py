"""Verb of `coppice train capture`: a training script is run on fake tensors, recorded, recognised and timed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.options import ANYTHING, argument, option
from coppice.options.calls import verb
from coppice.verbs.train_files import MachinesOptions

if TYPE_CHECKING:
    from coppice.iteration.capture.recognising import RecognisedJob
    from coppice.iteration.capture.request import CapturedRank
    from coppice.iteration.job.composed import ComposedStep
    from coppice.iteration.machine import Cluster
    from coppice.iteration.modules.timed import TimedModule
    from coppice.iteration.modules.tracing import ModuleOperation
    from coppice.topology.model import Topology

    AnyPath = str | os.PathLike[str]
else:
    AnyPath = Any

_DEVICE = "H100"
"""What scripts are told that they run on where nothing names a device."""


class CaptureCall(MachinesOptions, frozen=True):
    """A script to capture."""

    script: Annotated[AnyPath, ANYTHING, argument("Training script of PyTorch, as torchrun takes it.")]
    arguments: Annotated[Sequence[str], argument("Its arguments.")] = ()
    num_ranks: Annotated[
        int | None, option("Number of ranks [default: the GPUs of the topology, or 1].", ge=1)
    ] = None
    rank: Annotated[int, option("The rank that is captured.", ge=0)] = 0
    step: Annotated[
        int, option("The training step that is recorded; the script is stopped behind it.", ge=1)
    ] = 2
    strict: Annotated[
        bool, option("Refuse every value of a GPU tensor that the script reads and `values` does not say.")
    ] = False
    values: Annotated[Mapping[str, Any], ANYTHING, option("Values that lines read, by FILE:LINE.")] = {}
    show: Annotated[bool, option("Show what the script prints, on standard error.")] = False


@dataclass(frozen=True, eq=False, kw_only=True)
class CapturedScript:
    """A step of a training script."""

    command: Sequence[str]  # The script and its arguments
    num_ranks: int  # Ranks of the job
    device: str  # GPU that the script was told about
    ranks: Mapping[int, CapturedRank]  # The rank that was captured, and those of its pipeline
    job: RecognisedJob  # What is known of the job
    timed: TimedModule | None  # The rank's operations on a cluster, one by one; None: no cluster was named
    estimate: (
        ComposedStep | None
    )  # The job as `train estimate` simulates it; None: no cluster, or not recognised

    @property
    def captured(self) -> CapturedRank:
        """The rank that was captured first."""
        return next(iter(self.ranks.values()))

    @property
    def flops(self) -> int:
        """Floating-point operations of a step of the rank."""
        return self.captured.flops

    @property
    def peak_bytes(self) -> int:
        """Most memory on the GPU of the rank."""
        return self.captured.peak_bytes

    @property
    def collectives(self) -> Sequence[ModuleOperation]:
        """Collectives and sends of a step of the rank, in the order in which they are issued."""
        return self.captured.collectives

    @property
    def seconds(self) -> float | None:
        """Time of a step: that of the job where it was recognised, otherwise of the operations one by one."""
        if self.estimate is not None:
            return self.estimate.seconds
        return None if self.timed is None else self.timed.seconds

    def job_text(self) -> str:
        """The job as a job file (TOML), with what was not recognised.

        Raises:
            InputError: If no job was recognised.
        """
        from coppice.iteration.capture.job_file import job_text

        if self.job.record is None:
            raise InputError(
                f"expected a transformer whose job can be written, found {self.command[0]}, of which was not "
                f"recognised: {'; '.join(self.job.notes)}; write its layers (.json) for `coppice train policy` instead."
            )
        return job_text(self.job, self.command, rank=self.captured.rank, ranks=self.num_ranks)

    def write(self, path: AnyPath) -> None:
        """Write the job (.toml), or the layers of the step for `coppice train policy` (.json).

        Raises:
            InputError: If there is no such job, or no cluster for times of layers.
        """
        target = Path(path)
        if target.suffix != ".json":
            write_atomically(target, self.job_text().encode())
            return
        if self.timed is None:
            raise InputError(
                f"expected GPUs for the times of layers in {target}, found none: name a topology, or write a job "
                "(.toml)."
            )
        write_atomically(target, json.dumps(self.timed.workload().record(), indent=1).encode() + b"\n")


@verb(CaptureCall)
def capture(asked: CaptureCall) -> CapturedScript:
    """Run an unmodified training script without a GPU, and record FLOPs, collectives, memory and the job of a step.

    Raises:
        InputError: If the script cannot be run, or needs what is not there.
    """
    from coppice.topology.load import load

    topology = None if asked.topology is None else load(asked.topology, boxes=asked.boxes)
    return captured_script(asked, topology)


def captured_script(asked: CaptureCall, topology: Topology | None) -> CapturedScript:
    """Capture a script, and time its step.

    Args:
        topology: The topology that is named, loaded.
    """
    from coppice.iteration.capture.capturing import capture_ranks
    from coppice.iteration.capture.recognising import recognise
    from coppice.iteration.devices import DEVICES

    count = asked.num_ranks or (1 if topology is None else topology.num_ranks)
    cluster = None if topology is None else asked.machines(topology)
    if topology is None and asked.boxes is not None:
        raise InputError("`boxes` goes with `topology`: name a preset, such as dgx-a100.")
    if topology is not None and count != topology.num_ranks:
        raise InputError(
            f"expected as many ranks as the {topology.num_ranks} GPUs of {topology.name}, found {count}: change "
            "`num_ranks` or `boxes`."
        )
    device = asked.device if topology is None else (None if cluster is None else cluster.device.name)
    device = device if topology is None or device in DEVICES else None
    found = capture_ranks(
        asked.script,
        asked.arguments,
        ranks=count,
        rank=asked.rank,
        steps=asked.step,
        device=device or _DEVICE,
        strict=asked.strict,
        assume=asked.values,
        echo=asked.show,
    )
    job = recognise(found, count, _cluster_table(asked))
    first = next(iter(found.values()))
    return CapturedScript(
        command=[str(asked.script), *asked.arguments],
        num_ranks=count,
        device=device or _DEVICE,
        ranks=found,
        job=job,
        timed=None if cluster is None else _timed(first, job, count, str(asked.script), cluster),
        estimate=None if cluster is None else _estimate(job),
    )


def _cluster_table(asked: CaptureCall) -> Any:
    """Where the job is to run, if it is named by a preset or a file."""
    from coppice.iteration.job.tables import ClusterTable

    if not isinstance(asked.topology, str):
        return ClusterTable()
    return ClusterTable(topology=asked.topology, boxes=asked.boxes, device=asked.device)


def _timed(first: CapturedRank, job: RecognisedJob, count: int, script: str, cluster: Cluster) -> TimedModule:
    """The operations of a rank on a cluster, one by one."""
    from coppice.iteration.modules.timed import time_module
    from coppice.iteration.modules.tracing import ModuleTrace

    degrees = job.degrees
    mesh = {"pp": degrees.pp, "dp": degrees.dp, "cp": degrees.cp, "tp": degrees.tp}
    trace = ModuleTrace(
        module=Path(script).name,
        ranks=count,
        mesh=mesh,
        layers=first.layers,
        operations=first.operations,
        torch=first.torch,
    )
    return time_module(trace, cluster)


def _estimate(job: RecognisedJob) -> ComposedStep | None:
    """The job as ``train estimate`` simulates it; why it cannot is noted."""
    from coppice.iteration.job.composed import simulated_job
    from coppice.iteration.job.job import job_of

    if job.record is None or job.record.cluster.topology is None:
        return None
    try:
        return simulated_job(job_of(job.record))
    except InputError as error:
        job.notes.append(f"a job that can be estimated: {str(error).rstrip('.')}")
        return None
