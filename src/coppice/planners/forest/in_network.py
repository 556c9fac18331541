"""Plans with switch multicast and reduction where the topology declares them.

A switch that copies is treated as one more terminal that every broadcast tree spans: it receives once and sends many
times. By Edmonds' theorem such trees exist as soon as the cuts around the switch allow all of them in; the linear
program of ``coppice.bounds.all_reduce`` chooses root rates and a split of the links with those cuts in place. The
mirror image serves a switch that adds. Spanning every such switch is not always best, so groups of them are tried and
the fastest plan is kept. It need not reach the in-network bound (a Steiner problem); the caller states the gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.network import Network, cut_bound
from coppice.bounds.optimum import bound_of, symmetry_for_programs
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.bounds.tree_units import exact_units
from coppice.collectives import Collective
from coppice.planners.forest.packed import PackedTrees, forest_of, pack
from coppice.planners.forest.planner import combined_trees, plan_forest
from coppice.rows import offsets
from coppice.schedule.forest import Forest

TIME_LIMIT = 60.0
"""Seconds for one linear program."""

MAX_KINDS = 6
"""Up to this many kinds of switches are tried one by one."""


def plan_in_network(problem: Problem, *, optimum: Bound | None = None) -> Forest:
    """Fastest forest found for ``problem`` that may use switch multicast and reduction.

    Args:
        optimum: The bound without in-network help, where the caller has it already.

    Examples:
        >>> from coppice.schedule.loads import forest_loads
        >>> from coppice.topology.model import Link, Node, NodeKind, Topology
        >>> switch = Node(id="nvs", kind=NodeKind.SWITCH, multicast=True, aggregate=True)
        >>> box = Topology.of("box", [*(Node(id=f"g{i}") for i in range(8)), switch],
        ...     [Link(src=f"g{i}", dst="nvs", gb_per_s=Fraction(300)) for i in range(8)])
        >>> forest = plan_in_network(Problem(topology=box, collective=Collective.ALL_REDUCE))
        >>> forest_loads(forest, None).inv_rate
        Fraction(1, 300)
    """
    plain = bound_of(problem) if optimum is None else optimum
    best = plain.inv_rate if plain.attainable is None else plain.attainable
    found: list[PackedTrees] | None = None
    for spanning in groups(problem):
        attempt = attempt_with(problem, spanning, best)
        if attempt is not None:
            best, found = attempt
    if found is None:
        return plan_forest(problem, optimum=plain)
    return forest_of(problem, [without_idle_switches(trees, problem) for trees in found])


def groups(problem: Problem) -> Iterator[list[int]]:
    """Candidate sets of switches to span: all capable ones, and those of equal capacity."""
    topology = problem.topology
    degree = np.bincount(topology.src, minlength=topology.num_nodes)
    able = (topology.rank < 0) & (topology.multicast | topology.aggregate) & (degree > 2)
    nodes = np.flatnonzero(able)
    if nodes.size == 0:
        return
    yield nodes.tolist()
    columns = (topology.capacity_in, topology.capacity_out, degree)
    kinds, kind = np.unique(np.stack([column[nodes] for column in columns]), axis=1, return_inverse=True)
    if 1 < kinds.shape[1] <= MAX_KINDS:
        for chosen in range(kinds.shape[1]):
            yield nodes[kind.reshape(-1) == chosen].tolist()


def attempt_with(
    problem: Problem, spanning: list[int], best: Fraction
) -> tuple[Fraction, list[PackedTrees]] | None:
    """Trees that also span ``spanning``, if they take less time per shard than ``best``."""
    if problem.collective is Collective.ALL_REDUCE:
        from coppice.bounds.all_reduce import combined_all_reduce

        combined = combined_all_reduce(
            problem,
            spanning=spanning,
            symmetry=symmetry_for_programs(problem.topology),
            time_limit=TIME_LIMIT,
        )
        if not combined.rate or 1 / combined.rate >= best:
            return None
        return 1 / combined.rate, combined_trees(problem, combined, spanning=spanning)
    network = Network.of(problem)
    terminal = network.terminal.copy()
    terminal[spanning] |= network.topology.multicast[spanning]
    network = replace(network, terminal=terminal)
    if (network.short_of_input & ~terminal).any():
        return None
    inv_rate = cut_bound(network).inv_rate
    if inv_rate >= best:
        return None
    packed = pack(network, exact_units(network, inv_rate))
    return inv_rate, [packed.reversed() if problem.collective.reduces else packed]


def without_idle_switches(trees: PackedTrees, problem: Problem) -> PackedTrees:
    """Drop edges to switches with no children (and, in reduce trees, from switches with no input)."""
    topology = problem.topology
    switch = topology.rank < 0
    while True:
        tree = np.repeat(np.arange(len(trees.root)), np.diff(trees.start))
        sends = tree * topology.num_nodes + trees.edge_src
        receives = tree * topology.num_nodes + trees.edge_dst
        idle = (switch[trees.edge_dst] & ~np.isin(receives, sends)) | (
            switch[trees.edge_src] & ~np.isin(sends, receives)
        )
        if not idle.any():
            return trees
        trees = select_edges(trees, ~idle, tree)


def select_edges(trees: PackedTrees, keep: NDArray[np.bool_], tree: NDArray[np.int64]) -> PackedTrees:
    """Keep the edges marked in ``keep``."""
    counts = np.bincount(tree[keep], minlength=len(trees.root))
    return replace(
        trees,
        start=offsets(counts),
        edge_src=trees.edge_src[keep],
        edge_dst=trees.edge_dst[keep],
        edge_path=trees.edge_path[keep],
    )
