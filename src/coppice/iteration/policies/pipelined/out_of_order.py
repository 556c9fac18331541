"""Out-of-order backpropagation in pipelines: input gradients first, and modulo layer allocation.

Source: "Out-Of-Order BackProp: An Effective Scheduling Technique for Deep Learning" (EuroSys 2022), and its published
code.

The stage before waits for the gradients of inputs, nobody but the optimizer for those of weights. *Gradient
fast-forwarding* computes and sends the former as soon as it can, and the latter while it waits. With m micro-batches,
p devices, and forward pass, gradients of inputs and gradients of weights of a unit each, all forward passes before all
backward passes take 3 (m + p - 1) with whole backward passes and 3 m + 2 (p - 1) like this. *Modulo allocation* deals
layers to devices in turn instead of in blocks: with v layers a device, p micro-batches or more, and layers of equal
times, 3 m + 2 (p - 1) / v in the same units (a device takes a unit for its v layers).

The price is memory: what gradients of weights need is held until they are computed.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder
from coppice.iteration.pipeline.orders import breadth_first, gpipe
from coppice.iteration.pipeline.stages import StageTimes, weights_last
from coppice.iteration.policies.pipelined.policy import Pipelined, PipelineOptions, dealt


class FastForward(Pipelined):
    """Input gradients first, weight gradients while a device is idle."""

    name = "fast-forward"
    about = "gradients of inputs first, of weights while waiting (OOO backprop, EuroSys'22)"
    assumes = "gradients of inputs and of weights that can be computed apart, and memory to hold what the latter need"
    options: ClassVar[type[msgspec.Struct]] = PipelineOptions

    def chunks_on(self, chunks: int, devices: int, layers: int | None) -> int:
        """Chunks of a device: those of the layout."""
        del devices, layers
        return chunks

    def order(self, workload: LayerWorkload) -> PipelineOrder:
        """Programs of the devices, by the times of the layers."""
        plain = self.plain(workload)
        return weights_last(plain, self.times(workload, plain))

    def plain(self, workload: LayerWorkload) -> PipelineOrder:
        """Order with whole backward passes."""
        del workload
        return gpipe(self.settings.stages, self.settings.micro_batches)

    def times(self, workload: LayerWorkload, order: PipelineOrder) -> StageTimes:
        """Times of an order's stages."""
        return dealt(workload, order.stages, transfer_seconds=self.settings.transfer_seconds)


class Modulo(FastForward):
    """The same with modulo layer allocation: each layer is a stage, assigned round-robin."""

    name = "modulo"
    about = "fast-forward with layers dealt to devices in turn (OOO backprop, EuroSys'22)"
    assumes = "sends between devices after every layer that take little; otherwise as fast-forward"
    on_one_stage = False

    def chunks_on(self, chunks: int, devices: int, layers: int | None) -> int:
        """Chunks of a device: a layer each."""
        del chunks
        if layers is None:
            return 1
        if layers % devices:
            raise InputError(
                f"expected as many layers on each device for policy modulo, found {layers} for {devices}: change pp."
            )
        return layers // devices

    def plain(self, workload: LayerWorkload) -> PipelineOrder:
        """Order with whole backward passes: all micro-batches of a layer before the next."""
        devices = min(self.settings.stages, workload.layers)
        return breadth_first(devices, self.settings.micro_batches, stages=workload.layers)
