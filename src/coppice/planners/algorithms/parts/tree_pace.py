"""How fast trees work with one port, exactly: counts of equal messages, found from sizes and not from edges.

A node serves its children one after the other. With S pieces, each a step behind the one before, the root serves
``degree`` children for every piece, and no node has more, so that a broadcast takes ``arrival + (S - 1) degree``
messages and a reduction ``completion + (S - 1) degree``: the first piece runs through the whole tree, and every further
piece costs the root one more round of its children. A node that adds takes whichever child is ready, so ``completion``
does not depend on the order of the children.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from coppice.planners.algorithms.parts.cost import Chain, Cost
from coppice.planners.algorithms.parts.trees import size_of_halves

__all__ = [
    "Pace",
    "chains_pace",
    "k_ary_pace",
    "k_nomial_by_depth_pace",
    "k_nomial_pace",
    "preorder_binary_pace",
]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What a tree costs.

    Attributes:
        height: Levels.
        degree: Children of the root; no node has more.
        inner: Most children of any other node.
        arrival: Messages, one after the other, until the last node has one piece from the root.
        completion: Messages, one after the other, until the root has added one piece of all.
    """

    height: int = 0
    degree: int = 0
    inner: int = 0
    arrival: int = 0
    completion: int = 0

    def broadcast(self, segments: int = 1) -> Cost:
        """Cost of a broadcast in ``segments`` pieces."""
        return self._cost(self.arrival, segments, Fraction(self.degree), adds=False)

    def reduction(self, segments: int = 1) -> Cost:
        """Cost of a reduction in ``segments`` pieces."""
        return self._cost(self.completion, segments, Fraction(min(self.degree, 1)), adds=True)

    def _cost(self, first: int, segments: int, sent: Fraction, *, adds: bool) -> Cost:
        if not self.degree:
            return Cost(steps=0, sent=Fraction(0), chains=())
        messages = first + (segments - 1) * self.degree
        moved = Fraction(messages, segments)
        chain = Chain(messages=messages, sent=moved, reduced=moved if adds else Fraction(0))
        return Cost(steps=self.height + segments - 1, sent=sent, chains=(chain,))


@cache
def k_ary_pace(size: int, radix: int) -> Pace:
    """Pace of :func:`.trees.k_ary` for a radix of 2 or more, or a radix of 1 and few nodes.

    Examples:
        >>> k_ary_pace(7, 2)
        Pace(height=2, degree=2, inner=2, arrival=4, completion=4)
    """
    if size <= 1:
        return Pace()
    # The first `more` children of the root have subtrees of one node more than the others.
    nodes, more = divmod(size - 1, radix)
    small = k_ary_pace(nodes, radix)
    large = k_ary_pace(nodes + 1, radix) if more else small
    equal = radix - more if nodes else 0
    arrival = max(more + large.arrival if more else 0, more + equal + small.arrival)
    completion = small.completion + equal
    if more:
        completion = max(completion, large.completion) + more
    return Pace(
        height=1 + large.height,
        degree=more + equal,
        inner=large.degree,
        arrival=arrival,
        completion=completion,
    )


def chains_pace(size: int, fanout: int) -> Pace:
    """Pace of :func:`.trees.chains`.

    Examples:
        >>> chains_pace(6, 2)
        Pace(height=3, degree=2, inner=1, arrival=3, completion=3)
    """
    if size <= 1:
        return Pace()
    count = min(fanout, size - 1)
    length, longer = divmod(size - 1, count)
    slowest = max(length + longer, length - 1 + count)
    height = length + bool(longer)
    return Pace(height=height, degree=count, inner=int(height > 1), arrival=slowest, completion=slowest)


def k_nomial_pace(size: int, radix: int) -> Pace:
    """Pace of :func:`.trees.k_nomial`, whose root is busy from the first message to the last.

    :func:`.trees.growing_k_nomial` differs in ``inner`` only.

    Examples:
        >>> k_nomial_pace(8, 2)
        Pace(height=3, degree=3, inner=2, arrival=3, completion=3)
    """
    if size <= 1:
        return Pace()
    height, reach = 1, radix
    while reach < size:
        height, reach = height + 1, reach * radix
    reach //= radix
    degree = (radix - 1) * (height - 1) + -(-size // reach) - 1
    inner = max(k_nomial_pace(min(reach, size - reach), radix).degree, (radix - 1) * (height - 2))
    return Pace(height=height, degree=degree, inner=inner, arrival=degree, completion=degree)


def k_nomial_by_depth_pace(size: int, radix: int) -> Pace:
    """Pace of :func:`.trees.k_nomial` where a node serves all children in one step.

    The deepest node has the most digits that are not 0; the smallest number with d of them is d ones.

    Examples:
        >>> k_nomial_by_depth_pace(9, 2)
        Pace(height=3, degree=4, inner=2, arrival=4, completion=4)
    """
    pace = k_nomial_pace(size, radix)
    ones = (radix**pace.height - 1) // (radix - 1)
    return replace(pace, height=pace.height - (ones >= size))


@cache
def preorder_binary_pace(size: int) -> Pace:
    """Pace of :func:`.trees.preorder_binary`.

    Examples:
        >>> preorder_binary_pace(4)
        Pace(height=2, degree=2, inner=1, arrival=3, completion=2)
    """
    if size <= 1:
        return Pace()
    large, small = (preorder_binary_pace(nodes) for nodes in size_of_halves(size))
    degree = 1 + (size > 2)
    completion = max(small.completion + degree - 1, large.completion) + 1
    arrival = max(1 + small.arrival, degree + large.arrival)
    return Pace(
        height=1 + large.height, degree=degree, inner=large.degree, arrival=arrival, completion=completion
    )
