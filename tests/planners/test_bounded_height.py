"""Forests of bounded height: spanning, no higher than allowed, and loaded as they say."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from coppice import _core
from coppice.bounds.optimum import bound_of
from coppice.bounds.problem import Problem
from coppice.planners.forest.bounded_height import bounded_trees, least_height
from coppice.planners.forest.weighted_height import rehung, weighted_trees
from coppice.schedule.loads import forest_loads
from coppice.schedule.shape import shape
from coppice.schedule.verification.forest import verify_forest
from coppice.topology.model import Link, Node, Topology
from coppice.topology.operations import remove_nodes
from coppice.topology.presets import preset
from reference import low_trees as reference

CASES = [
    ("dgx-1v", {}, 2),
    ("dgx-a100", {"boxes": 2}, 2),
    ("dgx-h100", {"boxes": 3}, 2),
    ("mi250", {}, 5),
    ("torus", {"dims": (3, 3)}, 2),
    ("fat-tree", {"leaves": 3, "gpus_per_leaf": 4, "spines": 2}, 1),
    ("ring", {"gpus": 7}, 3),
]
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("name", "more", "fewest"), CASES, ids=[name for name, _, _ in CASES])
def test_trees_are_low_and_loaded_as_they_say(
    name: str, more: dict[str, object], fewest: int, collective: str
) -> None:
    problem = Problem(
        preset(name, **more), collective, root=0 if collective in ("broadcast", "reduce") else None
    )
    plain = bound_of(problem)
    phases = 2 if collective == "all_reduce" else 1
    low = least_height(problem)
    assert low is not None
    assert low <= fewest if problem.root is not None else low == fewest
    assert bounded_trees(problem, height=low - 1, trees=1, inv_rate=plain.inv_rate) is None
    for height, trees in ((low, 1), (low, 3), (low + 1, 2)):
        found = bounded_trees(problem, height=height, trees=trees, inv_rate=plain.inv_rate / phases)
        assert found is not None
        forest = found.forest()
        assert verify_forest(forest, root=problem.root).ok
        highest = shape(forest).max_height
        assert highest is not None
        assert highest <= height * phases
        loads = forest_loads(forest)
        assert found.inv_rate == pytest.approx(float(loads.inv_rate), rel=1e-9) or phases == 2
        assert float(loads.inv_rate) <= found.inv_rate * (1 + 1e-9)
        assert loads.inv_rate >= plain.inv_rate


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize(("name", "more"), [each[:2] for each in CASES], ids=[name for name, _, _ in CASES])
def test_weighted_trees_are_low_and_loaded_as_they_say(
    name: str, more: dict[str, object], collective: str
) -> None:
    problem = Problem(
        preset(name, **more), collective, root=0 if collective in ("broadcast", "reduce") else None
    )
    plain = bound_of(problem)
    phases = 2 if collective == "all_reduce" else 1
    rate = plain.inv_rate / phases
    low = least_height(problem)
    assert low is not None
    assert weighted_trees(problem, height=low - 1, inv_rate=rate, most_grown=9, most_edges=10**6) is None
    assert weighted_trees(problem, height=low, inv_rate=rate, most_grown=9, most_edges=1) is None
    for height in (low, low + 1):
        found = weighted_trees(problem, height=height, inv_rate=rate, most_grown=300, most_edges=10**6)
        assert found is not None
        forest = found.forest()
        assert verify_forest(forest, root=problem.root).ok
        highest = shape(forest).max_height
        assert highest is not None
        assert highest <= height * phases
        loads = forest_loads(forest)
        assert found.inv_rate == pytest.approx(float(loads.inv_rate), rel=1e-9) or phases == 2
        assert float(loads.inv_rate) <= found.inv_rate * (1 + 1e-9)
        assert loads.inv_rate >= plain.inv_rate


def test_weights_of_a_linear_program_load_links_less() -> None:
    problem = Problem(preset("mi250", boxes=2), "all_gather")
    rate = bound_of(problem).inv_rate
    weighted = weighted_trees(problem, height=4, inv_rate=rate, most_grown=1024, most_edges=2**15)
    equal = bounded_trees(problem, height=4, trees=8, inv_rate=rate)
    assert weighted is not None
    assert equal is not None
    assert weighted.inv_rate < 0.75 * equal.inv_rate
    assert weighted.inv_rate < 1.3 * float(rate)


def test_ranks_are_hung_below_others_within_the_height() -> None:
    draw = np.random.default_rng(1)
    for _ in range(50):
        ranks = int(draw.integers(3, 9))
        cost = draw.random((ranks, ranks)) + np.diag(np.full(ranks, np.inf))
        arcs = np.arange(ranks * ranks).reshape(ranks, ranks)
        star = [(0, rank, int(arcs[0, rank])) for rank in range(1, ranks)]
        before = cost[0, 1:].sum()
        for height in (1, 2, 3, ranks):
            found = rehung(np.array(star), (cost, arcs), 0, height).tolist()
            depth = {0: 0}
            for sender, receiver, arc in found:  # senders come after what they receive
                depth[receiver] = depth[sender] + 1
                assert arc == arcs[sender, receiver]
            assert sorted(depth) == list(range(ranks))
            assert max(depth.values()) <= height
            after = sum(cost[sender, receiver] for sender, receiver, _ in found)
            assert after <= before + 1e-12
            assert height > 1 or after == pytest.approx(before)


def test_trees_are_those_of_the_reference() -> None:
    draw = np.random.default_rng(2)
    for _ in range(60):
        ranks, root = int(draw.integers(2, 10)), 1
        # Few different costs, so that many are equal, and arcs that are not there
        cost = draw.choice([1.0, 2.0, 3.0, np.inf], p=[0.3, 0.2, 0.2, 0.3], size=(ranks, ranks))
        np.fill_diagonal(cost, np.inf)
        hops = draw.integers(0, 4, size=ranks).astype(np.float64)
        for height, turn in itertools.product((1, 2, 3), (-1, 0, 2)):
            src, dst = _core.grow_low_tree(ranks, cost.reshape(-1), hops, root, height, turn)
            edges = list(zip(src.tolist(), dst.tolist(), strict=True))
            assert edges == reference.grown(cost, hops, root, height, turn)
            if edges:
                moved = _core.rehung_low_tree(ranks, cost.reshape(-1), src, dst, root, height)
                assert list(zip(*(each.tolist() for each in moved), strict=True)) == reference.rehung(
                    cost, edges, root, height
                )


def test_more_hops_and_trees_are_nearer_to_the_best_rate() -> None:
    problem = Problem(preset("dgx-1v"), "all_gather")
    best = float(bound_of(problem).inv_rate)
    shares = []
    for height, trees in ((2, 1), (2, 8), (3, 24)):
        found = bounded_trees(problem, height=height, trees=trees, inv_rate=bound_of(problem).inv_rate)
        assert found is not None
        shares.append(best / found.inv_rate)
    assert shares == sorted(shares)
    assert shares[0] > 0.7
    assert shares[-1] > 0.9


def test_a_symmetric_network_and_one_with_a_fault() -> None:
    whole = Problem(preset("dgx-a100", boxes=2), "all_gather")
    broken = Problem(remove_nodes(preset("dgx-a100", boxes=2), ["box0/nic0"]), "all_gather")
    for problem in (whole, broken):
        found = bounded_trees(problem, height=3, trees=8, inv_rate=bound_of(problem).inv_rate)
        assert found is not None
        assert (found.phases[0].symmetry is None) or problem is whole or found.phases[0].num_images < 16
        assert verify_forest(found.forest()).ok
        assert float(bound_of(problem).inv_rate) / found.inv_rate > 0.6


def test_ranks_that_are_not_connected_have_no_height() -> None:
    nodes = [Node(id=name) for name in "abc"]
    links = [Link(src=a, dst=b, gb_per_s=Fraction(1), duplex=False) for a, b in ("ab", "bc", "ca")]
    one_way = Problem(Topology.of("circle", nodes, links), "broadcast", root=0)
    assert least_height(one_way) == 2
    found = bounded_trees(one_way, height=2, trees=2, inv_rate=Fraction(1))
    assert found is not None
    assert np.diff(found.phases[0].start).tolist() == [2]
    assert found.phases[0].weight.tolist() == [2]
