"""Baselines of data-parallel training: no overlap, layer by layer beside the backward pass, and in buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy

__all__ = ["Bucketed", "Serial", "WaitFree"]


class Serial(DataParallelPolicy):
    """Nothing overlaps."""

    name = "serial"
    about = "all communication after the backward pass"
    overlaps: ClassVar[bool] = False


class WaitFree(DataParallelPolicy):
    """Wait-free back-propagation (Poseidon, USENIX ATC 2017): gradients are sent as soon as they are there."""

    name = "wfbp"
    about = "a message for each layer as soon as its gradients are there (Poseidon, ATC'17)"


_Bytes = Annotated[float, msgspec.Meta(ge=0)]


class BucketOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes of buckets, as of PyTorch DDP.

    Attributes:
        bucket_bytes: A bucket is closed when it has as many bytes.
        first_bytes: The same for the first one.
    """

    bucket_bytes: _Bytes = 25 * 2**20
    first_bytes: _Bytes = 2**20


class Bucketed(DataParallelPolicy):
    """Buckets of PyTorch DDP (Li et al., VLDB 2020), filled in the order of the backward pass.

    A bucket is launched when it is complete and all before it have been.
    """

    name = "ddp"
    about = "buckets, launched in order as they fill (PyTorch DDP, VLDB'20)"
    options = BucketOptions
    in_order: ClassVar[bool] = True

    def groups(self, workload: LayerWorkload) -> Sequence[Sequence[int]]:
        """Layers from the last one on, a bucket closed once it has the bytes of its cap."""
        found: list[list[int]] = []
        bucket: list[int] = []
        filled = 0.0
        cap = self.settings.first_bytes
        for layer in reversed(range(workload.layers)):
            bucket.append(layer)
            filled += workload.bytes[layer]
            if filled >= cap:
                found.append(bucket)
                bucket, filled, cap = [], 0.0, self.settings.bucket_bytes
        return [*found, bucket] if bucket else found
