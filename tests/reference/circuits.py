"""Blocks on whole paths as the native kernel routes them (cpp/flow/circuits.h), link by link in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

Part: TypeAlias = tuple[int, int, int]
"""Sender, receiver, and number of a part."""


class LoadedLinks:
    """Loads of links, and the cheapest paths under them.

    Args:
        nodes: Terminals.
        tail: Node that each link leaves.
        head: Node that each link enters.
        rate: Load of each link that is full.
        fixed: What a message costs on each link.
        fullest: Loads above this one cost alike.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        tail: Sequence[int],
        head: Sequence[int],
        rate: Sequence[float],
        fixed: Sequence[float],
        fullest: float,
    ) -> None:
        self.nodes, self.tail, self.rate, self.fixed, self.fullest = nodes, tail, rate, fixed, fullest
        self.load = [0.0] * len(tail)
        self.narrowest = min(rate)
        self.out: dict[int, list[tuple[int, int]]] = {}
        for link, (one, other) in enumerate(zip(tail, head, strict=True)):
            self.out.setdefault(one, []).append((other, link))

    def routed(
        self, parts: int, rounds: Sequence[tuple[int, float]], even: float
    ) -> tuple[float, dict[Part, list[int]]]:
        """Least load of a round, and its routes; all loads are as the last one left them."""
        ranks, share = len(self.nodes), 1 / parts
        chosen: dict[Part, list[int]] = {}
        best: tuple[float, dict[Part, list[int]]] = inf, {}
        for power, message in rounds:
            for sender in range(ranks):
                for part in range(parts):
                    for away in range(1, ranks):
                        key = sender, (sender + away) % ranks, part
                        self.add(chosen.get(key, ()), -share)
                        chosen[key] = self.path(self.nodes[sender], self.nodes[key[1]], share, power, message)
                        self.add(chosen[key], share)
            fullest = max(self.loads)
            if fullest < best[0] - even + 1:
                best = fullest, dict(chosen)
            if fullest <= even:
                break
        return best

    @property
    def loads(self) -> list[float]:
        """Load of each link, to the least possible one of the fullest."""
        return [load / rate for load, rate in zip(self.load, self.rate, strict=True)]

    def add(self, links: Sequence[int], share: float) -> None:
        """Load a path, or unload it."""
        for link in links:
            self.load[link] += share

    def path(self, source: int, target: int, share: float, power: int, message: float) -> list[int]:
        """Links of the cheapest path (Dijkstra)."""
        far: dict[int, float] = {}
        via: dict[int, int] = {}
        far[source] = 0.0
        heap = [(0.0, source)]
        rate, load, fixed, unit = self.rate, self.load, self.fixed, message / self.narrowest
        while heap:
            so_far, node = heappop(heap)
            if node == target:
                break
            if so_far > far[node]:
                continue
            for head, link in self.out.get(node, []):
                full = min((load[link] + share) / rate[link], self.fullest)
                cost = so_far + fixed[link] * unit + full**power / rate[link]
                if cost < far.get(head, inf):
                    far[head], via[head] = cost, link
                    heappush(heap, (cost, head))
        found: list[int] = []
        node = target
        while node != source:
            found.append(via[node])
            node = self.tail[via[node]]
        return found[::-1]
