"""Which part of a network is slow, by measured rates of flows: a posterior over none, one and two slow parts.

The logarithm of a measured rate over the expected one is a factor of its class of flows (what software makes of such
links: the median), the slowdown by the slow parts that the flow passes, and noise: Student's t with eight degrees of
freedom, whose scale is the spread of the flows of the class, drawn towards that of all flows where the class has few.
Links that are slower are shared fairly among their flows; the share of its rate that a part keeps is unknown, and every
share is as likely.
Nine of ten networks are thought healthy, each part is as likely to be slow as any other, and two slow parts are as rare
as two independent ones. Nothing is compared with a threshold: the most probable explanation is told, with its
probability.

Only flows that a part is seen by enter its likelihood, so a part of thousands costs no more than one of a few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coppice.diagnosis.design import ProbeDesign
from coppice.diagnosis.fitted import LEAST_SPREAD, Entries, fitted, log_noise
from coppice.diagnosis.probes import GPU, HOST, narrowest
from coppice.display import Brief
from coppice.errors import InputError

if TYPE_CHECKING:
    from coppice.outputs.shapes.networks import DiagnosedJson

LEAST_RATE = 0.01
"""Share of its expected rate that a flow has of which nothing arrived."""

SHARES = np.linspace(0.02, 0.98, 33)
"""Shares of its rate that a slow part may keep."""

FIRST = 8
"""NetworkParts that are the first of two."""

HEALTHY = 0.9
"""Share of networks that are healthy, before anything is measured."""

FEW_FLOWS = 160
"""Flows up to which every explanation has factors and noise of its own."""

SECOND = 256
"""NetworkParts that may be the second of two: those that are likeliest alone."""

SHOWN = 10
"""Flows of the evidence that are listed."""


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """A slow part."""

    kind: str  # link, GPU, NIC, switch or host
    name: str
    share: float  # Share of its rate that is left


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A flow that passes a slow part."""

    ranks: tuple[int, int]
    measured_gb_per_s: float
    expected_gb_per_s: float  # With nothing slow, at the factor of its class


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Diagnosed(Brief):
    """The most probable explanation of measured rates, and others."""

    design: ProbeDesign
    culprits: tuple[Culprit, ...]  # None, one or two slow parts
    confidence: float  # Probability of that
    healthy: float  # Probability that nothing is slow
    others: tuple[tuple[str, float], ...]  # Other parts that may be the slow one, with their probabilities
    spread: float  # Scale of the noise of a flow, as a share of its rate
    evidence: tuple[Evidence, ...]  # Flows that pass the slow parts, the slowest first
    seen: int  # Flows that pass them
    cut: tuple[str, ...]  # Links that the slow parts are made of

    def __repr__(self) -> str:
        found = " and ".join(f"{each.kind} {each.name}" for each in self.culprits) or "nothing"
        return f"<{found} is slow, with a probability of {100 * self.confidence:.1f}%>"

    def record(self) -> DiagnosedJson:
        """As JSON values."""
        return {
            "topology": self.design.topology.name,
            "culprits": [
                {"kind": each.kind, "name": each.name, "kept_share": each.share} for each in self.culprits
            ],
            "confidence": self.confidence,
            "healthy_probability": self.healthy,
            "others": [{"name": name, "probability": share} for name, share in self.others],
            "noise_share": self.spread,
            "flows_seen": self.seen,
            "evidence_flows": [
                {
                    "rank_pair": list(each.ranks),
                    "measured_gb_per_s": each.measured_gb_per_s,
                    "expected_gb_per_s": each.expected_gb_per_s,
                }
                for each in self.evidence
            ],
            "cut_links": list(self.cut),
        }


class _Hops:
    """How much slower flows are where a link of their route is: each link is shared in max-min fairness.

    Flows of rates ``r`` on a link of capacity ``C`` that is slowed to ``s C`` keep ``min(r, x)``, where all together
    are ``s C``. In ascending order of rates, ``x`` is the largest of ``(s C - r_1 - .. - r_k) / (n - k)``.
    """

    def __init__(self, design: ProbeDesign) -> None:
        topology = design.topology
        capacity = topology.capacity / topology.denominator
        link = np.concatenate([each.links + k * len(capacity) for k, each in enumerate(design.rounds)])
        self.rate = np.concatenate(
            [h[each.flow] for h, each in zip(design.healthy, design.rounds, strict=True)]
        )
        self.order = np.lexsort((self.rate, link))
        ordered, rate = link[self.order], self.rate[self.order]
        self.start = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        count = np.diff(np.append(self.start, len(ordered)))
        before = np.cumsum(rate) - rate
        self.below = before - np.repeat(before[self.start], count)
        self.left = np.repeat(count, count) - (np.arange(len(rate)) - np.repeat(self.start, count))
        self.capacity = capacity[ordered % len(capacity)]
        self.count = count

    def slowed(self, share: float) -> NDArray[np.float64]:
        """Logarithm of what each flow keeps of its rate where its link keeps a share; the last is of ends of flows."""
        level = np.maximum.reduceat((share * self.capacity - self.below) / self.left, self.start)
        kept = np.ones(len(self.rate) + 1)
        kept[self.order] = np.minimum(1.0, np.repeat(level, self.count) / self.rate[self.order])
        kept[-1] = share
        found: NDArray[np.float64] = np.log(np.maximum(kept, LEAST_RATE))
        return found


