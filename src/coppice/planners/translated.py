"""All-to-alls of networks on which all ranks do alike: the blocks of one rank are scheduled, and all others follow.

On a torus or a hypercube every rank can be moved to every other one, in any order of the moves: what rank 0 has for a
rank takes steps along its links, which may come in any order, and no two blocks of all ranks ever meet on a link if no
two of rank 0 take the same kind of step at a time. So the whole is a job shop with a machine for each link of one rank,
whose operations may be done in any order: an *open shop*. Its jobs are handed out by list scheduling, those with most
steps left first, and rows are held back until their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.flow import schedule_of_paths
from coppice.planners.ordering import held_back, reordered
from coppice.schedule.schedule import Schedule
from coppice.topology.symmetry import find_symmetry

_MOST_WAYS = 64
"""Numbers of steps of each kind that are kept for a block."""
_PASSES = 3
_BY_LOAD = (0.0, 1.0)
"""Weights of what a link has left to carry, beside the steps that a block has left."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AlikeMoves:
    """How blocks of rank 0 can travel: a block needs so many steps of each kind, in any order."""

    problem: Problem
    moved: NDArray[np.int64]  # `moved[rank, kind]`: the rank that a step of a kind leads to
    rate: tuple[float, ...]  # GB/s of the link of each kind
    steps: tuple[tuple[int, ...], ...]  # Of each kind, for the block of each other rank
    images: NDArray[np.int64]  # `images[rank, other]`: what a rank is to the other as that one is to rank 0


def moves_of(problem: Problem) -> AlikeMoves | None:
    """The moves of a network; None where its ranks are not all alike, moves do not commute, or there are switches.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = moves_of(Problem(preset("torus", dims=(3, 3)), "all_to_all"))
        >>> [sum(each) for each in found.steps]
        [1, 1, 1, 2, 2, 1, 2, 2]
    """
    topology = problem.topology
    ranks = topology.num_ranks
    uniform = problem.collective is Collective.ALL_TO_ALL and problem.demands is None
    if not uniform or topology.num_nodes != ranks or ranks < 3:
        return None
    symmetry = find_symmetry(topology)
    if symmetry.order != ranks:
        return None
    nodes, rank = topology.rank_nodes, topology.rank
    image = rank[symmetry.image(nodes[:, None], np.arange(ranks))].T.astype(np.int64)  # element, rank
    images = np.empty_like(image)
    images[image[:, 0]] = image
    out = np.flatnonzero(topology.src == nodes[0])
    moved = images[:, rank[topology.dst[out]]]
    for one in range(len(out)):
        for other in range(one):
            if not np.array_equal(moved[moved[:, one], other], moved[moved[:, other], one]):
                return None
    rate = tuple((topology.capacity[out] / topology.denominator).tolist())
    ways = _ways(moved)
    if ways is None:
        return None
    return AlikeMoves(problem=problem, moved=moved, rate=rate, steps=_balanced(ways, rate), images=images)


def _ways(moved: NDArray[np.int64]) -> list[list[tuple[int, ...]]] | None:
    """Fewest steps of each kind from rank 0 to each other rank, in all combinations; None where one is out of reach."""
    ranks, kinds = moved.shape
    found: list[dict[tuple[int, ...], None]] = [{} for _ in range(ranks)]
    found[0][(0,) * kinds] = None
    front = [0]
    while front:
        reached: dict[int, dict[tuple[int, ...], None]] = {}
        for rank in front:
            for way in found[rank]:
                for kind in range(kinds):
                    to = int(moved[rank, kind])
                    if not found[to] and len(reached.setdefault(to, {})) < _MOST_WAYS:
                        reached[to][(*way[:kind], way[kind] + 1, *way[kind + 1 :])] = None
        for to, ways in reached.items():
            found[to] = ways
        front = sorted(reached)
    return [list(each) for each in found[1:]] if all(found) else None


