"""Priority by next use: the first layer's gradients go first, without a barrier before the next forward pass.

The backward pass makes the gradients of layer 0 last and the next forward pass needs them first, so a first-come
first-served network is busy with what is not urgent when they are ready. With messages of any size cut as finely as
one likes and no cost of a message, the smallest layer first is optimal on a chain: it is preemptive earliest due
date on one machine (Horn, 1974). A message that cannot be interrupted delays a more urgent one by its whole length,
so cutting matters as much as the priority.

This is the common ground of P3 (MLSys'19) and ByteScheduler (SOSP'19); both have files of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.iteration.policies.policy import PositiveBytes

_MOST_PARTS = 1_000_000


def cut(size_bytes: float, most_bytes: float | None) -> list[float]:
    """Partition a message into parts of bounded size.

    Args:
        most_bytes: Bytes of a part at most; None: one part.

    Examples:
        >>> cut(5.0, 2.0)
        [2.0, 2.0, 1.0]
    """
    if most_bytes is None or size_bytes <= most_bytes:
        return [size_bytes]
    whole = int(size_bytes / most_bytes * (1 + 1e-12))
    if whole >= _MOST_PARTS:
        raise InputError(
            f"expected fewer than {_MOST_PARTS:,} parts of a message, found {whole:,}: cut into larger parts."
        )
    rest = size_bytes - whole * most_bytes
    return [most_bytes] * whole + ([rest] if rest > 1e-9 * most_bytes else [])


class PriorityOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Message partitioning."""

    partition_bytes: PositiveBytes | None = None  # Bytes of a message at most; None: messages are not cut


class Priority(DataParallelPolicy):
    """Send the layer nearest to the input first."""

    name = "priority"
    about = "the layer that is needed first goes first, cut or whole; no barrier"
    assumes = "an optimizer that updates layer by layer, and no clipping by a global norm"
    options: ClassVar[type[msgspec.Struct]] = PriorityOptions
    update_scope: UpdateScope = UpdateScope.GROUP

    def parts(self, workload: LayerWorkload, size_bytes: float) -> Sequence[float]:
        """Parts of at most `partition_bytes`."""
        del workload
        return cut(size_bytes, self.settings.partition_bytes)

    def key(self, workload: LayerWorkload, group: Sequence[int]) -> int:
        """Layer index as the priority."""
        del workload
        return min(group)

    def choices(self, workload: LayerWorkload) -> Sequence[Mapping[str, Any]]:
        """Partition sizes of the largest message, and no partitioning."""
        largest = max(workload.bytes)
        sizes = [largest / share for share in (2, 4, 8, 16, 32, 64)] if largest else []
        return [{"partition_bytes": size} for size in (None, *sizes)]
