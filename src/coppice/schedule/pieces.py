"""Cutting every chunk into pieces that follow each other, so that transfers of different pieces overlap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coppice.errors import InputError
from coppice.schedule.schedule import Schedule

__all__ = ["in_pieces"]


def in_pieces(schedule: Schedule, pieces: int) -> Schedule:
    """The same schedule with every chunk cut into ``pieces`` equal pieces.

    Rows come piece after piece. Piece j runs j steps behind the first one, where there are steps; dependencies hold
    piece by piece.

    Args:
        schedule: A verified schedule.
        pieces: Number of pieces, 1 or more.

    Raises:
        InputError: If ``pieces`` is less than 1, or the result has more than 2^31 - 1 rows or chunks.

    Examples:
        A chain of two transfers in three pieces takes 2 + 3 - 1 steps:

        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, whole
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=3), collective=Collective.BROADCAST, root=0)
        >>> chain = Moves(case, whole(case))
        >>> chain.add([0, 1], [0, 1], [1, 2], 0)
        >>> in_pieces(chain.schedule(), 3).step.tolist()
        [0, 1, 1, 2, 2, 3]
    """
    rows, chunks = schedule.num_transfers, schedule.num_chunks
    if pieces < 1 or pieces * max(rows, chunks) >= 2**31:
        msg = f"expected 1 or more pieces and at most 2^31 - 1 transfers in all, found {pieces} x {rows}."
        raise InputError(msg)
    if pieces == 1:
        return schedule
    piece = np.repeat(np.arange(pieces, dtype=np.int64), rows)
    chunk = np.tile(schedule.chunk, pieces) * np.int64(pieces) + piece
    step = np.tile(schedule.step, pieces)
    step = np.where(step >= 0, step + piece, step)
    after_start, after = _repeated_dependencies(schedule, pieces)
    if (step >= 0).any() and len(after):
        msg = "expected rows with steps or with dependencies, found both: they cannot be cut into pieces."
        raise InputError(msg)
    order = np.argsort(step, kind="stable") if (step >= 0).any() else np.arange(len(step))
    return replace(
        schedule,
        chunk_slot=np.repeat(schedule.chunk_slot, pieces),
        chunk_share=np.repeat(schedule.chunk_share, pieces),
        src=np.tile(schedule.src, pieces)[order],
        dst=np.tile(schedule.dst, pieces)[order],
        chunk=chunk[order].astype(np.int32),
        op=np.tile(schedule.op, pieces)[order],
        path=np.tile(schedule.path, pieces)[order],
        step=step[order].astype(np.int32),
        after_start=after_start,
        after=after,
    )


def _repeated_dependencies(schedule: Schedule, pieces: int) -> tuple[np.ndarray, np.ndarray]:
    """The dependencies of every piece's copy of the rows."""
    rows = schedule.num_transfers
    shift = np.arange(pieces, dtype=np.int64)[:, None]
    start = schedule.after_start[:-1][None, :] + shift * len(schedule.after)
    after = schedule.after[None, :] + shift * rows
    return (
        np.append(start.reshape(-1), pieces * len(schedule.after)).astype(np.int64),
        after.reshape(-1).astype(np.int32),
    )
