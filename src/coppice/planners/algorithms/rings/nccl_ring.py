"""NCCL's rings: one for each channel, each with a part of every block.

The rings visit box after box and enter and leave each box at other ranks than the other rings do, so that every NIC
and rail carries the same. Without boxes, channels alternate between the order of the ranks and its reverse. All-gather,
reduce-scatter and all-reduce are those of ``ring``; broadcast and reduce are chains around the ring from or to the
root, with ``segments`` that follow each other.

Steps P - 1 (all-reduce 2 (P - 1), chains P - 2 + S with S segments); bytes per rank (P - 1)/P M (twice that; M). With
one channel the time on a crossbar is as many ``alpha``, these bytes ``beta`` and (P - 1)/P M ``gamma`` where it adds;
chains take (P - 2 + S) times ``alpha + M/S beta`` (``+ M/S gamma``). Rings in both directions send two messages a step,
one after the other, for P > 2 and rings.

NCCL 2.30, src/graph/rings.cc and src/device; the choice of ranks is ours, NCCL searches it.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Algorithm, AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.parts.boxes import equal_boxes, in_order
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.planners.algorithms.parts.orders import box_rings
from coppice.schedule.pieces import in_pieces
from coppice.schedule.schedule import Op, Schedule

__all__ = ["ALGORITHMS"]


def _channels(case: AlgorithmCase) -> int:
    found = equal_boxes(case.topology)
    return case.number("channels") or (1 if found is None else len(found[0]))


def _rings(case: AlgorithmCase) -> list[np.ndarray]:
    """Order of the positions (which are ranks) for every channel."""
    channels = _channels(case)
    found = equal_boxes(case.topology)
    if found is None and case.order is not None:
        order = np.array(case.order)
        return [order[::-1] if channel % 2 else order for channel in range(channels)]
    return [np.array(ring) for ring in box_rings(case.topology, channels)]


def _build(case: AlgorithmCase) -> Schedule:
    rings = _rings(case)
    case = in_order(case, tuple(range(case.size)))
    moves = Moves(case, blocks(case, len(rings)))
    steps = case.size - 1
    reduces = case.collective.reduces
    at = np.arange(case.size)
    for step in range(steps):
        for channel, ring in enumerate(rings):
            onward = np.roll(ring, -1)
            if reduces:
                chunk = ring[at - 1 - step] * len(rings) + channel
                moves.add(step, ring, onward, chunk, Op.REDUCE)
            if case.collective is not Collective.REDUCE_SCATTER:
                chunk = ring[at - step] * len(rings) + channel
                moves.add(step + steps * reduces, ring, onward, chunk)
    return moves.schedule()


def _build_chain(case: AlgorithmCase) -> Schedule:
    rings = _rings(case)
    case = in_order(case, tuple(range(case.size)))
    moves = Moves(case, whole(case, len(rings)))
    steps = np.arange(case.size - 1)
    for channel, ring in enumerate(rings):
        from_root = np.roll(ring, -ring.tolist().index(case.root))
        if case.collective is Collective.BROADCAST:
            moves.add(steps, from_root[:-1], from_root[1:], channel)
        else:
            to_root = np.append(from_root[1:], case.root)
            moves.add(steps, to_root[:-1], to_root[1:], channel, Op.REDUCE)
    return in_pieces(moves.schedule(), case.number("segments"))


def _cost(case: AlgorithmCase) -> Cost:
    ways = 2 if _uniform(case) > 1 and case.size > 2 else 1
    return Cost.of_phases(case.collective, case.size, case.size - 1, ways=ways)


def _cost_of_chain(case: AlgorithmCase) -> Cost:
    if _uniform(case) > 1:
        msg = "expected one channel: the cost of chains in both directions has no closed form; set `channels=1`."
        raise InputError(msg)
    segments = case.number("segments")
    steps = case.size - 2 + segments if case.size > 1 else 0
    moved = Fraction(steps, segments)
    return Cost.of_one_chain(
        steps=steps, sent=Fraction(1), moved=moved, reduced=moved * case.collective.reduces
    )


def _uniform(case: AlgorithmCase) -> int:
    """Number of channels on a network without boxes."""
    channels = _channels(case)
    if channels > 1 and equal_boxes(case.topology) is not None:
        msg = "expected a uniform crossbar, found boxes: simulate the schedule, or set `channels=1`."
        raise InputError(msg)
    return channels


_CHANNELS = AlgorithmParameter(default=0, least=0, summary="rings; 0: as many as ranks of a box, else 1")
_SEGMENTS = AlgorithmParameter(default=1, summary="pieces that follow each other")

ALGORITHMS = tuple(
    Algorithm(
        name="nccl-ring",
        collective=collective,
        build=_build_chain if collective.rooted else _build,
        summary="a ring per channel through box after box, on other ranks and rails each",
        source="NCCL 2",
        cost=_cost_of_chain if collective.rooted else _cost,
        parameters={"channels": _CHANNELS, "segments": _SEGMENTS}
        if collective.rooted
        else {"channels": _CHANNELS},
        topological=True,
    )
    for collective in (
        Collective.ALL_REDUCE,
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.BROADCAST,
        Collective.REDUCE,
    )
)
