"""What stays at its rank but must get from its input to its output: copies, in the thread block with least to do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.program.memory import Buffer
from coppice.program.placement import Places

__all__ = ["OwnCopies", "own_copies"]

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OwnCopies:
    """Copies from the input to the output of their rank, sorted by thread block.

    Attributes:
        rows: (rank, send peer, receive peer, channel) of all thread blocks: those that were there, and one for each
            rank that had none but has something to copy.
        block: Thread block (row) that copies.
        source: First slot of the input.
        target: First slot of the output.
        count: Number of slots.
    """

    rows: _Ints
    block: _Ints
    source: _Ints
    target: _Ints
    count: _Ints


def own_copies(places: Places, rows: _Ints, lines: _Ints, written: _Ints) -> OwnCopies:
    """The copies that ranks make for themselves.

    Args:
        places: Where values lie.
        rows: (rank, send peer, receive peer, channel) of each thread block.
        lines: How much each of them has to do.
        written: Run * ranks + rank of every value that some rank receives.
    """
    all_rows = [tuple(row) for row in rows.tolist()]
    found: list[tuple[int, int, int, int]] = []
    wanted = places.own_copies()
    if wanted:
        received = _received_anyway(places, wanted, written)
        busy: list[int] = lines.tolist()
        mine: dict[int, list[int]] = {}
        for row, block in enumerate(all_rows):
            mine.setdefault(block[0], []).append(row)
        for rank, first, target, count in wanted:
            if rank not in mine:
                mine[rank] = [len(all_rows)]
                all_rows.append((rank, -1, -1, 0))
                busy.append(0)
            row = min(mine[rank], key=busy.__getitem__)
            begin = 0
            for offset, length in [*received.get(rank, ()), (target + count, 0)]:
                if offset - target > begin:
                    found.append((row, first + begin, target + begin, offset - target - begin))
                begin = offset - target + length
    columns = np.array(sorted(found), dtype=np.int64).reshape(-1, 4)
    return OwnCopies(
        np.array(all_rows, dtype=np.int64).reshape(-1, 4),
        columns[:, 0],
        columns[:, 1],
        columns[:, 2],
        columns[:, 3],
    )


def _received_anyway(
    places: Places, copies: list[tuple[int, int, int, int]], written: _Ints
) -> dict[int, list[tuple[int, int]]]:
    """(output slot, count) of what ranks receive although it is theirs, in ascending order."""
    ranks = places.ranks
    begin, end = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    for rank, _, target, count in copies:
        begin[rank], end[rank] = target, target + count
    owner, run = written % ranks, written // ranks
    buffer, offset = places.home(owner, run)
    hits = np.flatnonzero((buffer == Buffer.OUTPUT) & (offset >= begin[owner]) & (offset < end[owner]))
    found: dict[int, list[tuple[int, int]]] = {}
    for hit in hits[np.argsort(offset[hits], kind="stable")].tolist():
        found.setdefault(int(owner[hit]), []).append((int(offset[hit]), int(places.units.count[run[hit]])))
    return found
