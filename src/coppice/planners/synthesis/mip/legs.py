"""Candidate routes from rank to rank: direct links, and paths through switches as hyper-edges.

A switch that does not copy is no place where data can wait or multiply, so a program need not know it: what two ranks
can send each other through it is one leg, and legs share the links that they run over (the hyper-edges of TACCL, and of
TE-CCL for switches without copy).
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
class Leg:
    """Route from one rank to another that passes no other rank."""

    src: int  # Sending rank
    dst: int  # Receiving rank
    nodes: tuple[int, ...]  # Nodes along it, both ends included
    links: tuple[int, ...]  # Links along it
    gb_per_s: Fraction  # Rate of its narrowest link
    latency_us: float  # Sum of the latencies of its links
    crosses: bool  # It leads from one box to another

    def turned(self) -> Leg:
        """Reverse route on the transposed topology; its links are not numbered there."""
        return Leg(
            src=self.dst,
            dst=self.src,
            nodes=self.nodes[::-1],
            links=(),
            gb_per_s=self.gb_per_s,
            latency_us=self.latency_us,
            crosses=self.crosses,
        )


def leg_of(topology: Topology, nodes: tuple[int, ...]) -> Leg:
    """Route along ``nodes``."""
    links = tuple(topology.link_index[pair] for pair in pairwise(nodes))
    first, last = nodes[0], nodes[-1]
    return Leg(
        src=int(topology.rank[first]),
        dst=int(topology.rank[last]),
        nodes=nodes,
        links=links,
        gb_per_s=min(topology.gb_per_s(e) for e in links),
        latency_us=float(sum(topology.latency_us[e] for e in links)),
        crosses=bool(topology.host[first] != topology.host[last]),
    )


def legs_of(topology: Topology) -> list[Leg]:
    """Candidate routes by sender and receiver.

    Inside a box a route through switches is left out where direct links, one after the other, are as wide; between
    two boxes those with the fewest hops are kept. Where this would cut a rank off, nothing is left out.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> crossing = [leg for leg in legs_of(preset("ndv2", boxes=2)) if leg.crosses]
        >>> sorted((leg.src, leg.dst) for leg in crossing if leg.src < 8)
        [(0, 8), (0, 9), (1, 8), (1, 9)]
    """
    ranks = topology.num_ranks
    if ranks > MOST_RANKS:
        raise InputError(
            f"expected at most {MOST_RANKS} ranks for a program, found {ranks}: use tacos, or `coppice plan`."
        )
    router = Router(topology)
    every: list[Leg] = []
    for src in range(ranks):
        for dst in range(ranks):
            if src != dst:
                try:
                    every.append(leg_of(topology, router.path(src, dst)))
                except UnreachableError:
                    continue
    direct = [leg for leg in every if len(leg.links) == 1 and not leg.crosses]
    width = _widths(ranks, direct)
    fewest: dict[tuple[int, int], int] = defaultdict(lambda: topology.num_nodes)
    for leg in every:
        key = _boxes(topology, leg)
        fewest[key] = min(fewest[key], len(leg.links))
    kept = [
        leg
        for leg in every
        if (leg.crosses and len(leg.links) == fewest[_boxes(topology, leg)])
        or (not leg.crosses and (len(leg.links) == 1 or width[leg.src][leg.dst] < leg.gb_per_s))
    ]
    return kept if _reach(ranks, kept) == _reach(ranks, every) else every


def _boxes(topology: Topology, leg: Leg) -> tuple[int, int]:
    return int(topology.host[leg.nodes[0]]), int(topology.host[leg.nodes[-1]])


def _widths(ranks: int, legs: Sequence[Leg]) -> list[list[Fraction]]:
    """Widest path over ``legs`` between every two ranks."""
    width = [[Fraction(0)] * ranks for _ in range(ranks)]
    for leg in legs:
        width[leg.src][leg.dst] = leg.gb_per_s
    for k in range(ranks):
        for i in range(ranks):
            if width[i][k]:
                for j in range(ranks):
                    width[i][j] = max(width[i][j], min(width[i][k], width[k][j]))
    return width


def _reach(ranks: int, legs: Iterable[Leg]) -> list[set[int]]:
    """Ranks that each rank reaches."""
    out: dict[int, list[int]] = defaultdict(list)
    for leg in legs:
        out[leg.src].append(leg.dst)
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
