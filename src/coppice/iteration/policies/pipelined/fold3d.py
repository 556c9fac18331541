"""Fold3D: split a chunk's gradient all-reduce between the backward pass and the next forward pass.

Source: "Fold3D: Rethinking and Parallelizing Computational and Communicational Tasks in the Training of Large DNN
Models" (TPDS 2023), and its published code.

Chunks run breadth first ("all in, all out"). The gradients of every chunk but the first are cut in two messages. One
starts when the last backward pass of the chunk is done, beside the backward passes of the chunks before it. The other
starts in the next iteration when the chunk before it starts its forward passes, and is awaited by the first forward
pass of its own chunk, which updates its weights only then. The first chunk, which runs next, is summed at once and in
whole. With r the forward time over the backward time, and k = 2 if activations are recomputed and else 1, the share
that is left to the forward pass is r / (k r + 1): a third, or a quarter, where the backward pass takes twice as long.

With sums that take A_c for chunk c, what stays exposed is A_0 and what of the others does not fit beside the passes of
the chunks before them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder
from coppice.iteration.pipeline.orders import breadth_first
from coppice.iteration.pipeline.stages import steady_bound_seconds
from coppice.iteration.policies.pipelined.policy import ChunkedOptions, Pipelined, stage_messages
from coppice.iteration.step.plan import Message


@checked
def forward_share(ratio: float, *, recompute: bool = False) -> float:
    """Share of a chunk's gradients that is all-reduced during the next forward pass.

    Args:
        ratio: Time of the forward pass over that of the backward pass, without recomputation.
        recompute: Activations are recomputed, so that the backward pass runs the forward pass again.

    Examples:
        >>> forward_share(0.5), forward_share(0.5, recompute=True)
        (0.3333333333333333, 0.25)
    """
    if not ratio >= 0:
        raise InputError(f"expected a forward time of 0 or more backward times, found `ratio={ratio}`.")
    return ratio / ((2 if recompute else 1) * ratio + 1)


class FoldOptions(ChunkedOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A pipeline with split all-reduces."""

    # Share of the gradients of a chunk that is summed beside the next forward pass; if not given, that of the
    # published formula for the times of the layers
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    recompute: bool = False  # The backward times are with recomputation of activations


class Fold3D(Pipelined):
    """Breadth-first chunks, each of which waits only for its own gradients, all-reduced in two messages."""

    name = "fold3d"
    about = "sums of chunks split over backward and next forward pass (Fold3D, TPDS'23)"
    assumes = (
        "an optimizer that updates chunk by chunk, with nothing (as a norm) taken over all gradients first"
    )
    decides = frozenset({"order", "gradients"})
    on_one_stage = False
    barrier = False
    options = FoldOptions

    def share(self, workload: LayerWorkload) -> float:
        """Share of a chunk's gradients that is all-reduced during the next forward pass."""
        if self.settings.share is not None:
            return float(self.settings.share)
        forward, backward = sum(workload.forward), sum(workload.backward)
        if self.settings.recompute:
            backward = max(0.0, backward - forward)
        return forward_share(forward / backward, recompute=self.settings.recompute) if backward else 0.0

    def messages(self, workload: LayerWorkload) -> list[Message]:
        """Gradient messages of each stage: one, or two of which the second overlaps with the next iteration."""
        share = self.share(workload)
        messages: list[Message] = []
        for whole in stage_messages(workload, self.order(workload).stages):
            stage = whole.stage or 0
            sent = whole.seconds - workload.message_seconds
            later = share * sent if stage >= self.settings.stages else 0.0
            late_bytes = share * whole.size_bytes if later else 0.0
            first = replace(
                whole,
                seconds=workload.message_seconds + sent - later,
                size_bytes=whole.size_bytes - late_bytes,
                needed_by=(0,),
            )
            if later < sent or not sent:
                messages.append(first)
            if later:
                messages.append(
                    replace(
                        first,
                        seconds=workload.message_seconds + later,
                        size_bytes=late_bytes,
                        offset_bytes=first.size_bytes,
                        after_forward=0,
                        forward_stage=stage - self.settings.stages,
                    )
                )
        return messages

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """Lower bound over orders of whole passes in which a stage waits for its own gradients."""
        return steady_bound_seconds(*self.stages(workload))

    def order(self, workload: LayerWorkload) -> PipelineOrder:
        """Programs of the devices."""
        del workload
        settings = self.settings
        return breadth_first(settings.stages, settings.micro_batches, settings.chunks)
