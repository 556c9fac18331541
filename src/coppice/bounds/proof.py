"""Witnesses of bounds: what a plan file stores so that anybody can check its bound by counting.

A witness is the dual of a linear program, and weak duality makes it safe: whatever its numbers are, the bound that is
counted from them is true. A wrong witness proves too little, never too much. The checker is
:mod:`coppice.schedule.verification.proof`; docs/theory.md has the theorems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from coppice.display import Brief
from coppice.topology.symmetry import Symmetry


@dataclass(frozen=True, kw_only=True, repr=False)
class WeightedCut(Brief):
    """A set of nodes with its weights in a proof."""

    # The set: broadcast trees rooted outside enter it, reduce trees rooted outside leave it
    nodes: tuple[int, ...]
    broadcast: Fraction = Fraction(0)  # Weight for broadcast trees, 0 or more
    reduce: Fraction = Fraction(0)  # Weight for reduce trees, 0 or more


@dataclass(frozen=True, kw_only=True, repr=False)
class NodePotential(Brief):
    """The weight in a proof of a node that passes on no more than it gets."""

    node: int  # A node without a rank
    broadcast: Fraction = Fraction(0)  # Weight for broadcast trees (the node does not copy), 0 or more
    reduce: Fraction = Fraction(0)  # Weight for reduce trees (the node does not add), 0 or more


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class CutFamily(Brief):
    """Cuts and potentials that together prove a bound on trees: the dual of the program over link rates."""

    inv_rate: Fraction  # Time per shard that they prove, at least: 1 / (GB/s)
    cuts: tuple[WeightedCut, ...]  # The cuts
    # Nodes that do not copy or add, where the proof needs that; the others have potential 0
    potentials: tuple[NodePotential, ...] = ()
    # With a group of automorphisms every cut and potential stands for all its images
    symmetry: Symmetry | None = None


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LinkLengths(Brief):
    """Lengths of links that prove a bound on an all-to-all, gather or scatter: the dual of a concurrent flow."""

    inv_rate: Fraction  # Time per shard that they prove, at least: 1 / (GB/s)
    length: tuple[int, ...]  # `length[e]` of each link, integers of 0 or more


@dataclass(frozen=True, kw_only=True, repr=False)
class LinkRange(Brief):
    """A decision in a proof about whole trees: a link carries at most ``most`` of them, or more."""

    link: int  # Id of the link
    most: int  # Number of trees
    below: int  # Number of the case that the link carries at most `most` trees
    above: int  # Number of the case that it carries `most + 1` or more


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WholeTrees(Brief):
    """A bound on forests with a given number of trees: every link carries a whole number of them."""

    trees: int  # Trees per unit of weight: k
    inv_rate: Fraction  # Time per shard that no forest of k trees goes below: 1 / (GB/s)
    # The first is the proof: cuts that are violated whenever less time is given, or a decision that leads to
    # two later cases. (`inv_rate` of the families says nothing here.)
    cases: tuple[CutFamily | LinkRange, ...]


def partitioned(
    parts: Sequence[Sequence[int]], potentials: Sequence[NodePotential], inv_rate: Fraction
) -> CutFamily:
    """The witness that disjoint sets are: each once for broadcast trees and once for reduce trees.

    >>> [cut.nodes for cut in partitioned([[0, 1], [2]], [], Fraction(1)).cuts]
    [(0, 1), (2,)]
    """
    one = Fraction(1)
    cuts = tuple(WeightedCut(nodes=tuple(nodes), broadcast=one, reduce=one) for nodes in parts)
    return CutFamily(inv_rate=inv_rate, cuts=cuts, potentials=tuple(potentials))
