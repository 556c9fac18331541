"""PyTorch DistributedDataParallel (Li et al., VLDB 2020): gradients in buckets, launched in order.

Parameters are dealt to buckets greedily, a bucket for each type at a time, which is closed when it has as many bytes
as its cap: 1 MiB for the first one of a type, 25 MiB for the others. A bucket is launched when all of its gradients are
there and all buckets before it have been, so that every rank issues the same sequence. The first iteration has a bucket
for each type; then they are built in the order in which gradients were ready on rank 0. Where unused parameters are
looked for, they are built before the first iteration in the order of the parameters, taken in reverse, and stay.

Large buckets spare the cost of messages, small ones overlap more. With L layers alike in nb buckets and a network
that is the bottleneck, an iteration takes F + B/nb + S/bandwidth + nb * message, least at nb = sqrt(B / message);
with a network that is not, F + B and the last bucket.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020;
`compute_bucket_assignment_by_size` in torch/csrc/distributed/c10d/reducer.cpp says which bucket is closed when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, ClassVar

import msgspec

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.policy import Bytes


def assign_buckets(
    sizes: Sequence[float], dtypes: Sequence[str], caps: Sequence[float], *, in_order: bool
) -> list[list[int]]:
    """Assign tensors to buckets as PyTorch's reducer does.

    Args:
        dtypes: Its type; a bucket holds one.
        caps: Bytes that close the first, second, ... bucket of a type; the last holds for all that follow.
        in_order: Buckets stay in the order in which they were closed; otherwise they are put in that of their first
            tensors.

    Returns:
        Positions of the tensors of each bucket.

    Examples:
        >>> assign_buckets([2, 2, 8, 1], ["half"] * 4, [1, 4], in_order=True)
        [[0], [1, 2], [3]]
    """
    closed: list[list[int]] = []
    opened: dict[str, tuple[list[int], float]] = {}
    turns: dict[str, int] = {}
    for tensor, (size, dtype) in enumerate(zip(sizes, dtypes, strict=True)):
        bucket, filled = opened.get(dtype, ([], 0.0))
        bucket, filled = [*bucket, tensor], filled + size
        opened[dtype] = bucket, filled
        turn = turns.setdefault(dtype, 0)
        if filled >= caps[min(turn, len(caps) - 1)]:
            closed.append(bucket)
            del opened[dtype]
            turns[dtype] = turn + 1
    closed.extend(bucket for bucket, _ in opened.values())
    return closed if in_order else sorted(closed, key=min)


class BucketOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bucket sizes of PyTorch DDP."""

    bucket_bytes: Bytes = 25 * 2**20  # A bucket is closed when it has as many bytes
    first_bytes: Bytes = 2**20  # The same for the first one of a type
    find_unused_parameters: bool = False  # Buckets are made before the first iteration, and stay
    first_iteration: bool = False  # The buckets before they are built anew: one for each type


class Bucketed(DataParallelPolicy):
    """Fill PyTorch DDP's buckets in the order of the backward pass.

    A layer stands for a tensor.
    """

    name = "ddp"
    about = "buckets, launched in order as they fill (PyTorch DDP, VLDB'20)"
    assumes = "an optimizer that steps once, and all ranks with the same order of gradients"
    stock = "torch.nn.parallel.DistributedDataParallel(model)"
    options: ClassVar[type[msgspec.Struct]] = BucketOptions
    in_order: ClassVar[bool] = True

    def groups(self, workload: LayerWorkload) -> Sequence[Sequence[int]]:
        """Layers from the last one on; a bucket of each type is closed once it reaches its cap."""
        settings = self.settings
        dtypes = workload.dtypes or ("",) * workload.layers
        caps = [settings.first_bytes, settings.bucket_bytes]
        if not settings.find_unused_parameters and not settings.first_iteration:
            found = assign_buckets(workload.bytes[::-1], dtypes[::-1], caps, in_order=True)
            return [[workload.layers - 1 - place for place in bucket] for bucket in found]
        if not settings.find_unused_parameters:
            caps = [inf]
        return assign_buckets(workload.bytes, dtypes, caps, in_order=False)[::-1]

    def extra_memory_bytes(self, workload: LayerWorkload) -> float:
        """Memory of the buckets; none where gradients are views of them (`gradient_as_bucket_view`)."""
        return sum(workload.bytes)

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """Equal caps that give a number of equal buckets."""
        whole = sum(workload.bytes)
        caps = sorted({whole / count * (1 - 1e-9) for count in range(1, workload.layers + 1)})
        return [{"bucket_bytes": cap, "first_bytes": cap} for cap in caps]
