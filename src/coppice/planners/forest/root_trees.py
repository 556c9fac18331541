"""Trees of one root on links between ranks, grown side by side: all of them are about as low as can be.

Packing tree by tree learns one cut after another where every link is full in the end, as on a torus, and takes minutes
for a thousand ranks. Trees that take a link each in turn need one small flow for a link and take none back
(cpp/packing/grown_together.h).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.network import Network
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.bounds.tree_units import exact_units
from coppice.planners.forest.packed import PackedTrees, forest_of
from coppice.rows import offsets
from coppice.schedule.forest import Forest, Phase

_MOST_EDGES = 2**18
"""Edges of all trees: each takes a flow."""


def root_trees(problem: Problem, *, fewer: int = 0) -> Forest | None:
    """Trees of the root that together have the optimal rate; with fewer of them each is lower, and links are left idle.

    None where data may pass through switches, or trees are too many.

    Args:
        problem: A broadcast or a reduction.
        fewer: Trees that are left out.

    Examples:
        >>> from coppice.schedule.shape import shape
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(preset("torus", dims=(4, 4)), "broadcast", root=0)
        >>> [shape(root_trees(problem, fewer=fewer)).max_height for fewer in (0, 3)]
        [5, 4]
    """
    network = Network.of(problem)
    if problem.root is None or not network.terminal.all():
        return None
    units = exact_units(network, bound_of(problem).inv_rate)
    roots = units.roots.copy()
    roots[network.topology.rank_nodes[problem.root]] -= fewer
    found = grown_together(network, units.capacity, roots)
    if found is None:
        return None
    return forest_of(problem, [found.reversed() if problem.collective.reduces else found])


def grown_together(
    network: Network, capacity: NDArray[np.int64], roots: NDArray[np.int64]
) -> PackedTrees | None:
    """Trees that reach every node, in the broadcasting direction; None unless of one root that may branch anywhere.

    Args:
        capacity: Trees that each link carries.
        roots: Trees to root at each node.
    """
    topology, rooted = network.topology, np.flatnonzero(roots)
    edges = topology.num_nodes - 1
    if len(rooted) != 1 or not network.terminal.all() or int(roots.max()) * edges > _MOST_EDGES:
        return None
    root = int(rooted[0])
    trees = int(roots[root])
    links = _core.grow_together(topology.num_nodes, topology.src, topology.dst, capacity, root, trees)
    if not len(links):
        return None
    src, dst = topology.src[links], topology.dst[links]
    return PackedTrees(
        root=np.full(trees, root, dtype=np.int32),
        weight=np.ones(trees, dtype=np.int64),
        phase=Phase.BROADCAST,
        start=offsets(np.full(trees, edges)),
        edge_src=src,
        edge_dst=dst,
        edge_path=np.arange(len(links), dtype=np.int32),
        path_start=2 * np.arange(len(links) + 1, dtype=np.int64),
        path_nodes=np.stack([src, dst], axis=1).reshape(-1),
    )
