"""What a plan reaches in messages of unbounded size."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from coppice.schedule.plan import Plan
from coppice.text import bandwidth_text, percent_text

if TYPE_CHECKING:
    from coppice.outputs.shapes.planning import SteadyRatesJson


@dataclass(frozen=True, kw_only=True)
class SteadyRates:
    """Rate of a plan in messages of unbounded size."""

    plan: Plan  # The plan
    inv_rate: Fraction | None  # Time per shard (ns per byte); None: not known

    @property
    def algbw_gb_per_s(self) -> Fraction | None:
        """M over the time; None: not known, or nothing moves."""
        return self.plan.problem.shards / self.inv_rate if self.inv_rate else None

    @property
    def steps_wait(self) -> bool:
        """Whether links idle in messages of any size, since steps wait for each other."""
        return self.inv_rate is not None and self.inv_rate > self.plan.inv_rate

    @property
    def text(self) -> str:
        """The rate in words, with its share of the optimum."""
        rate, problem = self.algbw_gb_per_s, self.plan.problem
        if rate is None:
            return "not known"
        busbw = rate * problem.busbw_factor
        share = ""
        if self.plan.bound is not None and self.inv_rate:
            share = f", {percent_text(self.plan.bound.inv_rate / self.inv_rate)} of the optimum"
        why = ": steps wait for each other, in messages of any size" if self.steps_wait else ""
        return f"{bandwidth_text(rate, busbw)}{share}{why}"

    def record(self) -> SteadyRatesJson:
        """The rate as JSON values."""
        rate = self.algbw_gb_per_s
        return {
            "steady_algbw_gb_per_s": None if rate is None else float(rate),
            "steady_algbw_exact_gb_per_s": None if rate is None else str(rate),
        }
