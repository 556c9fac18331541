"""The plainest form of a planning problem: nodes, terminals, exact capacities, and who sends how much.

The references work on this form only, so that they share no code with what they check. Capacities are Fractions in
GB/s per directed link; terminals are the nodes that hold a rank, in rank order; all other nodes only forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.topology.model import NodeKind, Topology

Link = tuple[int, int]
Supply = Mapping[int, int]


@dataclass(frozen=True)
class Network:
    """A capacitated directed graph with terminals."""

    num_nodes: int
    terminals: tuple[int, ...]
    capacity: Mapping[Link, Fraction]

    @property
    def switches(self) -> tuple[int, ...]:
        """Nodes that own no data: switches, NICs and relays alike."""
        return tuple(v for v in range(self.num_nodes) if v not in self.terminals)

    def leaving(self, nodes: Iterable[int]) -> Fraction:
        """Capacity of the links that leave the set."""
        inside = set(nodes)
        return sum((c for (u, v), c in self.capacity.items() if u in inside and v not in inside), Fraction(0))

    def entering(self, nodes: Iterable[int]) -> Fraction:
        """Capacity of the links that enter the set."""
        inside = set(nodes)
        return sum((c for (u, v), c in self.capacity.items() if u not in inside and v in inside), Fraction(0))

    def transposed(self) -> Network:
        """Every link reversed."""
        return Network(self.num_nodes, self.terminals, {(v, u): c for (u, v), c in self.capacity.items()})

    def can_forward_all(self) -> bool:
        """Every switch can pass on as much as it sends: capacity in >= capacity out."""
        return all(self.entering([w]) >= self.leaving([w]) for w in self.switches)


def network_of(topology: Topology) -> Network:
    """The network of a topology."""
    links = zip(topology.src.tolist(), topology.dst.tolist(), topology.capacity.tolist(), strict=True)
    return Network(
        topology.num_nodes,
        tuple(topology.rank_nodes.tolist()),
        {(u, v): Fraction(c, topology.denominator) for u, v, c in links},
    )


def supply_of(problem: Problem) -> dict[int, int]:
    """Shards that each terminal sends (all-gather, broadcast) or collects (reduce-scatter, reduce)."""
    terminals = problem.topology.rank_nodes.tolist()
    if problem.collective in (Collective.BROADCAST, Collective.REDUCE):
        return {v: int(rank == problem.root) for rank, v in enumerate(terminals)}
    weights = problem.weights or (1,) * len(terminals)
    return dict(zip(terminals, weights, strict=True))


def scaled_to_integers(capacity: Mapping[Link, Fraction]) -> tuple[dict[Link, int], int]:
    """The capacities as integers over one denominator, and that denominator."""
    denominator = lcm(*(c.denominator for c in capacity.values()))
    return {link: int(c * denominator) for link, c in capacity.items()}, denominator


def describe(subject: Topology | Problem) -> str:
    """The graph in the words of a failed test: one line a node with the links that leave it."""
    if isinstance(subject, Problem):
        details = "".join(
            f", {name} {value}"
            for name, value in (("root", subject.root), ("weights", subject.weights))
            if value is not None
        )
        return f"{subject.collective}{details} on {describe(subject.topology)}"
    topology = subject
    lines = [f"{topology.name}: {topology.num_nodes} nodes, {topology.num_ranks} ranks"]
    links = network_of(topology).capacity
    for v, name in enumerate(topology.node_ids):
        rank = int(topology.rank[v])
        role = NodeKind(int(topology.kind[v])).name.lower() if rank < 0 else f"rank {rank}"
        leaving = ", ".join(f"{topology.node_ids[b]}:{c}" for (a, b), c in links.items() if a == v)
        lines.append(f"  {name} ({role}) -> {leaving or 'nothing'}")
    return "\n".join(lines)
