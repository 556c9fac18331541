"""Timed sends and transfers, chunks with targets, and the schedules made from them.

Chunks with targets, timed sends, and the schedules made from them. What reduces is what copies, seen backwards: a
reduce-scatter is an all-gather on the network with its links reversed, whose sends are then carried out from the last
to the first, each adding instead of copying.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError
from coppice.planners.synthesis.mip.routes import Route
from coppice.rows import offsets
from coppice.schedule.columns import num_slots
from coppice.schedule.schedule import Op, Schedule
from coppice.topology.model import Topology


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class TimedTransfers(Brief):
    """Transfers of chunks with start and end, in any order."""

    start: NDArray[np.int64]  # When each begins (int64, in any unit of time)
    end: NDArray[np.int64]  # When its receiver has all of it (int64, after `start`)
    chunk: NDArray[np.int64]  # What is sent (int64)
    src: NDArray[np.int64]  # Sending rank (int64)
    dst: NDArray[np.int64]  # Receiving rank (int64)
    path: NDArray[np.int64]  # Row of the path table that it takes (int64)
    op: NDArray[np.int8]  # :class:`~coppice.schedule.schedule.Op` (int8)

    @property
    def time(self) -> int:
        """Completion time."""
        return int(self.end.max(initial=0))


def reversed_in_time(transfers: TimedTransfers) -> TimedTransfers:
    """Time-reversed transfers that reduce: an all-gather of chunks becomes a reduce-scatter.

    The paths have to be turned round by the caller.
    """
    return TimedTransfers(
        start=transfers.time - transfers.end,
        end=transfers.time - transfers.start,
        chunk=transfers.chunk,
        src=transfers.dst,
        dst=transfers.src,
        path=transfers.path,
        op=np.full(len(transfers.start), Op.REDUCE, dtype=np.int8),
    )


def joined(first: TimedTransfers, second: TimedTransfers, *, paths_before: int = 0) -> TimedTransfers:
    """Concatenate in time.

    Args:
        second: What begins when the first has ended.
        paths_before: Paths in the common table that come before those of the second.
    """
    return TimedTransfers(
        start=np.concatenate([first.start, second.start + first.time]),
        end=np.concatenate([first.end, second.end + first.time]),
        chunk=np.concatenate([first.chunk, second.chunk]),
        src=np.concatenate([first.src, second.src]),
        dst=np.concatenate([first.dst, second.dst]),
        path=np.concatenate([first.path, second.path + paths_before]),
        op=np.concatenate([first.op, second.op]),
    )


def timed_schedule(
    problem: Problem,
    transfers: TimedTransfers,  # The transfers; a rank sends a chunk only once it has it
    *,
    chunk_slot: NDArray[np.integer],
    path_start: NDArray[np.int64],  # Table of paths (see :class:`~coppice.schedule.schedule.Schedule`)
    path_nodes: NDArray[np.int32],
    chunk_share: NDArray[np.int64] | None = None,  # Share of each chunk in its slot; None: all are equal
) -> Schedule:
    """Schedule of timed transfers.

    Rows come by their starts, and wait for nothing but what they send: a link serves chunks in the order in which they
    come, those that come together in the order of these times. Making each transfer wait until the one before it on its
    link has arrived would keep these times exactly, and lose a latency between any two of them.
    """
    order = np.lexsort((transfers.end, transfers.start))
    chunks = len(chunk_slot)
    slots = (
        1 if problem.collective in (Collective.BROADCAST, Collective.REDUCE) else problem.topology.num_ranks
    )
    if problem.collective is Collective.ALL_TO_ALL:
        slots **= 2
    return Schedule(
        topology=problem.topology,
        collective=problem.collective,
        root=-1 if problem.root is None else problem.root,
        slot_weight=np.ones(slots, dtype=np.int64),
        chunk_slot=chunk_slot.astype(np.int32),
        chunk_share=np.ones(chunks, dtype=np.int64) if chunk_share is None else chunk_share,
        src=transfers.src[order].astype(np.int32),
        dst=transfers.dst[order].astype(np.int32),
        chunk=transfers.chunk[order].astype(np.int32),
        op=transfers.op[order],
        path=transfers.path[order].astype(np.int32),
        step=np.full(len(order), -1, dtype=np.int32),
        after_start=np.zeros(len(order) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=path_start,
        path_nodes=path_nodes,
    )


COLLECTIVES = (
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_REDUCE,
    Collective.BROADCAST,
    Collective.REDUCE,
    Collective.ALL_TO_ALL,
)

_Answer = TypeVar("_Answer")

_BACKWARDS = (Collective.REDUCE_SCATTER, Collective.REDUCE, Collective.ALL_REDUCE)
_FORWARDS = {
    Collective.REDUCE_SCATTER: Collective.ALL_GATHER,
    Collective.ALL_REDUCE: Collective.ALL_GATHER,
    Collective.REDUCE: Collective.BROADCAST,
}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A chunk with its source and its targets."""

    source: int  # Rank that has it
    targets: frozenset[int]  # Ranks that need it
    slot: int  # Slot of the schedule that it is part of
    share: int = 1  # Its weight among the pieces of the slot
    number: int = 0  # Which of the pieces of the slot it is


@dataclass(frozen=True, kw_only=True)
class TimedSend:
    """A chunk on a route at a time."""

    piece: int  # Number of the piece
    route: Route  # The way that it takes
    start: float  # When it leaves, in any unit
    end: float  # When it has arrived
    op: Op = Op.COPY  # What the receiver does


