"""Candidate routes from rank to rank: direct links, and paths through switches as hyper-edges.

A switch that does not copy is no place where data can wait or multiply, so a program need not know it: what two ranks
can send each other through it is one route, and routes share the links that they run over (the hyper-edges of TACCL,
and of TE-CCL for switches without copy).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from coppice.errors import InputError, UnreachableError
from coppice.topology.model import Topology
from coppice.topology.routing import Router

MOST_RANKS = 128
"""Programs of more ranks are beyond what the solver handles."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """Route from one rank to another that passes no other rank."""

    src: int  # Sending rank
    dst: int  # Receiving rank
    nodes: tuple[int, ...]  # Nodes along it, both ends included
    links: tuple[int, ...]  # Links along it
    gb_per_s: Fraction  # Rate of its narrowest link
    latency_us: float  # Sum of the latencies of its links
    crosses: bool  # It leads from one box to another

    def turned(self) -> Route:
        """Reverse route on the transposed topology; its links are not numbered there."""
        return Route(
            src=self.dst,
            dst=self.src,
            nodes=self.nodes[::-1],
            links=(),
            gb_per_s=self.gb_per_s,
            latency_us=self.latency_us,
            crosses=self.crosses,
        )


def route_of(topology: Topology, nodes: tuple[int, ...]) -> Route:
    """Route along ``nodes``."""
    links = tuple(topology.link_index[pair] for pair in pairwise(nodes))
    first, last = nodes[0], nodes[-1]
    return Route(
        src=int(topology.rank[first]),
        dst=int(topology.rank[last]),
        nodes=nodes,
        links=links,
        gb_per_s=min(topology.gb_per_s(e) for e in links),
        latency_us=float(sum(topology.latency_us[e] for e in links)),
        crosses=bool(topology.host[first] != topology.host[last]),
    )


def routes_of(topology: Topology) -> list[Route]:
    """Candidate routes by sender and receiver.

    Inside a box a route through switches is left out where direct links, one after the other, are as wide; between
    two boxes those with the fewest hops are kept. Where this would cut a rank off, nothing is left out.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> crossing = [route for route in routes_of(preset("ndv2", boxes=2)) if route.crosses]
        >>> sorted((route.src, route.dst) for route in crossing if route.src < 8)
        [(0, 8), (0, 9), (1, 8), (1, 9)]
    """
    ranks = topology.num_ranks
    if ranks > MOST_RANKS:
        raise InputError(
            f"expected at most {MOST_RANKS} ranks for a program, found {ranks}: use tacos, or `coppice plan`."
        )
    router = Router(topology)
    every: list[Route] = []
    for src in range(ranks):
        for dst in range(ranks):
            if src != dst:
                try:
                    every.append(route_of(topology, router.path(src, dst)))
                except UnreachableError:
                    continue
    direct = [route for route in every if len(route.links) == 1 and not route.crosses]
    width = _widths(ranks, direct)
    fewest: dict[tuple[int, int], int] = defaultdict(lambda: topology.num_nodes)
    for route in every:
        key = _boxes(topology, route)
        fewest[key] = min(fewest[key], len(route.links))
    kept = [
        route
        for route in every
        if (route.crosses and len(route.links) == fewest[_boxes(topology, route)])
        or (not route.crosses and (len(route.links) == 1 or width[route.src][route.dst] < route.gb_per_s))
    ]
    return kept if _reach(ranks, kept) == _reach(ranks, every) else every


def _boxes(topology: Topology, route: Route) -> tuple[int, int]:
    return int(topology.host[route.nodes[0]]), int(topology.host[route.nodes[-1]])


def _widths(ranks: int, routes: Sequence[Route]) -> list[list[Fraction]]:
    """Widest path over ``routes`` between every two ranks."""
    width = [[Fraction(0)] * ranks for _ in range(ranks)]
    for route in routes:
        width[route.src][route.dst] = route.gb_per_s
    for k in range(ranks):
        for i in range(ranks):
            if width[i][k]:
                for j in range(ranks):
                    width[i][j] = max(width[i][j], min(width[i][k], width[k][j]))
    return width


def _reach(ranks: int, routes: Iterable[Route]) -> list[set[int]]:
    """Ranks that each rank reaches."""
    out: dict[int, list[int]] = defaultdict(list)
    for route in routes:
        out[route.src].append(route.dst)
    found = []
    for src in range(ranks):
        seen, open_ = {src}, [src]
        while open_:
            for v in out[open_.pop()]:
                if v not in seen:
                    seen.add(v)
                    open_.append(v)
        found.append(seen)
    return found
