"""Blink: broadcast, reduce and all-reduce trees on the allocated GPUs.

Blink (G. Wang, S. Venkataraman, A. Phanishayee, J. Thelin, N. Devanur, I. Stoica, MLSys 2020) packs spanning trees from
one root: multiplicative weights find many, an integer program keeps few with whole rates. NVLink and PCIe get trees of
their own and a part of the data each; GPUs on an NVSwitch get trees of one hop; several machines three phases.

What a user may ask of Blink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

import msgspec

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.forest.planner import plan_forest
from coppice.planners.synthesis.blink.packings import GrowingForest, Packed, exact_packing, weighted_packing
from coppice.planners.synthesis.blink.routes import EdgeRoute, EdgeRoutes, Fabric, one_hop, routes_between
from coppice.planners.synthesis.blink.whole import whole_packing
from coppice.planners.synthesis.synthesizing import Request, Status, Synthesis, SynthesisMethod
from coppice.schedule.forest import Forest
from coppice.schedule.loads import body_loads
from coppice.text import parse_size, percent_text, plural, shortened
from coppice.topology.model import Topology


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalTrees:
    """Trees within one machine."""

    members: tuple[int, ...]  # Its ranks
    routes: EdgeRoutes  # What tree edges run over inside
    trees: tuple[tuple[EdgeRoute, ...], ...]  # Edges of each tree
    shares: tuple[Fraction, ...]  # Share of the data of each; they add up to 1


def machines_of(topology: Topology) -> list[tuple[int, ...]]:
    """Ranks of each host, or all in one where hosts are unknown."""
    hosts = topology.host[topology.rank_nodes].tolist()
    if min(hosts, default=-1) < 0:
        return [tuple(range(topology.num_ranks))]
    found: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return [tuple(members) for _, members in sorted(found.items())]


def partition_roots(
    topology: Topology, machines: Sequence[tuple[int, ...]]
) -> tuple[list[list[int]], dict[tuple[int, int], EdgeRoute]]:
    """Roots of each partition, one per machine, and the links between them."""
    routes = routes_between(topology, range(topology.num_ranks), Collective.ALL_REDUCE)
    at = {(route.parent, route.child): route for route in routes.routes}
    free = [list(members) for members in machines]
    roots = []
    for place, first in enumerate(machines[0]):
        row = [first]
        for members, others in zip(machines[1:], free[1:], strict=True):
            # The GPU of the same place where it can be reached: that spreads the partitions over the NICs.
            same = [rank for rank in members[place : place + 1] if rank in others]
            met = (rank for rank in [*same, *others] if all((rank, known) in at for known in row))
            row.append(next(met, -1))
        if min(row) >= 0:
            roots.append(row)
            for others, rank in zip(free, row, strict=True):
                others.remove(rank)
    if not roots:
        raise InputError(
            f"expected GPUs of all machines of {topology.name} that reach each other through the network, found "
            "none: choose ranks with NICs, or pack over all links at once (`parameters=machines=flat`)."
        )
    return roots, at


def grow_three_phases(
    forest: GrowingForest,
    machines: Sequence[LocalTrees],
    roots: Sequence[Sequence[int]],  # For each partition its root in every machine
    across: dict[tuple[int, int], EdgeRoute],
) -> int:
    """Add the trees of all three phases; return their number."""
    partitions = [Fraction(p, len(roots)) for p in range(len(roots))]
    starts = [_starts(machine) for machine in machines]
    cuts = sorted({*partitions, *(start for each in starts for start in each)})
    trees = 0
    for begin, end in zip(cuts, [*cuts[1:], Fraction(1)], strict=True):
        partition = roots[_falls_on(partitions, begin)]
        inside = [
            _hung(machine.trees[_falls_on(start, begin)], partition[m], machine)
            for m, (machine, start) in enumerate(zip(machines, starts, strict=True))
        ]
        for main in range(len(machines)):
            edges = list(inside[main])
            for m, local in enumerate(inside):
                if m != main:
                    edges += [across[partition[main], partition[m]], *local]
            forest.add(partition[main], edges, (end - begin) / len(machines))
            trees += 1
    return trees


def _starts(machine: LocalTrees) -> list[Fraction]:
    found, total = [], Fraction(0)
    for share in machine.shares:
        found.append(total)
        total += share
    return found


def _falls_on(starts: Sequence[Fraction], place: Fraction) -> int:
    return max(number for number, start in enumerate(starts) if start <= place)


def _hung(tree: Sequence[EdgeRoute], root: int, machine: LocalTrees) -> list[EdgeRoute]:
    """The edges of a tree hung from ``root``, parents before children."""
    at = {(route.parent, route.child): route for route in machine.routes.routes}
    beside: dict[int, list[int]] = {}
    for route in tree:
        beside.setdefault(route.parent, []).append(route.child)
        beside.setdefault(route.child, []).append(route.parent)
    ordered, level, seen = [], [root], {root}
    while level:
        following = []
        for rank in level:
            for other in sorted(set(beside.get(rank, ())) - seen):
                ordered.append(at[rank, other])
                seen.add(other)
                following.append(other)
        level = following
    return ordered


class BlinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the method."""

    # `integer`: few trees with whole rates, chosen among those of multiplicative weights, as Blink does.
    # `weights`: all trees of multiplicative weights. `exact`: the fastest packing, proved.
    packing: Literal["integer", "weights", "exact"] = "integer"
    # Rate of a whole tree; 0 takes that of one link: what divides the rates of all
    unit_gb_per_s: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    # Share of the rate that whole trees may lose before smaller parts of the unit are tried
    loss: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.05
    # How fast lengths grow in multiplicative weights
    epsilon: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.1
    # How near to the optimum multiplicative weights end, a share of it
    gap: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.01
    # Which links trees use. `auto`: direct links and switches, each by itself where both reach all GPUs
    # (NVLink beside PCIe), or what reaches them. `direct`, `switched`, `both`: each by itself. `together`:
    # one packing over all links.
    links: Literal["auto", "direct", "switched", "both", "together"] = "auto"
    # Time that it takes to change peer access from NVLink to PCIe, for the split between them
    switch_us: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    size: str = ""  # Bytes of the data, where that time counts
    # `auto`: an all-reduce over hosts has three phases. `flat`: one packing over all links.
    machines: Literal["auto", "flat"] = "auto"
    tree_root: Annotated[int, msgspec.Meta(ge=0)] = 0  # Root of the trees of an all-reduce, a rank


