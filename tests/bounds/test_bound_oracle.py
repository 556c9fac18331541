"""The bound on graphs whose optimum is known: the forest oracle entry by entry, and closed forms."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest

from coppice import _core
from coppice.bounds import Problem, bound
from coppice.bounds.lp.program import Constraint, LinearProgram
from coppice.bounds.lp.simplex import solve_in_integers
from coppice.bounds.network import Network, narrow_cuts
from coppice.bounds.tree_units import fixed_trees
from coppice.collectives import Collective
from coppice.planners.forest.planner import plan_forest
from coppice.topology import resolve
from coppice.topology.model import Link, Node, Topology
from reference import exact_rates
from reference.expected import broadcast_view, cut_ratio, expected_inv_rate
from reference.network import describe, network_of, supply_of
from reference.oracle import ENTRIES, NAMES, oracle_topology
from reference.packing import exact_trees
from reference.plans import judged_inv_rate
from reference.strategies import FAMILIES, UNBALANCED_FAMILIES, problem_on, seeded, uneven
from support.shared_data import needs_shared

FIXED = [(name, int(k)) for name in NAMES for k in ENTRIES[name]["expected"]["fixed_k"]]
ROOTS = [(name, root) for name in NAMES for root in ENTRIES[name]["expected"]["broadcast_rate"]]


def all_gather(topology: Topology) -> Fraction:
    return bound(Problem(topology=topology, collective=Collective.ALL_GATHER)).inv_rate


@needs_shared
class TestForestOracle:
    @pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER], ids=str)
    @pytest.mark.parametrize("name", NAMES)
    def test_inv_x_star_and_its_cut(self, name: str, collective: Collective) -> None:
        problem = Problem(topology=oracle_topology(name), collective=collective)
        expected = Fraction(ENTRIES[name]["expected"]["inv_x_star"])
        result = bound(problem)
        assert result.inv_rate == expected  # every entry is balanced, so reduce-scatter is as fast
        assert cut_ratio(problem, result.cut) == expected, f"cut {result.cut}"
        assert result.attainable == expected

    @pytest.mark.parametrize("name", NAMES)
    def test_all_gather_algbw(self, name: str) -> None:
        problem = Problem(topology=oracle_topology(name), collective=Collective.ALL_GATHER)
        assert bound(problem).algbw_gb_per_s == Fraction(ENTRIES[name]["expected"]["allgather_algbw"])

    @pytest.mark.parametrize("name", NAMES)
    def test_trees_per_root_of_the_optimum(self, name: str) -> None:
        topology, expected = oracle_topology(name), ENTRIES[name]["expected"]
        problem = Problem(topology=topology, collective=Collective.ALL_GATHER)
        assert exact_trees(network_of(topology), bound(problem).inv_rate) == expected["k"]
        assert fixed_trees(Network.of(problem), expected["k"]).inv_rate == Fraction(expected["inv_x_star"])

    @pytest.mark.parametrize(("name", "trees"), FIXED)
    def test_fixed_trees(self, name: str, trees: int) -> None:
        problem = Problem(topology=oracle_topology(name), collective=Collective.ALL_GATHER)
        expected = ENTRIES[name]["expected"]["fixed_k"][str(trees)]
        assert trees * fixed_trees(Network.of(problem), trees).inv_rate == Fraction(expected["U"])
        assert Fraction(expected["algbw"]) == problem.shards * trees / Fraction(expected["U"])

    @pytest.mark.parametrize(("name", "root"), ROOTS)
    def test_broadcast_and_reduce_rates(self, name: str, root: str) -> None:
        topology = oracle_topology(name)
        expected = Fraction(ENTRIES[name]["expected"]["broadcast_rate"][root])
        rank = int(topology.rank[topology.node_index[root]])
        for collective in (Collective.BROADCAST, Collective.REDUCE):
            problem = Problem(topology=topology, collective=collective, root=rank)
            result = bound(problem)
            assert 1 / result.inv_rate == expected == result.algbw_gb_per_s
            assert 1 / cut_ratio(problem, result.cut) == expected, f"cut {result.cut}"

    @pytest.mark.parametrize("name", NAMES)
    def test_weighted_roots(self, name: str) -> None:
        topology, expected = oracle_topology(name), ENTRIES[name]["expected"]["weighted_roots"]
        weights = tuple(expected["weights"][topology.node_ids[v]] for v in topology.rank_nodes)
        for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
            problem = Problem(topology=topology, collective=collective, weights=weights)
            result = bound(problem)
            assert result.inv_rate == Fraction(expected["max_w_over_B"])
            assert cut_ratio(problem, result.cut) == result.inv_rate, f"cut {result.cut}"

    @pytest.mark.parametrize("name", NAMES)
    def test_all_reduce(self, name: str) -> None:
        expected = ENTRIES[name]["expected"]
        result = bound(Problem(topology=oracle_topology(name), collective=Collective.ALL_REDUCE))
        two_phase = Fraction(expected["rs_plus_ag_allreduce_algbw"])
        assert two_phase in {1 / inv_rate for inv_rate in result.alternatives.values()}
        assert float(1 / result.inv_rate) == pytest.approx(expected["allreduce_lp_algbw"], abs=6e-7)
        assert 1 / result.inv_rate >= two_phase


def lattice(lengths: tuple[int, ...], rates: tuple[Fraction, ...]) -> Topology:
    """A torus with a rate for each dimension; a length of 2 has one link there, not two."""
    places = list(product(*map(range, lengths)))
    names = ["-".join(map(str, place)) for place in places]
    links = []
    for place in places:
        for axis, length in enumerate(lengths):
            step = [*place]
            step[axis] = (place[axis] + 1) % length
            if length > 2 or step[axis] > place[axis]:
                ends = ("-".join(map(str, place)), "-".join(map(str, step)))
                links.append(Link(src=ends[0], dst=ends[1], gb_per_s=rates[axis]))
    return Topology.of(f"torus {lengths}", [Node(id=name) for name in names], links)


class TestClosedForms:
    @pytest.mark.parametrize("ranks", [3, 4, 5, 8, 16, 33])
    def test_ring(self, ranks: int) -> None:
        assert all_gather(lattice((ranks,), (Fraction(25, 2),))) == Fraction(ranks - 1) / 25

    @pytest.mark.parametrize("ranks", [2, 3, 7, 12])
    def test_one_way_ring(self, ranks: int) -> None:
        nodes = [Node(id=str(v)) for v in range(ranks)]
        links = [Link(src=a.id, dst=b.id, gb_per_s=Fraction(3), duplex=False) for a, b in pairwise(nodes)]
        links.append(Link(src=nodes[-1].id, dst=nodes[0].id, gb_per_s=Fraction(3), duplex=False))
        assert all_gather(Topology.of("one way", nodes, links)) == Fraction(ranks - 1, 3)

    @pytest.mark.parametrize("lengths", [(3, 3), (4, 4), (3, 5), (4, 8), (3, 3, 3), (4, 4, 4), (2, 2, 2, 2)])
    def test_torus_leaves_no_link_idle(self, lengths: tuple[int, ...]) -> None:
        ranks = int(np.prod(lengths))
        degree = sum(2 if length > 2 else 1 for length in lengths)
        topology = lattice(lengths, (Fraction(1),) * len(lengths))
        assert all_gather(topology) == Fraction(ranks - 1, degree)

    @pytest.mark.parametrize("ranks", [2, 3, 5, 9])
    def test_complete(self, ranks: int) -> None:
        nodes = [Node(id=str(v)) for v in range(ranks)]
        links = [Link(src=str(a), dst=str(b), gb_per_s=Fraction(7)) for a in range(ranks) for b in range(a)]
        assert all_gather(Topology.of("complete", nodes, links)) == Fraction(1, 7)

    def test_path_by_its_narrowest_place(self) -> None:
        rates = [Fraction(9), Fraction(2), Fraction(5), Fraction(3)]
        links = [Link(src=str(v), dst=str(v + 1), gb_per_s=rate) for v, rate in enumerate(rates)]
        topology = Topology.of("path", [Node(id=str(v)) for v in range(5)], links)
        # to the left of link v lie v + 1 ranks, and they all go right (or the others left)
        worst = max(max(v + 1, 4 - v) / rate for v, rate in enumerate(rates))
        assert all_gather(topology) == worst

    @pytest.mark.parametrize("boxes", [2, 3, 4, 8, 16, 32, 64, 128])
    def test_dgx_a100(self, boxes: int) -> None:
        topology = resolve("dgx-a100", boxes=boxes)
        assert topology.num_ranks == 8 * boxes
        assert all_gather(topology) == max(Fraction(8 * boxes - 1, 325), Fraction(boxes - 1, 25))

    @pytest.mark.parametrize("boxes", [2, 3, 4, 8, 16, 32, 64])
    def test_mi250(self, boxes: int) -> None:
        # j GCDs of one box receive over their 16 GB/s NICs and the links from the rest of the box
        ways_in = mi250_ways_in(resolve("mi250", boxes=1))
        expected = max(Fraction(16 * boxes - j) / (16 * j + ways_in[j]) for j in range(1, 17))
        assert all_gather(resolve("mi250", boxes=boxes)) == expected

    @pytest.mark.parametrize(
        ("preset", "boxes", "algbw"),
        [
            ("dgx-a100", 1, "2400/7"),
            ("dgx-a100", 2, "1040/3"),
            ("mi250", 1, "2400/7"),
            ("mi250", 2, "5312/15"),
            ("mi250", 4, "1024/3"),
        ],
    )
    def test_published_values(self, preset: str, boxes: int, algbw: str) -> None:
        topology = resolve(preset, boxes=boxes)
        assert topology.num_ranks / all_gather(topology) == Fraction(algbw)

    def test_single_rank_moves_nothing(self) -> None:
        topology = Topology.of("alone", [Node(id="g")], [])
        for collective in Collective:
            root = 0 if collective.rooted else None
            result = bound(Problem(topology=topology, collective=collective, root=root))
            assert result.inv_rate == 0, collective
            assert result.algbw_gb_per_s == 0, collective


def mi250_ways_in(box: Topology) -> dict[int, Fraction]:
    """For each number of GCDs, the least rate into so many of them from the rest of the box."""
    network = network_of(box)
    position = {v: rank for rank, v in enumerate(network.terminals)}
    masks = np.arange(1 << 16, dtype=np.int64)
    size = np.zeros(len(masks), dtype=np.int64)
    entering = np.zeros(len(masks), dtype=np.int64)
    for rank in range(16):
        size += masks >> rank & 1
    for (u, v), rate in network.capacity.items():
        if u in position and v in position:
            entering += int(rate) * (~(masks >> position[u]) & (masks >> position[v]) & 1)
    return {j: Fraction(int(entering[size == j].min())) for j in range(1, 17)}


def test_the_reference_says_the_same_where_it_is_fast_enough() -> None:
    for topology in (lattice((3, 4), (Fraction(1), Fraction(5, 2))), lattice((5,), (Fraction(1, 3),))):
        problem = Problem(topology=topology, collective=Collective.ALL_GATHER)
        assert bound(problem).inv_rate == expected_inv_rate(problem), describe(topology)


def judge(problem: Problem) -> None:
    """The bound is the optimum, in fractions, and the plan has it."""
    found = bound(problem, time_limit=0.0)
    assert found.inv_rate == expected_inv_rate(problem), describe(problem)
    rate = exact_rates.attainable_rate(broadcast_view(problem), supply_of(problem))
    assert found.attainable == (1 / rate if rate else 0) or not found.inv_rate, describe(problem)
    assert judged_inv_rate(problem, plan_forest(problem)) == found.attainable, describe(problem)


def judge_all_reduce(seed: int, most: int) -> None:
    topology = uneven(seeded(seed, UNBALANCED_FAMILIES, most), seed)
    problem = Problem(topology, Collective.ALL_REDUCE)
    found = bound(problem, time_limit=0.0)
    assert found.attainable is not None
    assert found.attainable * exact_rates.all_reduce_rate(network_of(topology)) == 1, describe(topology)
    assert judged_inv_rate(problem, plan_forest(problem)) == found.attainable, describe(topology)


@pytest.mark.parametrize("block", range(3))
def test_attainable_optimum(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        topology = uneven(seeded(seed, UNBALANCED_FAMILIES, 5), seed)
        judge(problem_on(random.Random(f"problem {seed}").randint, topology))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_attainable_optimum_thoroughly(block: int) -> None:
    for seed in range(10**5 + block * 100, 10**5 + block * 100 + 100):
        topology = uneven(seeded(seed, UNBALANCED_FAMILIES, 6), seed)
        judge(problem_on(random.Random(f"problem {seed}").randint, topology))


def test_all_reduce() -> None:
    for seed in range(20):
        judge_all_reduce(seed, 4)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_all_reduce_thoroughly(block: int) -> None:
    for seed in range(10**5 + block * 40, 10**5 + block * 40 + 40):
        judge_all_reduce(seed, 5)


@pytest.mark.parametrize("seed", range(60))
def test_simplex_in_integers_agrees_with_floats(seed: int) -> None:
    draw = random.Random(seed)
    columns = draw.randint(1, 8)
    program = LinearProgram(
        [draw.randint(-2, 5) for _ in range(columns)],
        [draw.choice([None, draw.randint(0, 9)]) for _ in range(columns)],
    )
    rows = []
    for _ in range(draw.randint(1, 10)):
        chosen = sorted(draw.sample(range(columns), draw.randint(1, columns)))
        values = [draw.choice((-2, -1, 1, 1, 2, 3)) for _ in chosen]
        rows.append(
            Constraint(
                column=np.array(chosen, dtype=np.int32),
                value=np.array(values),
                bound=draw.choice((0, 0, draw.randint(0, 9))),
            )
        )
    program.add_rows(rows)
    exact, vertex = solve_in_integers(program), program.solve()
    assert (exact is None) == (vertex is None)
    if exact is not None and vertex is not None:
        assert program.is_feasible(exact.values)
        assert program.dual_bound(exact.multipliers) == exact.objective
        assert float(exact.objective) == pytest.approx(vertex.objective, abs=1e-6)


def test_simplex_in_integers_needs_0_as_a_solution() -> None:
    program = LinearProgram([1], [None])
    program.add_rows([Constraint(column=np.array([0], dtype=np.int32), value=np.array([-1]), bound=-1)])
    with pytest.raises(ValueError, match="b >= 0"):
        solve_in_integers(program)


def test_cuts_in_integers_of_any_size() -> None:
    for seed in range(150):
        topology = seeded(seed, FAMILIES, 9)
        draw = random.Random(seed)
        supply = np.where(topology.rank >= 0, topology.denominator * draw.randint(1, 6), 0).astype(np.int64)
        arguments = topology.num_nodes, topology.src, topology.dst
        native = _core.violated_cuts(
            *arguments, topology.capacity, supply, topology.rank >= 0, int(supply.sum()), topology.num_nodes
        )
        large = 2**70
        found = narrow_cuts(
            topology.num_nodes,
            topology.src.tolist(),
            topology.dst.tolist(),
            [c * large for c in topology.capacity.tolist()],
            [s * large for s in supply.tolist()],
            topology.rank_nodes.tolist(),
            int(supply.sum()) * large,
        )
        assert bool(found) == bool(native), describe(topology)
        capacity = network_of(topology).entering
        for nodes in found:
            inside = int(supply[nodes].sum())
            assert capacity(nodes) * topology.denominator + inside < int(supply.sum()), describe(topology)
