"""Evaluate a probe: measurements, the topology derived from them, and slow links.

Flows take the default routes. An experiment is limited by the link with the most flows for its rate; what that link
carried is a lower bound on its rate, and the best of all experiments is its measured rate. A link that no experiment
is limited by is left unmeasured.

Groups are found as PLink finds localities, from the rates of pairs alone: the largest jump in the sorted rates parts
near pairs from far ones, if it is a jump at all. The model is a switch for every group and one network between them;
whether the ranks of a group have network ports of their own or share one is told by what they reach together. Networks
whose GPUs forward (rings, tori) look like switches to such measurements: describe those in a file, and give it as what
to expect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.run.engines.engine import Engine
from coppice.run.probe.probe import Experiment, RateMeasurement, engine_rate, run_experiments
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import set_link_rate
from coppice.topology.routing import Router

if TYPE_CHECKING:
    from coppice.outputs.shapes.networks import ProbeJson


@dataclass(frozen=True, kw_only=True)
class Probed:
    """Result of a probe."""

    measurements: list[RateMeasurement]  # Every experiment
    groups: list[list[int]]  # Ranks that are near each other
    topology: Topology  # What was measured, or what was expected with its measured rates
    findings: list[LinkFinding]  # Every link that was expected

    @cached_property
    def bound(self) -> Bound:
        """Bound of an all-gather, with its bottleneck."""
        return bound_of(Problem(topology=self.topology, collective=Collective.ALL_GATHER))

    def require_rates(self) -> None:
        """Raise unless all expected links reach their rates.

        Raises:
            CheckError: With the link that lacks the largest share.
        """
        below = [each for each in self.findings if each.below]
        if below:
            worst = min(below, key=lambda each: each.measured_gb_per_s / each.expected_gb_per_s)
            raise CheckError(
                f"expected {worst.expected_gb_per_s:g} GB/s from {worst.src} to {worst.dst}, found "
                f"{worst.measured_gb_per_s:.3g}; {len(below)} of {len(self.findings)} links are below 85% of their "
                "rates: see the list."
            )

    def record(self) -> ProbeJson:
        """The probe as JSON values."""
        bound = self.bound
        cut = [self.topology.node_ids[node] for node in bound.cut]
        return {
            "rank_groups": self.groups,
            "groups": self.groups,
            "experiments": [
                {
                    "kind": each.experiment.kind,
                    "flows": [list(flow) for flow in each.experiment.flows],
                    "weights": list(each.experiment.sizes),
                    "rate_gb_per_s": each.gb_per_s,
                    "gb_per_s": each.gb_per_s,
                }
                for each in self.measurements
            ],
            "cut": cut,
            "bottleneck_cut": cut,
            "optimum_algbw_gb_per_s": float(bound.algbw_gb_per_s),
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
    """Measure the network between the ranks of an engine; collective over the ranks.

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
    """Expected and observed rate of one link in GB/s."""

    link: int  # Row of the topology
    src: str  # Name of the node that it leaves
    dst: str  # Name of the node that it enters
    expected_gb_per_s: float  # Its rate
    measured_gb_per_s: float  # The most that it carried
    tested: bool  # Some experiment is limited by it, so that less than its rate means something

    @property
    def below(self) -> bool:
        """Whether the observed rate is too low."""
        return self.tested and self.measured_gb_per_s < TOLERANCE * self.expected_gb_per_s


def expected_rate(topology: Topology, experiment: Experiment, router: Router | None = None) -> float:
    """Expected rate of a flow of weight one of an experiment in GB/s on the topology.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box = preset("star", gpus=3, gb_per_s=10)
        >>> expected_rate(box, Experiment(kind="out", flows=((0, 1), (0, 2))))
        5.0
    """
    load, _ = _loads(topology, experiment, router or Router(topology, relay_gpus=True))
    return _limit(topology, load)[0]


def judge_links(topology: Topology, measurements: Sequence[RateMeasurement]) -> list[LinkFinding]:
    """Observed rate of every link, in link order."""
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
    """The topology with measured rates (three digits) on links below expectation."""
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


_JUMP = 1.5
"""Near pairs are at least so many times as fast as far ones."""

_SHARED = 0.85
"""Ranks that together reach less than this share of what they reach one by one share a port."""

_EQUAL = 0.08
"""Rates that differ by less than this share are taken as equal."""


def locality_groups(pair_gb_per_s: NDArray[np.float64]) -> list[list[int]]:
    """Groups of ranks that are pairwise near, in the order of their least ranks.

    Args:
        pair_gb_per_s: Rate from row to column; the diagonal does not matter.

    Examples:
        >>> near, far = 10.0, 1.0
        >>> rates = np.array([[0, near, far], [near, 0, far], [far, far, 0]])
        >>> locality_groups(rates)
        [[0, 1], [2]]
    """
    ranks = len(pair_gb_per_s)
    # What is slow in one direction is far: a degraded port must not tie two groups together.
    both = np.minimum(pair_gb_per_s, pair_gb_per_s.T)
    rates = np.sort(both[np.triu_indices(ranks, 1)])
    if len(rates) < 2 or rates[-1] <= 0:
        return [list(range(ranks))]
    jumps = rates[1:] / np.maximum(rates[:-1], rates[-1] * 1e-9)
    place = int(np.argmax(jumps))
    if jumps[place] < _JUMP:
        return [list(range(ranks))]
    near = both >= rates[place + 1]
    groups: list[list[int]] = []
    for rank in range(ranks):
        home = next((group for group in groups if all(near[rank, mate] for mate in group)), None)
        if home is None:
            groups.append([rank])
        else:
            home.append(rank)
    return groups


