"""Layered graph drawing: order and horizontal positions of nodes whose layers are given.

The method of Sugiyama, Tagawa and Toda (Methods for visual understanding of hierarchical system structures, IEEE
Transactions on Systems, Man, and Cybernetics 11, 1981), for layers that are given: here they are the kinds of nodes.

1. *Proper layers.* A link that skips layers gets a bend in each of them, which takes room as a node does: then every
   line passes a layer upright between two of its nodes, and what is written in a node is never struck through.
2. *Order.* Finding the order of least crossings is NP-hard even for two layers (Garey and Johnson, 1983). Layers are
   swept down and up: each is sorted by the barycentre (mean place) of its neighbours in the one before, which leaves no
   crossing between the two wherever none need be left; then neighbours are exchanged while that removes crossings. The
   order with the fewest crossings of all sweeps stays, of equals the earliest, so that nodes keep the order of their
   numbers where nothing speaks against it.
3. *Places.* With the order given, a layer wants its nodes below the middle of their neighbours, as near as room
   allows: least squares under x(i+1) - x(i) >= d(i). Less the sum of the distances, that is isotonic regression, which
   pooling of adjacent violators solves exactly in one pass (Ayer and others, 1955). Bends weigh more than nodes, so
   that long lines are upright, and a neighbour weighs the less the more lines it has: a switch over a whole row pulls
   nobody to its middle.

Every step is deterministic: the same layers give the same drawing.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

GAP = 8.0
BEND = 5.0
"""Room between two nodes, and between a line and what stands beside it."""

_SWEEPS = 8
_MOST_EXCHANGED = 160
"""Sweeps for the order, as many for the places; a layer of more vertices is sorted, but no neighbours are exchanged."""

_OVERHANG = 12.0
"""How far a bar reaches beyond its lines."""

_STIFF = 8.0
"""Weight of what keeps a bend below the bend before it."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Layers in order, each vertex with its place."""

    rows: list[list[int]]  # Vertices of each layer from left to right; bends have numbers of their own
    x: dict[int, float]  # Centre of each vertex
    chains: list[list[int]]  # The vertices of each link, bends included, from its first end to its second


def arrange(
    layers: Sequence[Sequence[int]],
    links: Sequence[tuple[int, int]],
    width: Mapping[int, float],
    room: float,
    pinned: Mapping[int, float] | None = None,
) -> Arrangement:
    """Order layers for few crossings, and give every vertex a place.

    Args:
        layers: Vertices of each layer from top to bottom, each layer in the order that it has if nothing matters.
        links: Ends in different layers.
        width: Width of each vertex.
        room: Places lie between 0 and this, if they fit.
        pinned: Places that are given; a layer with one of them is not moved.

    Examples:
        >>> crossed = arrange([[0, 1], [2, 3]], [(0, 3), (1, 2)], dict.fromkeys(range(4), 10.0), 100)
        >>> crossed.rows in ([[0, 1], [3, 2]], [[1, 0], [2, 3]])
        True
        >>> long = arrange([[0], [1], [2]], [(0, 1), (1, 2), (0, 2)], dict.fromkeys(range(3), 10.0), 100)
        >>> len(long.rows[1]), len(long.chains[2])
        (2, 3)
    """
    given = pinned or {}
    rows, chains, near = _proper(layers, links)
    fixed = {at for at, layer in enumerate(layers) if any(v in given for v in layer)}
    rows = _ordered(rows, near, fixed)
    bends = {v for chain in chains for v in chain[1:-1]}
    return Arrangement(rows, _places(rows, near, _pulls(chains, near), width, room, given, bends), chains)


_Near = tuple[dict[int, list[int]], dict[int, list[int]]]
"""Neighbours in the layer above, and in the layer below."""


