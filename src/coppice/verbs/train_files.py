"""Verbs of `coppice train` that read or write files: pages, pipeline orders, profiles, devices, traces and modules."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.errors import InputError, MissingExtraError
from coppice.files import write_atomically
from coppice.iteration.job_options import JobOptions
from coppice.options import ANYTHING, argument, option
from coppice.options.calls import verb
from coppice.options.names import POLICIES
from coppice.options.shared import TimeLimitOption

if TYPE_CHECKING:
    from coppice.iteration.job.composed import ComposedStep
    from coppice.iteration.job.job import TrainingJob
    from coppice.iteration.kineto import MeasuredTrace, Replay
    from coppice.iteration.layers import LayerWorkload
    from coppice.iteration.machine import Cluster
    from coppice.iteration.modules.timed import TimedModule
    from coppice.iteration.modules.tracing import ModuleTrace
    from coppice.iteration.predicted import PredictedIteration
    from coppice.iteration.step.simulated import SimulatedStep
    from coppice.iteration.traces.replay import ExecutionTrace, ReplayedTraces
    from coppice.iteration.transformer import Transformer
    from coppice.iteration.workload.nets import LayeredModel
    from coppice.topology.model import Topology
    from coppice.training.autolrs.log import SearchLog

    AnyPath = str | os.PathLike[str]
else:
    AnyPath = Any

_WrittenFile = Annotated[
    AnyPath | None, ANYTHING, option("File to write [default: none; what would be written is returned].")
]
_MEMORY = ("parameters", "gradients", "optimizer", "activations")


class ReportCall(JobOptions, frozen=True):
    """A page of a job."""

    output: Annotated[AnyPath | None, ANYTHING, argument("Page to write (.html); None only returns it.")] = (
        None
    )
    contention: Annotated[
        float,
        option("Share of a GPU that communication takes from concurrent computation.", ge=0.0, le=1.0),
    ] = 0.0


class OrderCall(JobOptions, frozen=True):
    """The pipeline order of a job."""

    output: Annotated[AnyPath | None, ANYTHING, argument("CSV file to write; None only returns it.")] = None


class ProfileCall(JobOptions, frozen=True):
    """Collective times of a job."""

    output: Annotated[AnyPath | None, ANYTHING, argument("JSON file to write; None only returns it.")] = None


class MeasureCall(Struct, frozen=True, kw_only=True):
    """A measurement of this machine's device."""

    output: _WrittenFile = None
    kind: Annotated[str | None, option("cuda or cpu [default: cuda where there is a GPU].")] = None
    time_limit: TimeLimitOption = 20.0


class LayersCall(Struct, frozen=True):
    """A workload of layers, and a policy."""

    workload: Annotated[Any, ANYTHING, argument("A workload of layers, or its JSON file.")]
    policy: Annotated[str, argument(f"One of: {', '.join(POLICIES)}.")] = "wfbp"
    settings: Annotated[Mapping[str, Any] | None, option("Options of the policy by name.")] = None


class MachinesOptions(Struct, frozen=True, kw_only=True):
    """GPUs for what has no times."""

    topology: Annotated[Any, ANYTHING, option("Topology, preset or file: times of what has none.")] = None
    boxes: Annotated[int | None, option("Number of boxes of a box preset.", ge=1)] = None
    device: Annotated[str | None, option("GPU [default: by the topology's name].")] = None

    def machines(self, topology: Topology | None = None) -> Cluster | None:
        """The cluster, or the box of a device; None where neither is named.

        Args:
            topology: The topology, where it is loaded already.

        Raises:
            InputError: If boxes are given without a topology.
        """
        if self.topology is None and self.device is None:
            if self.boxes is not None:
                raise InputError("`boxes` goes with `topology`: name a preset, such as dgx-a100.")
            return None
        from coppice.iteration.machine import box_of, cluster_of
        from coppice.topology.load import load

        if self.topology is None:
            return box_of(str(self.device))
        if topology is None:
            topology = load(self.topology, boxes=self.boxes)
        return cluster_of(topology, self.device)


class TraceCall(MachinesOptions, frozen=True):
    """Traces to replay."""

    sources: Annotated[
        AnyPath | Sequence[AnyPath],
        ANYTHING,
        argument(
            "Trace of PyTorch's profiler of one rank, or execution traces, one a rank, or their folder."
        ),
    ]
    step: Annotated[int | None, option("Only ProfilerStep#N of a profile [default: all].")] = None
    what_if: Annotated[
        Mapping[str, float] | None, option("Factors on times of compute, communication or host, by kind.")
    ] = None


