"""All-to-alls on a torus of any size, with a message for each link and step: blocks go dimension by dimension.

In a step a rank sends all blocks that go the same way as one message. A block crosses each dimension the shorter way
round, half of the blocks either way where both are as short. What keeps the links of the longest dimension busy all the
time is the order of dimensions, of which different blocks take different ones, as in the multiphase exchanges of
Bruck, Ho, Kipnis, Upfal and Weathersbee (IEEE Trans. Parallel Distrib. Syst. 8, 1997):

* Where the longest dimension takes as many hops as all others together, half of the blocks cross it first and half
  last, so that it is crossed in every step.
* Otherwise phases are as long as that dimension, and in each phase an equal part of the blocks crosses each dimension.

In both a step takes as long as the links of the longest dimension carry blocks in it: hop j of a dimension of n ranks
is taken by a share 1/2 - (j - 1/2) / n of its blocks either way, which is largest where n is. So links of equal rates
take the least time, but for parts that do not come out even.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry, find_symmetry


def torus_exchange(problem: Problem) -> Schedule | None:
    """An all-to-all of equal blocks on a torus; None on other networks.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = torus_exchange(Problem(preset("torus", dims=(4, 4, 8)), "all_to_all"))
        >>> found.num_chunks == 128 * 127, int(found.step.max()) + 1
        (True, 8)
    """
    topology = problem.topology
    if problem.collective is not Collective.ALL_TO_ALL or problem.demands is not None:
        return None
    symmetry = find_symmetry(topology)
    if not _is_torus(topology, symmetry):
        return None
    ranks = topology.num_ranks
    element = np.arange(ranks, dtype=np.int64)
    rank_of = topology.rank[symmetry.table[0]].astype(np.int64)
    block, step, start, end = _hops(symmetry)
    order = np.lexsort((block, step))
    block, step, start, end = block[order], step[order], start[order], end[order]

    def every(moved: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ranks that elements bring each rank to: by row and rank."""
        found: NDArray[np.int64] = rank_of[symmetry.product(element[None, :], moved[:, None])]
        return found

    sender, receiver = every(np.zeros(1, dtype=np.int64))[0], every(element[1:])
    slot = (sender[None, :] * ranks + receiver).ravel()
    number = np.full(ranks * ranks, -1, dtype=np.int32)
    number[np.sort(slot)] = np.arange(len(slot), dtype=np.int32)
    chunk = number[slot].reshape(receiver.shape)[block - 1].ravel()
    src, dst = every(start).ravel().astype(np.int32), every(end).ravel().astype(np.int32)
    link = np.full((ranks, ranks), -1, dtype=np.int32)
    link[topology.rank[topology.src], topology.rank[topology.dst]] = np.arange(topology.num_links)
    rows = len(src)
    return Schedule(
        topology=topology,
        collective=problem.collective,
        root=-1,
        slot_weight=np.ones(ranks * ranks, dtype=np.int64),
        chunk_slot=np.sort(slot).astype(np.int32),
        chunk_share=np.ones(len(slot), dtype=np.int64),
        src=src,
        dst=dst,
        chunk=chunk,
        op=np.full(rows, Op.COPY, dtype=np.int8),
        path=link[src, dst],
        step=np.repeat(step, ranks).astype(np.int32),
        after_start=np.zeros(rows + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=2 * np.arange(topology.num_links + 1, dtype=np.int64),
        path_nodes=np.stack([topology.src, topology.dst], axis=1).reshape(-1),
    )


def _digits(elements: NDArray[np.int64], orders: tuple[int, ...]) -> NDArray[np.int64]:
    """How far elements go along each dimension."""
    found: NDArray[np.int64] = elements[:, None] // np.cumprod((1, *orders[:-1])) % np.array(orders)
    return found


def _is_torus(topology: Topology, symmetry: Symmetry) -> bool:
    """Whether each rank has links to the next ones of each cyclic factor, and no others."""
    if topology.num_nodes != topology.num_ranks or symmetry.order != topology.num_ranks:
        return False
    orders = np.array(symmetry.orders)
    place = _digits(symmetry.node_element, symmetry.orders)
    moved = (place[topology.dst] - place[topology.src]) % orders
    unit = np.eye(len(orders), dtype=np.int64)
    wanted = np.unique(np.concatenate([unit % orders, -unit % orders]), axis=0)
    found = np.unique(moved, axis=0)
    return (
        len(orders) > 0 and np.array_equal(found, wanted) and topology.num_links == len(wanted) * len(place)
    )


def _hops(symmetry: Symmetry) -> tuple[NDArray[np.int64], ...]:
    """Block, step and ends of each hop of the blocks of the first rank: blocks and ends are elements."""
    orders = symmetry.orders
    blocks = np.arange(1, symmetry.order, dtype=np.int64)
    far = _digits(blocks, orders)
    total = far.sum(axis=1)
    half, size = [n // 2 for n in orders], np.array(orders)
    orderings = _orderings(half)
    chosen = orderings[total % len(orderings)]  # first step of each dimension
    backward = (2 * far > size) | ((2 * far == size) & (total // len(orderings) % 2 == 1)[:, None])
    count = np.where(backward, size - far, far)
    radix = np.cumprod((1, *orders[:-1]))
    found: list[tuple[NDArray[np.int64], ...]] = []
    at = np.zeros(len(blocks), dtype=np.int64)
    for hop in range(int(chosen.max()) + max(half)):
        before = at
        for dimension, n in enumerate(orders):
            number = hop - chosen[:, dimension]
            goes = (number >= 0) & (number < count[:, dimension])
            step = np.where(backward[:, dimension], n - 1, 1) * radix[dimension]
            at = np.where(goes, symmetry.product(at, step), at)
        moved = np.flatnonzero(at != before)
        found.append((blocks[moved], np.full(len(moved), hop), before[moved], at[moved]))
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def _orderings(half: list[int]) -> NDArray[np.int64]:
    """In which step each dimension is crossed first, for each part of the blocks.

    Args:
        half: Hops of each dimension at most.
    """
    count, longest = len(half), int(np.argmax(half))
    others = [each for each in range(count) if each != longest]
    if count == 1:
        return np.zeros((1, 1), dtype=np.int64)
    found: list[list[int]] = []
    if half[longest] >= len(others) * max(half[each] for each in others):
        phase = half[longest] // len(others)
        for first in (True, False):
            for turn in range(len(others)):
                row = [0] * count
                row[longest] = 0 if first else half[longest]
                for place, each in enumerate(others):
                    row[each] = (half[longest] if first else 0) + (place + turn) % len(others) * phase
                found.append(row)
    else:
        found = [[(each + turn) % count * half[longest] for each in range(count)] for turn in range(count)]
    return np.array(found, dtype=np.int64)