_MOST_RANKS = 256


@dataclass
class _Account:
    """What is said beside the forest."""

    details: dict[str, Any]
    words: list[tuple[str, str]]
    interrupted: bool = False

    def take(self, packed: Packed, where: str) -> None:
        """Say what a packing became."""
        most = packed.most
        self.details["packings"].append(
            {
                "link_kind": where,
                "links": where,
                "root": packed.root,
                "trees": len(packed.trees),
                "gb_per_s": str(packed.rate),
                "most_gb_per_s": str(most),
                "proved": packed.rate == most,
            }
        )
        loss = 1 - packed.rate / most if most else Fraction(0)
        lost = "as fast as trees from one root can be"
        if packed.rate != most:
            lost = f"within {percent_text(loss)} of what trees from one root can have"
        self.words.append((where, f"{plural(len(packed.trees), 'tree')} at {_rate(packed.rate)}: {lost}"))


def _rate(rate: Fraction) -> str:
    exact = "" if rate.denominator == 1 or rate.denominator > 10**4 else f" ({rate})"
    return f"{float(rate):.6g} GB/s{exact}"


def pcie_share(size_bytes: int, pcie: Fraction, nvlink: Fraction, switch_us: Fraction) -> Fraction:
    """Share of the data for PCIe so that it finishes with NVLink.

    ``D_pcie = D * p / (p + n) - T * p * n / (p + n)`` for rates p and n, and the time T that it takes to change peer
    access from one to the other; 0 where that is negative.

    Args:
        size_bytes: D in bytes; 0 where T is 0 and does not count.
        pcie: Rate of the trees on PCIe in GB/s.
        nvlink: Rate of the trees on NVLink in GB/s.
        switch_us: T in microseconds.

    Examples:
        >>> pcie_share(0, Fraction(10), Fraction(90), Fraction(0))
        Fraction(1, 10)
        >>> pcie_share(1_000_000, Fraction(10), Fraction(90), Fraction(5))
        Fraction(11, 200)
        >>> pcie_share(10_000, Fraction(10), Fraction(90), Fraction(5))
        Fraction(0, 1)
    """
    share = pcie / (pcie + nvlink)
    if switch_us:
        share -= switch_us * 1000 * pcie * nvlink / (pcie + nvlink) / max(size_bytes, 1)
    return max(share, Fraction(0))


