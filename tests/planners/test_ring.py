"""The best ring: exact figures, never faster than the bound, as good as brute force, verified."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.tours import cheapest_tour

from coppice.bounds import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.ring.best import RingPlan, best_ring, ring_forest, ring_schedule
from coppice.planners.ring.factors import cable_multigraph, hamiltonian_factors
from coppice.planners.ring.tour import all_paths, cut_tours, exact_tour, local_tour, patched_tour, tour_cost
from coppice.schedule.plan import Plan
from coppice.schedule.verification.verify import verify
from coppice.topology import resolve
from coppice.topology.model import Link, Node, NodeKind, Topology

PLANNED = [c for c in Collective if c.made_of_trees]


def graph(*links: tuple[str, str, int], duplex: bool = True) -> Topology:
    """GPUs named by the links; a name that begins with `s` is a switch."""
    names = sorted({name for a, b, _ in links for name in (a, b)})
    nodes = [Node(id=n, kind=NodeKind.SWITCH if n.startswith("s") else NodeKind.GPU) for n in names]
    return Topology.of(
        "graph", nodes, [Link(src=a, dst=b, gb_per_s=Fraction(c), duplex=duplex) for a, b, c in links]
    )


def problem(topology: Topology, collective: Collective = Collective.ALL_GATHER, **more: object) -> Problem:
    root = 0 if collective.rooted else None
    return Problem(topology=topology, collective=collective, root=root, **more)  # type: ignore[arg-type]


def counted(plan: RingPlan) -> Fraction:
    """Time per shard, counted hop by hop from orders, weights and paths alone."""
    topology, collective = plan.problem.topology, plan.problem.collective
    ranks = topology.num_ranks
    shard = plan.problem.weights or (1,) * ranks
    load = dict.fromkeys(topology.link_index.values(), Fraction(0))
    for order, weight, paths in zip(plan.orders, plan.weights, plan.paths, strict=True):
        for u, v, path in zip(order, (*order[1:], order[0]), paths, strict=True):
            assert path[0] == topology.rank_nodes[u]
            assert path[-1] == topology.rank_nodes[v]
            assert all(topology.rank[node] < 0 for node in path[1:-1])
            carried = {
                Collective.ALL_GATHER: Fraction(sum(shard) - shard[v]),
                Collective.REDUCE_SCATTER: Fraction(sum(shard) - shard[u]),
                Collective.ALL_REDUCE: Fraction(2 * (ranks - 1), ranks),
                Collective.BROADCAST: Fraction(int(v != plan.problem.root)),
                Collective.REDUCE: Fraction(int(u != plan.problem.root)),
            }[collective]
            for step in pairwise(path):
                load[topology.link_index[step]] += weight * carried
    return max(used / topology.gb_per_s(link) for link, used in load.items())


def check(plan: RingPlan) -> None:
    ranks = plan.problem.topology.num_ranks
    assert sum(plan.weights) == 1
    assert all(weight > 0 for weight in plan.weights)
    assert all(sorted(order) == list(range(ranks)) for order in plan.orders)
    assert plan.inv_rate == counted(plan)
    assert plan.inv_rate >= bound(plan.problem).inv_rate


@pytest.mark.parametrize(
    ("spec", "boxes", "options", "inv_rate"),
    [
        ("ring", None, {"gpus": "5"}, Fraction(2)),
        ("ring", None, {"gpus": "12", "gb_per_s": "25"}, Fraction(11, 50)),
        ("torus", None, {"dims": "4x4"}, Fraction(15, 4)),
        ("torus", None, {"dims": "3x5"}, Fraction(14, 4)),
        ("torus", None, {"dims": "4x4x4"}, Fraction(63, 6)),
        ("torus", None, {"dims": "16x16"}, Fraction(255, 4)),
        ("torus", None, {"dims": "4x6", "gb_per_s": "2,1"}, Fraction(23, 6)),
        ("hypercube", None, {"dimension": "3"}, Fraction(7, 3)),
        ("hypercube", None, {"dimension": "6"}, Fraction(63, 6)),
        ("complete", None, {"gpus": "7"}, Fraction(1)),
        ("complete", None, {"gpus": "6"}, Fraction(1)),
        ("bipartite", None, {"left": "4"}, Fraction(7, 4)),
        ("mesh", None, {"dims": "4x4"}, Fraction(15, 2)),
        ("dgx-1v", 1, {}, Fraction(7, 150)),
        ("dgx-a100", 1, {}, Fraction(7, 300)),
        ("dgx-a100", 2, {}, Fraction(15, 200)),
        ("dgx-a100", 16, {}, Fraction(127, 200)),
        ("mi250", 1, {}, Fraction(1, 20)),
        ("mi250", 4, {}, Fraction(63, 256)),
        ("dgx-h100", 4, {}, Fraction(31, 400)),
    ],
)
def test_known_rates(spec: str, boxes: int | None, options: dict[str, str], inv_rate: Fraction) -> None:
    plan = best_ring(problem(resolve(spec, boxes=boxes, options=options)))
    assert plan is not None
    check(plan)
    assert plan.inv_rate == inv_rate


@pytest.mark.parametrize(
    "topology",
    [
        graph(("a", "b", 1), ("b", "c", 1), ("c", "d", 1)),
        graph(("a", "b", 1), ("a", "c", 1), ("a", "d", 1)),
        graph(("a", "b", 5), ("b", "c", 5), ("b", "d", 5), ("d", "e", 5)),
        graph(("a", "b", 1), ("b", "c", 1), duplex=False),
        resolve("mesh", options={"dims": "3x3"}),
        resolve("mesh", options={"dims": "5x7"}),
        resolve("mesh", options={"dims": "25x25"}),
        resolve("petersen"),
        Topology.of("one", [Node(id="a")], []),
    ],
    ids=["path", "star", "tree", "one way", "mesh 3x3", "mesh 5x7", "mesh 25x25", "petersen", "one rank"],
)
def test_none_without_a_ring(topology: Topology) -> None:
    assert best_ring(problem(topology)) is None


def test_none_for_all_to_all() -> None:
    assert best_ring(problem(resolve("ring"), Collective.ALL_TO_ALL)) is None


def test_a_star_of_switch_ports_has_a_ring() -> None:
    plan = best_ring(problem(graph(("a", "s", 3), ("b", "s", 10), ("c", "s", 10))))
    assert plan is not None
    assert plan.inv_rate == Fraction(2, 3)


def test_fractional_rates_are_exact() -> None:
    plan = best_ring(problem(resolve("ring", options={"gpus": "4", "gb_per_s": "25/3"})))
    assert plan is not None
    check(plan)
    assert plan.inv_rate == Fraction(3, 2) * Fraction(3, 25)


def test_relays_carry_rings() -> None:
    nodes = [Node(id="a", rank=0), Node(id="b"), Node(id="c", rank=1)]
    links = [Link(src=x, dst=y, gb_per_s=Fraction(4)) for x, y in ("ab", "bc")]
    plan = best_ring(problem(Topology.of("relay", nodes, links)))
    assert plan is not None
    assert plan.paths == (((0, 1, 2), (2, 1, 0)),)


@pytest.mark.parametrize("collective", PLANNED)
@pytest.mark.parametrize(("spec", "boxes"), [("dgx-1v", 1), ("dgx-a100", 2), ("ring", None), ("dgx-a100", 3)])
def test_verified_as_a_schedule(collective: Collective, spec: str, boxes: int | None) -> None:
    asked = problem(resolve(spec, boxes=boxes), collective)
    ring = best_ring(asked)
    assert ring is not None
    check(ring)
    for plan in (
        Plan(problem=asked, inv_rate=ring.inv_rate, forest=ring_forest(ring)),
        Plan(problem=asked, inv_rate=ring.inv_rate, schedule=ring_schedule(ring)),
    ):
        assert verify(plan).failures == ()


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER])
def test_weighted_shards(collective: Collective) -> None:
    asked = problem(resolve("dgx-1v"), collective, weights=(1, 2, 3, 4, 5, 0, 7, 1))
    ring = best_ring(asked)
    assert ring is not None
    check(ring)
    assert verify(Plan(problem=asked, inv_rate=ring.inv_rate, forest=ring_forest(ring))).failures == ()


def single_ring_optimum(topology: Topology) -> Fraction | None:
    """The best single ring of direct links over all orders."""
    ranks = topology.num_ranks
    times = []
    for rest in permutations(range(1, ranks)):
        steps = list(pairwise((0, *rest, 0)))
        if all(step in topology.link_index for step in steps):
            times.append((ranks - 1) / min(topology.gb_per_s(topology.link_index[step]) for step in steps))
    return min(times, default=None)


@st.composite
def direct_graphs(draw: st.DrawFn) -> Topology:
    size = draw(st.integers(3, 6))
    rates = draw(st.lists(st.integers(0, 4), min_size=size * size, max_size=size * size))
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    links = [
        Link(src=str(a), dst=str(b), gb_per_s=Fraction(rate), duplex=False)
        for (a, b), rate in zip(pairs, rates, strict=False)
    ]
    return Topology.of("random", [Node(id=str(v)) for v in range(size)], links)


@settings(max_examples=150, deadline=None)
@given(direct_graphs())
def test_never_worse_than_the_best_single_ring(topology: Topology) -> None:
    plan = best_ring(problem(topology))
    single = single_ring_optimum(topology)
    assert (plan is None) == (single is None)
    if plan is not None:
        check(plan)
        assert plan.inv_rate <= single


@settings(max_examples=25, deadline=None)
@given(direct_graphs())
def test_as_good_as_all_rings_together(topology: Topology) -> None:
    """Column generation ends at the optimum of the linear program over every ring that exists."""
    from coppice.planners.ring.model import best_mix

    columns = []
    for rest in permutations(range(1, topology.num_ranks)):
        steps = list(pairwise((0, *rest, 0)))
        if all(step in topology.link_index for step in steps):
            column = np.zeros(topology.num_links, dtype=np.int64)
            column[[topology.link_index[step] for step in steps]] = topology.num_ranks - 1
            columns.append(column)
    plan = best_ring(problem(topology))
    if plan is not None:
        least = best_mix(np.array(columns), topology.capacity).level * topology.denominator
        assert float(plan.inv_rate) == pytest.approx(least, rel=1e-5)


def test_same_seed_same_rings() -> None:
    asked = problem(resolve("mi250", boxes=2))
    assert best_ring(asked, rounds=12) == best_ring(asked, rounds=12)


def test_a_thousand_ranks() -> None:
    plan = best_ring(problem(resolve("dgx-a100", boxes=128)))
    assert plan is not None
    check(plan)
    assert plan.inv_rate == Fraction(1023, 200)
    assert len(plan.orders) <= 16


@pytest.mark.parametrize(
    "spec", ["fat-tree", "dragonfly", "pcie-box", "generalized-kautz", "random-balanced"]
)
def test_other_networks_never_beat_the_bound(spec: str) -> None:
    plan = best_ring(problem(resolve(spec)))
    if plan is not None:
        check(plan)


def test_big_sparse_graphs() -> None:
    for spec, options in (
        ("mesh", {"dims": "24x24"}),
        ("generalized-kautz", {"gpus": "600", "degree": "3"}),
        ("hypercube", {"dimension": "9"}),
    ):
        plan = best_ring(problem(resolve(spec, options=options)), rounds=3)
        assert plan is not None
        check(plan)


@pytest.mark.parametrize("size", range(2, 8))
def test_exact_tours_and_paths_against_all_orders(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(20):
        cost = rng.random((size, size))
        cost[rng.random((size, size)) < 0.3] = np.inf
        least = min(tour_cost(cost, [0, *rest]) for rest in permutations(range(1, size)))
        tour = exact_tour(cost)
        assert (tour is None) == (least == np.inf)
        if tour is not None:
            assert tour_cost(cost, tour) == pytest.approx(least)
        through, path_of = all_paths(cost)
        for first in range(size):
            for last in range(size):
                if first == last:
                    continue
                inner = [v for v in range(size) if v not in (first, last)]
                lengths = [
                    sum(cost[u, v] for u, v in pairwise((first, *middle, last)))
                    for middle in permutations(inner)
                ]
                assert through[first, last] == pytest.approx(min(lengths))
                if min(lengths) < np.inf:
                    path = path_of(first, last)
                    assert sorted(path) == list(range(size))
                    assert sum(cost[u, v] for u, v in pairwise(path)) == pytest.approx(min(lengths))


@pytest.mark.parametrize("size", range(2, 10))
def test_exact_tours_are_those_of_the_slow_reference(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(10):
        cost = rng.integers(1, 6, (size, size)).astype(np.float64)  # many tours are equally cheap
        cost[rng.random((size, size)) < 0.2] = np.inf
        assert exact_tour(cost) == cheapest_tour(cost)


def test_local_tours_are_near_the_optimum() -> None:
    rng = np.random.default_rng(1)
    ratios = []
    for _ in range(20):
        cost = rng.random((12, 12))
        tour = local_tour(cost, rng)
        assert tour is not None
        assert sorted(tour) == list(range(12))
        best = exact_tour(cost)
        assert best is not None
        ratios.append(tour_cost(cost, tour) / tour_cost(cost, best))
    assert min(ratios) >= 1 - 1e-9
    assert sum(ratios) / len(ratios) < 1.15


@pytest.mark.parametrize("dims", ["3x3", "4x5", "8x8", "5x5x5", "4x4x4x4"])
def test_hamiltonian_factors_use_every_cable_once(dims: str) -> None:
    topology = resolve("torus", options={"dims": dims})
    cables = cable_multigraph(topology)
    assert cables is not None
    cycles = hamiltonian_factors(topology.num_ranks, cables, np.random.default_rng(0), tries=5)
    assert cycles is not None
    used = [tuple(sorted(step)) for cycle in cycles for step in pairwise([*cycle, cycle[0]])]
    assert sorted(used) == sorted(cables)
    assert all(sorted(cycle) == list(range(topology.num_ranks)) for cycle in cycles)


def test_patched_tour_follows_allowed_steps() -> None:
    topology = resolve("mesh", options={"dims": "10x12"})
    out: list[list[int]] = [[] for _ in range(topology.num_ranks)]
    for a, b in topology.link_index:
        out[a].append(b)
    tour = patched_tour(out, np.random.default_rng(0))
    assert tour is not None
    assert sorted(tour) == list(range(topology.num_ranks))
    assert all(v in out[u] for u, v in pairwise([*tour, tour[0]]))


def test_tours_cut_open_are_paths_of_the_right_cost() -> None:
    rng = np.random.default_rng(2)
    for _ in range(30):
        cost = rng.random((7, 7))
        cost[rng.random((7, 7)) < 0.15] = np.inf
        tours = [rng.permutation(7).tolist() for _ in range(4)]
        through, path_of = cut_tours(cost, tours)
        paths = {}
        for tour in tours:
            for cut in range(7):
                path = tour[cut:] + tour[:cut]
                length = sum(cost[u, v] for u, v in pairwise(path))
                ends = path[0], path[-1]
                paths[ends] = min(paths.get(ends, np.inf), length)
        for first in range(7):
            for last in range(7):
                assert through[first, last] == pytest.approx(paths.get((first, last), np.inf))
                if np.isfinite(through[first, last]):
                    path = path_of(first, last)
                    assert (path[0], path[-1]) == (first, last)
                    assert sum(cost[u, v] for u, v in pairwise(path)) == pytest.approx(through[first, last])


def test_paths_survive_a_change_of_the_tours_that_they_were_cut_from() -> None:
    cost = np.array([[np.inf if i == j else 1.0 + abs(i - j) for j in range(5)] for i in range(5)])
    tours = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]
    _, path = cut_tours(cost, tours)
    tours[:] = [[0, 2, 4, 1, 3]]
    assert path(2, 1) == [2, 3, 4, 0, 1]


def test_large_boxes_on_few_rails() -> None:
    """Boxes too large for all paths keep tours that change from box to box."""
    problem = Problem(topology=resolve("gb200-nvl72", boxes=4), collective=Collective.ALL_GATHER)
    ring = best_ring(problem)
    assert ring is not None
    assert ring.inv_rate >= bound(problem).inv_rate
