"""Stages 1 and 2 of TACCL: route the chunks by a mixed-integer program, and order them on every link.

Routing is a mixed-integer program without an order on links. ``sent[p, l]``: piece p takes route l. ``start[p, v]``:
the least time at which it can be at rank v. A link that is used by several pieces only says how long all of them take
together: the program is relaxed in bandwidth (NSDI'23, section 5.1). Variables that the sketch's symmetries take to
each other are one.

The order is a list schedule. Of all transfers whose chunk is there, one is placed after the other: the one with the
longest way still to go first, or the one that can begin first; of equal ones a rank's own chunks, then by distance of
the ranks (section 5.2). Both rules are tried, and the faster order is taken.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coppice.errors import InputError
from coppice.planners.synthesis.mip.greedy import distances
from coppice.planners.synthesis.mip.program import MixedProgram, MixedSolution
from coppice.planners.synthesis.taccl.network import SketchedNetwork, turned_rank
from coppice.planners.synthesis.timed import Copying, Piece

Hops = dict[tuple[int, int], int]
"""Route on which a piece comes to a rank, by piece and rank."""

_MU = 0.01
_HALF = 0.5


class RoutingProgram:
    """Routing program of one direction.

    Args:
        copying: What has to be where.
        network: The routes of the sketch.
        horizon: A time in which it can be done.
        least: A time in which it cannot be done faster.

    Raises:
        InputError: If the sketch leaves a piece no way between boxes, or its symmetries are none.
    """

    def __init__(self, copying: Copying, network: SketchedNetwork, *, horizon: float, least: float) -> None:
        self.program = MixedProgram()
        self._network, self._pieces = network, copying.pieces
        self._ranks = copying.topology.num_ranks
        self._horizon = horizon
        self._keys = _Classes()
        self._columns: dict[tuple[int, ...], int] = {}
        self._number_of = {(route.src, route.dst): number for number, route in enumerate(network.routes)}
        self._images: dict[int, list[tuple[int, list[int]]]] = {}
        allowed = self._ways()
        self._legs_of: list[list[int]] = [np.flatnonzero(row).tolist() for row in allowed]
        rooted = copying.collective.rooted
        if not rooted:
            self._join_symmetric()
        farthest = least
        for p, piece in enumerate(self._pieces):
            routes = [network.routes[number] for number in self._legs_of[p]]
            times = [network.cost(number) for number in self._legs_of[p]]
            dist = distances(self._ranks, routes, times)
            farthest = max([farthest, *(float(dist[piece.source, t]) for t in piece.targets)])
        self._time = self.program.column(cost=1.0, lower=min(farthest, horizon), upper=horizon)
        for p in range(len(self._pieces)):
            self._add_piece(p)
        self._add_loads()

    def _ways(self) -> np.ndarray:
        """Routes of each piece: those that the sketch allows, between ranks on a path with the fewest routes."""
        network = self._network
        table = network.allowed(self._pieces)
        for p, piece in enumerate(self._pieces):
            routes = [network.routes[number] for number in np.flatnonzero(table[p])]
            hops = distances(self._ranks, routes, [1.0] * len(routes))
            near = np.zeros(self._ranks, dtype=np.bool_)
            for target in piece.targets:
                near |= hops[piece.source] + hops[:, target] <= hops[piece.source, target]
            for number, route in enumerate(network.routes):
                table[p, number] &= near[route.src] and near[route.dst]
        return table

    def _join_symmetric(self) -> None:
        """Make one variable of those that a symmetry takes to each other."""
        network, number_of = self._network, self._number_of
        piece_of = {(p.source, p.targets, p.number): i for i, p in enumerate(self._pieces)}
        for i, (offset, size) in enumerate(network.sketch.symmetry_offsets):
            for p, piece in enumerate(self._pieces):
                image = (
                    turned_rank(piece.source, offset, size),
                    frozenset(turned_rank(t, offset, size) for t in piece.targets),
                    piece.number,
                )
                q = piece_of[image]
                turned_ranks = [turned_rank(v, offset, size) for v in range(self._ranks)]
                self._images.setdefault(p, []).append((q, turned_ranks))
                for v in range(self._ranks):
                    self._keys.join((p, v), (q, turned_ranks[v]))
                for route in network.routes:
                    if route.src // size != route.dst // size:
                        continue
                    turned = turned_ranks[route.src], turned_ranks[route.dst]
                    if turned not in number_of:
                        raise InputError(
                            f"expected $.symmetry_offsets[{i}] to be a symmetry, found that it takes the link from "
                            f"rank {route.src} to rank {route.dst} to ranks {turned[0]} and {turned[1]}, which have "
                            "none."
                        )
                    self._keys.join((p, route.src, route.dst), (q, *turned))

    def _sent(self, p: int, number: int) -> int:
        route = self._network.routes[number]
        key = self._keys.name_of((p, route.src, route.dst))
        if key not in self._columns:
            self._columns[key] = self.program.column(upper=1.0, whole=True)
        return self._columns[key]

    def _start(self, p: int, v: int) -> int:
        key = self._keys.name_of((p, v))
        if key not in self._columns:
            self._columns[key] = self.program.column(upper=self._horizon)
        return self._columns[key]

    def _row(
        self, terms: Sequence[tuple[int, float]], *, least: float = -math.inf, most: float = math.inf
    ) -> None:
        """Add a row; entries of one column, which symmetry makes, are added up."""
        summed: dict[int, float] = defaultdict(float)
        for column, value in terms:
            summed[column] += value
        self.program.row({c: v for c, v in summed.items() if v}, least=least, most=most)

    def _add_piece(self, p: int) -> None:
        piece, network, far = self._pieces[p], self._network, self._horizon
        into: dict[int, list[int]] = defaultdict(list)
        for number in self._legs_of[p]:
            into[network.routes[number].dst].append(number)
        for v in range(self._ranks):
            if v == piece.source:
                continue
            ways = [(self._sent(p, number), 1.0) for number in into[v]]
            wanted = v in piece.targets
            if wanted and not ways:
                ends = f"from rank {piece.source} to rank {v}"
                raise InputError(f"expected the sketch to leave a way {ends}, found none: allow more.")
            if not ways:
                continue
            self._row(ways, least=1.0 if wanted else -math.inf, most=1.0)
            if wanted:
                self._row([(self._time, 1.0), (self._start(p, v), -1.0)], least=0.0)
            for number in self._legs_of[p]:
                if network.routes[number].src == v and not wanted:
                    self._row([(self._sent(p, number), 1.0), *((c, -x) for c, x in ways)], most=0.0)
        for number in self._legs_of[p]:
            route, cost = network.routes[number], network.cost(number)
            before = [] if route.src == piece.source else [(self._start(p, route.src), -1.0)]
            terms = [(self._start(p, route.dst), 1.0), *before, (self._sent(p, number), -(far + cost))]
            self._row(terms, least=-far)
        for box in sorted(network.boxes_to_reach(piece)):
            ways = [
                (self._sent(p, number), 1.0)
                for number in self._legs_of[p]
                if network.crosses(number) and network.routes[number].dst // network.gpus == box
            ]
            if not ways:
                raise InputError(
                    f"expected the sketch to let rank {piece.source} reach box {box}, found no sender for it at "
                    "$.internode_sketch: add one."
                )
            self._row(ways, least=1.0)

    def _add_loads(self) -> None:
        """How long each link and port is busy; and what the sketch wants of the links inside a box."""
        network, program = self._network, self.program
        strategy = network.sketch.intranode_sketch
        loads: dict[int, list[tuple[int, float]]] = defaultdict(list)
        by_route: dict[int, list[int]] = defaultdict(list)
        for p in range(len(self._pieces)):
            for number in self._legs_of[p]:
                by_route[number].append(self._sent(p, number))
                for resource, time in network.occupied(number).items():
                    loads[resource].append((self._sent(p, number), time))
        for resource in sorted(loads):
            self._row([(self._time, 1.0), *((c, -time) for c, time in loads[resource])], least=0.0)
        if strategy.strategy in ("minmax", "maxmin"):
            sign = 1.0 if strategy.strategy == "minmax" else -1.0
            load = program.column(cost=sign * _MU, upper=self._horizon)
            for resource in sorted(loads):
                self._row([(load, sign), *((c, -sign * time) for c, time in loads[resource])], least=0.0)
        wanted = set(strategy.switch_hyperedge_strategy) - {"freedom"}
        if strategy.strategy == "switch" and wanted:
            sign = 1.0 if "uc-min" in wanted else -1.0
            for number, columns in sorted(by_route.items()):
                if network.routes[number].src < network.gpus and not network.crosses(number):
                    used = program.column(cost=sign * _MU, upper=1.0, whole=True)
                    for column in columns:
                        self._row([(used, 1.0), (column, -1.0)], least=0.0)
                    self._row([(used, 1.0), *((column, -1.0) for column in columns)], most=0.0)

    def start_of(self, hops: Hops) -> dict[int, float] | None:
        """Initial values of the integer columns for given hops.

        Of symmetric pieces those of the first one are taken, and turned for the others. None where the symmetries
        take a piece to itself with other hops, or a route to one that is not there.
        """
        alike = self._turned_hops(hops)
        if alike is None:
            return None
        values = {self._sent(p, number): 0.0 for p in range(len(self._pieces)) for number in self._legs_of[p]}
        for (p, _), number in alike.items():
            column = self._sent(p, number)
            if column not in values:
                return None
            values[column] = 1.0
        return values

    def _turned_hops(self, hops: Hops) -> Hops | None:
        """The hops of one piece of each set of symmetric ones, turned for the others."""
        own: dict[int, dict[int, int]] = defaultdict(dict)
        for (p, v), number in hops.items():
            own[p][v] = number
        found: dict[int, dict[int, int]] = {}
        for first in range(len(self._pieces)):
            if first in found:
                continue
            found[first] = own[first]
            open_ = [first]
            while open_:
                p = open_.pop()
                for q, turned in self._images.get(p, ()):
                    image = {}
                    for v, number in found[p].items():
                        route = self._network.routes[number]
                        there = self._number_of.get((turned[route.src], turned[v]))
                        if there is None:
                            return None
                        image[turned[v]] = there
                    if q not in found:
                        found[q] = image
                        open_.append(q)
                    elif found[q] != image:
                        return None
        return {(p, v): number for p, routes in found.items() for v, number in routes.items()}

    def hops(self, found: MixedSolution) -> Hops | None:
        """Routes of a solution, pruned; None where there is no solution."""
        if found.values is None:
            return None
        network = self._network
        into: Hops = {}
        for p in range(len(self._pieces)):
            for number in self._legs_of[p]:
                if found.values[self._sent(p, number)] > _HALF:
                    into[p, network.routes[number].dst] = number
        return needed_hops(self._pieces, network, into)


def needed_hops(pieces: Sequence[Piece], network: SketchedNetwork, into: Hops) -> Hops:
    """Part of ``into`` that leads to targets."""
    kept: Hops = {}
    for p, piece in enumerate(pieces):
        for target in sorted(piece.targets):
            v = target
            while v != piece.source and (p, v) not in kept:
                kept[p, v] = into[p, v]
                v = network.routes[into[p, v]].src
    return kept


class _Classes:
    """Names that stand for the same thing (union-find)."""

    def __init__(self) -> None:
        self._parent: dict[tuple[int, ...], tuple[int, ...]] = {}

    def name_of(self, key: tuple[int, ...]) -> tuple[int, ...]:
        """The one name of all that are the same as ``key``."""
        path = []
        while (parent := self._parent.get(key, key)) != key:
            path.append(key)
            key = parent
        for each in path:
            self._parent[each] = key
        return key

    def join(self, a: tuple[int, ...], b: tuple[int, ...]) -> None:
        """Make them the same."""
        a, b = self.name_of(a), self.name_of(b)
        if a != b:
            self._parent[max(a, b)] = min(a, b)


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A chunk on a route."""

    piece: int  # Number of the piece
    route: int  # Number of the route
    start: float  # When it leaves, in microseconds
    end: float  # When it has arrived