def _proper(
    layers: Sequence[Sequence[int]], links: Sequence[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]], _Near]:
    """Layers with a bend wherever a link skips one."""
    layer_of = {v: at for at, layer in enumerate(layers) for v in layer}
    share = {v: (i + 0.5) / len(layer) for layer in layers for i, v in enumerate(layer)}
    rows = [list(layer) for layer in layers]
    above: dict[int, list[int]] = defaultdict(list)
    below: dict[int, list[int]] = defaultdict(list)
    chains = []
    fresh = max(layer_of, default=-1) + 1
    for first, second in links:
        top, bottom = sorted((first, second), key=lambda v: layer_of[v])
        chain = [top]
        for at in range(layer_of[top] + 1, layer_of[bottom]):
            # As nearly straight as the order allows; a bar over the whole drawing is met anywhere.
            along = (at - layer_of[top]) / (layer_of[bottom] - layer_of[top])
            along = 0.0 if len(layers[layer_of[bottom]]) == 1 else along
            along = 1.0 if len(layers[layer_of[top]]) == 1 else along
            share[fresh] = share[top] + along * (share[bottom] - share[top])
            rows[at].append(fresh)
            chain.append(fresh)
            fresh += 1
        chain.append(bottom)
        for v, w in pairwise(chain):
            below[v].append(w)
            above[w].append(v)
        chains.append(chain if chain[0] == first else chain[::-1])
    return [sorted(row, key=share.__getitem__) for row in rows], chains, (above, below)


def _ordered(given: list[list[int]], near: _Near, fixed: set[int]) -> list[list[int]]:
    """The best order of some sweeps, which begin downwards or upwards."""
    best, least = given, _all_crossings(given, near[1])
    for first in range(2):
        rows = [list(row) for row in given]
        for sweep in range(first, first + _SWEEPS):
            if not least:
                return best
            down = sweep % 2 == 0
            for at in range(1, len(rows)) if down else range(len(rows) - 2, -1, -1):
                if at not in fixed:
                    before = rows[at - 1 if down else at + 1]
                    rows[at] = _by_barycentre(rows[at], before, near[0] if down else near[1])
            for at in range(len(rows)):
                if at not in fixed and len(rows[at]) <= _MOST_EXCHANGED:
                    rows[at] = _exchanged(rows, at, near)
            found = _all_crossings(rows, near[1])
            if found < least:
                best, least = [list(row) for row in rows], found
    return best


def _by_barycentre(row: list[int], before: list[int], near: Mapping[int, list[int]]) -> list[int]:
    """A layer by the mean place of its neighbours; vertices without any keep their place."""
    place = {v: i for i, v in enumerate(before)}
    mean = {v: sum(place[w] for w in near[v]) / len(near[v]) for v in row if near.get(v)}
    moved = iter(sorted(mean, key=mean.__getitem__))
    return [next(moved) if v in mean else v for v in row]


def _exchanged(rows: list[list[int]], at: int, near: _Near) -> list[int]:
    """A layer after exchanges of neighbours, each of which removes crossings."""
    row = list(rows[at])
    place = {w: i for other in rows[max(at - 1, 0) : at + 2] for i, w in enumerate(other)}
    sides = [{v: sorted(place[w] for w in side.get(v, ())) for v in row} for side in near]
    for _ in range(len(row)):
        better = False
        for i in range(len(row) - 1):
            v, w = row[i], row[i + 1]
            now = sum(_pair_crossings(side[v], side[w]) for side in sides)
            if now and sum(_pair_crossings(side[w], side[v]) for side in sides) < now:
                row[i], row[i + 1] = w, v
                better = True
        if not better:
            break
    return row


def _pair_crossings(left: list[int], right: list[int]) -> int:
    """Crossings of the links of two neighbours, by the places of their other ends in ascending order."""
    return sum(len(left) - bisect_right(left, end) for end in right)


def _all_crossings(rows: Sequence[Sequence[int]], below: Mapping[int, list[int]]) -> int:
    total = 0
    for upper, lower in pairwise(rows):
        place = {v: i for i, v in enumerate(lower)}
        seen: list[int] = []
        for v in upper:
            ends = sorted(place[w] for w in below.get(v, ()))
            total += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


def _pulls(chains: Sequence[Sequence[int]], near: _Near) -> dict[tuple[int, int], float]:
    """How much each piece of a line draws its ends together."""
    found = {}
    for chain in chains:
        most = max(len(side.get(v, ())) for side in near for v in (chain[0], chain[-1]))
        for v, w in pairwise(chain):
            upright = v not in (chain[0], chain[-1]) and w not in (chain[0], chain[-1])
            found[v, w] = found[w, v] = (_STIFF if upright else 1.0) / most**2
    return found