def synthesized(request: Request) -> Synthesis:
    """Synthesise the trees of a request."""
    problem, options = request.problem, request.options
    topology, ranks = problem.topology, problem.topology.num_ranks
    if ranks > _MOST_RANKS:
        raise InputError(
            f"expected at most {_MOST_RANKS} ranks for blink, found {ranks}: plan them with the forest planner."
        )
    if options.tree_root >= ranks:
        raise InputError(
            f"expected a rank of 0 .. {ranks - 1} as `tree_root`, found {options.tree_root}: choose one of these."
        )
    if options.switch_us and not options.size:
        raise InputError(
            "expected `size` beside `switch_us`, found none: say how many bytes there are (`parameters=size=64M`)."
        )
    answer = _Account(details={"packing": options.packing, "packings": []}, words=[])
    machines = machines_of(topology)
    phases = (
        problem.collective is Collective.ALL_REDUCE
        and options.machines == "auto"
        and len(machines) > 1
        and max(map(len, machines)) > 1
    )
    if ranks == 1:
        forest = plan_forest(problem)
    elif phases:
        forest = _three_phases(request, machines, answer)
    else:
        forest = _flat(request, answer)
    answer.details["trees"] = forest.num_trees
    answer.details["rate_exact_gb_per_s"] = answer.details["rate_exact"] = _forest_rate(forest, problem)
    return Synthesis(
        status=Status.SAT,
        body=forest,
        parameters={
            name: value if isinstance(value, (int, str)) else f"{value:.12g}"
            for name, value in msgspec.structs.asdict(options).items()
        },
        interrupted=answer.interrupted,
        details=answer.details,
        words=tuple(answer.words),
    )


def _forest_rate(forest: Forest, problem: Problem) -> str | None:
    loads = body_loads(forest, problem)
    return str(problem.shards / loads.inv_rate) if loads.inv_rate else None


def _flat(request: Request, answer: _Account) -> Forest:
    """One packing from one root, or one on each fabric."""
    problem, options = request.problem, request.options
    topology = problem.topology
    root = options.tree_root if problem.root is None else problem.root
    forest = GrowingForest(problem)
    members = range(topology.num_ranks)
    chosen = _fabrics(problem, options, root)
    if options.packing == "integer" and Fabric.DIRECT not in chosen and one_hop(topology, members):
        routes = routes_between(topology, members, problem.collective)
        trees = _one_hop_trees(routes, root, problem.collective)
        for start, edges in trees:
            forest.add(start, edges, Fraction(1, len(trees)))
        answer.words.append(
            ("switch", f"{plural(len(trees), 'tree')} of one hop, as all GPUs hang on one switch")
        )
        answer.details["one_hop"] = True
        return forest.forest()
    if options.packing == "exact" and problem.root is not None and Fabric.TOGETHER in chosen:
        return plan_forest(problem)
    packed = []
    for fabric in chosen:
        routes = routes_between(topology, members, problem.collective, fabric)
        found = _packed(routes, root, request, answer)
        answer.take(found, _FABRIC_WORDS[fabric])
        packed.append(found)
    if len(packed) == 1:
        forest.add_packed(packed[0], Fraction(1))
        return forest.forest()
    nvlink, pcie = packed
    size = parse_size(options.size, option="size") if options.size else 0
    share = pcie_share(size, pcie.rate, nvlink.rate, Fraction(options.switch_us))
    forest.add_packed(nvlink, 1 - share)
    if share:
        forest.add_packed(pcie, share)
    answer.details["switched_share"] = str(share)
    answer.words.append(
        ("split", f"{percent_text(share)} of the data over switches, so that both end together")
    )
    return forest.forest()


_FABRIC_WORDS = {Fabric.DIRECT: "direct links", Fabric.SWITCHED: "switches", Fabric.TOGETHER: "all links"}


def _fabrics(problem: Problem, options: BlinkOptions, root: int) -> list[Fabric]:
    """The fabrics that get trees of their own."""
    asked = options.links
    if asked == "both":
        return [Fabric.DIRECT, Fabric.SWITCHED]
    if asked != "auto":
        return [Fabric(asked)]
    if options.packing == "exact" and problem.root is not None:
        return [Fabric.TOGETHER]
    spanning = []
    for fabric in (Fabric.DIRECT, Fabric.SWITCHED):
        routes = routes_between(
            problem.topology, range(problem.topology.num_ranks), problem.collective, fabric
        )
        if routes.unreached(root) is None:
            spanning.append(fabric)
    return spanning or [Fabric.TOGETHER]


def _one_hop_trees(
    routes: EdgeRoutes, root: int, collective: Collective
) -> list[tuple[int, list[EdgeRoute]]]:
    """Trees on one switch: every GPU the root of its share, or fed by the root with it."""
    at = {(route.parent, route.child): route for route in routes.routes}
    members = routes.members
    if collective is Collective.ALL_REDUCE:
        return [(hub, [at[hub, other] for other in members if other != hub]) for hub in members]
    return [
        (root, [at[root, hub], *(at[hub, other] for other in members if other not in (hub, root))])
        for hub in members
        if hub != root
    ]