def measured_topology(
    measurements: Sequence[RateMeasurement], groups: Sequence[Sequence[int]], *, name: str = "measured"
) -> Topology:
    """Topology that explains the measurements."""
    rates = _Rates(measurements)
    ranks = sorted(rank for group in groups for rank in group)
    many = len(groups) > 1
    nodes = [Node(id=f"rank{rank}", host=f"group{_home(groups, rank)}" if many else None) for rank in ranks]
    wanted: list[tuple[str, str, float]] = []
    for number, group in enumerate(groups):
        if len(group) > 1 or not many:
            switch = f"group{number}/switch"
            nodes.append(Node(id=switch, kind=NodeKind.SWITCH, host=f"group{number}" if many else None))
            for rank in group:
                wanted.append(
                    (f"rank{rank}", switch, max(rates.total("out", rank), rates.best_pair(rank, group)))
                )
                wanted.append(
                    (switch, f"rank{rank}", max(rates.total("in", rank), rates.best_pair_into(rank, group)))
                )
    if many:
        nodes.append(Node(id="network", kind=NodeKind.SWITCH))
        crowd = rates.crowd()
        for number, group in enumerate(groups):
            for away, alone, together in (
                (True, "out-of-group", "group-out"),
                (False, "into-group", "group-in"),
            ):
                strangers = [rank for rank in ranks if rank not in group]
                best = rates.best_pair if away else rates.best_pair_into
                each = {rank: max(rates.total(alone, rank), best(rank, strangers)) for rank in group}
                total = min(rates.total_of_group(together, group), crowd[frozenset(group)])
                if len(group) > 1 and total < _SHARED * sum(each.values()):
                    ends = [(f"group{number}/switch", total)]
                else:
                    ends = [(f"rank{rank}", rate) for rank, rate in each.items()]
                for end, rate in ends:
                    wanted.append((end, "network", rate) if away else ("network", end, rate))
    levels = _levels([rate for _, _, rate in wanted])
    links = [
        Link(src=src, dst=dst, gb_per_s=levels[rate], duplex=False) for src, dst, rate in wanted if rate > 0
    ]
    return Topology.of(name, nodes, links, source="measured by coppice probe")


def _home(groups: Sequence[Sequence[int]], rank: int) -> int:
    return next(number for number, group in enumerate(groups) if rank in group)


class _Rates:
    """Measurements by what they are of."""

    def __init__(self, measurements: Sequence[RateMeasurement]) -> None:
        self._pairs: dict[tuple[int, int], float] = {}
        self._of_rank: dict[tuple[str, int], float] = {}
        self._of_group: dict[tuple[str, frozenset[int]], float] = {}
        self._all: list[RateMeasurement] = []
        for each in measurements:
            kind, flows = each.experiment.kind, each.experiment.flows
            if kind == "pair":
                self._pairs[flows[0]] = each.gb_per_s
            elif kind in ("out", "out-of-group"):
                self._of_rank[kind, flows[0][0]] = each.total_gb_per_s
            elif kind in ("in", "into-group"):
                self._of_rank[kind, flows[0][1]] = each.total_gb_per_s
            elif kind == "group-out":
                self._of_group[kind, frozenset(src for src, _ in flows)] = each.total_gb_per_s
            elif kind == "group-in":
                self._of_group[kind, frozenset(dst for _, dst in flows)] = each.total_gb_per_s
            else:
                self._all.append(each)

    def total(self, kind: str, rank: int) -> float:
        """Of all flows of a rank together."""
        return self._of_rank.get((kind, rank), 0.0)

    def total_of_group(self, kind: str, group: Sequence[int]) -> float:
        """Of all flows of a group together."""
        return self._of_group[kind, frozenset(group)]

    def best_pair(self, rank: int, group: Sequence[int]) -> float:
        """The fastest flow from a rank to one of a group."""
        return max((self._pairs[rank, mate] for mate in group if mate != rank), default=0.0)

    def best_pair_into(self, rank: int, group: Sequence[int]) -> float:
        """The fastest flow to a rank from one of a group."""
        return max((self._pairs[mate, rank] for mate in group if mate != rank), default=0.0)

    def crowd(self) -> dict[frozenset[int], float]:
        """What leaves each group while all send to all others, where that is less than alone for every group."""
        alone = {group: rate for (kind, group), rate in self._of_group.items() if kind == "group-out"}
        together = {group: max((each.sent_by(group) for each in self._all), default=0.0) for group in alone}
        if all(together[group] < _SHARED * alone[group] for group in alone):
            return together
        # One group at its limit holds up the flows of the others: that says nothing of the network between them.
        return {group: max(together[group], alone[group]) for group in alone}


def _levels(rates: Sequence[float]) -> dict[float, Fraction]:
    """Exact rates: those that are nearly equal become one, the mean of them, with three digits."""
    found: dict[float, Fraction] = {}
    run: list[float] = []
    for rate in [*sorted({each for each in rates if each > 0}), float("inf")]:
        if run and rate > run[0] * (1 + _EQUAL):
            mean = sum(run) / len(run)
            exact = Fraction(f"{mean:.3g}")
            found.update(dict.fromkeys(run, exact))
            run = []
        run.append(rate)
    return found
