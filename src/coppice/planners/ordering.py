"""Orders of a schedule's transfers: what has most to follow goes first.

A rank sends what it has in the order of its rows, and links serve what comes to them in that order. So among rows that
may go at the same time the order decides which links idle in the end. *List scheduling* (Graham, SIAM J. Appl. Math.
17, 1969) takes them by priority, and the priority that suits most is the length of the longest path that begins with a
row (Kohler, IEEE Trans. Computers C-24, 1975). From the times of a schedule, *justification* finds better priorities:
it is carried out backwards, each row as late as possible, and the order in which rows began there is that of the next
pass (Valls, Ballestin and Quintanilla, European J. Operational Research 165, 2005).

Links that serve what comes first do not keep to priorities: what is ready early stands in line before what is urgent
and comes later, and takes the workers that handle messages. So a rank may hold back a row until it has received what it
had received when the row was due in a schedule in which links did keep to them.

All of this changes when rows go, and not what they carry: rows of one chunk keep their order at every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from coppice.rows import offsets
from coppice.schedule.schedule import Op, Schedule, in_pieces

_STRICT_US = 1e-6
"""By how much what has to go first goes first."""
_EARLY = (0.0, 0.1, 0.25, 1.5)
"""How far rows may be ahead of their times, in what a row takes on average."""
_FEW_NODES, _MOST_LINKS = 5, 3
"""Where paths have more nodes, ways into a rank are also told apart by so many of their last links."""


def without_steps(schedule: Schedule) -> Schedule:
    """The rows in their order, without steps: who carries it out verifies that it still does the same.

    In a step ranks may exchange what both of them change, which rows that follow each other do not.
    """
    return replace(schedule, step=np.full(schedule.num_transfers, -1, dtype=np.int32), ordered=False)


def reordered(schedule: Schedule, order: NDArray[np.int64]) -> Schedule:
    """The rows of a schedule without further dependencies in another order, in which steps do not decrease."""
    columns = ("src", "dst", "chunk", "op", "path", "step")
    return replace(schedule, **{name: getattr(schedule, name)[order] for name in columns}, ordered=False)


def plainly(schedule: Schedule) -> Schedule:
    """The rows in their order, which wait for nothing but what they send."""
    none = np.zeros(schedule.num_transfers + 1, dtype=np.int64)
    return (
        replace(schedule, after_start=none, after=np.zeros(0, dtype=np.int32))
        if len(schedule.after)
        else schedule
    )


def turned_round(schedule: Schedule) -> Schedule:
    """The same transfers backwards in time: receivers send, what was copied to many is added up, and vice versa.

    For times only: it performs no collective.
    """
    order = np.arange(schedule.num_transfers)[::-1]
    back = reordered(schedule, order)
    lengths = np.diff(schedule.path_start)
    last = np.repeat(schedule.path_start[1:] - 1, lengths)
    place = np.arange(len(schedule.path_nodes)) - np.repeat(schedule.path_start[:-1], lengths)
    return replace(
        back,
        topology=schedule.topology.transposed(),
        src=back.dst,
        dst=back.src,
        op=np.where(back.op == Op.REDUCE, Op.COPY, Op.REDUCE).astype(np.int8),
        path_nodes=schedule.path_nodes[last - place],
    )


def longest_ways(schedule: Schedule, duration_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Length of the longest path of transfers that begins with each row, in microseconds.

    A row is followed by what its receiver sends of the same chunk later on, and goes before what is written later
    where it is read.

    Args:
        schedule: Rows in an order in which they can be carried out, without steps.
        duration_us: What each row takes by itself, above 0.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, whole
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=4), collective=Collective.BROADCAST, root=0)
        >>> moves = Moves(case, whole(case))
        >>> moves.add([0, 0, 1], [0, 3, 1], [3, 1, 2], 0)
        >>> longest_ways(without_steps(moves.schedule()), np.array([1.0, 1.0, 1.0])).tolist()
        [3.0, 2.0, 1.0]
    """
    ranks = schedule.topology.num_ranks
    places = schedule.num_chunks * ranks
    sends, writes = [0.0] * places, [0.0] * places
    found = [0.0] * schedule.num_transfers
    at = schedule.chunk.astype(np.int64) * ranks
    rows = zip((at + schedule.src).tolist(), (at + schedule.dst).tolist(), duration_us.tolist(), strict=True)
    for row, (source, target, duration) in reversed(list(enumerate(rows))):
        way, read = duration + sends[target], writes[source]
        if read > way:
            way = read
        found[row] = way
        if way > sends[source]:
            sends[source] = way
        if way + _STRICT_US > writes[target]:
            writes[target] = way + _STRICT_US
    return np.array(found)


