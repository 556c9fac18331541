"""Range of an estimate in which 80% of runs are expected, by how far published ones were from theirs.

Theory. Conformal prediction (Vovk et al., 2005; Lei et al., JASA 2018): the 10% and 90% quantiles of measured over
estimated seconds among some runs hold for a new run of the same kind. Each run is estimated with constants that were
fitted without its group (the jackknife+ of Barber et al., Annals of Statistics 2021; `benchmarks/exam.py --left-out`),
so that no run tells what is expected of itself. Kinds are a framework on a kind of GPU; those with few runs take the
quantiles of the framework, or of all runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from coppice.iteration.machine import CONSTANTS, Cluster
from coppice.text import plural

TENTH = 1.2816
"""Distance from the middle, in standard deviations, beyond which a tenth of a normal distribution lies."""
APART = 0.09
"""Distance between the errors of two runs of a model that 80% of pairs of published ones stay below, in logarithms."""
FEWEST = 8
"""Runs that a kind needs for quantiles of its own."""
QUANTILES: dict[tuple[str, str], tuple[int, float, float]] = {
    ("", ""): (585, 0.92, 1.11),
    ("deepspeed", ""): (56, 0.92, 1.10),
    ("deepspeed", "A100-80G"): (56, 0.92, 1.10),
    ("foundry", ""): (113, 0.94, 1.07),
    ("foundry", "A100-80G"): (70, 0.94, 1.16),
    ("foundry", "H100"): (43, 0.95, 1.05),
    ("fsdp", ""): (21, 0.79, 1.20),
    ("fsdp", "H100"): (16, 0.78, 1.19),
    ("internevo", ""): (20, 0.93, 1.09),
    ("internevo", "A100-80G"): (20, 0.93, 1.09),
    ("megatron", ""): (92, 0.84, 1.13),
    ("megatron", "B200"): (39, 0.83, 1.13),
    ("megatron", "H100"): (53, 0.85, 1.13),
    ("megatron-2021", ""): (60, 0.96, 1.08),
    ("megatron-2021", "A100-80G"): (60, 0.96, 1.08),
    ("nanotron", ""): (15, 0.93, 1.25),
    ("nanotron", "H100"): (15, 0.93, 1.25),
    ("scaling", ""): (75, 0.94, 1.10),
    ("scaling", "A100-80G"): (75, 0.94, 1.10),
    ("scaling-unfused", ""): (130, 0.92, 1.06),
    ("scaling-unfused", "A100-80G"): (130, 0.92, 1.06),
}
"""Number of runs, and the 10% and 90% quantiles of measured over estimated seconds, by framework and kind of GPU;
empty: of all."""


@dataclass(frozen=True, kw_only=True)
class EstimateRange:
    """Range in which 80% of runs like a job are expected."""

    low: float  # Measured over estimated seconds of which 10% are expected below
    high: float  # And of which 90% are
    runs: int  # Published runs that it rests on
    like: str  # What they have in common with the job

    def of(self, seconds: float) -> tuple[float, float]:
        """The range of an estimate."""
        return self.low * seconds, self.high * seconds

    @property
    def spread(self) -> float:
        """Usual distance of measured from estimated times, in logarithms."""
        return math.log(self.high / self.low) / (2 * TENTH)

    def corrected(self, factor: float, spread: float, anchors: int) -> EstimateRange:
        """The range with measured steps of the same job.

        Args:
            factor: By which they move estimates.
            spread: Usual distance of measured from corrected times, in logarithms.
            anchors: Number of steps.
        """
        wide = math.exp(TENTH * spread)
        return EstimateRange(
            low=factor / wide,
            high=factor * wide,
            runs=self.runs,
            like=f"{self.like}, and {plural(anchors, 'measured step')}",
        )


def estimate_range(cluster: Cluster) -> EstimateRange:
    """The range of estimates on a cluster.

    Examples:
        >>> from coppice.iteration.machine import box_of
        >>> found = estimate_range(box_of("H100"))
        >>> found.low < 1 < found.high, found.like
        (True, 'megatron on H100')
    """
    gpu = CONSTANTS.get(cluster.device.name, cluster.device.name)
    framework = cluster.framework.name
    kinds = (
        ((framework, gpu), f"{framework} on {gpu}"),
        ((framework, ""), framework),
        (("", ""), "any kind"),
    )
    for kind, like in kinds:
        runs, low, high = QUANTILES.get(kind, (0, 1.0, 1.0))
        if runs >= FEWEST or kind == ("", ""):
            return EstimateRange(low=low, high=high, runs=runs, like=like)
    raise AssertionError  # by the last kind
