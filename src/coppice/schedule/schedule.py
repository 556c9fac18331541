"""Schedules: the output of planners and the input of consumers, with cutting of chunks and routing.

A schedule moves *chunks* of *slots* between ranks. Slots are the R blocks of all-gather, reduce-scatter, all-reduce,
gather and scatter, R x R blocks (source * R + destination) of all-to-all, and one block of broadcast, reduce and
barrier. Chunks of a slot lie in id order and their shares add up to one. Transfers are topologically ordered rows: a
transfer sends the value that (chunk, src) holds after all earlier rows into it, not counting rows of its own step.

Rows of one step (0 or more) with the same sender, receiver and path travel as one message. A rank posts all its
messages of a step at once, in row order, and goes on to its next step when all of them are complete; rows without a
step (-1) are messages of their own that wait for nothing but what they depend on.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.display import Brief
from coppice.equality import ByContent
from coppice.errors import InputError
from coppice.rows import inverse, rows_of_groups
from coppice.text import plural
from coppice.topology.model import Topology
from coppice.topology.routing import Router


class Op(enum.IntEnum):
    """Operation of the receiver on a chunk."""

    COPY = 0
    REDUCE = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Schedule(ByContent):
    """Chunks and transfers of one collective on one topology, as columns."""

    topology: Topology  # Where the transfers happen
    collective: Collective  # What they implement
    root: int  # Root rank of broadcast and reduce, otherwise -1
    # Relative size of each slot (int64, length = number of slots); equal sizes are all ones
    slot_weight: NDArray[np.int64]
    chunk_slot: NDArray[np.int32]  # Slot of each chunk (int32), ascending
    # Weight of each chunk (int64); its share of its slot is `share / sum(shares of the slot)`
    chunk_share: NDArray[np.int64]
    src: NDArray[np.int32]  # Sending rank of each transfer (int32)
    dst: NDArray[np.int32]  # Receiving rank (int32)
    chunk: NDArray[np.int32]  # Chunk that is sent (int32)
    op: NDArray[np.int8]  # :class:`Op` (int8)
    path: NDArray[np.int32]  # Row of the node sequence that it takes, or -1 for default routing (int32)
    step: NDArray[np.int32]  # Step number, or -1 where only dependencies order the rows (int32)
    # Further dependencies of transfer i: rows `after[after_start[i] : after_start[i + 1]]` (int64)
    after_start: NDArray[np.int64]
    after: NDArray[np.int32]  # Row numbers, each smaller than the row that waits (int32)
    # Nodes of path p are `path_nodes[path_start[p] : path_start[p + 1]]`, both ends included (int64)
    path_start: NDArray[np.int64]
    path_nodes: NDArray[np.int32]  # Node sequences of all paths (int32)
    # Claim that every reduction joins neighbouring intervals of ranks, so that the operands of an operator
    # that does not commute can be kept in rank order
    ordered: bool = False

    def __repr__(self) -> str:
        """In short what it is.

        >>> from coppice.planners.algorithms.algorithm import AlgorithmCase
        >>> from coppice.planners.algorithms.parts.moves import Moves, whole
        >>> from coppice.topology.presets import preset
        >>> case = AlgorithmCase(topology=preset("ring", gpus=3), collective=Collective.BROADCAST, root=0)
        >>> chain = Moves(case, whole(case))
        >>> chain.add([0, 1], [0, 1], [1, 2], 0)
        >>> chain.schedule()
        Schedule(broadcast on 'ring of 3': 1 chunk, 2 transfers in 2 steps)
        """
        sizes = f"{plural(self.num_chunks, 'chunk')}, {plural(self.num_transfers, 'transfer')}"
        last = int(self.step.max(initial=-1))
        steps = f" in {plural(last + 1, 'step')}" if last >= 0 else ""
        return f"Schedule({self.collective} on {self.topology.name[:80]!r}: {sizes}{steps})"

    @property
    def num_transfers(self) -> int:
        """Number of transfers."""
        return len(self.src)

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunk_slot)


MAX_ROWS = 2**26
"""Most transfers that a cut may lead to: a few gigabytes of columns."""


def in_parts(schedule: Schedule, parts: int) -> Schedule:
    """Cut every chunk into ``parts`` equal parts that keep its steps.

    Part j of chunk c is chunk ``c * parts + j``, and part j of transfer i is row ``i * parts + j``, so that a column
    of the new rows is made from one of the old rows with ``numpy.repeat``.

    Args:
        parts: Number of parts, 1 or more.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.planners.algorithms.catalogue import case_of, find, make
        >>> from coppice.bounds.problem import Problem
        >>> from coppice.topology.presets import preset
        >>> ring = find("ring", Collective.ALL_GATHER)
        >>> problem = Problem(topology=preset("star", gpus=4), collective=Collective.ALL_GATHER)
        >>> halves = in_parts(make(ring, case_of(ring, problem)), 2)
        >>> halves.num_chunks, halves.num_transfers, halves.chunk[:4].tolist()
        (8, 24, [0, 1, 2, 3])
    """
    rows = schedule.num_transfers
    if parts < 1 or parts * max(rows, schedule.num_chunks) > MAX_ROWS:
        raise InputError(
            f"expected 1 or more parts and at most {MAX_ROWS} transfers in all, found {parts} x {rows}: use fewer."
        )
    if parts == 1:
        return schedule
    part = np.arange(parts, dtype=np.int32)
    waits, after_start = rows_of_groups(schedule.after_start, np.repeat(np.arange(rows), parts))
    after_part = np.repeat(np.tile(part, rows), np.diff(after_start))
    return replace(
        schedule,
        chunk_slot=np.repeat(schedule.chunk_slot, parts),
        chunk_share=np.repeat(schedule.chunk_share, parts),
        src=np.repeat(schedule.src, parts),
        dst=np.repeat(schedule.dst, parts),
        chunk=np.repeat(schedule.chunk, parts) * np.int32(parts) + np.tile(part, rows),
        op=np.repeat(schedule.op, parts),
        path=np.repeat(schedule.path, parts),
        step=np.repeat(schedule.step, parts),
        after_start=after_start,
        after=schedule.after[waits] * np.int32(parts) + after_part,
    )


def in_pieces(schedule: Schedule, pieces: int) -> Schedule:
    """Cut every chunk into ``pieces`` equal sub-chunks that are pipelined.

    Rows come piece after piece. Piece j runs j steps behind the first one, where there are steps; dependencies hold
    piece by piece.

    Args:
        pieces: Number of pieces, 1 or more.

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
        raise InputError(
            f"expected 1 or more pieces and at most 2^31 - 1 transfers in all, found {pieces} x {rows}."
        )
    if pieces == 1:
        return schedule
    piece = np.repeat(np.arange(pieces, dtype=np.int64), rows)
    chunk = np.tile(schedule.chunk, pieces) * np.int64(pieces) + piece
    step = np.tile(schedule.step, pieces)
    step = np.where(step >= 0, step + piece, step)
    after_start, after = _repeated_dependencies(schedule, pieces)
    order: NDArray[np.int64] | slice = slice(None)
    if (step >= 0).any():
        order = np.argsort(step, kind="stable")
        waits, after_start = rows_of_groups(after_start, order)
        after = inverse(order)[after[waits]].astype(np.int32)
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


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class PathHops(Brief):
    """Links of each path."""

    path: NDArray[np.int64]  # Path of each hop (int64), ascending
    # Link of each hop, or -1 where the topology has none between the two nodes (int64)
    link: NDArray[np.int64]
    src: NDArray[np.int32]  # Node that the hop leaves (int32)
    dst: NDArray[np.int32]  # Node that the hop enters (int32)
    num_paths: int  # Number of paths

    def latency_us(self, topology: Topology) -> NDArray[np.float64]:
        """Sum of the link latencies of each path in microseconds."""
        total = np.zeros(self.num_paths, dtype=np.float64)
        np.add.at(total, self.path, topology.latency_us[self.link])
        return total


