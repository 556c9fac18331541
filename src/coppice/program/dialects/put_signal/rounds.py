"""Rounds of a schedule for put/signal programs: pipelined sub-chunks, and sums as late as possible.

A round is what all ranks put, wait for and add before they put again. The pieces of a chunk follow each other, one
round apart, so that every link carries one piece of each of its tree edges in every round but the first and last few.
What is to be added arrives in the last round in which it is in time, together with all else that is added to it: a
receive buffer is then needed for one round and not for as long as the deepest subtree takes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coppice.program.buffer_layout import BufferLayout
from coppice.program.lower import Transfers, transfers_of
from coppice.rows import offsets, rows_of_groups
from coppice.schedule.schedule import Op, Schedule, hops_of

_BUSY = 0.92
_MOST_LOADS = 2**24
"""Rounds x links that are looked at."""


def rounds_of(schedule: Schedule, placement: BufferLayout) -> Transfers:
    """Transfers of a schedule with uncut chunks, with their rounds."""
    rows = transfers_of(schedule, placement)
    stepped = bool(schedule.num_transfers) and int(schedule.step.min()) >= 0
    if stepped or len(schedule.after):
        return rows
    return _sorted(replace(rows, round=late_sums(rows, placement.ranks)))


def in_pieces_of(rows: Transfers, placement: BufferLayout, cut: BufferLayout, pieces: int) -> Transfers:
    """Transfers of every sub-chunk, each a round behind the one before.

    Args:
        cut: Of their pieces; piece j of chunk c is chunk ``c * pieces + j``.
    """
    chunks = np.repeat(np.arange(len(placement.units.start) - 1), np.diff(placement.units.start))
    piece = np.tile(np.arange(pieces), len(rows.src))
    src, dst, op, path = (np.repeat(each, pieces) for each in (rows.src, rows.dst, rows.op, rows.path))
    run = cut.units.start[np.repeat(chunks[rows.run], pieces) * pieces + piece]
    return _sorted(
        Transfers(src=src, dst=dst, run=run, op=op, path=path, round=np.repeat(rows.round, pieces) + piece)
    )


def pieces_for_rate(rows: Transfers, placement: BufferLayout, schedule: Schedule, most: int) -> int:
    """Fewest sub-chunks, a power of two, that keep the busiest links of all rounds 92% busy.

    Args:
        rows: Transfers of whole chunks, of which some go in rounds that leave links idle.

    Returns:
        1 where it is not known which links transfers take, or there are too many rounds to look at.
    """
    topology = schedule.topology
    rounds, links = int(rows.round.max(initial=-1)) + 1, topology.num_links
    if not rounds or int(rows.path.min()) < 0 or (rounds + most) * links > _MOST_LOADS:
        return 1
    hops = hops_of(topology, schedule.path_start, schedule.path_nodes)
    start = offsets(np.bincount(hops.path, minlength=hops.num_paths))
    at, ends = rows_of_groups(start, rows.path)
    row = np.repeat(np.arange(len(rows.path)), np.diff(ends))
    place = rows.round[row] * links + hops.link[at]
    sums = np.bincount(place, weights=placement.units.count[rows.run][row], minlength=rounds * links)
    load = sums.reshape(rounds, links) / topology.capacity
    until = np.concatenate([np.zeros((1, links)), np.cumsum(load, axis=0)])
    pieces = 1
    while pieces < most:
        turn = np.arange(rounds + pieces - 1)
        spent = until[np.minimum(turn + 1, rounds)] - until[np.maximum(turn + 1 - pieces, 0)]
        if until[-1].max() >= _BUSY * spent.max(axis=1).sum() / pieces:
            break
        pieces *= 2
    return pieces


def _sorted(rows: Transfers) -> Transfers:
    order = np.argsort(rows.round, kind="stable")
    return Transfers(
        **{key: getattr(rows, key)[order] for key in ("src", "dst", "run", "op", "path", "round")}
    )


def late_sums(rows: Transfers, ranks: int) -> np.ndarray:
    """Rounds in which addends arrive as late as the receiver's own send allows.

    Args:
        rows: Transfers in the order of their rounds.

    Examples:
        Ranks 0 and 1 send to rank 2, which sends on to rank 3; rank 0 could send a round before rank 1:

        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> rows = Transfers(column(4, 0, 1, 2), column(1, 2, 2, 3), column(0, 0, 0, 0),
        ...                  column(1, 1, 1, 1), column(0, 0, 0, 0) - 1, column(0, 0, 1, 2))
        >>> late_sums(rows, 5).tolist()
        [0, 1, 1, 2]
    """
    into, outof = rows.run * ranks + rows.dst, rows.run * ranks + rows.src
    values, column = np.unique(np.concatenate([into, outof]), return_inverse=True)
    target, source = column[: len(into)].tolist(), column[len(into) :].tolist()
    far = int(rows.round.max(initial=0)) + 1
    deepest = np.full(len(values), -1, dtype=np.int64)
    np.maximum.at(deepest, column[: len(into)], rows.round)
    last: list[int] = deepest.tolist()
    sent, written, copied = (
        [far] * len(values) for _ in range(3)
    )  # first rounds after the row that is looked at
    found: list[int] = rows.round.tolist()
    adds: list[bool] = (rows.op == Op.REDUCE).tolist()
    for row in range(len(found) - 1, -1, -1):
        to, origin = target[row], source[row]
        if adds[row]:
            limit = min(sent[to] - 1, copied[to] - 1, written[origin] - 1, last[to])
            found[row] = max(found[row], limit)
        else:
            copied[to] = min(copied[to], found[row])
        sent[origin] = min(sent[origin], found[row])
        written[to] = min(written[to], found[row])
    return np.array(found, dtype=np.int64)
