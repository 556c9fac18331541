"""Distance-regular graphs: of sets, and of the points, lines and flags of finite geometries.

Graphs that are no Cayley graphs of abelian groups, or are better known by other names:

    octahedron         N = 6, d = 4, 2 steps        circulant(6, 1, 2)
    petersen           N = 10, d = 3, 2 steps       odd(3)
    petersen_edges     N = 15, d = 4, 3 steps       edges of the Petersen graph, linked where they meet
    odd(k)             N = C(2k-1, k-1), d = k, k - 1 steps: sets of k - 1 out of 2 k - 1, linked where disjoint
    doubled_odd(k)     N = 2 C(2k-1, k-1), d = k, 2 k - 1 steps: sets of k - 1 and of k, linked by inclusion

All are bandwidth-optimal: a source at distance t arrives over exactly c_t links of a node, whichever the source, so
that breadth-first broadcast balances the k_t sources over d links. petersen, odd(k) and petersen_edges for their size
have few steps; petersen is Moore-optimal.

Source: Brouwer, Cohen and Neumaier, Distance-Regular Graphs, by definition of the graphs.

Graphs of finite geometries, of points and lines, and of flags (a point on a line):

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

An element of the field of q = p^k elements is a number below q whose digits in base p are the coefficients of a
polynomial; products are taken modulo the first irreducible polynomial of degree k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations, product
from math import comb

from coppice.design.families.family import Family, Size, between, optimal
from coppice.design.graph import Graph, cayley_graph
from coppice.errors import InputError


def _two_way(name: str, num_nodes: int, pairs: list[tuple[int, int]]) -> Graph:
    """The graph with a link each way between every pair."""
    src = [a for a, _ in pairs] + [b for _, b in pairs]
    dst = [b for _, b in pairs] + [a for a, _ in pairs]
    return Graph.of(name, num_nodes, src, dst)


def _edges_of(name: str, num_nodes: int, pairs: list[tuple[int, int]]) -> Graph:
    """The graph whose nodes are the pairs, linked where they share an end."""
    at: list[list[int]] = [[] for _ in range(num_nodes)]
    for edge, ends in enumerate(pairs):
        for v in ends:
            at[v].append(edge)
    return _two_way(name, len(pairs), [pair for edges in at for pair in combinations(edges, 2)])


def _octahedron(name: str) -> Graph:
    return cayley_graph(name, [6], [[jump] for jump in (1, 2, 4, 5)])


def _odd_pairs(k: int) -> list[tuple[int, int]]:
    sets = [sum(1 << i for i in chosen) for chosen in combinations(range(2 * k - 1), k - 1)]
    place = {members: number for number, members in enumerate(sets)}
    everything = (1 << (2 * k - 1)) - 1
    left_out = [
        (a, everything & ~members & ~(1 << i)) for a, members in enumerate(sets) for i in range(2 * k - 1)
    ]
    return [(a, place[others]) for a, others in left_out if a < place.get(others, -1)]


def _odd_size(k: int) -> Size:
    between("odd(k)", "k", k, 2, 16)
    return optimal(comb(2 * k - 1, k - 1), k, k - 1)


def _odd(name: str, k: int) -> Graph:
    return _two_way(name, comb(2 * k - 1, k - 1), _odd_pairs(k))


def _doubled_odd_size(k: int) -> Size:
    between("doubled_odd(k)", "k", k, 2, 16)
    return optimal(2 * comb(2 * k - 1, k - 1), k, 2 * k - 1)


def _doubled_odd(name: str, k: int) -> Graph:
    half = comb(2 * k - 1, k - 1)
    pairs = _odd_pairs(k)
    return _two_way(name, 2 * half, [(a, half + b) for a, b in pairs] + [(b, half + a) for a, b in pairs])


def _petersen_edges(name: str) -> Graph:
    return _edges_of(name, 10, _odd_pairs(3))


Pairs = list[tuple[int, int]]

_LARGEST = 61


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


def _incidence(pairs_of: Callable[[int], Pairs]) -> Callable[[str, int], Graph]:
    def build(name: str, q: int) -> Graph:
        pairs = pairs_of(q)
        return _two_way(name, 1 + max(b for _, b in pairs), pairs)

    return build


def _flags(pairs_of: Callable[[int], Pairs]) -> Callable[[str, int], Graph]:
    def build(name: str, q: int) -> Graph:
        pairs = pairs_of(q)
        return _edges_of(name, 1 + max(b for _, b in pairs), pairs)

    return build


def _geometry(
    name: str, description: str, size: Callable[[int], Size], build: Callable[[str, int], Graph]
) -> Family:
    """The family of a geometry over the field of q elements; orders of which there is no field are refused."""

    def checked(q: int) -> Size:
        family = f"{name}(q)"
        between(family, "q", q, 2, _LARGEST)
        if prime_power(q) is None:
            raise InputError(
                f"expected a power of a prime as q in {family}, found {q}: the coordinates are elements of a field."
            )
        return size(q)

    return Family(name, ("q",), description, checked, build)


FAMILIES = (
    Family("octahedron", (), "6 nodes, each linked with all but one", lambda: optimal(6, 4, 2), _octahedron),
    Family(
        "petersen", (), "10 nodes of degree 3, 2 steps", lambda: optimal(10, 3, 2), lambda name: _odd(name, 3)
    ),
    Family("petersen_edges", (), "15 nodes of degree 4, 3 steps", lambda: optimal(15, 4, 3), _petersen_edges),
    Family("odd", ("k",), "sets of k - 1 out of 2 k - 1, linked where disjoint", _odd_size, _odd),
    Family(
        "doubled_odd",
        ("k",),
        "sets of k - 1 and k out of 2 k - 1, by inclusion",
        _doubled_odd_size,
        _doubled_odd,
    ),
    _geometry(
        "projective",
        "points and lines of a projective plane",
        lambda q: optimal(2 * (q * q + q + 1), q + 1, 3),
        _incidence(_projective_pairs),
    ),
    _geometry(
        "affine",
        "points and lines of an affine plane",
        lambda q: optimal(2 * q * q, q, 4),
        _incidence(_affine_pairs),
    ),
    _geometry(
        "quadrangle",
        "points and lines of a quadrangle",
        lambda q: optimal(2 * (q + 1) * (q * q + 1), q + 1, 4),
        _incidence(_quadrangle_pairs),
    ),
    _geometry(
        "projective_flags",
        "flags of a projective plane",
        lambda q: optimal((q + 1) * (q * q + q + 1), 2 * q, 3),
        _flags(_projective_pairs),
    ),
    _geometry(
        "quadrangle_flags",
        "flags of a quadrangle",
        lambda q: optimal((q + 1) ** 2 * (q * q + 1), 2 * q, 4),
        _flags(_quadrangle_pairs),
    ),
)


@dataclass(frozen=True)
class Field:
    """Tables of a field: ``plus[a][b]``, ``times[a][b]``, ``minus[a]`` (-a) and ``inverse[a]`` (0 for 0)."""

    order: int
    plus: tuple[tuple[int, ...], ...]
    times: tuple[tuple[int, ...], ...]
    minus: tuple[int, ...]
    inverse: tuple[int, ...]


def prime_power(q: int) -> tuple[int, int] | None:
    """(p, k) with q = p^k, or None.

    >>> prime_power(9), prime_power(7), prime_power(12), prime_power(1)
    ((3, 2), (7, 1), None, None)
    """
    p = next((divisor for divisor in range(2, q + 1) if q % divisor == 0), 0)
    k = 0
    while p and q % p == 0:
        q, k = q // p, k + 1
    return (p, k) if p and q == 1 else None


@lru_cache(maxsize=16)
def field(q: int) -> Field:
    """The field of q elements, q a power of a prime.

    Examples:
        >>> four = field(4)
        >>> four.times[2][2], four.plus[3][3], four.inverse[2]
        (3, 0, 3)
    """
    found = prime_power(q)
    if found is None:
        raise ValueError(f"a field has a power of a prime of elements, found {q}")
    p, k = found
    digits = [tuple(a // p**i % p for i in range(k)) for a in range(q)]
    plus = _table(digits, lambda a, b: [(x + y) % p for x, y in zip(a, b, strict=True)], p)
    # Modulo x^k + low; that is irreducible if no product of others is 0.
    tables = (_table(digits, partial(_product, low, p), p) for low in digits)
    times = next(table for table in tables if all(0 not in row[1:] for row in table[1:]))
    return Field(
        order=q,
        plus=plus,
        times=times,
        minus=tuple(row.index(0) for row in plus),
        inverse=(0, *(row.index(1) for row in times[1:])),
    )


def _product(low: tuple[int, ...], p: int, a: tuple[int, ...], b: tuple[int, ...]) -> list[int]:
    """The product of two polynomials modulo x^k + low."""
    k = len(a)
    whole = [0] * (2 * k)
    for (i, x), (j, y) in product(enumerate(a), enumerate(b)):
        whole[i + j] += x * y
    for place in range(2 * k - 1, k - 1, -1):
        for i, c in enumerate(low):
            whole[place - k + i] -= whole[place] * c
    return [c % p for c in whole[:k]]


def _table(
    digits: list[tuple[int, ...]], operation: Callable[[tuple[int, ...], tuple[int, ...]], list[int]], p: int
) -> tuple[tuple[int, ...], ...]:
    """The values of an operation on all pairs of elements."""
    return tuple(tuple(sum(c * p**i for i, c in enumerate(operation(a, b))) for b in digits) for a in digits)
