"""Builder of a forest from trees with paths and fractional weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.synthesis.blink.packings import Packed
from coppice.planners.synthesis.blink.routes import EdgeRoute
from coppice.rows import offsets
from coppice.schedule.forest import Forest, Phase


@dataclass
class GrowingForest:
    """Collect trees."""

    problem: Problem  # What they carry out
    _roots: list[int] = field(default_factory=list)
    _weights: list[Fraction] = field(default_factory=list)
    _phases: list[Phase] = field(default_factory=list)
    _edges: list[list[tuple[int, ...]]] = field(default_factory=list)

    def add(self, root: int, edges: Sequence[EdgeRoute], weight: Fraction) -> None:
        """Add a tree, in both directions for an all-reduce.

        Args:
            weight: Its share of the data, relative to that of others.
        """
        collective = self.problem.collective
        if collective is not Collective.BROADCAST:
            self._add(root, [route.up for route in reversed(edges)], weight, Phase.REDUCE)
        if collective is not Collective.REDUCE:
            self._add(root, [route.down for route in edges], weight, Phase.BROADCAST)

    def add_packed(self, packed: Packed, share: Fraction) -> None:
        """Add the trees of a packing, which carry ``share`` of the data together."""
        total = packed.rate
        for tree, rate in enumerate(packed.rates):
            self.add(packed.root, packed.edges(tree), rate / total * share)

    def _add(self, root: int, paths: list[tuple[int, ...]], weight: Fraction, phase: Phase) -> None:
        self._roots.append(int(self.problem.topology.rank_nodes[root]))
        self._weights.append(weight)
        self._phases.append(phase)
        self._edges.append(paths)

    def forest(self) -> Forest:
        """Build the forest, reduce phase first."""
        order = sorted(range(len(self._roots)), key=lambda tree: self._phases[tree] is Phase.BROADCAST)
        scale = lcm(*(weight.denominator for weight in self._weights))
        whole = [int(self._weights[tree] * scale) for tree in order]
        shared = gcd(*whole) or 1
        if sum(whole) // shared >= 2**62:
            raise InputError(
                "the trees need weights below 2^62: choose another packing (`parameters=packing=integer`)."
            )
        index: dict[tuple[int, ...], int] = {}
        edges = [path for tree in order for path in self._edges[tree]]
        places = [index.setdefault(path, len(index)) for path in edges]
        return Forest(
            topology=self.problem.topology,
            collective=self.problem.collective,
            tree_root=np.array([self._roots[tree] for tree in order], dtype=np.int32),
            tree_weight=np.array([value // shared for value in whole], dtype=np.int64),
            tree_phase=np.array([self._phases[tree] for tree in order], dtype=np.int8),
            tree_start=offsets(np.array([len(self._edges[tree]) for tree in order], dtype=np.int64)),
            edge_src=np.array([path[0] for path in edges], dtype=np.int32),
            edge_dst=np.array([path[-1] for path in edges], dtype=np.int32),
            edge_path=np.array(places, dtype=np.int32),
            path_start=offsets(np.array([len(path) for path in index], dtype=np.int64)),
            path_nodes=np.array([node for path in index for node in path], dtype=np.int32),
        )
