"""Sets of nodes that may be the limit of several groups at once: GPUs, boxes, and what hangs on switches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coppice.topology.model import Topology

_FEW_NODES = 10
"""Nodes up to which all sets are tried."""


def divisions(topology: Topology) -> list[NDArray[np.int64]]:
    """Disjoint sets of nodes that follow the hierarchy, from small to large.

    Returns:
        For each level the number of the set of every node, -1 outside: each GPU alone, each box, and what is left
        joined without switches of higher tiers. On up to 10 nodes, every set alone as well.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> [int(level.max()) + 1 for level in divisions(preset("dgx-a100", boxes=4))]
        [32, 4]
        >>> [int(level.max()) + 1 for level in divisions(preset("fat-tree", leaves=2, gpus_per_leaf=6))]
        [12, 2]
    """
    alone = np.full(topology.num_nodes, -1, dtype=np.int64)
    alone[topology.rank_nodes] = np.arange(topology.num_ranks)
    found = [alone]
    tier = _tiers(topology)
    for top in range(int(tier.max()) + 1):
        level = _components(topology, tier <= top)
        sets = [set(map(bytes, _rows(each))) for each in (found[-1], level)]
        if level.max() > 0 and sets[0] != sets[1]:
            found.append(level)
    if topology.num_nodes <= _FEW_NODES:
        for mask in range(1, 2**topology.num_nodes - 1):
            inside = np.array([mask >> node & 1 for node in range(topology.num_nodes)], dtype=np.int64)
            found.append(inside - 1)
    return found


def _rows(level: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Nodes of each set that has any."""
    return [np.flatnonzero(level == number) for number in range(int(level.max()) + 1)]


def _tiers(topology: Topology) -> NDArray[np.int64]:
    """0 for nodes of boxes, or GPUs where there are no boxes; of other nodes the links to the nearest of these."""
    boxes = topology.host >= 0
    start = boxes if boxes.any() else topology.rank >= 0
    tier = np.where(start, 0, -1).astype(np.int64)
    step = 0
    while (tier < 0).any():
        near = np.zeros(topology.num_nodes, dtype=np.bool_)
        near[topology.dst[tier[topology.src] == step]] = True
        near[topology.src[tier[topology.dst] == step]] = True
        near &= tier < 0
        if not near.any():
            tier[tier < 0] = step + 1
            break
        step += 1
        tier[near] = step
    return tier


def _components(topology: Topology, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Nodes that links join without nodes that are not kept, numbered; nodes of a box are joined in any case."""
    number = np.arange(topology.num_nodes, dtype=np.int64)
    inside = kept[topology.src] & kept[topology.dst]
    src, dst = topology.src[inside], topology.dst[inside]
    boxed = np.flatnonzero(kept & (topology.host >= 0))
    while True:
        before = number.copy()
        np.minimum.at(number, dst, number[src])
        np.minimum.at(number, src, number[dst])
        if len(boxed):
            least = np.full(int(topology.host.max()) + 1, topology.num_nodes, dtype=np.int64)
            np.minimum.at(least, topology.host[boxed], number[boxed])
            number[boxed] = least[topology.host[boxed]]
        number = number[number]
        if (number == before).all():
            break
    found = np.full(topology.num_nodes, -1, dtype=np.int64)
    _, found[kept] = np.unique(number[kept], return_inverse=True)
    return found
