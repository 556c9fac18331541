"""Cheapest ring under link prices, over all ranks or box by box, through switches and relays.

A search is built once for a problem and then asked for rings under many price vectors.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coppice.planners.ring.model import Ring, RingTraffic
from coppice.planners.ring.tour import (
    EXACT_POINTS,
    PathOf,
    all_paths,
    cut_tours,
    exact_tour,
    local_tour,
    patched_tour,
    tour_cost,
)
from coppice.topology.model import Topology


class RouteTable:
    """Cheapest routes from sources to sinks through given relays.

    The links that can take part are sorted out once; :meth:`costs` is then called with many price vectors.

    Args:
        src: Node that each link leaves.
        dst: Node that each link enters.
        num_nodes: Number of nodes.
        sources: Nodes that send (rows of the cost matrix).
        sinks: Nodes that receive (columns of the cost matrix).
        relays: Nodes that may forward; must not contain a source or a sink.
    """

    def __init__(
        self,
        src: NDArray[np.int32],
        dst: NDArray[np.int32],
        num_nodes: int,
        *,
        sources: NDArray[np.int32],
        sinks: NDArray[np.int32],
        relays: NDArray[np.int32],
    ) -> None:
        source_at, sink_at, relay_at = (np.full(num_nodes, -1, dtype=np.int32) for _ in range(3))
        source_at[sources] = np.arange(len(sources))
        sink_at[sinks] = np.arange(len(sinks))
        relay_at[relays] = np.arange(len(relays))
        self._shape = (len(sources), len(sinks))
        self._num_relays = len(relays)
        self._direct = np.flatnonzero((source_at[src] >= 0) & (sink_at[dst] >= 0))
        self._first = np.flatnonzero((source_at[src] >= 0) & (relay_at[dst] >= 0))
        middle = np.flatnonzero((relay_at[src] >= 0) & (relay_at[dst] >= 0))
        last = np.flatnonzero((relay_at[src] >= 0) & (sink_at[dst] >= 0))
        self._middle = middle[np.argsort(relay_at[dst[middle]], kind="stable")]
        self._last = last[np.argsort(sink_at[dst[last]], kind="stable")]
        self._direct_ends = (source_at[src[self._direct]], sink_at[dst[self._direct]])
        self._first_ends = (source_at[src[self._first]], relay_at[dst[self._first]])
        self._middle_tail = relay_at[src[self._middle]]
        self._last_tail = relay_at[src[self._last]]
        # Links into one relay (one sink) are neighbours: the slice that begins at starts[i] enters heads[i].
        self._middle_heads, self._middle_starts = np.unique(relay_at[dst[self._middle]], return_index=True)
        self._last_heads, self._last_starts = np.unique(sink_at[dst[self._last]], return_index=True)
        self._direct_link = {
            (int(s), int(t)): int(e) for s, t, e in zip(*self._direct_ends, self._direct, strict=True)
        }
        self._first_link = {
            (int(s), int(r)): int(e) for s, r, e in zip(*self._first_ends, self._first, strict=True)
        }
        self._into_relay = self._slices(self._middle_heads, self._middle_starts, len(self._middle))
        self._into_sink = self._slices(self._last_heads, self._last_starts, len(self._last))
        self._prices = np.zeros(len(src))
        self._reach = np.zeros((0, 0))

    @staticmethod
    def _slices(heads: NDArray[np.int32], starts: NDArray[np.intp], total: int) -> dict[int, tuple[int, int]]:
        ends = [*starts.tolist(), total][1:]
        return {
            head: (start, end) for head, start, end in zip(heads.tolist(), starts.tolist(), ends, strict=True)
        }

    def costs(self, prices: NDArray[np.float64]) -> NDArray[np.float64]:
        """Price of the cheapest route from each source to each sink, infinite where there is none."""
        reach = np.full((self._shape[0], self._num_relays), np.inf)
        np.minimum.at(reach, self._first_ends, prices[self._first])
        middle = prices[self._middle]
        while len(middle):
            through = np.minimum.reduceat(reach[:, self._middle_tail] + middle, self._middle_starts, axis=1)
            known = reach[:, self._middle_heads]
            if not (through < known).any():
                break
            reach[:, self._middle_heads] = np.minimum(known, through)
        cost = np.full(self._shape, np.inf)
        np.minimum.at(cost, self._direct_ends, prices[self._direct])
        if len(self._last):
            through = np.minimum.reduceat(
                reach[:, self._last_tail] + prices[self._last], self._last_starts, axis=1
            )
            cost[:, self._last_heads] = np.minimum(cost[:, self._last_heads], through)
        self._prices, self._reach = prices, reach
        return cost

    def route(self, source: int, sink: int) -> list[int]:
        """Links of the cheapest route from a source row to a sink column, at the last prices.

        The route must exist (finite cost), and no two links may join the same two nodes.
        """
        prices, reach = self._prices, self._reach[source]
        direct = self._direct_link.get((source, sink))
        slot = self._into_sink.get(sink)
        if slot is not None:
            start, end = slot
            row = start + int(np.argmin(reach[self._last_tail[start:end]] + prices[self._last[start:end]]))
            relay, link = int(self._last_tail[row]), int(self._last[row])
        if direct is not None and (slot is None or prices[direct] <= reach[relay] + prices[link]):
            return [direct]
        links = [link]
        while True:
            first = self._first_link.get((source, relay))
            if first is not None and prices[first] <= reach[relay]:
                links.append(first)
                return links[::-1]
            start, end = self._into_relay[relay]
            row = start + int(
                np.argmin(reach[self._middle_tail[start:end]] + prices[self._middle[start:end]])
            )
            links.append(int(self._middle[row]))
            relay = int(self._middle_tail[row])


LOCAL_POINTS = 400  # local search up to this many ranks; beyond, boxes or cycle patching
_CHUNK = 8  # ranks of a box where nothing divides many ranks
_ALL_PATHS_POINTS = 10  # ranks of a box up to which all paths through it are known
_EXACT_BOXES = 3  # boxes for which an exact tour is computed, for each ring
_KEPT_TOURS = 24


class RingSearch(Protocol):
    """Find a cheap ring under link prices."""

    exact: bool

    def ring(self, prices: NDArray[np.float64]) -> Ring | None:
        """A ring of low total price (traffic x route price), or None where none is found."""


def boxes_of(topology: Topology) -> list[NDArray[np.int32]]:
    """Ranks' nodes by box: by host where every rank has one, else by their switches.

    One box that holds all ranks where neither divides them into several boxes, some larger than one.
    """
    ranks = topology.rank_nodes
    keys: list[tuple[int, ...]] = [(host,) for host in topology.host[ranks].tolist()]
    if (-1,) in keys:
        relay = topology.rank < 0
        leaf = relay[topology.dst] & ~relay[topology.src]
        attached: dict[int, list[int]] = {}
        for node, switch in zip(topology.src[leaf].tolist(), topology.dst[leaf].tolist(), strict=True):
            attached.setdefault(node, []).append(switch)
        keys = [tuple(attached.get(node, ())) for node in ranks.tolist()]
    members: dict[tuple[int, ...], list[int]] = {}
    for key, node in zip(keys, ranks.tolist(), strict=True):
        members.setdefault(key, []).append(node)
    if () in members or not 1 < len(members) < len(ranks):
        return [ranks]
    return [np.array(nodes, dtype=np.int32) for nodes in members.values()]


def search_for(
    topology: Topology, traffic: RingTraffic, boxes: list[NDArray[np.int32]], rng: np.random.Generator
) -> list[RingSearch]:
    """Searches that fit a topology, in the order to try."""
    ranks = topology.num_ranks
    flat = FlatSearch(topology, traffic, rng) if ranks <= LOCAL_POINTS else None
    if flat is not None and flat.exact:
        return [flat]
    searches: list[RingSearch] = []
    if len(boxes) > 1:
        searches.append(BoxSearch(topology, traffic, boxes, rng))
    if flat is not None:
        searches.append(flat)
    elif (topology.rank[topology.src] >= 0).all() and (topology.rank[topology.dst] >= 0).all():
        searches.append(CableSearch(topology, rng))
    elif len(boxes) == 1:
        chunks = [topology.rank_nodes[i : i + _CHUNK] for i in range(0, ranks, _CHUNK)]
        searches.append(BoxSearch(topology, traffic, chunks, rng))
    return searches


def _scaled(cost: NDArray[np.float64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cost of each hop: route price times hop factor; a hop without a route stays infinite."""
    return np.where(np.isfinite(cost), np.where(np.isfinite(cost), cost, 0.0) * factors, np.inf)


