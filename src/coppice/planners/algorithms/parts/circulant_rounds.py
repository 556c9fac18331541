"""Who sends which block when in the round-optimal broadcast on a circulant graph, for any P.

Ranks count from the root. With q = ceil(lg P), the distances are skip[q] = P and skip[k] = ceil(skip[k + 1] / 2), down
to skip[0] = 1. Rank r always receives from r - skip[k] and sends to r + skip[k] in the rounds i with i mod q = k; which
blocks these are repeats every q rounds, q blocks further on.

Traff, "Optimal broadcast schedules in logarithmic time with applications to broadcast, all-broadcast, reduction and
all-reduction", 2024.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["baseblocks", "receive_table", "send_table", "skips", "transfers"]

Table = NDArray[np.int64]


def skips(size: int) -> list[int]:
    """The distances, from 1 to ``size``.

    Examples:
        >>> skips(17)
        [1, 2, 3, 5, 9, 17]
    """
    found = [size]
    while found[-1] > 1:
        found.append((found[-1] + 1) // 2)
    return found[::-1]


def baseblocks(size: int) -> Table:
    """Of each rank, the number of the last distance on its greedy path from the root; q for the root itself.

    The greedy path of r subtracts the largest distance that fits until nothing is left.

    Examples:
        >>> baseblocks(9).tolist()
        [4, 0, 1, 2, 0, 3, 0, 1, 2]
    """
    distances = skips(size)
    left = np.arange(size)
    base = np.full(size, len(distances) - 1)
    for k in range(len(distances) - 2, -1, -1):
        fits = left >= distances[k]
        left = np.where(fits, left - distances[k], left)
        base = np.where(fits & (left == 0), k, base)
    return base


def receive_table(size: int) -> Table:
    """``table[r, k]``: block that rank r receives in round k, counted so that block b >= 0 is the root's b-th one.

    Over q rounds these are all of -q .. -1 but one, ``base - q``, in whose place rank r gets ``base``: the root's
    latest block that comes along the greedy path. Negative blocks are those of the q rounds before.
    """
    distances = skips(size)
    rounds = len(distances) - 1
    base = baseblocks(size)
    rank = np.arange(size)
    used = 1 << base
    table = np.zeros((size, rounds), dtype=np.int64)
    for k in range(rounds):
        near, far = distances[k], distances[k + 1]
        # Bases of the ranks r - far + 1 .. r - near, as sets of bits.
        within = _union_of_run(1 << base, (rank - far + 1) % size, far - near)
        free = within & ~used
        # An exponent of frexp is exact: sets have at most q + 1 < 53 bits.
        largest = np.frexp(free.astype(np.float64))[1] - 1
        found = np.where(free > 0, largest, base[(rank - far) % size])
        used |= 1 << found
        table[:, k] = np.where(found == rounds, base, found - rounds)
    return table


def send_table(size: int) -> Table:
    """``table[r, k]``: block that rank r sends in round k; the receiver's entry of :func:`receive_table`."""
    received = receive_table(size)
    rank = np.arange(size)
    columns = [received[(rank + skip) % size, k] for k, skip in enumerate(skips(size)[:-1])]
    return np.stack(columns, axis=1) if columns else np.zeros((size, 0), dtype=np.int64)


def transfers(size: int, blocks: int) -> tuple[Table, Table, Table, Table]:
    """Round, sender, receiver and block of every transfer, round by round.

    Rounds run from 0 to ``blocks - 2 + q``; the last block stands for those after it. Every rank but the root gets
    every block once.

    Examples:
        >>> [column.tolist() for column in transfers(3, 2)]
        [[0, 1, 2, 2], [0, 0, 0, 2], [2, 1, 2, 1], [0, 1, 1, 0]]
    """
    distances = skips(size)[:-1]
    period = len(distances)
    table = send_table(size)
    rank = np.arange(size)
    shift = (period - (blocks - 1) % period) % period
    parts = []
    for turn in range(shift, shift + blocks - 1 + period):
        k = turn % period
        block = table[:, k] + turn - k - shift
        receiver = (rank + distances[k]) % size
        sent = (block >= 0) & (receiver != 0)
        step = np.full(int(sent.sum()), turn - shift)
        parts.append((step, rank[sent], receiver[sent], np.minimum(block[sent], blocks - 1)))
    step, sender, receiver, block = (np.concatenate(column) for column in zip(*parts, strict=True))
    return step, sender, receiver, block


def _union_of_run(sets: Table, start: Table, length: int) -> Table:
    """Union of ``length`` sets of a circle from each start on, by doubling."""
    union = np.zeros_like(sets)
    at, width, doubled = start, 1, sets
    while length:
        if length & 1:
            union |= doubled[at]
            at = (at + width) % len(sets)
        doubled = doubled | np.roll(doubled, -width)
        width, length = 2 * width, length >> 1
    return union
