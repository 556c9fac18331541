"""What a bound is: an exact rate with the cut that proves it."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from coppice.bounds.all_reduce import CombinedAllReduce
from coppice.bounds.bandwidths import Bandwidths
from coppice.bounds.problem import Problem
from coppice.text import plural, rate_text

__all__ = ["Bound"]


@dataclass(frozen=True, kw_only=True)
class Bound(Bandwidths):
    """The best rate that a collective can have, with its witness.

    Attributes:
        problem: What was asked.
        inv_rate: Time per unit of shard (1 / (GB/s)) that no schedule of trees or routes goes below.
        cut: Node ids of the bottleneck's sending side S: everything that the other side needs leaves through its
            outgoing links. For collectives that reduce, S is the side from which the contributions leave.
        attainable: The least time per shard that is known to be reached without copying or adding in switches
            (differs from ``inv_rate`` where a switch has more capacity out than in, and where the optimum was
            only bracketed), or None where nothing is known.
        method: How the optimum was found and proved, in words.
        alternatives: Further rates by name (time per shard), such as two-phase and combined all-reduce.
        capacity: GB/s of each link that a forest may use, where some switch has more capacity out than in;
            None stands for all of it.
        combined: The split of links and roots of an all-reduce that beats two phases, otherwise None.
    """

    problem: Problem
    inv_rate: Fraction
    cut: tuple[int, ...]
    attainable: Fraction | None = None
    method: str = ""
    alternatives: dict[str, Fraction] = field(default_factory=dict)
    capacity: list[Fraction] | None = None
    combined: CombinedAllReduce | None = None

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
