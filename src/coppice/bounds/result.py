"""Result types of bounds: an exact rate with its proof, and bandwidths as nccl-tests counts them.

Witnesses of bounds: what a plan file stores so that anybody can check its bound by counting.

A witness is the dual of a linear program, and weak duality makes it safe: whatever its numbers are, the bound that is
counted from them is true. A wrong witness proves too little, never too much. The checker is
:mod:`coppice.schedule.verification.proof`; docs/theory.md has the theorems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from coppice.bounds.problem import Problem
from coppice.display import Brief, Shown, loaded
from coppice.text import plural, rate_text
from coppice.topology.symmetry import Symmetry

if TYPE_CHECKING:
    from coppice.outputs.shapes.nouns import FormerOptimumRatesJson, LoadRatesJson, OptimumRatesJson


@dataclass(frozen=True, kw_only=True, repr=False)
class WeightedCut(Brief):
    """A cut with its dual weights."""

    # The set: broadcast trees rooted outside enter it, reduce trees rooted outside leave it
    nodes: tuple[int, ...]
    broadcast: Fraction = Fraction(0)  # Weight for broadcast trees, 0 or more
    reduce: Fraction = Fraction(0)  # Weight for reduce trees, 0 or more


@dataclass(frozen=True, kw_only=True, repr=False)
class NodePotential(Brief):
    """Dual weight of a node's flow conservation."""

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
    """Branch of a proof about integral trees: a link carries at most ``most`` of them, or more."""

    link: int  # Id of the link
    most: int  # Number of trees
    below: int  # Number of the case that the link carries at most `most` trees
    above: int  # Number of the case that it carries `most + 1` or more


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class WholeTrees(Brief):
    """Bound on forests with a given number of trees, each link carrying an integral number of them."""

    trees: int  # Trees per unit of weight: k
    inv_rate: Fraction  # Time per shard that no forest of k trees goes below: 1 / (GB/s)
    # The first is the proof: cuts that are violated whenever less time is given, or a decision that leads to
    # two later cases. (`inv_rate` of the families says nothing here.)
    cases: tuple[CutFamily | LinkRange, ...]


def partitioned(
    parts: Sequence[Sequence[int]], potentials: Sequence[NodePotential], inv_rate: Fraction
) -> CutFamily:
    """Witness made of disjoint sets, each used once for broadcast trees and once for reduce trees.

    >>> [cut.nodes for cut in partitioned([[0, 1], [2]], [], Fraction(1)).cuts]
    [(0, 1), (2,)]
    """
    one = Fraction(1)
    cuts = tuple(WeightedCut(nodes=tuple(nodes), broadcast=one, reduce=one) for nodes in parts)
    return CutFamily(inv_rate=inv_rate, cuts=cuts, potentials=tuple(potentials))


def optimum_rates(problem: Problem, inv_rate: Fraction) -> OptimumRatesJson:
    """The rate that no schedule exceeds, as JSON values: exact ones as text."""
    algbw, busbw = rates(problem, inv_rate)
    return {
        "optimum_ns_per_byte": str(inv_rate),
        "optimum_algbw_gb_per_s": float(algbw),
        "optimum_algbw_exact_gb_per_s": str(algbw),
        "optimum_busbw_gb_per_s": float(busbw),
        "optimum_busbw_exact_gb_per_s": str(busbw),
    }


def load_rates(problem: Problem, inv_rate: Fraction) -> LoadRatesJson:
    """The rate that the busiest link of a plan lets through, as JSON values: exact ones as text.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> rates = load_rates(Problem(preset("star", gpus=4), "all_gather"), Fraction(1, 25))
        >>> rates["load_ns_per_byte"], rates["load_algbw_gb_per_s"], rates["load_busbw_exact_gb_per_s"]
        ('1/25', 100.0, '75')
    """
    algbw, busbw = rates(problem, inv_rate)
    return {
        "load_ns_per_byte": str(inv_rate),
        "load_algbw_gb_per_s": float(algbw),
        "load_algbw_exact_gb_per_s": str(algbw),
        "load_busbw_gb_per_s": float(busbw),
        "load_busbw_exact_gb_per_s": str(busbw),
    }


def rates(problem: Problem, inv_rate: Fraction) -> tuple[Fraction, Fraction]:
    """Algorithm and bus bandwidth of a time per shard, in GB/s."""
    algbw = problem.shards / inv_rate if inv_rate else Fraction(0)
    return algbw, algbw * problem.busbw_factor


