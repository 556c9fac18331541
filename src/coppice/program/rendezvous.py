"""Rendezvous rounds: assign sends and receives of a group to rounds without two messages of a rank in one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.rows import grouped

_Ints = NDArray[np.int64]


def rendezvous_rounds(group: _Ints, sender: _Ints, receiver: _Ints, sent: _Ints, overwritten: _Ints) -> _Ints:
    """Round of each message, from 0 in each group.

    In one turn all its messages are sent, and then all are received. A message is sent no later than in the turn in
    which another one overwrites what it sends. Messages that overwrite each other's values in a circle share the last
    turn of their group, with all that must come after them: of these, some thread block may have two.

    Messages of thread blocks that pass on to one another form chains and circles, and take rendezvous_rounds along
    them: two are enough, or three in a circle of an odd number, where nothing is overwritten.

    Args:
        group: Group of each message. Nobody sends two messages of a group, and nobody receives two.
        sent: Messages whose values are overwritten, in pairs with the next argument.
        overwritten: Messages, of the same group, that overwrite them.

    Examples:
        >>> ring = np.arange(4)
        >>> nothing = np.zeros(0, dtype=np.int64)
        >>> rendezvous_rounds(ring * 0, ring, (ring + 1) % 4, nothing, nothing).tolist()
        [0, 1, 0, 1]
        >>> rendezvous_rounds(ring * 0, ring, (ring + 1) % 4, np.array([1]), np.array([0])).tolist()
        [1, 0, 1, 0]
    """
    number = len(group)
    turn = np.zeros(number, dtype=np.int64)
    pairs = np.flatnonzero(sent != overwritten)
    sent, overwritten = sent[pairs], overwritten[pairs]
    waits: list[int] = np.bincount(overwritten, minlength=number).tolist()
    by, start = grouped(sent, number)
    after: list[int] = overwritten[by].tolist()
    first: list[int] = start.tolist()
    groups: list[int] = group.tolist()
    source: list[int] = sender.tolist()
    target: list[int] = receiver.tolist()
    outgoing = {(groups[m], source[m]): m for m in range(number)}
    taken: dict[tuple[int, int], set[int]] = {}
    earliest = [0] * number
    done = bytearray(number)
    last: dict[int, int] = {}
    ready = list(range(number))[::-1]
    while ready:
        message = ready.pop()
        if done[message] or waits[message]:
            continue
        done[message] = 1
        place = groups[message]
        used = [taken.setdefault((place, end), set()) for end in (source[message], target[message])]
        mine = earliest[message]
        while any(mine in each for each in used):
            mine += 1
        for each in used:
            each.add(mine)
        turn[message] = mine
        last[place] = max(last.get(place, 0), mine)
        following = outgoing.get((place, target[message]))
        for later in after[first[message] : first[message + 1]]:
            waits[later] -= 1
            earliest[later] = max(earliest[later], mine + 1)
            if not waits[later]:
                ready.append(later)
        if following is not None:
            ready.append(following)
    for message in range(number):
        if not done[message]:
            turn[message] = last.get(groups[message], -1) + 1
    return turn
