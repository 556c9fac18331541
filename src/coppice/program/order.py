"""Accesses, program order and synchronisation edges of an execution; longest paths, cycles, happens-before.

A *point* is a moment of a program's execution, such as the end of a step. Points of one *chain* come one after the
other, in the order of their numbers: what one thread does, say. Edges between chains are what synchronisation says:
messages, signals, dependencies.

Model of an execution for all judges: accesses, program order, and synchronisation edges. Every kind of program unrolls
into it, in one way to run it: in place or not, with chunks cut in some way. Memory is addresses
(:mod:`coppice.program.memory`); an *access* reads or writes some of them. What an operation makes is a *value*, slot by
slot: what it has read, what another operation made (the message that it receives), or the sum of two of these; writes
say which value they write. *Points* and edges between them say in which order things always are: an access comes before
another one if the point at which it is over is the point at which the other begins, or always comes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.rows import begins_run, inverse, last_before, nth_in_group, rows_of_groups

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class MemoryAccesses(Brief):
    """Reads and writes of addresses at equal distances."""

    actor: _Ints  # Operation that does it (int64)
    first: _Ints  # First address (int64)
    count: _Ints  # Addresses (int64)
    stride: _Ints  # From one address to the next (int64)
    write: NDArray[np.bool_]  # It is a write, otherwise a read (bool)
    # What a write writes, a row of values; -1 where it is the caller that may write, before a rank has begun or
    # after it has ended; of a read it means nothing (int64)
    value: _Ints
    # When, in an order in which the program can run: what is at one time reads before it writes (int64)
    time: _Ints
    begin: _Ints  # Point after which it begins (int64)
    end: _Ints  # Point before which it is over (int64)
    also: _Ints  # Another such point; the same where there is none (int64)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Values(Brief):
    """Values made by operations; operands are rows of accesses, and behind these, rows of values."""

    actor: _Ints  # Operation that makes it (int64)
    count: _Ints  # Slots (int64)
    one: _Ints  # What it is, or the first term of a sum (int64)
    other: _Ints  # The second term, -1 where it is no sum (int64)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Points(Brief):
    """Points of an execution, and happens-before edges."""

    chain: _Ints  # Chain of each point; those of a chain are in the order of their numbers (int64)
    earlier: _Ints  # Where each edge begins (int64)
    later: _Ints  # Where it ends (int64)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ProgramExecution(Brief):
    """Execution of a program, in place or not."""

    accesses: MemoryAccesses
    values: Values
    points: Points


_CELLS = 2**25
_PATIENCE = 256
_NARROW = 16
_SHOWN = 8


def levels(nodes: int, source: _Ints, target: _Ints, gap: _Ints | None = None) -> _Ints:
    """Longest path to each node; -1 for nodes on and behind cycles.

    Nodes that wait for nothing any more are taken all at once, in waves; where waves are many and narrow, one by one.

    Args:
        source: Where each edge begins.
        target: Where it ends.
        gap: Length of each edge, 0 or more; None: 1.

    Examples:
        >>> levels(4, np.array([0, 1, 3]), np.array([1, 2, 3])).tolist()
        [0, 1, 2, -1]
    """
    by_source = np.argsort(source)
    start = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=nodes))])
    length = None if gap is None else gap[by_source]
    target, left = target[by_source], np.bincount(target, minlength=nodes)
    level = np.zeros(nodes, dtype=np.int64)
    mark = np.zeros(nodes, dtype=np.int64)
    ready = np.flatnonzero(left == 0)
    waves = done = 0
    while len(ready):
        waves, done = waves + 1, done + len(ready)
        if waves % _PATIENCE == 0 and done < waves * _NARROW:
            _one_by_one(ready, start, target, length, left, level)
            break
        edges, first = rows_of_groups(start, ready)
        reached = target[edges]
        if length is None:
            level[reached] = waves
        else:
            np.maximum.at(level, reached, np.repeat(level[ready], np.diff(first)) + length[edges])
        np.subtract.at(left, reached, 1)
        reached = reached[left[reached] == 0]
        mark[reached] = np.arange(len(reached))
        ready = reached[mark[reached] == np.arange(len(reached))]
    level[left > 0] = -1
    return level


def _one_by_one(
    ready: _Ints, start: _Ints, target: _Ints, length: _Ints | None, left: _Ints, level: _Ints
) -> None:
    """Go on from the nodes that are ready, with lists, which are quicker to look into one at a time."""
    begin: list[int] = start.tolist()
    ends: list[int] = target.tolist()
    gaps: list[int] = [1] * len(ends) if length is None else length.tolist()
    waits: list[int] = left.tolist()
    found: list[int] = level.tolist()
    stack: list[int] = ready.tolist()
    while stack:
        node = stack.pop()
        here = found[node]
        for edge in range(begin[node], begin[node + 1]):
            other = ends[edge]
            found[other] = max(found[other], here + gaps[edge])
            waits[other] -= 1
            if not waits[other]:
                stack.append(other)
    level[:], left[:] = found, waits


class PointOrder:
    """Happens-before by vector clocks, some chains at a time.

    Only points that another chain tells something learn anything: clocks are kept for these alone. A question that one
    edge answers, with the order within the chains at its ends, needs no clock.

    Args:
        chain: Chain of each point.
        earlier: Points of edges, without circles.
        later: What always comes after each of them.

    Examples:
        Chains 0, 1 and 3, 4; what 1 sends arrives at 4, by way of 2:

        >>> known = PointOrder(np.array([0, 0, 1, 2, 2]), np.array([1, 2]), np.array([2, 4]))
        >>> known.holds(np.array([0, 0, 0]), np.array([1, 3, 4])).tolist()
        [True, False, True]
    """

    def __init__(self, chain: _Ints, earlier: _Ints, later: _Ints) -> None:
        self._chain = chain
        across = chain[earlier] != chain[later]
        earlier, later = earlier[across], later[across]
        self._earlier, self._later = earlier, later

    def holds(self, first: _Ints, second: _Ints) -> NDArray[np.bool_]:
        """Whether each point of ``first`` equals, or happens before, that of ``second``."""
        chain = self._chain
        same = chain[first] == chain[second]
        answer: NDArray[np.bool_] = same & (first <= second)
        rows = np.flatnonzero(~same)
        if not len(rows) or not len(self._earlier):
            return answer
        direct = self._directly(first[rows], second[rows])
        answer[rows] = direct
        rows = rows[~direct]
        if not len(rows):
            return answer
        clocks = self._clocks
        rows = rows[clocks.heard[second[rows]] >= 0]
        source = chain[first[rows]]
        sources = np.unique(source)
        column = np.searchsorted(sources, source)
        width = max(1, _CELLS // clocks.number)
        for start in range(0, len(sources), width):
            clock = clocks.of(sources[start : start + width])
            mine = np.flatnonzero((column >= start) & (column < start + width))
            at = rows[mine]
            answer[at] = clock[clocks.row[clocks.heard[second[at]]], column[mine] - start] >= first[at]
        return answer

    def _directly(self, first: _Ints, second: _Ints) -> NDArray[np.bool_]:
        """Pairs of points of different chains that one edge puts in order."""
        chain, chains, span = self._chain, int(self._chain.max(initial=0)) + 1, len(self._chain) + 1
        asked = np.zeros((2, chains), dtype=np.bool_)
        asked[0, chain[first]] = asked[1, chain[second]] = True
        used = np.flatnonzero(asked[0, chain[self._earlier]] & asked[1, chain[self._later]])
        if not len(used):
            return np.zeros(len(first), dtype=np.bool_)
        earlier, later = self._earlier[used], self._later[used]
        pair = chain[later] * chains + chain[earlier]
        order = np.lexsort((later, pair))
        begins = begins_run(pair[order])
        base = (np.cumsum(begins) - 1) * span
        at = base + later[order]
        # The last point of the earlier chain that is told of so far
        told = np.maximum.accumulate(base + earlier[order]) - base
        pairs, wanted = pair[order][begins], chain[second] * chains + chain[first]
        which = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
        place = np.searchsorted(at, which * span + second, side="right") - 1
        known = (pairs[which] == wanted) & (at[place] >= which * span) & (place >= 0)
        return np.asarray(known & (told[place] >= first))

    @cached_property
    def _clocks(self) -> _Clocks:
        return _Clocks(self._chain, self._earlier, self._later)


class _Clocks:
    """For each point that other chains tell something, the last point of every chain that comes before it."""

    def __init__(self, chain: _Ints, earlier: _Ints, later: _Ints) -> None:
        # Of all edges from one chain to one point, the last says it all.
        order = np.lexsort((earlier, chain[earlier], later))
        earlier, later = earlier[order], later[order]
        last = np.ones(len(order), dtype=np.bool_)
        last[:-1] = begins_run(later, chain[earlier])[1:]
        self.chain, self.earlier, later = chain, earlier[last], later[last]
        begins = begins_run(later)
        points, self.told = later[begins], np.cumsum(begins) - 1
        self.number = number = len(points)
        # The last such point at or before each point in its chain
        by_chain = np.argsort(chain, kind="stable")
        told = np.full(len(chain), -1, dtype=np.int64)
        told[points] = np.arange(number)
        before = last_before(chain[by_chain], told[by_chain] >= 0)
        previous = np.empty(len(chain), dtype=np.int64)
        previous[by_chain] = np.where(before >= 0, told[by_chain[before]], -1)
        self.heard = np.where(told >= 0, told, previous)
        source = np.concatenate([self.heard[self.earlier], previous[points]])
        target = np.concatenate([self.told, np.arange(number)])
        source, target = source[source >= 0], target[source >= 0]
        level = levels(number, source, target)
        self.row = inverse(np.argsort(level, kind="stable"))
        # What a point hears from one after the other, is heard by all points of a level at once.
        turn = nth_in_group(target)
        order = np.lexsort((turn, level[target]))
        heads = np.flatnonzero(begins_run(level[target][order], turn[order]))
        source, target = self.row[source[order]], self.row[target[order]]
        self.turns = list(zip(np.split(target, heads[1:]), np.split(source, heads[1:]), strict=True))

    def of(self, chains: _Ints) -> NDArray[np.int32]:
        """A row for each such point (:attr:`row`), a column for each of some chains; -1 where nothing is known."""
        column = np.full(int(self.chain.max(initial=0)) + 1, -1, dtype=np.int64)
        column[chains] = np.arange(len(chains))
        clock = np.full((self.number, len(chains)), -1, dtype=np.int32)
        into = column[self.chain[self.earlier]]
        rows = np.flatnonzero(into >= 0)
        clock[self.row[self.told[rows]], into[rows]] = self.earlier[rows]
        for target, source in self.turns:
            clock[target] = np.maximum(clock[target], clock[source])
        return clock


class Deadlock(Exception):  # noqa: N818  (an outcome, caught by verifiers)
    """The program deadlocks; the message is the cycle of waits, a sentence.

    Args:
        circle: The circle of waiting.
        stuck: Steps at which thread blocks stand.
    """

    def __init__(self, circle: str, *, stuck: Sequence[int] = ()) -> None:
        super().__init__(circle)
        self.stuck = tuple(stuck)


def circle_from(start: int, waits_for: Callable[[int], int | None]) -> list[int]:
    """Cycle reached by following the waits of thread blocks.

    Args:
        waits_for: What a thread block waits for, None where nothing will ever end its waiting.

    Returns:
        The circle, its first member once more at its end; where there is none, the thread block that waits in vain.

    Examples:
        >>> circle_from(0, {0: 2, 2: 5, 5: 2}.get)
        [2, 5, 2]
        >>> circle_from(0, {0: 2}.get)
        [2]
    """
    place: dict[int, int] = {}
    walk: list[int] = []
    while start not in place:
        place[start] = len(walk)
        walk.append(start)
        following = waits_for(start)
        if following is None:
            return [start]
        start = following
    return [*walk[place[start] :], start]


def waits_in_words(first: str, waits: Sequence[str]) -> str:
    """Sentence about a cycle of waits, without its middle where it is long.

    Args:
        waits: For what it waits; for what that waits; and so on.
    """
    if len(waits) > _SHOWN:
        waits = [*waits[: _SHOWN - 1], f".. ({len(waits) - _SHOWN} more) ..", waits[-1]]
    return f"{first} {'; that '.join(waits)}."