def hops_of(topology: Topology, path_start: NDArray[np.integer], path_nodes: NDArray[np.int32]) -> PathHops:
    """Links of each path in a table of paths of two nodes or more.

    Examples:
        >>> from fractions import Fraction
        >>> from coppice.topology.model import Link, Node
        >>> line = Topology.of("line", [Node(id="a"), Node(id="b"), Node(id="c")],
        ...                    [Link(src="a", dst="b", gb_per_s=Fraction(1)),
        ...                     Link(src="b", dst="c", gb_per_s=Fraction(1))])
        >>> hops_of(line, np.array([0, 3]), np.array([0, 1, 2])).link.tolist()
        [0, 2]
    """
    lengths = np.diff(path_start)
    path_of_node = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    last = np.zeros(len(path_nodes), dtype=np.bool_)
    last[path_start[1:] - 1] = True
    src = path_nodes[~last]
    first = np.zeros(len(path_nodes), dtype=np.bool_)
    first[path_start[:-1]] = True
    dst = path_nodes[~first]
    key = src.astype(np.int64) * topology.num_nodes + dst
    link_key = topology.src.astype(np.int64) * topology.num_nodes + topology.dst
    order = np.argsort(link_key, kind="stable")
    link_key = link_key[order]
    place = np.searchsorted(link_key, key)
    link = np.full(len(key), -1, dtype=np.int64)
    inside = place < len(link_key)
    found = np.flatnonzero(inside)[link_key[place[inside]] == key[inside]]
    link[found] = order[place[found]]
    return PathHops(path=path_of_node[~last], link=link, src=src, dst=dst, num_paths=len(lengths))


