"""Presets without switches: rings, grids, hypercubes, complete, random and other graphs of GPUs."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import prod

from coppice.errors import InputError
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets.registry import (
    Preset,
    PresetParameter,
    integers,
    listed_in,
    number_of,
    rate_of,
    rates_of,
)

Rates = int | Fraction | Sequence[int | Fraction]
MAX_GPUS = 2**20
"""More GPUs than this are taken for a slip of the keyboard."""

SOURCE = "by definition of the graph; rates as given (1 GB/s unless set)"
PRESETS: list[Preset] = []

_GPUS = number_of("gpus", 8, "number of GPUs")
ONE_RATE = rate_of("gb_per_s", 1, "rate of every link, each way")
_LINK_RATES = rates_of("gb_per_s", "rate of every link, or of each: 3,1,4")
_AXIS_RATES = rates_of("gb_per_s", "rate of every link, or by dimension: 2,1")


def _dims(default: str) -> PresetParameter:
    return PresetParameter(name="dims", parse=integers, default=default, description="size of each dimension")


@listed_in(PRESETS, _GPUS, _LINK_RATES, description="bidirectional ring", source=SOURCE)
def ring(gpus: int = 8, *, gb_per_s: Rates = 1) -> Topology:
    """A bidirectional ring; two GPUs share one link.

    Args:
        gpus: Number of GPUs.
        gb_per_s: Rate of every link, or of link i between GPU i and its successor, each way.

    Raises:
        InputError: If the number of GPUs or of rates does not fit.
    """
    count = gpus if gpus > 2 else gpus - 1
    rates = _per_item(gb_per_s, count, "links")
    return network(
        f"ring of {gpus}", gpus, [((i, (i + 1) % gpus), rate) for i, rate in enumerate(rates)], duplex=True
    )


@listed_in(PRESETS, _GPUS, _LINK_RATES, description="line of GPUs", source=SOURCE)
def path(gpus: int = 8, *, gb_per_s: Rates = 1) -> Topology:
    """A line of GPUs.

    Args:
        gpus: Number of GPUs.
        gb_per_s: Rate of every link, or of each in turn.

    Raises:
        InputError: If the number of GPUs or of rates does not fit.
    """
    rates = _per_item(gb_per_s, gpus - 1, "links")
    return network(f"path of {gpus}", gpus, [((i, i + 1), rate) for i, rate in enumerate(rates)], duplex=True)


@listed_in(
    PRESETS,
    _dims("4x4"),
    _AXIS_RATES,
    description="torus of any dimensions; size 2 has one link",
    source=SOURCE,
)
def torus(dims: Sequence[int] = (4, 4), *, gb_per_s: Rates = 1) -> Topology:
    """A torus; a dimension of size 2 has a single bidirectional link, not two.

    Args:
        dims: Size of each dimension; ranks count the last dimension fastest.
        gb_per_s: Rate of every link, or of the links along each dimension.

    Raises:
        InputError: If a size is less than 1, or the number of rates does not fit.

    Examples:
        >>> torus((4, 4)).num_links, torus((2, 2)).num_links
        (64, 8)
    """
    return _grid("torus", dims, gb_per_s, wrap=True)


@listed_in(PRESETS, _dims("3x3"), _AXIS_RATES, description="grid without wrap-around", source=SOURCE)
def mesh(dims: Sequence[int] = (3, 3), *, gb_per_s: Rates = 1) -> Topology:
    """A grid without wrap-around links.

    Args:
        dims: Size of each dimension; ranks count the last dimension fastest.
        gb_per_s: Rate of every link, or of the links along each dimension.

    Raises:
        InputError: If a size is less than 1, or the number of rates does not fit.
    """
    return _grid("mesh", dims, gb_per_s, wrap=False)


@listed_in(
    PRESETS,
    number_of("dimension", 4, "number of dimensions"),
    _AXIS_RATES,
    description="hypercube of 2^dimension GPUs",
    source=SOURCE,
)
def hypercube(dimension: int = 4, *, gb_per_s: Rates = 1) -> Topology:
    """A hypercube of ``2 ** dimension`` GPUs; those whose ranks differ in one bit are linked.

    Raises:
        InputError: If the dimension or the number of rates does not fit.
    """
    if not 0 <= dimension <= 20:
        raise InputError(f"expected a hypercube of dimension 0 .. 20, found {dimension}.")
    rates = _per_item(gb_per_s, dimension, "dimensions")
    gpus = 2**dimension
    links = [
        ((v, v | 1 << bit), rates[bit]) for v in range(gpus) for bit in range(dimension) if not v >> bit & 1
    ]
    return network(f"hypercube of dimension {dimension}", gpus, links, duplex=True)


@listed_in(PRESETS, _GPUS, ONE_RATE, description="every two GPUs are linked", source=SOURCE)
def complete(gpus: int = 8, *, gb_per_s: int | Fraction = 1) -> Topology:
    """Every two GPUs are linked.

    Raises:
        InputError: If there is no GPU, or more links than fit.
    """
    links = [(pair, Fraction(gb_per_s)) for pair in itertools.combinations(range(_few(gpus)), 2)]
    return network(f"complete graph of {gpus}", gpus, links, duplex=True)


@listed_in(
    PRESETS,
    number_of("left", 4, "GPUs of the left side"),
    number_of("right", "as left", "GPUs of the right side"),
    ONE_RATE,
    description="complete bipartite graph",
    source=SOURCE,
)
def bipartite(left: int = 4, right: int | None = None, *, gb_per_s: int | Fraction = 1) -> Topology:
    """The complete bipartite graph: every GPU of the left side is linked with every one of the right side.

    Args:
        left: GPUs of the left side, ranks 0 and up.
        right: GPUs of the right side; None takes as many.
        gb_per_s: Rate of every link.

    Raises:
        InputError: If a side is empty or too large.
    """
    others = left if right is None else right
    pairs = itertools.product(range(_few(left)), range(left, left + _few(others)))
    links = [(pair, Fraction(gb_per_s)) for pair in pairs]
    return network(f"complete bipartite graph of {left} + {others}", left + others, links, duplex=True)


@listed_in(PRESETS, ONE_RATE, description="Petersen graph: 10 GPUs, degree 3, diameter 2", source=SOURCE)
def petersen(*, gb_per_s: int | Fraction = 1) -> Topology:
    """The Petersen graph: 10 GPUs of degree 3, any two at most 2 hops apart."""
    outer = [(i, (i + 1) % 5) for i in range(5)]
    spokes = [(i, i + 5) for i in range(5)]
    inner = [(5 + i, 5 + (i + 2) % 5) for i in range(5)]
    links = [(pair, Fraction(gb_per_s)) for pair in outer + spokes + inner]
    return network("Petersen graph", 10, links, duplex=True)


def network(
    name: str, gpus: int, links: Sequence[tuple[tuple[int, int], Fraction]], *, duplex: bool
) -> Topology:
    """A topology of GPUs ``gpu0`` .. from pairs of ranks with rates."""
    if not 1 <= gpus <= MAX_GPUS:
        raise InputError(f"expected 1 .. {MAX_GPUS} GPUs for a {name}, found {gpus}.")
    if any(rate <= 0 for rate in {rate for _, rate in links}):
        raise InputError(f"expected rates > 0 GB/s for a {name}, found one of 0 or less.")
    ids = [f"gpu{v}" for v in range(gpus)]
    described = [Link(src=ids[a], dst=ids[b], gb_per_s=rate, duplex=duplex) for (a, b), rate in links]
    return Topology.of(name, [Node(id=v) for v in ids], described, source=SOURCE)


def _grid(kind: str, dims: Sequence[int], gb_per_s: Rates, *, wrap: bool) -> Topology:
    sizes = tuple(dims)
    if not sizes or min(sizes) < 1 or prod(sizes) > MAX_GPUS:
        raise InputError(
            f"expected sizes of 1 or more with a product of at most {MAX_GPUS} for a {kind}, found {sizes}."
        )
    rates = _per_item(gb_per_s, len(sizes), "dimensions")
    strides = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    links = []
    for v in range(prod(sizes)):
        for size, stride, speed in zip(sizes, strides, rates, strict=True):
            at = v // stride % size
            if at + 1 < size:
                links.append(((v, v + stride), speed))
            elif wrap and size > 2:
                links.append(((v, v - at * stride), speed))
    return network(f"{kind} {'x'.join(map(str, sizes))}", prod(sizes), links, duplex=True)


def _per_item(rates: Rates, count: int, what: str) -> list[Fraction]:
    """One rate for each of ``count`` items; a single one stands for all."""
    given = [rates] if isinstance(rates, (int, Fraction)) else list(rates)
    if len(given) == 1:
        given *= max(count, 0)
    if len(given) != max(count, 0):
        raise InputError(f"expected one rate or {count}, one for each of the {what}, found {len(given)}.")
    return [Fraction(rate) for rate in given]


def _few(gpus: int) -> int:
    if not 1 <= gpus <= 2048:
        raise InputError(f"expected 1 .. 2048 GPUs where all are linked with each other, found {gpus}.")
    return gpus


def _truth(value: str, key: str) -> bool:
    if value.lower() not in ("true", "false", "yes", "no", "1", "0"):
        raise InputError(f"expected true or false for {key}, found {value!r}.")
    return value.lower() in ("true", "yes", "1")


@listed_in(
    PRESETS,
    number_of("gpus", 16, "number of GPUs"),
    PresetParameter(name="offsets", parse=integers, default="3,4", description="offsets"),
    PresetParameter(name="directed", parse=_truth, default="false", description="one-way links"),
    ONE_RATE,
    description="GPU i linked with i + a for each offset a",
    source=SOURCE,
)
def circulant(
    gpus: int = 16, offsets: Sequence[int] = (3, 4), *, directed: bool = False, gb_per_s: int | Fraction = 1
) -> Topology:
    """GPU i is linked with GPU i + a (mod N) for each offset a.

    Args:
        gpus: Number of GPUs.
        offsets: Offsets, 1 .. N-1. An offset of exactly N/2 gives one link per pair, not two.
        directed: Links lead only from i to i + a.
        gb_per_s: Rate of every link.

    Raises:
        InputError: If an offset is out of range or repeats.

    Examples:
        >>> circulant(13, (2, 3)).num_links
        52
    """
    if not 2 <= gpus <= MAX_GPUS:
        raise InputError(f"expected 2 .. {MAX_GPUS} GPUs for a circulant graph, found {gpus}.")
    folded = [offset % gpus if directed else min(offset % gpus, -offset % gpus) for offset in offsets]
    if not folded or min(folded) < 1 or len(set(folded)) != len(folded):
        raise InputError(
            f"expected different offsets of 1 .. {gpus - 1} for a circulant graph of {gpus} GPUs "
            f"(a and N-a are the same both ways), found {','.join(map(str, offsets)) or 'none'}."
        )
    links = []
    for offset in folded:
        half = not directed and 2 * offset == gpus
        links += [((i, (i + offset) % gpus), Fraction(gb_per_s)) for i in range(offset if half else gpus)]
    name = f"{'directed ' if directed else ''}circulant graph of {gpus} with {','.join(map(str, offsets))}"
    return network(name, gpus, links, duplex=not directed)


@listed_in(
    PRESETS,
    number_of("gpus", 12, "number of GPUs"),
    number_of("degree", 2, "links out of each GPU"),
    ONE_RATE,
    description="one-way links of low diameter for any number of GPUs and any degree",
    source="Imase and Itoh, A design for directed graphs with minimum diameter (1983); rates as given",
)
def generalized_kautz(gpus: int = 12, degree: int = 2, *, gb_per_s: int | Fraction = 1) -> Topology:
    """The generalized Kautz graph (Imase and Itoh): one-way links from i to -(d i + a) mod N for a = 1 .. d.

    Links from a GPU to itself carry nothing and are left out; parallel ones add up.

    Args:
        gpus: Number of GPUs N.
        degree: Links d that leave each GPU.
        gb_per_s: Rate of every link.

    Raises:
        InputError: If the degree is not 1 .. N.

    Examples:
        >>> generalized_kautz(6, 2).num_links
        12
    """
    most = min(gpus, 4 * MAX_GPUS // max(gpus, 1))
    if not 1 <= degree <= most:
        raise InputError(
            f"expected a degree of 1 .. {most} for a generalized Kautz graph of {gpus} GPUs, found {degree}."
        )
    links = [
        ((i, -(degree * i + a) % gpus), Fraction(gb_per_s)) for i in range(gpus) for a in range(1, degree + 1)
    ]
    return network(f"generalized Kautz graph of {gpus}, degree {degree}", gpus, links, duplex=False)


@listed_in(
    PRESETS,
    number_of("gpus", 8, "number of GPUs"),
    number_of("switches", 0, "number of switches"),
    number_of("cycles", "number of nodes", "number of cycles"),
    number_of("max_gb_per_s", 8, "largest rate of a cycle"),
    number_of("seed", 0, "decides the network"),
    description="random one-way links, in = out at every node",
    source="random: a sum of directed cycles with integer rates; the seed decides",
)
def random_balanced(
    gpus: int = 8, *, switches: int = 0, cycles: int | None = None, max_gb_per_s: int = 8, seed: int = 0
) -> Topology:
    """A random directed graph in which every node has equal in- and out-capacity: a sum of directed cycles.

    The first cycle passes through all nodes, so every GPU reaches every other one.

    Args:
        gpus: Number of GPUs.
        switches: Number of switches.
        cycles: Number of cycles; None takes the number of nodes.
        max_gb_per_s: Rates of the cycles are 1 .. this.
        seed: The same seed gives the same network.

    Raises:
        InputError: If a number is out of range.
    """
    size = gpus + switches
    count = size if cycles is None else cycles
    if gpus < 1 or count < 1 or size * count > 4 * MAX_GPUS or max_gb_per_s < 1:
        raise InputError(
            "expected gpus, cycles and max_gb_per_s of 1 or more, and cycles of at most "
            f"{4 * MAX_GPUS} nodes in all, for a random network, found "
            f"gpus={gpus}, switches={switches}, cycles={count}, max_gb_per_s={max_gb_per_s}."
        )
    ids = [f"gpu{v}" for v in range(gpus)] + [f"switch{v}" for v in range(switches)]
    draw = random.Random(seed)
    rates: Counter[tuple[str, str]] = Counter()
    for number in range(count):
        length = size if number == 0 else draw.randint(min(2, size), size)
        members = draw.sample(ids, length)
        weight = draw.randint(1, max_gb_per_s)
        for a, b in zip(members, [*members[1:], members[0]], strict=True):
            rates[a, b] += weight
    nodes = [Node(id=v, kind=NodeKind.GPU if v.startswith("gpu") else NodeKind.SWITCH) for v in ids]
    links = [Link(src=a, dst=b, gb_per_s=Fraction(rate), duplex=False) for (a, b), rate in rates.items()]
    name = f"random balanced network of {gpus} GPUs and {switches} switches, seed {seed}"
    return Topology.of(name, nodes, links, source="random: a sum of directed cycles with integer rates")
