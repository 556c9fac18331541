"""What NCCL's search starts from, and the channels of all patterns that a communicator searches in turn.

The search itself is native (``cpp/nccl_search``): it may walk half a million steps.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from coppice.display import Brief
from coppice.selection.nccl.graph import ChannelGraph, ChannelPattern
from coppice.selection.nccl.paths import local_nets
from coppice.selection.nccl.releases import constants
from coppice.selection.nccl.system import MOST_CHANNELS, System
from coppice.topology.generation import generation_of_capability


class Order(enum.IntEnum):
    """Which GPUs a walk tries next."""

    ANY = 0  # All, the most promising first
    FILE = 1  # In the order of the file
    REPLAY = 2  # As in the channel before


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """A pattern to search."""

    system: System
    pattern: ChannelPattern
    least: int  # Number of channels at least
    most: int  # Number of channels at most
    adds: bool = False  # Only through ports whose network adds (CollNet)
    cross_nic_setting: int = 2  # NCCL_CROSS_NIC
    release: str = ""  # Whose speeds are tried; empty: the newest's

    @cached_property
    def preferred(self) -> list[list[int]]:
        """For each GPU the ports that it prefers."""
        return [local_nets(self.system, gpu) for gpu in self.system.gpus]


def speeds_of(capability: int, *, several: bool, release: str = "") -> list[float]:
    """GB/s that NCCL tries for a channel, falling."""
    data = constants(release)
    return (data.speeds_across if several else data.speeds_within)[generation_of_capability(capability)]


@dataclass(frozen=True, kw_only=True, repr=False)
class BoxGraphs(Brief):
    """What NCCL finds in a box."""

    ring: ChannelGraph
    tree: ChannelGraph
    nvls: ChannelGraph | None  # None where it is not searched
    collnet_chain: ChannelGraph | None
    collnet_direct: ChannelGraph | None


def graphs_of(
    system: System,
    *,
    multicast: bool,
    adds: bool,
    search: Callable[[SearchRequest], ChannelGraph],
    release: str = "",
) -> BoxGraphs:
    """Search all patterns, in NCCL's order.

    Args:
        multicast: The NVSwitches copy and add, and the driver offers it.
        adds: The network adds (CollNet).
        release: Whose speeds are tried; empty: the newest's.
    """

    def found(pattern: ChannelPattern, least: int, most: int, *, by_adding: bool = False) -> ChannelGraph:
        return search(
            SearchRequest(
                system=system, pattern=pattern, least=least, most=most, adds=by_adding, release=release
            )
        )

    ring = found(ChannelPattern.RING, 1, MOST_CHANNELS // 2)
    tree = found(ChannelPattern.BALANCED_TREE, ring.count, ring.count)
    chain = direct = nvls = None
    if adds:
        chain = found(ChannelPattern.TREE, ring.count, ring.count, by_adding=True)
        direct = found(ChannelPattern.COLLNET_DIRECT, 1, MOST_CHANNELS, by_adding=True)
    if multicast and len(system.gpus) > 1:
        nvls = found(ChannelPattern.NVLS, 1, MOST_CHANNELS)
    return BoxGraphs(ring=ring, tree=tree, nvls=nvls, collnet_chain=chain, collnet_direct=direct)