class FlatSearch:
    """Rings over all ranks at once: exact for few ranks, local search or cycle patching for many."""

    def __init__(self, topology: Topology, traffic: RingTraffic, rng: np.random.Generator) -> None:
        ranks = topology.rank_nodes
        self._ranks, self._rng = ranks, rng
        self._table = RouteTable(
            topology.src,
            topology.dst,
            topology.num_nodes,
            sources=ranks,
            sinks=ranks,
            relays=np.flatnonzero(topology.rank < 0).astype(np.int32),
        )
        self._factors = traffic.factors(ranks, ranks)
        self.exact = len(ranks) <= EXACT_POINTS

    def ring(self, prices: NDArray[np.float64]) -> Ring | None:
        """A ring of low total price, or None where none is found (for few ranks: where none exists)."""
        cost = _scaled(self._table.costs(prices), self._factors)
        np.fill_diagonal(cost, np.inf)
        if not (np.isfinite(cost).any(axis=0).all() and np.isfinite(cost).any(axis=1).all()):
            return None
        tour: list[int] | None = None
        if self.exact:
            tour = exact_tour(cost)
        else:
            if len(cost) <= LOCAL_POINTS or np.isfinite(cost).mean() > 0.5:
                tour = local_tour(cost, self._rng)
            if tour is None:
                order = np.argsort(cost, axis=1, kind="stable")
                degree = np.isfinite(cost).sum(axis=1)
                tour = patched_tour(
                    [row[:d].tolist() for row, d in zip(order, degree, strict=True)], self._rng
                )
        if tour is None:
            return None
        hops = [tuple(self._table.route(u, v)) for u, v in pairwise([*tour, tour[0]])]
        return Ring(tuple(self._ranks[tour].tolist()), tuple(hops))


