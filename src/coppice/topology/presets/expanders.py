"""Networks of GPUs with short paths or random ones: circulant, generalized Kautz, random balanced."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from coppice.errors import InputError
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets.direct import MAX_GPUS, ONE_RATE, SOURCE, network
from coppice.topology.presets.registry import Preset, PresetParameter, integers, listed_in, number_of

__all__ = ["PRESETS", "circulant", "generalized_kautz", "random_balanced"]

PRESETS: list[Preset] = []


def _truth(value: str, key: str) -> bool:
    if value.lower() not in ("true", "false", "yes", "no", "1", "0"):
        msg = f"expected true or false for {key}, found {value!r}."
        raise InputError(msg)
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
        msg = f"expected 2 .. {MAX_GPUS} GPUs for a circulant graph, found {gpus}."
        raise InputError(msg)
    folded = [offset % gpus if directed else min(offset % gpus, -offset % gpus) for offset in offsets]
    if not folded or min(folded) < 1 or len(set(folded)) != len(folded):
        msg = (
            f"expected different offsets of 1 .. {gpus - 1} for a circulant graph of {gpus} GPUs "
            f"(a and N-a are the same both ways), found {','.join(map(str, offsets)) or 'none'}."
        )
        raise InputError(msg)
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
        msg = (
            f"expected a degree of 1 .. {most} for a generalized Kautz graph of {gpus} GPUs, found {degree}."
        )
        raise InputError(msg)
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
    """A random directed network in which every node sends as much as it receives: a sum of directed cycles.

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
        msg = (
            "expected gpus, cycles and max_gb_per_s of 1 or more, and cycles of at most "
            f"{4 * MAX_GPUS} nodes in all, for a random network, found "
            f"gpus={gpus}, switches={switches}, cycles={count}, max_gb_per_s={max_gb_per_s}."
        )
        raise InputError(msg)
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
