"""Best graph for a workload, compared with tori, rings, double binary trees and hypercubes.

Time is the model that schedules by steps are made for: steps x alpha + bandwidth time x M / bandwidth of a node. All
candidates have the same bandwidth of a node, split evenly over their ports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING

from coppice.collectives import Collective
from coppice.design.families.family import optimum
from coppice.design.recipes.expansions import Facts
from coppice.design.recipes.recipe import Base
from coppice.design.schedules.breadth_first import schedule_facts
from coppice.design.search.table import GraphEntry
from coppice.errors import InputError

if TYPE_CHECKING:
    from coppice.outputs.shapes.networks import GraphOptionJson, GraphWorkloadJson

COLLECTIVES = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
_TREE_PORTS = 4


@dataclass(frozen=True, kw_only=True)
class CollectiveWorkload:
    """Collective, size and rate that a network is designed for."""

    collective: Collective = Collective.ALL_REDUCE  # All-reduce, all-gather or reduce-scatter
    size_bytes: int  # M in bytes
    alpha_us: float  # Time of a step beyond that of its bytes
    node_gb_per_s: Fraction  # Bandwidth of a node in each direction, over all its ports

    def __post_init__(self) -> None:
        object.__setattr__(self, "collective", Collective.named(self.collective))
        if self.collective not in COLLECTIVES:
            raise InputError(
                f"expected one of {', '.join(COLLECTIVES)} as the workload, found {self.collective}."
            )
        if self.size_bytes < 0 or self.node_gb_per_s <= 0 or not 0 <= self.alpha_us < float("inf"):
            raise InputError(
                "expected a size of 0 bytes or more, alpha of 0 us or more and a rate above 0 GB/s, found "
                f"{self.size_bytes}, {self.alpha_us:g} and {self.node_gb_per_s}."
            )

    @property
    def bytes_us(self) -> float:
        """Time in which a node sends M bytes."""
        return float(self.size_bytes / self.node_gb_per_s / 1000)

    def record(self) -> GraphWorkloadJson:
        """The workload as JSON values."""
        return {
            "collective": self.collective.value,
            "size_bytes": self.size_bytes,
            "alpha_us": self.alpha_us,
            "node_gb_per_s": str(self.node_gb_per_s),
        }

    def time_us(self, steps: int, time: Fraction) -> float:
        """Time of the given steps and bandwidth time."""
        return steps * self.alpha_us + float(time) * self.bytes_us


@dataclass(frozen=True, kw_only=True)
class NetworkOption:
    """A candidate network for the workload."""

    name: str  # Recipe, or what it is
    ports: int  # Ports per node and direction
    steps: int  # Steps of the collective
    time: Fraction  # Its bandwidth time in units of M over the bandwidth of a node
    time_us: float  # What the workload takes
    entry: GraphEntry | None = None  # The entry of the front; None for what people build

    def record(self) -> GraphOptionJson:
        """The figures as JSON values."""
        return {
            "name": self.name,
            "found": self.entry is not None,
            "ports": self.ports,
            "steps": self.steps,
            "t_b": str(self.time),
            "time_us": self.time_us,
        }


def options(front: Sequence[GraphEntry], workload: CollectiveWorkload) -> list[NetworkOption]:
    """Entries of a front for a workload, fastest first.

    Examples:
        >>> from coppice.design.search.finder import find
        >>> front = find([(16, 4)], jobs=1)[16, 4]
        >>> small = CollectiveWorkload(size_bytes=1024, alpha_us=10, node_gb_per_s=Fraction(25, 2))
        >>> options(front, small)[0].steps
        4
    """
    made = []
    for entry in front:
        steps, time = _total(workload.collective, entry.facts, _backward(entry, workload.collective))
        made.append(
            NetworkOption(
                name=str(entry.recipe),
                ports=entry.facts.degree,
                steps=steps,
                time=time,
                time_us=workload.time_us(steps, time),
                entry=entry,
            )
        )
    return sorted(made, key=lambda option: (option.time_us, option.steps, option.name))


def baselines(ranks: int, degree: int, workload: CollectiveWorkload) -> list[NetworkOption]:
    """Common networks of as many ranks: ring, torus, hypercube and, for all-reduce, double binary tree.

    Rings use all ports, as rings side by side. A torus has parallel links where the ports allow for that. A hypercube
    takes as many ports as it needs. The tree is pipelined in the best number of segments, with half of the data on each
    of two trees, and four ports of a quarter of the bandwidth each.

    Examples:
        >>> large = CollectiveWorkload(size_bytes=2**30, alpha_us=10, node_gb_per_s=Fraction(25, 2))
        >>> [(option.name, option.ports) for option in baselines(64, 4, large)]
        [('ring', 4), ('torus(8, 8)', 4), ('hypercube(6)', 6), ('double binary tree', 4)]
    """
    made = [_option("ring", degree, workload, ranks - 1, optimum(ranks))]
    best = best_torus(ranks, degree)
    if best is not None:
        made.append(_option(str(best), degree, workload, best.facts().steps, optimum(ranks)))
    dims = ranks.bit_length() - 1
    if 2**dims == ranks:
        made.append(_option(f"hypercube({dims})", dims, workload, dims, optimum(ranks)))
    if workload.collective is Collective.ALL_REDUCE and ranks > 2:
        made.append(_double_tree(ranks, workload))
    return made


def best_torus(ranks: int, degree: int) -> Base | None:
    """Torus of the fewest steps with the ports of a rank, or a multiple of them; None without one.

    Examples:
        >>> str(best_torus(64, 4)), best_torus(7, 4)
        ('torus(8, 8)', None)
    """
    tori = [torus for torus in _tori(ranks) if degree % torus.size.degree == 0]
    return min(tori, key=lambda torus: (torus.facts().steps, len(str(torus))), default=None)


def _option(name: str, ports: int, workload: CollectiveWorkload, steps: int, time: Fraction) -> NetworkOption:
    phases = 2 if workload.collective is Collective.ALL_REDUCE else 1
    steps, time = phases * steps, phases * time
    return NetworkOption(
        name=name, ports=ports, steps=steps, time=time, time_us=workload.time_us(steps, time)
    )


def _double_tree(ranks: int, workload: CollectiveWorkload) -> NetworkOption:
    """Up and down trees of depth h in k segments: 2 h + k - 1 steps of M / 2 k over a link of a quarter of the rate."""
    depth = ranks.bit_length() - 1
    fixed = 2 * depth - 1
    ideal = (
        2**20 if workload.alpha_us == 0 else int((fixed * 2 * workload.bytes_us / workload.alpha_us) ** 0.5)
    )

    def time_us(segments: int) -> float:
        return workload.time_us(fixed + segments, Fraction(2 * (fixed + segments), segments))

    segments = min((max(1, min(n, 2**20)) for n in (ideal, ideal + 1)), key=time_us)
    steps = fixed + segments
    return NetworkOption(
        name="double binary tree",
        ports=_TREE_PORTS,
        steps=steps,
        time=Fraction(2 * steps, segments),
        time_us=time_us(segments),
    )


def _tori(ranks: int) -> Iterator[Base]:
    """Tori of two or more dimensions, sizes rising."""

    def splits(left: int, least: int) -> Iterator[tuple[int, ...]]:
        yield (left,)
        for size in range(least, isqrt(left) + 1):
            if left % size == 0:
                yield from ((size, *rest) for rest in splits(left // size, size))

    return (Base("torus", sizes) for sizes in splits(ranks, 2) if len(sizes) > 1)


def _backward(entry: GraphEntry, collective: Collective) -> Facts:
    """Figures of the all-gather on the transposed graph, whose reverse is the reduce-scatter."""
    facts = entry.facts
    if collective is Collective.ALL_GATHER or entry.recipe.is_transpose:
        return facts
    steps, _, time = schedule_facts(entry.recipe.build().transposed())
    return Facts(facts.ranks, facts.degree, steps, time, exact=True, bidirectional=facts.bidirectional)


def _total(collective: Collective, forward: Facts, backward: Facts) -> tuple[int, Fraction]:
    """Steps and bandwidth time of a collective."""
    parts = {
        Collective.ALL_GATHER: [forward],
        Collective.REDUCE_SCATTER: [backward],
        Collective.ALL_REDUCE: [backward, forward],
    }[collective]
    return sum(facts.steps for facts in parts), sum((facts.bandwidth_time for facts in parts), Fraction(0))
