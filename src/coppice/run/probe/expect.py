"""Which links of a known topology carry less than they should, from experiments between its ranks.

Flows take the default routes. An experiment is limited by the link with the most flows for its rate; what that link
carried is a lower bound on its rate, and the best of all experiments is its measured rate. A link that no experiment
is limited by is left unmeasured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coppice.run.probe.probe import Experiment, RateMeasurement
from coppice.topology.model import Topology
from coppice.topology.operations import set_link_rate
from coppice.topology.routing import Router

__all__ = ["LinkFinding", "expected_rate", "judge_links", "with_measured_rates"]

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
