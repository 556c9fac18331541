"""Plans for the graphs of the forest oracle: verified, counted, and exactly as fast as the known optimum."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.bounds import Problem, bound
from coppice.bounds.network import Network
from coppice.bounds.tree_units import fixed_trees
from coppice.collectives import Collective
from coppice.planners.forest.planner import plan_forest
from coppice.topology import resolve
from reference.fixed_trees import floors_stay_balanced
from reference.heights import heights, mean_height
from reference.network import network_of
from reference.oracle import ENTRIES, NAMES, oracle_topology
from reference.plans import judged_inv_rate
from support.shared_data import needs_shared

FIXED = [(name, int(k)) for name in NAMES for k in ENTRIES[name]["expected"]["fixed_k"]]


@needs_shared
class TestForestOracle:
    @pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER], ids=str)
    @pytest.mark.parametrize("name", NAMES)
    def test_attains_the_optimum(self, name: str, collective: Collective) -> None:
        expected = ENTRIES[name]["expected"]
        problem = Problem(topology=oracle_topology(name), collective=collective)
        forest = plan_forest(problem)
        assert judged_inv_rate(problem, forest) == Fraction(expected["inv_x_star"])
        assert forest.total_weight == expected["k"] * problem.topology.num_ranks

    @pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE], ids=str)
    @pytest.mark.parametrize("name", NAMES)
    def test_attains_the_best_rate_of_every_known_root(self, name: str, collective: Collective) -> None:
        topology = oracle_topology(name)
        for root, rate in ENTRIES[name]["expected"]["broadcast_rate"].items():
            rank = int(topology.rank[topology.node_index[root]])
            problem = Problem(topology=topology, collective=collective, root=rank)
            assert 1 / judged_inv_rate(problem, plan_forest(problem)) == Fraction(rate), f"root {root}"

    @pytest.mark.parametrize("name", NAMES)
    def test_attains_the_optimum_of_all_reduce(self, name: str) -> None:
        expected = ENTRIES[name]["expected"]
        problem = Problem(topology=oracle_topology(name), collective=Collective.ALL_REDUCE)
        reached = judged_inv_rate(problem, plan_forest(problem))
        assert reached == bound(problem).inv_rate
        assert float(1 / reached) == pytest.approx(expected["allreduce_lp_algbw"], abs=6e-7)
        assert 1 / reached >= Fraction(expected["rs_plus_ag_allreduce_algbw"])

    @pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER], ids=str)
    @pytest.mark.parametrize("name", NAMES)
    def test_attains_the_optimum_with_unequal_shares(self, name: str, collective: Collective) -> None:
        topology, expected = oracle_topology(name), ENTRIES[name]["expected"]["weighted_roots"]
        weights = tuple(expected["weights"][topology.node_ids[v]] for v in topology.rank_nodes)
        problem = Problem(topology=topology, collective=collective, weights=weights)
        assert judged_inv_rate(problem, plan_forest(problem)) == Fraction(expected["max_w_over_B"])

    @pytest.mark.parametrize(("name", "trees"), FIXED)
    def test_fixed_number_of_trees(self, name: str, trees: int) -> None:
        problem = Problem(topology=oracle_topology(name), collective=Collective.ALL_GATHER)
        network = network_of(problem.topology)
        inv_tree_rate = Fraction(ENTRIES[name]["expected"]["fixed_k"][str(trees)]["U"])
        forest = plan_forest(problem, trees=trees)
        reached = judged_inv_rate(problem, forest)
        per_root = Fraction(forest.total_weight, problem.topology.num_ranks)
        assert (trees / per_root).denominator == 1, f"{per_root} trees per root, {trees} were asked for"
        if floors_stay_balanced(network, inv_tree_rate):
            assert reached == inv_tree_rate / trees
        else:
            assert inv_tree_rate / trees <= reached
        assert reached >= fixed_trees(Network.of(problem), trees).inv_rate


class TestHeights:
    """GPU-to-GPU hops, trees counted by weight; the limits are what the published tool builds, or better."""

    @pytest.mark.parametrize("boxes", [4, 8, 16])
    def test_many_a100_boxes_need_two_hops(self, boxes: int) -> None:
        problem = Problem(topology=resolve("dgx-a100", boxes=boxes), collective=Collective.ALL_GATHER)
        forest = plan_forest(problem)
        assert judged_inv_rate(problem, forest) == Fraction(boxes - 1, 25)
        assert max(heights(forest)) <= 2

    def test_two_a100_boxes(self) -> None:
        forest = plan_forest(Problem(topology=resolve("dgx-a100", boxes=2), collective=Collective.ALL_GATHER))
        assert mean_height(forest) < Fraction(35, 10)

    def test_two_mi250_boxes(self) -> None:
        problem = Problem(topology=resolve("mi250", boxes=2), collective=Collective.ALL_GATHER)
        forest = plan_forest(problem)
        assert judged_inv_rate(problem, forest) == Fraction(15, 166)
        assert mean_height(forest) < Fraction(83, 10)
        assert max(heights(forest)) < 22
        assert forest.num_trees <= 143