def _balanced(
    ways: Sequence[Sequence[tuple[int, ...]]], rate: Sequence[float]
) -> tuple[tuple[int, ...], ...]:
    """A way for each block, so that links have alike to carry."""
    weight = 1 / np.array(rate)
    load = np.zeros(len(rate))
    chosen: list[tuple[int, ...] | None] = [None] * len(ways)
    for _ in range(_PASSES):
        for block, each in enumerate(ways):
            load -= np.array(chosen[block] or 0) * weight
            chosen[block] = min(each, key=lambda way: float(((load + np.array(way) * weight) ** 4).sum()))
            load += np.array(chosen[block]) * weight
    return tuple(each for each in chosen if each is not None)


def translated(moves: AlikeMoves, block_us: Sequence[float], message_us: float) -> Schedule:
    """The blocks of all ranks, each step at its time.

    Args:
        block_us: What a block takes on a link of each kind.
        message_us: What each message takes beside.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found = translated(moves_of(Problem(preset("ring", gpus=4), "all_to_all")), [1.0, 1.0], 1.0)
        >>> list(zip(found.src[::4].tolist(), found.dst[::4].tolist()))
        [(0, 1), (2, 3), (0, 1), (1, 2)]
    """
    steps = min(
        (_open_shop(moves.steps, block_us, message_us, by_load) for by_load in _BY_LOAD),
        key=lambda each: max(row[0] + block_us[row[2]] for row in each),
    )
    problem, ranks = moves.problem, moves.problem.topology.num_ranks
    nodes = problem.topology.rank_nodes
    paths: list[list[int]] = [[0] for _ in moves.steps]
    begin: dict[tuple[int, int], tuple[float, float]] = {}
    for begin_us, block, kind in steps:
        begin[block, len(paths[block]) - 1] = begin_us, begin_us + block_us[kind] + message_us
        paths[block].append(int(moves.moved[paths[block][-1], kind]))
    chunks = sorted(
        (int(rank * ranks + moves.images[rank, block + 1]), block, rank)
        for rank in range(ranks)
        for block in range(ranks - 1)
    )
    made = schedule_of_paths(
        problem,
        [
            (slot, 1, tuple(int(nodes[moves.images[rank, stop]]) for stop in paths[block]))
            for slot, block, rank in chunks
        ],
    )
    hop = np.zeros(made.num_transfers, dtype=np.int64)
    seen = [0] * made.num_chunks
    for row, chunk in enumerate(made.chunk.tolist()):
        hop[row] = seen[chunk]
        seen[chunk] += 1
    times = np.array(
        [begin[chunks[chunk][1], each] for chunk, each in zip(made.chunk.tolist(), hop.tolist(), strict=True)]
    )
    order = np.argsort(times[:, 0], kind="stable")
    return held_back(reordered(made, order), times[order, 0], times[order, 1])


def _open_shop(
    jobs: Sequence[Sequence[int]], block_us: Sequence[float], message_us: float, by_load: float
) -> list[tuple[float, int, int]]:
    """Begin, block and kind of each step, by list scheduling."""
    left = [list(each) for each in jobs]
    total = [sum(each) for each in jobs]
    kinds = range(len(block_us))
    load = [sum(each[kind] for each in jobs) * block_us[kind] for kind in kinds]
    most = max(load) or 1.0
    free_us = [0.0 for _ in kinds]
    waiting = set(range(len(jobs)))
    events = [(0.0, -1)]
    heapify(events)
    rows: list[tuple[float, int, int]] = []

    def urgency(block: int, kind: int) -> tuple[float, int, int]:
        spread = sum(1 for each in left[block] if each)
        more = load[kind] / most * left[block][kind] + 1 / spread
        return total[block] + by_load * more, -block, -kind

    while events:
        now_us = events[0][0]
        while events and events[0][0] <= now_us:
            _, block = heappop(events)
            if block >= 0:
                waiting.add(block)
        while True:
            may = [
                (urgency(block, kind), block, kind)
                for kind in kinds
                if free_us[kind] <= now_us
                for block in waiting
                if left[block][kind]
            ]
            if not may:
                break
            _, block, kind = max(may)
            rows.append((now_us, block, kind))
            waiting.discard(block)
            left[block][kind] -= 1
            total[block] -= 1
            load[kind] -= block_us[kind]
            free_us[kind] = now_us + block_us[kind]
            heappush(events, (free_us[kind], -1))
            if total[block]:
                heappush(events, (free_us[kind] + message_us, block))
    return rows
