"""Trees returned by the native packer, and the forests built from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.network import Network
from coppice.bounds.problem import Problem
from coppice.bounds.tree_units import TreeUnits
from coppice.display import Brief
from coppice.errors import CoppiceError, InputError
from coppice.rows import offsets
from coppice.schedule.forest import Forest, Phase, expanded
from coppice.topology.symmetry import Symmetry

WRITTEN_OUT = 10_000_000
"""Up to this many tree edges templates are written out as plain trees."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PackedTrees(Brief):
    """Packed trees of one phase, in dataflow direction; columns as of Forest."""

    root: NDArray[np.int32]
    weight: NDArray[np.int64]
    phase: Phase
    start: NDArray[np.int64]
    edge_src: NDArray[np.int32]
    edge_dst: NDArray[np.int32]
    edge_path: NDArray[np.int32]
    path_start: NDArray[np.int64]
    path_nodes: NDArray[np.int32]
    symmetry: Symmetry | None = None

    @property
    def num_images(self) -> int:
        """Number of trees that each listed tree represents."""
        return 1 if self.symmetry is None else self.symmetry.order

    def reversed(self) -> PackedTrees:
        """Reverse every edge: a broadcast tree becomes a reduce tree."""
        rows = reversed_rows(self.start)
        return replace(
            self,
            phase=Phase.REDUCE if self.phase is Phase.BROADCAST else Phase.BROADCAST,
            edge_src=self.edge_dst[rows],
            edge_dst=self.edge_src[rows],
            edge_path=self.edge_path[rows],
            path_nodes=self.path_nodes[reversed_rows(self.path_start)],
        )


def reversed_rows(start: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row numbers that reverse each segment ``start[i] .. start[i + 1] - 1``."""
    rows = np.arange(start[-1], dtype=np.int64)
    lengths = np.diff(start)
    return np.repeat(start[:-1] + start[1:] - 1, lengths) - rows


def pack(network: Network, units: TreeUnits) -> PackedTrees:
    """Pack the trees of ``units`` with physical paths."""
    topology = network.topology
    try:
        packed: dict[str, Any] = _core.pack_trees(
            topology.num_nodes, topology.src, topology.dst, units.capacity, units.roots, network.terminal
        )
    except ValueError as error:
        raise CoppiceError(
            f"the forest of {topology.name!r} could not be packed: {error}; this is an error in the planner."
        ) from None
    return packed_trees(network, packed, symmetry=None)


def pack_templates(network: Network, units: TreeUnits, symmetry: Symmetry) -> PackedTrees | None:
    """Pack the trees of one root per orbit, which represent their images; None where none is found."""
    topology = network.topology
    packed: dict[str, Any] = _core.pack_templates(
        topology.num_nodes,
        topology.src,
        topology.dst,
        units.capacity,
        units.roots,
        network.terminal,
        np.array(symmetry.orders, dtype=np.int64),
        symmetry.node_orbit,
        symmetry.node_element,
        symmetry.link_orbit[network.link],
    )
    return packed_trees(network, packed, symmetry=symmetry) if packed["complete"] else None


def packed_trees(network: Network, packed: dict[str, Any], *, symmetry: Symmetry | None) -> PackedTrees:
    """Columns returned by the native packer."""
    topology = network.topology
    if len(packed["violated"]):
        names = ", ".join(topology.node_ids[v] for v in packed["violated"][:4].tolist())
        raise CoppiceError(
            f"the links into {{{names}, ...}} carry fewer trees than must enter: this is an error in the bound."
        )
    return PackedTrees(
        root=packed["tree_root"],
        weight=packed["tree_weight"],
        phase=Phase.BROADCAST,
        start=packed["tree_start"],
        edge_src=packed["edge_src"],
        edge_dst=packed["edge_dst"],
        edge_path=packed["edge_path"],
        path_start=packed["path_start"],
        path_nodes=packed["path_nodes"],
        symmetry=symmetry,
    )


def same_weight(*phases: PackedTrees) -> list[PackedTrees]:
    """Scale the weights of the phases to the same total."""
    totals = [int(trees.weight.sum()) * trees.num_images for trees in phases]
    common = lcm(*totals)
    if common >= 2**62:
        raise InputError("the two phases need trees in units below 2^62: round the rates (`round_digits=3`).")
    return [
        replace(trees, weight=trees.weight * (common // total))
        for trees, total in zip(phases, totals, strict=True)
    ]


def forest_of(problem: Problem, phases: list[PackedTrees]) -> Forest:
    """Join ``phases`` into one forest; templates are kept only where expanding them is too large."""
    edges = sum(len(trees.edge_src) * trees.num_images for trees in phases)
    mixed = len({trees.symmetry for trees in phases}) > 1  # symmetries compare by identity
    forest = joined(problem, [written_out(problem, trees) for trees in phases] if mixed else phases)
    return expanded(forest) if edges <= WRITTEN_OUT else forest


def written_out(problem: Problem, trees: PackedTrees) -> PackedTrees:
    """One phase with its templates expanded."""
    forest = expanded(joined(problem, [trees]))
    return PackedTrees(
        root=forest.tree_root,
        weight=forest.tree_weight,
        phase=trees.phase,
        start=forest.tree_start,
        edge_src=forest.edge_src,
        edge_dst=forest.edge_dst,
        edge_path=forest.edge_path,
        path_start=forest.path_start,
        path_nodes=forest.path_nodes,
    )


def joined(problem: Problem, phases: list[PackedTrees]) -> Forest:
    """Concatenate the columns of ``phases``."""
    paths = np.cumsum([0] + [len(trees.path_start) - 1 for trees in phases])
    return Forest(
        topology=problem.topology,
        collective=problem.collective,
        tree_root=np.concatenate([trees.root for trees in phases]),
        tree_weight=np.concatenate([trees.weight for trees in phases]),
        tree_phase=np.concatenate([np.full(len(trees.root), trees.phase, dtype=np.int8) for trees in phases]),
        tree_start=joined_starts([trees.start for trees in phases]),
        edge_src=np.concatenate([trees.edge_src for trees in phases]),
        edge_dst=np.concatenate([trees.edge_dst for trees in phases]),
        edge_path=np.concatenate(
            [trees.edge_path + np.int32(first) for trees, first in zip(phases, paths[:-1], strict=True)]
        ),
        path_start=joined_starts([trees.path_start for trees in phases]),
        path_nodes=np.concatenate([trees.path_nodes for trees in phases]),
        symmetry=phases[0].symmetry,
    )


def joined_starts(starts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Segment starts of concatenated columns."""
    return offsets(np.concatenate([np.diff(start) for start in starts]))
