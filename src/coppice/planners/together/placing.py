"""Which GPUs a job takes, and in which order: a search by the bound of all its groups.

Positions of a job are numbered as frameworks number ranks, tensor groups next to each other. A placement gives each
position a GPU. Tried are orders that follow the boxes (those with the most GPUs first, as many GPUs of each box as
suits, box by box or across boxes), and from the best of these on exchanges of positions, alone or in runs, with each
other or with GPUs that are left free. Of two placements with the same bound the one whose groups meet fewer boxes, each
weighed by its bytes, is better. The same job and network have the same placement.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from coppice.bounds.together.demands import GroupDemand, needed_bytes, reach_themselves
from coppice.bounds.together.least import least_time
from coppice.errors import InputError, UnreachableError
from coppice.topology.model import Topology

_PATIENCE = 120
"""So many exchanges in a row that bring nothing end the search."""

_WORK = 12_000
"""Exchanges that are tried, times positions."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where the positions of a job are."""

    order: tuple[int, ...]  # Rank of the network at each position
    seconds: Fraction  # Bound of all groups there
    first_seconds: (
        Fraction | None
    )  # The same where positions take the GPUs as numbered; None: groups are cut off
    tried: int  # Placements that were looked at


def placed_demands(demands: Sequence[GroupDemand], order: Sequence[int]) -> list[GroupDemand]:
    """Demands of positions as demands of the ranks that take them."""
    ranks = np.array(order, dtype=np.int64)
    return [replace(each, groups=ranks[each.groups]) for each in demands]


def search_placement(topology: Topology, demands: Sequence[GroupDemand], count: int) -> Placement:
    """Search where a job's groups take the least time.

    Args:
        topology: The network of all GPUs that may be taken.
        demands: What groups exchange, by positions 0 .. count - 1.
        count: Number of positions.

    Raises:
        InputError: If there are fewer GPUs.
        UnreachableError: If no placement was found whose groups reach each other.

    Examples:
        Of two boxes with three and four free GPUs, a tensor group of four gets the second one:

        >>> from coppice.topology.operations import subset
        >>> from coppice.topology.presets import preset
        >>> free = subset(preset("dgx-a100", boxes=2), [5, 6, 7, 8, 9, 10, 11])
        >>> group = GroupDemand("tp", "all_reduce", np.array([[0, 1, 2, 3]]), [Fraction(10**9)])
        >>> found = search_placement(free, [group], 4)
        >>> found.order, float(found.first_seconds / found.seconds)
        ((3, 4, 5, 6), 8.666666666666666)
    """
    if count > topology.num_ranks:
        raise InputError(
            f"expected {count} GPUs for the job, found {topology.num_ranks} of {topology.name}: take smaller degrees."
        )
    known: dict[tuple[int, ...], tuple[Fraction, float] | None] = {}

    def judged(order: tuple[int, ...]) -> tuple[Fraction, float] | None:
        if order not in known:
            known[order] = _judged(topology, placed_demands(demands, order))
        return known[order]

    least = _least(topology, demands, count)

    def enough() -> bool:
        return best is not None and best[0][0] <= least[0] and best[0][1] <= least[1]

    best: tuple[tuple[Fraction, float], tuple[int, ...]] | None = None
    for order in _along_boxes(topology, count):
        value = judged(order)
        if value is not None and (best is None or value < best[0]):
            best = value, order
        if enough():
            break
    if best is None:
        raise UnreachableError(
            f"expected GPUs of {topology.name} whose groups reach each other, found none: allow other GPUs."
        )
    draw = random.Random(0)
    failed, here = 0, best[1]
    for _ in range(_WORK // count):
        if failed >= _PATIENCE or enough():
            break
        order = _exchanged(here, topology.num_ranks, draw)
        value = judged(order)
        failed += 1
        if value is not None and value <= best[0]:
            here = order  # equally good ones may lead on, and the first of them is kept
            if value < best[0]:
                failed, best = 0, (value, order)
    first = judged(tuple(range(count)))
    return Placement(
        order=best[1],
        seconds=best[0][0],
        first_seconds=None if first is None else first[0],
        tried=len(known),
    )


def _judged(topology: Topology, demands: Sequence[GroupDemand]) -> tuple[Fraction, float] | None:
    """The bound, and the bytes of groups times the boxes that they meet; None where groups are cut off."""
    if not reach_themselves(topology, demands):
        return None
    hosts = topology.host[topology.rank_nodes]
    spread = sum(
        float(size) * len(set(hosts[ranks].tolist()))
        for each in demands
        for ranks, size in zip(each.groups, each.size_bytes, strict=True)
    )
    return least_time(topology, demands).seconds, spread


def _least(topology: Topology, demands: Sequence[GroupDemand], count: int) -> tuple[Fraction, float]:
    """What no placement goes below: what a position gets and sends over the links of a GPU, and the fewest boxes."""
    rates = [Fraction(topology.gb_per_s(link)) for link in range(topology.num_links)]
    seconds = Fraction(0)
    for ends, entering in ((topology.dst, True), (topology.src, False)):
        rate: dict[int, Fraction] = {}
        for link, node in enumerate(ends.tolist()):
            rate[node] = rate.get(node, Fraction(0)) + rates[link]
        most = max(rate.get(node, Fraction(0)) for node in topology.rank_nodes.tolist())
        for position in range(count if most else 0):
            place = np.full(count, -1, dtype=np.int64)
            place[position] = 0
            needed = sum(needed_bytes(each, place, entering=entering) for each in demands)
            seconds = max(seconds, needed / (most * 10**9))
    boxes = np.unique(topology.host[topology.rank_nodes], return_counts=True)[1]
    spread = sum(
        float(size) * -(-each.members // int(boxes.max())) for each in demands for size in each.size_bytes
    )
    return seconds, spread


def _along_boxes(topology: Topology, count: int) -> Iterator[tuple[int, ...]]:
    """Orders that follow the boxes; the ranks as they are numbered first."""
    yield tuple(range(count))
    boxes: dict[int, list[int]] = {}
    for rank, host in enumerate(topology.host[topology.rank_nodes].tolist()):
        boxes.setdefault(host, []).append(rank)
    fullest = sorted(boxes.values(), key=lambda ranks: -len(ranks))
    for each in range(1, max(map(len, fullest)) + 1):
        wide = [ranks[:each] for ranks in fullest if len(ranks) >= each]
        needed = -(-count // each)
        if len(wide) < needed:
            continue
        taken = wide[:needed]
        yield tuple([rank for ranks in taken for rank in ranks][:count])
        across = [ranks[place] for place in range(each) for ranks in taken]
        if len(across) == count:
            yield tuple(across)
    left = [rank for ranks in fullest for rank in ranks]
    yield tuple(left[:count])


def _exchanged(order: tuple[int, ...], ranks: int, draw: random.Random) -> tuple[int, ...]:
    """Two runs of positions change places, or one takes GPUs that were free."""
    count = len(order)
    free = sorted(set(range(ranks)) - set(order))
    lengths = [length for length in (1, 2, 4, 8, 16) if 2 * length <= count and count % length == 0]
    length = draw.choice(lengths or [1])
    at = draw.randrange(count // length) * length
    found = list(order)
    if len(free) >= length and (count == length or draw.random() < len(free) / ranks):
        start = draw.randrange(len(free) - length + 1)
        found[at : at + length] = free[start : start + length]
    else:
        other = draw.randrange(count // length) * length
        found[at : at + length], found[other : other + length] = (
            found[other : other + length],
            found[at : at + length],
        )
    return tuple(found)
