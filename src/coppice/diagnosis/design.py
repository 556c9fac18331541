"""The fewest rounds of probes that distinguish every single slow part of a network from every other, and from none.

This is separating group testing (a test cover; Moret and Shapiro, On minimizing a set of tests, SIAM J. Sci. Stat.
Comput. 6, 1985): a flow is a test, positive where a part that it can show is slow; two parts are told apart by a flow
that can show one of them only. Flows of a round run at once, so rounds are what takes time. Rounds are chosen greedily,
the one that leaves fewest pairs of parts alike first, which is within a factor of 1 + 2 ln n of the fewest for n parts;
where few candidates allow it, all smaller sets of rounds are tried, and the number is proved.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coppice.arguments import checked
from coppice.diagnosis.probes import (
    TIGHT,
    NetworkParts,
    Round,
    Sight,
    candidates,
    narrowest,
    parts_of,
    rates,
    require_ranks,
    routed,
    sight_of,
)
from coppice.display import Brief
from coppice.errors import UnreachableError
from coppice.topology.load import load
from coppice.topology.model import Topology
from coppice.topology.readers.document import topology_json
from coppice.topology.routing import Router

if TYPE_CHECKING:
    from coppice.outputs.shapes.networks import ProbeDesignJson

MOST_SETS = 3_000
"""Sets of rounds that are tried for a smaller one."""


@dataclass(frozen=True, eq=False, repr=False)
class ProbeDesign(Brief):
    """Rounds of probes, and what they distinguish."""

    topology: Topology
    parts: NetworkParts  # What may be slow
    rounds: tuple[Round, ...]  # In the order in which they were chosen
    healthy: tuple[NDArray[np.float64], ...]  # Rate of each flow of each round with nothing slow, GB/s
    sights: tuple[Sight, ...]  # What the flows of each round can show
    undistinguished: tuple[
        tuple[int, ...], ...
    ]  # Sets of parts that no flow tells apart, nor would of any candidate
    # NetworkParts that no flow of any candidate shows to be slow, or that all flows over such links pass alike
    unseen: tuple[int, ...]
    fewest: int  # Rounds that any choice of the candidates needs at least, as proved

    @property
    def flows(self) -> int:
        """Flows of all rounds."""
        return sum(len(each.src) for each in self.rounds)

    def seconds(self, flow_seconds: float = 1.0) -> float:
        """Time of all rounds, each for so long."""
        return len(self.rounds) * flow_seconds

    def __repr__(self) -> str:
        alike = sum(len(each) for each in self.undistinguished)
        return (
            f"<{len(self.rounds)} rounds of probes on {self.topology.name[:80]}: {self.flows} flows, "
            f"{len(self.parts)} parts, {alike} of them like another, {len(self.unseen)} not seen>"
        )

    def record(self) -> ProbeDesignJson:
        """The design as JSON values; `coppice diagnose results` reads it back with rates."""
        ids, topology, names = self.topology.node_ids, self.topology, self.parts.names
        ends = [
            f"{ids[a]} -> {ids[b]}" for a, b in zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
        ]
        probes: list[Any] = []
        for number, (each, rate) in enumerate(zip(self.rounds, self.healthy, strict=True)):
            for flow, (src, dst) in enumerate(zip(each.src.tolist(), each.dst.tolist(), strict=True)):
                links = [ends[e] for e in each.links[each.first[flow] : each.first[flow + 1]].tolist()]
                probes.append(
                    {
                        "round_number": number,
                        "rank_pair": [src, dst],
                        "ranks": [src, dst],
                        "link_names": links,
                        "links": links,
                        "expected_gb_per_s": float(rate[flow]),
                    }
                )
        return {
            "topology": topology.name,
            "topology_sha256": topology.sha256,
            "topology_document": json.loads(topology_json(topology)),
            "part_count": len(self.parts),
            "round_names": [each.name for each in self.rounds],
            "fewest_rounds": self.fewest,
            "probes": probes,
            "undistinguished": [[names[part] for part in each] for each in self.undistinguished],
            "unseen": [names[part] for part in self.unseen],
        }


@checked
def design_probes(topology: Any) -> ProbeDesign:
    """Choose rounds of concurrent flows between ranks that distinguish all slow parts of a network.

    Args:
        topology: The network, or what :func:`coppice.load` takes.

    Raises:
        InputError: If it has fewer than two ranks.

    Examples:
        >>> found = design_probes("dgx-a100")
        >>> len(found.rounds), found.undistinguished, found.unseen
        (2, (), (24,))
        >>> found.parts.names[24]
        'nvswitch'
    """
    network = load(topology)
    require_ranks(network)
    parts = parts_of(network)
    capacity = network.capacity / network.denominator
    offered = list(candidates(network))
    if not offered:
        raise UnreachableError(
            f"no rank of {network.name} reaches another over switches, so nothing can be probed."
        )
    healthy = [rates(each, capacity) for each in offered]
    sights = [sight_of(parts, each, rate) for each, rate in zip(offered, healthy, strict=True)]
    prints = _prints(sights, offered, parts)
    least = _pairs(_classes(prints, range(len(prints))))
    chosen = _greedy(prints, least)
    fewest = 1
    while fewest < len(chosen):
        if comb(len(offered), fewest) > MOST_SETS:
            break
        sets = combinations(range(len(offered)), fewest)
        smaller = next((each for each in sets if _pairs(_classes(prints, each)) == least), None)
        if smaller is not None:
            chosen = list(smaller)
            break
        fewest += 1
    return _designed(network, parts, [offered[each] for each in chosen], fewest)


def design_of(topology: Topology, flows: Sequence[tuple[str, Sequence[tuple[int, int]]]]) -> ProbeDesign:
    """The design of given rounds: a name, and the sender and receiver of each flow; no fewer rounds are looked for."""
    require_ranks(topology)
    router = Router(topology)
    rounds = [routed(router, name, list(pairs)) for name, pairs in flows]
    return _designed(topology, parts_of(topology), rounds, 1)


def _designed(topology: Topology, parts: NetworkParts, rounds: Sequence[Round], fewest: int) -> ProbeDesign:
    """Rounds with what they tell apart."""
    capacity = topology.capacity / topology.denominator
    healthy = [rates(each, capacity) for each in rounds]
    sights = [sight_of(parts, each, rate) for each, rate in zip(rounds, healthy, strict=True)]
    prints = _told(sights, rounds, parts)
    none = prints == 0
    classes = np.unique(prints, return_inverse=True)[1].astype(np.int64)
    return ProbeDesign(
        topology=topology,
        parts=parts,
        rounds=tuple(rounds),
        healthy=tuple(healthy),
        sights=tuple(sights),
        undistinguished=tuple(_alike(classes, none)),
        unseen=tuple(np.flatnonzero(none).tolist()),
        fewest=fewest,
    )


def _prints(sights: Sequence[Sight], rounds: Sequence[Round], parts: NetworkParts) -> NDArray[np.uint64]:
    """Of each candidate a print of the flows that show each part, one of all flows of each class, and 0 for none.

    What all flows of a class lack is what software makes of such links, and tells no part. Two sets of flows have one
    print with a probability of 2^-64.
    """
    classes = [narrowest(each, parts.topology) for each in rounds]
    every = np.unique(np.concatenate(classes))
    found = np.zeros((len(sights), len(parts) + len(every) + 1), dtype=np.uint64)
    draw = np.random.default_rng(0)
    for row, sight, mine in zip(found, sights, classes, strict=True):
        number = draw.integers(1, 2**63, len(mine), dtype=np.uint64)
        tight = sight.headroom >= TIGHT
        np.add.at(row, sight.part[tight], number[sight.flow[tight]])
        np.add.at(row, len(parts) + np.searchsorted(every, mine), number)
    return found


def _told(sights: Sequence[Sight], rounds: Sequence[Round], parts: NetworkParts) -> NDArray[np.uint64]:
    """A print of the flows of all rounds that show each part, but for classes of flows that all do; 0 for none."""
    draw = np.random.default_rng(0)
    classes = [narrowest(each, parts.topology) for each in rounds]
    every = np.unique(np.concatenate(classes))
    seen = np.zeros((len(parts), len(every)), dtype=np.uint64)
    whole = np.zeros(len(every), dtype=np.uint64)
    for sight, mine in zip(sights, classes, strict=True):
        number = draw.integers(1, 2**63, len(mine), dtype=np.uint64)
        place = np.searchsorted(every, mine)
        tight = sight.headroom >= TIGHT
        flow = sight.flow[tight]
        np.add.at(seen, (sight.part[tight], place[flow]), number[flow])
        np.add.at(whole, place, number)
    found: NDArray[np.uint64] = np.where(seen == whole, 0, seen).sum(axis=1, dtype=np.uint64)
    return found


def _classes(prints: NDArray[np.uint64], chosen: Sequence[int]) -> NDArray[np.int64]:
    """Class of each part and of nothing: those that the chosen rounds do not tell apart are in one."""
    found = np.zeros(prints.shape[1], dtype=np.int64)
    for each in chosen:
        found = _finer(found, prints[each])
    return found


def _finer(classes: NDArray[np.int64], prints: NDArray[np.uint64]) -> NDArray[np.int64]:
    order = np.lexsort((prints, classes))
    new = (classes[order[1:]] != classes[order[:-1]]) | (prints[order[1:]] != prints[order[:-1]])
    finer = np.empty(len(classes), dtype=np.int64)
    finer[order] = np.concatenate([[0], np.cumsum(new)])
    return finer


def _pairs(classes: NDArray[np.int64]) -> int:
    """Pairs that are in one class."""
    size = np.bincount(classes)
    return int((size * (size - 1) // 2).sum())


def _greedy(prints: NDArray[np.uint64], least: int) -> list[int]:
    """Rounds that leave the least number of pairs alike, the one that leaves fewest first."""
    classes = np.zeros(prints.shape[1], dtype=np.int64)
    chosen: list[int] = []
    while _pairs(classes) > least:
        finer = [_finer(classes, row) for row in prints]
        best = min(range(len(prints)), key=lambda each: (_pairs(finer[each]), each))
        classes = finer[best]
        chosen.append(best)
    for each in chosen[::-1]:  # what later rounds made needless goes
        rest = [other for other in chosen if other != each]
        if rest and _pairs(_classes(prints, rest)) == least:
            chosen = rest
    return chosen


def _alike(classes: NDArray[np.int64], none: NDArray[np.bool_]) -> list[tuple[int, ...]]:
    """Sets of parts in one class, in order of their first; parts that are not seen at all are none."""
    order = np.argsort(classes, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(classes[order]) > 0))
    sets = np.split(order, starts[1:])
    return sorted(tuple(each.tolist()) for each in sets if len(each) > 1 and not none[each[0]])
