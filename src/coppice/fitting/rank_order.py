"""Rank orders that keep groups close in the network, and a lower bound on any order.

Order the ranks of a job so that its groups cross few links. Libraries take the order of ranks as given: a ring goes
from box to box in the order of the lowest ranks in them. A launcher decides which host a rank runs on, and a rank takes
the GPU of its host that its place among the ranks of that host says. An order is therefore a list of hosts, one for
each rank, and the GPUs of a host are used in their own order.

It is judged by the closed rings of all groups: from host to host, each where its first member stands. What happens
inside a host is the library's own choice and counts nothing. Hosts stay whole (consecutive ranks) unless asked
otherwise, since not every launcher can say more.

Groups are axes of a parallel job or lists of ranks. An axis is written ``name=size`` or ``name=size:weight``, the
fastest one first: ``tp=8,dp=4`` are 32 ranks of which 0..7 form a tensor group and 0, 8, 16, 24 a data group. Lists are
written ``0-3;4-7``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.parts.boxes import RELAY, crossings
from coppice.planners.algorithms.parts.orders import box_order, order_by
from coppice.topology.model import Topology

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


MOST_RANKS = 4096
"""More ranks are not ordered: the distances between all of them are compared."""

_UNREACHABLE = 2**60


@dataclass(frozen=True, kw_only=True)
class Crossed:
    """Links crossed by the rings of all groups."""

    weighted: int  # Links, each as often as its group weighs
    links: int  # Links
    relays: int  # GPUs that would have to forward on the way
    steps: dict[int, int]  # Number of steps from host to host by the links that they cross

    @property
    def words(self) -> str:
        """Crossed links as text."""
        kinds = ", ".join(f"{count} over {links}" for links, count in self.steps.items())
        relays = f" and {self.relays} GPUs that forward" if self.relays else ""
        return f"{self.links} links{relays}" + (f" ({kinds})" if kinds else "")

    def record(self) -> dict[str, Any]:
        """Crossed links as JSON values."""
        return {
            "weighted_links": self.weighted,
            "links": self.links,
            "relays": self.relays,
            "steps_by_links": {str(links): count for links, count in self.steps.items()},
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class RankOrder:
    """Mapping of the ranks of a job to GPUs."""

    topology: Topology  # Where the job runs
    groups: tuple[Group, ...]  # What the order is made for
    gpus: tuple[int, ...]  # `gpus[r]`: rank in the topology of the GPU that rank r of the job uses
    hosts: tuple[str, ...]  # Name of the host of each rank of the job
    local: tuple[int, ...]  # Place of each rank among those of its host: the index of its GPU there
    before: Crossed  # What rings cross with the ranks as the topology numbers them
    after: Crossed  # What they cross in this order
    bound: int | None  # No order crosses fewer links than this; None where no bound is known

    @property
    def whole_hosts(self) -> bool:
        """Whether the ranks of every host are consecutive."""
        starts = sum(1 for a, b in zip(self.hosts, self.hosts[1:], strict=False) if a != b) + 1
        return starts == len(set(self.hosts))

    @property
    def host_order(self) -> tuple[tuple[str, int], ...]:
        """Hosts by their first rank, with the number of their ranks."""
        return tuple(Counter(self.hosts).items())


def rank_order(
    topology: Topology,  # Where the job runs, one rank for each GPU that takes part
    *,
    groups: Sequence[Group] | None = None,  # Which ranks communicate; None is one group of all
    whole_hosts: bool = True,  # Ranks of a host are consecutive
    # Names of the hosts, in the order of the topology, where the topology's own are not meant
    names: Sequence[str] | None = None,
) -> RankOrder:
    """Rank order of a job for a topology and its groups.

    Returns:
        An order that crosses no more links than the topology's own numbers do.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> from coppice.topology import subset
        >>> fabric = preset("fat-tree", leaves=2, gpus_per_leaf=2)
        >>> mixed = subset(fabric, [0, 2, 1, 3])
        >>> found = rank_order(mixed)
        >>> found.hosts, found.before.links, found.after.links, found.bound
        (('host0', 'host2', 'host3', 'host1'), 16, 12, 12)
    """
    ranks = topology.num_ranks
    if ranks > MOST_RANKS:
        raise InputError(
            f"expected at most {MOST_RANKS:,} ranks to order, found {ranks:,}: order the hosts of one part."
        )
    chosen = tuple(groups or all_ranks(ranks))
    wrong = next((group for group in chosen if group.ranks and group.ranks[-1] >= ranks), None)
    if wrong is not None:
        raise InputError(
            f"expected groups of ranks 0 .. {ranks - 1}, found {wrong.ranks[-1]} in {wrong.name}."
        )
    host, hosts = _hosts(topology, names)
    apart = crossings(topology)
    if apart.size and int(apart.max()) >= _UNREACHABLE:
        a, b = (int(v) for v in np.argwhere(apart >= _UNREACHABLE)[0])
        raise UnreachableError(
            f"expected paths between all GPUs, found none from rank {a} to rank {b}: add a link."
        )
    rings = GroupRings(apart, host, [(group.ranks, group.weight) for group in chosen])
    natural = np.arange(ranks)
    starts = [by_hosts(order, host) for order in _orders(topology)]
    if not whole_hosts:
        starts += [natural, *_packed(chosen, starts[0])]
    best = improved(rings, [in_turn(start, host) for start in starts], whole=whole_hosts)
    if rings.cost(natural) <= rings.cost(best) and (not whole_hosts or _is_whole(natural, host)):
        best = natural
    alone = len(chosen) == 1 and len(chosen[0].ranks) == ranks
    seen: Counter[int] = Counter()
    local = []
    for h in host[best].tolist():
        local.append(seen[h])
        seen[h] += 1
    return RankOrder(
        topology=topology,
        groups=chosen,
        gpus=tuple(best.tolist()),
        hosts=tuple(hosts[h] for h in host[best].tolist()),
        local=tuple(local),
        before=_crossed(rings, natural),
        after=_crossed(rings, best),
        bound=tour_bound(_between_hosts(apart, host)) if alone else None,
    )


def _hosts(topology: Topology, names: Sequence[str] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The host of each rank; a GPU without one is its own."""
    given = topology.host[topology.rank_nodes].astype(np.int64)
    hosts = list(topology.hosts)
    for rank in np.flatnonzero(given < 0).tolist():
        given[rank] = len(hosts)
        hosts.append(topology.node_ids[int(topology.rank_nodes[rank])])
    used = list(dict.fromkeys(given.tolist()))
    used.sort()
    if names is not None:
        if len(names) != len(used) or len(set(names)) != len(names):
            raise InputError(
                f"expected {len(used)} different names of hosts, found {len(names)}: give one for each host."
            )
        for h, name in zip(used, names, strict=True):
            hosts[h] = name
    return given, tuple(hosts)


