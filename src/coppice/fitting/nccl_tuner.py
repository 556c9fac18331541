"""Timings of NCCL algorithms and the tuner-table rules derived from them: algorithm and protocol by size range.

Timings of NCCL and RCCL algorithms and protocols: predicted by the cost model, or measured. A table is CSV with a
header line and the columns ``collective,nodes,ranks,size_bytes,algorithm,protocol,time_us``, and optionally
``channels`` (empty or 0: the library's default) and ``spread`` (relative, such as 0.02). Sizes are the size column of
nccl-tests. Rows with the algorithm ``default`` are what the library does without a table.

Derive the rules of an NCCL tuner table from timings: algorithm and protocol by size range. At every measured size the
fastest counts. Where a baseline is known and the fastest gains less than three percent on it (or less than twice the
spread), there is no rule: fewer rules age better. A choice that wins at a single size and gains less than ten percent
on a neighbour's gives way to that neighbour. Ranges meet at the geometric mean of neighbouring sizes, the first begins
at 0 and the last has no end. Whatever may be missing on a machine (NVLS, CollNet, PAT, LL128) is followed by the best
ring or tree with LL or Simple for the same range.

Communicators that were not asked about get rules by equal bytes per rank. Where an all-gather or a reduce-scatter
changes its protocol depends on the bytes of one rank more than on the number of ranks, so that the rules of the largest
communicator serve others when their sizes are counted per rank. All-reduce, broadcast and reduce have no such rule.
Rules that were asked for come first, and the first one that holds counts.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.files import file_name, read_text
from coppice.selection.nccl.costs import cells
from coppice.selection.nccl.selecting import inputs_of
from coppice.selection.selection import SelectionRequest, box_sizes
from coppice.topology.model import Topology

COLLECTIVES = {
    Collective.BROADCAST: "broadcast",
    Collective.REDUCE: "reduce",
    Collective.ALL_GATHER: "allgather",
    Collective.REDUCE_SCATTER: "reducescatter",
    Collective.ALL_REDUCE: "allreduce",
}
"""Collectives that a tuner is asked about, in the spelling of its tables."""

ALGORITHMS = {
    "Tree": "tree",
    "Ring": "ring",
    "CollNetDirect": "collnet_direct",
    "CollNetChain": "collnet_chain",
    "NVLS": "nvls",
    "NVLSTree": "nvls_tree",
    "PAT": "pat",
}
PROTOCOLS = ("ll", "ll128", "simple")
MOST_CHANNELS = 127
"""NCCL keeps the number of channels in a signed byte."""

_COLUMNS = ("collective", "nodes", "ranks", "size_bytes", "algorithm", "protocol", "time_us")
_OPTIONAL = ("channels", "spread")
_DEFAULT = "default"
_ONLY_SIMPLE = ("collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")


@dataclass(frozen=True, kw_only=True)
class TunerTiming:
    """Time of one algorithm and protocol at one size."""

    collective: Collective  # What was run
    nodes: int  # Domains of NVLink (hosts, where there are none larger) that the communicator spans
    ranks: int  # Its ranks
    size_bytes: int  # M (see :mod:`coppice.collectives`)
    algorithm: str | None  # In the spelling of tuner tables; None is what the library does by itself
    protocol: str | None  # Likewise
    channels: int | None = None  # Number of channels, None is the library's default
    time_us: float  # Time of the call
    spread: float = 0.0  # Relative spread of repeated measurements


def impossible(collective: Collective, algorithm: str, protocol: str) -> str | None:
    """Why no library supports this combination, or None.

    Examples:
        >>> impossible(Collective.BROADCAST, "tree", "ll")
        'broadcast runs as ring only'
        >>> impossible(Collective.ALL_REDUCE, "nvls", "simple")
    """
    if algorithm in _ONLY_SIMPLE and protocol != "simple":
        return f"{algorithm} has the protocol simple only"
    if collective in (Collective.BROADCAST, Collective.REDUCE) and algorithm != "ring":
        return f"{collective} runs as ring only"
    if collective is Collective.ALL_REDUCE and algorithm == "pat":
        return "pat performs all_gather and reduce_scatter only"
    gathers = collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
    if gathers and algorithm in ("tree", "collnet_chain", "nvls_tree"):
        return f"{algorithm} performs all_reduce only"
    return None


def model_timings(
    topology: Topology,
    sizes: Sequence[int],  # Sizes M in bytes
    *,
    collectives: Sequence[Collective] = tuple(COLLECTIVES),
    # Inputs of the model (see :data:`coppice.selection.nccl.selecting.SETTINGS`)
    settings: Mapping[str, str] | None = None,
) -> tuple[tuple[TunerTiming, ...], tuple[str, ...]]:
    """Predicted times for a communicator of all ranks, with the assumptions made.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> found, _ = model_timings(preset("dgx-h100"), [1024], collectives=[Collective.BROADCAST])
        >>> [(each.algorithm, each.protocol) for each in found]
        [('ring', 'll'), ('ring', 'll128'), ('ring', 'simple')]
    """
    if topology.num_ranks < 2:
        raise InputError(
            f"expected 2 ranks or more, found {topology.num_ranks}: nothing is to be tuned for one."
        )
    boxes = box_sizes(topology)
    found: list[TunerTiming] = []
    assumptions: dict[str, None] = {}
    for collective in collectives:
        for size_bytes in sizes:
            request = SelectionRequest(
                collective=collective,
                ranks=topology.num_ranks,
                size_bytes=size_bytes,
                ranks_per_box=None if boxes is None else max(boxes),
                even=boxes is None or len(set(boxes)) == 1,
                boxes=1 if boxes is None else len(boxes),
            )
            inputs = inputs_of(request, topology, settings or {})
            assumptions.update(dict.fromkeys(inputs.assumptions))
            found += [
                TunerTiming(
                    collective=collective,
                    nodes=inputs.communicator.nodes,
                    ranks=topology.num_ranks,
                    size_bytes=size_bytes,
                    algorithm=ALGORITHMS[cell.algorithm],
                    protocol=cell.protocol.lower(),
                    time_us=cell.time_us,
                )
                for cell in cells(inputs.communicator, collective, size_bytes)
                if cell.time_us is not None
            ]
    return tuple(found), tuple(assumptions)


def read_timings(path: str | os.PathLike[str]) -> tuple[TunerTiming, ...]:
    """Read measured times from a table."""
    file = file_name(path)
    text = read_text(path, what="the times", hint="give a CSV file")
    rows = [
        (number, row)
        for number, row in enumerate(csv.reader(text.splitlines()), start=1)
        if row and not row[0].startswith("#")
    ]
    if not rows:
        raise InputError(
            f"{file} holds no times: expected a header line {','.join(_COLUMNS)}, then one time in each line."
        )
    first, names = rows[0][0], [name.strip() for name in rows[0][1]]
    if len(set(names)) != len(names) or set(_COLUMNS) - set(names) or set(names) - {*_COLUMNS, *_OPTIONAL}:
        wanted = f"{','.join(_COLUMNS)}[,channels][,spread]"
        raise InputError(f"expected the columns {wanted} at {file}:{first}, found {','.join(names)}.")
    found = []
    for number, row in rows[1:]:
        if len(row) != len(names):
            raise InputError(f"expected {len(names)} fields at {file}:{number}, found {len(row)}.")
        found.append(_timing(dict(zip(names, (f.strip() for f in row), strict=True)), f"{file}:{number}"))
    if not found:
        raise InputError(f"{file} has a header and no times: add one in each line.")
    return tuple(found)


def _timing(row: Mapping[str, str], where: str) -> TunerTiming:
    collective = next(
        (
            key
            for key, name in COLLECTIVES.items()
            if name == row["collective"].lower().replace("_", "").replace("-", "")
        ),
        None,
    )
    if collective is None:
        known = ", ".join(COLLECTIVES.values())
        raise InputError(
            f"expected a collective that is one of {known} at {where}, found {row['collective']!r}."
        )
    algorithm, protocol = row["algorithm"].lower(), row["protocol"].lower()
    own = algorithm == _DEFAULT
    if not own and (algorithm not in ALGORITHMS.values() or protocol not in PROTOCOLS):
        raise InputError(
            f"expected an algorithm ({', '.join(ALGORITHMS.values())} or {_DEFAULT}) and a protocol "
            f"({', '.join(PROTOCOLS)}) at {where}, found {row['algorithm']!r} and {row['protocol']!r}."
        )
    reason = None if own else impossible(collective, algorithm, protocol)
    if reason is not None:
        raise InputError(f"{where} has a combination that no library runs: {reason}; remove the line.")
    nodes = _integer(row["nodes"], "nodes", where, low=1)
    ranks = _integer(row["ranks"], "ranks", where, low=2)
    if ranks < nodes:
        raise InputError(
            f"expected as many ranks as nodes or more at {where}, found {ranks} ranks on {nodes} nodes."
        )
    channels = _integer(row.get("channels") or "0", "channels", where, low=0, high=MOST_CHANNELS)
    return TunerTiming(
        collective=collective,
        nodes=nodes,
        ranks=ranks,
        size_bytes=_integer(row["size_bytes"], "size_bytes", where, low=0),
        algorithm=None if own else algorithm,
        protocol=None if own else protocol,
        channels=channels or None,
        time_us=_number(row["time_us"], "time_us", where, least=1e-9),
        spread=_number(row.get("spread") or "0", "spread", where),
    )


def _integer(text: str, name: str, where: str, *, low: int, high: int = 2**62) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high:
        return int(text)
    raise InputError(f"expected {name} as an integer {low} .. {high} at {where}, found {text[:40]!r}.")


def _number(text: str, name: str, where: str, *, least: float = 0.0) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise InputError(
            f"expected {name} as a number{' above 0' if least else ' of 0 or more'} at {where}, found {text[:40]!r}."
        )
    return value


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
