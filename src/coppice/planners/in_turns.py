"""Orders for the transfers of many ranks: each begins with what belongs to the ranks after it.

Where all ranks do alike, those that begin with the same rank's data send it all at once to that rank, whose links they
share while all others idle. With a turn of its own for each rank (as in the linear exchanges of MPI libraries) every
rank receives as much as it sends at any time. One pass over the rows finds that order, however many there are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.ordering import reordered, without_steps
from coppice.rows import begins_run, positions
from coppice.schedule.schedule import Op, Schedule

_MOST_LEVELS = 64
"""Transfers that follow each other at most in what is put in this order."""


def in_turns(schedule: Schedule) -> Schedule | None:
    """The rows by their level, and at each rank by how far the owner of their chunk is from it.

    The level of a row is the number of rows of its chunk that have to go before it. None where levels are too many.

    Args:
        schedule: Rows in which a chunk is reduced before it is copied, without further dependencies; each of its slots
            belongs to a rank.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, blocks
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("star", gpus=3), collective=Collective.REDUCE_SCATTER)
        >>> moves = Moves(case, blocks(case))
        >>> for rank in range(3):
        ...     others = [each for each in range(3) if each != rank]
        ...     moves.add(0, rank, others, others, Op.REDUCE)
        >>> found = in_turns(moves.schedule())
        >>> list(zip(found.src.tolist(), found.dst.tolist()))
        [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]
    """
    levels = levels_of(schedule)
    if levels is None:
        return None
    ranks = schedule.topology.num_ranks
    owner = schedule.chunk_slot[schedule.chunk].astype(np.int64)
    turn = (owner - schedule.src) % ranks
    order = np.lexsort((np.arange(schedule.num_transfers), turn, levels))
    return reordered(without_steps(schedule), order)


def blocks_in_turns(schedule: Schedule) -> Schedule | None:
    """An all-to-all of which every rank sends the block of the rank after it first, then that of the one behind that.

    In the order of their receivers all blocks for one rank are under way at once, while the links of others idle: on
    boxes with rails that takes up to twice as long. None where rows have steps or further dependencies already.

    Args:
        schedule: Rows in an order in which they can be carried out.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(preset("star", gpus=3), "all_to_all")).plan.schedule
        >>> found = blocks_in_turns(made)
        >>> list(zip(found.src.tolist(), found.dst.tolist()))
        [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)]
    """
    if not _is_plain_exchange(schedule):
        return None
    ranks = schedule.topology.num_ranks
    sender, receiver = np.divmod(schedule.chunk_slot.astype(np.int64), ranks)
    turn = (receiver - sender) % ranks
    return reordered(schedule, np.argsort(turn[schedule.chunk], kind="stable"))


def hop_by_hop(schedule: Schedule) -> Schedule | None:
    """An all-to-all in steps, one for each hop of a block: what goes the same way in a step may be one message.

    A block that is passed on waits for all of its step, and ranks handle as many messages as they have neighbours.
    None where a chunk is sent to several ranks, or rows have steps or further dependencies already.

    Args:
        schedule: Rows in an order in which they can be carried out.

    Examples:
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.planners.planning import plan
        >>> from coppice.topology.presets import preset
        >>> made = plan(Problem(preset("ring", gpus=4), "all_to_all")).plan.schedule
        >>> hop_by_hop(made).step.tolist() == sorted(hop_by_hop(made).step.tolist())
        True
    """
    if not _is_plain_exchange(schedule):
        return None
    order = np.argsort(schedule.chunk, kind="stable")
    chunk, src, dst = schedule.chunk[order], schedule.src[order], schedule.dst[order]
    follows = ~begins_run(chunk)
    if bool((src[1:] != dst[:-1])[follows[1:]].any()):
        return None
    hop = np.empty(len(order), dtype=np.int32)
    hop[order] = positions(np.diff(np.append(np.flatnonzero(~follows), len(order))))
    by_hop = np.argsort(hop, kind="stable")
    return replace(reordered(schedule, by_hop), step=hop[by_hop])


def _is_plain_exchange(schedule: Schedule) -> bool:
    """Whether it is an all-to-all of which rows only wait for their chunks."""
    plain = not len(schedule.after) and schedule.step.max(initial=-1) < 0
    return schedule.collective is Collective.ALL_TO_ALL and bool(plain)


def levels_of(schedule: Schedule) -> NDArray[np.int64] | None:
    """How many rows of its chunk go before each row: those that reduce it first, then those that copy it.

    None where they are too many.
    """
    ranks = schedule.topology.num_ranks
    places = schedule.chunk.astype(np.int64) * ranks
    level = np.zeros(schedule.num_transfers, dtype=np.int64)
    first = 0
    for op in (Op.REDUCE, Op.COPY):
        rows = np.flatnonzero(schedule.op == op)
        if not len(rows):
            continue
        source, target = places[rows] + schedule.src[rows], places[rows] + schedule.dst[rows]
        ready = np.zeros(schedule.num_chunks * ranks, dtype=np.int64)
        for _ in range(_MOST_LEVELS):
            after = ready.copy()
            np.maximum.at(after, target, ready[source] + 1)
            if np.array_equal(after, ready):
                break
            ready = after
        else:
            return None
        level[rows] = first + ready[source]
        first = int(level[rows].max()) + 1
    return level
