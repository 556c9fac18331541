"""Two-level algorithms as in Open MPI's HAN: within groups, between their leaders, within groups.

Groups are runs of g positions, m = P/g of them; the leader of each is the member with the root's number. Tasks are the
parts of an operation that stay in one level:

    all_reduce   low reduce, up reduce, up broadcast, low broadcast
    broadcast    up broadcast, low broadcast
    reduce       low reduce, up reduce
    all_gather   low gather, up ring all-gather, low broadcast of all blocks
    gather       low gather, up gather
    scatter      up scatter, low scatter
    barrier      low reduce, up dissemination, low broadcast

The first three cut the buffer into S segments. In iteration i, segment i is in its first task, segment i - 1 in its
second and so on: S + 3 iterations for all-reduce. The tasks inside groups come first in an iteration, then those
between leaders, since a leader's port serves either. Trees are binomial. Reductions and gathers begin with the nearest
pairs (x to x minus its lowest one bit), and so do broadcasts (x < 2^k to x + 2^k, k rising): a reduction and a
broadcast of one level, in the same steps, meet no rank twice in the same direction, and both run at full rate.

With l = ceil(lg g) and u = ceil(lg m), the root's leader (position 0 without a root) takes part in every step, and so
the time on a crossbar is that of all steps: all-reduce min(2 S, S + 3) l + (S + 1) u of them, broadcast and reduce
S (l + u), each ``alpha + M/S beta``; reductions add (l + u) M ``gamma``. That leader sends (l + u) M, the most, but in
a reduce no rank sends more than M. Gather and scatter take l + u steps, in which the root moves (P - 1)/P M. All-gather
takes 2 l + m - 1 steps: l messages with g - 1 blocks, m - 1 messages of g blocks, and in the last l of them everything
but what their receivers gathered. A barrier takes 2 l + u steps.

Open MPI, coll/han; Luo et al., "HAN: a hierarchical autotuned collective communication framework", Cluster 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import GROUP, Algorithm, AlgorithmCase, AlgorithmParameter, divides
from coppice.planners.algorithms.parts.boxes import grouped
from coppice.planners.algorithms.parts.cost import Clocks, Cost
from coppice.planners.algorithms.parts.moves import Moves, blocks, whole
from coppice.schedule.schedule import Op, Schedule

Chunks = NDArray[np.int64]


@dataclass(frozen=True)
class _Message:
    """What one position sends another in a round; ``chunks`` are blocks, and empty for a whole segment."""

    src: int
    dst: int
    chunks: Chunks
    op: Op = Op.COPY


_Round = list[_Message]
_NOTHING = np.zeros(0, dtype=np.int64)


class _Groups:
    """The positions as members of groups, both counted from the root's.

    Args:
        case: A case whose groups are runs of positions.
        group: Members of each.
    """

    def __init__(self, case: AlgorithmCase, group: int) -> None:
        self.members, self.groups = group, case.size // group
        self._group, self._member = divmod(max(case.root, 0), group)

    def at(self, group: int, member: int) -> int:
        """Position of a member of a group."""
        return (self._group + group) % self.groups * self.members + (self._member + member) % self.members

    def ends(self, pairs: Sequence[tuple[int, int]], *, low: bool) -> list[tuple[int, int]]:
        """Positions of pairs of members in every group (``low``), or of the leaders of pairs of groups."""
        if low:
            return [(self.at(y, x), self.at(y, to)) for y in range(self.groups) for x, to in pairs]
        return [(self.at(y, 0), self.at(to, 0)) for y, to in pairs]

    def blocks(self, group: int, first: int, count: int) -> Chunks:
        """Blocks of some members of a group."""
        return np.array([self.at(group, first + member) for member in range(count)], dtype=np.int64)

    def groups_of_blocks(self, first: int, count: int) -> Chunks:
        """All blocks of some groups."""
        return np.concatenate([self.blocks(first + group, 0, self.members) for group in range(count)])


def _inward(size: int) -> Iterator[list[tuple[int, int, int]]]:
    """Rounds of a binomial reduction to 0: (child, parent, vertices below the child and itself)."""
    distance = 1
    while distance < size:
        yield [(x, x - distance, min(distance, size - x)) for x in range(distance, size, 2 * distance)]
        distance *= 2


def _outward(size: int) -> Iterator[list[tuple[int, int]]]:
    """Rounds of a binomial broadcast from 0, near pairs first: (parent, child)."""
    distance = 1
    while distance < size:
        yield [(x, x + distance) for x in range(min(distance, size - distance))]
        distance *= 2


def _reduce(groups: _Groups, *, low: bool) -> list[_Round]:
    size = groups.members if low else groups.groups
    return [
        [
            _Message(src, dst, _NOTHING, Op.REDUCE)
            for src, dst in groups.ends([(x, to) for x, to, _ in pairs], low=low)
        ]
        for pairs in _inward(size)
    ]


def _broadcast(groups: _Groups, *, low: bool) -> list[_Round]:
    size = groups.members if low else groups.groups
    return [
        [_Message(src, dst, _NOTHING) for src, dst in groups.ends(pairs, low=low)] for pairs in _outward(size)
    ]


_low_reduce, _up_reduce = partial(_reduce, low=True), partial(_reduce, low=False)
_low_broadcast, _up_broadcast = partial(_broadcast, low=True), partial(_broadcast, low=False)


def _low_broadcast_of_all(groups: _Groups) -> list[_Round]:
    """Every block but those that the receiver gathered before."""
    everything = np.arange(groups.groups * groups.members)
    return [
        [
            _Message(groups.at(y, x), groups.at(y, to), np.setdiff1d(everything, gathered))
            for y in range(groups.groups)
            for x, to in pairs
            for gathered in (groups.blocks(y, to, min(to & -to, groups.members - to)),)
        ]
        for pairs in _outward(groups.members)
    ]


def _up_dissemination(groups: _Groups) -> list[_Round]:
    count = groups.groups
    return [
        [_Message(groups.at(y, 0), groups.at(y + (1 << k), 0), _NOTHING, Op.REDUCE) for y in range(count)]
        for k in range((count - 1).bit_length())
    ]


def _low_gather(groups: _Groups) -> list[_Round]:
    every = range(groups.groups)
    return [
        [
            _Message(groups.at(y, x), groups.at(y, to), groups.blocks(y, x, count))
            for y in every
            for x, to, count in pairs
        ]
        for pairs in _inward(groups.members)
    ]


def _up_gather(groups: _Groups) -> list[_Round]:
    return [
        [
            _Message(groups.at(y, 0), groups.at(to, 0), groups.groups_of_blocks(y, count))
            for y, to, count in pairs
        ]
        for pairs in _inward(groups.groups)
    ]


def _up_ring(groups: _Groups) -> list[_Round]:
    count = groups.groups
    return [
        [
            _Message(groups.at(y, 0), groups.at(y + 1, 0), groups.groups_of_blocks(y - step, 1))
            for y in range(count)
        ]
        for step in range(count - 1)
    ]


def _backwards(rounds: list[_Round]) -> list[_Round]:
    """The same messages from the last to the first, from receiver to sender."""
    return [[_Message(m.dst, m.src, m.chunks) for m in messages] for messages in reversed(rounds)]


@dataclass(frozen=True)
class _Task:
    """A part of an operation that stays inside the groups (``low``) or between the leaders."""

    low: bool
    rounds: list[_Round]


def _tasks(case: AlgorithmCase, group: int) -> list[_Task]:
    """The tasks of a collective, one after the other."""
    groups = _Groups(case, group)
    parts: list[tuple[bool, Callable[[_Groups], list[_Round]]]]
    match case.collective:
        case Collective.ALL_REDUCE:
            parts = [(True, _low_reduce), (False, _up_reduce), (False, _up_broadcast), (True, _low_broadcast)]
        case Collective.BROADCAST:
            parts = [(False, _up_broadcast), (True, _low_broadcast)]
        case Collective.REDUCE:
            parts = [(True, _low_reduce), (False, _up_reduce)]
        case Collective.ALL_GATHER:
            parts = [(True, _low_gather), (False, _up_ring), (True, _low_broadcast_of_all)]
        case Collective.GATHER:
            parts = [(True, _low_gather), (False, _up_gather)]
        case Collective.SCATTER:
            gathers = [(False, _up_gather), (True, _low_gather)]
            return [_Task(low, _backwards(rounds(groups))) for low, rounds in gathers]
        case _:
            parts = [(True, _low_reduce), (False, _up_dissemination), (True, _low_broadcast)]
    return [_Task(low, rounds(groups)) for low, rounds in parts]


def _segments(case: AlgorithmCase) -> int:
    return case.number("segments") if "segments" in case.parameters else 1


def _steps(case: AlgorithmCase, group: int) -> list[list[tuple[_Message, int]]]:
    """Messages of every step, with their segment."""
    tasks = _tasks(case, group)
    steps: list[list[tuple[_Message, int]]] = []
    for iteration in range(_segments(case) + len(tasks) - 1):
        for low in (True, False):
            busy = [
                (task.rounds, iteration - number)
                for number, task in enumerate(tasks)
                if task.low is low and 0 <= iteration - number < _segments(case)
            ]
            steps += [
                [
                    (message, segment)
                    for rounds, segment in busy
                    if number < len(rounds)
                    for message in rounds[number]
                ]
                for number in range(max((len(rounds) for rounds, _ in busy), default=0))
            ]
    return steps


def _build(case: AlgorithmCase) -> Schedule:
    case, group = grouped(case, case.number("group"))
    in_blocks = case.collective in (Collective.ALL_GATHER, Collective.GATHER, Collective.SCATTER)
    moves = Moves(case, blocks(case) if in_blocks else whole(case, _segments(case)))
    for step, messages in enumerate(_steps(case, group)):
        for message, segment in messages:
            moves.add(step, message.src, message.dst, message.chunks if in_blocks else segment, message.op)
    return moves.schedule()


def _cost(case: AlgorithmCase) -> Cost:
    case, group = grouped(case, case.number("group"))
    in_blocks = case.collective in (Collective.ALL_GATHER, Collective.GATHER, Collective.SCATTER)
    moved = 0 if case.collective is Collective.BARRIER else 1
    clocks = Clocks(case.size, unit=case.size if in_blocks else _segments(case))
    for messages in _steps(case, group):
        clocks.step(
            (m.src, m.dst, len(m.chunks) if in_blocks else moved, moved if m.op is Op.REDUCE else 0)
            for m, _ in messages
        )
    return clocks.cost()


_SEGMENTS = AlgorithmParameter(default=1, summary="pieces that are in different tasks at the same time")
_SEGMENTED = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)

_SUMMARIES: dict[Collective, str] = {
    Collective.ALL_REDUCE: "reduce in groups, reduce and broadcast among leaders, broadcast in groups, pipelined",
    Collective.BROADCAST: "broadcast among leaders, then in groups, pipelined",
    Collective.REDUCE: "reduce in groups, then among leaders, pipelined",
    Collective.ALL_GATHER: "gather in groups, ring of leaders, broadcast in groups",
    Collective.GATHER: "gather in groups, then among leaders",
    Collective.SCATTER: "scatter among leaders, then in groups",
    Collective.BARRIER: "groups report to leaders, leaders tell each other, leaders release groups",
}


ALGORITHMS = tuple(
    Algorithm(
        name="hierarchical",
        collective=collective,
        build=_build,
        summary=summary,
        source="Open MPI coll/han; Luo et al., Cluster 2020",
        cost=_cost,
        needs=divides("hierarchical", "group", "a group that divides"),
        parameters={"group": GROUP, "segments": _SEGMENTS} if collective in _SEGMENTED else {"group": GROUP},
        topological=True,
    )
    for collective, summary in _SUMMARIES.items()
)
