"""GradientFlow (Sun et al., arXiv 1902.06855): lazy all-reduce, and coarse-grained sparse communication.

*Lazy all-reduce.* Gradients lie in one pool in the order in which the backward pass makes them. As soon as the part
of it that is ready and not sent has `theta` bytes, it is summed in one message, without a copy; the rest at the end.
With S bytes in L layers alike and a network that is the bottleneck an iteration takes F + B/nb + S/bandwidth + nb *
message for nb = S / theta messages, least at nb = sqrt(B / message).

*Coarse-grained sparse communication.* The pool is cut into chunks of `chunk_elements`. All ranks keep the same set
of chunks, a share `ratio` of them; these are sent, densely, and the others add up with momentum correction until
they are chosen. Then the L1 norms of all chunks are summed, a small message, and the chunks of the greatest norms
are those of the next iteration, equal norms by number. The set is known before the backward pass begins, so lazy
all-reduce works as before. Traffic is ratio + element_bytes * chunks / S of the dense one. Which chunks are chosen
depends on the gradients; here every layer sends its share. With a ratio below 1 the training is another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, sqrt
from typing import Annotated, Any, ClassVar

import msgspec

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.ddp import assign_buckets
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.policy import Bytes, Count
from coppice.iteration.step.plan import Message

NORMS = "norms"
"""Name of the message with the norms of all chunks."""


def optimal_theta_bytes(workload: LayerWorkload) -> float:
    """Closed-form optimal message size of lazy all-reduce for equal layers; 0: messages have no overhead.

    Examples:
        >>> layers = {"forward": (0.05,) * 200, "backward": (0.1,) * 200, "bytes": (0.2,) * 200}
        >>> work = LayerWorkload(**layers, bytes_per_second=1, message_seconds=0.05)
        >>> round(optimal_theta_bytes(work), 6)  # 20 messages
        2.0
    """
    backward = sum(workload.backward)
    if not backward:
        return sum(workload.bytes)
    return sum(workload.bytes) * sqrt(workload.message_seconds / backward)


def norm_bytes(workload: LayerWorkload, chunk_elements: int) -> float:
    """Bytes of the norms of all chunks."""
    elements = sum(workload.bytes) / workload.element_bytes
    return workload.element_bytes * ceil(elements / chunk_elements - 1e-9)


class FlowOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Message size and sparsity."""

    # Bytes of ready gradients that are sent at once; None: the best in closed form
    theta_bytes: Bytes | None = None
    # Share of the chunks that is sent; 1: all, and no norms
    ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    chunk_elements: Count = 32768  # Elements of a chunk


class GradientFlow(DataParallelPolicy):
    """Lazy all-reduce of a gradient buffer: all gradients, or the chunks of largest norm."""

    name = "gradientflow"
    about = "lazy all-reduce, of all gradients or chunks of them (GradientFlow, 2019)"
    assumes = "gradients in one pool in the order of the backward pass; with ratio < 1 residuals are kept"
    stock = "Megatron-LM --overlap-grad-reduce --ddp-bucket-size N, for ratio=1"
    options: ClassVar[type[msgspec.Struct]] = FlowOptions
    in_order: ClassVar[bool] = True

    def groups(self, workload: LayerWorkload) -> Sequence[Sequence[int]]:
        """Layers from the last one on, sent once `theta_bytes` have accumulated."""
        settings = self.settings
        theta = optimal_theta_bytes(workload) if settings.theta_bytes is None else settings.theta_bytes
        layers = list(reversed(range(workload.layers)))
        sizes = [workload.bytes[layer] * settings.ratio for layer in layers]
        found = assign_buckets(sizes, [""] * len(layers), [theta * (1 - 1e-9)], in_order=True)
        return [[layers[place] for place in bucket] for bucket in found]

    def messages(self, workload: LayerWorkload) -> Sequence[Message]:
        """Sparse groups, then the norms of all chunks, which the next backward pass needs."""
        settings = self.settings
        found = []
        for message in super().messages(workload):
            size = message.size_bytes * settings.ratio
            found.append(replace(message, size_bytes=size, seconds=workload.message(size)))
        if settings.ratio < 1 and found:
            size = norm_bytes(workload, settings.chunk_elements)
            norms = Message(
                name=NORMS,
                seconds=workload.message(size),
                size_bytes=size,
                layers=tuple(range(workload.layers)),
                needed_by=(workload.layers - 1,),
                collective="all_reduce",
            )
            found.append(norms)
        return found

    def extra_memory_bytes(self, workload: LayerWorkload) -> float:
        """Residuals of unsent chunks."""
        return sum(workload.bytes) if self.settings.ratio < 1 else 0.0

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """Lower bound for the bytes that are sent."""
        share = self.settings.ratio
        return replace(
            workload, bytes=tuple(size * share for size in workload.bytes), matrices=()
        ).lower_bound_seconds()

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """Thetas that give equal messages, and the closed-form optimum."""
        whole = sum(workload.bytes) * self.settings.ratio
        thetas = [optimal_theta_bytes(workload), *(whole / count for count in range(1, workload.layers + 1))]
        return [{"theta_bytes": theta} for theta in thetas]
