"""All-to-all as maximum concurrent flow, with a routing that reaches it and link lengths that prove it.

Every pair of ranks exchanges its demand at the same time; traffic may pass through any node, GPUs included.
The optimum is a linear program over flows aggregated by source. Up to 64 ranks or so it is solved as it
stands; a group of automorphisms that is free on the ranks leaves one source per orbit and makes 1,024 ranks
easy; without symmetry large instances get a routing by paths that are evened out, sweep by sweep. In each case
two figures are proved apart: a routing whose loads are counted exactly, and integer link lengths whose distances
no routing can beat.

The linear program: rank s sends demand d(s, t) times f to every rank t over any links; all pairs at once, f as large
as possible. Flows of one source can be mixed, so there is one flow g_s per source: what enters a node minus what
leaves it is at least d(s, t) f at a rank t, and at least 0 elsewhere (more than enough may be cut off afterwards).
With a group of automorphisms that is free on the ranks, one source for each orbit is enough: its images load each
link of an orbit of links by (order / size) times the flow over the whole orbit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from coppice.bounds.all_to_all.distances import cut_lengths, distances, integer_lengths, length_bound
from coppice.bounds.all_to_all.routes import FlowRoute, link_loads, routes_of_flow, routes_of_trees
from coppice.bounds.all_to_all.spreading import PathMix, Spread, route_by_paths, spread
from coppice.bounds.all_to_all.two_stage import TwoStageSplit, two_stages
from coppice.bounds.lp.program import Constraint, ExactVertex, LinearProgram
from coppice.bounds.lp.rescaling import rescaled_vertex
from coppice.bounds.lp.simplex import solve_in_integers
from coppice.bounds.network import check_problem, is_small
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.display import Brief
from coppice.errors import InputError, UnreachableError
from coppice.text import plural
from coppice.topology.model import Topology
from coppice.topology.symmetry import Symmetry, find_symmetry


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FlowSolution(Brief):
    """A concurrent flow and link lengths, exact or nearly so."""

    rate: Fraction | None  # f in capacity units of the topology; None where only floats are known
    # Per source, per link: the flow divided by f (exact where `rate` is, else a float)
    flow: list[list[Fraction]] | NDArray[np.float64]
    length: NDArray[np.float64]  # Length of each link, proportional to the dual of its capacity, in floats
    exact_length: list[int] | None  # The same as integers where the vertex was proved, else None


def solve_flow(
    topology: Topology,  # The network; flow may pass through any node
    sources: NDArray[np.int32],
    demand: NDArray[np.int64],  # `demand[i, v]` from source i to node v
    *,
    link_orbit: NDArray[np.int32],  # Links with one number share one capacity row
    # `images[e]`: how often a unit of flow over link e loads each link of its orbit
    images: NDArray[np.int64],
    most: float,  # About as large as the optimum, in capacity units
    time_limit: float,
) -> FlowSolution | None:
    """Solve the linear program; None where HiGHS did not finish in time.

    The vertex is proved in fractions: from HiGHS's basis, else after rounds for what its tolerances left over, else,
    in a small network, by a simplex method in whole numbers.
    """
    links, count = topology.num_links, len(sources)
    orbits = int(link_orbit.max(initial=-1)) + 1
    capacity = np.zeros(orbits, dtype=np.int64)
    capacity[link_orbit] = topology.capacity
    columns = 1 + count * links
    program = LinearProgram([1] + [0] * (columns - 1), [None] * columns, unit=_units(topology, demand, most))
    program.add_rows(_capacity_rows(link_orbit, images, capacity, count))
    for i, source in enumerate(sources.tolist()):
        program.add_rows(_conservation_rows(topology, source, demand[i], 1 + i * links))
    started, small = time.monotonic(), is_small(topology)
    vertex = program.solve(time_limit=time_limit, interior_point=count * links > 4096)
    size = np.bincount(link_orbit, minlength=orbits)
    length = np.ones(links)
    exact: ExactVertex | None = None
    if vertex is not None:
        length = np.maximum(program.float_multipliers()[:orbits] / size, 0)[link_orbit]
        exact = program.exact_vertex(max_bits=1024)
        if exact is None and len(program.rows) <= _ELIMINATED:
            left = None if small else max(0.0, time_limit - (time.monotonic() - started))
            exact = rescaled_vertex(program, time_limit=left)
    if exact is None and small:
        exact = solve_in_integers(program)
    flow: list[list[Fraction]] | NDArray[np.float64]
    if exact is None:
        if vertex is None or vertex.objective <= 0:
            return None
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


def _units(topology: Topology, demand: NDArray[np.int64], most: float) -> list[float]:
    """What f and each flow are about as large as: all that a source sends, or all that the link carries."""
    capacity = topology.capacity.astype(np.float64)
    flows = [np.minimum(capacity, most * float(row.sum()) or 1.0) for row in demand]
    return [most, *np.concatenate(flows).tolist()] if flows else [most]


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


_COLUMNS = 50_000
_PAIRS = 2**20
"""Up to this many pairs with demand each keeps its paths."""

_ELIMINATED = 3000
"""Up to this many rows a basis is solved in fractions from beginning to end."""

_RANKS_WITH_ROUTES = 256
_LARGEST_DEMAND = 2**62
_LARGEST_SPREAD = 2**40
"""Demands whose sum reaches this are rounded where they are routed by paths."""
_WIDE = Fraction(1, 100)
"""A gap that asks for another way to route."""
_PATHS_GOOD_ENOUGH = Fraction(1, 400)
"""A gap of a large network with which no other way is looked for."""
_LONG_ENOUGH = 10.0
"""Seconds for two stages, where a linear program or paths may follow."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AllToAllBound:
    """Bound on an all-to-all and the routing found."""

    problem: Problem  # What was asked
    inv_rate: Fraction  # No routing takes less time per unit of demand, in 1 / (GB/s); proved by `length`
    reached: Fraction  # Time per unit of demand that the routing takes
    length: tuple[int, ...]  # Integer link lengths: the proof of `inv_rate`
    # For each source rank listed, its routes; the other ranks' are images under `symmetry`. Empty for more
    # than 256 ranks without symmetry, and where there is a `split`.
    routes: dict[int, list[FlowRoute]]
    symmetry: Symmetry  # Group of automorphisms that maps the listed ranks to all others
    method: str  # How the figures were found, in words
    split: TwoStageSplit | None = None  # The routing in two stages, where it is such a one

    @property
    def exact(self) -> bool:
        """Whether the routing is proved optimal."""
        return self.inv_rate == self.reached

    @property
    def gap(self) -> Fraction:
        """Relative gap between the routing's time and the bound; 0 where exact."""
        return self.reached / self.inv_rate - 1 if self.inv_rate else Fraction(0)


