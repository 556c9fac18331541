"""All-to-all on large networks without symmetry: repeated shortest paths under lengths that grow with the load.

Each round sends everything along shortest paths and lengthens what is loaded most (multiplicative weights, after
Garg and Koenemann, 2007); every round's lengths also prove a bound. A small linear program then mixes the rounds so
that the worst link is loaded least. The mix has integer weights and its loads are counted exactly.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.distances import distances, integer_lengths, length_bound
from coppice.bounds.lp.program import LinearProgram, Row
from coppice.topology.model import Topology

__all__ = ["Spread", "spread"]

_ROUNDS = 40
_TRIES = 3
_GRID = 2**20


@dataclass(frozen=True, eq=False, kw_only=True)
class Spread:
    """A mix of shortest-path routings and the lengths that bound it.

    Attributes:
        reached: Time per unit of demand of the mix, in 1 / (GB/s).
        length: Integer link lengths that prove the best bound found.
        weights: Weight of each routing of the mix.
        last_link: Per routing: ``last_link[i, v]`` is the link over which rank i reaches node v (-1: none needed).
        rounds: Rounds that were run.
    """

    reached: Fraction
    length: list[int]
    weights: list[int]
    last_link: list[NDArray[np.int32]]
    rounds: int


def spread(topology: Topology, demand: NDArray[np.int64], *, time_limit: float) -> Spread:
    """Route ``demand`` (rank to rank, all reachable) for ``time_limit`` seconds or 40 rounds.

    Args:
        topology: The network.
        demand: Integers >= 0 with a zero diagonal.
        time_limit: Seconds, roughly; at least one round is run.
    """
    deadline = time.monotonic() + time_limit
    capacity = topology.capacity.astype(np.float64)
    loads: list[NDArray[np.int64]] = []
    trees: list[NDArray[np.int32]] = []
    best: tuple[Fraction, list[int]] = (Fraction(0), [1] * topology.num_links)
    length = capacity.max() / capacity
    mean = np.zeros(topology.num_links)
    rng = np.random.default_rng(0)
    for number in range(_ROUNDS):
        before = time.monotonic()
        integers = [max(1, value) for value in integer_lengths(length)]
        bound = length_bound(topology, demand, integers)
        best = max(best, (bound, integers), key=lambda pair: pair[0])
        tree = shortest_path_links(topology, np.array(integers, dtype=np.int64), rng)
        load = tree_loads(topology, tree, demand)
        loads.append(load)
        trees.append(tree)
        usage = load / capacity
        part = _best_part(mean, usage) if number else 1.0
        mean = (1 - part) * mean + part * usage
        worst = mean.max()
        if worst * topology.denominator <= float(best[0]) * (1 + 1e-9):
            break
        length = np.exp(np.maximum(_steepness(number) * (mean / worst - 1), -18)) / capacity
        if time.monotonic() + (time.monotonic() - before) > deadline:
            break
    weights = _mix(loads, topology.capacity)
    total = sum(weights)
    mixed = sum((w * load.astype(object) for w, load in zip(weights, loads, strict=True) if w), np.int64(0))
    reached = max(
        Fraction(int(load) * topology.denominator, total * b)
        for load, b in zip(mixed, topology.capacity.tolist(), strict=True)
    )
    kept = [k for k, weight in enumerate(weights) if weight]
    return Spread(
        reached=reached,
        length=best[1],
        weights=[weights[k] for k in kept],
        last_link=[trees[k] for k in kept],
        rounds=len(loads),
    )


def shortest_path_links(
    topology: Topology, length: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int32]:
    """``result[i, v]``: the last link of a shortest path from rank i to node v, ties broken at random; -1 for none.

    Args:
        topology: The network.
        length: Integers >= 1 per link.
        rng: Decides ties.
    """
    reach = distances(topology, topology.rank_nodes, length)
    order = np.argsort(topology.dst, kind="stable")
    tail, head, weight = topology.src[order], topology.dst[order], length[order]
    heads, starts = np.unique(head, return_index=True)
    result = np.full(reach.shape, -1, dtype=np.int32)
    bits = int(topology.num_links).bit_length()
    for i in range(len(reach)):
        tight = reach[i, tail] + weight == reach[i, head]
        key = (rng.integers(0, 2**30, size=len(order)) << bits) | order
        key = np.where(tight, key, -1)
        chosen = np.maximum.reduceat(key, starts)
        result[i, heads] = np.where(chosen >= 0, chosen & ((1 << bits) - 1), -1)
    result[np.arange(len(reach)), topology.rank_nodes] = -1
    return result


def tree_loads(
    topology: Topology, last_link: NDArray[np.int32], demand: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Load of each link when rank i sends ``demand[i, j]`` to rank j along the tree ``last_link[i]``."""
    ranks, nodes = last_link.shape
    amount = np.zeros((ranks, nodes), dtype=np.int64)
    amount[:, topology.rank_nodes] = demand
    up = np.where(last_link >= 0, topology.src[last_link], np.arange(nodes)[None, :])
    depth = _depths(last_link, up)
    loads = np.zeros(topology.num_links, dtype=np.int64)
    for level in range(int(depth.max()), 0, -1):
        i, v = np.nonzero(depth == level)
        moved = amount[i, v]
        np.add.at(amount, (i, up[i, v]), moved)
        np.add.at(loads, last_link[i, v], moved)
    return loads


def _depths(last_link: NDArray[np.int32], up: NDArray[np.int32]) -> NDArray[np.int32]:
    """Number of links from the root to each node of each tree (0 for nodes without one)."""
    depth = (last_link >= 0).astype(np.int32)
    at = up.copy()
    row = np.arange(len(up))[:, None]
    while True:
        more = last_link[row, at] >= 0
        if not more.any():
            return depth
        depth += more
        at = up[row, at]


def _best_part(mean: NDArray[np.float64], usage: NDArray[np.float64]) -> float:
    """The part p that makes the worst of (1 - p) mean + p usage least (golden section on a convex function)."""
    low, high = 0.0, 1.0
    for _ in range(40):
        a, b = low + 0.382 * (high - low), low + 0.618 * (high - low)
        if ((1 - a) * mean + a * usage).max() <= ((1 - b) * mean + b * usage).max():
            high = b
        else:
            low = a
    return (low + high) / 2


def _steepness(number: int) -> float:
    """How sharply lengths react to load: gently at first, then close to the worst link only."""
    return 4.0 + 2.0 * number


def _mix(loads: list[NDArray[np.int64]], capacity: NDArray[np.int64]) -> list[int]:
    """Integer weights of the rounds that make the worst link's usage small."""
    usage = np.array([load / capacity for load in loads])
    if len(loads) == 1:
        return [1]
    scale = _GRID / usage.max()
    busy = np.flatnonzero(usage.max(axis=0) >= usage.mean(axis=0).max())
    program = LinearProgram([1] * len(loads), [None] * len(loads))
    program.add_rows(
        [
            Row(
                column=np.arange(len(loads), dtype=np.int32),
                value=np.rint(usage[:, e] * scale).astype(np.int64),
                bound=_GRID,
            )
            for e in busy.tolist()
        ]
    )
    vertex = program.solve(time_limit=10.0)
    if vertex is None:
        return [1] * len(loads)
    shares = np.maximum(vertex.values, 0)
    return [round(value * _GRID) for value in (shares / shares.sum()).tolist()]
