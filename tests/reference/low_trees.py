"""Reference for trees of bounded height, grown by cheapest paths and hung anew."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Edges = list[tuple[int, int]]
ROUNDS = 4


def grown(cost: NDArray[np.float64], hops: NDArray[np.float64], root: int, height: int, turn: int) -> Edges:
    """Sender and receiver of each edge, senders after what they receive; none where some rank does not fit."""
    ranks = len(cost)
    far_first = hops + (np.arange(ranks) + max(turn, 0)) % ranks / (2 * ranks)
    for far in ([None] if turn < 0 else []) + [far_first]:
        depth = np.full(ranks, -1)
        depth[root] = 0
        edges: Edges = []
        while (depth < 0).any():
            path = cheapest(cost, depth, height, far)
            if path is None:
                break
            for sender, receiver in path:
                depth[receiver] = depth[sender] + 1
                edges.append((sender, receiver))
        else:
            return edges
    return []


def cheapest(
    cost: NDArray[np.float64], depth: NDArray[np.int64], height: int, far: NDArray[np.float64] | None
) -> Edges | None:
    """The cheapest path from the tree to the farthest rank outside it, or to the cheapest one."""
    outside, every = depth < 0, np.arange(len(cost))
    reached = np.full(len(cost), np.inf)
    before, layers = [], []
    for hop in range(height):
        start = np.where(outside, reached, np.where(depth == hop, 0.0, np.inf))
        through = start[:, None] + cost
        before.append(through.argmin(axis=0))
        reached = through[before[-1], every]
        layers.append(reached)
    least = np.min(layers, axis=0)
    if np.isinf(least[outside]).any():
        return None
    choice = -least if far is None else far
    node = int(np.where(outside, choice, -np.inf).argmax())
    hop = int(np.argmin([layer[node] for layer in layers]))
    path: Edges = []
    while depth[node] < 0:
        path.append((int(before[hop][node]), node))
        node, hop = path[-1][0], hop - 1
    return path[::-1]


def rehung(cost: NDArray[np.float64], edges: Edges, root: int, height: int) -> Edges:
    """The tree with ranks below other ones where that is cheaper and no rank is too far from the root."""
    ranks = len(cost)
    parent = dict.fromkeys(range(ranks), -1) | {receiver: sender for sender, receiver in edges}

    def above(rank: int) -> list[int]:
        found = [rank]
        while parent[found[-1]] >= 0:
            found.append(parent[found[-1]])
        return found

    def depth(rank: int) -> int:
        return len(above(rank)) - 1

    for _ in range(ROUNDS):
        moved = False
        paid = {rank: cost[parent[rank], rank] for rank in range(ranks) if rank != root}
        for rank in sorted(paid, key=lambda each: -paid[each]):
            below = [each for each in range(ranks) if rank in above(each)]
            deepest = max(depth(each) for each in below) - depth(rank)
            fits = [
                each for each in range(ranks) if each not in below and depth(each) + 1 + deepest <= height
            ]
            best = min(fits, key=lambda each: cost[each, rank], default=rank)
            if cost[best, rank] < cost[parent[rank], rank] * (1 - 1e-9):
                parent[rank], moved = best, True
        if not moved:
            break
    return [(parent[rank], rank) for rank in sorted(range(ranks), key=depth) if rank != root]
