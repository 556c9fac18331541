"""What signals, semaphores and packets say about order.

The k-th event that takes from a counter comes after k - s posts, s being its count at the start. If one thread block
posts, and one thread block takes, in order, this tells which posts. Otherwise a post is known to come before an event
that takes only if all posts that need not come after it are too few: with w takers known to come before, and n posts
that are not known to come later than the post in question, itself not counted, it comes before if n < w + 1 - s. What
is found out this way may tell more, and is asked again until nothing new comes.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from coppice.program.one_sided.events import Counter, Events
from coppice.program.one_sided.order import StuckOneSided, run_order
from coppice.program.one_sided.reachability import Reach

__all__ = ["check_every_order", "known_order"]

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
    unclear: list[Counter] = []
    direct = set(events.before)
    for counter in events.counters.values():
        if _in_line(events, counter.posts, direct) and _in_line(events, counter.waits, direct):
            late = max(-counter.start, 0)
            posts, waits = counter.posts[late:], counter.waits[max(counter.start, 0) :]
            for post, wait in zip(posts, waits, strict=False):  # what is left over waits for nobody
                (weak if _relaxed(events, post, wait) else strong).append((post, wait))
        else:
            unclear.append(counter)
    while unclear:
        found = _further(Reach(order, strong + weak), unclear, set(strong) | set(weak))
        if not found:
            break
        for post, wait in found:
            (weak if _relaxed(events, post, wait) else strong).append((post, wait))
    return strong + weak, strong


def check_every_order(events: Events, order: list[int], edges: _Edges) -> None:
    """Make sure that no order stands still, where several thread blocks take from one counter.

    Raises:
        StuckOneSided: If some order may.
    """
    shared = [
        counter
        for counter in events.counters.values()
        if len({events.block(event) for event in counter.waits}) > 1
    ]
    if not shared:
        return
    reach = Reach(order, edges)
    needs: dict[int, int] = {}
    for counter in shared:
        waits = np.array(counter.waits, dtype=np.int64)
        count = len(waits)
        later = reach.holds(np.repeat(waits, count), np.tile(waits, count)).reshape(count, count).sum(axis=1)
        needs.update(
            (wait, count - int(after) - counter.start)
            for wait, after in zip(counter.waits, later, strict=True)
        )
    try:
        run_order(events, needs=needs)
    except StuckOneSided as circle:
        msg = f"in an order in which others take first, {circle}"
        raise StuckOneSided(msg) from None


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


def _further(reach: Reach, counters: list[Counter], known: set[tuple[int, int]]) -> _Edges:
    """Posts that must come before events that take, as far as it is known by now."""
    found: _Edges = []
    for counter in counters:
        posts, waits = (np.array(each, dtype=np.int64) for each in (counter.posts, counter.waits))
        if not len(posts) or not len(waits):
            continue
        n, m = len(posts), len(waits)
        later = reach.holds(np.repeat(posts, n), np.tile(posts, n)).reshape(n, n).sum(axis=1)
        free = n - 1 - later  # posts, this one not counted, that need not come after it
        before = reach.holds(np.tile(waits, m), np.repeat(waits, m)).reshape(m, m).sum(axis=1)
        sure = free[None, :] < (before + 1 - counter.start)[:, None]
        found += [
            pair
            for wait, post in np.argwhere(sure).tolist()
            if (pair := (counter.posts[post], counter.waits[wait])) not in known
        ]
    return found
