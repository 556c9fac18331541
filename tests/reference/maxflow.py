"""Maximum flow by shortest augmenting paths, in exact arithmetic.

Theory: J. Edmonds and R. M. Karp, "Theoretical improvements in algorithmic efficiency for network flow
problems", J. ACM 19 (1972): augmenting along a path with the fewest arcs ends after O(nodes * arcs) rounds,
whatever the capacities. L. R. Ford and D. R. Fulkerson (1956): the value equals the least capacity of a cut,
and when no path is left, the nodes that the source still reaches are the smallest source side of such a cut;
the nodes that still reach the sink are its smallest sink side.

Capacities are integers or Fractions. Arcs without limit get :func:`unlimited`, one more than everything
together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

Vertex = TypeVar("Vertex", bound=Hashable)


@dataclass(frozen=True)
class Flow:
    """A maximum flow: its value and the two extreme minimum cuts."""

    value: int | Fraction
    source_side: frozenset[Hashable]
    sink_side: frozenset[Hashable]


def unlimited(capacity: Mapping[tuple[Vertex, Vertex], int | Fraction]) -> int | Fraction:
    """A capacity that no minimum cut of finite arcs can afford."""
    return sum(capacity.values()) + 1


def max_flow(capacity: Mapping[tuple[Vertex, Vertex], int | Fraction], source: Vertex, sink: Vertex) -> Flow:
    """A maximum flow from ``source`` to ``sink``.

    >>> max_flow({("s", "a"): 3, ("a", "t"): 2, ("s", "t"): 1}, "s", "t").value
    3
    """
    residual: dict[Hashable, dict[Hashable, int | Fraction]] = {source: {}, sink: {}}
    for (u, v), c in capacity.items():
        residual.setdefault(u, {})
        residual.setdefault(v, {})
        residual[u][v] = residual[u].get(v, 0) + c
        residual[v].setdefault(u, 0)
    value: int | Fraction = 0
    while True:
        parent = _reached(residual, source)
        if sink not in parent:
            break
        path = []
        v: Hashable = sink
        while v != source:
            path.append((parent[v], v))
            v = parent[v]
        amount = min(residual[u][v] for u, v in path)
        for u, v in path:
            residual[u][v] -= amount
            residual[v][u] += amount
        value += amount
    backwards: dict[Hashable, dict[Hashable, int | Fraction]] = {v: {} for v in residual}
    for u, row in residual.items():
        for v, c in row.items():
            backwards[v][u] = c
    return Flow(value, frozenset(parent), frozenset(_reached(backwards, sink)))


def _reached(
    residual: Mapping[Hashable, Mapping[Hashable, int | Fraction]], start: Hashable
) -> dict[Hashable, Hashable]:
    """Nodes that ``start`` reaches over arcs with capacity left, each with its predecessor, breadth first."""
    parent: dict[Hashable, Hashable] = {start: start}
    queue = deque([start])
    while queue:
        u = queue.popleft()
        for v, c in residual[u].items():
            if c > 0 and v not in parent:
                parent[v] = u
                queue.append(v)
    return parent