@dataclass(frozen=True, eq=False, kw_only=True)
class Copying:
    """A non-reducing collective on a network: the problem that a method solves."""

    topology: Topology  # The network
    collective: Collective  # all_gather, broadcast or all_to_all
    pieces: tuple[Piece, ...]  # What has to be where
    backwards: bool  # Its sends are turned round afterwards


def require_equal_sizes(problem: Problem, method: str) -> None:
    """Refuse shards of different sizes."""
    for name in ("weights", "demands"):
        if getattr(problem, name) is not None:
            raise InputError(
                f"method {method} takes equal shards, found `{name}`: leave it out, or use `coppice plan`."
            )


def copying_part(problem: Problem, per_slot: int, *, backwards: bool) -> Copying:
    """The non-reducing problem for one direction of ``problem``.

    Args:
        problem: One of :data:`COLLECTIVES`.
        backwards: The direction that adds, seen backwards.
    """
    topology = problem.topology.transposed() if backwards else problem.topology
    collective = _FORWARDS.get(problem.collective, problem.collective)
    everyone = frozenset(range(topology.num_ranks))
    if collective is Collective.ALL_GATHER:
        wanted = [(r, everyone - {r}, r) for r in sorted(everyone)]
    elif collective is Collective.BROADCAST:
        root = problem.root or 0
        wanted = [(root, everyone - {root}, 0)]
    else:
        ranks = len(everyone)
        wanted = [(i, frozenset({j}), i * ranks + j) for i in range(ranks) for j in range(ranks) if i != j]
    return Copying(
        topology=topology,
        collective=collective,
        pieces=tuple(
            Piece(source=source, targets=targets, slot=slot, number=number)
            for source, targets, slot in wanted
            for number in range(per_slot)
        ),
        backwards=backwards,
    )


def combined(
    problem: Problem,  # One of :data:`COLLECTIVES`
    per_slot: int,
    solve: Callable[[Copying], _Answer],
    # The pieces of an answer, which are the same for all directions, and its sends
    sends_of: Callable[[_Answer], tuple[Sequence[Piece], Sequence[TimedSend]]],
) -> tuple[Schedule, list[_Answer]]:
    """Solve each direction of ``problem`` and join them into one schedule.

    An all-reduce is a reduce-scatter and then an all-gather. Where reversed links are the same links, one answer
    serves both.
    """
    ways = [True] if problem.collective in _BACKWARDS else []
    if problem.collective not in _BACKWARDS or problem.collective is Collective.ALL_REDUCE:
        ways.append(False)
    answers: list[_Answer] = []
    sends: list[TimedSend] = []
    pieces: Sequence[Piece] = ()
    now = 0.0
    for backwards in ways:
        if not answers or not _symmetric(problem.topology):
            answers.append(solve(copying_part(problem, per_slot, backwards=backwards)))
        pieces, own = sends_of(answers[-1])
        last = max((send.end for send in own), default=0.0)
        if backwards:
            own = [
                replace(
                    send,
                    route=send.route.turned(),
                    start=last - send.end,
                    end=last - send.start,
                    op=Op.REDUCE,
                )
                for send in own
            ]
        sends += [replace(send, start=now + send.start, end=now + send.end) for send in own]
        now += last
    return _schedule(problem, pieces, sends), answers


def _symmetric(topology: Topology) -> bool:
    """Whether every link has its like in the other direction, and no switch is better at copying than at adding."""
    back = topology.transposed()
    columns = ("src", "dst", "capacity", "latency_us", "multicast")
    return all(np.array_equal(getattr(topology, name), getattr(back, name)) for name in columns)


def _schedule(problem: Problem, pieces: Sequence[Piece], sends: Sequence[TimedSend]) -> Schedule:
    """The rows in the order of their starts; dependencies order them, as nobody waits for a step."""
    topology = problem.topology
    order = sorted(range(len(pieces)), key=lambda p: (pieces[p].slot, pieces[p].number, p))
    chunk_of = {piece: chunk for chunk, piece in enumerate(order)}
    rows = sorted(
        sends, key=lambda s: (s.start, s.end, chunk_of[s.piece], s.route.src, s.route.dst, s.route.nodes)
    )
    paths = {nodes: number for number, nodes in enumerate(dict.fromkeys(s.route.nodes for s in rows))}
    slots = num_slots(problem.collective, topology.num_ranks)
    return Schedule(
        topology=topology,
        collective=problem.collective,
        root=-1 if problem.root is None else problem.root,
        slot_weight=np.ones(slots, dtype=np.int64),
        chunk_slot=np.array([pieces[p].slot for p in order], dtype=np.int32),
        chunk_share=np.array([pieces[p].share for p in order], dtype=np.int64),
        src=np.array([s.route.src for s in rows], dtype=np.int32),
        dst=np.array([s.route.dst for s in rows], dtype=np.int32),
        chunk=np.array([chunk_of[s.piece] for s in rows], dtype=np.int32),
        op=np.array([s.op for s in rows], dtype=np.int8),
        path=np.array([paths[s.route.nodes] for s in rows], dtype=np.int32),
        step=np.full(len(rows), -1, dtype=np.int32),
        after_start=np.zeros(len(rows) + 1, dtype=np.int64),
        after=np.zeros(0, dtype=np.int32),
        path_start=offsets(np.array([len(nodes) for nodes in paths], dtype=np.int64)),
        path_nodes=np.array([v for nodes in paths for v in nodes], dtype=np.int32),
    )
