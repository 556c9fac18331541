"""Maximum flow in integers of any size, by shortest augmenting paths.

Theory: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", Soviet
Math. Dokl. 11, 1970. Each phase blocks all shortest paths of the residual network, so that there are fewer phases than
nodes, and flow takes detours only where short paths are full.
"""

from __future__ import annotations

from collections.abc import Sequence


def max_flow(
    num_nodes: int, tail: Sequence[int], head: Sequence[int], capacity: Sequence[int], source: int, sink: int
) -> list[int]:
    """Flow on each arc of a maximum flow.

    Args:
        capacity: Integers >= 0.

    Examples:
        >>> max_flow(3, [0, 0, 1], [1, 2, 2], [3, 1, 2], source=0, sink=2)
        [2, 1, 2]
    """
    # Arc e is 2 e, and 2 e + 1 takes its flow back.
    ends = [end for arc in zip(head, tail, strict=True) for end in arc]
    left = [room for limit in capacity for room in (limit, 0)]
    arcs: list[list[int]] = [[] for _ in range(num_nodes)]
    for e, (u, v) in enumerate(zip(tail, head, strict=True)):
        arcs[u].append(2 * e)
        arcs[v].append(2 * e + 1)
    while True:
        level = _levels(arcs, ends, left, source, sink)
        if level[sink] < 0:
            return left[1::2]
        _block(arcs, ends, left, level, source, sink)


def narrow_cuts(
    num_nodes: int,
    tail: Sequence[int],
    head: Sequence[int],
    capacity: Sequence[int],  # Integers >= 0
    supply: Sequence[int],  # Of each node, integers >= 0
    sinks: Sequence[int],  # Nodes that need `demand`
    demand: int,
) -> list[list[int]]:
    """For each sink a set around it whose supply plus incoming capacity is below ``demand``, if any.

    Examples:
        >>> narrow_cuts(3, [0, 1], [1, 2], [5, 2], [3, 0, 0], sinks=[1, 2], demand=3)
        [[2]]
    """
    source = num_nodes
    fed = [v for v, amount in enumerate(supply) if amount]
    tails, heads = [*tail, *[source] * len(fed)], [*head, *fed]
    rooms = [*capacity, *(supply[v] for v in fed)]
    found = []
    for sink in sinks:
        flow = max_flow(num_nodes + 1, tails, heads, rooms, source, sink)
        arriving = sum(
            f if v == sink else -f for f, u, v in zip(flow, tails, heads, strict=True) if sink in (u, v)
        )
        if arriving < demand:
            found.append(_still_reaching(num_nodes + 1, tails, heads, rooms, flow, sink))
    return found


def _still_reaching(
    num_nodes: int, tail: list[int], head: list[int], capacity: list[int], flow: list[int], sink: int
) -> list[int]:
    """Nodes from which more could flow to ``sink``."""
    back: list[list[int]] = [[] for _ in range(num_nodes)]
    for u, v, room, used in zip(tail, head, capacity, flow, strict=True):
        if used < room:
            back[v].append(u)
        if used:
            back[u].append(v)
    seen, todo = {sink}, [sink]
    while todo:
        for node in back[todo.pop()]:
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return sorted(seen)


def _levels(arcs: list[list[int]], ends: list[int], left: list[int], source: int, sink: int) -> list[int]:
    """Arcs from the source to each node that has been seen when the sink is."""
    level = [-1] * len(arcs)
    level[source] = 0
    front = [source]
    while front and level[sink] < 0:
        after: list[int] = []
        for node in front:
            for arc in arcs[node]:
                if left[arc] and level[ends[arc]] < 0:
                    level[ends[arc]] = level[node] + 1
                    after.append(ends[arc])
        front = after
    return level


def _block(
    arcs: list[list[int]], ends: list[int], left: list[int], level: list[int], source: int, sink: int
) -> None:
    """Send flow until no path along increasing levels is left."""
    place = [0] * len(arcs)  # arcs of a node before this one lead nowhere
    path: list[int] = []
    node = source
    while True:
        if node == sink:
            amount = min(left[arc] for arc in path)
            for arc in path:
                left[arc] -= amount
                left[arc ^ 1] += amount
            full = next(i for i, arc in enumerate(path) if not left[arc])
            node = ends[path[full] ^ 1]
            del path[full:]
        while place[node] < len(arcs[node]):
            arc = arcs[node][place[node]]
            if left[arc] and level[ends[arc]] == level[node] + 1:
                break
            place[node] += 1
        else:
            if node == source:
                return
            node = ends[path.pop() ^ 1]
            place[node] += 1
            continue
        path.append(arc)
        node = ends[arc]
