"""Rank groups of a training job, what of them leaves a box, and the interface of costs with all concurrent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import lcm
from typing import Protocol

import numpy as np

from coppice.errors import InputError

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
"""What groups of a job do; in a send every rank but the last sends the whole buffer to the next one of its group."""


@dataclass(frozen=True)
class RankGroup:
    """Concurrent groups of strided ranks along one axis of parallelism.

    Raises:
        InputError: If a number is below 1.

    Examples:
        >>> RankGroup(2, 4).members(8)
        [[0, 4], [1, 5], [2, 6], [3, 7]]
    """

    ranks: int  # Ranks of a group
    stride: int  # Distance of neighbours

    def __post_init__(self) -> None:
        for name in ("ranks", "stride"):
            if getattr(self, name) < 1:
                raise InputError(f"expected `{name}` of a group of 1 or more, found {getattr(self, name)}.")

    def members(self, total: int) -> list[list[int]]:
        """Ranks of every group, by first rank."""
        span = self.ranks * self.stride
        if total % span:
            raise InputError(
                f"expected groups of {self.ranks} ranks {self.stride} apart that divide the ranks, found {total}."
            )
        return [
            [block + first + k * self.stride for k in range(self.ranks)]
            for block in range(0, total, span)
            for first in range(self.stride)
        ]


@dataclass(frozen=True)
class CollectiveCost:
    """Time of a collective that all groups run concurrently."""

    seconds: float  # From its start until the last group is done
    # The kind of link that limits it: `NVLink` (inside a box), `NIC` (out of a box) or `fabric` (between
    # switches); empty where nothing moves
    link: str = ""
    # Share of the time for which the busiest link of each kind is in use at its full rate
    loads: Mapping[str, float] = field(default_factory=dict)


class CollectiveCosts(Protocol):
    """Interface of collective costs."""

    def cost(
        self, collective: str, size_bytes: float, group: RankGroup, *, gradients: bool = False
    ) -> CollectiveCost:
        """Cost of a collective.

        Args:
            collective: One of :data:`COLLECTIVES`.
            size_bytes: M in bytes, as :mod:`coppice.collectives` defines it; of a send what each rank sends.
            gradients: It sums gradients, or gathers the parameters that they update: models that were fitted to
                measurements know another rate for these.
        """
        ...  # pragma: no cover


@dataclass(frozen=True)
class BoxTraffic:
    """Outgoing traffic of the busiest box."""

    groups: int  # Groups with some of their ranks in the box: the ring of each leaves it once
    exchanged: float  # Buffers of a rank that leave it in an all-to-all of every group
    sends: int  # Ranks whose next one of the group is elsewhere
    outside: int  # Ranks that a rank meets outside of its box at most


@lru_cache(maxsize=4096)
def crossing(ranks: int, stride: int, box: int) -> BoxTraffic:
    """Inter-box traffic of groups by size, stride and ranks per box.

    Groups follow each other without gaps, so that after the least common multiple of both everything repeats.

    Examples:
        >>> crossing(8, 1, 8)
        BoxTraffic(groups=0, exchanged=0.0, sends=0, outside=0)
        >>> crossing(2, 8, 8)
        BoxTraffic(groups=8, exchanged=4.0, sends=8, outside=1)

        Threes in boxes of eight: one of every box but the third goes on in the next.

        >>> crossing(3, 1, 8)
        BoxTraffic(groups=2, exchanged=1.3333333333333333, sends=1, outside=2)
    """
    span = ranks * stride
    if box % span == 0:
        return BoxTraffic(0, 0.0, 0, 0)
    total = lcm(span, box)
    number = np.arange(total)
    group = number // span * stride + number % stride
    at = number // box
    boxes = total // box
    parts, members = np.unique(group * boxes + at, return_counts=True)
    split = members < ranks
    where, members = parts[split] % boxes, members[split]
    next_one = number + stride
    leaving = (number % span + stride < span) & (next_one // box != at)
    exchanged = np.bincount(where, weights=members * (ranks - members), minlength=1)
    return BoxTraffic(
        groups=int(np.bincount(where, minlength=1).max()),
        exchanged=float(exchanged.max() / ranks),
        sends=int(np.bincount(at[leaving], minlength=1).max()),
        outside=int((ranks - members).max(initial=0)),
    )
