"""Costs by simulation: all groups at once on the links that they share, at a few sizes and in between.

A time is simulated at the powers of two around a size, and in between it is interpolated: exact where it is a line in
the size; pipelines, and a change of the protocol or algorithm in between, cost up to 5%. Groups of more
than 128 ranks over boxes that are all alike are simulated with 16, 32 and 64 ranks; their time goes on as
a + b (1 - 1 / boxes) + c boxes, of trees with log2(boxes) instead, with numbers of 0 or more that fit best: exact for
rings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.iteration.costs.chosen import Chooser, Pick, body_of, send_body, suited
from coppice.iteration.costs.group import COLLECTIVES, CollectiveCost, RankGroup
from coppice.iteration.costs.standing import Standing, box_of_all, standing
from coppice.iteration.costs.together import simulated_together
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.simulation.model import Model
from coppice.simulation.models import DEFAULT_MODEL
from coppice.topology.model import Topology
from coppice.topology.operations import subset

MOST_RANKS = 128
"""Ranks of a group that is simulated as a whole."""

_FEW_RANKS = 64
"""Most ranks from which the time of larger groups is extended."""

_LEAST_BYTES = 2**10
_LOGARITHMIC = ("forest", "nvls", "pat")
"""Algorithms beside those with trees in their names whose steps grow with the logarithm of the boxes."""


@dataclass(eq=False)
class SimulatedCosts:
    """Costs of collectives that are carried out in one way on a cluster.

    Examples:
        >>> from coppice.iteration.costs.chosen import named_pick
        >>> from coppice.topology.presets import preset
        >>> costs = SimulatedCosts(preset("dgx-h100", boxes=2), named_pick("ring"))
        >>> found = costs.cost("all_reduce", 2**26, RankGroup(8, 1))
        >>> found.link, round(1e6 * found.seconds)
        ('NVLink', 317)
    """

    topology: Topology  # The cluster, whose ranks are those of the job
    choose: Chooser  # What carries out a collective
    model: Model = DEFAULT_MODEL  # What messages cost
    _costs: dict[tuple[str, int, RankGroup], CollectiveCost] = field(default_factory=dict)
    _parts: dict[tuple[RankGroup, int], Standing] = field(default_factory=dict)
    _wholes: dict[RankGroup, Topology] = field(default_factory=dict)
    _suited: dict[tuple[str, Pick, int, RankGroup], Pick] = field(default_factory=dict)
    _bodies: dict[tuple[str, Pick, RankGroup, int], list[Schedule | Forest]] = field(default_factory=dict)

    def cost(
        self, collective: str, size_bytes: float, group: RankGroup, *, gradients: bool = False
    ) -> CollectiveCost:
        """As :class:`coppice.iteration.costs.group.CollectiveCosts` says; gradients are sums as others are."""
        del gradients
        if collective not in COLLECTIVES:
            raise InputError(f"expected one of {', '.join(COLLECTIVES)}, found {collective!r}.")
        if group.ranks == 1 or size_bytes <= 0:
            return CollectiveCost(0.0)
        if collective == "send":
            group = RankGroup(max(2, self.topology.num_ranks // group.stride), group.stride)
        size = max(size_bytes, _LEAST_BYTES)
        low = 2 ** math.floor(math.log2(size))
        below = self._at(collective, low, group)
        if size == low:
            return below
        above = self._at(collective, 2 * low, group)
        share = size / low - 1
        loads = {
            link: (1 - share) * below.loads.get(link, 0.0) + share * above.loads.get(link, 0.0)
            for link in {**below.loads, **above.loads}
        }
        seconds = (1 - share) * below.seconds + share * above.seconds
        return CollectiveCost(seconds, max(loads, key=lambda link: loads[link], default=""), loads)

    def _at(self, collective: str, size_bytes: int, group: RankGroup) -> CollectiveCost:
        """What is simulated at a size, each only once."""
        key = collective, size_bytes, group
        if key not in self._costs:
            self._costs[key] = self._measured(collective, size_bytes, group)
        return self._costs[key]

    def _measured(self, collective: str, size_bytes: int, group: RankGroup) -> CollectiveCost:
        box = box_of_all(self.topology)
        inside = max(1, box // group.stride)
        if collective == "send" and box:  # what a rank between two does all do, or those at the end of a box
            ranks = 3 if group.stride >= box else 2 * inside
            return self._simulated(collective, size_bytes, group, min(ranks, group.ranks))
        if group.ranks <= MOST_RANKS or not box or group.ranks % inside or inside * 8 > _FEW_RANKS:
            return self._simulated(collective, size_bytes, group, group.ranks)
        counts = [_FEW_RANKS // 4, _FEW_RANKS // 2, _FEW_RANKS]
        found = [self._simulated(collective, size_bytes, group, ranks) for ranks in counts]
        boxes = [ranks / inside for ranks in counts]
        name = self.choose(self._whole(group), Collective.named(collective), size_bytes).name
        linear = name not in _LOGARITHMIC and "tree" not in name
        seconds = _extended(boxes, [each.seconds for each in found], group.ranks / inside, linear=linear)
        return CollectiveCost(seconds, found[-1].link, found[-1].loads)

    def _simulated(self, collective: str, size_bytes: int, group: RankGroup, ranks: int) -> CollectiveCost:
        """Groups with so many of their ranks."""
        part = self._part(group, ranks)
        bodies = self._bodies_of(collective, size_bytes, group, ranks)
        return simulated_together(bodies, part.topology, size_bytes, self.model)

    def _part(self, group: RankGroup, ranks: int) -> Standing:
        if (group, ranks) not in self._parts:
            self._parts[group, ranks] = standing(self.topology, group, most_ranks=ranks)
        return self._parts[group, ranks]

    def _whole(self, group: RankGroup) -> Topology:
        """What the first group has of the cluster, all its ranks."""
        if group not in self._wholes:
            first = group.members(self.topology.num_ranks)[0]
            self._wholes[group] = subset(self.topology, first)
        return self._wholes[group]

    def _bodies_of(
        self, collective: str, size_bytes: int, group: RankGroup, ranks: int
    ) -> list[Schedule | Forest]:
        """What each group carries out; picked for all ranks of a group, where it is made for some of them."""
        part = self._part(group, ranks)
        if collective == "send":
            key = collective, Pick("linear"), group, ranks
            if key not in self._bodies:
                pairs = [pair for each in part.groups for pair in itertools.pairwise(each)]
                self._bodies[key] = [send_body(part.topology, list(pair)) for pair in pairs]
            return self._bodies[key]
        what = Collective.named(collective)
        picked = self.choose(self._whole(group), what, size_bytes)
        asked = collective, picked, size_bytes, group
        if asked not in self._suited:
            self._suited[asked] = suited(part.topology, part.groups[0], what, picked, size_bytes, self.model)
        picked = self._suited[asked]
        key = collective, picked, group, ranks
        if key not in self._bodies:
            self._bodies[key] = [body_of(part.topology, each, what, picked) for each in part.groups]
        return self._bodies[key]


def _extended(boxes: Sequence[float], seconds: Sequence[float], wanted: float, *, linear: bool) -> float:
    """A time that was simulated on a few numbers of boxes, on more of them; no less than on the most.

    Examples:
        >>> round(_extended([2, 4, 8], [2 * (1 - 1 / n) + 0.5 * n for n in (2, 4, 8)], 32, linear=True), 6)
        17.9375
    """

    def terms(count: float) -> list[float]:
        return [1.0, 1 - 1 / count, count if linear else math.log2(count)]

    table, target = np.array([terms(count) for count in boxes]), np.array(seconds)
    best: tuple[float, float] | None = None
    for size in range(1, 4):
        for chosen in itertools.combinations(range(3), size):
            factors, _, rank, _ = np.linalg.lstsq(table[:, chosen] / target[:, None], np.ones(len(boxes)))
            if rank < size or (factors < 0).any():
                continue
            missed = float(np.abs(table[:, chosen] @ factors / target - 1).max())
            if best is None or missed < best[0] - 1e-9:
                best = missed, float(np.array(terms(wanted))[list(chosen)] @ factors)
    return max(seconds[-1], 0.0 if best is None else best[1])
