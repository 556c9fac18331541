"""Derive the rules of an NCCL tuner table from timings: algorithm and protocol by size range.

At every measured size the fastest counts. Where a baseline is known and the fastest gains less than three percent on it
(or less than twice the spread), there is no rule: fewer rules age better. A choice that wins at a single size and gains
less than ten percent on a neighbour's gives way to that neighbour. Ranges meet at the geometric mean of neighbouring
sizes, the first begins at 0 and the last has no end. Whatever may be missing on a machine (NVLS, CollNet, PAT, LL128)
is followed by the best ring or tree with LL or Simple for the same range.

Communicators that were not asked about get rules by equal bytes per rank. Where an all-gather or a reduce-scatter
changes its protocol depends on the bytes of one rank more than on the number of ranks, so that the rules of the largest
communicator serve others when their sizes are counted per rank. All-reduce, broadcast and reduce have no such rule.
Rules that were asked for come first, and the first one that holds counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.fitting.nccl_tuner.timings import COLLECTIVES, TunerTiming

NO_END = 2**64 - 1
"""Last size of a range without an end."""

WORTH = 0.03
LONE_WORTH = 0.10

Choice = tuple[str, str, int | None]
Shape = tuple[Collective, int, int]


@dataclass(frozen=True, kw_only=True)
class TunerRule:
    """A line of a tuner table."""

    collective: Collective  # What it is about
    first_bytes: int  # Least M, included
    last_bytes: int  # Largest M, included
    nodes: int | None  # Number of nodes, None is any
    ranks: int | None  # Number of ranks, None is any
    algorithm: str  # In the spelling of tuner tables
    protocol: str  # Likewise
    channels: int | None = None  # Number of channels, None leaves it to the library
    # Baseline time / time at the size in the middle of the range, None without a baseline
    gain: float | None = None
    fallback: bool = False  # It stands for machines that lack what the rule before it asks for
    # It holds for all nodes and ranks, with as many bytes per rank as its sizes have on its own
    any_shape: bool = False


def rules_of(
    timings: Sequence[TunerTiming],  # The times; several of one kind at one size count by their median
    *,
    algorithms: Sequence[str],  # Algorithms that the table may name
    # Sizes at which nothing is gained on the baseline get no rule; otherwise the fastest all the same
    keep_default: bool = True,
    # The last size of the range of a smaller size, from two neighbouring sizes
    boundary: Callable[[int, int], int] | None = None,
) -> tuple[TunerRule, ...]:
    """Rules for every shape with timings, sizes ascending."""
    shapes: dict[Shape, list[TunerTiming]] = {}
    for timing in timings:
        shapes.setdefault((timing.collective, timing.nodes, timing.ranks), []).append(timing)
    places = {collective: place for place, collective in enumerate(COLLECTIVES)}
    found: list[TunerRule] = []
    for shape in sorted(shapes, key=lambda each: (each[2], each[1], places[each[0]])):
        found += _shape_rules(
            shape, shapes[shape], algorithms, keep_default=keep_default, boundary=boundary or _geometric
        )
    return tuple(found)


def _geometric(size: int, following: int) -> int:
    """Geometric mean of two neighbouring sizes, rounded down.

    >>> _geometric(1024, 4096), _geometric(0, 8)
    (2048, 0)
    """
    return isqrt(size * following)


def _shape_rules(
    shape: Shape,
    timings: list[TunerTiming],
    algorithms: Sequence[str],
    *,
    keep_default: bool,
    boundary: Callable[[int, int], int],
) -> list[TunerRule]:
    collective, nodes, ranks = shape
    times = _medians(timings, algorithms)
    sizes = sorted(times)
    baselines = {size: _baseline(timings, size) for size in sizes}
    choices: list[Choice | None] = []
    for size in sizes:
        if not times[size]:
            raise InputError(
                f"expected a time of {' or '.join(algorithms)} for {collective} of {size} bytes on {nodes} nodes and "
                f"{ranks} ranks, found none: measure one."
            )
        best = min(times[size], key=lambda choice: times[size][choice][0])
        choices.append(best if not keep_default or _worth(times[size][best], baselines[size]) else None)
    _settle(choices, sizes, times, baselines)
    found: list[TunerRule] = []
    start = 0
    for end in range(len(sizes)):
        if end + 1 < len(sizes) and choices[end + 1] == choices[end]:
            continue
        choice = choices[end]
        if choice is not None:
            middle = sizes[(start + end) // 2]
            base, time = baselines[middle], times[middle].get(choice)
            rule = TunerRule(
                collective=collective,
                first_bytes=boundary(sizes[start - 1], sizes[start]) + 1 if start else 0,
                last_bytes=boundary(sizes[end], sizes[end + 1]) if end + 1 < len(sizes) else NO_END,
                nodes=nodes,
                ranks=ranks,
                algorithm=choice[0],
                protocol=choice[1],
                channels=choice[2],
                gain=None if base is None or time is None else base[0] / time[0],
            )
            found += _with_fallback(rule, times[middle])
        start = end + 1
    return found


def _medians(
    timings: list[TunerTiming], algorithms: Sequence[str]
) -> dict[int, dict[Choice, tuple[float, float]]]:
    """Median time and largest spread of each choice by size."""
    kept: dict[int, dict[Choice, list[TunerTiming]]] = {timing.size_bytes: {} for timing in timings}
    for timing in timings:
        if timing.algorithm in algorithms and timing.algorithm is not None and timing.protocol is not None:
            choice = (timing.algorithm, timing.protocol, timing.channels)
            kept[timing.size_bytes].setdefault(choice, []).append(timing)
    return {size: {choice: _median(rows) for choice, rows in by.items()} for size, by in kept.items()}


def _median(rows: list[TunerTiming]) -> tuple[float, float]:
    times = sorted(row.time_us for row in rows)
    return times[(len(times) - 1) // 2], max(row.spread for row in rows)


def _baseline(timings: list[TunerTiming], size: int) -> tuple[float, float] | None:
    rows = [row for row in timings if row.size_bytes == size and row.algorithm is None]
    return _median(rows) if rows else None


def _worth(time: tuple[float, float], base: tuple[float, float] | None) -> bool:
    if base is None:
        return True
    return 1 - time[0] / base[0] >= max(WORTH, 2 * max(time[1], base[1]))


def _settle(
    choices: list[Choice | None],
    sizes: list[int],
    times: Mapping[int, Mapping[Choice, tuple[float, float]]],
    baselines: Mapping[int, tuple[float, float] | None],
) -> None:
    """A choice of a single size in the middle gives way to a neighbour that is nearly as fast there."""
    for at in range(1, len(sizes) - 1):
        if choices[at] in (choices[at - 1], choices[at + 1]):
            continue

        def time(choice: Choice | None, size: int = sizes[at]) -> float:
            found = baselines[size] if choice is None else times[size].get(choice)
            return float("inf") if found is None else found[0]

        near = min((choices[at - 1], choices[at + 1]), key=time)
        if time(near) <= time(choices[at]) * (1 + LONE_WORTH):
            choices[at] = near


def _with_fallback(rule: TunerRule, times: Mapping[Choice, tuple[float, float]]) -> list[TunerRule]:
    if rule.algorithm in ("ring", "tree") and rule.protocol != "ll128":
        return [rule]
    always = [c for c in times if c[0] in ("ring", "tree") and c[1] in ("ll", "simple")]
    best = min(always, key=lambda choice: times[choice][0], default=("ring", "simple", None))
    return [
        rule,
        replace(rule, algorithm=best[0], protocol=best[1], channels=best[2], gain=None, fallback=True),
    ]


_SHAPE = re.compile(r"([0-9]{1,6})x([0-9]{1,7})")
_ANY = "any"
_PER_RANK = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


def further_rules(
    rules: Sequence[TunerRule], shapes: Sequence[str], *, any_allowed: bool
) -> tuple[TunerRule, ...]:
    """Extrapolate rules to further shapes from the largest communicator.

    Args:
        rules: Rules of a table, for exact shapes.
        shapes: ``NODESxRANKS`` such as ``4x32`` (32 ranks in all), or ``any``.
        any_allowed: The dialect counts bytes per rank, and has a word for any shape.

    Examples:
        >>> rule = TunerRule(collective=Collective.ALL_GATHER, first_bytes=0, last_bytes=1599, nodes=2, ranks=16,
        ...             algorithm="ring", protocol="ll")
        >>> made, = further_rules([rule], ["4x32"], any_allowed=False)
        >>> made.last_bytes, made.nodes, made.ranks
        (3199, 4, 32)
    """
    if not shapes:
        return ()
    known = {(rule.nodes, rule.ranks) for rule in rules}
    largest = max(known, key=lambda shape: (shape[1] or 0, shape[0] or 0))
    base = [rule for rule in rules if (rule.nodes, rule.ranks) == largest and rule.collective in _PER_RANK]
    if not base:
        raise InputError(
            "no rule of all_gather or reduce_scatter is there to derive others from: leave out shapes."
        )
    found: list[TunerRule] = []
    for shape in dict.fromkeys(shapes):
        if shape == _ANY:
            if not any_allowed:
                raise InputError(
                    "a table for any shape needs sizes per rank, as only ncclx has them: list shapes such as 4x32."
                )
            found += [replace(rule, nodes=None, any_shape=True, gain=None) for rule in base]
            continue
        match = _SHAPE.fullmatch(shape)
        if match is None or not 1 <= int(match[1]) <= int(match[2]) or int(match[2]) < 2:
            raise InputError(
                f"expected shapes as NODESxRANKS such as 4x32 (32 ranks in all) or any, found {shape!r}."
            )
        nodes, ranks = int(match[1]), int(match[2])
        if (nodes, ranks) not in known:
            found += [_scaled(rule, nodes, ranks) for rule in base]
    return tuple(found)


def _scaled(rule: TunerRule, nodes: int, ranks: int) -> TunerRule:
    """The rule with as many bytes per rank; neighbours still meet without gap or overlap."""
    own = rule.ranks or 1
    last = NO_END if rule.last_bytes == NO_END else -(-(rule.last_bytes + 1) * ranks // own) - 1
    return replace(
        rule,
        first_bytes=-(-rule.first_bytes * ranks // own),
        last_bytes=min(last, NO_END),
        nodes=nodes,
        ranks=ranks,
        gain=None,
    )