class ModuleCall(MachinesOptions, frozen=True):
    """A module to trace."""

    source: Annotated[
        str, argument("model.py:FUNCTION, which returns a module of PyTorch or (module, inputs).")
    ]
    parallel: Annotated[
        str | None, option("Device mesh, the slowest degree first, such as dp=2,tp=8 [default: dp].")
    ] = None
    num_ranks: Annotated[
        int | None, option("Number of ranks [default: the product of `parallel`].", ge=1)
    ] = None
    shard: Annotated[str, option("What replicas shard: none, zero3 (FSDP2).")] = "none"
    inputs: Annotated[Sequence[str], option("Inputs, such as 8x256:float32.")] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class ImportedProfile:
    """Trace of PyTorch's profiler, replayed."""

    file: Path  # Where it was read
    measured: MeasuredTrace  # What was measured
    replay: Replay  # When operations run in the replay

    @property
    def seconds(self) -> float:
        """Time of the replay."""
        return self.replay.seconds


@dataclass(frozen=True, eq=False, kw_only=True)
class ImportedTraces:
    """Execution traces, replayed together."""

    traces: Sequence[ExecutionTrace]  # One a rank
    replay: ReplayedTraces  # When nodes run in the replay

    @property
    def seconds(self) -> float:
        """Time of the replay."""
        return self.replay.seconds


@dataclass(frozen=True, eq=False, kw_only=True)
class ImportedModule:
    """Module of PyTorch, traced and timed."""

    trace: ModuleTrace  # Its layers and operations
    timed: TimedModule | None  # Their times on a cluster; None: none was named


@verb(ReportCall)
def report(asked: ReportCall) -> str:
    """Write a simulated iteration as a page (HTML) with its breakdown and a timeline to zoom in, and return it.

    Raises:
        InputError: If the job cannot be read, a policy plans the whole iteration, or the file is no page.

    Examples:
        >>> import coppice
        >>> page = coppice.train.report("gpt-7.5b", topology="dgx-a100", parallel="tp=8", global_batch=16)
        >>> page.lower().startswith("<!doctype html>")
        True
    """
    if asked.output is not None:
        require_page(asked.output)
    job = asked.load()
    page = page_of(job, simulated_parts(job, contention=asked.contention))
    return _written(page, asked.output)


def require_page(output: AnyPath) -> None:
    """Refuse a name that is not that of a page.

    Raises:
        InputError: If it does not end in .html.
    """
    if Path(output).suffix != ".html":
        raise InputError(f"expected a file called *.html, found {Path(output).name!r}: choose such a name.")


def simulated_parts(job: TrainingJob, *, contention: float = 0.0) -> ComposedStep:
    """Simulate a job whose step has parts.

    Raises:
        InputError: If a policy plans the whole iteration.
    """
    from coppice.iteration.job.composed import simulated_job

    composed = simulated_job(job, contention=contention or None)
    if composed.step is None:
        raise InputError(
            f"expected policies whose step has parts, found {job.run.policy}, which plans the whole iteration: "
            "`coppice train estimate --trace` writes its operations."
        )
    return composed


def page_of(job: TrainingJob, composed: ComposedStep, *, command: str = "") -> str:
    """Page of a simulated job.

    Args:
        command: The command that prints the same numbers.
    """
    from coppice.iteration.page.page import iteration_html, report_of_step

    if composed.step is None:
        raise InputError(f"expected policies whose step has parts, found {job.run.policy}.")
    content = report_of_step(
        f"{job.name} on {job.machines.name}",
        composed.step,
        memory={name: getattr(composed.memory, name) for name in _MEMORY},
        memory_bytes=job.cluster.device.memory_bytes,
        device=job.cluster.device.name,
        command=command,
        measured=job.cluster.table is not None,
    )
    return iteration_html(content)


@verb(OrderCall)
def pipeline(asked: OrderCall) -> str:
    """Write the order of a job's pipeline as CSV for PyTorch's pipeline runtime, and return it.

    A row per rank, with actions such as 2F0, 2B0, 2I0 and 2W0, which
    ``_PipelineScheduleRuntime._load_csv(file, format="compute_only")`` loads.

    Raises:
        InputError: If the job has one stage, or its policy plans the whole iteration.

    Examples:
        >>> import coppice
        >>> words = {"topology": "dgx-a100", "parallel": "pp=8", "global_batch": 4, "policy": "gpipe"}
        >>> coppice.train.pipeline("gpt-7.5b", **words).splitlines()[0]
        '0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3'
    """
    from coppice.iteration.pipeline.torch_csv import order_csv

    return _written(order_csv(pipelined(asked.load()).given[1].order), asked.output)


