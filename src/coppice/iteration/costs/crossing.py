"""Inter-box traffic of strided rank groups, also where boxes divide them unevenly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import lcm

import numpy as np


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
