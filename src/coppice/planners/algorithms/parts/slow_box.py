"""The box that lost bandwidth to the others, found by the rates of links, and what each of its members has left.

Member j of a box reaches member j of another one on its default route. Routes that share a link share its rate: where
a GPU lost its NIC and takes its neighbour's, each of the two has half of it. Only links at a box's own nodes count: a
slow box does not make its partners look slow, and where routes meet between switches is no fault of a box.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np

from coppice.errors import InputError, UnreachableError
from coppice.planners.algorithms.algorithm import AlgorithmCase, AlgorithmParameter
from coppice.planners.algorithms.parts.boxes import grouped
from coppice.topology.model import Topology
from coppice.topology.routing import Router

SLOW = AlgorithmParameter(
    default=0, least=0, summary="number of the box, from 1, that lost bandwidth; 0: by the rates of links"
)

Rails = tuple[Fraction, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class DegradedBoxes:
    """Boxes in a row, of which one may have lost bandwidth; where there are no equal boxes, every rank is one."""

    case: AlgorithmCase  # With the boxes one after the other, and their members by rail
    group: int  # Members of a box
    slow: int | None  # The box that lost bandwidth
    full: (
        Rails  # Of the best of the other boxes: rate of every member to other boxes, in the topology's units
    )
    left: Rails  # Of the slow box, at most as much

    @property
    def count(self) -> int:
        """Number of boxes."""
        return self.case.size // self.group

    @property
    def lost(self) -> Fraction:
        """Share of its rate that the slow box lost."""
        return 1 - sum(self.left, Fraction(0)) / sum(self.full, Fraction(0))


def degraded_boxes(case: AlgorithmCase, name: str) -> DegradedBoxes:
    """Boxes of a case, and which of them is slower than the others.

    Args:
        case: Its parameter ``slow`` may name the box.
        name: Of the algorithm, for errors.

    Raises:
        InputError: If several boxes are slower than the best one, the slow one reaches no other, or ``slow`` is none.

    Examples:
        >>> from coppice.collectives import Collective
        >>> from coppice.topology.operations import set_link_rate
        >>> from coppice.topology.presets import preset
        >>> slower = set_link_rate(preset("star", gpus=4), "gpu2", "switch", "75%")
        >>> case = AlgorithmCase(topology=slower, collective=Collective.ALL_REDUCE, parameters={"slow": 0})
        >>> found = degraded_boxes(case, "optcc")
        >>> found.slow, found.lost
        (2, Fraction(1, 4))
    """
    case, group = grouped(case, 0, alone=True)
    count = case.size // group
    given = case.number("slow")
    if given > count:
        raise InputError(f"{name} needs one of {count} boxes, found slow={given}: count them from 1.")
    if count == 1:
        rails = (Fraction(1),) * group
        return DegradedBoxes(case=case, group=group, slow=None, full=rails, left=rails)
    ranks = case.order or tuple(range(case.size))
    rates = _rates(case.topology, tuple(ranks[first : first + group] for first in range(0, case.size, group)))
    slow = given - 1 if given else _slowest(rates, name)
    others = [rails for box, rails in enumerate(rates) if box != slow]
    full = tuple(max(column) for column in zip(*others, strict=True))
    left = full if slow is None else tuple(map(min, rates[slow], full))
    if not any(left):
        raise InputError(
            f"{name} needs routes between members of equal number in all boxes, found none: choose another algorithm."
        )
    return DegradedBoxes(case=case, group=group, slow=slow, full=full, left=left)


def _slowest(rates: Sequence[Rails], name: str) -> int | None:
    total = [sum(rails) for rails in rates]
    slower = [box for box, rate in enumerate(total) if rate < max(total)]
    if len(slower) > 1:
        raise InputError(
            f"{name} needs boxes of which one at most is slower than the others, found {len(slower)} of {len(rates)}: "
            "plan with `algorithm=forest`."
        )
    if slower:
        return slower[0]
    # Two boxes without a rail between them: both have lost it, and either may be taken for the slow one.
    return 1 if len(rates) == 2 and len(set(rates[1])) > 1 else None


@lru_cache(maxsize=16)
def _rates(topology: Topology, boxes: tuple[tuple[int, ...], ...]) -> tuple[Rails, ...]:
    """Rate of every member of every box to its partner in the better one of the next two boxes."""
    router = Router(topology)
    capacity = dict(
        zip(
            zip(topology.src.tolist(), topology.dst.tolist(), strict=True),
            topology.capacity.tolist(),
            strict=True,
        )
    )
    found = []
    for number, box in enumerate(boxes):
        partners = dict.fromkeys((number + away) % len(boxes) for away in (1, 2))
        nodes = _nodes(topology, box)
        rails = []
        for other in partners:
            if other != number:
                there = boxes[other]
                out = _shares(router, capacity, list(zip(box, there, strict=True)), nodes)
                into = _shares(router, capacity, list(zip(there, box, strict=True)), nodes)
                rails.append(tuple(map(min, out, into)))
        found.append(max(rails, key=sum))
    if len(boxes[0]) == 1 and not all(map(any, found)):
        # Ranks that do not reach their neighbours by switches alone: what their own links carry.
        alone = topology.rank_nodes[[box[0] for box in boxes]]
        ends = (
            np.bincount(end, topology.capacity, topology.num_nodes) for end in (topology.src, topology.dst)
        )
        return tuple((Fraction(int(rate)),) for rate in np.minimum(*ends)[alone])
    return tuple(found)


def _nodes(topology: Topology, box: tuple[int, ...]) -> frozenset[int]:
    nodes = topology.rank_nodes[list(box)]
    hosts = {host for host in topology.host[nodes].tolist() if host >= 0}
    inside = np.isin(topology.host, list(hosts)) if hosts else np.zeros(topology.num_nodes, dtype=np.bool_)
    inside[nodes] = True
    return frozenset(np.flatnonzero(inside).tolist())


def _shares(
    router: Router,
    capacity: dict[tuple[int, int], int],
    pairs: list[tuple[int, int]],
    nodes: frozenset[int],
) -> Rails:
    """Rate of each pair at the links of ``nodes`` when all of them send; 0 without a route."""
    ways: list[list[tuple[int, int]]] = []
    for src, dst in pairs:
        try:
            links = list(pairwise(router.path(src, dst)))
        except UnreachableError:
            links = []
        ways.append([link for link in links if nodes.intersection(link)])
    uses = Counter(link for way in ways for link in way)
    return tuple(
        min((Fraction(capacity[link], uses[link]) for link in way), default=Fraction(0)) for way in ways
    )
