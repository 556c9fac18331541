"""Exact load of every link under a plan.

Loads are integers in a unit of the plan's own (one unit of tree weight, or a common divisor of all chunks),
and ``shard`` says how many of those units one shard of the collective is, so that times come out per shard,
as bounds state them. Every load is a plain Python integer: nothing is rounded and nothing overflows.

Grouped sums of integers without overflow. 64-bit columns are added in two 32-bit halves, so that no partial sum of
fewer than 2^31 rows can pass 2^63; the halves meet as Python integers, which know no limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError
from coppice.schedule.columns import require_well_formed
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.schedule import Schedule, hops_of, routed
from coppice.schedule.walk import ForestWalk, walk
from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry

_HALF = 32
_MASK = (1 << _HALF) - 1
_INT64_MAX = 2**63 - 1


def grouped_sums(
    group: NDArray[np.integer], values: NDArray[np.int64] | Sequence[int], size: int
) -> list[int]:
    """``sums[g]`` = exact sum of ``values[i]`` over all rows i with ``group[i] == g``.

    Args:
        group: Group of each row, 0 .. size - 1.
        values: Non-negative integers, one a row; a list may hold integers of any size.

    Examples:
        >>> grouped_sums(np.array([0, 1, 0]), np.array([2**62, 5, 2**62]), 2)
        [9223372036854775808, 5]
    """
    if not isinstance(values, np.ndarray):
        if max(values, default=0) > _INT64_MAX:
            sums = [0] * size
            for row, value in zip(group.tolist(), values, strict=True):
                sums[row] += value
            return sums
        values = np.array(values, dtype=np.int64)
    total = np.zeros(size, dtype=np.int64)
    if not len(values):
        return [0] * size
    if int(values.max()) * len(values) <= _INT64_MAX:
        np.add.at(total, group, values)
        return [int(value) for value in total.tolist()]
    high = np.zeros(size, dtype=np.int64)
    np.add.at(total, group, values & _MASK)
    np.add.at(high, group, values >> _HALF)
    return [low + (top << _HALF) for low, top in zip(total.tolist(), high.tolist(), strict=True)]


def exact_total(values: NDArray[np.integer]) -> int:
    """Exact sum of a column of non-negative 64-bit integers.

    Examples:
        >>> exact_total(np.array([2**62, 2**62, 1]))
        9223372036854775809
    """
    wide = values.astype(np.int64, copy=False)
    return int((wide & _MASK).sum()) + (int((wide >> _HALF).sum()) << _HALF)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LinkLoads(Brief):
    """Exact load of every link."""

    topology: Topology  # Whose links they are
    load: tuple[int, ...]  # `load[e]` = units that link e carries
    shard: Fraction  # Units in one shard of the collective (0 where no data moves)

    @cached_property
    def worst_link(self) -> int:
        """The bottleneck link (the first of equals), or -1 where none is used."""
        worst, worst_load, worst_capacity = -1, 0, 1
        for link, (load, capacity) in enumerate(zip(self.load, self.topology.capacity.tolist(), strict=True)):
            if load * worst_capacity > worst_load * capacity:
                worst, worst_load, worst_capacity = link, load, capacity
        return worst

    def time_per_shard(self, link: int) -> Fraction:
        """Time that ``link`` is busy, per unit of shard: 1 / (GB/s)."""
        if not self.load[link]:
            return Fraction(0)
        busy = Fraction(self.load[link] * self.topology.denominator, int(self.topology.capacity[link]))
        return busy / self.shard

    @property
    def inv_rate(self) -> Fraction:
        """Time of the bottleneck link per unit of shard: the plan's exact bandwidth time."""
        return self.time_per_shard(self.worst_link) if self.worst_link >= 0 else Fraction(0)

    def utilisation(self, link: int, inv_rate: Fraction) -> Fraction:
        """Utilisation of ``link`` if the plan takes ``inv_rate`` per shard."""
        busy = self.time_per_shard(link)
        return busy / inv_rate if inv_rate else Fraction(0)


def forest_loads(
    forest: Forest,
    weights: tuple[int, ...] | None = None,  # Relative shard sizes of the ranks, where they are not equal
    walked: ForestWalk | None = None,  # What a walk of the forest found, where there was one
) -> LinkLoads:
    """Load of every link under a forest, in units of tree weight; both phases of an all-reduce add up."""
    walked = walk(forest) if walked is None else walked
    load = _loads_by_path(forest) if walked is None else tuple(walked.load.tolist())
    if forest.symmetry is not None:
        load = _with_images(load, forest.symmetry)
    units = max(forest.phase_weight(phase) for phase in Phase)
    shard = Fraction(units, forest.collective.shards(forest.topology.num_ranks, weights))
    return LinkLoads(topology=forest.topology, load=load, shard=shard)


