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

Some demands may be known to be done by a time T' of their own, as those that go first are. Links that only they can
take carry no more than their rate times T', so that what is left of all bytes has to take the other links: that over
the capacity of these is a time that nothing beats.
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
from coppice.bounds.together.priced import PricedProof
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
    links: tuple[int, ...] = ()  # Links that they may take until the time that is bounded
    gb_per_s: Fraction = Fraction(0)  # Capacity of these links
    until: tuple[
        Fraction | None, ...
    ] = ()  # Seconds in which a demand is done in any case; empty: of none known
    spared_bytes: Fraction = Fraction(0)  # What links carry at most that serve such demands alone
    priced: PricedProof | None = None  # Proves the time instead of the sets
    for_schedules: bool = True  # Of all schedules; otherwise of those whose all-reduces are made of trees


def least_time(
    topology: Topology,
    demands: Sequence[GroupDemand],
    *,
    in_network: bool = False,
    until: Sequence[Fraction | None] = (),
) -> TogetherBound:
    """Least time of several concurrent demands, exactly, with the links that limit it.

    Args:
        demands: What groups exchange, at most eight kinds.
        in_network: Switches may copy and add: only single sets are looked at then.
        until: Seconds in which each demand is done in any case, None for those whose end is bounded; empty: all None.

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
    held = list(until) or [None] * len(demands)
    moving = [demand.members > 1 and any(demand.size_bytes) for demand in demands]
    kept = [demand for demand, moves in zip(demands, moving, strict=True) if moves]
    held = [each for each, moves in zip(held, moving, strict=True) if moves]
    if len(kept) > _MOST_DEMANDS:
        raise InputError(
            f"expected at most {_MOST_DEMANDS} kinds of groups at once, found {len(kept)}: leave some out."
        )
    best = TogetherBound(topology=topology, demands=tuple(kept), seconds=Fraction(0), until=tuple(held))
    if None not in held:
        return best
    usable = usable_links(topology, kept)
    subsets = [
        chosen
        for size in range(1, len(kept) + 1)
        for chosen in combinations(range(len(kept)), size)
        if any(held[number] is None for number in chosen)
    ]
    carried = [_carried(topology, usable, held, chosen) for chosen in subsets]
    found: list[tuple[float, NDArray[np.int64], tuple[int, ...], bool, NDArray[np.int64]]] = []
    for level in (*divisions(topology), *narrowest_cuts(topology, kept)):
        joined: dict[tuple[int, ...], NDArray[np.int64]] = {}  # Sets by what the groups of some demands join
        for entering in (True, False):
            alone = [needs_of_sets(topology, demand, level, entering=entering) for demand in kept]
            needs: dict[tuple[int, tuple[int, ...]], NDArray[np.float64]] = {}
            for chosen, (rate, spare) in zip(subsets, carried, strict=True):
                room = _crossing(topology, level, rate, entering=entering)
                spared = _crossing(topology, level, spare, entering=entering)
                total = np.sum([alone[number] for number in chosen], axis=0) - spared
                found.append(_most(total, room, level, chosen, np.arange(len(room)), entering=entering))
                if in_network or len(room) == 1:  # a single set is joined with nothing
                    continue
                for joining in dict.fromkeys((chosen, *((number,) for number in chosen))):
                    if joining not in joined:
                        joined[joining] = _joined_sets(topology, level, [kept[number] for number in joining])
                    part = joined[joining]
                    for number in chosen:
                        if (number, joining) not in needs:
                            needs[number, joining] = needs_of_components(
                                topology, kept[number], level, part, entering=entering
                            )
                    together = np.sum([needs[number, joining] for number in chosen], axis=0)
                    of_part = summed(part, room, len(together))
                    together = together - summed(part, spared, len(together))
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


def _carried(
    topology: Topology,
    usable: NDArray[np.bool_],
    held: Sequence[Fraction | None],
    chosen: tuple[int, ...],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes a second of links that serve until the end, and bytes of those that serve only what is done before."""
    rate = topology.capacity / topology.denominator * 1e9
    open_end, last = _ends(usable, held, chosen)
    seconds = np.array([0.0 if each is None else float(each) for each in held])
    return np.where(open_end, rate, 0.0), np.where(last >= 0, rate * seconds[last], 0.0)


def _ends(
    usable: NDArray[np.bool_], held: Sequence[Fraction | None], chosen: tuple[int, ...]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Links that serve a chosen demand until the end; of others the number of the last that they serve, or -1."""
    open_end = np.logical_or.reduce(usable[[number for number in chosen if held[number] is None]])
    last = np.full(len(open_end), -1, dtype=np.int64)
    known = [(each, number) for number, each in enumerate(held) if each is not None and number in chosen]
    for _, number in sorted(known):
        last[usable[number] & ~open_end] = number
    return open_end, last


def _crossing(
    topology: Topology, level: NDArray[np.int64], weight: NDArray[np.float64], *, entering: bool
) -> NDArray[np.float64]:
    """Weights of the links into (or out of) each set."""
    here, there = (topology.dst, topology.src) if entering else (topology.src, topology.dst)
    crossing = (weight > 0) & (level[here] >= 0) & (level[here] != level[there])
    return summed(level[here[crossing]], weight[crossing], int(level.max()) + 1)


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
    open_end, last = _ends(usable, whole.until, chosen)
    across = (place[here] >= 0) & (place[here] != place[there])
    crossing = open_end & across
    spared = sum(
        (
            Fraction(int(topology.capacity[link]), topology.denominator) * (whole.until[last[link]] or 0)
            for link in np.flatnonzero(across & (last >= 0)).tolist()
        ),
        Fraction(0),
    )
    rate = Fraction(int(topology.capacity[crossing].sum()), topology.denominator)
    needed = tuple(
        needed_bytes(whole.demands[number], place[topology.rank_nodes], entering=entering)
        for number in chosen
    )
    counted = [k for k, amount in enumerate(needed) if amount]
    return TogetherBound(
        topology=topology,
        demands=whole.demands,
        seconds=(sum(needed, Fraction(0)) / 10**9 - spared) / rate,
        sets=sets,
        entering=entering,
        counted=tuple(chosen[k] for k in counted),
        needed_bytes=tuple(needed[k] for k in counted),
        links=tuple(np.flatnonzero(crossing).tolist()),
        gb_per_s=rate,
        until=whole.until,
        spared_bytes=spared * 10**9,
    )
