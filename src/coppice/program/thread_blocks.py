"""Which thread block carries which transfers: channels for chunks, then thread blocks for connections.

All transfers of a chunk take one channel, so that what a rank receives and passes on can stay in one thread block.
Chunks take channels in turn. Transfers between the same two ranks over different paths get different channels where
there are enough of them, since a runtime chooses the path of a connection, not of a message.

At every rank, and for every channel, a connection that comes in and one that goes out share a thread block where most
is passed on from one to the other; with ``tight``, those that are left are paired as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.program.traffic import Rows

__all__ = ["Blocks", "blocks_of", "colors_of", "most_trees_together", "paths_differ"]

_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Blocks:
    """Thread blocks of all ranks.

    Attributes:
        rows: (rank, send peer or -1, receive peer or -1, channel) of each, sorted.
        sender: Thread block (row) of each (sender, receiver, channel) at its sender.
        receiver: And at its receiver.
        most: Most thread blocks of a rank.
    """

    rows: list[tuple[int, int, int, int]]
    sender: dict[tuple[int, int, int], int]
    receiver: dict[tuple[int, int, int], int]
    most: int


def _span(rows: Rows) -> int:
    """More than any rank."""
    return int(max(rows.src.max(initial=0), rows.dst.max(initial=0))) + 1


def _pair(rows: Rows) -> _Ints:
    """A number for each (sender, receiver)."""
    return rows.src * _span(rows) + rows.dst


def most_trees_together(rows: Rows) -> int:
    """Largest number of runs that pass between the same two ranks."""
    pair = np.unique(_pair(rows) * (rows.run.max(initial=0) + 1) + rows.run) // (rows.run.max(initial=0) + 1)
    _, counts = np.unique(pair, return_counts=True)
    return int(counts.max(initial=1))


def paths_differ(rows: Rows) -> int:
    """Largest number of different paths between the same two ranks."""
    paths = rows.path.max(initial=-1) + 2
    _, counts = np.unique(np.unique(_pair(rows) * paths + rows.path + 1) // paths, return_counts=True)
    return int(counts.max(initial=1))


def colors_of(rows: Rows, runs: int, colors: int) -> _Ints:
    """Channel of each row, of ``colors`` channels.

    Args:
        rows: The transfers.
        runs: Number of runs.
        colors: Number of channels.
    """
    if colors == 1:
        return np.zeros(len(rows.run), dtype=np.int64)
    used, inverse = np.unique(rows.run, return_inverse=True)
    chosen = np.zeros(runs, dtype=np.int64)
    chosen[used] = np.arange(len(used)) % colors
    if paths_differ(rows) > 1:
        order = np.argsort(inverse, kind="stable")
        bounds = np.searchsorted(inverse[order], np.arange(len(used) + 1)).tolist()
        pair = _pair(rows)[order].tolist()
        path = rows.path[order].tolist()
        taken: list[dict[int, int]] = [{} for _ in range(colors)]
        for place, run in enumerate(used.tolist()):
            edges = list(
                zip(*(column[bounds[place] : bounds[place + 1]] for column in (pair, path)), strict=True)
            )
            turn = [(place + shift) % colors for shift in range(colors)]
            fits = (c for c in turn if all(taken[c].get(pair, path) == path for pair, path in edges))
            color = next(fits, turn[0])
            for edge, way in edges:
                taken[color].setdefault(edge, way)
            chosen[run] = color
    return chosen[rows.run]


def blocks_of(rows: Rows, color: _Ints, *, tight: bool) -> Blocks:
    """Thread blocks for the connections of all rows."""
    pairs = _pairs(rows, color)
    span, channels = _span(rows), int(color.max(initial=0)) + 1
    links = [
        (*divmod(pair, span), channel)
        for pair, channel in (
            divmod(key, channels) for key in np.unique(_pair(rows) * channels + color).tolist()
        )
    ]
    out: dict[tuple[int, int], list[int]] = {}
    into: dict[tuple[int, int], list[int]] = {}
    for src, dst, channel in links:
        out.setdefault((src, channel), []).append(dst)
        into.setdefault((dst, channel), []).append(src)
    found: list[tuple[int, int, int, int]] = []
    for rank, channel in sorted({*out, *into}):
        sends, receives = (
            dict.fromkeys(out.get((rank, channel), [])),
            dict.fromkeys(into.get((rank, channel), [])),
        )
        for source, target in pairs.get((rank, channel), ()):
            if source in receives and target in sends:
                del receives[source], sends[target]
                found.append((rank, target, source, channel))
        left, right = list(sends), list(receives)
        while tight and left and right:
            found.append((rank, left.pop(), right.pop(), channel))
        found += [(rank, target, -1, channel) for target in left]
        found += [(rank, -1, source, channel) for source in right]
    found.sort()
    counts = np.bincount([rank for rank, *_ in found], minlength=1)
    return Blocks(
        rows=found,
        sender={(rank, send, ch): row for row, (rank, send, _, ch) in enumerate(found) if send >= 0},
        receiver={(recv, rank, ch): row for row, (rank, _, recv, ch) in enumerate(found) if recv >= 0},
        most=int(counts.max(initial=0)),
    )


def _pairs(rows: Rows, color: _Ints) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """For each (rank, channel): (receive peer, send peer), by how many runs are passed on, most first."""
    span, channels = _span(rows), int(color.max(initial=0)) + 1
    into, outof = rows.run * span + rows.dst, rows.run * span + rows.src
    by = np.lexsort((rows.round, into))
    sorted_into, place = into[by], np.searchsorted(into[by], outof, side="left")
    last = np.searchsorted(sorted_into, outof, side="right") - 1  # what a rank passes on came last, as a rule
    has = np.flatnonzero(place <= last)
    source = rows.src[by[last[has]]]
    key = ((rows.src[has] * channels + color[has]) * span + source) * span + rows.dst[has]
    names, counts = np.unique(key, return_counts=True)
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for place in np.argsort(-counts, kind="stable").tolist():
        rest, send = divmod(int(names[place]), span)
        rest, receive = divmod(rest, span)
        rank, channel = divmod(rest, channels)
        found.setdefault((rank, channel), []).append((receive, send))
    return found
