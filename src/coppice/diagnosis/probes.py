"""Rounds of concurrent flows between ranks, and which parts of a network each flow can show to be slow.

In a round every rank sends to at most one other and receives from at most one, as in a permutation; all its flows run
at once, and the rate of each is measured. A flow shows that a link is slow where that link is what limits it: its
*headroom* is the share of its rate that a link can lose before the flow is slower. A slow GPU or host slows all flows
that start or end there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from coppice.errors import InputError, UnreachableError
from coppice.rows import ranges
from coppice.topology.model import NodeKind, Topology
from coppice.topology.routing import Router

TIGHT = 0.999
"""Share of what a link carries in the flows that it limits; a little less than one, as rates are floats."""

MOST_SHIFTS = 24
"""Shifts of places that are candidates, of each kind."""

LINK, GPU, NIC, SWITCH, HOST = "link", "GPU", "NIC", "switch", "host"
"""Kinds of parts."""


@dataclass(frozen=True, eq=False)
class NetworkParts:
    """The parts of a network that may be slow: links in each direction, nodes, and hosts."""

    topology: Topology
    kinds: tuple[str, ...]  # Kind of each part: link, GPU, NIC, switch or host
    names: tuple[str, ...]  # Name of each, such as `box0/gpu3 -> rail3/leaf0`
    # Links of part p are `links[first[p] : first[p + 1]]`
    first: NDArray[np.int64]
    links: NDArray[np.int64]
    # Part of each node, or -1; part of each host
    of_node: NDArray[np.int64]
    of_host: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kinds)


def parts_of(topology: Topology) -> NetworkParts:
    """All parts: links first, in order, then nodes, then hosts of several GPUs unless one has all.

    >>> from coppice.topology.presets import preset
    >>> parts = parts_of(preset("dgx-a100"))
    >>> len(parts), parts.kinds.count("link"), parts.names[0]
    (25, 16, 'gpu0 -> nvswitch')
    """
    ids = topology.node_ids
    kinds = [LINK] * topology.num_links
    names = [
        f"{ids[a]} -> {ids[b]}" for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    ]
    rows: list[NDArray[np.int64]] = [np.array([e]) for e in range(topology.num_links)]
    of_node = np.full(topology.num_nodes, -1, dtype=np.int64)
    words = {NodeKind.GPU: GPU, NodeKind.NIC: NIC, NodeKind.SWITCH: SWITCH}
    for v in range(topology.num_nodes):
        touching = np.flatnonzero((topology.src == v) | (topology.dst == v))
        if len(touching):
            of_node[v] = len(kinds)
            kinds.append(words[NodeKind(int(topology.kind[v]))])
            names.append(ids[v])
            rows.append(touching)
    hosts = int(topology.host.max(initial=-1)) + 1
    of_host = np.full(hosts, -1, dtype=np.int64)
    for host in range(hosts):
        inside = topology.host == host
        if inside[topology.rank_nodes].sum() > 1 and not inside[topology.rank_nodes].all():
            of_host[host] = len(kinds)
            kinds.append(HOST)
            names.append(topology.hosts[host])
            rows.append(np.flatnonzero(inside[topology.src] | inside[topology.dst]))
    return NetworkParts(
        topology=topology,
        kinds=tuple(kinds),
        names=tuple(names),
        first=np.concatenate([[0], np.cumsum([len(each) for each in rows])]).astype(np.int64),
        links=np.concatenate(rows).astype(np.int64),
        of_node=of_node,
        of_host=of_host,
    )


@dataclass(frozen=True, eq=False)
class Round:
    """Flows that run at once, with their routes."""

    name: str  # What the flows are, such as `in boxes, 1 further`
    src: NDArray[np.int64]  # Sending rank of each flow
    dst: NDArray[np.int64]  # Receiving rank
    # Links of flow f are `links[first[f] : first[f + 1]]`
    first: NDArray[np.int64]
    links: NDArray[np.int64]

    @cached_property
    def flow(self) -> NDArray[np.int64]:
        """Flow of each of the links."""
        return np.repeat(np.arange(len(self.src)), np.diff(self.first))


def rates(round_: Round, capacity: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rate of each flow of a round in max-min fairness: all rise together, and stop with the first link that is full.

    Args:
        capacity: Of each link.
    """
    flow, links = round_.flow, round_.links
    found = np.zeros(len(round_.src))
    going = np.ones(len(found), dtype=np.bool_)
    left: NDArray[np.float64] = capacity.astype(np.float64)
    while going.any():
        active = going[flow]
        load = np.bincount(links[active], minlength=len(left))
        used = load > 0
        share = np.full(len(left), np.inf)
        share[used] = left[used] / load[used]
        least = float(share.min())
        full = share <= least * (1 + 1e-12)
        stop = np.zeros(len(found), dtype=np.bool_)
        stop[flow[active & full[links]]] = True
        found[stop] = least
        left -= np.bincount(links[stop[flow]], minlength=len(left)) * least
        left = np.maximum(left, 0.0)
        going &= ~stop
    return found


def narrowest(round_: Round, topology: Topology) -> NDArray[np.int64]:
    """Capacity of the narrowest link of each flow: flows of one are of one class, as software treats them alike."""
    return np.minimum.reduceat(topology.capacity[round_.links].astype(np.int64), round_.first[:-1])


@dataclass(frozen=True, eq=False)
class Sight:
    """Which parts each flow of a round can show to be slow, and how slow they have to be for that."""

    part: NDArray[np.int64]  # Part of each entry
    flow: NDArray[np.int64]  # Flow of each entry
    # Share of its rate that the flow takes of the part: the part is seen where it is slower than that
    headroom: NDArray[np.float64]
    # Row of the links of the round at which that is so, or -1: all that starts or ends at the part is slower
    hop: NDArray[np.int64]


