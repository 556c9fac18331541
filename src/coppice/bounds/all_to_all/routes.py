"""Decompose a single-source flow into routes with their shares of the demand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.topology.model import Topology

_GRID = 2**61
_LARGEST_SHARE = 2**62


@dataclass(frozen=True, slots=True)
class FlowRoute:
    """A path from a source to a target, with the share of the demand it takes."""

    target: int  # Target node
    nodes: tuple[int, ...]  # The path, source and target included
    share: int  # Weight among the routes to this target (positive; they have no common factor)


def routes_of_flow(
    topology: Topology, source: int, flow: Sequence[Fraction], demand: NDArray[np.int64]
) -> list[FlowRoute]:
    """Decompose a flow into paths, targets in the order of their node ids.

    Amounts are kept exactly while they are whole numbers below 2**62 in proportion, else rounded to 61 bits.
    A target for which nothing is left of a flow that is only nearly right gets the path of fewest hops.

    Args:
        flow: Flow per link; what enters a node covers what leaves it and its demand, up to rounding.
    """
    left = {e: amount for e, amount in enumerate(flow) if amount > 0}
    incoming: dict[int, list[int]] = {}
    for e in left:
        incoming.setdefault(int(topology.dst[e]), []).append(e)
    tail = topology.src.tolist()
    routes: list[FlowRoute] = []
    for target in np.flatnonzero(demand).tolist():
        if target == source:
            continue
        found: dict[tuple[int, ...], Fraction] = {}
        wanted = Fraction(int(demand[target]))
        while wanted > 0:
            links = _walk_back(source, target, left, incoming, tail)
            if links is None:
                break  # the rest is less than what the flow is wrong by
            amount = min(wanted, *(left[e] for e in links))
            for e in links:
                left[e] -= amount
            wanted -= amount
            nodes = (source, *(int(topology.dst[e]) for e in links))
            found[nodes] = found.get(nodes, Fraction(0)) + amount
        if not found:
            found[_fewest_hops(topology, source, target)] = Fraction(1)
        shares = _integer_shares(list(found.values()))
        routes += [
            FlowRoute(target, nodes, share) for nodes, share in zip(found, shares, strict=True) if share
        ]
    return routes


def routes_of_trees(
    topology: Topology,
    rank: int,
    demand: NDArray[np.int64],
    last_link: Sequence[NDArray[np.int32]],  # Per tree, the link over which each node is reached
    weights: Sequence[int],
) -> list[FlowRoute]:
    """The routes of one rank in a mix of shortest-path trees."""
    source = int(topology.rank_nodes[rank])
    routes = []
    for target in topology.rank_nodes[np.flatnonzero(demand)].tolist():
        found: dict[tuple[int, ...], int] = {}
        for tree, weight in zip(last_link, weights, strict=True):
            nodes = [target]
            while nodes[-1] != source:
                nodes.append(int(topology.src[tree[nodes[-1]]]))
            path = tuple(reversed(nodes))
            found[path] = found.get(path, 0) + weight
        shared = gcd(*found.values())
        routes += [FlowRoute(target, nodes, weight // shared) for nodes, weight in found.items()]
    return routes


def reduced_routes(routes: Sequence[FlowRoute]) -> list[FlowRoute]:
    """Divide the shares of each target's routes by their common factor."""
    found: list[FlowRoute] = []
    for _, own in itertools.groupby(routes, key=lambda route: route.target):
        several = list(own)
        shared = gcd(*(route.share for route in several))
        found += [FlowRoute(route.target, route.nodes, route.share // shared) for route in several]
    return found


def link_loads(topology: Topology, routes: Sequence[FlowRoute], demand: NDArray[np.int64]) -> list[Fraction]:
    """What the routes of one source put on each link, per unit of demand."""
    total: dict[int, int] = {}
    for route in routes:
        total[route.target] = total.get(route.target, 0) + route.share
    loads = [Fraction(0)] * topology.num_links
    for route in routes:
        amount = Fraction(route.share * int(demand[route.target]), total[route.target])
        for a, b in itertools.pairwise(route.nodes):
            loads[topology.link_index[a, b]] += amount
    return loads


def _walk_back(
    source: int, target: int, left: dict[int, Fraction], incoming: dict[int, list[int]], tail: list[int]
) -> list[int] | None:
    """Links of a path from source to target with flow left, widest first; cycles on the way are taken out."""
    links: list[int] = []
    place = {target: 0}
    at = target
    while at != source:
        e = max(incoming.get(at, []), key=lambda link: left[link], default=None)
        if e is None or left[e] <= 0:
            return None
        links.append(e)
        at = tail[e]
        if at in place:
            cycle = links[place[at] :]
            amount = min(left[link] for link in cycle)
            for link in cycle:
                left[link] -= amount
            return _walk_back(source, target, left, incoming, tail)
        place[at] = len(links)
    return links[::-1]


def _fewest_hops(topology: Topology, source: int, target: int) -> tuple[int, ...]:
    """The nodes of a path from source to target."""
    before = {source: -1}
    reached = [source]
    following: dict[int, list[int]] = {}
    for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True):
        following.setdefault(a, []).append(b)
    for node in reached:
        for head in following.get(node, []):
            if head not in before:
                before[head] = node
                reached.append(head)
    nodes = [target]
    while nodes[-1] != source:
        nodes.append(before[nodes[-1]])
    return tuple(reversed(nodes))


def _integer_shares(amounts: Sequence[Fraction]) -> list[int]:
    """Amounts as integers in proportion; rounded to a fine part of their sum where those are too large."""
    if not amounts:
        return []
    common = lcm(*(amount.denominator for amount in amounts))
    total = sum(amounts)
    if common * total < _LARGEST_SHARE:
        shares = [int(amount * common) for amount in amounts]
    else:
        shares = [round(amount / total * _GRID) for amount in amounts]
        largest = max(range(len(shares)), key=shares.__getitem__)
        shares[largest] += _GRID - sum(shares)
    shared = gcd(*shares)
    return [share // shared for share in shares]