def pipelined(job: TrainingJob) -> SimulatedStep:
    """Simulate the step of a job with several stages.

    Raises:
        InputError: If it has one stage, or its policy plans the whole iteration.
    """
    from coppice.iteration.job.composed import simulated_job

    if job.layout.pipeline == 1:
        raise InputError("expected a pipeline, found one stage: raise pp.")
    found = simulated_job(job).step
    if found is None:
        raise InputError(
            f"expected policies that simulate a step, found {job.run.policy}, which plans the whole iteration: "
            "take one of an order."
        )
    return found


@verb(ProfileCall)
def torch_profile(asked: ProfileCall) -> dict[str, Any]:
    """Write collective times over a job's groups as a profile for torch.compile's runtime estimates, and return it.

    Raises:
        InputError: If the job has no groups that exchange something.

    Examples:
        >>> import coppice
        >>> made = coppice.train.torch_profile("llama3-8b", topology="dgx-h100", parallel="tp=8", global_batch=8)
        >>> len(made["traceEvents"]) > 100
        True
    """
    made = profile_of(asked.load())
    _written(json.dumps(made) + "\n", asked.output)
    return made


def profile_of(job: TrainingJob) -> dict[str, Any]:
    """Collective times over a job's groups, as JSON values.

    Raises:
        InputError: If it has none that exchange something.
    """
    from coppice.iteration.costs.calibrated import costs_of
    from coppice.iteration.costs.profile import groups_of
    from coppice.iteration.costs.profile import torch_profile as times_of

    if not groups_of(job.layout):
        raise InputError("expected groups that exchange something, found a rank in each: raise tp or dp.")
    return times_of(costs_of(job.cluster), job.layout)


@verb(MeasureCall)
def measure(asked: MeasureCall) -> dict[str, Any]:
    """Measure matrix products, copies of memory and attention of this machine with PyTorch; needs ``coppice[torch]``.

    A file of the result is a ``device`` of estimates, which take its rates instead of fitted constants.

    Raises:
        InputError: If there is no such kind of device.
        MissingExtraError: If PyTorch is not installed.
    """
    return measured_device(asked)


def measured_device(asked: MeasureCall, say: Any = None) -> dict[str, Any]:
    """Measure the device, and write the file if one is named.

    Args:
        say: Called with what goes on.
    """
    from coppice.iteration.measured.measuring import measure_device

    if asked.kind not in (None, "cuda", "cpu"):
        raise InputError(f"expected `kind` to be cuda or cpu, found {asked.kind!r}.")
    try:
        record = measure_device(asked.kind, seconds=asked.time_limit or 20.0, say=say or (lambda _: None))
    except ImportError:
        package = "torch"
        raise MissingExtraError.of(package, extra=package) from None
    _written(json.dumps(record, indent=1) + "\n", asked.output)
    return record


@verb(LayersCall)
def policy(asked: LayersCall) -> PredictedIteration:
    """Simulate iterations of a workload of layers under a policy, until they repeat.

    Raises:
        InputError: If the file cannot be read, or there is no such policy or option.

    Examples:
        >>> import coppice
        >>> from coppice.iteration.layers import LayerWorkload
        >>> three = LayerWorkload(forward=(1, 1, 1), backward=(2, 2, 2), bytes=(2, 2, 8), bytes_per_second=1.0)
        >>> coppice.train.policy(three, "wfbp").iteration_seconds
        17.0
    """
    from coppice.iteration.layers import LayerWorkload, read_workload
    from coppice.iteration.predicted import predict

    given = asked.workload
    workload: LayerWorkload = given if isinstance(given, LayerWorkload) else read_workload(given)
    return predict(workload, asked.policy, asked.settings)


def models() -> dict[str, Transformer | LayeredModel]:
    """Models that jobs know, by name.

    Examples:
        >>> import coppice
        >>> round(coppice.train.models()["gpt-175b"].parameters / 1e9)
        175
    """
    from coppice.iteration.models import MODELS, any_model
    from coppice.iteration.workload.nets import LAYERED_MODELS

    return {name: any_model(name) for name in (*MODELS, *LAYERED_MODELS)}


@verb(TraceCall)
def import_trace(asked: TraceCall) -> ImportedProfile | ImportedTraces:
    """Read traces of training, and replay them as tasks.

    A profile is replayed with what its operations waited for; execution traces of several ranks run together.

    Raises:
        InputError: If a file is no trace, or an option does not go with its kind.
    """
    return imported_trace(asked, asked.machines)