def concurrent_flow(
    problem: Problem, *, symmetry: Symmetry | None = None, time_limit: float = 60.0, staged: bool = True
) -> AllToAllBound:
    """Maximise the rate at which all pairs of ranks exchange their demands concurrently.

    Args:
        problem: An all_to_all, uniform or with a matrix of demands.
        symmetry: Automorphisms that are free on the ranks; found when None. Not used with a matrix of demands.
        staged: Try two stages between boxes before programs, for a matrix of demands.

    Examples:
        >>> from coppice.topology.model import Link, Node
        >>> path = Topology.of("path", [Node(id=f"g{i}") for i in range(4)],
        ...     [Link(src=f"g{i}", dst=f"g{i + 1}", gb_per_s=Fraction(8)) for i in range(3)])
        >>> found = concurrent_flow(Problem(topology=path, collective=Collective.ALL_TO_ALL))
        >>> found.inv_rate, found.reached, found.exact
        (Fraction(1, 2), Fraction(1, 2), True)
    """
    check_problem(problem)
    topology = problem.topology
    if problem.collective is not Collective.ALL_TO_ALL:
        raise InputError(
            f"concurrent flow belongs to all_to_all, found {problem.collective}: ask for the plain bound."
        )
    demand, unit = demand_matrix(problem)
    if not demand.any():
        return _nothing_to_do(problem)
    _check_reachable(topology, demand)
    split: TwoStageSplit | None = None
    if problem.demands is not None:
        if staged:
            split = two_stages(topology, demand, time_limit=min(time_limit, _LONG_ENOUGH))
        if split is not None and split.reached == split.bound:
            return _in_two_stages(problem, unit, split)
        symmetry = trivial_symmetry(topology)
    elif symmetry is None:
        symmetry = find_symmetry(topology)
    representatives = symmetry.representatives
    sources = np.array([v for v in representatives.tolist() if topology.rank[v] >= 0], dtype=np.int32)
    wanted = np.zeros((len(sources), topology.num_nodes), dtype=np.int64)
    wanted[:, topology.rank_nodes] = demand[topology.rank[sources]]
    solution = None
    if len(sources) * topology.num_links <= _COLUMNS:
        solution = solve_flow(
            topology,
            sources,
            wanted,
            link_orbit=symmetry.link_orbit,
            images=symmetry.order // symmetry.link_orbit_size,
            most=float(topology.denominator / cut_lengths(topology, demand)[0]),
            time_limit=time_limit,
        )
    if solution is None:
        if split is None:
            return _without_program(problem, demand, unit, time_limit)
        found = _in_two_stages(problem, unit, split)
        if found.gap <= _PATHS_GOOD_ENOUGH:
            return found
        return _better(_without_program(problem, demand, unit, time_limit), found)
    routes = _routes(topology, sources, wanted, solution)
    length = solution.exact_length or integer_lengths(solution.length)
    method = f"linear program over flows of {len(sources)} of {topology.num_ranks} sources"
    method += ", vertex and dual proved in fractions" if solution.rate is not None else ", rounded"
    found = AllToAllBound(
        problem=problem,
        inv_rate=length_bound(topology, demand, length) * unit,
        reached=_reached(topology, demand, routes, symmetry) * unit,
        length=tuple(length),
        routes=routes,
        symmetry=symmetry,
        method=method,
    )
    if solution.rate is None and found.gap > _WIDE and symmetry.order == 1:
        found = _better(found, _without_program(problem, demand, unit, time_limit))
    if solution.rate is None and split is not None:
        found = _better(found, _in_two_stages(problem, unit, split))
    return found


