"""Breadth-first pipelines: all micro-batches of a chunk before the next one.

Source: Lamy-Poirier, "Breadth-First Pipeline Parallelism" (MLSys 2023).

With p devices, m micro-batches and v chunks a device the bubble is that of depth-first chunks, (p - 1) / (m v) of the
computation. But the backward passes of a chunk are done together, so that its gradients can be summed beside those of
the other chunks: of a sum that takes A in all, only A / v stays exposed while that of a chunk takes no longer than its
backward passes. And where weights are sharded over data-parallel replicas they are gathered once a chunk and direction,
while depth-first chunks, which come back every p micro-batches, gather them m / p times.

The price is memory: the activations of all m v passes are held at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.iteration.pipeline.order import PipelineOrder, Work
from coppice.iteration.policies.pipelined.policy import ChunkedOptions, Pipelined


class BreadthFirst(Pipelined):
    """All micro-batches of a chunk before the next one."""

    name = "breadth-first"
    about = "all micro-batches of a chunk before the next (Lamy-Poirier, MLSys'23)"
    assumes = "memory for the activations of all micro-batches of all chunks"
    stock = "torch.distributed.pipelining.ScheduleLoopedBFS"
    options = ChunkedOptions


@dataclass(frozen=True, kw_only=True)
class ShardedTraffic:
    """Weight traffic of a stage per iteration under sharding (ZeRO-3, FSDP)."""

    forward_gathers: int  # All-gathers of weights for forward passes
    backward_gathers: int  # All-gathers of weights for backward passes
    reductions: int  # Reduce-scatters of gradients

    @property
    def times(self) -> int:
        """Number of times that a stage's bytes cross the network."""
        return self.forward_gathers + self.backward_gathers + self.reductions


@checked
def sharded_traffic(order: PipelineOrder) -> Sequence[ShardedTraffic]:
    """Weight traffic of each stage when a device caches one stage per direction.

    A device keeps the weights of the stage of its last forward pass, and those of the stage of its last backward pass
    with the gradients that this stage has added up; it gathers, and sums, when it goes on to another stage. Where it
    has one stage only, it gathers once and keeps them.

    Returns:
        For each stage, what crosses the network.

    Examples:
        >>> from coppice.iteration.pipeline.orders import breadth_first, interleaved
        >>> [sharded_traffic(make(2, 8, 2))[0].times for make in (breadth_first, interleaved)]
        [3, 12]
    """
    gathers = {work: [0] * order.stages for work in (Work.FORWARD, Work.BACKWARD)}
    for program in order.devices:
        there: dict[Work, int] = {}
        for each in program:
            if each.work not in gathers:
                raise InputError(
                    f"expected whole backward passes of an order whose weights are sharded, found {each}."
                )
            if there.get(each.work) != each.stage:
                gathers[each.work][each.stage] += 1
                there[each.work] = each.stage
    return [
        ShardedTraffic(forward_gathers=forward, backward_gathers=backward, reductions=backward)
        for forward, backward in zip(gathers[Work.FORWARD], gathers[Work.BACKWARD], strict=True)
    ]