def _places(
    rows: list[list[int]],
    near: _Near,
    pulls: Mapping[tuple[int, int], float],
    width: Mapping[int, float],
    room: float,
    pinned: Mapping[int, float],
    bends: set[int],
) -> dict[int, float]:
    """A place for every vertex: first side by side, then moved towards their neighbours, down and up."""
    x: dict[int, float] = dict(pinned)
    for row in rows:
        start = (room - sum(_distances(row, width, bends))) / 2
        for v, step in zip(row, [0.0, *_distances(row, width, bends)], strict=False):
            start += step
            x.setdefault(v, start)
    free = [row for row in rows if not any(v in pinned for v in row)]
    for sweep in range(_SWEEPS):
        sides = near if sweep >= _SWEEPS - 2 else (near[sweep % 2],)
        for row in free if sweep % 2 == 0 else free[::-1]:
            wanted = {
                v: [(x[w], pulls[v, w]) for side in sides for w in side.get(v, ())] or [(x[v], 0.001)]
                for v in row
            }
            x |= _moved(row, wanted, _distances(row, width, bends), width, room)
    return x


def _moved(
    row: list[int],
    wanted: Mapping[int, Sequence[tuple[float, float]]],
    steps: Sequence[float],
    width: Mapping[int, float],
    room: float,
) -> dict[int, float]:
    """A layer as near as possible to the weighted middle of the places where each vertex is wanted."""
    targets, weights, shifts, shift = [], [], [], 0.0
    for v, step in zip(row, [0.0, *steps], strict=False):
        shift += step
        weight = sum(pull for _, pull in wanted[v])
        targets.append(sum(at * pull for at, pull in wanted[v]) / weight - shift)
        weights.append(weight)
        shifts.append(shift)
    low, high = width.get(row[0], 0.0) / 2, room - width.get(row[-1], 0.0) / 2 - shift
    if high < low:
        low = high = (low + high) / 2
    level = isotonic(targets, weights)
    return {v: min(max(each, low), high) + by for v, each, by in zip(row, level, shifts, strict=True)}


def _distances(row: Sequence[int], width: Mapping[int, float], bends: set[int]) -> list[float]:
    """Least distance of the centres of neighbours."""
    return [
        (width.get(v, 0.0) + width.get(w, 0.0)) / 2 + (BEND if v in bends or w in bends else GAP)
        for v, w in pairwise(row)
    ]


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The ascending numbers that are nearest to given ones by weighted least squares (pool adjacent violators).

    >>> isotonic([1, 3, 2, 4], [1, 1, 1, 1])
    [1.0, 2.5, 2.5, 4.0]
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((float(value), weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, p, m), (b, q, n) = pools[-2], pools[-1]
            pools[-2:] = [((a * p + b * q) / (p + q), p + q, m + n)]
    return [level for level, _, count in pools for _ in range(count)]


def widened(
    rows: Sequence[Sequence[int]],
    chains: Sequence[Sequence[int]],
    x: Mapping[int, float],
    width: Mapping[int, float],
    bars: Collection[int],
    bounds: tuple[float, float],
) -> dict[int, tuple[float, float]]:
    """Place and width of switches that become bars over what hangs from them, so that their lines are upright.

    Args:
        rows: Vertices of each layer in order, bends included.
        chains: The vertices of each link.
        x: Centre of each vertex.
        width: Width of each node.
        bars: Nodes that may be wide. Those of a layer grow where none of them comes over another vertex.
        bounds: Left and right end of the drawing.
    """
    row_of = {v: at for at, row in enumerate(rows) for v in row}
    ends: dict[int, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for chain in chains:
        for v, w in ((chain[0], chain[1]), (chain[-1], chain[-2])):
            if v in row_of and w in row_of:
                ends[v][row_of[w] > row_of[v]].append(x[w])
    found: dict[int, tuple[float, float]] = {}
    for row in rows:
        spans = {}
        for v in row:
            half = width.get(v, 0.0) / 2
            side = max(ends[v][::-1], key=len) if v in bars else []
            low, high = x[v] - half, x[v] + half
            if len(side) > 1:
                low, high = (
                    min(low, *(end - _OVERHANG for end in side)),
                    max(high, *(end + _OVERHANG for end in side)),
                )
            spans[v] = (max(low, bounds[0]), min(high, bounds[1]))
        ordered = [spans[v] for v in row]
        if all(before[1] + BEND <= after[0] for before, after in pairwise(ordered)):
            found |= {
                v: ((low + high) / 2, high - low)
                for v, (low, high) in spans.items()
                if v in bars and high - low > width.get(v, 0.0)
            }
    return found
