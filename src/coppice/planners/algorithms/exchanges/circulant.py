"""Collectives on circulant graphs for any P, with the fewest rounds, and for blocks the fewest bytes too.

**Broadcast and reduce,** round-optimal. The root cuts the buffer into S ``segments`` and sends one in every round. Rank
r sends to r + skip[k] and receives from r - skip[k] in the k-th of q = ceil(lg P) rounds that come again and again; the
skips halve from P on (rounded up). A table tells each rank which block. The reduction runs the rounds
backwards.

Steps S - 1 + q, the fewest with one port; time ``(S - 1 + q) (alpha + M/S beta)``, and ``M/S gamma`` more in every step
of a reduction, whose root adds in each; bytes of a rank (S - 1 + q)/S M, at the root, and M in a reduction. Sums do not
keep rank order.

Traff, "Optimal broadcast schedules in logarithmic time with applications to broadcast, all-broadcast, reduction and
all-reduction", 2024; MPICH (circ_graph).

**All-gather and reduce-scatter,** with the fewest rounds and the fewest bytes. The distances are s = ceil(P/2),
ceil(P/4), .. 1, each half of the one before, rounded up. All-gather, shortest distance first: a position p that has the
blocks p .. p + s - 1 sends the first t - s of them to p - s, t being the next distance (P after the last).
Reduce-scatter is the reverse: p sends its partial sums of the blocks p + s .. p + t - 1 to p + s, which adds them.

Steps ceil(log2 P); bytes per rank (P - 1)/P M; time on a crossbar ``ceil(log2 P) alpha + (P - 1)/P M beta``, and
``(P - 1)/P M gamma`` where it adds. No rank can do with fewer steps or bytes, so there is nothing to pipeline. The
sums do not keep the ranks in order.

Traff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024. MPICH (circ_graph) has the all-gather
with every block cut in pieces.

**All-reduce:** the reduce-scatter, then the all-gather. Steps 2 ceil(lg P); time ``2 ceil(lg P) alpha + 2 (P - 1)/P M
beta + (P - 1)/P M gamma``; bytes per rank 2 (P - 1)/P M, the fewest there are. Sums do not keep rank order.

Traff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024.

**The rounds of broadcast and reduce.** Ranks count from the root. With q = ceil(lg P), the distances are skip[q] = P
and skip[k] = ceil(skip[k + 1] / 2), down to skip[0] = 1. Rank r always receives from r - skip[k] and sends to r +
skip[k] in the rounds i with i mod q = k; which blocks these are repeats every q rounds, q blocks further on.

Traff, "Optimal broadcast schedules in logarithmic time with applications to broadcast, all-broadcast, reduction and
all-reduction", 2024.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import SEGMENTS, Algorithm, AlgorithmCase
from coppice.planners.algorithms.parts.cost import Cost
from coppice.planners.algorithms.parts.moves import Moves, all_reduce_of, blocks, whole
from coppice.schedule.schedule import Op, Schedule


def rooted(case: AlgorithmCase) -> Schedule:
    """Broadcast in optimal rounds; reduce is the reverse."""
    segments = case.number("segments")
    moves = Moves(case, whole(case, segments))
    if case.size > 1:
        step, sender, receiver, block = transfers(case.size, segments)
        above, below = case.from_root(sender), case.from_root(receiver)
        if case.collective is Collective.REDUCE:
            moves.add(step.max() - step, below, above, block, Op.REDUCE)
        else:
            moves.add(step, above, below, block)
    return moves.schedule()


def _pipelined_cost(case: AlgorithmCase) -> Cost:
    segments = case.number("segments")
    rounds = segments - 1 + (case.size - 1).bit_length() if case.size > 1 else 0
    moved = Fraction(rounds, segments)
    reduces = case.collective.reduces
    return Cost.of_one_chain(
        steps=rounds, sent=Fraction(1) if reduces else moved, moved=moved, reduced=moved * reduces
    )


ROOTED = tuple(
    Algorithm(
        name="circulant",
        collective=collective,
        build=rooted,
        summary="blocks hop along a circulant graph: the fewest rounds for any number of ranks",
        source="Traff 2024; MPICH (circ_graph)",
        cost=_pipelined_cost,
        parameters={"segments": SEGMENTS},
    )
    for collective in (Collective.BROADCAST, Collective.REDUCE)
)


def all_gather(case: AlgorithmCase) -> Schedule:
    """All-gather whose intervals of blocks about double each round."""
    moves = Moves(case, blocks(case))
    position, size = case.positions[:, None], case.size
    for step, (distance, following) in enumerate(pairwise(skips(size))):
        run = np.arange(following - distance)
        moves.add(step, position, (position - distance) % size, (position + run) % size)
    return moves.schedule()


def reduce_scatter(case: AlgorithmCase) -> Schedule:
    """Reverse of the all-gather."""
    moves = Moves(case, blocks(case))
    position, size = case.positions[:, None], case.size
    for step, (distance, following) in enumerate(reversed(list(pairwise(skips(size))))):
        run = np.arange(distance, following)
        moves.add(step, position, (position + distance) % size, (position + run) % size, Op.REDUCE)
    return moves.schedule()


def _cost_of_blocks(case: AlgorithmCase) -> Cost:
    return Cost.of_phases(case.collective, case.size, (case.size - 1).bit_length())


BLOCKS = tuple(
    Algorithm(
        name="circulant",
        collective=collective,
        build=build,
        summary="distances halve, rounded up: the fewest steps and bytes for any number of ranks",
        source="Traff 2024; MPICH (all-gather)",
        cost=_cost_of_blocks,
    )
    for collective, build in (
        (Collective.ALL_GATHER, all_gather),
        (Collective.REDUCE_SCATTER, reduce_scatter),
    )
)


def all_reduce(case: AlgorithmCase) -> Schedule:
    """Reduce-scatter, then all-gather."""
    return all_reduce_of(
        reduce_scatter(replace(case, collective=Collective.REDUCE_SCATTER)),
        all_gather(replace(case, collective=Collective.ALL_GATHER)),
    )


ALL_REDUCE = Algorithm(
    name="circulant",
    collective=Collective.ALL_REDUCE,
    build=all_reduce,
    summary="distances halve, rounded up: the fewest bytes, in few steps for any number of ranks",
    source="Traff 2024",
    cost=_cost_of_blocks,
)

Table = NDArray[np.int64]


def skips(size: int) -> list[int]:
    """Jumps of the circulant graph, from 1 to ``size``.

    Examples:
        >>> skips(17)
        [1, 2, 3, 5, 9, 17]
    """
    found = [size]
    while found[-1] > 1:
        found.append((found[-1] + 1) // 2)
    return found[::-1]


def baseblocks(size: int) -> Table:
    """Base block of each rank: the last jump on its greedy path from the root; q for the root.

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
    """``table[r, k]``: block that rank r receives in round k; block b >= 0 is the root's b-th one.

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
    """Round, sender, receiver and block of every transfer.

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