def open_flows(
    schedule: Schedule,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """What transfers without a route send between two ranks in one channel, as switches hash it.

    Returns:
        Sender, receiver and channel of each flow, in the order of receivers; and the flow of each such transfer.
    """
    open_rows = np.flatnonzero(schedule.path < 0)
    first_of_slot = np.searchsorted(schedule.chunk_slot, schedule.chunk_slot)
    channel = np.arange(schedule.num_chunks) - first_of_slot
    channel_of = np.where(schedule.step[open_rows] < 0, channel[schedule.chunk[open_rows]], 0)
    # Sorted by receiver, as the router searches once for each. Pairs are numbered, so that no key leaves 64 bits.
    ranks, channels = schedule.topology.num_ranks, int(channel.max()) + 1
    pair = schedule.dst[open_rows].astype(np.int64) * ranks + schedule.src[open_rows]
    pairs, pair_of = np.unique(pair, return_inverse=True)
    keys, row_of = np.unique(pair_of * channels + channel_of, return_inverse=True)
    receiver, sender = np.divmod(pairs[keys // channels], ranks)
    return sender, receiver, keys % channels, row_of.reshape(-1)


def routed(schedule: Schedule, *, relay_gpus: bool = False, seed: int = 0) -> Schedule:
    """Add a route to every transfer without one.

    A transfer that names no path takes the topology's default route. All that two ranks exchange in steps takes one
    route, so that what is sent in a step stays one message. Without steps, the chunks of a slot count as channels of
    their pair of ranks, and spread over paths that are equally good.

    Args:
        relay_gpus: Where no path of switches and NICs exists, other ranks may pass data on.
        seed: Another choice among equally good routes, as another hash of the flows would make; 0 is the default.
    """
    open_rows = np.flatnonzero(schedule.path < 0)
    if not len(open_rows):
        return schedule
    sender, receiver, channel, row_of = open_flows(schedule)
    router = Router(schedule.topology, relay_gpus=relay_gpus, seed=seed)
    start, nodes = router.paths(sender, receiver, channel)
    path = schedule.path.copy()
    path[open_rows] = len(schedule.path_start) - 1 + row_of
    return replace(
        schedule,
        path=path,
        path_start=np.concatenate([schedule.path_start, schedule.path_start[-1] + start[1:]]),
        path_nodes=np.concatenate([schedule.path_nodes, nodes]),
    )