class Bandwidths:
    """Mixin that derives bandwidths from the ``inv_rate`` of a ``problem``."""

    if TYPE_CHECKING:

        @property
        def problem(self) -> Problem:
            """What is performed."""

        @property
        def inv_rate(self) -> Fraction:
            """Time per unit of shard in 1 / (GB/s)."""

    @property
    def algbw_gb_per_s(self) -> Fraction:
        """Algorithm bandwidth M / time in GB/s, exact; 0 where nothing has to move."""
        return self.problem.shards / self.inv_rate if self.inv_rate else Fraction(0)

    @property
    def busbw_gb_per_s(self) -> Fraction:
        """Bus bandwidth in GB/s, exact; 0 where nothing has to move."""
        return self.algbw_gb_per_s * self.problem.busbw_factor

    def rates_record(self) -> FormerOptimumRatesJson:
        """Time and bandwidths as JSON values, exact ones as text."""
        return {
            "inv_rate": str(self.inv_rate),
            "algbw_gb_per_s": float(self.algbw_gb_per_s),
            "algbw_exact": str(self.algbw_gb_per_s),
            "busbw_gb_per_s": float(self.busbw_gb_per_s),
            "busbw_exact": str(self.busbw_gb_per_s),
        }

    def loss_against(self, optimum: Bandwidths) -> Fraction:
        """Share of the rate of ``optimum`` that is lost (0: as fast)."""
        return 1 - optimum.inv_rate / self.inv_rate if self.inv_rate else Fraction(0)


@dataclass(frozen=True, eq=False, kw_only=True)
class CombinedAllReduce:
    """The best all-reduce over reduce trees and broadcast trees, or bounds on it."""

    # Rate that the capacities below carry (algbw in GB/s), or None where no capacities were found
    rate: Fraction | None
    upper: Fraction | None  # Proved upper bound on the rate, or None where none was found
    # GB/s that each root rank reduces and broadcasts; only positive ones. Sums to `rate`.
    root_rates: dict[int, Fraction]
    broadcast_capacity: list[Fraction]  # GB/s of each link for the broadcast trees
    reduce_capacity: list[Fraction]  # GB/s of each link for the reduce trees
    # The witness of `upper`: disjoint sets or the dual of the linear program; None where there is none
    proof: CutFamily | None
    method: str  # How the figures were found, in words

    @property
    def exact(self) -> bool:
        """Whether the rate is the optimum."""
        return self.rate is not None and self.rate == self.upper


@dataclass(frozen=True, kw_only=True)
class Bound(Shown, Bandwidths):
    """Best possible rate of a collective, with its witness."""

    problem: Problem  # What was asked
    inv_rate: Fraction  # Time per unit of shard (1 / (GB/s)) that no schedule of trees or routes goes below
    # Node ids of the bottleneck's sending side S: everything that the other side needs leaves through its
    # outgoing links. For collectives that reduce, S is the side from which the contributions leave.
    cut: tuple[int, ...]
    # The least time per shard that is known to be reached without copying or adding in switches (differs from
    # `inv_rate` where a switch has more capacity out than in, and where the optimum was only bracketed), or
    # None where nothing is known
    attainable: Fraction | None = None
    method: str = ""  # How the optimum was found and proved, in words
    # Further rates by name (time per shard), such as two-phase and combined all-reduce
    alternatives: dict[str, Fraction] = field(default_factory=dict)
    # GB/s of each link that a forest may use, where some switch has more capacity out than in; None stands
    # for all of it
    capacity: list[Fraction] | None = None
    # The split of links and roots of an all-reduce that beats two phases, otherwise None
    combined: CombinedAllReduce | None = None
    # The witness where the cut alone does not prove the optimum: a family of cuts, or lengths of links
    proof: CutFamily | LinkLengths | None = None
    # The bound on forests with the plan's number of trees, where a number or the fewest were asked for
    whole_trees: WholeTrees | None = None
    # The same of an all-reduce in two phases: of its reduce-scatter, and of its all-gather
    phase_trees: tuple[WholeTrees, ...] = ()
    # Bounds on forests with each smaller number of trees, from 1 on, where the fewest were asked for
    fewer_trees: tuple[WholeTrees, ...] = ()

    @property
    def cut_in_words(self) -> str:
        """The bottleneck in words: what the slowest cut separates, and which links cross it.

        >>> from coppice.bounds import bound
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.presets import preset
        >>> bound(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER)).cut_in_words
        'GPU 0 receives through 2 links of 1 GB/s: 3 shards over 2 GB/s'
        """
        return str(loaded("coppice.bounds.describe:describe_cut")(self))

    def __repr__(self) -> str:
        """In short what it is.

        >>> from coppice.bounds import bound
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.presets import preset
        >>> bound(Problem(topology=preset("ring", gpus=4), collective=Collective.ALL_GATHER))
        Bound(all_gather on 'ring of 4', 4 ranks: algbw 2.6667 GB/s)
        """
        topology = self.problem.topology
        place = f"{self.problem.collective} on {topology.name[:80]!r}, {plural(topology.num_ranks, 'rank')}"
        return f"Bound({place}: algbw {rate_text(self.algbw_gb_per_s)} GB/s)"
