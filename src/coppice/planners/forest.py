"""The forest planner: spanning trees that reach the bound, for every collective but all-to-all.

The bound (``coppice.bounds``) says how many trees each link can carry; the native packer lays that many trees on
physical paths (ForestColl, arXiv 2402.06787; the construction that needs no switch removal is described in
cpp/packing.h). Collectives that reduce are planned on the transposed graph and turned round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coppice import _core
from coppice.bounds.fixed_trees import fixed_trees, smallest_trees
from coppice.bounds.network import Network
from coppice.bounds.optimum import bound
from coppice.bounds.result import Bound, Problem
from coppice.bounds.tree_units import TreeUnits, exact_units
from coppice.collectives import Collective
from coppice.errors import CoppiceError, InputError
from coppice.planners.rounding import balanced_units
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.images import expanded
from coppice.schedule.shape import shape
from coppice.topology.model import Topology, common_denominator, scaled
from coppice.topology.symmetry import Symmetry, find_symmetry, symmetry_of

if TYPE_CHECKING:
    from coppice.bounds.all_reduce import CombinedAllReduce

__all__ = ["plan_forest"]

MANY_RANKS = 256
"""From this many ranks on, templates are worth several attempts."""

TEMPLATE_MULTIPLES = (1, 2, 3, 4)

WRITTEN_OUT = 10_000_000
"""Up to this many tree edges templates are written out as plain trees."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Trees:
    """Packed trees of one phase, in the direction of the data; columns as of Forest."""

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
        """Trees that each listed tree stands for."""
        return 1 if self.symmetry is None else self.symmetry.order

    def reversed(self) -> Trees:
        """Every edge turned round: a broadcast tree becomes a reduce tree."""
        rows = reversed_rows(self.start)
        return Trees(
            root=self.root,
            weight=self.weight,
            phase=Phase.REDUCE if self.phase is Phase.BROADCAST else Phase.BROADCAST,
            start=self.start,
            edge_src=self.edge_dst[rows],
            edge_dst=self.edge_src[rows],
            edge_path=self.edge_path[rows],
            path_start=self.path_start,
            path_nodes=self.path_nodes[reversed_rows(self.path_start)],
            symmetry=self.symmetry,
        )


