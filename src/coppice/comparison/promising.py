"""The algorithms of the catalogue in the order in which they are worth a trial on many ranks.

One schedule of a thousand ranks has millions of transfers, so that few can be looked at. Each algorithm is simulated on
2, 4 and 8 boxes of the network instead, and what it takes on all of them is extrapolated: a doubling of the boxes adds
as much as the one before it where steps grow with their logarithm, and twice as much where they grow with their number.
The order decides what is looked at first, and what is expected to take far longer than what there is already, or to
have more transfers than the effort allows, is not made: what is seen on few boxes proves nothing about many, so plans
name those algorithms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log2

import numpy as np

from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.comparison.measurement import AlgorithmVariant, Bodies
from coppice.comparison.sizes.candidates import num_rows
from coppice.errors import InputError
from coppice.simulation.models import Model
from coppice.simulation.simulator import fastest
from coppice.topology.operations import subset

MANY_RANKS = 128
"""Up to so many ranks all algorithms are looked at in the order of the catalogue."""

_FEW_BOXES = (2, 4, 8)
_DOUBLED = (1, 16)
"""Values of a parameter that is doubled that are looked at on few boxes."""
_PIECES = 8
"""Pieces that every chunk is cut into at most on few boxes."""
_FAR = 1.5
"""What is expected to take so many times as long as what there is already is not looked at on all boxes."""
_MOST_GROWTH = 4
"""Transfers of algorithms in which each rank has something for every other one quadruple with the boxes."""
_NEAR = 2
"""What takes so many times the best so far on few boxes is not looked at closely."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What an algorithm is expected to take on all boxes."""

    time_us: Mapping[int, float] = field(
        default_factory=dict
    )  # At each size; infinite where it does not apply
    transfers: float = 0.0  # Rows of its schedule; 0 where nothing is known


def most_promising_first(
    problem: Problem, variants: Sequence[AlgorithmVariant], model: Model, sizes: Sequence[int]
) -> list[tuple[AlgorithmVariant, Expected]]:
    """Algorithms by the least share by which they are expected to lose at any of the sizes, with what is expected.

    On few ranks nothing is expected, and they come in the order that is given.

    Examples:
        >>> from coppice.comparison.measurement import candidates
        >>> from coppice.simulation.models import model_of
        >>> from coppice.topology.presets import preset
        >>> problem = Problem(preset("dgx-h100", boxes=32), "all_reduce")
        >>> found = candidates(problem, ["ring", "two-level", "recursive-doubling"], order="topology")
        >>> model = model_of("nccl-2.30")
        >>> first = {size: most_promising_first(problem, found, model, [size])[0] for size in (1024, 2**20)}
        >>> [variant.parameters for variant, _ in first.values()]
        [{'inside': 'at-once', 'between': 'whole'}, {'inside': 'at-once', 'between': 'at-once'}]

        A ring of 256 ranks has 2 x 255 x 256 transfers, 130,560:

        >>> likely = most_promising_first(problem, found, model, [1024])
        >>> rows = {variant.algorithm: expected.transfers for variant, expected in likely}
        >>> round(rows["ring"] / 1000)
        130
    """
    boxes = _boxes(problem)
    few = [count for count in _FEW_BOXES if count < len(boxes)]
    if problem.topology.num_ranks <= MANY_RANKS or len(few) < len(_FEW_BOXES):
        return [(each, Expected()) for each in variants]
    parts = [_part(problem, [rank for box in boxes[:count] for rank in box]) for count in few]
    plain = [bound_of(part) for part in parts]
    doublings = log2(len(boxes) / few[-1])
    expected: list[Expected] = []
    best = {size: [inf] * len(few) for size in sizes}
    for variant in variants:
        bodies = [Bodies(part, variant, each) for part, each in zip(parts, plain, strict=True)]
        found: dict[int, float] = {}
        for size, best_us in best.items():
            times_us = [
                _time_us(each, size, model, _NEAR * near_us)
                for each, near_us in zip(bodies, best_us, strict=True)
            ]
            best_us[:] = map(min, best_us, times_us)
            found[size] = extrapolated(times_us, doublings)
        rows = extrapolated([_transfers(each) for each in bodies], doublings, most_growth=_MOST_GROWTH)
        expected.append(Expected(time_us=found, transfers=rows if rows < inf else 0.0))
    least = {size: min(each.time_us[size] for each in expected) for size in sizes}

    def loss(number: int) -> float:
        times_us = expected[number].time_us
        return min(times_us[size] / least[size] if least[size] < inf else inf for size in sizes)

    return [(variants[number], expected[number]) for number in sorted(range(len(variants)), key=loss)]


def is_far(expected: Expected, best: Mapping[int, float]) -> bool:
    """Whether a variant is expected to take far longer than the best so far, at every size.

    One of which nothing is expected, as it does not apply to few boxes, is not.

    >>> [is_far(Expected(time_us=each), {1024: 20.0}) for each in ({1024: 40.0}, {1024: 22.0}, {})]
    [True, False, False]
    """
    known = [time_us / best[size] for size, time_us in expected.time_us.items() if time_us < inf]
    return bool(known) and min(known) > _FAR


def extrapolated(times_us: Sequence[float], doublings: float, *, most_growth: float = 2.0) -> float:
    """What an algorithm can be expected to take after further doublings of the boxes.

    Args:
        times_us: What it takes after each of three doublings; infinite where it does not apply.
        most_growth: Factor by which what a doubling adds grows at most with each of them.

    Examples:
        >>> extrapolated([10, 12, 14], 3), extrapolated([10, 12, 16], 3), extrapolated([10, inf, 14], 3)
        (20, 72.0, 20.0)
    """
    first, middle, last = times_us
    if last == inf:
        return inf
    if middle == inf:
        middle = (first + last) / 2 if first < inf else last
    if first == inf:
        first = 2 * middle - last
    gain = max(0.0, last - middle)
    before = middle - first
    growth = min(most_growth, max(1.0, gain / before)) if before > 0 else 1.0
    return last + gain * (doublings if growth == 1 else growth * (growth**doublings - 1) / (growth - 1))


def _time_us(bodies: Bodies, size_bytes: int, model: Model, near_us: float) -> float:
    """Least time with the values of the doubled parameter that are looked at; infinite where it does not apply.

    What takes longer than ``near_us`` in few pieces is not looked at closely.
    """
    best_us = inf
    for value in _DOUBLED[: 1 + (bodies.candidate.doubled is not None)]:
        try:
            body = bodies.body(value)
        except InputError:
            continue
        found = fastest(body, size_bytes, model=model, keep_hops=False, most=_PIECES, below_us=near_us)
        best_us = min(best_us, found.time_us)
    return best_us


def _transfers(bodies: Bodies) -> float:
    """Rows of the schedule with the least value of the doubled parameter; infinite where it does not apply."""
    try:
        return float(num_rows(bodies.body(1)))
    except InputError:
        return inf


def _boxes(problem: Problem) -> list[list[int]]:
    """Ranks of each box, that of the root first; none where some are in no box."""
    topology = problem.topology
    host = topology.host[topology.rank_nodes]
    if not len(host) or int(host.min()) < 0:
        return []
    found = [np.flatnonzero(host == each).tolist() for each in np.unique(host)]
    return sorted(found, key=lambda ranks: (problem.root or 0) not in ranks)


def _part(problem: Problem, ranks: Sequence[int]) -> Problem:
    """The same problem among some of the ranks, the root among them."""
    root = None if problem.root is None else ranks.index(problem.root)
    return replace(problem, topology=subset(problem.topology, ranks), root=root, weights=None, demands=None)
