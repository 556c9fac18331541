"""Orders of pipelines as policies: layers in stages, micro-batches, gradients summed when a stage is done."""

from __future__ import annotations

import itertools
from typing import Annotated, ClassVar

import msgspec

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.graph import StageTimes, pipeline_graph
from coppice.iteration.pipeline.order import PipelineOrder
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.policies.policy import IterationGraph, Policy
from coppice.iteration.running import lower_bound_seconds

__all__ = ["BreadthFirst", "GPipe", "Interleaved", "OneForwardOneBackward", "Pipelined", "ZeroBubble"]

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class PipelineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pipeline.

    Attributes:
        stages: Devices in a row.
        micro_batches: Micro-batches of an iteration.
        transfer_seconds: Time until the next device has what a stage gives.
    """

    stages: _Count = 4
    micro_batches: _Count = 8
    transfer_seconds: _Seconds = 0.0


class ChunkedOptions(PipelineOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pipeline whose devices have several chunks.

    Attributes:
        chunks: Chunks of a device.
    """

    chunks: _Count = 2


class Pipelined(Policy):
    """A pipeline; times of the workload are those of a micro-batch, its layers are dealt to stages evenly in a row."""

    options: ClassVar[type[msgspec.Struct]] = PipelineOptions

    def iterations(self, workload: LayerWorkload, count: int) -> IterationGraph:
        """The tasks of so many iterations in a row.

        Raises:
            InputError: If there are fewer layers than stages, or the order does not suit the micro-batches.
        """
        return pipeline_graph(*self._stages(workload), count)

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """What no order of the passes of these stages on these devices can beat."""
        return lower_bound_seconds(pipeline_graph(*self._stages(workload), 1, in_order=False).graph)

    def compute_seconds(self, workload: LayerWorkload) -> float:
        """Time for which the busiest device computes in an iteration."""
        order, times = self._stages(workload)
        return max(sum(map(times.of, program)) for program in order.devices)

    def _stages(self, workload: LayerWorkload) -> tuple[PipelineOrder, StageTimes]:
        """The order, and the times of its stages."""
        settings = self.settings
        chunks = getattr(settings, "chunks", 1)
        order = ORDERS[self.name](settings.stages, settings.micro_batches, chunks)
        if workload.layers < order.stages:
            msg = f"expected a layer for each of {order.stages} stages, found {workload.layers}: take fewer stages."
            raise InputError(msg)
        cut = [stage * workload.layers // order.stages for stage in range(order.stages + 1)]
        of_stage = [slice(low, high) for low, high in itertools.pairwise(cut)]
        sizes = [sum(workload.bytes[each]) for each in of_stage]
        times = StageTimes(
            forward=[sum(workload.forward[each]) for each in of_stage],
            backward=[sum(workload.backward[each]) for each in of_stage],
            transfer=settings.transfer_seconds,
            reduction=[workload.message(size) if size else 0.0 for size in sizes],
        )
        return order, times


class GPipe(Pipelined):
    """All forward passes, then all backward passes."""

    name = "gpipe"
    about = "all forward, then all backward passes (GPipe, NeurIPS'19)"


class OneForwardOneBackward(Pipelined):
    """One forward, one backward pass."""

    name = "1f1b"
    about = "one forward, one backward pass in turn (PipeDream-Flush, ICML'21)"


class Interleaved(Pipelined):
    """One forward, one backward pass of chunks in turn."""

    name = "interleaved"
    about = "chunks in turn, depth first (Megatron-LM, SC'21)"
    options = ChunkedOptions


class BreadthFirst(Pipelined):
    """All micro-batches of a chunk before the next one."""

    name = "breadth-first"
    about = "all micro-batches of a chunk before the next (Lamy-Poirier, MLSys'23)"
    options = ChunkedOptions


class ZeroBubble(Pipelined):
    """Gradients of weights fill bubbles."""

    name = "zero-bubble"
    about = "gradients of weights fill bubbles (ZB-H1, ICLR'24)"