def ordered(pieces: Sequence[Piece], network: SketchedNetwork, hops: Hops) -> list[Transfer]:
    """Transfers of ``hops`` in list-scheduling order, each as early as possible."""
    found = [_scheduled(pieces, network, hops, by_time=by_time) for by_time in (False, True)]
    return min(found, key=lambda transfers: max((each.end for each in transfers), default=0.0))


def _scheduled(
    pieces: Sequence[Piece], network: SketchedNetwork, hops: Hops, *, by_time: bool
) -> list[Transfer]:
    ranks = network.topology.num_ranks
    onward: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for (p, v), number in hops.items():
        onward[p, network.routes[number].src].append((p, v))
    tail: dict[tuple[int, int], float] = {}
    for p, piece in enumerate(pieces):
        _measure((p, piece.source), network, hops, onward, tail)
    there = {(p, piece.source): 0.0 for p, piece in enumerate(pieces)}
    free: dict[int, float] = defaultdict(float)
    held_back = _own_crossings(pieces, network, hops)
    ready = sorted(key for p, piece in enumerate(pieces) for key in onward[p, piece.source])
    done: list[Transfer] = []

    def key_of(task: tuple[int, int]) -> tuple[float, ...]:
        p, v = task
        number = hops[task]
        route = network.routes[number]
        soonest = max([there[p, route.src], *(free[resource] for resource in network.use[number])])
        rest = -tail[task]
        foreign = float(pieces[p].source != route.src)
        first = (soonest, rest) if by_time else (rest, soonest)
        return (*first, foreign, float((route.src - route.dst) % ranks), float(route.src), float(v), float(p))

    while ready:
        open_ = [task for task in ready if not _must_wait(task, pieces, network, hops, held_back)]
        task = min(open_, key=key_of)
        ready.remove(task)
        p, v = task
        number = hops[task]
        route = network.routes[number]
        start = max([there[p, route.src], *(free[resource] for resource in network.use[number])])
        for resource, time in network.occupied(number).items():
            free[resource] = start + time
        there[p, v] = start + network.cost(number)
        done.append(Transfer(piece=p, route=number, start=start, end=there[p, v]))
        held_back.get(route.src, set()).discard(task)
        ready += sorted(onward[p, v])
    return done