def sight_of(parts: NetworkParts, round_: Round, rate: NDArray[np.float64]) -> Sight:
    """Entries of all parts that a flow passes, at most one for a part and a flow.

    Args:
        rate: Rate of each flow, with nothing slow.
    """
    topology = parts.topology
    capacity = topology.capacity / topology.denominator
    load = np.bincount(round_.links, weights=rate[round_.flow], minlength=topology.num_links)
    of_link = load / capacity
    flow, links = round_.flow, round_.links
    rank_node = topology.rank_nodes
    every = np.arange(len(round_.src))
    part = [links, parts.of_node[topology.src[links]], parts.of_node[topology.dst[links]]]
    flows = [flow, flow, flow]
    shares = [of_link[links]] * 3
    hops = [np.arange(len(links))] * 3
    at_end = np.full(len(every), -1)
    for end in (round_.src, round_.dst):
        nodes = rank_node[end]
        part += [parts.of_node[nodes]]
        flows += [every]
        shares += [np.ones(len(every))]
        hops += [at_end]
        hosts = topology.host[nodes]
        if len(parts.of_host):
            part += [np.where(hosts >= 0, parts.of_host[hosts], -1)]
            flows += [every]
            shares += [np.ones(len(every))]
            hops += [at_end]
    all_part, all_flow, all_share = np.concatenate(part), np.concatenate(flows), np.concatenate(shares)
    keep = all_part >= 0
    key = all_part[keep] * len(every) + all_flow[keep]
    hop = np.concatenate(hops)[keep]
    order = np.lexsort((hop, -all_share[keep], key))
    key, share, hop = key[order], all_share[keep][order], hop[order]
    new = np.append(True, key[1:] != key[:-1])
    return Sight(key[new] // len(every), key[new] % len(every), share[new], hop[new])


def candidates(topology: Topology) -> Iterator[Round]:
    """Rounds to choose from: shifts inside boxes and between them, or over each link where GPUs are linked directly."""
    router = Router(topology)
    ranks = topology.num_ranks
    host = topology.host[topology.rank_nodes]
    direct = _neighbours(topology)
    for number in range(max(len(each) for each in direct)):
        pairs = [(rank, each[number]) for rank, each in enumerate(direct) if number < len(each)]
        yield routed(router, f"to neighbour {number}", pairs)
    if topology.num_nodes == ranks:
        return
    members = [np.flatnonzero(host == each).tolist() for each in np.unique(host[host >= 0])]
    if (host < 0).any() or not members:
        members = [list(range(ranks))]
    largest = max(len(each) for each in members)
    for shift in range(1, min(largest, MOST_SHIFTS + 1)):
        name = f"{shift} further in each box" if len(members) > 1 else f"{shift} further"
        pairs = [
            (rank, each[(place + shift) % len(each)])
            for each in members
            for place, rank in enumerate(each)
            if shift % len(each)
        ]
        yield from _valid(router, name, pairs)
    boxes = len(members)
    for turn in range(min(largest, 3)):
        for step in _steps(boxes):
            pairs = [
                (rank, members[(box + step) % boxes][(place + turn) % len(members[(box + step) % boxes])])
                for box in range(boxes)
                for place, rank in enumerate(members[box])
                if place < len(members[(box + step) % boxes])
            ]
            yield from _valid(router, f"{step} boxes on, {turn} places further", pairs)


def _steps(boxes: int) -> list[int]:
    """Steps between boxes: small ones, those that double, and some of the rest."""
    found = [*range(1, min(boxes, 9)), *(2**k for k in range(3, boxes.bit_length()))]
    found += [boxes * k // 7 for k in range(1, 7)]
    return [step for step in dict.fromkeys(found) if 0 < step < boxes][:MOST_SHIFTS]


def _neighbours(topology: Topology) -> list[list[int]]:
    """Ranks that each rank has a link to."""
    found: list[list[int]] = [[] for _ in range(topology.num_ranks)]
    for a, b in zip(topology.rank[topology.src].tolist(), topology.rank[topology.dst].tolist(), strict=True):
        if min(a, b) >= 0:
            found[a].append(b)
    return found


def _reached(router: Router, pairs: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Those of the pairs that have a route over switches."""
    for src, dst in pairs:
        try:
            router.path(src, dst)
        except UnreachableError:
            continue
        yield src, dst


def _valid(router: Router, name: str, pairs: list[tuple[int, int]]) -> Iterator[Round]:
    """The round of the flows that have routes over switches, where there are any."""
    try:
        if pairs:
            yield routed(router, name, pairs)
    except UnreachableError:
        reached = list(_reached(router, pairs))
        if reached:
            yield routed(router, name, reached)


def routed(router: Router, name: str, pairs: list[tuple[int, int]]) -> Round:
    """A round of flows on their default routes."""
    topology = router.topology
    src, dst = (np.array(end, dtype=np.int64) for end in zip(*pairs, strict=True))
    start, nodes = router.paths(src, dst, np.zeros(len(src), dtype=np.int64))
    counts = np.diff(start) - 1
    at = ranges(start[:-1], counts)
    index = topology.link_index
    links = np.array(
        [index[a, b] for a, b in zip(nodes[at].tolist(), nodes[at + 1].tolist(), strict=True)], dtype=np.int64
    )
    return Round(name, src, dst, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), links)


def require_ranks(topology: Topology) -> None:
    """Refuse networks in which nothing can be sent."""
    if topology.num_ranks < 2:
        raise InputError(
            f"expected two ranks or more to probe, found {topology.num_ranks}: give the whole cluster."
        )