def _loads_by_path(forest: Forest) -> tuple[int, ...]:
    """What the listed trees put on each link, where a walk of the native core does not pass."""
    require_well_formed(forest)
    hops = hops_of(forest.topology, forest.path_start, forest.path_nodes)
    edge_weight = np.repeat(forest.tree_weight, np.diff(forest.tree_start))
    path_weight = grouped_sums(forest.edge_path, edge_weight, hops.num_paths)
    return _spread(forest.topology, path_weight, hops.path, hops.link)


def _with_images(load: tuple[int, ...], symmetry: Symmetry) -> tuple[int, ...]:
    """Load of every link when all images of the trees are there, too.

    A link gets what the trees put on any link of its orbit, once for each element that maps that link to it.
    """
    orbit = symmetry.link_orbit.tolist()
    total = [0] * symmetry.num_link_orbits
    for link, units in enumerate(load):
        total[orbit[link]] += units
    repeats = (symmetry.order // symmetry.link_orbit_size).tolist()
    return tuple(total[orbit[link]] * repeats[link] for link in range(len(load)))


def schedule_loads(
    schedule: Schedule,  # Chunks and transfers; those that name no path take the default route
    weights: tuple[int, ...] | None = None,  # Relative shard sizes of the ranks, where they are not equal
    # Relative block sizes of an all-to-all, where they are not equal
    demands: tuple[tuple[int, ...], ...] | None = None,
) -> LinkLoads:
    """Load of every link under a schedule, summed over all steps."""
    require_well_formed(schedule)
    schedule = routed(schedule)
    sizes, unit = chunk_sizes(schedule)
    hops = hops_of(schedule.topology, schedule.path_start, schedule.path_nodes)
    sent = [sizes[chunk] for chunk in schedule.chunk.tolist()]
    path_size = grouped_sums(schedule.path, sent, hops.num_paths)
    load = _spread(schedule.topology, path_size, hops.path, hops.link)
    return LinkLoads(
        topology=schedule.topology, load=load, shard=unit * _shard_weight(schedule, weights, demands)
    )


def body_loads(body: Forest | Schedule, problem: Problem) -> LinkLoads:
    """Exact load of every link under the body of a plan.

    Args:
        problem: What it performs, with the sizes of the shards.
    """
    if isinstance(body, Forest):
        return forest_loads(body, problem.weights)
    return schedule_loads(body, problem.weights, problem.demands)


def chunk_sizes(schedule: Schedule) -> tuple[list[int], int]:
    """Size of each chunk as an integer, and the size of one unit of slot weight in the same unit.

    Examples:
        A slot cut in the ratio 1 : 2 beside a whole one has sizes 1, 2 and 3, and a unit of slot weight is 3.
    """
    slots = len(schedule.slot_weight)
    totals = grouped_sums(schedule.chunk_slot, schedule.chunk_share, slots)
    weight: list[int] = schedule.slot_weight.tolist()
    # In lowest terms: shares that add up to their slot's weight in one unit do not multiply up.
    shared = [gcd(own, total) or 1 for own, total in zip(weight, totals, strict=True)]
    unit = lcm(*{total // common for total, common in zip(totals, shared, strict=True) if total})
    scale = [
        own // common * (unit // (total // common)) if total else 0
        for own, total, common in zip(weight, totals, shared, strict=True)
    ]
    shares = schedule.chunk_share.tolist()
    return [
        share * scale[slot] for slot, share in zip(schedule.chunk_slot.tolist(), shares, strict=True)
    ], unit


def _shard_weight(
    schedule: Schedule, weights: tuple[int, ...] | None, demands: tuple[tuple[int, ...], ...] | None
) -> Fraction:
    """Slot weight of one shard, which is the unit that bounds are stated in."""
    ranks = schedule.topology.num_ranks
    slot_weight = schedule.slot_weight
    if schedule.collective is Collective.ALL_TO_ALL:
        table = slot_weight.reshape(ranks, ranks)
        moved = exact_total(table.ravel()) - exact_total(np.diagonal(table))
        if demands is None:
            return Fraction(moved, max(1, ranks * (ranks - 1)))
        asked = sum(size for i, row in enumerate(demands) for j, size in enumerate(row) if i != j)
        return Fraction(moved, max(1, asked))
    if schedule.collective in (Collective.GATHER, Collective.SCATTER):
        moved = exact_total(slot_weight) - int(slot_weight[schedule.root])
        return Fraction(moved, max(1, ranks - 1))
    return Fraction(exact_total(slot_weight), schedule.collective.shards(ranks, weights))


def _spread(
    topology: Topology, path_load: list[int], hop_path: np.ndarray, hop_link: np.ndarray
) -> tuple[int, ...]:
    """Load of each link from the load of each path."""
    missing = np.flatnonzero(hop_link < 0)
    if len(missing):
        path = int(hop_path[missing[0]])
        raise InputError(
            f"expected paths along links of the topology, found that path {path} leaves them: verify it."
        )
    if max(path_load, default=0) < 2**63:
        return tuple(
            grouped_sums(hop_link, np.array(path_load, dtype=np.int64)[hop_path], topology.num_links)
        )
    load = [path_load[path] for path in hop_path.tolist()]
    return tuple(grouped_sums(hop_link, load, topology.num_links))