def _packed(routes: EdgeRoutes, root: int, request: Request, answer: _Account) -> Packed:
    """The packing that the options ask for."""
    options = request.options
    if options.packing == "exact":
        return exact_packing(routes, root)
    found = weighted_packing(
        routes,
        root,
        epsilon=options.epsilon,
        gap=options.gap,
        deadline=request.deadline,
        on_progress=request.on_progress,
    )
    answer.interrupted |= found.interrupted
    answer.details.setdefault("weighted_trees", []).append(len(found.trees))
    if options.packing == "weights" or found.interrupted:
        return found
    unit = Fraction(options.unit_gb_per_s).limit_denominator(10**6) or _slowest(routes)
    request.report(f"choosing few of {plural(len(found.trees), 'tree')}")
    try:
        whole = whole_packing(found, unit, loss=options.loss, deadline=request.deadline)
    except KeyboardInterrupt:
        answer.interrupted = True
        return found
    if whole is None:
        return found
    part = f" / {whole.parts}" if whole.parts > 1 else ""
    answer.words.append(
        ("unit", f"{_rate(unit)}{part}; {plural(len(found.trees), 'tree')} of multiplicative weights")
    )
    answer.details.setdefault("unit_gb_per_s", []).append(str(whole.unit))
    return whole.packed


def _slowest(routes: EdgeRoutes) -> Fraction:
    """The rate of the slowest link that trees may use."""
    used = sorted({e for route in routes.routes for e in route.links})
    return min(routes.topology.gb_per_s(e) for e in used)


def _three_phases(request: Request, machines: list[tuple[int, ...]], answer: _Account) -> Forest:
    """Local reduce, one hop between machines, local broadcast."""
    problem, options = request.problem, request.options
    topology = problem.topology
    roots, across = partition_roots(topology, machines)
    local = []
    known: dict[tuple[Any, ...], Packed] = {}
    for m, members in enumerate(machines):
        host = int(topology.host[topology.rank_nodes[members[0]]])
        routes = routes_between(topology, members, Collective.ALL_REDUCE, inside=host)
        if routes.unreached(members[0]) is not None:  # GPUs that meet in the network only
            routes = routes_between(topology, members, Collective.ALL_REDUCE)
        at = {(route.parent, route.child): route for route in routes.routes}
        if len(members) == 1:
            local.append(LocalTrees(members=members, routes=routes, trees=((),), shares=(Fraction(1),)))
            continue
        if options.packing == "integer" and one_hop(topology, members):
            hubs = [row[m] for row in roots]
            trees = tuple(tuple(at[hub, each] for each in members if each != hub) for hub in hubs)
            shares = (Fraction(1, len(hubs)),) * len(hubs)
            local.append(LocalTrees(members=members, routes=routes, trees=trees, shares=shares))
            continue
        shape = _shape(routes, members)
        if shape not in known:
            known[shape] = _packed(routes, members[0], request, answer)
            answer.take(known[shape], f"inside {topology.hosts[host]}")
        packed = known[shape]
        shares = tuple(rate / packed.rate for rate in packed.rates)
        trees = tuple(tuple(routes.routes[each] for each in tree) for tree in packed.trees)
        local.append(LocalTrees(members=members, routes=routes, trees=trees, shares=shares))
    forest = GrowingForest(problem)
    count = grow_three_phases(forest, local, roots, across)
    names = [topology.node_ids[topology.rank_nodes[row[0]]] for row in roots]
    between = f"one hop between the roots of {plural(len(roots), 'partition')}"
    inside = f"reduce inside {plural(len(machines), 'machine')}"
    answer.words.append(("phases", f"{inside}, {between}, broadcast inside: {plural(count, 'tree')}"))
    answer.words.append(("roots", f"{shortened(names, 4)} and those beside them in other machines"))
    answer.details |= {"phases": 3, "partitions": len(roots)}
    return forest.forest()


def _shape(routes: EdgeRoutes, members: tuple[int, ...]) -> tuple[Any, ...]:
    """The same for machines whose GPUs are linked alike, in the same order."""
    place = {rank: number for number, rank in enumerate(members)}
    links: dict[int, int] = {}
    rows = tuple(
        (place[route.parent], place[route.child], tuple(links.setdefault(e, len(links)) for e in route.links))
        for route in routes.routes
    )
    return rows, tuple(routes.topology.capacity[list(links)].tolist())


METHOD = SynthesisMethod(
    name="blink",
    about="spanning trees from one root, packed onto what a job got (Blink, MLSys 2020)",
    collectives=(Collective.BROADCAST, Collective.REDUCE, Collective.ALL_REDUCE),
    options=BlinkOptions,
    run=synthesized,
)