def by_longest_way(
    schedule: Schedule, ways_us: NDArray[np.float64], pieces: int, *, pieces_first: bool
) -> Schedule:
    """Cut every chunk into pieces, and put the rows with the longest way to go first.

    Of equally long ones ranks send to the next rank first, then to the one after it, so that not all send to one.

    Args:
        schedule: Rows without steps.
        ways_us: As :func:`longest_ways` gives them.
        pieces_first: All rows of a piece go before those of the next one.
    """
    cut = in_pieces(schedule, pieces)
    rows = schedule.num_transfers
    away = (schedule.dst - schedule.src) % schedule.topology.num_ranks
    piece = np.repeat(np.arange(pieces), rows)
    far, turn = np.tile(-ways_us, pieces), np.tile(away, pieces)
    keys = (turn, far, piece) if pieces_first else (turn, piece, far)
    return reordered(cut, np.lexsort((np.arange(len(piece)), *keys)))


def pipelined(schedule: Schedule, pieces: int, lag: int) -> Schedule:
    """Cut every chunk of rows with steps into pieces, and give each step of each piece a turn of its own.

    Step s of piece j comes in the order of ``j + lag * s``: without a lag all of a piece goes before the next one, and
    with a large one all pieces finish a step before any goes on. In between, links that a step leaves idle while its
    data travel have the next pieces to carry.

    Args:
        schedule: Rows with steps and without further dependencies.
        pieces: Pieces of every chunk, 1 or more.
        lag: Pieces that begin between two steps of one: 0 or more.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, whole
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=3), collective=Collective.BROADCAST, root=0)
        >>> chain = Moves(case, whole(case))
        >>> chain.add([0, 1], [0, 1], [1, 2], 0)
        >>> [pipelined(chain.schedule(), 3, lag).chunk.tolist() for lag in (0, 1, 2)]
        [[0, 0, 1, 1, 2, 2], [0, 1, 0, 2, 1, 2], [0, 1, 2, 0, 1, 2]]
    """
    rows, steps = schedule.num_transfers, int(schedule.step.max(initial=-1)) + 1
    piece, step = np.divmod(np.arange(pieces * steps), steps)
    turn = np.empty(pieces * steps, dtype=np.int32)
    turn[np.lexsort((step, piece + lag * step))] = np.arange(pieces * steps)
    own = np.repeat(np.arange(pieces), rows)
    turns = turn[own * steps + np.tile(schedule.step, pieces)]
    cut = replace(in_pieces(without_steps(schedule), pieces), step=turns)
    away = np.tile((schedule.dst - schedule.src) % schedule.topology.num_ranks, pieces)
    return reordered(cut, np.lexsort((away, turns)))


