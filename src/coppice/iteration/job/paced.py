"""The time of a job on boxes of several kinds: a stage goes at the pace of its slowest device, and paces the others."""

from __future__ import annotations

from dataclasses import replace

from coppice.iteration.estimate import Cluster, Estimate, stage_times
from coppice.iteration.job.estimated import estimate_of
from coppice.iteration.job.job import Machines, TrainingJob
from coppice.iteration.pipeline.graph import StageTimes, pipeline_graph
from coppice.iteration.pipeline.orders import interleaved
from coppice.iteration.running import run_tasks
from coppice.iteration.transformer import Layout, Transformer
from coppice.iteration.workload.model import LayeredModel

__all__ = ["estimate_of_job", "job_seconds"]


def estimate_of_job(job: TrainingJob) -> Estimate:
    """The time of an iteration part by part; what stages of several kinds wait for each other counts as bubble."""
    whole = estimate_of(job.model, job.layout, job.cluster)
    waits = job_seconds(job.model, job.layout, job.machines) - whole.seconds
    return replace(whole, bubble=max(0.0, whole.bubble + waits))


def job_seconds(model: Transformer | LayeredModel, layout: Layout, machines: Machines) -> float:
    """Seconds of an iteration on machines of one kind or of several.

    Ranks are dealt to boxes in their order: the first stages run on the first kind. A stage that has GPUs of two kinds
    waits for the slower one.

    Args:
        model: The model.
        layout: How it lies on the GPUs.
        machines: The boxes.
    """
    whole = estimate_of(model, layout, machines.cluster)
    if len(machines.kinds) == 1 or layout.pipeline == 1 or not isinstance(model, Transformer):
        return whole.seconds
    clusters = [_of_stage(machines, layout, device) for device in range(layout.pipeline)]
    known: dict[int, StageTimes] = {}
    forward, backward, reduction = [], [], []
    for stage in range(layout.pipeline * layout.chunks):
        cluster = clusters[stage % layout.pipeline]
        times = known.setdefault(id(cluster), stage_times(model, layout, cluster))
        forward.append(times.forward[stage])
        backward.append(times.backward[stage])
        reduction.append(times.reduction[stage])
    slowest = stage_times(model, layout, machines.cluster).transfer
    times = StageTimes(forward=forward, backward=backward, transfer=slowest, reduction=reduction)
    order = interleaved(layout.pipeline, layout.micro_batches, layout.chunks)
    return run_tasks(pipeline_graph(order, times, 1).graph).seconds + whole.optimizer


def _of_stage(machines: Machines, layout: Layout, device: int) -> Cluster:
    """The GPUs and the network of a pipeline device: of one kind, or of several in which the slower ones pace."""
    size = machines.gpus // layout.pipeline
    begin, end = device * size, (device + 1) * size
    kinds, first = [], 0
    for each in machines.kinds:
        if first < end and begin < first + each.gpus:
            kinds.append(each)
        first += each.gpus
    return kinds[0].cluster if len(kinds) == 1 else Machines(name="", kinds=tuple(kinds)).cluster
