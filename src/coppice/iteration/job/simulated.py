"""A job simulated: the passes of its stages and its messages as tasks, in the order of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from coppice.errors import InputError
from coppice.iteration.estimate import Cluster, stage_times
from coppice.iteration.pipeline.graph import pipeline_graph
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.running import TaskTimes, lower_bound_seconds, run_tasks
from coppice.iteration.transformer import Layout, Transformer

__all__ = ["SimulatedJob", "simulate_job"]


@dataclass(frozen=True, eq=False, kw_only=True)
class SimulatedJob:
    """An iteration of a job, task by task.

    Replicas and ranks of a tensor-parallel group do the same at the same time: one of each kind is simulated.

    Attributes:
        order: Name of the order of the pipeline.
        times: When each task runs.
        lower_bound_seconds: What no order of the same passes on these devices can beat.
    """

    order: str
    times: TaskTimes
    lower_bound_seconds: float

    @property
    def seconds(self) -> float:
        """From the first task to the last."""
        return self.times.seconds


def simulate_job(model: Transformer, layout: Layout, cluster: Cluster, order: str = "1f1b") -> SimulatedJob:
    """Simulate an iteration of a job, without the step of the optimizer.

    Args:
        model: The model.
        layout: How it lies on the GPUs.
        cluster: The GPUs and their network.
        order: One of :data:`coppice.iteration.pipeline.orders.ORDERS`; those of whole stages take one chunk.

    Raises:
        InputError: If there is no such order, or it does not suit the layout.
    """
    if order not in ORDERS:
        msg = f"expected an order of a pipeline ({', '.join(ORDERS)}), found {order!r}."
        raise InputError(msg)
    passes = ORDERS[order](layout.pipeline, layout.micro_batches, layout.chunks)
    if passes.stages != layout.pipeline * layout.chunks:
        msg = f"expected one chunk of a device for order {order}, found {layout.chunks}: take interleaved."
        raise InputError(msg)
    times = stage_times(model, layout, cluster)
    free = pipeline_graph(passes, times, 1, in_order=False)
    return SimulatedJob(
        order=order,
        times=run_tasks(pipeline_graph(passes, times, 1).graph),
        lower_bound_seconds=lower_bound_seconds(free.graph),
    )
