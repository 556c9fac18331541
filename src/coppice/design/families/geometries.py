"""Graphs of finite geometries: points and lines, and flags (a point on a line).

    projective(q)         N = 2 (q^2 + q + 1), d = q + 1, 3 steps    points and lines of the plane over q elements
    affine(q)             N = 2 q^2, d = q, 4 steps                  affine plane without one class of parallels
    quadrangle(q)         N = 2 (q + 1)(q^2 + 1), d = q + 1, 4 steps points and lines of the symplectic quadrangle
    projective_flags(q)   N = (q + 1)(q^2 + q + 1), d = 2 q, 3 steps
    quadrangle_flags(q)   N = (q + 1)^2 (q^2 + 1), d = 2 q, 4 steps

for q that is a power of a prime; projective(2) is the Heawood graph, quadrangle(2) Tutte's 8-cage. All are
distance-regular, hence bandwidth-optimal under breadth-first broadcast; the incidence graphs have as many nodes as a
graph both of whose directions are used can have for their degree and steps (generalized polygons attain the bipartite
Moore bound).

Source: Brouwer, Cohen and Neumaier, Distance-Regular Graphs, chapter 6; coordinates by definition.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from coppice.design.families.distance_regular import edges_of, two_way
from coppice.design.families.family import Family, Size, between, optimal
from coppice.design.families.fields import field, prime_power
from coppice.design.graph import Graph
from coppice.errors import InputError

__all__ = ["FAMILIES"]

Pairs = list[tuple[int, int]]
_LARGEST = 61


def _check(family: str, q: int) -> None:
    """Refuse orders of which there is no field."""
    between(family, "q", q, 2, _LARGEST)
    if prime_power(q) is None:
        msg = f"expected a power of a prime as q in {family}, found {q}: the coordinates are elements of a field."
        raise InputError(msg)


def _points(q: int, dimension: int) -> list[tuple[int, ...]]:
    """Points of the projective space: vectors whose first coordinate other than zero is 1."""
    return [
        (0,) * zeros + (1, *rest)
        for zeros in range(dimension + 1)
        for rest in product(range(q), repeat=dimension - zeros)
    ]


def _form(
    q: int, pairs: tuple[tuple[int, int, int], ...]
) -> Callable[[tuple[int, ...], tuple[int, ...]], int]:
    """A bilinear form: the sum of sign x a[i] x b[j] over (i, j, sign)."""
    made = field(q)

    def value(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        total = 0
        for i, j, sign in pairs:
            term = made.times[a[i]][b[j]]
            total = made.plus[total][term if sign > 0 else made.minus[term]]
        return total

    return value


def _projective_pairs(q: int) -> Pairs:
    points = _points(q, 2)
    meets = _form(q, ((0, 0, 1), (1, 1, 1), (2, 2, 1)))
    return [
        (a, len(points) + b)
        for a, point in enumerate(points)
        for b, line in enumerate(points)
        if meets(point, line) == 0
    ]


def _quadrangle_pairs(q: int) -> Pairs:
    points, made = _points(q, 3), field(q)
    place = {point: number for number, point in enumerate(points)}
    symplectic = _form(q, ((0, 1, 1), (1, 0, -1), (2, 3, 1), (3, 2, -1)))
    lines: dict[frozenset[int], int] = {}
    for number, a in enumerate(points):
        for b in points[number + 1 :]:
            if symplectic(a, b) == 0:
                members = [
                    place[_normal([made.plus[x][made.times[t][y]] for x, y in zip(a, b, strict=True)], q)]
                    for t in range(q)
                ]
                lines.setdefault(frozenset([*members, place[b]]), len(lines))
    return [(point, len(points) + line) for members, line in lines.items() for point in sorted(members)]


def _normal(vector: list[int], q: int) -> tuple[int, ...]:
    made = field(q)
    inverse = made.inverse[next(x for x in vector if x)]
    return tuple(made.times[inverse][x] for x in vector)


def _affine_pairs(q: int) -> Pairs:
    """Point (x, y) lies on line (m, b) if y = m x + b."""
    made = field(q)
    return [
        (x * q + y, q * q + m * q + made.plus[y][made.minus[made.times[m][x]]])
        for x, y, m in product(range(q), repeat=3)
    ]


def _projective_size(q: int) -> Size:
    _check("projective(q)", q)
    return optimal(2 * (q * q + q + 1), q + 1, 3)


def _affine_size(q: int) -> Size:
    _check("affine(q)", q)
    return optimal(2 * q * q, q, 4)


def _quadrangle_size(q: int) -> Size:
    _check("quadrangle(q)", q)
    return optimal(2 * (q + 1) * (q * q + 1), q + 1, 4)


def _projective_flags_size(q: int) -> Size:
    _check("projective_flags(q)", q)
    return optimal((q + 1) * (q * q + q + 1), 2 * q, 3)


def _quadrangle_flags_size(q: int) -> Size:
    _check("quadrangle_flags(q)", q)
    return optimal((q + 1) ** 2 * (q * q + 1), 2 * q, 4)


def _incidence(pairs_of: Callable[[int], Pairs]) -> Callable[[str, int], Graph]:
    def build(name: str, q: int) -> Graph:
        pairs = pairs_of(q)
        return two_way(name, 1 + max(b for _, b in pairs), pairs)

    return build


def _flags(pairs_of: Callable[[int], Pairs]) -> Callable[[str, int], Graph]:
    def build(name: str, q: int) -> Graph:
        pairs = pairs_of(q)
        return edges_of(name, 1 + max(b for _, b in pairs), pairs)

    return build


FAMILIES = (
    Family(
        "projective",
        ("q",),
        "points and lines of a projective plane",
        _projective_size,
        _incidence(_projective_pairs),
    ),
    Family("affine", ("q",), "points and lines of an affine plane", _affine_size, _incidence(_affine_pairs)),
    Family(
        "quadrangle",
        ("q",),
        "points and lines of a quadrangle",
        _quadrangle_size,
        _incidence(_quadrangle_pairs),
    ),
    Family(
        "projective_flags",
        ("q",),
        "flags of a projective plane",
        _projective_flags_size,
        _flags(_projective_pairs),
    ),
    Family(
        "quadrangle_flags", ("q",), "flags of a quadrangle", _quadrangle_flags_size, _flags(_quadrangle_pairs)
    ),
)
