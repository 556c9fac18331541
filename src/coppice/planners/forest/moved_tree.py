"""A tree that hops are moved in, and what searches for another way are led by."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from coppice.topology.model import Topology


@dataclass(eq=False)
class MovedTree:
    """A mutable tree: parent and path row by node, -1 at the root and elsewhere."""

    root: int
    weight: int
    reduces: bool
    parent: NDArray[np.int32]
    path: NDArray[np.int32]
    children: NDArray[np.int32]
    detached: set[int] = field(default_factory=set)

    def below(self, node: int) -> list[int]:
        """Attached children of a node."""
        found: list[int] = np.flatnonzero(self.parent == node).tolist()
        return [child for child in found if child not in self.detached]

    def height_with(self, child: int, parent: int, entry: int) -> int:
        """Hops of the longest chain through the hop from a parent to a detached subtree that is entered at one rank.

        Where that is not the top of the subtree, the way from there to the top and on is counted for all of it.
        """
        above = self.parent.copy()
        above[[*self.detached]] = -1
        top, hops = np.arange(len(above)), np.zeros(len(above), dtype=np.int64)
        while len(rest := np.flatnonzero(above[top] >= 0)):
            top[rest] = above[top[rest]]
            hops[rest] += 1
        return int(hops[parent] + 1 + hops[entry] + hops[top == child].max())

    def depth(self, node: int) -> int:
        """Hops between a node and the root, -1 where it is not connected to it, ignoring detached subtrees."""
        hops = 0
        while node != self.root:
            if node in self.detached:
                return -1
            node = int(self.parent[node])
            if node < 0:
                return -1
            hops += 1
        return hops


@dataclass(frozen=True)
class Hanging:
    """A place to attach a subtree: new parent, entry rank, and changes of link loads."""

    parent: int
    entry: int
    path: list[int]
    turned: list[list[int]]
    gained: list[int]
    freed: list[int]
    units: int


def flow_rows(tree: MovedTree) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Senders, receivers and paths of a tree's edges in dataflow order."""
    children, parent = tree.children, tree.parent
    depth = np.zeros(len(parent), dtype=np.int64)
    at = children.copy()
    reached = children
    while len(at):
        depth[reached] += 1
        at = parent[at]
        going = at != tree.root
        at, reached = at[going], reached[going]
    order = children[np.argsort(depth[children], kind="stable")]
    if tree.reduces:
        order = order[::-1]
        return order, parent[order], tree.path[order]
    return parent[order], order, tree.path[order]


def neighbours(topology: Topology) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
    """(node, link) of the incoming and outgoing links of each node."""
    entering: list[list[tuple[int, int]]] = [[] for _ in range(topology.num_nodes)]
    leaving: list[list[tuple[int, int]]] = [[] for _ in range(topology.num_nodes)]
    for link, (a, b) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
        entering[b].append((a, link))
        leaving[a].append((b, link))
    return entering, leaving


def cost_ahead(around: list[list[tuple[int, int]]], cost: list[float], rank: list[int]) -> list[float]:
    """Least cost from each node's nearest rank, from ranks along the links of ``around``."""
    least = [0.0 if each >= 0 else float("inf") for each in rank]
    heap = [(0.0, node) for node, each in enumerate(rank) if each >= 0]
    while heap:
        price, node = heapq.heappop(heap)
        if price > least[node]:
            continue
        for other, link in around[node]:
            there = price + cost[link]
            if there < least[other]:
                least[other] = there
                heapq.heappush(heap, (there, other))
    return least


def middles(
    leaving: list[tuple[int, int]], entering: list[tuple[int, int]], rank: list[int], *, turn: int
) -> list[tuple[int, int, int]]:
    """Switches between two others with the links to and from them; ``turn`` gives the direction."""
    out = dict(leaving)
    ways = [(node, out[node], link) for node, link in entering if node in out and rank[node] < 0]
    first = turn % max(1, len(ways))
    return ways[first:] + ways[:first]
