"""The linear program of maximum concurrent flow, aggregated by source.

Rank s sends demand d(s, t) times f to every rank t over any links; all pairs at once, f as large as possible.
Flows of one source can be mixed, so there is one flow g_s per source: what enters a node minus what leaves it
is at least d(s, t) f at a rank t, and at least 0 elsewhere (more than enough may be cut off afterwards). With
a group of automorphisms that is free on the ranks, one source for each orbit is enough: its images load each
link of an orbit of links by (order / size) times the flow over the whole orbit.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.display import Brief
from coppice.topology.model import Topology

__all__ = ["FlowSolution", "solve_flow"]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FlowSolution(Brief):
    """A concurrent flow and link lengths, exact or nearly so.

    Attributes:
        rate: f in capacity units of the topology; None where only floats are known.
        flow: Per source, per link: the flow divided by f (exact where ``rate`` is, else a float).
        length: Length of each link, proportional to the dual of its capacity, in floats.
        exact_length: The same as integers where the vertex was proved, else None.
    """

    rate: Fraction | None
    flow: list[list[Fraction]] | NDArray[np.float64]
    length: NDArray[np.float64]
    exact_length: list[int] | None


def solve_flow(
    topology: Topology,
    sources: NDArray[np.int32],
    demand: NDArray[np.int64],
    *,
    link_orbit: NDArray[np.int32],
    images: NDArray[np.int64],
    time_limit: float,
) -> FlowSolution | None:
    """Solve the program; None where HiGHS did not finish in time.

    Args:
        topology: The network; flow may pass through any node.
        sources: Source nodes.
        demand: ``demand[i, v]`` from source i to node v.
        link_orbit: Links with one number share one capacity row.
        images: ``images[e]``: how often a unit of flow over link e loads each link of its orbit.
        time_limit: Seconds.
    """
    links, count = topology.num_links, len(sources)
    orbits = int(link_orbit.max(initial=-1)) + 1
    capacity = np.zeros(orbits, dtype=np.int64)
    capacity[link_orbit] = topology.capacity
    program = LinearProgram([1] + [0] * (count * links), [None] * (1 + count * links))
    program.add_rows(_capacity_rows(link_orbit, images, capacity, count))
    for i, source in enumerate(sources.tolist()):
        program.add_rows(_conservation_rows(topology, source, demand[i], 1 + i * links))
    vertex = program.solve(time_limit=time_limit, interior_point=count * links > 4096)
    if vertex is None or vertex.objective <= 0:
        return None
    multiplier = program.float_multipliers()[:orbits]
    size = np.bincount(link_orbit, minlength=orbits)
    length = np.maximum(multiplier / size, 0)[link_orbit]
    flow: list[list[Fraction]] | NDArray[np.float64]
    exact = program.exact_vertex(max_bits=1024)
    if exact is None:
        flow = vertex.values[1:].reshape(count, links) / vertex.objective
        return FlowSolution(rate=None, flow=flow, length=length, exact_length=None)
    rate = exact.objective
    flow = [[g / rate for g in exact.values[1 + i * links : 1 + (i + 1) * links]] for i in range(count)]
    lengths = [exact.multipliers[orbit] / int(size[orbit]) for orbit in range(orbits)]
    common = lcm(*(y.denominator for y in lengths))
    integers = [int(y * common) for y in lengths]
    shared = gcd(*integers) or 1
    exact_length = [integers[orbit] // shared for orbit in link_orbit.tolist()]
    return FlowSolution(rate=rate, flow=flow, length=length, exact_length=exact_length)


def _capacity_rows(
    link_orbit: NDArray[np.int32], images: NDArray[np.int64], capacity: NDArray[np.int64], count: int
) -> list[Constraint]:
    """Flow over an orbit of links, times its images, is at most the capacity of one of them."""
    links = len(link_orbit)
    order = np.argsort(link_orbit, kind="stable")
    starts = np.searchsorted(link_orbit[order], np.arange(len(capacity) + 1))
    offsets = 1 + np.arange(count)[:, None] * links
    rows = []
    for orbit, bound in enumerate(capacity.tolist()):
        members = order[starts[orbit] : starts[orbit + 1]]
        columns = (offsets + members[None, :]).ravel().astype(np.int32)
        rows.append(Constraint(column=columns, value=np.tile(images[members], count), bound=bound))
    return rows


def _conservation_rows(
    topology: Topology, source: int, demand: NDArray[np.int64], start: int
) -> list[Constraint]:
    """What leaves a node, plus its demand times f, minus what enters it, is at most 0."""
    columns: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    values: list[list[int]] = [[] for _ in range(topology.num_nodes)]
    for e, (a, b) in enumerate(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)):
        if b == source:
            continue  # flow that returns to its source is never needed
        columns[a].append(start + e)
        values[a].append(1)
        columns[b].append(start + e)
        values[b].append(-1)
    rows = []
    for v, wanted in enumerate(demand.tolist()):
        if v == source or not (columns[v] or wanted):
            continue
        if wanted:
            columns[v].append(0)
            values[v].append(wanted)
        rows.append(
            Constraint(column=np.array(columns[v], dtype=np.int32), value=np.array(values[v], dtype=np.int64))
        )
    return rows
