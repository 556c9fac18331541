"""Bandwidths of a collective from its time per shard, as nccl-tests counts them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coppice.bounds.problem import Problem

__all__ = ["Bandwidths"]


class Bandwidths:
    """What follows from the ``inv_rate`` of a ``problem``; a class that has both inherits the rest."""

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
        return self.algbw_gb_per_s * self.problem.collective.busbw_factor(self.problem.topology.num_ranks)

    def rates_record(self) -> dict[str, str | float]:
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
