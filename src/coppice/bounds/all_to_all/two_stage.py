"""All-to-all of unequal blocks between boxes, in two stages: inside boxes, and along rails between them.

A block from a member of one box to a member of another goes over one member of each that have the same place in
their boxes (a rail), so that it takes at most three hops: inside the sending box, along the rail, inside the receiving
one. The native core deals every tile (what one box has for another) to the rails so that all carry the same, and then
takes back what that costs inside boxes where these are the limit (cpp/two_stage/two_stage.h). Loads are whole numbers
and counted exactly; link lengths that are found on the way bound what any routing reaches.

Published ways to deal are here as well, so that all are judged by one model: those of FAST (arXiv 2505.09764) and SABRE
(ICS 2026).
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import inf, log

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.all_to_all.distances import cut_lengths, integer_lengths, length_bound
from coppice.display import Brief
from coppice.errors import UnreachableError
from coppice.rows import offsets
from coppice.topology.model import Topology
from coppice.topology.routing import Router


class Deal(enum.IntEnum):
    """How what one box has for another is dealt to the rails between them."""

    BALANCED = 0  # The same on every rail; blocks prefer the rails of their ends
    KEPT = 1  # The same on every rail; senders keep what they can
    EVEN = 2  # Every block over all rails alike
    TARGET = 3  # Over the rail of the receiver
    DIRECT = 4  # By the direct route; over the rail of the receiver where rails are apart


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Boxes(Brief):
    """Equal boxes of a topology, and the links of the hops of two stages."""

    order: NDArray[np.int64]  # Rank at each position: box by box, members of one rail at one place
    width: int  # Members of a box
    near_start: NDArray[
        np.int64
    ]  # Links of hop (box, member, member): near[near_start[x] : near_start[x + 1]]
    near: NDArray[np.int32]
    far_start: NDArray[np.int64]  # The same of hop (box, box, member) along a rail
    far: NDArray[np.int32]
    cross_start: NDArray[
        np.int64
    ]  # The same of direct routes (position, position); empty where rails are apart
    cross: NDArray[np.int32]

    @property
    def count(self) -> int:
        """Number of boxes."""
        return len(self.order) // self.width


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TwoStageSplit(Brief):
    """Blocks dealt to ways, with exact figures."""

    boxes: Boxes  # Where
    scale: int  # Amounts are in 1 / scale of a unit of demand
    reached: Fraction  # Time per unit of demand of the busiest link, in 1 / (GB/s)
    length: list[int]  # Integer link lengths that prove the best bound found
    bound: Fraction  # What they prove
    source: NDArray[np.int32]  # Sending rank of each part; parts lie by source and target
    target: NDArray[np.int32]  # Receiving rank of each part
    out: NDArray[np.int32]  # Rank that it leaves its box from
    into: NDArray[np.int32]  # Rank that it enters the other box at
    amount: NDArray[np.int64]  # Its size
    load: NDArray[np.int64]  # Load of each link
    sweeps: int  # Sweeps over all blocks

    @property
    def gap(self) -> float:
        """How far it may be from the optimum."""
        return float(self.reached / self.bound) - 1 if self.bound else 0.0


_DIRECT_ROUTES = 512
"""Ranks up to which direct routes are among the ways."""
_MOST_SUM = 2**59


@lru_cache(maxsize=8)
def boxes_with_hops(topology: Topology) -> Boxes | None:
    """The boxes of a topology for two stages; None where there are none, or hops lack a route.

    Boxes are hosts with equally many ranks, two hosts or more.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = boxes_with_hops(preset("dgx-h100", boxes=4))
        >>> found.count, found.width, len(found.cross)
        (4, 8, 0)
        >>> boxes_with_hops(preset("ring", gpus=4)) is None
        True
    """
    host = topology.host[topology.rank_nodes]
    names, sizes = np.unique(host, return_counts=True)
    if len(names) < 2 or int(names[0]) < 0 or len(set(sizes.tolist())) > 1:
        return None
    ranks, width = topology.num_ranks, int(sizes[0])
    count = ranks // width
    order = np.argsort(host, kind="stable").astype(np.int64)
    table = order.reshape(count, width)
    members = np.arange(width)
    box, here, there = (
        column.ravel() for column in np.meshgrid(np.arange(count), members, members, indexing="ij")
    )
    near = _links(topology, table[box, here], table[box, there])
    one, two, rail = (
        column.ravel() for column in np.meshgrid(np.arange(count), np.arange(count), members, indexing="ij")
    )
    far = _links(topology, table[one, rail], table[two, rail])
    if near is None or far is None:
        return None
    cross = None
    if ranks <= _DIRECT_ROUTES:
        sender, receiver = np.repeat(order, ranks), np.tile(order, ranks)
        cross = _links(topology, sender, np.where(host[sender] == host[receiver], sender, receiver))
    if cross is None:
        cross = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32))
    return Boxes(
        order=order,
        width=width,
        near_start=near[0],
        near=near[1],
        far_start=far[0],
        far=far[1],
        cross_start=cross[0],
        cross=cross[1],
    )


def _links(
    topology: Topology, src: NDArray[np.int64], dst: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
    """Links of default routes (start, link), none where a rank stays; None where a route is missing."""
    moves = np.flatnonzero(src != dst)
    by_receiver = moves[np.argsort(dst[moves], kind="stable")]
    try:
        start, nodes = Router(topology).paths(
            src[by_receiver], dst[by_receiver], np.zeros(len(by_receiver), dtype=np.int64)
        )
    except UnreachableError:
        return None
    first = np.ones(len(nodes), dtype=np.bool_)
    first[start[1:] - 1] = False  # the last node of a path has no link behind it
    at = np.flatnonzero(first)
    key = nodes[at].astype(np.int64) * topology.num_nodes + nodes[at + 1]
    known = topology.src.astype(np.int64) * topology.num_nodes + topology.dst
    by_key = np.argsort(known)
    link = by_key[np.searchsorted(known[by_key], key)].astype(np.int32)
    size = np.diff(start) - 1
    sizes = np.zeros(len(src), dtype=np.int64)
    sizes[by_receiver] = size
    found_start = offsets(sizes)
    rows = (
        np.repeat(found_start[by_receiver], size)
        + np.arange(int(size.sum()))
        - np.repeat(offsets(size)[:-1], size)
    )
    found = np.zeros(len(link), dtype=np.int32)
    found[rows] = link
    return found_start, found


_GOOD_ENOUGH = 1e-4
_SWEEPS = 400
_SWEEPS_PER_LOOK = 4
_GENTLE = 30.0
_STEEPEST = 50_000.0


class _Best:
    """The best state that a native split has been in."""

    def __init__(self, native: _core.TwoStage) -> None:
        self.native = native
        self.worst = inf
        self.keep()

    def keep(self) -> None:
        """Keep the present state, if it is better."""
        if self.native.worst() < self.worst:
            self.worst, self.load, self.parts = self.native.worst(), self.native.loads(), self.native.parts()


def _dealt(native: _core.TwoStage, deal: Deal | None, bound: float, *, apart: bool) -> _Best:
    """Deal as told, or in the best way: of those that reach the bound the one of fewest hops."""
    if deal is not None:
        native.fill(deal)
        return _Best(native)
    direct = () if apart else (Deal.DIRECT,)
    best: _Best | None = None
    chosen = Deal.BALANCED
    for each in (*direct, Deal.TARGET, Deal.BALANCED, Deal.KEPT, Deal.EVEN):
        native.fill(each)
        if best is None:
            best, chosen = _Best(native), each
        elif native.worst() < best.worst:
            chosen = each
            best.keep()
        if best.worst <= bound:
            return best
    native.fill(chosen)
    assert best is not None
    return best


def two_stages(
    topology: Topology,
    demand: NDArray[np.int64],
    *,
    deal: Deal | None = None,
    time_limit: float = 10.0,
) -> TwoStageSplit | None:
    """Deal ``demand`` (rank to rank) to rails; None where the topology has no equal boxes.

    Args:
        demand: Integers >= 0 with a zero diagonal; the sum stays below 2**59.
        deal: Only this way to deal, and no sweeps; None: the one of fewest hops that reaches the bound, else the
            best with sweeps.
        time_limit: Seconds for sweeps, roughly.

    Examples:
        Two boxes whose first GPUs have all there is to send: all NICs share it.

        >>> from coppice.topology.presets import preset
        >>> demand = np.zeros((16, 16), dtype=np.int64)
        >>> demand[0, 8] = 400
        >>> found = two_stages(preset("dgx-h100", boxes=2), demand)
        >>> found.reached, found.bound
        (Fraction(1, 1), Fraction(1, 1))
    """
    boxes = boxes_with_hops(topology)
    total = int(demand.sum())
    if boxes is None or not total or total >= _MOST_SUM:
        return None
    # A multiple of the width, where there is room for it: equal parts are exactly equal then.
    spare = _MOST_SUM // (total * boxes.width)
    scale = boxes.width * 2 ** min(20, spare.bit_length() - 1) if spare else 1
    native = _core.TwoStage(
        boxes.count,
        boxes.width,
        boxes.near_start,
        boxes.near,
        boxes.far_start,
        boxes.far,
        boxes.cross_start,
        boxes.cross,
        topology.capacity,
        demand[np.ix_(boxes.order, boxes.order)].ravel(),
        scale,
    )
    proved, length = cut_lengths(topology, demand)
    bound = float(proved) / topology.denominator * scale
    kept = _dealt(native, deal, bound, apart=not len(boxes.cross))
    deadline, done, steepness = time.monotonic() + time_limit, 0, _GENTLE
    best: NDArray[np.float64] | None = None
    while (
        deal is None
        and done < _SWEEPS
        and native.worst() > bound * (1 + _GOOD_ENOUGH)
        and time.monotonic() < deadline
    ):
        native.sweep(steepness)
        kept.keep()
        done += 1
        if done % _SWEEPS_PER_LOOK:
            continue
        lengths = native.lengths(steepness)
        found = float(length_bound(topology, demand, integer_lengths(lengths))) / topology.denominator * scale
        if found > bound:
            bound, best = found, lengths
        gap = native.worst() / bound - 1
        steepness = min(
            max(steepness, log(topology.num_links) / (2 * max(gap, 1e-9))), 2 * steepness, _STEEPEST
        )
    if best is not None:
        integers = integer_lengths(best)
        proved, length = max((proved, length), (length_bound(topology, demand, integers), integers))
    load, (source, target, way, amount) = kept.load, kept.parts
    crossing = source // boxes.width != target // boxes.width
    direct, first = way >= boxes.width, source // boxes.width * boxes.width
    member = np.minimum(way, boxes.width - 1)
    out = np.where(direct, source, first + member)
    into = np.where(direct, target, np.where(crossing, target // boxes.width * boxes.width + member, out))
    # Inside a box, out and back again: through the same members of the next box, or back from the first of them.
    around, away = direct & ~crossing, (first + boxes.width) % len(boxes.order) - first
    out = np.where(around, source + away, out)
    into = np.where(around, np.where(way > boxes.width, source, target) + away, into)
    rank = boxes.order.astype(np.int32)
    worst = max(
        (
            Fraction(load_, room)
            for load_, room in zip(load.tolist(), topology.capacity.tolist(), strict=True)
        ),
    )
    return TwoStageSplit(
        boxes=boxes,
        scale=scale,
        reached=worst * topology.denominator / scale,
        length=length,
        bound=proved,
        source=rank[source],
        target=rank[target],
        out=rank[out],
        into=rank[into],
        amount=amount,
        load=load,
        sweeps=done,
    )
