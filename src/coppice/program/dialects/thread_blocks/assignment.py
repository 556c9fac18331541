"""Which thread block carries which transfers: channels for chunks, then thread blocks for connections.

All transfers of a chunk take one channel, so that what a rank receives and passes on can stay in one thread block.
Chunks take channels in turn. Transfers between the same two ranks over different paths get different channels where
there are enough of them, since a runtime chooses the path of a connection, not of a message.

At every rank, and for every channel, a connection that comes in and one that goes out share a thread block where most
is passed on from one to the other; with ``tight``, those that are left are paired as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.lower import Transfers
from coppice.rows import distinct, grouped, inverse, nth_in_run, rows_of_groups, sorted_rows

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Thread blocks of all ranks."""

    rows: _Ints  # (rank, send peer or -1, receive peer or -1, channel) of each, sorted (int64)
    most: int  # Most thread blocks of a rank

    def at_ends(self, src: _Ints, dst: _Ints, channel: _Ints) -> tuple[_Ints, _Ints]:
        """Thread block (row) that sends on each connection, and the one that receives from it."""
        rows = self.rows
        span = int(max(rows[:, :3].max(initial=0), src.max(initial=0), dst.max(initial=0))) + 1
        width = int(max(rows[:, 3].max(initial=0), channel.max(initial=0))) + 1
        wanted = (src * span + dst) * width + channel
        found = []
        for sender, receiver in ((rows[:, 0], rows[:, 1]), (rows[:, 2], rows[:, 0])):
            used = np.flatnonzero((sender >= 0) & (receiver >= 0))
            key = ((sender * span + receiver) * width + rows[:, 3])[used]
            by = np.argsort(key)
            found.append(used[by[np.searchsorted(key[by], wanted)]] if len(wanted) else wanted)
        return found[0], found[1]


@dataclass(frozen=True, eq=False)
class _Links:
    """Connections that carry something, sorted."""

    key: _Ints  # A number for each
    src: _Ints  # Sending rank
    dst: _Ints  # Receiving rank
    channel: _Ints  # Channel


def _span(rows: Transfers) -> int:
    """More than any rank."""
    return int(max(rows.src.max(initial=0), rows.dst.max(initial=0))) + 1


def _pair(rows: Transfers) -> _Ints:
    """A number for each (sender, receiver)."""
    return rows.src * _span(rows) + rows.dst


