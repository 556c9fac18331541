"""Tensor fusion without reordering: two baselines.

*Jia et al.* (arXiv 1807.11205, section 3.3): a tensor of `theta` bytes or more goes by itself; smaller ones wait in
a pool until they have as many together.

*MG-WFBP* (Shi et al., INFOCOM 2019): from the last layer on, a message that is known to start at some time waits for
the gradients of the layer below if these are there before it could start, or so soon after that waiting costs less
than the message that is spared. The start of a message is max(end of the one before it, end of its backward pass),
computed anew after every merge. Layers of fewer than `small_elements` are always merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.policy import Bytes


def gradient_times(workload: LayerWorkload) -> list[float]:
    """Time from the start of backward at which each layer's gradients are ready.

    Examples:
        >>> gradient_times(LayerWorkload(forward=(1, 1), backward=(2, 3), bytes=(1, 1), bytes_per_second=1))
        [5.0, 3.0]
    """
    found, now = [0.0] * workload.layers, 0.0
    for layer in reversed(range(workload.layers)):
        now += workload.backward[layer]
        found[layer] = now
    return found


def communication_end(workload: LayerWorkload, groups: Sequence[Sequence[int]]) -> float:
    """Time from the start of backward at which each group has been sent, each as early as possible.

    Examples:
        >>> six = LayerWorkload(
        ...     forward=(1,) * 6,
        ...     backward=(1,) * 6,
        ...     bytes=(0.5, 0.1, 0.1, 2, 0.2, 3),
        ...     bytes_per_second=1,
        ...     message_seconds=0.6,
        ... )
        >>> round(communication_end(six, [[5], [4, 3, 2], [1, 0]]), 9)
        8.7
    """
    ready, end = gradient_times(workload), 0.0
    for group in groups:
        size = sum(workload.bytes[layer] for layer in group)
        if size:
            end = max(end, *(ready[layer] for layer in group)) + workload.message(size)
    return end


class FusionOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Threshold below which tensors are fused."""

    theta_bytes: Bytes = 2**20  # Bytes of a tensor that goes by itself, and of a pool that is sent


class TensorFusion(DataParallelPolicy):
    """Fuse small tensors in a buffer, send large ones alone; the remainder goes after the backward pass."""

    name = "jia"
    about = "small tensors in a pool, large ones alone (Jia et al., 2018)"
    assumes = "an optimizer that steps once"
    options: ClassVar[type[msgspec.Struct]] = FusionOptions
    in_order: ClassVar[bool] = True

    def groups(self, workload: LayerWorkload) -> Sequence[Sequence[int]]:
        """Large layers, and buffers of small ones, in the order of completion."""
        found: list[list[int]] = []
        pool: list[int] = []
        for layer in reversed(range(workload.layers)):
            if workload.bytes[layer] >= self.settings.theta_bytes:
                found.append([layer])
                continue
            pool.append(layer)
            if sum(workload.bytes[each] for each in pool) >= self.settings.theta_bytes:
                found.append(pool)
                pool = []
        return [*found, pool] if pool else found

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """Thresholds that give equal shares of the gradients, and none."""
        whole = sum(workload.bytes)
        thetas = [0.0, *(whole / count for count in range(1, workload.layers + 1))]
        return [{"theta_bytes": theta} for theta in thetas]

    def extra_memory_bytes(self, workload: LayerWorkload) -> float:
        """Fusion buffers."""
        return sum(
            workload.bytes[layer] for group in self.groups(workload) if len(group) > 1 for layer in group
        )


class MergeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of merging."""

    small_elements: Annotated[int, msgspec.Meta(ge=0)] = 8192  # Layers of fewer elements are always merged


class MergedGradients(DataParallelPolicy):
    """Merge a message with the next gradients where waiting costs less than another message."""

    name = "mg-wfbp"
    about = "messages merged where waiting costs less (MG-WFBP, INFOCOM'19)"
    assumes = "known times of passes and messages; an optimizer that steps once"
    options: ClassVar[type[msgspec.Struct]] = MergeOptions

    def groups(self, workload: LayerWorkload) -> Sequence[Sequence[int]]:
        """Layers from the last one on, each merged into the next one or not."""
        ready = gradient_times(workload)
        found: list[list[int]] = []
        group: list[int] = []
        free = 0.0  # when the network has sent what was not merged
        for layer in reversed(range(workload.layers)):
            group.append(layer)
            size = sum(workload.bytes[each] for each in group)
            start = max(free, ready[layer])
            small = size < self.settings.small_elements * workload.element_bytes
            if layer and (small or ready[layer - 1] - start < workload.message_seconds):
                continue
            found.append(group)
            free = start + (workload.message(size) if size else 0.0)
            group = []
        return found

    def extra_memory_bytes(self, workload: LayerWorkload) -> float:
        """Buffers of merged messages."""
        return sum(
            workload.bytes[layer] for group in self.groups(workload) if len(group) > 1 for layer in group
        )