class CableSearch:
    """Rings over many directly cabled ranks: cycle patching, cheap cables first."""

    exact = False

    def __init__(self, topology: Topology, rng: np.random.Generator) -> None:
        self._topology, self._rng = topology, rng

    def ring(self, prices: NDArray[np.float64]) -> Ring | None:
        """A ring that prefers cheap cables, or None where none is found."""
        topology = self._topology
        rank, nodes = topology.rank, topology.rank_nodes
        out: list[list[int]] = [[] for _ in range(topology.num_ranks)]
        for link in np.argsort(prices + 1e-9 * prices.max() * self._rng.random(len(prices))).tolist():
            out[rank[topology.src[link]]].append(int(rank[topology.dst[link]]))
        tour = patched_tour(out, self._rng)
        if tour is None:
            return None
        ring = nodes[tour].tolist()
        return Ring(tuple(ring), tuple((topology.link_index[u, v],) for u, v in pairwise([*ring, ring[0]])))


class BoxSearch:
    """Rings that visit the boxes one after the other.

    The order of the boxes is found once. Under given prices the entry and exit rank of every box follow from
    dynamic programming around the boxes, with the cheapest path through each box between them.
    """

    exact = False

    def __init__(
        self,
        topology: Topology,
        traffic: RingTraffic,
        boxes: list[NDArray[np.int32]],
        rng: np.random.Generator,
    ) -> None:
        self._topology, self._rng = topology, rng
        self._tours: dict[int, list[list[int]]] = {}  # good tours of a box, by its number of ranks
        self._relays = np.flatnonzero(topology.rank < 0).astype(np.int32)
        order = self._box_order(boxes)
        self._boxes = [boxes[b] for b in order]
        following = [*self._boxes[1:], self._boxes[0]]
        self._inner = [self._table(box, box) for box in self._boxes]
        self._outer = [self._table(box, other) for box, other in zip(self._boxes, following, strict=True)]
        self._inner_factors = [traffic.factors(box, box) for box in self._boxes]
        self._outer_factors = [
            traffic.factors(box, other) for box, other in zip(self._boxes, following, strict=True)
        ]

    def _table(self, box: NDArray[np.int32], other: NDArray[np.int32]) -> RouteTable:
        """Routes from a box to another through their own relays and those of no box."""
        topology = self._topology
        own = {-1, *topology.host[box].tolist(), *topology.host[other].tolist()}
        taken = set(topology.host[topology.rank_nodes].tolist()) - own
        host = topology.host[self._relays]
        relays = self._relays[~np.isin(host, list(taken))]
        return RouteTable(
            topology.src, topology.dst, topology.num_nodes, sources=box, sinks=other, relays=relays
        )

    def _box_order(self, boxes: list[NDArray[np.int32]]) -> list[int]:
        """A short tour of the boxes: few and wide links from each to the next."""
        topology = self._topology
        delegate = np.arange(topology.num_nodes, dtype=np.int32)
        for box in boxes:
            delegate[box] = box[0]
        ends = np.array([box[0] for box in boxes], dtype=np.int32)
        table = RouteTable(
            delegate[topology.src],
            delegate[topology.dst],
            topology.num_nodes,
            sources=ends,
            sinks=ends,
            relays=self._relays,
        )
        cost = table.costs(topology.capacity.max() / topology.capacity + 1.0)
        np.fill_diagonal(cost, np.inf)
        natural = list(range(len(boxes)))
        if len(boxes) <= 3:
            return natural
        floor = float(cost.min(axis=1).sum())
        if float(cost[natural, [*natural[1:], 0]].sum()) <= floor * (1 + 1e-12) or len(boxes) > LOCAL_POINTS:
            return natural
        if len(boxes) <= EXACT_POINTS:
            return exact_tour(cost) or natural
        return local_tour(cost, self._rng, start=natural) or natural

    def ring(self, prices: NDArray[np.float64]) -> Ring | None:
        """A ring of low total price that keeps boxes together, or None where none is found."""
        known: dict[bytes, tuple[NDArray[np.float64], PathOf]] = {}
        paths: list[PathOf] = []
        leave: list[NDArray[np.intp]] = []  # leave[b][e, y]: exit of box b, entered at e, towards y
        before: list[NDArray[np.intp]] = []  # before[b][f, y]: entry of box b, box 0 entered at f
        total = np.full((len(self._boxes[0]),) * 2, np.inf)
        np.fill_diagonal(total, 0.0)
        for inner, outer, inside, outside in zip(
            self._inner, self._outer, self._inner_factors, self._outer_factors, strict=True
        ):
            cost = _scaled(inner.costs(prices), inside)
            np.fill_diagonal(cost, np.inf)
            key = cost.tobytes()
            if key not in known:
                known[key] = self._box_paths(cost, exact=len(known) < _EXACT_BOXES)
            through, path = known[key]
            onward = _scaled(outer.costs(prices), outside)
            step = through[:, :, None] + onward[None, :, :]
            leave.append(step.argmin(axis=1))
            paths.append(path)
            whole = total[:, :, None] + step.min(axis=1)[None, :, :]
            before.append(whole.argmin(axis=1))
            total = whole.min(axis=1)
        closed = np.diagonal(total)
        entry = int(np.argmin(closed))
        if not np.isfinite(closed[entry]):
            return None
        return self._assemble(entry, leave, before, paths)

    def _assemble(
        self, first: int, leave: list[NDArray[np.intp]], before: list[NDArray[np.intp]], paths: list[PathOf]
    ) -> Ring:
        """Trace the dynamic programme back from its closing at entry ``first`` of the first box."""
        target = first
        parts: list[tuple[list[int], list[tuple[int, ...]]]] = []
        for b in range(len(self._boxes) - 1, -1, -1):
            entry = int(before[b][first, target])
            path = paths[b](entry, int(leave[b][entry, target]))
            hops = [tuple(self._inner[b].route(u, v)) for u, v in pairwise(path)]
            hops.append(tuple(self._outer[b].route(path[-1], target)))
            parts.append((self._boxes[b][path].tolist(), hops))
            target = entry
        parts.reverse()
        return Ring(
            tuple(node for nodes, _ in parts for node in nodes),
            tuple(hop for _, hops in parts for hop in hops),
        )

    def _box_paths(self, cost: NDArray[np.float64], *, exact: bool) -> tuple[NDArray[np.float64], PathOf]:
        """Paths through a whole box by (entry, exit): all for small boxes, else good tours cut open.

        Tours are kept, since boxes are mostly alike and prices change little from ring to ring.
        """
        n = len(cost)
        if n <= _ALL_PATHS_POINTS:
            return all_paths(cost)
        known = self._tours.setdefault(n, [])
        if exact and n <= EXACT_POINTS:
            tour = exact_tour(cost)
        else:
            start = min(known, key=lambda tour: tour_cost(cost, tour), default=None)
            tour = local_tour(cost, self._rng, start=start, kicks=0 if known else 20)
        if tour is not None and tour not in known:
            known += [tour, tour[::-1]]
            del known[:-_KEPT_TOURS]
        if not known:
            return np.full((n, n), np.inf), lambda first, _: [first]
        return cut_tours(cost, known)
