"""Stage 2 of TACCL: the order of the chunks on every link, by list scheduling.

Of all transfers whose chunk is there, one is placed after the other: the one with the longest way still to go first, or
the one that can begin first; of equal ones a rank's own chunks, then by distance of the ranks (NSDI'23, section 5.2).
Both rules are tried, and the faster order is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from coppice.planners.synthesis.mip.timed import Piece
from coppice.planners.synthesis.taccl.network import SketchedNetwork
from coppice.planners.synthesis.taccl.routing import Route


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A piece on a leg."""

    piece: int  # Number of the piece
    leg: int  # Number of the leg
    start: float  # When it leaves, in microseconds
    end: float  # When it has arrived


def ordered(pieces: Sequence[Piece], network: SketchedNetwork, routes: Route) -> list[Transfer]:
    """The transfers of ``routes`` in an order, each as early as the ones before it let it be."""
    found = [_scheduled(pieces, network, routes, by_time=by_time) for by_time in (False, True)]
    return min(found, key=lambda transfers: max((each.end for each in transfers), default=0.0))


def _scheduled(
    pieces: Sequence[Piece], network: SketchedNetwork, routes: Route, *, by_time: bool
) -> list[Transfer]:
    ranks = network.topology.num_ranks
    onward: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for (p, v), number in routes.items():
        onward[p, network.legs[number].src].append((p, v))
    tail: dict[tuple[int, int], float] = {}
    for p, piece in enumerate(pieces):
        _measure((p, piece.source), network, routes, onward, tail)
    there = {(p, piece.source): 0.0 for p, piece in enumerate(pieces)}
    free: dict[int, float] = defaultdict(float)
    held_back = _own_crossings(pieces, network, routes)
    ready = sorted(key for p, piece in enumerate(pieces) for key in onward[p, piece.source])
    done: list[Transfer] = []

    def key_of(task: tuple[int, int]) -> tuple[float, ...]:
        p, v = task
        number = routes[task]
        leg = network.legs[number]
        soonest = max([there[p, leg.src], *(free[resource] for resource in network.use[number])])
        rest = -tail[task]
        foreign = float(pieces[p].source != leg.src)
        first = (soonest, rest) if by_time else (rest, soonest)
        return (*first, foreign, float((leg.src - leg.dst) % ranks), float(leg.src), float(v), float(p))

    while ready:
        open_ = [task for task in ready if not _must_wait(task, pieces, network, routes, held_back)]
        task = min(open_, key=key_of)
        ready.remove(task)
        p, v = task
        number = routes[task]
        leg = network.legs[number]
        start = max([there[p, leg.src], *(free[resource] for resource in network.use[number])])
        for resource, time in network.occupied(number).items():
            free[resource] = start + time
        there[p, v] = start + network.cost(number)
        done.append(Transfer(piece=p, leg=number, start=start, end=there[p, v]))
        held_back.get(leg.src, set()).discard(task)
        ready += sorted(onward[p, v])
    return done


def _measure(
    at: tuple[int, int],
    network: SketchedNetwork,
    routes: Route,
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
        tail[task] = below + (network.cost(routes[task]) if task in routes else 0.0)


def _own_crossings(
    pieces: Sequence[Piece], network: SketchedNetwork, routes: Route
) -> dict[int, set[tuple[int, int]]]:
    """Where the sketch enforces it, for each sender its own chunks that leave the box."""
    found: dict[int, set[tuple[int, int]]] = {}
    between = network.sketch.internode_sketch
    if between is not None and between.enforce_ordering:
        for (p, v), number in routes.items():
            sender = network.legs[number].src
            if network.crosses(number) and pieces[p].source == sender:
                found.setdefault(sender, set()).add((p, v))
    return found


def _must_wait(
    task: tuple[int, int],
    pieces: Sequence[Piece],
    network: SketchedNetwork,
    routes: Route,
    held_back: dict[int, set[tuple[int, int]]],
) -> bool:
    """Whether a sender has to send chunks of its own first."""
    number = routes[task]
    sender = network.legs[number].src
    foreign = pieces[task[0]].source != sender
    return foreign and network.crosses(number) and bool(held_back.get(sender))
