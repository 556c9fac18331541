"""Symmetries by enumeration: all automorphisms of a small topology, and the largest free abelian group.

Automorphisms are tuples: ``s[v]`` is the image of node v. Everything follows the definitions; topologies of
more than about ten nodes, or with thousands of automorphisms, take too long.
"""

from __future__ import annotations

from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry

Permutation = tuple[int, ...]


def automorphisms(topology: Topology) -> list[Permutation]:
    """All permutations of the nodes that keep kinds, abilities, possession of a rank, rates and latencies."""
    links = {
        (a, b): (capacity, latency)
        for a, b, capacity, latency in zip(
            topology.src.tolist(),
            topology.dst.tolist(),
            topology.capacity.tolist(),
            topology.latency_us.tolist(),
            strict=True,
        )
    }
    colour = [
        (topology.kind[v], topology.multicast[v], topology.aggregate[v], topology.rank[v] >= 0)
        for v in range(topology.num_nodes)
    ]
    found: list[Permutation] = []

    def extend(images: Permutation) -> None:
        v = len(images)
        if v == topology.num_nodes:
            found.append(images)
            return
        for w in range(topology.num_nodes):
            if w in images or colour[w] != colour[v]:
                continue
            if all(
                links.get((v, u)) == links.get((w, x)) and links.get((u, v)) == links.get((x, w))
                for u, x in enumerate(images)
            ):
                extend((*images, w))

    extend(())
    return found


def then(first: Permutation, second: Permutation) -> Permutation:
    """``first`` and then ``second``."""
    return tuple(second[v] for v in first)


def is_free(topology: Topology, permutation: Permutation) -> bool:
    """The identity, or a permutation that leaves no rank in place."""
    if permutation == tuple(range(topology.num_nodes)):
        return True
    return all(permutation[v] != v for v in topology.rank_nodes.tolist())


def largest_free_abelian_order(topology: Topology) -> int:
    """Order of the largest abelian group of automorphisms of which every element is free."""
    identity = tuple(range(topology.num_nodes))
    free = [s for s in automorphisms(topology) if s != identity and is_free(topology, s)]
    trivial = frozenset([identity])
    seen = {trivial}
    pending = [trivial]
    while pending:
        group = pending.pop()
        for s in free:
            if s in group or any(then(s, g) != then(g, s) for g in group):
                continue
            larger = set(group)
            power = s
            while power not in group:
                larger |= {then(power, g) for g in group}
                power = then(power, s)
            if all(is_free(topology, g) for g in larger) and frozenset(larger) not in seen:
                seen.add(frozenset(larger))
                pending.append(frozenset(larger))
    return max(len(group) for group in seen)


def elements(symmetry: Symmetry, num_nodes: int) -> list[Permutation]:
    """All elements of a symmetry's group by index, multiplied out from the generators."""
    result: list[Permutation] = [tuple(range(num_nodes))]
    for row, order in zip(symmetry.generators.tolist(), symmetry.orders, strict=True):
        block = list(result)
        for _ in range(order - 1):
            block = [then(element, tuple(row)) for element in block]
            result += block
    return result
