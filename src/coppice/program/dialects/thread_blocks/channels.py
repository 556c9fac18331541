"""Assign channels to transfers: as many as are useful and fit, separate for each instance.

A runtime connects a limited number of peers of a rank on one channel. Where chunks need more, the connections of a
channel are dealt out over several.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from coppice.errors import CheckError, InputError
from coppice.program.dialects.thread_blocks.assignment import (
    Blocks,
    blocks_of,
    colors_of,
    fewest_blocks,
    most_trees_together,
    paths_differ,
)
from coppice.program.dialects.thread_blocks.nics import Exits, to_nics
from coppice.program.lower import Transfers
from coppice.rows import begins_run, distinct, sorted_rows
from coppice.schedule.schedule import Schedule

_Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ChannelLimits:
    """Limits of the assignment."""

    channels: int  # Most channels
    blocks: int | None = None  # Most thread blocks of a rank
    peers: int | None = None  # Most peers of a rank, each way, on one channel


def spread(
    # The transfers; those of an instance are the same as those of any other, in the same order
    rows: Transfers,
    part: _Ints,
    runs: int,
    limits: ChannelLimits,
    *,
    stepped: bool,
    exits: Exits | None = None,  # NICs by which they are to leave, where that depends on the channel
) -> tuple[_Ints, Blocks]:
    """Assign channels and thread blocks.

    Returns:
        The channel of each transfer, and the thread blocks.
    """
    instances = int(part.max(initial=0)) + 1
    if limits.channels < 1:
        raise InputError(f"expected 1 channel or more, found {limits.channels}.")
    if instances > limits.channels:
        raise CheckError(
            f"expected at most {limits.channels} instances, one channel each, found {instances}: use fewer, or more "
            "channels."
        )
    one = rows if instances == 1 else _only(rows, part == 0)
    leaving = exits if exits is None or instances == 1 else exits.where(part == 0)
    widest = 1 if exits is None else int(exits.share.max(initial=1))
    useful = paths_differ(one) if stepped else most_trees_together(one)
    channels = limits.channels // instances
    tried = min(channels, max(useful, widest))
    while True:
        color: _Ints | None = colors_of(one, runs, tried)
        if color is not None and leaving is not None:
            color = to_nics(one.run, color, leaving, tried)
        if color is not None and limits.peers is not None:
            color = within_peers(one, color, limits.peers, max_channels=channels, multiple=widest)
        found = None if color is None else _blocks(one, color, instances, limits.blocks)
        if color is not None and found is not None:
            return (color, found) if instances == 1 else _replicated(part, color, found, widest)
        if tried == widest or tried == 1:
            raise CheckError(_refusal(one, color, instances, limits))
        tried = max(widest, tried - 1 if len(one.run) < 2**15 else tried // 2)


def _blocks(rows: Transfers, color: _Ints, instances: int, most: int | None) -> Blocks | None:
    """Thread blocks of one instance, loosely paired if that fits; None where nothing does."""
    if most is not None and fewest_blocks(rows, color) * instances > most:
        return None
    loose = blocks_of(rows, color, tight=False)
    fits = most is None or loose.most * instances <= most
    return loose if fits else blocks_of(rows, color, tight=True)


def _replicated(part: _Ints, color: _Ints, one: Blocks, widest: int) -> tuple[_Ints, Blocks]:
    """Every instance with channels of its own, its thread blocks those of the first one."""
    used = -(-(int(color.max(initial=0)) + 1) // widest) * widest  # channels keep their NICs
    instances = int(part.max()) + 1
    everywhere = np.empty(len(part), dtype=np.int64)
    for each in range(instances):
        everywhere[part == each] = color + each * used
    found = np.concatenate([one.rows + np.array([0, 0, 0, each * used]) for each in range(instances)])
    return everywhere, Blocks(rows=found[sorted_rows(*found.T)], most=one.most * instances)


def _refusal(rows: Transfers, color: _Ints | None, instances: int, limits: ChannelLimits) -> str:
    """Why not even one channel for each instance fits."""
    if color is None:
        return (
            f"expected peers for {limits.channels} channels, {limits.peers} of a rank on each, found more: allow more "
            "channels, or use fewer instances."
        )
    fewest = fewest_blocks(rows, color) * instances
    words = "one for each peer" if instances == 1 else f"one for each peer and each of {instances} instances"
    return (
        f"expected at most {limits.blocks} thread blocks a rank, found {fewest}, {words}: "
        f"{'plan with fewer peers a rank' if instances == 1 else 'use fewer instances'}."
    )


def _only(rows: Transfers, mask: NDArray[np.bool_]) -> Transfers:
    """The rows of a mask."""
    columns = {each.name: getattr(rows, each.name)[mask] for each in fields(rows)}
    return Transfers(**columns)


def path_numbers(schedule: Schedule) -> _Ints:
    """Number of each path in a schedule's table; equal paths share one."""
    start = schedule.path_start
    length = np.diff(start)
    number = np.zeros(len(length), dtype=np.int64)
    found = 0
    for each in np.unique(length).tolist():
        rows = np.flatnonzero(length == each)
        nodes = schedule.path_nodes[start[rows][:, None] + np.arange(each)].astype(np.int64)
        order = sorted_rows(*nodes.T)
        first = begins_run(*nodes[order].T)
        number[rows[order]] = found + np.cumsum(first) - 1
        found += int(first.sum())
    return number


def within_peers(
    rows: Transfers, color: _Ints, max_peers: int, *, max_channels: int, multiple: int = 1
) -> _Ints | None:
    """Assign channels so that a rank's number of peers on one channel is bounded.

    Connections are dealt out in the order of the distance between their ranks, each to the first channel with room at
    both ends: where all ranks have peers at the same distances, that takes as few as there can be.

    Args:
        max_peers: Most peers on a channel, each way.
        multiple: What is added to a channel is a multiple of this.

    Returns:
        The channel of each; c becomes c, c + n, c + 2 n and so on, where n channels were used, or the next multiple.
        None where that would take more channels than there may be.
    """
    channels = -(-(int(color.max(initial=0)) + 1) // multiple) * multiple
    span = int(max(rows.src.max(initial=0), rows.dst.max(initial=0))) + 1
    link = (color * span + rows.src) * span + rows.dst
    links, _ = distinct(link)
    sender = links // span
    receiver = sender // span * span + links % span
    turns = -(-max(_most(sender), _most(receiver)) // max_peers)
    if turns <= 1:
        return color
    if channels * turns > max_channels:
        return None
    distance = (links % span - sender) % span
    order = np.argsort(distance, kind="stable")
    bounds = np.flatnonzero(np.diff(distance[order])) + 1
    turn = np.zeros(len(links), dtype=np.int64)
    room = np.full(
        (2, max_channels // channels, channels * span), max_peers
    )  # by end, turn, and rank of a channel
    for each in np.split(order, bounds):  # at one distance no two share an end
        left = each
        for number in range(room.shape[1]):
            fits = (room[0, number, sender[left]] > 0) & (room[1, number, receiver[left]] > 0)
            taken, left = left[fits], left[~fits]
            turn[taken] = number
            room[0, number, sender[taken]] -= 1
            room[1, number, receiver[taken]] -= 1
        if len(left):
            return None
    return color + channels * turn[np.searchsorted(links, link)]


def _most(ends: _Ints) -> int:
    return int(distinct(ends)[1].max(initial=0))