def _orders(topology: Topology) -> Iterable[NDArray[np.int64]]:
    """Orders that are worth beginning with."""
    yield np.arange(topology.num_ranks)
    for order in (box_order(topology), order_by(topology, "dfs"), order_by(topology, "rail")):
        yield np.array(order, dtype=np.int64)


def by_hosts(order: NDArray[np.int64], host: NDArray[np.int64]) -> NDArray[np.int64]:
    """Make the GPUs of each host consecutive, at the position of its first."""
    first: dict[int, int] = {}
    for place, h in enumerate(host[order].tolist()):
        first.setdefault(h, place)
    keys = np.array([first[h] for h in host[order].tolist()])
    return order[np.argsort(keys, kind="stable")]


def in_turn(order: NDArray[np.int64], host: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keep the GPUs of every host in local order, as launchers number them."""
    result = order.copy()
    for h in np.unique(host).tolist():
        places = np.flatnonzero(host[order] == h)
        result[places] = np.sort(order[places])
    return result


def _packed(groups: tuple[Group, ...], base: NDArray[np.int64]) -> Iterable[NDArray[np.int64]]:
    """Orders that fill host after host with the groups of one axis."""
    for name in dict.fromkeys(group.name for group in groups):
        placed = list(dict.fromkeys(rank for group in groups if group.name == name for rank in group.ranks))
        known = set(placed)
        placed += [rank for rank in range(len(base)) if rank not in known]
        order = np.empty_like(base)
        order[placed] = base
        yield order


def _is_whole(order: NDArray[np.int64], host: NDArray[np.int64]) -> bool:
    return bool((by_hosts(order, host) == order).all())


def _between_hosts(apart: NDArray[np.int64], host: NDArray[np.int64]) -> NDArray[np.int64]:
    """Links between every two hosts, by the nearest of their GPUs."""
    order = np.argsort(host, kind="stable")
    starts = np.flatnonzero(np.diff(host[order], prepend=-1))
    rows = np.minimum.reduceat(apart[np.ix_(order, order)], starts, axis=0)
    near = np.minimum.reduceat(rows, starts, axis=1)
    np.fill_diagonal(near, 0)
    return near


def _crossed(rings: GroupRings, order: NDArray[np.int64]) -> Crossed:
    costs, weights = rings.steps(order)
    links, relays = costs % RELAY, costs // RELAY
    return Crossed(
        weighted=int((links * weights).sum()),
        links=int(links.sum()),
        relays=int(relays.sum()),
        steps=dict(sorted(Counter(links.tolist()).items())),
    )


_AXIS = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)=([0-9]{1,7})(?::([0-9]{1,6}))?")
_SPAN = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks that communicate with each other, ascending."""

    name: str  # Axis that it belongs to
    ranks: tuple[int, ...]  # The ranks
    weight: int = 1  # How much a link that it crosses counts


def all_ranks(ranks: int) -> tuple[Group, ...]:
    """A single group of all ranks."""
    return (Group(name="all", ranks=tuple(range(ranks))),)


def read_groups(text: str, ranks: int) -> tuple[Group, ...]:
    """Parse groups of ranks.

    Args:
        text: Axes whose sizes multiply to ``ranks``, or lists of ranks.
        ranks: Number of ranks of the job.

    Examples:
        >>> [group.ranks for group in read_groups("tp=2,dp=2", 4)]
        [(0, 1), (2, 3), (0, 2), (1, 3)]
        >>> [group.ranks for group in read_groups("0-1;3,2", 4)]
        [(0, 1), (2, 3)]
    """
    if "=" in text:
        return _axes(text, ranks)
    return tuple(_listed(part, number, ranks) for number, part in enumerate(text.split(";")))


def _axes(text: str, ranks: int) -> tuple[Group, ...]:
    axes: list[tuple[str, int, int]] = []
    for part in text.split(","):
        match = _AXIS.fullmatch(part.strip())
        if match is None or int(match[2]) < 1 or (match[3] is not None and int(match[3]) < 1):
            raise InputError(
                f"expected axes such as tp=8,dp=4 or tp=8:16,dp=4 (a weight after the size), found {part!r}."
            )
        axes.append((match[1], int(match[2]), int(match[3] or 1)))
    product = 1
    for _, size, _ in axes:
        product *= size
    if product != ranks:
        raise InputError(
            f"expected axes whose sizes multiply to {ranks} ranks, found {text} = {product}: mend a size."
        )
    found: list[Group] = []
    stride = 1
    for name, size, weight in axes:
        if size > 1:
            found += [
                Group(name=name, ranks=tuple(range(first, first + stride * size, stride)), weight=weight)
                for block in range(0, ranks, stride * size)
                for first in range(block, block + stride)
            ]
        stride *= size
    return tuple(found) or all_ranks(ranks)


def _listed(text: str, number: int, ranks: int) -> Group:
    found: list[int] = []
    for part in text.split(","):
        match = _SPAN.fullmatch(part.strip())
        last = 0 if match is None else int(match[2] or match[1])
        if match is None or int(match[1]) > last or last >= ranks:
            raise InputError(
                f"expected groups such as 0-3;4-7 of ranks 0 .. {ranks - 1}, found {part.strip()!r}."
            )
        found += range(int(match[1]), last + 1)
    if len(set(found)) != len(found):
        raise InputError(f"expected each rank once in a group, found one twice in {text!r}: leave it out.")
    return Group(name=f"group {number}", ranks=tuple(sorted(found)))
