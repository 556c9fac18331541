"""Blink: trees on the allocated GPUs for every collective.

Blink (G. Wang, S. Venkataraman, A. Phanishayee, J. Thelin, N. Devanur, I. Stoica, MLSys 2020) packs spanning trees from
one root: multiplicative weights find many, an integer program keeps few with whole rates. NVLink and PCIe get trees of
their own and a part of the data each; GPUs on an NVSwitch get trees of one hop; several machines three phases.

What a user may ask of Blink.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

import msgspec

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.forest.planner import plan_forest
from coppice.planners.synthesis.blink.machines import (
    LocalTrees,
    grow_three_phases,
    machines_of,
    partition_roots,
)
from coppice.planners.synthesis.blink.many import ONE_TO_ALL, packed_together, schedule_along
from coppice.planners.synthesis.blink.packings import (
    GrowingForest,
    Packed,
    TreeLoads,
    exact_packing,
    weighted_packing,
)
from coppice.planners.synthesis.blink.routes import EdgeRoute, EdgeRoutes, Fabric, one_hop, routes_between
from coppice.planners.synthesis.blink.whole import whole_packing
from coppice.planners.synthesis.synthesizing import Request, Status, Synthesis, SynthesisMethod
from coppice.schedule.forest import Forest
from coppice.schedule.loads import body_loads
from coppice.schedule.schedule import Schedule
from coppice.text import parse_size, percent_text, plural, shortened


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

_MOST_ROOTS = 64


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
    if ranks > _MOST_ROOTS and problem.collective in (*_OF_ALL, Collective.ALL_TO_ALL):
        raise InputError(
            f"expected at most {_MOST_ROOTS} ranks for trees from all of them, found {ranks}: plan them with the "
            "forest planner, or an all_to_all with the flow planner."
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
    body: Forest | Schedule
    if problem.collective in _OF_BLOCKS:
        body = schedule_along(problem, [] if ranks == 1 else _every_root(request, answer))
    elif ranks == 1:
        body = plan_forest(problem)
    elif problem.collective in _OF_ALL:
        body = _of_all(request, answer)
    elif phases:
        body = _three_phases(request, machines, answer)
    else:
        body = _flat(request, answer)
    if isinstance(body, Forest):
        answer.details["trees"] = body.num_trees
    answer.details["rate_exact_gb_per_s"] = answer.details["rate_exact"] = _rate_of(body, problem)
    return Synthesis(
        status=Status.SAT,
        body=body,
        parameters={
            name: value if isinstance(value, (int, str)) else f"{value:.12g}"
            for name, value in msgspec.structs.asdict(options).items()
        },
        interrupted=answer.interrupted,
        details=answer.details,
        words=tuple(answer.words),
    )


def _rate_of(body: Forest | Schedule, problem: Problem) -> str | None:
    loads = body_loads(body, problem)
    return str(problem.shards / loads.inv_rate) if loads.inv_rate else None


_OF_BLOCKS = (Collective.GATHER, Collective.SCATTER, Collective.ALL_TO_ALL)

_OF_ALL = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


def _every_root(request: Request, answer: _Account) -> list[Packed]:
    """Trees from the root, or from every rank, on the fabrics that suit; those of one root one after the other."""
    problem, options = request.problem, request.options
    topology, collective = problem.topology, ONE_TO_ALL[problem.collective]
    ranks = range(topology.num_ranks)
    found = []
    for root in ranks if problem.root is None else (problem.root,):
        request.report(f"trees from rank {root}")
        for fabric in _fabrics(problem, options, root, collective):
            routes = routes_between(topology, ranks, collective, fabric)
            if fabric is not Fabric.DIRECT and one_hop(topology, ranks):
                number = {(route.parent, route.child): i for i, route in enumerate(routes.routes)}
                star = tuple(number[root, other] for other in ranks if other != root)
                found.append(
                    Packed(routes=routes, root=root, trees=(star,), rates=(Fraction(1),), most=Fraction(1))
                )
            else:
                found.append(_packed(routes, root, request, answer))
    return found


def _of_all(request: Request, answer: _Account) -> Forest:
    """Trees from all ranks on the same links."""
    problem = request.problem
    ranks, collective = range(problem.topology.num_ranks), ONE_TO_ALL[problem.collective]
    loads = []
    for root in ranks:
        for fabric in _fabrics(problem, request.options, root, collective):
            routes = routes_between(problem.topology, ranks, collective, fabric)
            loads.append(TreeLoads(routes, root))
            number = {(route.parent, route.child): i for i, route in enumerate(routes.routes)}
            star = [number.get((root, other), -1) for other in ranks if other != root]
            if min(star) >= 0:
                loads[-1].add(star)
    found = packed_together(
        loads, problem.weights, deadline=request.deadline, on_progress=request.on_progress
    )
    forest = GrowingForest(problem)
    for packed in found:
        for tree, rate in enumerate(packed.rates):
            if rate:
                forest.add(packed.root, packed.edges(tree), rate)
    trees = sum(sum(map(bool, packed.rates)) for packed in found)
    answer.words.append(
        ("trees", f"{plural(trees, 'tree')} from all ranks, their rates by one linear program")
    )
    return forest.forest()


def _flat(request: Request, answer: _Account) -> Forest:
    """One packing from one root, or one on each fabric."""
    problem, options = request.problem, request.options
    topology = problem.topology
    root = options.tree_root if problem.root is None else problem.root
    forest = GrowingForest(problem)
    members = range(topology.num_ranks)
    chosen = _fabrics(problem, options, root, problem.collective)
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


def _fabrics(problem: Problem, options: BlinkOptions, root: int, collective: Collective) -> list[Fabric]:
    """The fabrics that get trees of their own."""
    asked = options.links
    if asked == "both":
        return [Fabric.DIRECT, Fabric.SWITCHED]
    if asked != "auto":
        return [Fabric(asked)]
    if options.packing == "exact" and collective is not Collective.ALL_REDUCE:
        return [Fabric.TOGETHER]
    spanning = []
    for fabric in (Fabric.DIRECT, Fabric.SWITCHED):
        routes = routes_between(problem.topology, range(problem.topology.num_ranks), collective, fabric)
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
    about="spanning trees packed onto the links that a job got (Blink, MLSys 2020)",
    collectives=(Collective.BROADCAST, Collective.REDUCE, Collective.ALL_REDUCE, *_OF_ALL, *_OF_BLOCKS),
    options=BlinkOptions,
    run=synthesized,
)
