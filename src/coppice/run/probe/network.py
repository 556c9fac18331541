"""What probing a network found: its measurements, the topology made of them, and links that carry too little.

Flows take the default routes. An experiment is limited by the link with the most flows for its rate; what that link
carried is a lower bound on its rate, and the best of all experiments is its measured rate. A link that no experiment
is limited by is left unmeasured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.run.engines.engine import Engine
from coppice.run.probe.model import locality_groups, measured_topology
from coppice.run.probe.probe import Experiment, RateMeasurement, engine_rate, run_experiments
from coppice.topology.model import Topology
from coppice.topology.operations import set_link_rate
from coppice.topology.routing import Router

__all__ = ["LinkFinding", "Probed", "expected_rate", "judge_links", "probe_network", "with_measured_rates"]


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


Counts = NDArray[np.int64]

TOLERANCE = 0.85
"""A link with less than this share of its rate is below expectation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkFinding:
    """One link: what it should carry and what it was seen to carry, in GB/s.

    Attributes:
        link: Row of the topology.
        src: Name of the node that it leaves.
        dst: Name of the node that it enters.
        expected_gb_per_s: Its rate.
        measured_gb_per_s: The most that it carried.
        tested: Some experiment is limited by it, so that less than its rate means something.
    """

    link: int
    src: str
    dst: str
    expected_gb_per_s: float
    measured_gb_per_s: float
    tested: bool

    @property
    def below(self) -> bool:
        """It carries less than it should."""
        return self.tested and self.measured_gb_per_s < TOLERANCE * self.expected_gb_per_s


def expected_rate(topology: Topology, experiment: Experiment, router: Router | None = None) -> float:
    """Rate of a flow of weight one of an experiment in GB/s, if the links carry what the topology says.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box = preset("star", gpus=3, gb_per_s=10)
        >>> expected_rate(box, Experiment(kind="out", flows=((0, 1), (0, 2))))
        5.0
    """
    load, _ = _loads(topology, experiment, router or Router(topology, relay_gpus=True))
    return _limit(topology, load)[0]


def judge_links(topology: Topology, measurements: Sequence[RateMeasurement]) -> list[LinkFinding]:
    """What every link was seen to carry, in link order."""
    router = Router(topology, relay_gpus=True)
    most = np.zeros(topology.num_links)
    tested = np.zeros(topology.num_links, dtype=bool)
    for each in measurements:
        load, used = _loads(topology, each.experiment, router)
        most[used] = np.maximum(most[used], load[used] * each.gb_per_s)
        tested[_limit(topology, load)[1]] = True
    ids = topology.node_ids
    return [
        LinkFinding(
            link=link,
            src=ids[topology.src[link]],
            dst=ids[topology.dst[link]],
            expected_gb_per_s=float(topology.gb_per_s(link)),
            measured_gb_per_s=float(most[link]),
            tested=bool(tested[link]),
        )
        for link in range(topology.num_links)
    ]


def with_measured_rates(topology: Topology, findings: Sequence[LinkFinding]) -> Topology:
    """The topology with the rates of the links that are below expectation as they were measured, with three digits."""
    for each in findings:
        if each.below:
            rate = Fraction(f"{each.measured_gb_per_s:.3g}")
            topology = set_link_rate(topology, each.src, each.dst, rate, one_way=True)
    return topology


def _loads(topology: Topology, experiment: Experiment, router: Router) -> tuple[Counts, Counts]:
    """Weight of the flows over each link, and the links that have any."""
    index = {
        (int(a), int(b)): link for link, (a, b) in enumerate(zip(topology.src, topology.dst, strict=True))
    }
    load = np.zeros(topology.num_links, dtype=np.int64)
    for (src, dst), size in zip(experiment.flows, experiment.sizes, strict=True):
        path = router.path(src, dst)
        for a, b in pairwise(path):
            load[index[a, b]] += size
    return load, np.flatnonzero(load)


def _limit(topology: Topology, load: Counts) -> tuple[float, Counts]:
    """Rate of a flow of weight one in GB/s, and the links that limit it."""
    used = np.flatnonzero(load)
    share = topology.capacity[used] / load[used] / topology.denominator
    least = float(share.min())
    return least, used[share <= least * (1 + 1e-9)]
