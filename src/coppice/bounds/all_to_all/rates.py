"""What the planner at run time knows of a network: equal boxes, and two rates for each rank."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.all_to_all.two_stage import boxes_with_hops
from coppice.display import Brief
from coppice.errors import InputError, UnreachableError
from coppice.topology.model import Topology
from coppice.topology.routing import Router

MOST_ELEMENTS = 2**60
"""Elements of an exchange, all together."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RankRates(Brief):
    """Boxes of equal width and rates of ranks, by position: box by box, members of one rail at one place."""

    width: int  # Members of a box; all ranks where nothing can be balanced
    order: NDArray[np.int32]  # Rank at each position
    crossing: bool  # Any NIC reaches any NIC as fast as the one of its rail
    near: NDArray[np.int64]  # Rate inside the box, in GB/s over `denominator`
    far: NDArray[np.int64]  # Rate of the NIC, likewise
    denominator: int  # Of the rates

    @property
    def boxes(self) -> int:
        """Number of boxes."""
        return len(self.order) // self.width

    @property
    def balances(self) -> bool:
        """Whether ranks of a box can carry blocks for each other."""
        return self.boxes > 1 and self.width > 1

    def seconds(self, elements: int, rate: int, itemsize: int) -> float:
        """Time of elements over a link of a rate.

        Examples:
            >>> one_box(4).seconds(1_000_000, 1, 4)
            0.004
        """
        return float(Fraction(elements * itemsize * self.denominator, rate * 10**9))

    def elements_in(self, microseconds: int, itemsize: int) -> int:
        """What the fastest NIC carries in some microseconds."""
        return int(microseconds * 1000 * int(self.far.max())) // (self.denominator * itemsize)


def one_box(ranks: int) -> RankRates:
    """Ranks of which nothing is known: all go directly.

    Examples:
        >>> one_box(4).balances
        False
    """
    ones = np.ones(ranks, dtype=np.int64)
    return RankRates(
        width=ranks,
        order=np.arange(ranks, dtype=np.int32),
        crossing=True,
        near=ones,
        far=ones,
        denominator=1,
    )


@lru_cache(maxsize=8)
def rates_of(topology: Topology) -> RankRates:
    """Boxes and rates of a topology; one box where it has no equal ones.

    A link that several members of a box share counts for each by its part.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = rates_of(preset("dgx-h100", boxes=2))
        >>> found.boxes, found.width, found.crossing, int(found.near[0]), int(found.far[0])
        (2, 8, False, 450, 50)
        >>> rates_of(preset("ring", gpus=4)).balances
        False
    """
    boxes = boxes_with_hops(topology)
    if boxes is None or boxes.width == 1:
        return one_box(topology.num_ranks)
    count, width = boxes.count, boxes.width
    capacity = topology.capacity
    near, far = np.zeros(count * width, dtype=np.int64), np.zeros(count * width, dtype=np.int64)
    for box in range(count):
        other = (box + 1) % count
        for to, into in ((True, near), (False, near), (True, far), (False, far)):
            rate = (
                _inside(boxes.near_start, boxes.near, capacity, box, width, leaving=to)
                if into is near
                else _along_rails(boxes.far_start, boxes.far, capacity, box, other, count, width, leaving=to)
            )
            part = into[box * width : (box + 1) * width]
            part[:] = np.where(part == 0, rate, np.minimum(part, rate))
    return RankRates(
        width=width,
        order=boxes.order.astype(np.int32),
        crossing=_crosses(topology, boxes.order, width, far),
        near=near,
        far=far,
        denominator=topology.denominator,
    )


def _inside(
    start: NDArray[np.int64],
    links: NDArray[np.int32],
    capacity: NDArray[np.int64],
    box: int,
    width: int,
    *,
    leaving: bool,
) -> list[int]:
    """Capacity of the links that a member's hops to the others begin (or end) with."""
    found = []
    for member in range(width):
        ends = set()
        for other in range(width):
            if other == member:
                continue
            one, two = (member, other) if leaving else (other, member)
            hop = (box * width + one) * width + two
            route = links[start[hop] : start[hop + 1]]
            ends.add(int(route[0 if leaving else -1]))
        found.append(sum(int(capacity[link]) for link in ends))
    return found


def _along_rails(
    start: NDArray[np.int64],
    links: NDArray[np.int32],
    capacity: NDArray[np.int64],
    box: int,
    other: int,
    count: int,
    width: int,
    *,
    leaving: bool,
) -> list[int]:
    """Rate of each rail of a box to the next one (or from it), links that rails share in equal parts."""
    one, two = (box, other) if leaving else (other, box)
    hops = [(one * count + two) * width + rail for rail in range(width)]
    routes = [links[start[hop] : start[hop + 1]] for hop in hops]
    users = np.zeros(len(capacity), dtype=np.int64)
    for route in routes:
        users[route] += 1
    return [max(1, int((capacity[route] // users[route]).min())) for route in routes]


def _crosses(topology: Topology, order: NDArray[np.int64], width: int, far: NDArray[np.int64]) -> bool:
    """Whether routes between NICs of different numbers are as fast as those along rails."""
    source, target = np.repeat(order[:width], width), np.tile(order[width : 2 * width], width)
    by_target = np.argsort(target, kind="stable")
    source, target = source[by_target], target[by_target]
    try:
        start, nodes = Router(topology).paths(source, target, np.zeros(len(source), dtype=np.int64))
    except UnreachableError:
        return False
    known = {
        (int(one), int(two)): int(room)
        for one, two, room in zip(topology.src, topology.dst, topology.capacity, strict=True)
    }
    slowest = int(far[: 2 * width].min())
    return all(
        known[int(nodes[place]), int(nodes[place + 1])] >= slowest
        for route in range(len(source))
        for place in range(int(start[route]), int(start[route + 1]) - 1)
    )


def planned_blocks(rates: RankRates, counts: NDArray[np.int64], *, least_saved: int = 0) -> _core.AllToAllV:
    """Plan an all-to-all of unequal blocks as it is planned at run time (cpp/alltoallv).

    Args:
        counts: Elements from each rank to each.
        least_saved: Blocks pass other ranks where the busiest NIC has as many elements less by it; `MOST_ELEMENTS`:
            never.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> counts = np.zeros((16, 16), dtype=np.int64)
        >>> counts[0, 8] = 800
        >>> planned_blocks(rates_of(preset("dgx-h100", boxes=2)), counts).busiest()
        (100, 50)
    """
    try:
        return _core.AllToAllV(
            rates.width,
            rates.order,
            rates.crossing,
            rates.near,
            rates.far,
            np.ascontiguousarray(counts, dtype=np.int64).ravel(),
            least_saved,
        )
    except OverflowError:
        raise InputError(
            "expected an all-to-all of fewer than 2^60 elements, found more: exchange parts of it."
        ) from None