def reversed_rows(start: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row numbers that turn round each segment ``start[i] .. start[i + 1] - 1``."""
    rows = np.arange(start[-1], dtype=np.int64)
    lengths = np.diff(start)
    return np.repeat(start[:-1] + start[1:] - 1, lengths) - rows


def plan_forest(
    problem: Problem,
    *,
    trees: int | None = None,
    tolerance: Fraction | None = None,
    optimum: Bound | None = None,
) -> Forest:
    """Plan ``problem`` with spanning trees.

    An all-reduce is planned in two phases (reduce-scatter, all-gather) or with its own root rates, whichever is
    faster; with a given number of trees always in two phases.

    Args:
        problem: Any collective but all_to_all.
        trees: Trees per root (per unit of weight); None takes the number that reaches the optimum exactly.
        tolerance: Instead of ``trees``: the least number whose time is within this fraction of the optimum.
        optimum: The bound of the same problem, where the caller has it already.

    Raises:
        InputError: If the problem has no meaning, or is an all_to_all.
        UnreachableError: If some rank cannot be reached.
        KeyboardInterrupt: Within a fraction of a second after Ctrl-C.

    Examples:
        >>> from coppice.topology.model import Link, Node, Topology
        >>> nodes = [Node(id=name) for name in "abc"]
        >>> ring = [Link(src=a, dst=b, gb_per_s=Fraction(25)) for a, b in ("ab", "bc", "ca")]
        >>> problem = Problem(topology=Topology.of("ring", nodes, ring), collective=Collective.ALL_GATHER)
        >>> forest = plan_forest(problem)
        >>> forest.num_trees, forest.num_edges
        (3, 6)
    """
    collective = problem.collective
    if collective is Collective.ALL_TO_ALL:
        msg = "all_to_all is not made of spanning trees: plan it with the all_to_all planner."
        raise InputError(msg)
    if collective is Collective.ALL_REDUCE:
        if trees is None and tolerance is None:
            optimum = bound(problem) if optimum is None else optimum
            if optimum.combined is not None:
                return forest_of(problem, combined_trees(problem, optimum.combined))
        phases = [
            phase_trees(replace(problem, collective=phase), trees, tolerance, None)
            for phase in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
        ]
        return forest_of(problem, same_weight(*phases))
    return forest_of(problem, [phase_trees(problem, trees, tolerance, optimum)])


def phase_trees(
    problem: Problem, trees: int | None, tolerance: Fraction | None, optimum: Bound | None
) -> Trees:
    """Optimal trees of a collective of one phase, in the direction of the data."""
    network = Network.of(problem)
    if optimum is None:
        optimum = bound(problem)
    if optimum.capacity is not None:
        network = network.limited(optimum.capacity)
    best = optimum.inv_rate if optimum.attainable is None else optimum.attainable
    if trees is None and tolerance is None:
        units = exact_units(network, best)
    else:
        fixed = (
            fixed_trees(network, trees, optimum=best)
            if trees is not None
            else smallest_trees(network, tolerance or Fraction(0), optimum=best)
        )
        units = balanced_units(network, trees=fixed.trees, scale=fixed.inv_rate * fixed.trees)
    packed = pack_with_symmetry(problem, network, units)
    if packed is None:
        packed = pack(network, units)
    return packed.reversed() if problem.collective.reduces else packed


def pack_with_symmetry(problem: Problem, network: Network, units: TreeUnits) -> Trees | None:
    """Templates where ranks are alike; None where packing tree by tree is the way.

    Templates are quicker to find, and shallower: every tree gets the same room. They need not exist for the whole
    group: with few trees the links of one orbit may not come out even. Then large problems, where templates matter
    most, try some multiples of the number of trees, and small ones the subgroups that leave out one generator.
    """
    topology = problem.topology
    if problem.root is not None or problem.weights is not None:
        return None
    symmetry = find_symmetry(topology)
    if symmetry.order == 1 or not np.array_equal(network.topology.capacity, topology.capacity[network.link]):
        return None
    many = topology.num_ranks >= MANY_RANKS
    for multiple in TEMPLATE_MULTIPLES if many else (1,):
        several = replace(units, capacity=units.capacity * multiple, roots=units.roots * multiple)
        templates = pack_templates(network, several, symmetry)
        if templates is not None:
            return templates
    if many or len(symmetry.orders) == 1:
        return None
    found = [pack_templates(network, units, subgroup) for subgroup in subgroups(topology, symmetry)]
    return min(
        (trees for trees in found if trees is not None),
        key=lambda trees: preference(problem, trees),
        default=None,
    )


def subgroups(topology: Topology, symmetry: Symmetry) -> Iterator[Symmetry]:
    """The subgroups that leave out one generator."""
    for left_out in range(len(symmetry.orders)):
        kept = [i for i in range(len(symmetry.orders)) if i != left_out]
        yield symmetry_of(
            topology, [symmetry.orders[i] for i in kept], [symmetry.generators[i].tolist() for i in kept]
        )


def preference(problem: Problem, trees: Trees) -> tuple[int, Fraction, int]:
    """What makes one forest better than another of the same rate: least height, mean height, number of trees."""
    found = shape(joined(problem, [trees]))
    return found.max_height, found.mean_height, found.distinct_trees


def combined_trees(
    problem: Problem, combined: CombinedAllReduce, *, spanning: Collection[int] = ()
) -> list[Trees]:
    """Reduce trees and broadcast trees at the roots and within the split of links that ``combined`` chose.

    Args:
        problem: The all-reduce.
        combined: Root rates and the split.
        spanning: Switches that trees span where they can copy (or add, in reduce trees).

    Raises:
        InputError: If the rates need integers beyond 62 bits.
    """
    topology = problem.topology
    rates = combined.reduce_capacity + combined.broadcast_capacity + list(combined.root_rates.values())
    scale = common_denominator(rates)
    roots = np.zeros(topology.num_nodes, dtype=np.int64)
    for rank, rate in combined.root_rates.items():
        roots[topology.rank_nodes[rank]] = int(rate * scale)
    phases = []
    for reduce, capacity in ((True, combined.reduce_capacity), (False, combined.broadcast_capacity)):
        network = Network.of(problem, reduce=reduce)
        terminal = network.terminal.copy()
        terminal[list(spanning)] |= network.topology.multicast[list(spanning)]
        network = replace(network, terminal=terminal)
        ordered = [capacity[e] for e in network.link.tolist()]
        units = TreeUnits(
            trees=scale, inv_rate=1 / Fraction(scale), capacity=scaled(ordered, scale), roots=roots
        )
        packed = pack(network, units)
        phases.append(packed.reversed() if reduce else packed)
    return phases


def pack(network: Network, units: TreeUnits) -> Trees:
    """Lay the trees of ``units`` on physical paths.

    Raises:
        CoppiceError: If the units leave no room for them, which the callers rule out.
    """
    topology = network.topology
    try:
        packed: dict[str, Any] = _core.pack_trees(
            topology.num_nodes, topology.src, topology.dst, units.capacity, units.roots, network.terminal
        )
    except ValueError as error:
        msg = (
            f"the forest of {topology.name!r} could not be packed: {error}; this is an error in the planner."
        )
        raise CoppiceError(msg) from None
    return packed_trees(network, packed, symmetry=None)


def pack_templates(network: Network, units: TreeUnits, symmetry: Symmetry) -> Trees | None:
    """Lay the trees of one root of each orbit, which stand for all their images; None where that was not found."""
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


def packed_trees(network: Network, packed: dict[str, Any], *, symmetry: Symmetry | None) -> Trees:
    """The columns that the native packer returned.

    Raises:
        CoppiceError: If it found that the units violate a cut.
    """
    topology = network.topology
    if len(packed["violated"]):
        names = ", ".join(topology.node_ids[v] for v in packed["violated"][:4].tolist())
        msg = f"the links into {{{names}, ...}} carry fewer trees than must enter: this is an error in the bound."
        raise CoppiceError(msg)
    return Trees(
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


def same_weight(*phases: Trees) -> list[Trees]:
    """The phases with weights scaled so that each sums to the same total."""
    totals = [int(trees.weight.sum()) * trees.num_images for trees in phases]
    common = lcm(*totals)
    if common >= 2**62:
        msg = "the two phases need trees in units below 2^62: round the rates (`--round 3`)."
        raise InputError(msg)
    return [
        Trees(**{**vars(trees), "weight": trees.weight * (common // total)})
        for trees, total in zip(phases, totals, strict=True)
    ]


def forest_of(problem: Problem, phases: list[Trees]) -> Forest:
    """One forest of all ``phases``, in their order; templates stay templates only where they are too many."""
    edges = sum(len(trees.edge_src) * trees.num_images for trees in phases)
    mixed = len({trees.symmetry for trees in phases}) > 1  # symmetries compare by identity
    forest = joined(problem, [written_out(problem, trees) for trees in phases] if mixed else phases)
    return expanded(forest) if edges <= WRITTEN_OUT else forest


def written_out(problem: Problem, trees: Trees) -> Trees:
    """One phase with its templates written out."""
    forest = expanded(joined(problem, [trees]))
    return Trees(
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


def joined(problem: Problem, phases: list[Trees]) -> Forest:
    """The columns of all ``phases``, one after the other."""
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
    lengths = np.concatenate([np.diff(start) for start in starts])
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
