"""What placing aggregation in a network finds: the result of :func:`coppice.innetwork.placement.place_aggregation`."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from coppice.display import Shown
from coppice.topology.model import Topology


@dataclass(frozen=True, kw_only=True)
class BusiestLink:
    """The link that takes longest to carry what it is given."""

    ends: tuple[str, str]  # Names of its ends
    load_bytes: Fraction  # What it carries in each direction
    time_us: Fraction  # That over its rate

    def record(self) -> dict[str, Any]:
        """The link as JSON values."""
        return {
            "ends": list(self.ends),
            "load_bytes": float(self.load_bytes),
            "time_us": float(self.time_us),
        }


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class AggregationPlacement(Shown):
    """Switches that should add, and what that gives."""

    topology: Topology  # The network
    budget: int  # Switches that could be chosen
    candidates: int  # Switches that there are without the feature
    given: tuple[str, ...]  # Names of switches that have it
    # Names of those that should get it; fewer than the budget where more bring nothing
    chosen: tuple[str, ...]
    jobs: tuple[tuple[int, ...], ...]  # Ranks of each job
    size_bytes: int  # What each rank adds
    roots: tuple[tuple[str, ...], ...]  # Names of the roots of each job's trees
    busiest: BusiestLink  # The busiest link with these switches
    least_time_us: Fraction  # With no choice within the budget the busiest link takes less
    everywhere_us: Fraction  # What it takes at least if all switches have the feature
    # The busiest link without the chosen ones. Where no switch is left that adds, ranks of the jobs do.
    without: BusiestLink
    ring: BusiestLink  # The busiest link of rings of hosts, each job in the order of its ranks

    @property
    def proved(self) -> bool:
        """Whether no choice within the budget is better."""
        return self.busiest.time_us == self.least_time_us

    @property
    def gap(self) -> Fraction:
        """By which share of its time the busiest link could be faster at most."""
        if not self.busiest.time_us:
            return Fraction(0)
        return 1 - self.least_time_us / self.busiest.time_us

    def __repr__(self) -> str:
        """In short what was found."""
        time = float(self.busiest.time_us)
        return f"AggregationPlacement({', '.join(self.chosen) or 'none'!r}, busiest link {time:.6g} us)"

    def record(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "topology": self.topology.name,
            "budget": self.budget,
            "candidates": self.candidates,
            "given": list(self.given),
            "chosen": list(self.chosen),
            "size_bytes": self.size_bytes,
            "jobs": [
                {"ranks": list(ranks), "roots": list(roots)}
                for ranks, roots in zip(self.jobs, self.roots, strict=True)
            ],
            "busiest": self.busiest.record(),
            "least_time_us": float(self.least_time_us),
            "proved": self.proved,
            "gap": float(self.gap),
            "everywhere_us": float(self.everywhere_us),
            "without": self.without.record(),
            "ring": self.ring.record(),
        }