def most_trees_together(rows: Transfers) -> int:
    """Largest number of runs that pass between the same two ranks."""
    runs = rows.run.max(initial=0) + 1
    pairs, _ = distinct(_pair(rows) * runs + rows.run)
    return int(distinct(pairs // runs)[1].max(initial=1))


def paths_differ(rows: Transfers) -> int:
    """Largest number of different paths between the same two ranks."""
    paths = rows.path.max(initial=-1) + 2
    ways, _ = distinct(_pair(rows) * paths + rows.path + 1)
    return int(distinct(ways // paths)[1].max(initial=1))


def colors_of(rows: Transfers, runs: int, colors: int) -> _Ints:
    """Channel of each row, of ``colors`` channels."""
    if colors == 1:
        return np.zeros(len(rows.run), dtype=np.int64)
    used, which = np.unique(rows.run, return_inverse=True)
    chosen = np.zeros(runs, dtype=np.int64)
    dealt = _dealt(len(used), colors)
    chosen[used] = dealt
    if paths_differ(rows) > 1:
        order, start = grouped(which, len(used))
        bounds = start.tolist()
        pair = _pair(rows)[order].tolist()
        path = rows.path[order].tolist()
        taken: list[dict[int, int]] = [{} for _ in range(colors)]
        for place, run in enumerate(used.tolist()):
            edges = list(
                zip(*(column[bounds[place] : bounds[place + 1]] for column in (pair, path)), strict=True)
            )
            turn = [(int(dealt[place]) + shift) % colors for shift in range(colors)]
            fits = (c for c in turn if all(taken[c].get(pair, path) == path for pair, path in edges))
            color = next(fits, turn[0])
            for edge, way in edges:
                taken[color].setdefault(edge, way)
            chosen[run] = color
    return chosen[rows.run]


def _dealt(number: int, colors: int) -> _Ints:
    """Colors in turn, by the sum of digits to the base ``colors``: numbers at any one distance take turns as well.

    Ranks that are a box apart send what begins at numbers a box apart; by the last digit alone, all of it would be one
    color where the size of a box is a multiple of ``colors``.
    """
    rest = np.arange(number, dtype=np.int64)
    total = np.zeros(number, dtype=np.int64)
    while rest.any():
        rest, digit = np.divmod(rest, colors)
        total += digit
    return total % colors


def fewest_blocks(rows: Transfers, color: _Ints) -> int:
    """Thread blocks that the rank which has most needs at least: as :func:`blocks_of` finds them if ``tight``."""
    links = _links(rows, color)
    width = int(links.channel.max(initial=0)) + 1
    sizes = [
        np.bincount(end * width + links.channel, minlength=_span(rows) * width)
        for end in (links.src, links.dst)
    ]
    return int(np.maximum(*sizes).reshape(-1, width).sum(axis=1).max(initial=0))


def blocks_of(rows: Transfers, color: _Ints, *, tight: bool) -> Blocks:
    """Thread blocks for the connections of all rows."""
    links = _links(rows, color)
    into, outof = _passed_on(rows, color, links)
    receives, sends = _matched(into, outof, len(links.key))
    if tight:
        more = _paired_off(links, receives, sends)
        receives, sends = np.append(receives, more[0]), np.append(sends, more[1])
    alone = np.ones((2, len(links.key)), dtype=np.bool_)
    alone[0, receives], alone[1, sends] = False, False
    only_receives, only_sends = np.flatnonzero(alone[0]), np.flatnonzero(alone[1])
    none = np.full(len(links.key), -1)
    found = np.stack(
        [
            np.concatenate([links.dst[receives], links.dst[only_receives], links.src[only_sends]]),
            np.concatenate([links.dst[sends], none[only_receives], links.dst[only_sends]]),
            np.concatenate([links.src[receives], links.src[only_receives], none[only_sends]]),
            np.concatenate([links.channel[each] for each in (receives, only_receives, only_sends)]),
        ],
        axis=1,
    )
    found = found[sorted_rows(*found.T)]
    return Blocks(rows=found, most=int(np.bincount(found[:, 0], minlength=1).max(initial=0)))


def _links(rows: Transfers, color: _Ints) -> _Links:
    channels = int(color.max(initial=0)) + 1
    key, _ = distinct(_pair(rows) * channels + color)
    pair, channel = np.divmod(key, channels)
    src, dst = np.divmod(pair, _span(rows))
    return _Links(key, src, dst, channel)


def _passed_on(rows: Transfers, color: _Ints, links: _Links) -> tuple[_Ints, _Ints]:
    """(link in, link out) of every pair that passes runs on, those that pass on most runs first."""
    span, channels = _span(rows), int(color.max(initial=0)) + 1
    into, outof = rows.run * span + rows.dst, rows.run * span + rows.src
    by = sorted_rows(into, rows.round)
    ordered = into[by]
    last = np.searchsorted(ordered, outof, side="right") - 1  # what a rank passes on came last, as a rule
    has = np.flatnonzero(last >= 0)
    has = has[ordered[last[has]] == outof[has]]
    source = rows.src[by[last[has]]]
    key = ((rows.src[has] * channels + color[has]) * span + source) * span + rows.dst[has]
    names, counts = distinct(key)
    names = names[np.argsort(-counts, kind="stable")]
    rest, send = np.divmod(names, span)
    rest, receive = np.divmod(rest, span)
    rank, channel = np.divmod(rest, channels)
    there = np.minimum(
        np.searchsorted(links.key, (receive * span + rank) * channels + channel), max(len(links.key) - 1, 0)
    )
    kept = links.key[there] == (receive * span + rank) * channels + channel if len(there) else there > 0
    return there[kept], np.searchsorted(links.key, (rank * span + send) * channels + channel)[kept]


def _matched(into: _Ints, outof: _Ints, links: int) -> tuple[_Ints, _Ints]:
    """Pairs taken one after the other where both links are still free; here, all that come first at both at once."""
    free = np.ones((2, links), dtype=np.bool_)
    first = np.zeros((2, links), dtype=np.int64)
    found: list[tuple[_Ints, _Ints]] = [(into[:0], outof[:0])]
    while len(into):
        place = np.arange(len(into))[::-1]
        first[0, into[::-1]], first[1, outof[::-1]] = place, place  # the last one assigned stays
        taken = (first[0, into] == place[::-1]) & (first[1, outof] == place[::-1])
        found.append((into[taken], outof[taken]))
        free[0, into[taken]], free[1, outof[taken]] = False, False
        left = free[0, into] & free[1, outof]
        into, outof = into[left], outof[left]
    return np.concatenate([each for each, _ in found]), np.concatenate([each for _, each in found])


def _paired_off(links: _Links, receives: _Ints, sends: _Ints) -> tuple[_Ints, _Ints]:
    """Of the links that are left at a rank and channel, the last one in with the last one out, and so on."""
    width = int(links.channel.max(initial=0)) + 1
    ends = []
    for used, rank, peer in ((receives, links.dst, links.src), (sends, links.src, links.dst)):
        free = np.ones(len(links.key), dtype=np.bool_)
        free[used] = False
        left = np.flatnonzero(free)
        place = rank[left] * width + links.channel[left]
        by = sorted_rows(place, -peer[left])
        left, place = left[by], place[by]
        ends.append((left, place * (len(links.key) + 1) + nth_in_run(place)))
    (one, one_key), (other, other_key) = ends
    _, here, there = np.intersect1d(one_key, other_key, assume_unique=True, return_indices=True)
    return one[here], other[there]


def waited_first(program: Program) -> Program:
    """The same program; at every rank, thread blocks that others wait for have the lowest numbers.

    Loaders keep the number of a thread block that is waited for in few bits. Any numbering carries out the same
    program.

    Args:
        program: A program whose dependencies name thread blocks that exist.
    """
    target = program.dep_target_block
    idle = np.ones(program.num_blocks, dtype=np.bool_)
    idle[target] = False
    order = np.lexsort((idle, program.block_rank))
    steps, step_start = rows_of_groups(program.step_start, order)
    deps, dep_start = rows_of_groups(program.dep_start, steps)
    new_id = inverse(order)[target] - program.rank_start[program.block_rank[target]]
    return replace(
        program,
        block_send=program.block_send[order],
        block_recv=program.block_recv[order],
        block_channel=program.block_channel[order],
        step_start=step_start,
        op=program.op[steps],
        src_buffer=program.src_buffer[steps],
        src_offset=program.src_offset[steps],
        dst_buffer=program.dst_buffer[steps],
        dst_offset=program.dst_offset[steps],
        count=program.count[steps],
        dep_start=dep_start,
        dep_block=new_id[deps].astype(np.int32),
        dep_step=program.dep_step[deps],
    )