def imported_trace(asked: TraceCall, machines: Any) -> ImportedProfile | ImportedTraces:
    """Read traces, and replay them.

    Args:
        machines: Called for the cluster where one may be needed.
    """
    from coppice.iteration.kineto import read_kineto
    from coppice.iteration.traces.kinds import (
        TraceKind,
        kind_of,
        read_trace_bytes,
        read_traces,
        trace_files,
    )
    from coppice.iteration.traces.replay import replay_traces

    named = asked.sources
    files = trace_files([Path(each) for each in ([named] if isinstance(named, str | os.PathLike) else named)])
    contents = [(each.name, read_trace_bytes(each)) for each in files]
    factors = dict(asked.what_if or {})
    if len(files) == 1 and kind_of(contents[0][1], file=files[0].name) is TraceKind.PROFILER:
        refuse(asked, ("topology", "boxes", "device"), "a profile, which has times")
        measured = read_kineto(files[0])
        if asked.step is not None:
            measured = measured.step(asked.step)
        return ImportedProfile(file=files[0], measured=measured, replay=measured.replay(factors))
    refuse(asked, ("step",), "an execution trace")
    traces = read_traces(contents)
    return ImportedTraces(traces=traces, replay=replay_traces(traces, cluster=machines(), scale=factors))


def refuse(asked: Struct, names: Sequence[str], what: str) -> None:
    """Refuse options that something has no use for.

    Raises:
        InputError: If one of them is given.
    """
    for name in names:
        if getattr(asked, name) is not None:
            raise InputError(f"`{name}` is not for {what}: leave it out.")


@verb(ModuleCall)
def import_module(asked: ModuleCall) -> ImportedModule:
    """Trace forward and backward pass of a module of PyTorch on fake tensors, and time it on a cluster if one is named.

    Raises:
        InputError: If the module cannot be traced, or there are more ranks than a box without a network has.
    """
    return imported_module(asked, asked.machines())


def imported_module(asked: ModuleCall, machines: Cluster | None) -> ImportedModule:
    """Trace a module, and time it.

    Args:
        machines: The cluster; None: it is not timed.
    """
    from coppice.iteration.modules.timed import time_module
    from coppice.iteration.modules.tracing import trace_module

    path, _, function = asked.source.partition(".py")
    mesh = _mesh(asked.parallel, asked.num_ranks)
    count = asked.num_ranks or math.prod((mesh or {}).values())
    if machines is not None and asked.topology is None and count > machines.device.box:
        raise InputError(
            f"expected `topology` for {count} ranks, found only the device of a box of {machines.device.box}: name the "
            "network between boxes, such as dgx-a100 with `boxes=2`."
        )
    found = trace_module(
        f"{path}.py",
        function[1:] or "build",
        ranks=asked.num_ranks or 0,
        mesh=mesh,
        shard=asked.shard,
        inputs=asked.inputs,
    )
    found.require_collectives()
    return ImportedModule(trace=found, timed=None if machines is None else time_module(found, machines))


def _mesh(parallel: str | None, ranks: int | None) -> dict[str, int] | None:
    """The degrees of ``dp=2,tp=8``.

    Raises:
        InputError: If one is no number of 1 or more, there are none, or a name is there twice.
    """
    if parallel is None:
        if ranks is None:
            raise InputError(
                "expected the ranks of the job, found none: give `parallel=dp=16`, or `num_ranks=16`."
            )
        return None
    found: dict[str, int] = {}
    for word in parallel.split(","):
        name, _, value = word.strip().partition("=")
        if not name.isidentifier() or name in found or not value.isdigit() or int(value) < 1:
            raise InputError(
                f"expected `parallel` such as dp=2,tp=8, each degree once, found {word.strip()!r}."
            )
        found[name] = int(value)
    return found


class LogCall(Struct, frozen=True):
    """A log of AutoLRS."""

    log: Annotated[AnyPath, ANYTHING, argument("Log that AutoLRS wrote (JSON lines).")]
    output: Annotated[
        AnyPath | None, ANYTHING, argument("Page (.html) or picture (.svg, .png) to write; None: none.")
    ] = None


@verb(LogCall)
def lr_report(asked: LogCall) -> SearchLog:
    """Read the learning rates found by AutoLRS, and draw them if a file is named; a training may still run.

    Raises:
        InputError: If the log cannot be read, or the file's name ends otherwise.
    """
    from coppice.training.autolrs.log import read_search
    from coppice.training.autolrs.report import write_report

    found = read_search(asked.log)
    if asked.output is not None:
        write_report(asked.log, asked.output)
    return found


def _written(text: str, output: AnyPath | None) -> str:
    """Write a text if a file is named, and return it."""
    if output is not None:
        write_atomically(output, text.encode())
    return text
