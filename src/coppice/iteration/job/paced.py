"""Step of a job on boxes of one or several kinds: each stage runs at the pace of its slowest device."""

from __future__ import annotations

from dataclasses import replace

from coppice.errors import InputError
from coppice.iteration.job.job import Machines, TrainingJob
from coppice.iteration.machine import Cluster
from coppice.iteration.policies.tensor.catalogue import tensor_policies, transformed
from coppice.iteration.step.block import Step
from coppice.iteration.step.blocks import transformer_step
from coppice.iteration.step.simulated import SimulatedStep, order_for, simulate_step
from coppice.iteration.transformer import Layout, Transformer
from coppice.iteration.workload.model import LayeredModel
from coppice.iteration.workload.steps import layered_step, usual_overlap


def step_of(model: Transformer | LayeredModel, layout: Layout, machines: Machines) -> Step:
    """Build the step of a model on machines.

    Ranks are dealt to boxes in their order: the first stages run on the first kind. A stage that has GPUs of two kinds
    waits for the slower one, and so do replicas that sum gradients across kinds.

    Args:
        layout: How it lies on the GPUs.
    """
    if isinstance(model, LayeredModel):
        return layered_step(model, layout, machines.cluster)
    whole = transformer_step(model, layout, machines.cluster)
    if len(machines.kinds) == 1 or layout.pipeline == 1:
        return whole
    steps = [
        transformer_step(model, layout, _of_stage(machines, layout, device))
        for device in range(layout.pipeline)
    ]
    dealt = [(steps[stage % layout.pipeline], stage) for stage in range(len(whole.stages))]
    return replace(
        whole,
        stages=tuple(step.stages[stage] for step, stage in dealt),
        optimizer=tuple(step.optimizer[stage] for step, stage in dealt),
    )


def _of_stage(machines: Machines, layout: Layout, device: int) -> Cluster:
    """GPUs and network of a pipeline device; of several kinds, the slowest values."""
    size = layout.gpus // layout.pipeline
    begin, end = device * size, (device + 1) * size
    kinds, first = [], 0
    for each in machines.kinds:
        if first < end and begin < first + each.gpus:
            kinds.append(each)
        first += each.gpus
    return Machines(name="", kinds=tuple(kinds)).cluster


def simulated_job(
    job: TrainingJob,
    *,
    # Another layout than its own, in the order and with the overlap of the job where they suit it
    layout: Layout | None = None,
    machines: Machines | None = None,
    # What runs beside computation; None: what the job says, otherwise nothing for transformers, and messages
    # about gradients in buckets for sequential models
    overlap: str | None = None,
    # Share of a device's speed for which exchanges beside computation compete with it
    contention: float = 0.0,
) -> SimulatedStep:
    """Simulate one iteration of a job.

    Examples:
        >>> from coppice.iteration.job.file import parse_job_record
        >>> from coppice.iteration.job.job import job_of
        >>> job = job_of(parse_job_record('''
        ... model.name = "resnet-50"
        ... cluster = {topology = "dgx-a100", boxes = 2}
        ... layout = {micro_batch = 128}
        ... ''', where="job.toml"))
        >>> found = simulated_job(job)
        >>> found.overlap, found.parts["gradients"] < 0.1 * found.seconds
        ('ddp', True)
    """
    if job.run.policy is not None:
        found = f"found {job.run.policy}: `train estimate` takes them."
        raise InputError(f"`run.policy`: expected a job without policies here, {found}")
    lies = layout or job.layout
    step = step_of(job.model, lies, machines or job.machines)
    if job.run.inside:
        step = transformed(step, tensor_policies(job.run.inside, ranks=lies.tensor))
    try:
        return _simulated(step, lies, job.run.order, overlap or job.run.overlap, contention, job.model)
    except InputError:
        if layout is None:
            raise
        return _simulated(step, lies, None, None, contention, job.model)


def _simulated(
    step: Step,
    layout: Layout,
    order: str | None,
    overlap: str | None,
    contention: float,
    model: Transformer | LayeredModel,
) -> SimulatedStep:
    name, passes = order_for(order, layout.pipeline, layout.micro_batches, layout.chunks)
    beside = overlap or "none"
    if overlap is None and isinstance(model, LayeredModel):
        beside = usual_overlap(step)
    return simulate_step(step, passes, name=name, overlap=beside, contention=contention)
