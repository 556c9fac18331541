"""A topology from measured rates: groups of ranks that are near to each other, and a network between the groups.

Groups are found as PLink finds localities, from the rates of pairs alone: the largest jump in the sorted rates parts
near pairs from far ones, if it is a jump at all. The model is a switch for every group and one network between them;
whether the ranks of a group have network ports of their own or share one is told by what they reach together. Networks
whose GPUs forward (rings, tori) look like switches to such measurements: describe those in a file, and give it as what
to expect.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from coppice.run.probe.probe import RateMeasurement
from coppice.topology.model import Link, Node, NodeKind, Topology

__all__ = ["locality_groups", "measured_topology"]

_JUMP = 1.5
"""Near pairs are at least so many times as fast as far ones."""

_SHARED = 0.85
"""Ranks that together reach less than this share of what they reach one by one share a port."""

_EQUAL = 0.08
"""Rates that differ by less than this share are taken as equal."""


def locality_groups(pair_gb_per_s: NDArray[np.float64]) -> list[list[int]]:
    """Groups of ranks between which every pair is near, in the order of their least ranks.

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
    """The topology that explains the measurements.

    Args:
        measurements: Of all experiments.
        groups: Groups of ranks.
        name: Its name.
    """
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
