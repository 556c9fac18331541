"""Numbers for groups of ranks by which the exchanges of recursive halving and doubling use disjoint links.

In every step of halving and doubling, group ``x`` exchanges with group ``x ^ 2^b``. Which groups share links depends on
who gets which number. Where groups hang on two layers of switches, each switch of one joined to each of the other (the
network of EFLOPS), there is a rule: a number with an even count of one bits names a switch of one layer by its highest
bits, one with an odd count a switch of the other by its lowest. Then partners are always on opposite layers, and groups
of one switch have partners on different switches. On other networks, and where a rule leaves links shared, pairs of
groups swap their numbers as long as that helps.

Judged by the default routes of all members: the step that exchanges ``2^b`` parts of the data takes as long as its
busiest link, in either direction.

Dong et al., "EFLOPS: algorithm and system co-design for a high performance distributed training platform", HPCA 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from coppice.planners.algorithms.parts.boxes import RELAY, crossings
from coppice.topology.model import Topology
from coppice.topology.routing import Router

_PATHS = 200_000  # between all groups, up to which numbers are swapped

_SWAPS = 4_000


@lru_cache(maxsize=16)
def disjoint_order(topology: Topology, groups: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Group of each number, so that groups whose numbers differ in one bit exchange over links of their own.

    Args:
        topology: Where the groups are.
        groups: Ranks of each group, as many in each; members of equal place are partners. A power of two of groups.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> disjoint_order(preset("dgx-a100", boxes=4), tuple(tuple(range(8 * b, 8 * b + 8)) for b in range(4)))
        (0, 1, 2, 3)
    """
    count = len(groups)
    natural = tuple(range(count))
    apart = crossings(topology)[np.ix_(*[[group[0] for group in groups]] * 2)]
    if count <= 2 or (apart[0, 1] == apart[~np.eye(count, dtype=np.bool_)]).all():
        return natural
    loads = _Loads(topology, groups)
    found = min([natural, *_two_layers(apart % RELAY)], key=loads.cost)
    if loads.cost(found)[0] > (count - 1) * loads.alone() and count * (count - 1) * len(groups[0]) <= _PATHS:
        found = _swapped(loads, found)
    return found if loads.cost(found) < loads.cost(natural) else natural


class _Loads:
    """What the exchanges of an order put on links."""

    def __init__(self, topology: Topology, groups: Sequence[Sequence[int]]) -> None:
        self.topology = topology
        self.ranks = np.array(groups)
        self.router = Router(topology)
        self.links: dict[tuple[int, int], NDArray[np.int64]] = {}
        keys = topology.src.astype(np.int64) * topology.num_nodes + topology.dst
        self._sorted = np.argsort(keys)
        self._keys = keys[self._sorted]
        self._slowness = topology.capacity.max() / topology.capacity

    def cost(self, order: Sequence[int]) -> tuple[float, float]:
        """Time of all steps in units of the least share, and the squares of the loads, which tell ties apart."""
        numbers = np.arange(len(order))
        placed = np.array(order)
        total, squares = 0.0, 0.0
        mask = 1
        while mask < len(order):
            pairs = list(zip(placed[numbers].tolist(), placed[numbers ^ mask].tolist(), strict=True))
            self._route([pair for pair in pairs if pair not in self.links])
            used = np.concatenate([self.links[pair] for pair in pairs])
            load = np.bincount(used, minlength=self.topology.num_links) * self._slowness
            total += mask * float(load.max())
            squares += mask * float((load**2).sum())
            mask *= 2
        return total, squares

    def alone(self) -> float:
        """The least time of an exchange that shares no link with others, of those looked at."""
        return min(
            float((np.bincount(links) * self._slowness[: links.max() + 1]).max())
            for links in self.links.values()
        )

    def _route(self, pairs: list[tuple[int, int]]) -> None:
        if not pairs:
            return
        width = self.ranks.shape[1]
        src, dst = (self.ranks[list(ends)].reshape(-1) for ends in zip(*pairs, strict=True))
        start, nodes = self.router.paths(src, dst, np.zeros(len(src), dtype=np.int64))
        hops = np.ones(len(nodes), dtype=np.bool_)
        hops[start[1:] - 1] = False  # the last node of a path starts no link
        at = np.flatnonzero(hops)
        key = nodes[at].astype(np.int64) * self.topology.num_nodes + nodes[at + 1]
        link = self._sorted[np.searchsorted(self._keys, key)]
        ends = np.concatenate([[0], np.cumsum(hops)])[start]
        for i, pair in enumerate(pairs):
            self.links[pair] = link[ends[i * width] : ends[(i + 1) * width]]


def _two_layers(apart: NDArray[np.int64]) -> Iterator[tuple[int, ...]]:
    """Orders by the rule for groups on two layers of switches, where they are."""
    count = len(apart)
    off = ~np.eye(count, dtype=np.bool_)
    nearest = apart[off].min()
    for together in (np.zeros_like(off), off & (apart == nearest)):  # one group on a switch, or those nearest
        label = np.argmax(together | ~off, axis=1)
        classes = [np.flatnonzero(label == first).tolist() for first in np.unique(label)]
        size, half = len(classes[0]), len(classes) // 2
        firsts = [members[0] for members in classes]
        between = apart[np.ix_(firsts, firsts)]
        if (
            half < 1
            or any(len(members) != size for members in classes)
            or size & (size - 1)
            or half & (half - 1)
        ):
            continue
        near = between == between[~np.eye(len(classes), dtype=np.bool_)].min()
        other = near[0]
        if int(other.sum()) != half or not (near == (other[:, None] != other[None, :])).all():
            continue
        sides = [[classes[i] for i in np.flatnonzero(other == side)] for side in (False, True)]
        order = []
        for number in range(count):
            odd, rest = number.bit_count() & 1, number >> 1
            switch, member = (rest % half, rest // half) if odd else (rest // size, rest % size)
            order.append(sides[odd][switch][member])
        yield tuple(order)


def _swapped(loads: _Loads, order: tuple[int, ...]) -> tuple[int, ...]:
    """The order after swaps of two numbers, each of which lowers the cost."""
    best, found = loads.cost(order), list(order)
    left = _SWAPS
    improved = True
    while improved:
        improved = False
        for a in range(len(found)):
            for b in range(a):
                left -= 1
                if not left:
                    return tuple(found)
                found[a], found[b] = found[b], found[a]
                cost = loads.cost(found)
                if cost < best:
                    best, improved = cost, True
                else:
                    found[a], found[b] = found[b], found[a]
    return tuple(found)
