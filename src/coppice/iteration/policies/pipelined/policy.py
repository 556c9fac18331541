"""Base of pipeline policies: layers in stages, micro-batches, gradients all-reduced when a stage is done."""

from __future__ import annotations

import itertools
from typing import ClassVar

import msgspec

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.pipeline.stages import StageTimes
from coppice.iteration.policies.policy import Count, Policy, Seconds
from coppice.iteration.step.passes import StepGraph
from coppice.iteration.step.plan import Message
from coppice.iteration.step.workloads import stages_graph
from coppice.iteration.tasks import lower_bound_seconds


class PipelineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Numbers of stages and micro-batches."""

    stages: Count = 4  # Devices in a row
    micro_batches: Count = 8  # Micro-batches of an iteration
    transfer_seconds: Seconds = 0.0  # Time until the next device has what a stage gives


class ChunkedOptions(PipelineOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of pipelines with several chunks per device."""

    chunks: Count = 2  # Chunks of a device


class Pipelined(Policy):
    """A pipeline over a workload of one micro-batch, its layers split evenly into consecutive stages."""

    options: ClassVar[type[msgspec.Struct]] = PipelineOptions
    assumes = "stages of like time, and a network for the gradients of each device"
    decides = frozenset({"order"})
    on_one_stage: ClassVar[bool] = True  # It is an order of passes on a device alone, too
    # All stages are updated at the end of an iteration; otherwise each when its own gradients are there
    barrier: ClassVar[bool] = True

    def iterations(self, workload: LayerWorkload, count: int) -> StepGraph:
        """Task graph of consecutive iterations."""
        order, times = self.stages(workload)
        return stages_graph(order, times, count, messages=self.messages(workload), barrier=self.barrier)

    def messages(self, workload: LayerWorkload) -> list[Message]:
        """Gradient messages of an iteration: by default one for each stage."""
        return stage_messages(workload, self.order(workload).stages)

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """Lower bound over all orders of the passes of these stages on these devices."""
        return lower_bound_seconds(stages_graph(*self.stages(workload), 1, in_order=False).graph)

    def compute_seconds(self, workload: LayerWorkload) -> float:
        """Compute time of the busiest device per iteration."""
        order, times = self.stages(workload)
        return max(sum(map(times.of, program)) for program in order.devices)

    def chunks_on(self, chunks: int, devices: int, layers: int | None) -> int:
        """Chunks of a device under the policy: of a layout with several those, where it can run several.

        Args:
            chunks: Chunks of a device in the layout.
            devices: Devices in a row.
            layers: Layers that can be cut anywhere; None: it is not known how many there are.
        """
        del devices, layers
        if isinstance(self.settings, ChunkedOptions):
            return chunks if chunks > 1 else self.settings.chunks
        return 1

    def order(self, workload: LayerWorkload) -> PipelineOrder:
        """Programs of the devices."""
        del workload
        settings = self.settings
        return ORDERS[self.name](settings.stages, settings.micro_batches, getattr(settings, "chunks", 1))

    def stages(self, workload: LayerWorkload) -> tuple[PipelineOrder, StageTimes]:
        """Pipeline order, and the times of its stages."""
        order = self.order(workload)
        return order, dealt(workload, order.stages, transfer_seconds=self.settings.transfer_seconds)


def dealt(workload: LayerWorkload, stages: int, *, transfer_seconds: float = 0.0) -> StageTimes:
    """Times of stages with layers split evenly and consecutively.

    Args:
        workload: Layers, with times of a micro-batch.
        transfer_seconds: Time until the next device has what a stage gives.

    Examples:
        >>> four = LayerWorkload(forward=(1, 1, 1, 1), backward=(2,) * 4, bytes=(3,) * 4, bytes_per_second=1.0)
        >>> dealt(four, 2).reduction
        [6.0, 6.0]
    """
    if workload.layers < stages:
        raise InputError(
            f"expected a layer for each of {stages} stages, found {workload.layers}: take fewer stages."
        )
    of_stage = _layers_of(workload, stages)
    return StageTimes(
        forward=[sum(workload.forward[each]) for each in of_stage],
        backward=[sum(workload.backward[each]) for each in of_stage],
        weight=[sum(workload.weight_backward[each]) for each in of_stage] if workload.weight_backward else (),
        transfer=transfer_seconds,
        reduction=[
            workload.message(size) if size else 0.0
            for size in (sum(workload.bytes[each]) for each in of_stage)
        ],
    )


def stage_messages(workload: LayerWorkload, stages: int) -> list[Message]:
    """A message with all gradients of each stage, if it has any."""
    times = dealt(workload, stages)
    return [
        Message(
            name=f"gradients of stage {stage}",
            seconds=seconds,
            size_bytes=sum(workload.bytes[own]),
            stage=stage,
            layers=(0,),
        )
        for stage, (own, seconds) in enumerate(
            zip(_layers_of(workload, stages), times.reduction, strict=True)
        )
        if seconds
    ]


def _layers_of(workload: LayerWorkload, stages: int) -> list[slice]:
    """Layers of each stage."""
    cut = [stage * workload.layers // stages for stage in range(stages + 1)]
    return [slice(low, high) for low, high in itertools.pairwise(cut)]
