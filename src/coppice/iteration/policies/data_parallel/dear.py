"""DeAR (Zhang et al., ICDCS 2023): decouple all-reduce into reduce-scatter (backward) and all-gather (forward).

The gradients of a group are reduce-scattered as soon as they are there, beside the backward pass. When all groups
are, the parameters are all-gathered, those of the first group first; the forward pass of a group waits for its
all-gather, updates and computes. No more bytes than an all-reduce, no priorities, and an order that is fixed, so all
ranks launch alike. In bulk an iteration takes max(B, RS) + max(F, AG), where wait-free back-propagation takes F +
max(B, RS + AG); at best (F = 1, B = 2, all-reduce 4) 5/4 of it.

The published code launches the all-gather of a group when the forward pass of the group before it begins
(`ahead=1`), which leaves the network idle where groups differ much. Groups are layers in a row from the first on,
closed at a threshold of 25 MB, which is tuned by Bayesian optimization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.ddp import assign_buckets
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.iteration.policies.data_parallel.tuning import tuned_settings
from coppice.iteration.policies.policy import Bytes, Count
from coppice.iteration.step.plan import Message


class ThresholdOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fusion threshold."""

    threshold_bytes: Bytes = 25e6  # A group is closed when it has as many bytes; 0: each layer by itself
    # Groups that are all-gathered ahead of the one that is computed; None: all, one after the other
    ahead: Count | None = None


class DecoupledAllReduce(DataParallelPolicy):
    """Overlap reduce-scatters with the backward pass, and all-gathers with the forward pass."""

    name = "dear"
    about = "reduce-scatter in the backward, all-gather in the forward pass (DeAR, ICDCS'23)"
    assumes = "an optimizer that updates group by group; no clipping by a global norm"
    stock = "Megatron-LM --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
    options: ClassVar[type[msgspec.Struct]] = ThresholdOptions
    update_scope: UpdateScope = UpdateScope.GROUP

    def groups(self, workload: LayerWorkload) -> Sequence[Sequence[int]]:
        """Consecutive layers from the first one on; the last group is ready first."""
        caps = [self.settings.threshold_bytes]
        return assign_buckets(workload.bytes, [""] * workload.layers, caps, in_order=True)[::-1]

    def messages(self, workload: LayerWorkload) -> Sequence[Message]:
        """Reduce-scatters as groups become ready, then all-gathers, each after the previous group has started."""
        groups = [
            group for group in self.layer_groups(workload) if sum(workload.bytes[layer] for layer in group)
        ]
        sizes = [sum(workload.bytes[layer] for layer in group) for group in groups]
        found = [
            Message(
                name=f"reduce-scatter of group {number}",
                seconds=workload.message(size) / 2,
                size_bytes=size,
                layers=group,
                collective="reduce_scatter",
            )
            for number, (group, size) in enumerate(zip(groups, sizes, strict=True))
        ]
        scattered = tuple(range(len(groups)))
        forward = scattered[::-1]
        ahead = self.settings.ahead
        for place, number in enumerate(forward):
            gate = None if ahead is None or place < ahead else groups[forward[place - ahead]][0]
            found.append(
                Message(
                    name=f"all-gather of group {number}",
                    seconds=workload.message(sizes[number]) / 2,
                    size_bytes=sizes[number],
                    layers=groups[number],
                    after=(len(found) - 1, number) if place else scattered,
                    after_forward=gate,
                    needed_by=groups[number],
                    collective="all_gather",
                )
            )
        return found

    def extra_memory_bytes(self, workload: LayerWorkload) -> float:
        """Fusion buffers, and a shard of the reduced gradients."""
        fused = [group for group in self.groups(workload) if len(group) > 1]
        buffers = sum(workload.bytes[layer] for group in fused for layer in group)
        return buffers + sum(workload.bytes) / workload.workers

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """64 thresholds up to the total gradient size."""
        whole = sum(workload.bytes)
        if not whole:
            return []
        return [{"threshold_bytes": float(size)} for size in np.geomspace(whole / 256, whole, 64)]

    def tune(self, workload: LayerWorkload) -> dict[str, Any]:
        """Tune the threshold by Bayesian optimization: 10 trials on a grid of 64."""
        return tuned_settings(self, workload, self.choices(workload), *self.tuning_trials)
