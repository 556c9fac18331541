"""Range of an estimate in which 80% of runs are expected, by how far published ones were from theirs.

Theory. Conformal prediction (Vovk et al., 2005; Lei et al., JASA 2018): the 10% and 90% quantiles of measured over
estimated seconds among some runs hold for a new run of the same kind. Constants were fitted to the same runs, which a
margin of 15% of the distance stands for. Kinds are a framework on a kind of GPU; those with few runs take the quantiles
of the framework, or of all runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.iteration.cluster import CONSTANTS
from coppice.iteration.machine import Cluster

FEWEST = 8
"""Runs that a kind needs for quantiles of its own."""
QUANTILES: dict[tuple[str, str], tuple[int, float, float]] = {
    ("", ""): (585, 0.91, 1.10),
    ("deepspeed", ""): (56, 0.89, 1.12),
    ("foundry", ""): (113, 0.95, 1.07),
    ("foundry", "A100-80G"): (70, 0.95, 1.17),
    ("foundry", "H100"): (43, 0.95, 1.04),
    ("fsdp", ""): (21, 0.75, 1.18),
    ("fsdp", "H100"): (16, 0.74, 1.19),
    ("internevo", ""): (20, 0.92, 1.11),
    ("megatron", ""): (92, 0.84, 1.11),
    ("megatron", "B200"): (39, 0.78, 1.10),
    ("megatron", "H100"): (53, 0.85, 1.11),
    ("megatron-2021", ""): (60, 0.93, 1.06),
    ("nanotron", ""): (15, 0.86, 1.16),
    ("scaling", ""): (75, 0.92, 1.10),
    ("scaling-unfused", ""): (130, 0.93, 1.07),
}
"""Number of runs, and the 10% and 90% quantiles of measured over estimated seconds, by framework and kind of GPU;
empty: of all. The margin is contained."""


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


def estimate_range(cluster: Cluster) -> EstimateRange:
    """The range of estimates on a cluster.

    Examples:
        >>> from coppice.iteration.cluster import box_of
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
