"""Initial schedule without a solver: greedily send on free links what brings most chunks nearer to their targets.

The nearness is the reward that TE-CCL's A* gives a round; here it is taken send by send. Programs start from the
result, and a search that is stopped early still has one.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coppice.errors import UnreachableError
from coppice.planners.synthesis.mip.routes import Route
from coppice.planners.synthesis.timed import Piece, TimedSend

_FAR = 1e15


@dataclass(frozen=True, kw_only=True)
class LinkUse:
    """Admission limit of a link: transfers per time window."""

    slots: int  # Pieces that may begin within one period
    period: float  # Time until as many may begin again


def distances(ranks: int, routes: Sequence[Route], transit: Sequence[float]) -> NDArray[np.float64]:
    """Shortest time from rank to rank."""
    dist: NDArray[np.float64] = np.full((ranks, ranks), _FAR)
    np.fill_diagonal(dist, 0.0)
    for route, time in zip(routes, transit, strict=True):
        dist[route.src, route.dst] = min(dist[route.src, route.dst], time)
    for k in range(ranks):
        np.minimum(dist, dist[:, k, None] + dist[None, k, :], out=dist)
    return dist


def greedy_sends(
    pieces: Sequence[Piece],
    ranks: int,
    routes: Sequence[Route],
    transit: Sequence[float],  # Time from start to arrival on each route
    # What a send over each route takes of the resources that it uses, by their numbers
    use: Sequence[dict[int, LinkUse]],
    *,
    seed: int = 0,
    jitter: float = 0.0,  # Share by which nearness is varied at random
    allowed: NDArray[np.bool_] | None = None,  # `allowed[p, l]`: piece p may take route l; None: any
) -> list[TimedSend]:
    """Greedy sends that bring every chunk to all of its targets."""
    chance = random.Random(seed)
    count = len(pieces)
    nearness = _Nearness(pieces, ranks, routes, transit, allowed)
    unmet: NDArray[np.bool_] = np.zeros((count, ranks), dtype=np.bool_)
    arrives: NDArray[np.float64] = np.full((count, ranks), _FAR)
    near: NDArray[np.float64] = np.empty((count, ranks))
    for p, piece in enumerate(pieces):
        unmet[p, list(piece.targets)] = True
        arrives[p, piece.source] = 0.0
        near[p] = nearness.of(p)[piece.source]
    if (unmet & (near >= _FAR)).any():
        p, target = np.argwhere(unmet & (near >= _FAR))[0].tolist()
        raise UnreachableError(
            f"expected routes from rank {pieces[p].source} to rank {target}, found none: add a link or a sender."
        )
    used: dict[int, tuple[float, int]] = {}
    events = [0.0]
    sends: list[TimedSend] = []
    route_src = np.array([route.src for route in routes], dtype=np.int64)
    route_dst = np.array([route.dst for route in routes], dtype=np.int64)
    crosses = np.array([route.crosses for route in routes], dtype=np.bool_)
    together = _together(ranks, routes)
    while unmet.any():
        if not events:
            raise UnreachableError(
                "expected the sketch to let every piece reach its ranks, found one that is stuck: allow more routes."
            )
        now = heapq.heappop(events)
        while events and events[0] <= now:
            heapq.heappop(events)
        free = np.array([_free(used, use[each], now) for each in range(len(routes))], dtype=np.bool_)
        if not free.any():
            continue
        gain = nearness.gains(near, unmet)
        there = arrives <= now
        worth = np.where(
            there[:, route_src] & (arrives[:, route_dst] >= _FAR) & free, gain[:, route_dst], 0.0
        )
        # What is in a box, or on the way there, is passed on inside.
        worth[:, crosses] *= ~((arrives < _FAR).astype(np.int64) @ together > 0)[:, route_dst[crosses]]
        if allowed is not None:
            worth *= allowed
        holders = (arrives < _FAR).sum(axis=1)
        candidates = np.argwhere(worth > 0).tolist()
        keyed = [
            (
                -worth[p, each] * (1.0 + jitter * chance.random()) if jitter else -worth[p, each],
                int(holders[p]),
                chance.random(),
                p,
                each,
            )
            for p, each in candidates
        ]
        heapq.heapify(keyed)
        while keyed:
            _, _, _, p, each = heapq.heappop(keyed)
            route = routes[each]
            if arrives[p, route.dst] < _FAR or not _free(used, use[each], now):
                continue
            if route.crosses and (arrives[p, together[:, route.dst]] < _FAR).any():
                continue
            dist = nearness.of(p)
            if not (unmet[p] & (dist[route.dst] < near[p])).any():
                continue
            arrival = now + transit[each]
            arrives[p, route.dst] = arrival
            unmet[p, route.dst] = False
            near[p] = np.minimum(near[p], dist[route.dst])
            sends.append(TimedSend(piece=p, route=route, start=now, end=arrival))
            heapq.heappush(events, arrival)
            for resource, taken in use[each].items():
                since, number = used.get(resource, (-_FAR, 0))
                if now >= since + taken.period:
                    since, number = now, 0
                used[resource] = since, number + 1
                heapq.heappush(events, since + taken.period)
    return sends


class _Nearness:
    """How far ranks are from each other for each piece, over the routes that it may take."""

    def __init__(
        self,
        pieces: Sequence[Piece],
        ranks: int,
        routes: Sequence[Route],
        transit: Sequence[float],
        allowed: NDArray[np.bool_] | None,
    ) -> None:
        rows = np.ones((1, len(routes)), dtype=np.bool_)
        self._kind: NDArray[np.int64] = np.zeros(len(pieces), dtype=np.int64)
        if allowed is not None:
            rows, kind = np.unique(allowed, axis=0, return_inverse=True)
            self._kind = kind.reshape(-1)
        self._dist: list[NDArray[np.float64]] = []
        for row in rows:
            ways = np.flatnonzero(row).tolist()
            self._dist.append(distances(ranks, [routes[i] for i in ways], [transit[i] for i in ways]))
        self._target = (
            np.array([next(iter(piece.targets)) for piece in pieces], dtype=np.int64)
            if pieces and all(len(piece.targets) == 1 for piece in pieces)
            else None
        )

    def of(self, p: int) -> NDArray[np.float64]:
        """Time from rank to rank for piece p."""
        return self._dist[int(self._kind[p])]

    def gains(self, near: NDArray[np.float64], unmet: NDArray[np.bool_]) -> NDArray[np.float64]:
        """``[p, v]``: how much nearer piece p comes to all who lack it by being at v."""
        gain: NDArray[np.float64] = np.zeros(near.shape)
        for kind, dist in enumerate(self._dist):
            rows = np.flatnonzero(self._kind == kind)
            if self._target is not None:
                target = self._target[rows]
                closer = np.maximum(near[rows, target][:, None] - dist[:, target].T, 0.0)
                gain[rows] = np.where(unmet[rows, target][:, None], closer, 0.0)
            else:
                closer = np.maximum(near[rows][:, None, :] - dist[None, :, :], 0.0)
                gain[rows] = np.where(unmet[rows][:, None, :], closer, 0.0).sum(axis=2)
        return gain


def _together(ranks: int, routes: Sequence[Route]) -> NDArray[np.bool_]:
    """Whether two ranks reach each other without leaving their box."""
    inside = [route for route in routes if not route.crosses]
    near = distances(ranks, inside, [1.0] * len(inside)) < _FAR
    return near & near.T


def _free(used: dict[int, tuple[float, int]], wanted: dict[int, LinkUse], now: float) -> bool:
    """Whether all resources of a send have room at ``now``."""
    for resource, taken in wanted.items():
        if resource in used:
            since, number = used[resource]
            if now < since + taken.period and number >= taken.slots:
                return False
    return True
