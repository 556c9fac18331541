"""Patterns of channels that NCCL's search finds."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coppice.display import Brief
from coppice.selection.nccl.system import PathType


class ChannelPattern(enum.IntEnum):
    """Patterns, by NCCL's numbers."""

    BALANCED_TREE = 1  # traffic of the network divided between the first two GPUs
    SPLIT_TREE = 2  # towards the root by the first GPU, from the leaves by the second one
    TREE = 3  # all traffic of the network through the first GPU
    RING = 4
    NVLS = 5
    COLLNET_DIRECT = 6


@dataclass(frozen=True, kw_only=True, repr=False)
class ChannelGraph(Brief):
    """Channels of one pattern in a box."""

    pattern: ChannelPattern
    count: int = 0  # Number of channels
    within: float = 0.0  # GB/s of a channel inside a box
    across: float = 0.0  # GB/s of a channel to and from the network
    latency_us: float = 0.0  # Latency that the network states
    within_type: PathType = PathType.LOC  # Worst class of path inside
    across_type: PathType = PathType.LOC  # Worst class of path to the network
    same: bool = False  # All channels take the GPUs in the same order
    cross_nic: int = 0  # Channels leave by other NICs than they come in by
    hops: int = 0  # Links that all channels take
    orders: tuple[tuple[int, ...], ...] = field(default=())  # Ranks of the box in order, by channel
    ports: tuple[tuple[int, int], ...] = field(default=())  # Numbers of the ports in and out, by channel

    def renumbered(self, numbers: Mapping[int, int]) -> ChannelGraph:
        """The same channels with other numbers of ranks."""
        return replace(self, orders=tuple(tuple(numbers[rank] for rank in order) for order in self.orders))
