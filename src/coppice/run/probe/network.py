"""What probing a network found: its measurements, the topology made of them, and links that carry too little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.run.engines.engine import Engine
from coppice.run.probe.expect import LinkFinding, judge_links, with_measured_rates
from coppice.run.probe.model import locality_groups, measured_topology
from coppice.run.probe.probe import RateMeasurement, engine_rate, run_experiments
from coppice.topology.model import Topology

__all__ = ["Probed", "probe_network"]


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A probed network.

    Attributes:
        measurements: Every experiment.
        groups: Ranks that are near each other.
        topology: What was measured, or what was expected with its measured rates.
        findings: Every link that was expected.
    """

    measurements: list[RateMeasurement]
    groups: list[list[int]]
    topology: Topology
    findings: list[LinkFinding]

    @cached_property
    def bound(self) -> Bound:
        """The bound of an all-gather, with its bottleneck."""
        return bound(Problem(topology=self.topology, collective=Collective.ALL_GATHER))

    def require_rates(self) -> None:
        """Do nothing if all expected links carry what they should.

        Raises:
            CheckError: With the link that lacks the largest share.
        """
        below = [each for each in self.findings if each.below]
        if below:
            worst = min(below, key=lambda each: each.measured_gb_per_s / each.expected_gb_per_s)
            msg = (
                f"expected {worst.expected_gb_per_s:g} GB/s from {worst.src} to {worst.dst}, found "
                f"{worst.measured_gb_per_s:.3g}; {len(below)} of {len(self.findings)} links are below 85% of their "
                "rates: see the list."
            )
            raise CheckError(msg)

    def record(self) -> dict[str, Any]:
        """Everything as JSON values."""
        bound = self.bound
        return {
            "groups": self.groups,
            "experiments": [
                {
                    "kind": each.experiment.kind,
                    "flows": [list(flow) for flow in each.experiment.flows],
                    "weights": list(each.experiment.sizes),
                    "gb_per_s": each.gb_per_s,
                }
                for each in self.measurements
            ],
            "bottleneck_cut": [self.topology.node_ids[node] for node in bound.cut],
            "all_gather_gb_per_s": float(bound.algbw_gb_per_s),
            "links": [
                {
                    "from": each.src,
                    "to": each.dst,
                    "expected_gb_per_s": each.expected_gb_per_s,
                    "measured_gb_per_s": each.measured_gb_per_s,
                    "tested": each.tested,
                    "below": each.below,
                }
                for each in self.findings
            ],
        }


def probe_network(
    engine: Engine,
    expected: Topology | None,
    *,
    rounds: int,
    timeout_s: float,
    progress: Callable[[int, int], None] | None = None,
) -> Probed | None:
    """Measure the network between the ranks of an engine; every rank calls it.

    Args:
        engine: What moves the data.
        expected: What the network should be, or None.
        rounds: Rounds of each experiment.
        timeout_s: Longest wait for another rank.
        progress: Called with the numbers of experiments done and of all known.

    Returns:
        What was found, on rank 0; None on all others.
    """
    rate = engine_rate(engine, rounds=rounds, timeout_s=timeout_s)
    measurements, groups = run_experiments(engine.ranks, rate, locality_groups, progress=progress)
    if engine.rank:
        return None
    findings = [] if expected is None else judge_links(expected, measurements)
    made = (
        measured_topology(measurements, groups)
        if expected is None
        else with_measured_rates(expected, findings)
    )
    return Probed(measurements=measurements, groups=groups, topology=made, findings=findings)
