"""Search for a rank order whose rings cross few links, and a lower bound on any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from coppice.planners.algorithms.parts.boxes import RELAY

_MOST_TRIALS = 6_000
_MOST_BOUNDED = 256
_ROUNDS = 60


class GroupRings:
    """Rings of all groups, host by host, as a function of the rank order.

    What a ring takes inside a host is the library's own choice, and so is the GPU through which it leaves. A step
    therefore leads from one host to the next, between those members of the group that are nearest to each other.

    Args:
        apart: What the step from one GPU to another crosses.
        host: Host of each GPU.
        groups: Ranks of each group, with its weight.
    """

    def __init__(
        self, apart: NDArray[np.int64], host: NDArray[np.int64], groups: Sequence[tuple[tuple[int, ...], int]]
    ) -> None:
        self.apart, self.host = apart, host
        rings = [(ranks, weight) for ranks, weight in groups if len(ranks) > 1]
        self._ranks = np.array(list(chain.from_iterable(ranks for ranks, _ in rings)), dtype=np.int64)
        self._ring = np.repeat(np.arange(len(rings)), [len(ranks) for ranks, _ in rings])
        self._weight = np.array([weight for _, weight in rings], dtype=np.int64)
        self._hosts = int(host.max(initial=0)) + 1
        self._nearest: dict[tuple[bytes, bytes], int] = {}

    def steps(self, order: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Every hop from host to host: the links crossed, and its weight."""
        gpus = order[self._ranks]
        # Members of a host stand together, where the first of them stands.
        key = self._ring * self._hosts + self.host[gpus]
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        place = first[inverse]
        turn = np.argsort(place, kind="stable")
        starts = np.flatnonzero(np.diff(place[turn], prepend=-1))
        if not len(starts):
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        ring = self._ring[turn][starts]
        head = np.flatnonzero(np.diff(ring, prepend=-1))
        onward = np.arange(1, len(starts) + 1)
        onward[np.append(head[1:], len(starts)) - 1] = head
        moves = onward != np.arange(len(starts))
        lone = np.diff(np.append(starts, len(turn))) == 1
        gpus = gpus[turn]
        crossed = self.apart[gpus[starts], gpus[starts[onward]]]
        members = np.split(gpus, starts[1:])
        for here in np.flatnonzero(moves & ~(lone & lone[onward])).tolist():
            crossed[here] = self._between(members[here], members[int(onward[here])])
        return crossed[moves], self._weight[ring][moves]

    def _between(self, here: NDArray[np.int64], there: NDArray[np.int64]) -> int:
        key = (here.tobytes(), there.tobytes())
        found = self._nearest.get(key)
        if found is None:
            found = self._nearest[key] = int(self.apart[np.ix_(here, there)].min())
        return found

    def cost(self, order: NDArray[np.int64]) -> int:
        """Weighted crossed links; a GPU that must forward counts more than all links."""
        crossed, weight = self.steps(order)
        return int((crossed * weight).sum())


def improved(
    rings: GroupRings, starts: Sequence[NDArray[np.int64]], *, whole: bool, trials: int = _MOST_TRIALS
) -> NDArray[np.int64]:
    """Local search from several rank orders; the best one found.

    Args:
        starts: Orders to begin with, GPUs of each host in their own order; the first of equals is taken.
        whole: Hosts stay together: parts of the list of hosts are turned round or swapped. Otherwise any two ranks
            change places.
        trials: Orders to look at, at most.
    """
    best = min(starts, key=rings.cost)
    least = rings.cost(best)
    left = trials
    found = True
    while found and left > 0:
        found = False
        for order in _whole_moves(best, rings.host) if whole else _single_moves(best, rings.host):
            left -= 1
            cost = rings.cost(order)
            if cost < least:
                best, least, found = order, cost, True
                break
            if left <= 0:
                break
    return best


def _whole_moves(order: NDArray[np.int64], host: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Orders in which a run of hosts is turned round, or two hosts change places; near ones first."""
    cuts = np.flatnonzero(np.diff(host[order])) + 1
    blocks = np.split(order, cuts)
    for length in range(2, len(blocks) + 1):
        for first in range(len(blocks) - length + 1):
            last = first + length
            yield np.concatenate([*blocks[:first], *blocks[first:last][::-1], *blocks[last:]])
            if length > 3:
                swapped = list(blocks)
                swapped[first], swapped[last - 1] = swapped[last - 1], swapped[first]
                yield np.concatenate(swapped)


def _single_moves(order: NDArray[np.int64], host: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Orders in which two ranks of different hosts change places, GPUs of the hosts in their own order."""
    count = len(order)
    for distance in range(1, count):
        for first in range(count - distance):
            here, there = host[order[first]], host[order[first + distance]]
            if here == there:
                continue
            changed = order.copy()
            changed[[first, first + distance]] = changed[[first + distance, first]]
            for h in (here, there):
                places = np.flatnonzero(host[changed] == h)
                changed[places] = np.sort(changed[places])
            yield changed


def tour_bound(apart: NDArray[np.int64]) -> int | None:
    """Lower bound on the links crossed by a closed tour of all hosts; None where none is known.

    A tour without one of its hosts is a tree, and that host has two more steps: so the least spanning tree of the
    others with the two shortest steps of the one is no longer than any tour, also after a price is put on every host
    (Held and Karp 1970); the prices are improved for some rounds.

    Args:
        apart: Links from one to another; paths through other GPUs, or that differ by direction, have no bound.

    Examples:
        >>> tour_bound(np.array([[0, 2, 4, 4], [2, 0, 4, 4], [4, 4, 0, 2], [4, 4, 2, 0]]))
        12
    """
    count = len(apart)
    if count > _MOST_BOUNDED or int(apart.max(initial=0)) >= RELAY or (apart != apart.T).any():
        return None
    if count < 3:
        return int(apart.sum())
    price = np.zeros(count, dtype=np.int64)
    scale = 64  # prices in parts of a link, so that all sums stay whole numbers
    best = 0
    for round_number in range(_ROUNDS):
        cost = scale * apart + price[:, None] + price[None, :]
        total, degree = _one_tree(cost)
        best = max(best, total - 2 * int(price.sum()))
        if (degree == 2).all():
            break
        price += (degree - 2) * max(1, scale // (2 + round_number // 4))
    return -(-best // scale)


def _one_tree(cost: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """Length and degrees of the least spanning tree of all but the last, with the two shortest steps of the last."""
    count = len(cost)
    degree = np.zeros(count, dtype=np.int64)
    outside = np.ones(count - 1, dtype=np.bool_)
    outside[0] = False
    near = cost[0, : count - 1].copy()
    parent = np.zeros(count - 1, dtype=np.int64)
    total = 0
    far = np.iinfo(np.int64).max
    for _ in range(count - 2):
        nearest = int(np.argmin(np.where(outside, near, far)))
        total += int(near[nearest])
        degree[nearest] += 1
        degree[parent[nearest]] += 1
        outside[nearest] = False
        closer = cost[nearest, : count - 1] < near
        near[closer] = cost[nearest, : count - 1][closer]
        parent[closer] = nearest
    for end in np.argsort(cost[-1, :-1], kind="stable")[:2].tolist():
        total += int(cost[-1, end])
        degree[end] += 1
        degree[-1] += 1
    return total, degree
