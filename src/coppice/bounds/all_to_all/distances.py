"""Shortest-path distances under link lengths, and the all-to-all bounds that lengths or a cut from them prove.

Theory. Moving d(s, t) from s to t uses length x flow of at least d(s, t) dist(s, t), and all links together
offer length x capacity of sum l(e) b(e) per unit of time. So no routing is faster than

    time per unit of demand >= sum d(s, t) dist(s, t) / sum l(e) b(e),

and by duality the best lengths make it equal to the optimum. Lengths of 1 on the links of one cut and 0
elsewhere give the cut bound.

Link lengths are the dual of concurrent flow. Often they stand for one bottleneck: then the nodes within some
distance of a rank are a cut whose demand over its capacity is the bound itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.problem import Problem
from coppice.errors import InputError
from coppice.topology.model import Topology

_BLOCK = 2**22

_LARGEST = 2**62

_Length = TypeVar("_Length", np.int64, np.float64, np.object_)


def distances(
    topology: Topology, sources: NDArray[np.integer], length: NDArray[_Length], *, backwards: bool = False
) -> NDArray[_Length]:
    """Shortest-path distances from each source to each node.

    Args:
        length: Length of each link, 0 or more: a :func:`length_column`, or floats.
        backwards: From each node to each source instead.

    Returns:
        ``result[i, v]`` for ``sources[i]`` and node v; more than any path has where there is no path.
    """
    tails, heads = (topology.dst, topology.src) if backwards else (topology.src, topology.dst)
    if length.dtype == np.int64 and sum(length.tolist()) < _LARGEST:
        whole: Any = length
        found = _core.shortest_distances(topology.num_nodes, tails, heads, whole, sources.astype(np.int32))
        return found.reshape(len(sources), topology.num_nodes)  # type: ignore[return-value]
    order = np.argsort(heads, kind="stable")
    tail, weight = tails[order], length[order]
    reached, starts = np.unique(heads[order], return_index=True)
    result = np.full((len(sources), topology.num_nodes), _far(length), dtype=length.dtype)
    result[np.arange(len(sources)), sources] = 0
    if not len(tail):
        return result
    step = max(1, _BLOCK // len(tail))
    for low in range(0, len(sources), step):
        block = result[low : low + step]
        while True:
            through = block[:, tail]
            through += weight
            best = np.minimum.reduceat(through, starts, axis=1)
            np.minimum(best, block[:, reached], out=best)
            if np.array_equal(best, block[:, reached]):
                break
            block[:, reached] = best
    return result


def length_bound(topology: Topology, demand: NDArray[np.int64], length: Sequence[int]) -> Fraction:
    """Lower bound on the time per unit of demand that integer link lengths prove, in 1 / (GB/s).

    Args:
        demand: ``demand[i, j]`` from rank i to rank j; the diagonal does not count.
        length: Integers >= 0, not all zero.

    Examples:
        >>> from coppice.topology.model import Link, Node
        >>> ring = Topology.of("ring", [Node(id=f"g{i}") for i in range(4)],
        ...     [Link(src=f"g{i}", dst=f"g{(i + 1) % 4}", gb_per_s=Fraction(1)) for i in range(4)])
        >>> length_bound(ring, np.ones((4, 4), dtype=np.int64), [1] * 8)
        Fraction(2, 1)
    """
    if len(length) != topology.num_links or min(length, default=0) < 0 or not sum(length):
        raise InputError(
            f"expected {topology.num_links} integer lengths >= 0 that are not all 0, found others."
        )
    column = length_column(length)
    reach = distances(topology, topology.rank_nodes, column)[:, topology.rank_nodes]
    wanted = demand.astype(np.int64).copy()
    np.fill_diagonal(wanted, 0)
    if (reach[wanted > 0] >= _far(column)).any():
        raise InputError("some rank with demand has no path to its target: add links or leave the rank out.")
    work = _products(reach[wanted > 0], wanted[wanted > 0])
    room = sum(b * le for b, le in zip(topology.capacity.tolist(), length, strict=True))
    return Fraction(work * topology.denominator, room)


def _products(distance: NDArray[Any], amount: NDArray[np.int64]) -> int:
    """Exact sum of the products of two columns of numbers of 0 or more."""
    if distance.dtype == np.int64 and int(distance.max(initial=0)) * int(amount.sum()) < _LARGEST:
        return int(distance @ amount)
    distinct, where = np.unique(distance, return_inverse=True)
    weights = np.zeros(len(distinct), dtype=np.int64)
    np.add.at(weights, where, amount)
    return sum(d * w for d, w in zip(distinct.tolist(), weights.tolist(), strict=True))


def length_column(length: Sequence[int]) -> NDArray[Any]:
    """Lengths as a 64-bit column where their sum fits, else as Python integers."""
    return np.array(length, dtype=np.int64 if sum(length) < _LARGEST else np.object_)


def _far(length: NDArray[Any]) -> Any:
    """More than any path with such lengths."""
    if np.issubdtype(length.dtype, np.floating):
        return np.inf
    return _LARGEST if length.dtype == np.int64 else 1 + sum(length.tolist())


def integer_lengths(length: NDArray[np.float64]) -> list[int]:
    """Scale float lengths to integers as fine as 64 bits allow: short links may matter as much as long ones."""
    largest = float(length.max(initial=0.0))
    if largest <= 0:
        return [1] * len(length)
    bits = 60 - len(length).bit_length()
    return [round(value) for value in (length / largest * 2.0**bits).tolist()]


def cut_lengths(topology: Topology, demand: NDArray[np.int64]) -> tuple[Fraction, list[int]]:
    """Best bound from the links entering or leaving one rank or one host, as lengths.

    Args:
        demand: ``demand[i, j]`` from rank i to rank j; the diagonal is zero.
    """
    best = (Fraction(0), [1] * topology.num_links)
    for label in (topology.rank, topology.host):
        sets = int(label.max(initial=-1)) + 1
        mine = label[topology.rank_nodes]
        tail, head = label[topology.src], label[topology.dst]
        crossing = tail != head
        for here, share in ((tail, demand.sum(axis=1)), (head, demand.sum(axis=0))):
            room = np.zeros(sets, dtype=np.int64)
            np.add.at(room, here[crossing & (here >= 0)], topology.capacity[crossing & (here >= 0)])
            work = np.zeros(sets, dtype=np.int64)
            np.add.at(work, mine[mine >= 0], share[mine >= 0])
            inner = mine[:, None] == mine[None, :]
            np.subtract.at(work, mine[mine >= 0], np.where(inner, demand, 0).sum(axis=1)[mine >= 0])
            time_of = np.where(room > 0, work / np.maximum(room, 1), 0.0)
            if sets and time_of.max() > 0:
                length = (crossing & (here == int(time_of.argmax()))).astype(np.int64).tolist()
                best = max(best, (length_bound(topology, demand, length), length), key=lambda pair: pair[0])
    return best


_STARTS = 32
"""Nodes from which level sets are tried: a bottleneck shows from every rank of its side."""


def proving_cut(problem: Problem, length: Sequence[int], inv_rate: Fraction) -> tuple[int, ...]:
    """Sending side of a cut that alone proves ``inv_rate``, or () if none is found.

    Args:
        length: Length of each link: integers of 0 or more.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.model import Link, Node
        >>> path = Topology.of("path", [Node(id=f"g{i}") for i in range(4)],
        ...     [Link(src=f"g{i}", dst=f"g{i + 1}", gb_per_s=Fraction(8)) for i in range(3)])
        >>> problem = Problem(topology=path, collective=Collective.ALL_TO_ALL)
        >>> proving_cut(problem, [0, 0, 1, 1, 0, 0], Fraction(4, 8))
        (0, 1)
    """
    topology = problem.topology
    tried: set[bytes] = set()
    for inside in _level_sets(topology, length):
        key = inside.tobytes()
        if key in tried:
            continue
        tried.add(key)
        leaving = inside[topology.src] & ~inside[topology.dst]
        capacity = Fraction(int(topology.capacity[leaving].sum()), topology.denominator)
        if capacity and _demand(problem, inside) / capacity == inv_rate:
            return tuple(np.flatnonzero(inside).tolist())
    return ()


def _level_sets(topology: Topology, length: Sequence[int]) -> Iterator[NDArray[np.bool_]]:
    """Nodes within each distance of a rank, along the links and against them."""
    for backwards in (False, True):
        starts, lengths = topology.rank_nodes[:_STARTS], length_column(length)
        for distance in distances(topology, starts, lengths, backwards=backwards):
            for level in np.unique(distance)[:-1]:
                near = distance <= level
                yield ~near if backwards else near


def _demand(problem: Problem, inside: NDArray[np.bool_]) -> int:
    """Shards from ranks inside to ranks outside."""
    sends = inside[problem.topology.rank_nodes]
    if problem.demands is None:
        return int(sends.sum()) * int((~sends).sum())
    outside = np.flatnonzero(~sends).tolist()
    return sum(problem.demands[i][j] for i in np.flatnonzero(sends).tolist() for j in outside)
