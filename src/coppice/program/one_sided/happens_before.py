"""Which events of a one-sided program come before which in every order of execution.

Edges between events come from the program itself, and from what signals, semaphores and packets say: the k-th event
that takes from a counter comes after k - s posts, s being its count at the start. If one thread block posts, and one
thread block takes, in order, this tells which posts. Otherwise a post is known to come before an event that takes only
if all posts that need not come after it are too few: with w takers known to come before, and n posts that are not known
to come later than the post in question, itself not counted, it comes before if n < w + 1 - s. What is found out this
way may tell more, and is asked again until nothing new comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.program.deadlock import Deadlock
from coppice.program.one_sided.events import Events, SignalCounter
from coppice.program.one_sided.order import run_order
from coppice.rows import begins_run, grouped

__all__ = ["HappensBefore", "check_every_order", "known_order"]

_CELLS = 2**24
_Ints = NDArray[np.int64]
_Edges = list[tuple[int, int]]


def known_order(events: Events, order: list[int], packets: _Edges) -> tuple[_Edges, _Edges]:
    """All (earlier, later) pairs that hold in every order, and those of them that carry data along.

    Args:
        events: The unrolled program.
        order: One order.
        packets: Writers and readers of packets.
    """
    strong: _Edges = list(events.before)
    weak: _Edges = list(packets)
    unclear: list[SignalCounter] = []
    direct = set(events.before)
    for counter in events.counters.values():
        if _in_line(events, counter.posts, direct) and _in_line(events, counter.waits, direct):
            unpaired = max(-counter.start, 0)
            posts, waits = counter.posts[unpaired:], counter.waits[max(counter.start, 0) :]
            for post, wait in zip(posts, waits, strict=False):  # what is left over waits for nobody
                (weak if _relaxed(events, post, wait) else strong).append((post, wait))
        else:
            unclear.append(counter)
    while unclear:
        found = _further(HappensBefore(order, strong + weak), unclear, set(strong) | set(weak))
        if not found:
            break
        for post, wait in found:
            (weak if _relaxed(events, post, wait) else strong).append((post, wait))
    return strong + weak, strong


def check_every_order(events: Events, order: list[int], edges: _Edges) -> None:
    """Make sure that no order stands still, where several thread blocks take from one counter.

    Raises:
        Deadlock: If some order may.
    """
    shared = [
        counter
        for counter in events.counters.values()
        if len({events.block(event) for event in counter.waits}) > 1
    ]
    if not shared:
        return
    known = HappensBefore(order, edges)
    required: dict[int, int] = {}
    for counter in shared:
        later = known.among(counter.waits).sum(axis=1)
        required.update(
            (wait, len(counter.waits) - after - counter.start)
            for wait, after in zip(counter.waits, later.tolist(), strict=True)
        )
    try:
        run_order(events, required=required)
    except Deadlock as circle:
        msg = f"in an order in which others take first, {circle}"
        raise Deadlock(msg) from None


def _in_line(events: Events, members: list[int], before: set[tuple[int, int]]) -> bool:
    """All in one thread block, and each after the one before."""
    if len(members) < 2:
        return True
    if len({events.block(event) for event in members}) > 1:
        return False
    return all(
        0 <= events.phase[one] < events.phase[two] or (one, two) in before for one, two in pairwise(members)
    )


def _relaxed(events: Events, post: int, wait: int) -> bool:
    return any(
        (op := events.steps[events.step_of[event]].op) is not None and op.relaxed for event in (post, wait)
    )


def _further(order: HappensBefore, counters: list[SignalCounter], known: set[tuple[int, int]]) -> _Edges:
    """Posts that must come before events that take, as far as it is known by now."""
    found: _Edges = []
    for counter in counters:
        if not counter.posts or not counter.waits:
            continue
        # Posts that need not come after each post, itself not counted, and takers that come before each taker.
        free = len(counter.posts) - 1 - order.among(counter.posts).sum(axis=1)
        before = order.among(counter.waits).sum(axis=0)
        sure = free[None, :] < (before + 1 - counter.start)[:, None]
        found += [
            pair
            for wait, post in np.argwhere(sure).tolist()
            if (pair := (counter.posts[post], counter.waits[wait])) not in known
        ]
    return found


class HappensBefore:
    """A graph without circles, asked about many pairs at once.

    Args:
        order: All events in an order that agrees with the edges.
        edges: (earlier, later) pairs.

    Examples:
        >>> known = HappensBefore([0, 1, 2, 3], [(0, 1), (1, 3)])
        >>> known.holds(np.array([0, 0, 2]), np.array([3, 2, 3])).tolist()
        [True, False, False]
    """

    def __init__(self, order: Sequence[int], edges: Sequence[tuple[int, int]]) -> None:
        self._count = len(order)
        time = [0] * self._count
        for place, event in enumerate(order):
            time[event] = place
        ends = sorted({(time[later], time[earlier]) for earlier, later in edges})
        level = [0] * self._count
        for later, earlier in ends:
            level[later] = max(level[later], level[earlier] + 1)
        self._time = np.array(time, dtype=np.int64)
        self._source = np.array([earlier for _, earlier in ends], dtype=np.int64)
        self._target = np.array([later for later, _ in ends], dtype=np.int64)
        depth = np.array(level, dtype=np.int64)[self._target]
        by, start = grouped(
            depth, int(depth.max(initial=0)) + 1
        )  # by target within a layer, as ``ends`` are sorted
        self._source, self._target = self._source[by], self._target[by]
        self._layers = list(pairwise(start.tolist()))

    def holds(self, first: _Ints, second: _Ints) -> NDArray[np.bool_]:
        """Whether each event of ``first`` always comes before that of ``second``."""
        one, two = self._time[first], self._time[second]
        answer: NDArray[np.bool_] = np.zeros(len(one), dtype=np.bool_)
        sources = np.unique(one)
        column = np.searchsorted(sources, one)
        width = max(64, _CELLS // max(self._count, 1) // 64 * 64)
        for start in range(0, len(sources), width):
            bits = self._from(sources[start : start + width])
            rows = np.flatnonzero((column >= start) & (column < start + width))
            place = column[rows] - start
            answer[rows] = (bits[two[rows], place // 64] >> (place % 64).astype(np.uint64)) & np.uint64(1) > 0
        answer &= one != two
        return answer

    def among(self, events: Sequence[int]) -> NDArray[np.bool_]:
        """Whether each of some events (row) always comes before each of them (column)."""
        members = np.array(events, dtype=np.int64)
        count = len(members)
        return self.holds(np.repeat(members, count), np.tile(members, count)).reshape(count, count)

    def _from(self, sources: _Ints) -> NDArray[np.uint64]:
        """For every event, a bit for each source that is it or comes before it."""
        bits = np.zeros((self._count, -(-len(sources) // 64)), dtype=np.uint64)
        place = np.arange(len(sources))
        bits[sources, place // 64] |= np.uint64(1) << (place % 64).astype(np.uint64)
        for low, high in self._layers:
            if low == high:
                continue
            target = self._target[low:high]
            heads = np.flatnonzero(begins_run(target))
            bits[target[heads]] |= np.bitwise_or.reduceat(bits[self._source[low:high]], heads, axis=0)
        return bits