def _measure(
    at: tuple[int, int],
    network: SketchedNetwork,
    hops: Hops,
    onward: dict[tuple[int, int], list[tuple[int, int]]],
    tail: dict[tuple[int, int], float],
) -> None:
    """Time of the longest way from ``at``, and of each way below it, its own transfer included."""
    order, open_ = [], [at]
    while open_:
        here = open_.pop()
        order.append(here)
        open_ += onward[here]
    for task in reversed(order):
        below = max((tail[each] for each in onward[task]), default=0.0)
        tail[task] = below + (network.cost(hops[task]) if task in hops else 0.0)


def _own_crossings(
    pieces: Sequence[Piece], network: SketchedNetwork, hops: Hops
) -> dict[int, set[tuple[int, int]]]:
    """Where the sketch enforces it, for each sender its own chunks that leave the box."""
    found: dict[int, set[tuple[int, int]]] = {}
    between = network.sketch.internode_sketch
    if between is not None and between.enforce_ordering:
        for (p, v), number in hops.items():
            sender = network.routes[number].src
            if network.crosses(number) and pieces[p].source == sender:
                found.setdefault(sender, set()).add((p, v))
    return found


def _must_wait(
    task: tuple[int, int],
    pieces: Sequence[Piece],
    network: SketchedNetwork,
    hops: Hops,
    held_back: dict[int, set[tuple[int, int]]],
) -> bool:
    """Whether a sender has to send chunks of its own first."""
    number = hops[task]
    sender = network.routes[number].src
    foreign = pieces[task[0]].source != sender
    return foreign and network.crosses(number) and bool(held_back.get(sender))
