"""Walk a forest once in the native core: whether its trees and paths are whole, what links carry, how high trees are.

The readable reference is the verifier's own Python (:mod:`coppice.schedule.verification.forest`) with
:func:`coppice.schedule.shape.tree_heights` and the sums of :mod:`coppice.schedule.loads`. It words what is wrong, and
knows switches that copy or add, about which a walk says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.topology.model import Topology

if TYPE_CHECKING:
    from coppice.schedule.forest import Forest


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ForestColumns(Brief):
    """Columns of a forest and of the network it is on, as native code takes them."""

    num_nodes: int
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    rank: NDArray[np.int32]
    cost: NDArray[np.float64]  # Time of a unit of weight on each link
    tree_root: NDArray[np.int32]
    tree_weight: NDArray[np.int64]
    tree_phase: NDArray[np.int8]
    tree_start: NDArray[np.int64]
    edge_src: NDArray[np.int32]
    edge_dst: NDArray[np.int32]
    edge_path: NDArray[np.int32]
    path_start: NDArray[np.int64]
    path_nodes: NDArray[np.int32]


_TYPES = {
    "tree_root": np.int32,
    "tree_weight": np.int64,
    "tree_phase": np.int8,
    "tree_start": np.int64,
    "edge_src": np.int32,
    "edge_dst": np.int32,
    "edge_path": np.int32,
    "path_start": np.int64,
    "path_nodes": np.int32,
}


def native_columns(forest: Forest) -> ForestColumns | None:
    """The columns of a forest; None where one has another type than it should, as values could change then."""
    columns = {}
    for name, kind in _TYPES.items():
        column = getattr(forest, name)
        if column.dtype != kind or column.ndim != 1:
            return None
        columns[name] = np.ascontiguousarray(column)
    topology: Topology = forest.topology
    return ForestColumns(
        num_nodes=topology.num_nodes,
        src=topology.src,
        dst=topology.dst,
        rank=topology.rank,
        cost=topology.denominator / topology.capacity,
        **columns,
    )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ForestWalk(Brief):
    """What a forest that is whole puts on links, and how high its trees are; images of templates are not counted."""

    load: NDArray[np.int64]  # Units of tree weight on each link
    height: NDArray[np.int32]  # Most hops between the root and a rank, of each tree


def walk(forest: Forest) -> ForestWalk | None:
    """Walk a forest; None where it is not whole, or has switches that copy or add: its verifier reports more.

    Examples:
        >>> from coppice.planners.planning import plan
        >>> walk(plan("ring", "all_gather", ring=False).plan.forest).load.tolist() == [7] * 16
        True
    """
    from coppice import _core

    columns = native_columns(forest)
    found = None if columns is None else _core.walk_forest(columns)
    return None if found is None else ForestWalk(load=found[0], height=found[1])
