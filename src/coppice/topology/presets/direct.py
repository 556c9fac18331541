"""Presets without switches: rings, grids, hypercubes, complete, random and other graphs of GPUs."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Annotated

from coppice.errors import InputError
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets.registry import Preset, Rate, Rates, listed_in

MAX_GPUS = 2**20
"""More GPUs than this are taken for a slip of the keyboard."""

SOURCE = "by definition of the graph; rates as given (1 GB/s unless set)"
PRESETS: list[Preset] = []

Gpus = Annotated[int, "number of GPUs"]
LinkRate = Annotated[Rate, "rate of every link, each way"]
LinkRates = Annotated[Rates, "rate of every link, or of each: 3,1,4"]
AxisRates = Annotated[Rates, "rate of every link, or by dimension: 2,1"]
Dims = Annotated[Sequence[int], "size of each dimension"]


@listed_in(PRESETS, description="bidirectional ring", source=SOURCE)
def ring(gpus: Gpus = 8, *, gb_per_s: LinkRates = 1) -> Topology:
    """A bidirectional ring; two GPUs share one link.

    Link i joins GPU i and its successor.

    Raises:
        InputError: If the number of GPUs or of rates does not fit.
    """
    count = gpus if gpus > 2 else gpus - 1
    rates = _per_item(gb_per_s, count, "links")
    return network(
        f"ring of {gpus}", gpus, [((i, (i + 1) % gpus), rate) for i, rate in enumerate(rates)], duplex=True
    )


@listed_in(PRESETS, description="line of GPUs", source=SOURCE)
def path(gpus: Gpus = 8, *, gb_per_s: LinkRates = 1) -> Topology:
    """A line of GPUs.

    Raises:
        InputError: If the number of GPUs or of rates does not fit.
    """
    rates = _per_item(gb_per_s, gpus - 1, "links")
    return network(f"path of {gpus}", gpus, [((i, i + 1), rate) for i, rate in enumerate(rates)], duplex=True)


@listed_in(PRESETS, description="torus of any dimensions; size 2 has one link", source=SOURCE)
def torus(dims: Dims = (4, 4), *, gb_per_s: AxisRates = 1) -> Topology:
    """A torus; a dimension of size 2 has a single bidirectional link, not two.

    Ranks count the last dimension fastest.

    Raises:
        InputError: If a size is less than 1, or the number of rates does not fit.

    Examples:
        >>> torus((4, 4)).num_links, torus((2, 2)).num_links
        (64, 8)
    """
    return _grid("torus", dims, gb_per_s, wrap=True)


@listed_in(PRESETS, description="grid without wrap-around", source=SOURCE)
def mesh(dims: Dims = (3, 3), *, gb_per_s: AxisRates = 1) -> Topology:
    """A grid without wrap-around links.

    Ranks count the last dimension fastest.

    Raises:
        InputError: If a size is less than 1, or the number of rates does not fit.
    """
    return _grid("mesh", dims, gb_per_s, wrap=False)


@listed_in(PRESETS, description="hypercube of 2^dimension GPUs", source=SOURCE)
def hypercube(dimension: Annotated[int, "number of dimensions"] = 4, *, gb_per_s: AxisRates = 1) -> Topology:
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


@listed_in(PRESETS, description="every two GPUs are linked", source=SOURCE)
def complete(gpus: Gpus = 8, *, gb_per_s: LinkRate = 1) -> Topology:
    """Every two GPUs are linked.

    Raises:
        InputError: If there is no GPU, or more links than fit.
    """
    links = [(pair, Fraction(gb_per_s)) for pair in itertools.combinations(range(_few(gpus)), 2)]
    return network(f"complete graph of {gpus}", gpus, links, duplex=True)


@listed_in(PRESETS, description="complete bipartite graph", source=SOURCE)
def bipartite(
    left: Annotated[int, "GPUs of the left side"] = 4,
    right: Annotated[int | None, "GPUs of the right side", "as left"] = None,
    *,
    gb_per_s: LinkRate = 1,
) -> Topology:
    """The complete bipartite graph: every GPU of the left side is linked with every one of the right side.

    The left side has ranks 0 and up.

    Raises:
        InputError: If a side is empty or too large.
    """
    others = left if right is None else right
    pairs = itertools.product(range(_few(left)), range(left, left + _few(others)))
    links = [(pair, Fraction(gb_per_s)) for pair in pairs]
    return network(f"complete bipartite graph of {left} + {others}", left + others, links, duplex=True)


@listed_in(PRESETS, description="Petersen graph: 10 GPUs, degree 3, diameter 2", source=SOURCE)
def petersen(*, gb_per_s: LinkRate = 1) -> Topology:
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


@listed_in(PRESETS, description="GPU i linked with i + a for each offset a", source=SOURCE)
def circulant(
    gpus: Gpus = 16,
    offsets: Annotated[Sequence[int], "offsets", "3,4"] = (3, 4),
    *,
    directed: Annotated[bool, "one-way links"] = False,
    gb_per_s: LinkRate = 1,
) -> Topology:
    """GPU i is linked with GPU i + a (mod N) for each offset a.

    An offset is 1 .. N-1; one of exactly N/2 gives one link per pair, not two. Directed links lead from i to i + a.

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
    description="one-way links of low diameter for any number of GPUs and any degree",
    source="Imase and Itoh, A design for directed graphs with minimum diameter (1983); rates as given",
)
def generalized_kautz(
    gpus: Gpus = 12, degree: Annotated[int, "links out of each GPU"] = 2, *, gb_per_s: LinkRate = 1
) -> Topology:
    """The generalized Kautz graph (Imase and Itoh): one-way links from i to -(d i + a) mod N for a = 1 .. d.

    N is the number of GPUs, d the degree.

    Links from a GPU to itself carry nothing and are left out; parallel ones add up.

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
    description="random one-way links, in = out at every node",
    source="random: a sum of directed cycles with integer rates; the seed decides",
)
def random_balanced(
    gpus: Gpus = 8,
    *,
    switches: Annotated[int, "number of switches"] = 0,
    cycles: Annotated[int | None, "number of cycles", "number of nodes"] = None,
    max_gb_per_s: Annotated[int, "largest rate of a cycle"] = 8,
    seed: Annotated[int, "decides the network"] = 0,
) -> Topology:
    """A random directed graph in which every node has equal in- and out-capacity: a sum of directed cycles.

    Rates of cycles are 1 .. ``max_gb_per_s``; the same seed gives the same network.

    The first cycle passes through all nodes, so every GPU reaches every other one.

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