def _better(one: AllToAllBound, other: AllToAllBound) -> AllToAllBound:
    """The better routing of two, with the better of their bounds."""
    proof = max(one, other, key=lambda each: each.inv_rate)
    routed = min(one, other, key=lambda each: each.reached)
    return replace(routed, inv_rate=proof.inv_rate, length=proof.length)


def _in_two_stages(problem: Problem, unit: int, split: TwoStageSplit) -> AllToAllBound:
    """The outcome of two stages: inside boxes, and along rails between them."""
    swept = f", {plural(split.sweeps, 'sweep')}" if split.sweeps else ""
    return AllToAllBound(
        problem=problem,
        inv_rate=split.bound * unit,
        reached=split.reached * unit,
        length=tuple(split.length),
        routes={},
        symmetry=trivial_symmetry(problem.topology),
        method=f"two stages: inside {split.boxes.count} boxes, and along rails between them{swept}",
        split=split,
    )


def _without_program(
    problem: Problem, demand: NDArray[np.int64], unit: int, time_limit: float
) -> AllToAllBound:
    """The outcome of routing by paths or trees. Demands too large for that are routed rounded, and counted exactly."""
    topology = problem.topology
    grain = -(-int(demand.sum()) // _LARGEST_SPREAD) * 2
    if grain > 2:
        rough = -(-demand // grain)
        if topology.num_ranks > _RANKS_WITH_ROUTES or int(rough.sum()) >= _LARGEST_SPREAD:
            raise InputError(
                f"expected demands with a sum below 2^40, found {int(demand.sum())}: round them to fewer digits."
            )
        found = _paths(problem, rough, unit, route_by_paths(topology, rough, time_limit=time_limit))
        reached = _reached(topology, demand, found.routes, found.symmetry) * unit
        return replace(found, inv_rate=length_bound(topology, demand, found.length) * unit, reached=reached)
    if np.count_nonzero(demand) <= _PAIRS:
        return _paths(problem, demand, unit, route_by_paths(topology, demand, time_limit=time_limit))
    return _spread(problem, demand, unit, spread(topology, demand, time_limit=time_limit))


def demand_matrix(problem: Problem) -> tuple[NDArray[np.int64], int]:
    """Demand from rank to rank in its largest common unit, and that unit; the diagonal is dropped."""
    ranks = problem.topology.num_ranks
    if problem.demands is None:
        demand = np.ones((ranks, ranks), dtype=np.int64)
        np.fill_diagonal(demand, 0)
        return demand, 1
    rows = [[0 if i == j else size for j, size in enumerate(row)] for i, row in enumerate(problem.demands)]
    unit = gcd(*(size for row in rows for size in row)) or 1
    total = sum(map(sum, rows)) // unit
    if total >= _LARGEST_DEMAND:
        raise InputError(
            f"expected demands with a sum below 2^62 in their largest common unit, found {total}: round them."
        )
    return np.array([[size // unit for size in row] for row in rows], dtype=np.int64), unit


def trivial_symmetry(topology: Topology) -> Symmetry:
    """The trivial group (identity only)."""
    return Symmetry(
        orders=(),
        generators=np.zeros((0, topology.num_nodes), dtype=np.int32),
        node_orbit=np.arange(topology.num_nodes, dtype=np.int32),
        node_element=np.zeros(topology.num_nodes, dtype=np.int64),
        link_orbit=np.arange(topology.num_links, dtype=np.int32),
        link_orbit_size=np.ones(topology.num_links, dtype=np.int64),
    )


def _routes(
    topology: Topology, sources: NDArray[np.int32], wanted: NDArray[np.int64], solution: FlowSolution
) -> dict[int, list[FlowRoute]]:
    routes = {}
    for i, source in enumerate(sources.tolist()):
        flow = solution.flow[i]
        if isinstance(flow, np.ndarray):
            flow = [Fraction(value) for value in np.maximum(flow, 0).tolist()]
        routes[int(topology.rank[source])] = routes_of_flow(topology, source, flow, wanted[i])
    return routes


def _paths(problem: Problem, demand: NDArray[np.int64], unit: int, found: PathMix) -> AllToAllBound:
    """The outcome for a network without symmetry that is too large for the program."""
    topology = problem.topology
    few = topology.num_ranks <= _RANKS_WITH_ROUTES
    return AllToAllBound(
        problem=problem,
        inv_rate=length_bound(topology, demand, found.length) * unit,
        reached=found.reached * unit,
        length=tuple(found.length),
        routes=found.routes(topology) if few else {},
        symmetry=trivial_symmetry(topology),
        method=f"paths evened out ({found.sweeps} sweeps), loads counted, lengths proved",
    )


def _spread(problem: Problem, demand: NDArray[np.int64], unit: int, found: Spread) -> AllToAllBound:
    """The outcome for a network of very many pairs without symmetry: one tree for each rank stands for its paths."""
    topology = problem.topology
    routes: dict[int, list[FlowRoute]] = {}
    if topology.num_ranks <= _RANKS_WITH_ROUTES:
        for mix in found.mixes:
            for i, rank in enumerate(mix.ranks.tolist()):
                trees = [tree[i] for tree in mix.last_link]
                routes[rank] = routes_of_trees(topology, rank, demand[rank], trees, mix.weights)
    return AllToAllBound(
        problem=problem,
        inv_rate=length_bound(topology, demand, found.length) * unit,
        reached=found.reached * unit,
        length=tuple(found.length),
        routes=routes,
        symmetry=trivial_symmetry(topology),
        method=f"mixes of shortest-path trees ({found.sweeps} sweeps)",
    )


def _reached(
    topology: Topology, demand: NDArray[np.int64], routes: dict[int, list[FlowRoute]], symmetry: Symmetry
) -> Fraction:
    """Time per unit of demand of the routes and all their images: the largest load over its capacity."""
    total = [Fraction(0)] * topology.num_links
    nodes = topology.rank_nodes
    for rank, own in routes.items():
        wanted = np.zeros(topology.num_nodes, dtype=np.int64)
        wanted[nodes] = demand[rank]
        for e, load in enumerate(link_loads(topology, own, wanted)):
            if load:
                total[e] += load
    images: dict[int, Fraction] = {}
    unit = topology.denominator
    for e, load in enumerate(total):
        if load:
            orbit = int(symmetry.link_orbit[e])
            images[orbit] = images.get(orbit, Fraction(0)) + load * symmetry.order / int(
                symmetry.link_orbit_size[e]
            )
    capacity = dict(zip(symmetry.link_orbit.tolist(), topology.capacity.tolist(), strict=True))
    return max((load * unit / capacity[orbit] for orbit, load in images.items()), default=Fraction(0))


def _check_reachable(topology: Topology, demand: NDArray[np.int64]) -> None:
    hops = distances(topology, topology.rank_nodes, np.ones(topology.num_links, dtype=np.int64))
    missing = np.argwhere((hops[:, topology.rank_nodes] >= 2**62) & (demand > 0))
    if len(missing):
        a, b = (topology.node_ids[topology.rank_nodes[rank]] for rank in missing[0])
        raise UnreachableError(
            f"every demand needs a path, found none from {a} to {b} ({len(missing)} pairs without one): "
            "add links or choose ranks that are connected."
        )


def _nothing_to_do(problem: Problem) -> AllToAllBound:
    return AllToAllBound(
        problem=problem,
        inv_rate=Fraction(0),
        reached=Fraction(0),
        length=(1,) * problem.topology.num_links,
        routes={},
        symmetry=trivial_symmetry(problem.topology),
        method="nothing has to move",
    )
