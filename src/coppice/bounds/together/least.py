"""Least time for concurrent collectives of several groups.

Theory. Members of a group add and copy for it; switches do not, and GPUs outside pass nothing on unless members reach
each other in no other way. Take disjoint sets of nodes. A block that a member outside of a set gathers into it enters
the set once at least, a sum of a set leaves it once; of a group that lies in p sets altogether, p - 1 transfers between
sets gather a block or sum it up, so that each leaves one set and enters another. All-reduces need 2 (p - 1) of the
whole (one-way gossip: Harary and Schwenk 1974). If members are outside of the sets as well, a block enters a set with
members once, and an all-reduce enters and leaves each set once. Blocks of an all-to-all and sends cross from set to
set. Whatever demands are looked at, the sum of their bytes over the capacity of the links that enter (or leave) the
sets and can serve one of them is a time that nothing beats. The largest over GPUs, boxes, what hangs on each tier of
switches, over sets of these that all groups or those of one kind join, and over the narrowest cut of each group, is
found in floating point and counted exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.together.demands import (
    GroupDemand,
    check_demand,
    divisions,
    needed_bytes,
    needs_of_components,
    needs_of_sets,
    summed,
    usable_links,
)
from coppice.bounds.together.narrowest import narrowest_cuts
from coppice.display import Brief
from coppice.errors import InputError
from coppice.topology.model import Topology

_MOST_DEMANDS = 8


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TogetherBound(Brief):
    """Lower bound on the time of concurrent demands, with its proof."""

    topology: Topology  # The network
    demands: tuple[GroupDemand, ...]  # Everything that is exchanged
    seconds: Fraction  # The time
    sets: tuple[tuple[int, ...], ...] = ()  # Disjoint sets of nodes; empty where nothing has to move
    entering: bool = True  # Bytes are counted that enter the sets; otherwise those that leave them
    counted: tuple[int, ...] = ()  # Numbers of the demands whose bytes are counted
    needed_bytes: tuple[Fraction, ...] = ()  # Bytes of each of these that cross
    links: tuple[int, ...] = ()  # Links that they may take
    gb_per_s: Fraction = Fraction(0)  # Capacity of these links


def least_time(
    topology: Topology, demands: Sequence[GroupDemand], *, in_network: bool = False
) -> TogetherBound:
    """Least time of several concurrent demands, exactly, with the links that limit it.

    Args:
        demands: What groups exchange, at most eight kinds.
        in_network: Switches may copy and add: only single sets are looked at then.

    Examples:
        Eight pairs of GPUs sum 1 GB each across two boxes with 200 GB/s of NICs, and eight GPUs of a box as much:

        >>> from coppice.topology.presets import preset
        >>> across = np.array([[rank, rank + 8] for rank in range(8)])
        >>> inside = np.arange(16).reshape(2, 8)
        >>> found = least_time(preset("dgx-a100", boxes=2), [
        ...     GroupDemand("dp", "all_reduce", across, [Fraction(10**9)] * 8),
        ...     GroupDemand("tp", "all_reduce", inside, [Fraction(10**9)] * 2)])
        >>> found.seconds, len(found.sets), [found.demands[number].name for number in found.counted]
        (Fraction(1, 25), 1, ['dp'])
    """
    for demand in demands:
        check_demand(topology, demand)
    kept = [demand for demand in demands if demand.members > 1 and any(demand.size_bytes)]
    if len(kept) > _MOST_DEMANDS:
        raise InputError(
            f"expected at most {_MOST_DEMANDS} kinds of groups at once, found {len(kept)}: leave some out."
        )
    best = TogetherBound(topology=topology, demands=tuple(kept), seconds=Fraction(0))
    if not kept:
        return best
    usable = usable_links(topology, kept)
    subsets = [chosen for size in range(1, len(kept) + 1) for chosen in combinations(range(len(kept)), size)]
    found: list[tuple[float, NDArray[np.int64], tuple[int, ...], bool, NDArray[np.int64]]] = []
    for level in (*divisions(topology), *narrowest_cuts(topology, kept)):
        for entering in (True, False):
            alone = [needs_of_sets(topology, demand, level, entering=entering) for demand in kept]
            for chosen in subsets:
                room = _room(topology, level, np.logical_or.reduce(usable[list(chosen)]), entering=entering)
                total = np.sum([alone[number] for number in chosen], axis=0)
                found.append(_most(total, room, level, chosen, np.arange(len(room)), entering=entering))
                if in_network:
                    continue
                for joining in dict.fromkeys((chosen, *((number,) for number in chosen))):
                    part = _joined_sets(topology, level, [kept[number] for number in joining])
                    together = np.sum(
                        [
                            needs_of_components(topology, kept[n], level, part, entering=entering)
                            for n in chosen
                        ],
                        axis=0,
                    )
                    of_part = summed(part, room, len(together))
                    found.append(_most(together, of_part, level, chosen, part, entering=entering))
    top = max(each[0] for each in found)
    for value, level, chosen, entering, numbers in found:
        if value >= top * (1 - 1e-9) and value > 0:
            exact = _exact(best, usable, level, chosen, numbers, entering=entering)
            if exact.seconds > best.seconds:
                best = exact
    return best


def _most(
    needed: NDArray[np.float64],
    room: NDArray[np.float64],
    level: NDArray[np.int64],
    chosen: tuple[int, ...],
    part: NDArray[np.int64],
    *,
    entering: bool,
) -> tuple[float, NDArray[np.int64], tuple[int, ...], bool, NDArray[np.int64]]:
    """The part of sets that takes longest: its time, and the numbers of its sets."""
    with np.errstate(divide="ignore", invalid="ignore"):
        time = np.where(needed > 0, needed / room, 0.0)
    time[~np.isfinite(time)] = 0.0
    worst = int(np.argmax(time))
    return float(time[worst]), level, chosen, entering, np.flatnonzero(part == worst)


def _room(
    topology: Topology, level: NDArray[np.int64], usable: NDArray[np.bool_], *, entering: bool
) -> NDArray[np.float64]:
    """Capacity of usable links into (or out of) each set, in bytes a second."""
    here, there = (topology.dst, topology.src) if entering else (topology.src, topology.dst)
    crossing = usable & (level[here] >= 0) & (level[here] != level[there])
    capacity = topology.capacity[crossing] / topology.denominator * 1e9
    return summed(level[here[crossing]], capacity, int(level.max()) + 1)


def _joined_sets(
    topology: Topology, level: NDArray[np.int64], demands: Sequence[GroupDemand]
) -> NDArray[np.int64]:
    """Sets numbered by what groups of the demands join."""
    part = np.arange(int(level.max()) + 1)
    place = level[topology.rank_nodes]
    while True:
        before = part.copy()
        for demand in demands:
            sets = place[demand.groups]
            inside = np.where(sets >= 0, part[sets], len(part))
            least = np.repeat(inside.min(axis=1), demand.members).reshape(sets.shape)
            kept = sets >= 0
            np.minimum.at(part, sets[kept], least[kept])
        part = part[part]
        if (part == before).all():
            return np.unique(part, return_inverse=True)[1].reshape(-1)


def _exact(
    whole: TogetherBound,
    usable: NDArray[np.bool_],
    level: NDArray[np.int64],
    chosen: tuple[int, ...],
    numbers: NDArray[np.int64],
    *,
    entering: bool,
) -> TogetherBound:
    """The same, counted in integers."""
    topology = whole.topology
    sets = tuple(tuple(np.flatnonzero(level == number).tolist()) for number in numbers.tolist())
    place = np.full(topology.num_nodes, -1, dtype=np.int64)
    for number, nodes in enumerate(sets):
        place[list(nodes)] = number
    here, there = (topology.dst, topology.src) if entering else (topology.src, topology.dst)
    crossing = usable[list(chosen)].any(axis=0) & (place[here] >= 0) & (place[here] != place[there])
    rate = Fraction(int(topology.capacity[crossing].sum()), topology.denominator)
    needed = tuple(
        needed_bytes(whole.demands[number], place[topology.rank_nodes], entering=entering)
        for number in chosen
    )
    counted = [k for k, amount in enumerate(needed) if amount]
    return TogetherBound(
        topology=topology,
        demands=whole.demands,
        seconds=sum(needed, Fraction(0)) / rate / 10**9,
        sets=sets,
        entering=entering,
        counted=tuple(chosen[k] for k in counted),
        needed_bytes=tuple(needed[k] for k in counted),
        links=tuple(np.flatnonzero(crossing).tolist()),
        gb_per_s=rate,
    )
