"""Nodes of a Chakra trace and their dependencies, for all ranks, as columns.

A message is a send at one rank and a receipt at another, and an addition after it where something is added. What waits
for what comes from the gates of :mod:`coppice.schedule.messages`: the nodes of a gate wait for those of the gate
before it at the same rank. Where many wait for many, a joining node between them keeps the number of edges linear.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.errors import InputError
from coppice.rows import first_rows
from coppice.schedule.messages import Messages, Routes
from coppice.schedule.schedule import Op, Schedule

_MOST_PAIRS = 64
"""So many pairs of a node and one that waits for it are written between two gates; beyond, a joining node stands."""

Ints = NDArray[np.int64]


class TraceNodeKind(enum.IntEnum):
    """Kind of a trace node, in the order of the nodes of one step."""

    SEND = 0
    RECEIVE = 1
    ADD = 2
    JOIN = 3


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class MessageRows(Brief):
    """Schedule rows of each message."""

    start: Ints  # Message m carries `chunk[start[m] : start[m + 1]]` (int64)
    chunk: NDArray[np.int32]  # Chunks (int32)
    adds: NDArray[np.bool_]  # The receiver adds this chunk to what it has (bool)
    step: NDArray[np.int32]  # Step of each message, -1 where there are none (int32)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TraceGraph(Brief):
    """Nodes of all ranks, rank by rank, in an executable order.

    The number of a node is its place among those of its rank, counted from 1.
    """

    start: Ints  # Nodes of rank r are rows `start[r] .. start[r + 1] - 1` (int64).
    kind: NDArray[np.int8]  # :class:`TraceNodeKind` (int8)
    item: Ints  # Message of a node, or gate of a joining one (int64)
    # Node i waits for the numbers `pool[wait_start[i] : wait_start[i] + wait_count[i]]` (int64)
    wait_start: Ints
    wait_count: Ints  # How many these are (int64)
    pool: Ints  # Numbers of nodes (int64)
    further: dict[int, list[int]]  # Numbers that a send waits for beyond these, by message


def rows_of(messages: Messages, schedule: Schedule) -> MessageRows:
    """Schedule rows that travel in each message.

    Args:
        schedule: The schedule with its paths named and cut into pieces, as it was when messages were made of it.
    """
    op = schedule.op == Op.REDUCE
    step = schedule.step[messages.first_row]
    rows = schedule.num_transfers
    if messages.count == rows:
        start = np.arange(rows + 1, dtype=np.int64)
        return MessageRows(start=start, chunk=schedule.chunk, adds=op, step=step)
    path_route = _route_of_paths(schedule, messages.routes)
    key = schedule.step.astype(np.int64) * (int(path_route.max()) + 1) + path_route[schedule.path]
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    # Messages are in the order of their first rows.
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    message = number[group.reshape(-1)]
    order = np.argsort(message, kind="stable")
    start = np.searchsorted(message[order], np.arange(messages.count + 1))
    return MessageRows(start=start.astype(np.int64), chunk=schedule.chunk[order], adds=op[order], step=step)


def graph_of(messages: Messages, rows: MessageRows) -> TraceGraph:
    """Build the nodes of all ranks."""
    topology, count = messages.topology, messages.count
    src = topology.rank[messages.src].astype(np.int64)
    dst = topology.rank[messages.dst].astype(np.int64)
    every = np.arange(count, dtype=np.int64)
    stepless = not count or rows.step[0] < 0
    when = every if stepless else rows.step.astype(np.int64)
    adding = np.flatnonzero(
        np.bincount(np.repeat(every, np.diff(rows.start)), weights=rows.adds, minlength=count)
    )

    gate = np.concatenate([messages.send_gate, messages.receive_gate]).astype(np.int64)
    gates = len(messages.chained)
    chained = messages.chained.astype(np.bool_)
    members = np.bincount(gate, minlength=gates)
    followers = np.where(np.append(chained[1:], False), np.append(members[1:], 0), 0)[:gates]
    joined = np.flatnonzero(members * followers > _MOST_PAIRS)
    last, place = np.zeros(gates, dtype=np.int64), np.zeros(gates, dtype=np.int64)
    np.maximum.at(last, gate, np.concatenate([every, every]))
    place[gate] = np.concatenate([src, dst])

    kinds = (count, count, len(adding), len(joined))
    kind = np.repeat(np.arange(len(TraceNodeKind), dtype=np.int8), kinds)
    rank = np.concatenate([src, dst, dst[adding], place[joined]])
    time = np.concatenate([when, when, when[adding], when[last[joined]]])
    item = np.concatenate([every, every, adding, joined])
    order = np.lexsort((item, kind, time, rank))
    start = np.searchsorted(rank[order], np.arange(topology.num_ranks + 1)).astype(np.int64)
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(1, len(order) + 1)
    number -= start[rank]
    sends, receipts, additions, joins = np.split(number, np.cumsum(kinds)[:-1])

    done = receipts.copy()
    done[adding] = additions
    end = np.concatenate([sends, done])
    pool = np.concatenate([end[np.lexsort((end, gate))], joins, receipts[adding]])
    gate_start = first_rows(members)
    # What stands for a whole gate: its joining node, or all its members.
    stand_start, stand_count = gate_start.copy(), members.copy()
    stand_start[joined] = 2 * count + np.arange(len(joined))
    stand_count[joined] = 1
    before = gate - 1
    wait_start = np.concatenate(
        [stand_start[before], 2 * count + len(joined) + np.arange(len(adding)), gate_start[joined]]
    )
    wait_count = np.concatenate(
        [
            np.where(chained[gate], stand_count[before], 0),
            np.ones(len(adding), dtype=np.int64),
            members[joined],
        ]
    )
    return TraceGraph(
        start=start,
        kind=kind[order],
        item=item[order],
        wait_start=wait_start[order],
        wait_count=wait_count[order],
        pool=pool,
        further=_further(messages, src, dst, sends, done),
    )


def _route_of_paths(schedule: Schedule, routes: Routes) -> Ints:
    """Route of each path of the schedule, -1 for one that nothing takes."""
    start = routes.node_start.tolist()
    known = {routes.nodes[a:b].tobytes(): each for each, (a, b) in enumerate(pairwise(start))}
    start = schedule.path_start.tolist()
    return np.array(
        [known.get(schedule.path_nodes[a:b].tobytes(), -1) for a, b in pairwise(start)],
        dtype=np.int64,
    )


def _further(messages: Messages, src: Ints, dst: Ints, sends: Ints, done: Ints) -> dict[int, list[int]]:
    """Nodes that sends wait for because their rows name others."""
    further: dict[int, list[int]] = {}
    if not len(messages.after):
        return further
    waits = np.repeat(np.arange(messages.count), np.diff(messages.after_start))
    for message, other in zip(waits.tolist(), messages.after.tolist(), strict=True):
        here = src[message]
        if dst[other] == here:
            number = done[other]
        elif src[other] == here:
            number = sends[other]
        else:
            raise InputError(
                f"expected transfers that wait for what their own sender sends or receives, found message {message} of "
                f"rank {here} after message {other} from rank {src[other]} to rank {dst[other]}: leave out that order."
            )
        further.setdefault(message, []).append(int(number))
    return further