def infer(design: ProbeDesign, measured: Sequence[NDArray[np.float64]]) -> Diagnosed:
    """Infer what is slow from the rates of all flows.

    Args:
        design: The probes.
        measured: For each round the rate of each of its flows in GB/s; NaN where a flow was not measured.

    Raises:
        InputError: If rates do not belong to the probes, or none is above 0.

    Examples:
        >>> from coppice.diagnosis.design import design_probes
        >>> from coppice.diagnosis.simulated import measure
        >>> design = design_probes("dgx-a100")
        >>> infer(design, measure(design, {"gpu3 -> nvswitch": 0.5}, spread=0.02, seed=1)).culprits[0].name
        'gpu3 -> nvswitch'
        >>> infer(design, measure(design, {}, spread=0.02, seed=1)).culprits
        ()
    """
    if [len(each) for each in measured] != [len(each.src) for each in design.rounds]:
        raise InputError(
            "expected a rate for every flow of the probes, found others: measure the same design."
        )
    rate, expected = np.concatenate(measured), np.concatenate(design.healthy)
    known = np.isfinite(rate)
    if not (rate[known] > 0).any():
        raise InputError("expected measured rates above 0, found none: run the probes first.")
    y = np.zeros(len(rate))
    y[known] = np.log(np.maximum(rate[known] / expected[known], LEAST_RATE))
    classes = np.concatenate([narrowest(each, design.topology) for each in design.rounds])
    whole = y.copy()
    factor = _factors(y, classes, known)
    y -= factor
    spread = _spreads(y, classes, known)
    entries, hops = _entries(design, known), _Hops(design)
    parts = len(design.parts)
    prior = np.log1p(-HEALTHY) - np.log(parts)
    if len(y) <= FEW_FLOWS:
        uneven = [part for part, kind in enumerate(design.parts.kinds) if kind in (GPU, HOST)]
        found = fitted(
            whole, classes, known, entries, hops.slowed, parts, unseen=design.unseen, uneven=uneven
        )
        healthy, single, share, doubles = found.healthy, found.single, found.share, list(found.doubles)
    else:
        healthy = 0.0
        single, share, doubles = _at_once(y, spread, entries, hops, parts)
    single = single + prior
    doubles = [(each[0] + 2 * prior, *each[1:]) for each in doubles]
    doubles = _once(doubles)
    every = np.concatenate([[healthy + np.log(HEALTHY)], single, [each[0] for each in doubles]])
    every -= every.max()
    probability = np.exp(every) / np.exp(every).sum()
    best = int(np.argmax(probability))
    chosen: list[tuple[int, float]] = []
    if 0 < best <= parts:
        chosen = [(best - 1, float(share[best - 1]))]
    elif best > parts:
        _, first, second, one, two = doubles[best - parts - 1]
        chosen = [(first, one), (second, two)]
    rest = [int(each) for each in np.argsort(-probability)[:4] if each != best and 0 < each <= parts]
    names, kinds = design.parts.names, design.parts.kinds
    seen = np.unique(entries.flow[np.isin(entries.part, [part for part, _ in chosen])])
    ends = np.concatenate([np.stack([each.src, each.dst], axis=1) for each in design.rounds])
    shown = seen[np.argsort(y[seen])][:SHOWN]
    start = design.parts.first
    cut = dict.fromkeys(
        names[link]
        for part, _ in chosen
        for link in design.parts.links[start[part] : start[part + 1]].tolist()
    )
    return Diagnosed(
        design=design,
        culprits=tuple(Culprit(kind=kinds[part], name=names[part], share=left) for part, left in chosen),
        confidence=float(probability[best]),
        healthy=float(probability[0]),
        others=tuple(
            (names[each - 1], float(probability[each])) for each in rest if probability[each] > 1e-6
        ),
        spread=float(np.median(spread[known])),
        evidence=tuple(
            Evidence(
                ranks=(int(ends[flow, 0]), int(ends[flow, 1])),
                measured_gb_per_s=float(rate[flow]),
                expected_gb_per_s=float(expected[flow] * np.exp(factor[flow])),
            )
            for flow in shown.tolist()
        ),
        seen=len(seen),
        cut=tuple(cut),
    )


