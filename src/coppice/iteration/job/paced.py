"""Step of a job on boxes of one or several kinds: each stage runs at the pace of its slowest device."""

from __future__ import annotations

from dataclasses import replace

from coppice.iteration.job.job import Machines
from coppice.iteration.machine import Cluster
from coppice.iteration.step.block import Step
from coppice.iteration.step.blocks import transformer_step
from coppice.iteration.transformer import Layout, Transformer
from coppice.iteration.workload.model import LayeredModel
from coppice.iteration.workload.steps import layered_step


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