def held_back(
    schedule: Schedule,
    due_us: NDArray[np.float64],
    done_us: NDArray[np.float64],
    *,
    links: int = 0,
    early_us: float = 0.0,
) -> Schedule:
    """Put the rows in the order in which they are due; each waits for what its sender has received last by then.

    A rank waits for its own receipts only, which every runtime can do. What came last should have come last, though:
    where one link into a rank is ahead of its time, another can be late when a row goes. A row that waits for the last
    receipt by each link goes after all that it should go after, so that links keep to the order in which rows are due.

    Args:
        schedule: Rows without further dependencies. Where they have steps, those of one keep to it, and wait for
            earlier ones.
        due_us: When each row is due.
        done_us: When its receiver has it, later than that.
        links: Wait for the last receipt by each way into the sender, of which the last so many links tell.
        early_us: Wait for what has been received so long before a row is due.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, blocks
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=3), collective=Collective.ALL_GATHER)
        >>> moves = Moves(case, blocks(case))
        >>> moves.add([0, 1, 1], [0, 1, 1], [1, 0, 2], [0, 1, 1])
        >>> found = held_back(without_steps(moves.schedule()), np.array([0.0, 0.0, 2.0]), np.array([1.0, 1.0, 3.0]))
        >>> found.after_start.tolist(), found.after.tolist()
        ([0, 0, 0, 1], [0])
    """
    order = np.lexsort((due_us, schedule.step))
    rows, due, done = reordered(schedule, order), due_us[order], done_us[order]
    start, end = rows.path_start[rows.path], rows.path_start[rows.path + 1] - 1
    ways = rows.step.astype(np.int64)
    for back in range(1, links + 1):
        ways = ways * schedule.topology.num_nodes + rows.path_nodes[np.maximum(end - back, start)]
    out_of = _by_rank(rows.src, schedule.topology.num_ranks)
    waits = [np.zeros(0, dtype=np.int64)]
    for rank, into in enumerate(_by_rank(rows.dst, schedule.topology.num_ranks)):
        out = out_of[rank][np.argsort(due[out_of[rank]], kind="stable")]
        came = into[np.argsort(done[into], kind="stable")]
        way_of, first, way = np.unique(ways[came], return_index=True, return_inverse=True)
        # Per way and row that is sent, the last receipt by then: each is first put where it is the last one.
        last = np.full((len(way_of), len(out) + 1), -1, dtype=np.int64)
        last[way, np.searchsorted(due[out] - early_us + _STRICT_US, done[came], side="left")] = np.arange(
            len(came)
        )
        before = np.maximum.accumulate(last, axis=1)[:, :-1]
        step_of, step = rows.step[came[first]][:, None], rows.step[out]
        before = np.where((step_of < step) | (step < 0), before, -1)
        if not links:
            before = before.max(axis=0, keepdims=True, initial=-1)
        after = np.broadcast_to(out, before.shape)
        known, before = before >= 0, came[before] if len(came) else before
        # What a row sends it waits for anyhow; and none waits for a later one, should both be at one time.
        needed = known & (before < after) & (rows.chunk[before] != rows.chunk[after])
        waits.append(after[needed] * len(order) + before[needed])
    pairs = np.sort(np.concatenate(waits))  # a receipt came one way: none is waited for twice
    after, before = np.divmod(pairs, len(order))
    return replace(
        rows,
        after_start=offsets(np.bincount(after, minlength=len(order))),
        after=before.astype(np.int32),
    )


def held_back_early(
    schedule: Schedule, due_us: NDArray[np.float64], done_us: NDArray[np.float64]
) -> Iterator[Schedule]:
    """Rows held back by what came by each link, ever earlier, by some shares of what a row takes on average.

    Rows that wait for all that should have been received by then pass on what comes late, and so do those that wait for
    them. Which are a little ahead of their times make up for that, and are seldom in the way of others. Where paths
    lead through many switches, what comes over the same last link has come over several others, each late in its way.
    """
    mean_us = float((done_us - due_us).mean()) if len(due_us) else 0.0
    for share in _EARLY:
        yield held_back(schedule, due_us, done_us, links=1, early_us=share * mean_us)
    if np.diff(schedule.path_start).max(initial=0) > _FEW_NODES:
        yield held_back(schedule, due_us, done_us, links=_MOST_LINKS)


def _by_rank(ranks: NDArray[np.integer], count: int) -> list[NDArray[np.int64]]:
    """Rows of each rank, in their order."""
    order = np.argsort(ranks, kind="stable")
    return np.split(order, np.searchsorted(ranks[order], np.arange(1, count)))
