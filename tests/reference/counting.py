"""A forest checked by counting, row by row, with nothing assumed about how it was found.

Every tree must reach every terminal exactly once along physical paths that never pass through another
terminal (a switch, NIC or relay forwards one copy of what it gets). In a reduce tree all edges are read
backwards. The time that the forest takes is that of its busiest link: load / capacity, in units of M bytes
over the total weight.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

from coppice.schedule.forest import Forest, Phase
from reference.network import Link, Network, network_of
from reference.packing import Tree


@dataclass(frozen=True)
class Count:
    """What a forest does to the links, and how much of the data each terminal is root of.

    Attributes:
        load: Units of weight over each link, phases together.
        total: Units of weight that stand for all M bytes.
        share: For each phase, the fraction of the data whose trees are rooted at a node.
    """

    load: dict[Link, int]
    total: int
    share: dict[Phase, dict[int, Fraction]]

    def time_per_total(self, network: Network) -> Fraction:
        """Time per M: the busiest link's load over its rate."""
        return max(
            (Fraction(load, self.total) / network.capacity[link] for link, load in self.load.items()),
            default=Fraction(0),
        )


def count_trees(network: Network, trees: list[Tree]) -> Count:
    """Count broadcast trees.

    Raises:
        AssertionError: With the tree and the edge that break a rule.
    """
    load: dict[Link, int] = {}
    weight: dict[int, int] = {}
    for number, tree in enumerate(trees):
        _walk(network, tree.root, tree.paths, f"tree {number}")
        weight[tree.root] = weight.get(tree.root, 0) + tree.weight
        _load(load, tree.paths, tree.weight)
    total = sum(weight.values())
    return Count(load, total, {Phase.BROADCAST: {v: Fraction(w, total) for v, w in weight.items()}})


def count_forest(forest: Forest) -> Count:
    """Count a planned forest.

    Raises:
        AssertionError: With the tree and the edge that break a rule.
    """
    network = network_of(forest.topology)
    backwards = network.transposed()
    load: dict[Link, int] = {}
    weight: dict[Phase, dict[int, int]] = {}
    for t in range(forest.num_trees):
        phase, root = Phase(int(forest.tree_phase[t])), int(forest.tree_root[t])
        units = int(forest.tree_weight[t])
        assert units > 0, f"tree {t} has weight {units}"
        edges = list(forest.edges(t))
        for src, dst, path in edges:
            assert (src, dst) == (path[0], path[-1]), f"tree {t}: edge {src} -> {dst} takes the path {path}"
        paths = tuple(path for _, _, path in edges)
        if phase is Phase.BROADCAST:
            _walk(network, root, paths, f"broadcast tree {t}")
        else:
            _walk(backwards, root, tuple(path[::-1] for path in paths[::-1]), f"reduce tree {t}")
        _load(load, paths, units)
        by_root = weight.setdefault(phase, {})
        by_root[root] = by_root.get(root, 0) + units
    totals = {phase: sum(by_root.values()) for phase, by_root in weight.items()}
    assert len(set(totals.values())) <= 1, f"the phases weigh {totals}, which should be equal"
    return Count(
        load,
        max(totals.values(), default=1),
        {
            phase: {v: Fraction(w, totals[phase]) for v, w in by_root.items()}
            for phase, by_root in weight.items()
        },
    )


def _walk(network: Network, root: int, paths: tuple[tuple[int, ...], ...], name: str) -> None:
    """Follow a broadcast tree from its root."""
    assert root in network.terminals, f"{name}: its root {root} is not a rank"
    reached = {root}
    for path in paths:
        assert path[0] in reached, f"{name}: {path[0]} sends over {path} before it has anything"
        assert path[-1] not in reached, f"{name}: {path[-1]} receives twice, again over {path}"
        for link in itertools.pairwise(path):
            assert link in network.capacity, f"{name}: {path} uses a link {link} that does not exist"
        for v in path[1:-1]:
            assert v not in network.terminals, f"{name}: {path} passes through rank node {v}"
        assert path[-1] in network.terminals, f"{name}: {path} ends at {path[-1]}, which is not a rank"
        reached.add(path[-1])
    assert reached == set(network.terminals), f"{name}: {set(network.terminals) - reached} get nothing"


def _load(load: dict[Link, int], paths: tuple[tuple[int, ...], ...], weight: int) -> None:
    for path in paths:
        for link in itertools.pairwise(path):
            load[link] = load.get(link, 0) + weight