def _at_once(
    y: NDArray[np.float64],
    spread: NDArray[np.float64],
    entries: Entries,
    hops: _Hops,
    parts: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], list[tuple[float, int, int, float, float]]]:
    """Logarithm of how much likelier rates are with each part slow, its share, and the same of pairs.

    A part of many is passed by few flows of a class: factors and noise are those of all flows.
    """
    tables = [hops.slowed(each) for each in SHARES.tolist()]
    base = log_noise(y, spread)
    single, share = _evidence(entries, tables, y, base, spread, parts)
    likely = np.zeros(parts, dtype=np.bool_)
    likely[np.argsort(-single)[:SECOND]] = True
    few = entries.of(likely[entries.part])
    slowed = np.zeros(len(y))
    doubles: list[tuple[float, int, int, float, float]] = []
    for first in np.argsort(-single)[:FIRST].tolist():
        slowed[:] = 0.0
        own = entries.part == first
        slowed[entries.flow[own]] = hops.slowed(float(share[first]))[entries.hop[own]]
        noise = log_noise(y - slowed, spread)
        again, other = _evidence(few, tables, y, noise, spread, parts, slowed=slowed)
        again[first] = again[~likely] = -np.inf
        again += single[first]
        doubles += [
            (float(again[second]), first, second, float(share[first]), float(other[second]))
            for second in np.argsort(-again)[: min(FIRST, int(likely.sum()) - 1)].tolist()
        ]
    return single, share, doubles


def _factors(
    y: NDArray[np.float64], classes: NDArray[np.int64], known: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """What software makes of the flows of each class: their median, or that of all flows where it has few."""
    found = np.full(len(y), np.median(y[known]))
    for each in np.unique(classes):
        mine = classes == each
        if (mine & known).sum() >= FIRST:
            found[mine] = np.median(y[mine & known])
    return found


def _spreads(
    y: NDArray[np.float64], classes: NDArray[np.int64], known: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Scale of the noise of each flow: the median deviation in its class, with that of all as of eight flows more."""
    whole = 1.4826 * float(np.median(np.abs(y[known])))
    found = np.full(len(y), whole)
    for each in np.unique(classes):
        mine = (classes == each) & known
        if mine.any():
            own = 1.4826 * float(np.median(np.abs(y[mine])))
            found[classes == each] = np.sqrt((mine.sum() * own**2 + FIRST * whole**2) / (mine.sum() + FIRST))
    scale: NDArray[np.float64] = np.maximum(found, LEAST_SPREAD)
    return scale


def _entries(design: ProbeDesign, known: NDArray[np.bool_]) -> Entries:
    """All entries of all rounds, flows numbered on."""
    start = np.cumsum([0, *(len(each.src) for each in design.rounds)])
    part = np.concatenate([each.part for each in design.sights])
    flow = np.concatenate([each.flow + at for each, at in zip(design.sights, start, strict=False)])
    first = np.cumsum([0, *(len(each.links) for each in design.rounds)])
    hop = np.concatenate(
        [np.where(each.hop < 0, -1, each.hop + at) for each, at in zip(design.sights, first, strict=False)]
    )
    order = np.argsort(part, kind="stable")
    order = order[known[flow[order]]]
    return Entries(part[order], flow[order], hop[order])


def _evidence(
    entries: Entries,
    tables: Sequence[NDArray[np.float64]],
    y: NDArray[np.float64],
    base: NDArray[np.float64],
    spread: NDArray[np.float64],
    parts: int,
    slowed: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Logarithm of how much likelier the rates are with each part slow, and its most likely share.

    Args:
        tables: Logarithm of what each hop leaves of a flow, for each of the shares.
        base: Logarithm of the density of each flow without it.
        slowed: What slows flows already, as logarithms.
    """
    table = np.zeros((len(SHARES), parts))
    at, own = y[entries.flow], spread[entries.flow]
    before = base[entries.flow]
    already = 0.0 if slowed is None else slowed[entries.flow]
    for row, kept in zip(table, tables, strict=True):
        mean = np.minimum(already, kept[entries.hop])
        row += np.bincount(entries.part, weights=log_noise(at - mean, own) - before, minlength=parts)
    top = table.max(axis=0)
    total = top + np.log(np.exp(table - top).mean(axis=0))
    unseen = np.bincount(entries.part, minlength=parts) == 0
    total[unseen] = 0.0
    return total, SHARES[np.argmax(table, axis=0)]


def _once(
    doubles: Sequence[tuple[float, int, int, float, float]],
) -> list[tuple[float, int, int, float, float]]:
    """Each pair of parts once, at its best."""
    found: Mapping[frozenset[int], tuple[float, int, int, float, float]] = {
        frozenset(each[1:3]): each for each in sorted(doubles)
    }
    return sorted(found.values(), reverse=True)
