"""How good plans are beyond being optimal: heights, distinct trees, few trees, the same bytes every time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from coppice import load
from coppice.bounds import Problem, bound
from coppice.bounds.network import Network
from coppice.bounds.tree_units import exact_units
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.alternatives import Alternative, alternatives, preferred
from coppice.planners.choice import PlannerOptions, PlannerOutput
from coppice.planners.forest.planner import plan_forest
from coppice.planners.planning import plan
from coppice.schedule.explanation import plan_loads
from coppice.schedule.files.plan_file import encode_plan
from coppice.schedule.forest import Forest
from coppice.schedule.loads import body_loads, forest_loads
from coppice.schedule.plan import Plan
from coppice.schedule.shape import ForestShape, shape
from coppice.schedule.verification.verify import verify
from coppice.simulation import simulate
from coppice.topology import preset, remove_nodes, resolve
from coppice.topology.model import Link, Node, Topology
from coppice.topology.operations import set_link_rate
from reference.expected import broadcast_view
from reference.fixed_trees import floors_stay_balanced, smallest_inv_tree_rate
from reference.heights import heights, mean_height
from reference.network import supply_of
from reference.oracle import ENTRIES, NAMES, oracle_topology
from reference.plans import judged_inv_rate
from reference.strategies import BALANCED_FAMILIES, UNBALANCED_FAMILIES, seeded_problem
from support.blocks import blocks
from support.pages import coppice
from support.shared_data import needs_shared


def all_gather(topology: Topology) -> Problem:
    return Problem(topology=topology, collective=Collective.ALL_GATHER)


def shuffled(topology: Topology, seed: int) -> Topology:
    """The same topology with its nodes in another order, and so its ranks."""
    nodes = [replace(node, rank=None) for node in topology.nodes()]
    random.Random(seed).shuffle(nodes)
    return Topology.of(topology.name, nodes, topology.links())


@cache
def boxes(spec: str, count: int) -> Topology:
    return resolve(spec, boxes=count)


def shape_of(forest: Forest) -> ForestShape:
    """Shape of a forest; on small ones counted by walking the trees, too."""
    found = shape(forest)
    if forest.num_edges < 100_000:
        assert found.max_height == max(heights(forest))
        assert found.mean_height == mean_height(forest)
    return found


class TestHeights:
    """GPU-to-GPU hops; mean heights count trees by weight."""

    @pytest.mark.parametrize("count", [4, 8, 16, 32, 64, 128])
    def test_many_a100_boxes(self, count: int) -> None:
        problem = all_gather(boxes("dgx-a100", count))
        forest = plan_forest(problem)
        found = shape_of(forest)
        assert forest_loads(forest).inv_rate == Fraction(count - 1, 25)
        assert found.trees_per_root == 1
        assert found.max_height <= 2
        assert found.distinct_trees == 8 * count

    @pytest.mark.parametrize("collective", [Collective.REDUCE_SCATTER, Collective.ALL_REDUCE], ids=str)
    def test_a100_boxes_the_other_way_and_both_ways(self, collective: Collective) -> None:
        found = shape(plan_forest(Problem(topology=boxes("dgx-a100", 8), collective=collective)))
        assert found.max_height <= (4 if collective is Collective.ALL_REDUCE else 2)
        assert all(phase.max_height <= 2 for phase in found.phases.values())

    @pytest.mark.parametrize("count", [2, 4, 16, 64])
    def test_rail_optimised_h100_boxes(self, count: int) -> None:
        found = shape_of(plan_forest(all_gather(boxes("dgx-h100", count))))
        assert found.mean_height <= 3
        assert found.max_height <= 4

    def test_two_a100_boxes(self) -> None:
        problem = all_gather(boxes("dgx-a100", 2))
        forest = plan_forest(problem)
        assert judged_inv_rate(problem, forest) == Fraction(3, 65)
        assert shape_of(forest).mean_height < Fraction(35, 10)

    def test_two_mi250_boxes(self) -> None:
        problem = all_gather(boxes("mi250", 2))
        forest = plan_forest(problem)
        assert judged_inv_rate(problem, forest) == Fraction(15, 166)
        found = shape_of(forest)
        assert found.mean_height < Fraction(83, 10)
        assert found.max_height < 22
        assert found.distinct_trees <= 141

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(
        ("spec", "count", "mean", "most"),
        [("dgx-a100", 2, 3.5, 8), ("dgx-a100", 4, 2, 2), ("dgx-a100", 16, 2, 2), ("mi250", 2, 8.3, 21)],
    )
    def test_whatever_the_order_of_nodes(
        self, spec: str, count: int, mean: float, most: int, seed: int
    ) -> None:
        found = shape(plan_forest(all_gather(shuffled(boxes(spec, count), seed))))
        assert found.mean_height <= mean
        assert found.max_height <= most

    def test_a_complete_graph_needs_one_hop(self) -> None:
        found = shape_of(plan_forest(all_gather(resolve("complete"))))
        assert (found.max_height, found.trees_per_root) == (1, 1)


@pytest.fixture(scope="module")
def made_twice(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders, each with the plans of one process with its own order of hashes."""
    script = (
        "import sys; from coppice.cli import app; cases = eval(sys.argv[1])\n"
        "for i, each in enumerate(cases):\n"
        "    app([*each, '--no-ring', '-o', f'{i}.json'], standalone_mode=False)\n"
    )
    folders = []
    for seed in ("1", "2"):
        folders.append(tmp_path_factory.mktemp("seed"))
        subprocess.run(
            [sys.executable, "-c", script, repr(TestSameBytes.CASES)],
            check=True,
            capture_output=True,
            cwd=folders[-1],
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
    return folders


class TestSameBytes:
    """The same input gives the same bytes: no hash order, clock or address gets into a plan."""

    CASES = (
        ("plan", "mi250", "-c", "all_gather"),
        ("plan", "dgx-a100", "--boxes", "2", "-c", "all_reduce"),
        ("plan", "torus", "--set", "dims=3x4", "-c", "all_reduce", "--trees", "auto:5%"),
        ("plan", "random-balanced", "--set", "gpus=9", "-c", "reduce_scatter"),
        ("plan", "dgx-h100", "--boxes", "2", "-c", "all_reduce", "--in-network"),
        ("plan", "dgx-a100", "--boxes", "2", "-c", "all_to_all"),
    )

    @pytest.mark.parametrize("number", range(len(CASES)))
    def test_in_different_processes(self, made_twice: list[Path], number: int) -> None:
        first, second = (folder / f"{number}.json" for folder in made_twice)
        assert first.read_bytes() == second.read_bytes(), self.CASES[number]

    @pytest.mark.parametrize("seed", range(12))
    def test_in_one_process(self, seed: int) -> None:
        problem = seeded_problem(seed, BALANCED_FAMILIES)
        reference = replace(
            problem,
            topology=Topology.of(
                problem.topology.name, problem.topology.nodes(), list(problem.topology.links())[::-1]
            ),
        )  # the order in which links are given is no input
        texts = set()
        for posed in (problem, problem, reference):
            forest = plan_forest(posed)
            inv_rate = forest_loads(forest, posed.weights).inv_rate
            texts.add(encode_plan(Plan(problem=posed, inv_rate=inv_rate, forest=forest)))
        assert len(texts) == 1


def per_root(problem: Problem, forest: Forest) -> int:
    """Trees per unit of weight that the plan was rounded to: its weights are whole numbers of them."""
    units = sum(problem.weights) if problem.weights else 1 if problem.collective.rooted else None
    trees = Fraction(forest.total_weight, units or problem.topology.num_ranks)
    assert trees.denominator == 1
    return int(trees)


class TestGivenNumberOfTrees:
    @needs_shared
    @pytest.mark.parametrize(("name", "trees"), [(n, k) for n in NAMES for k in (1, 2, 3, 5)])
    def test_loss_is_what_is_known(self, name: str, trees: int) -> None:
        problem = all_gather(oracle_topology(name))
        result = plan(problem, trees=trees, ring=False)
        assert result.report.ok
        known = ENTRIES[name]["expected"]["fixed_k"].get(str(trees))
        if known is not None:
            assert result.algbw_gb_per_s <= Fraction(known["algbw"])
        assert result.loss == 1 - result.bound.inv_rate / result.inv_rate
        assert 0 <= result.loss < 1
        assert trees % per_root(problem, _forest(result.plan)) == 0

    @pytest.mark.parametrize("name", ["mi250", "dgx-a100"])
    def test_no_better_than_all_trees_and_never_below_half(self, name: str) -> None:
        problem = all_gather(boxes(name, 2))
        for trees in range(1, 9):
            loss = plan(problem, trees=trees, ring=False).loss
            assert 0 <= loss <= Fraction(1, 2)
        exact = exact_units(Network.of(problem), bound(problem).inv_rate).trees
        for trees in (exact, 2 * exact):
            assert plan(problem, trees=trees, ring=False).loss == 0

    def test_nonsense_is_refused(self) -> None:
        problem = all_gather(boxes("dgx-a100", 1))
        for trees in (0, -1):
            with pytest.raises(InputError, match="at least one tree"):
                plan(problem, trees=trees)
        with pytest.raises(InputError, match="tolerance >= 0"):
            plan(problem, tolerance=Fraction(-1, 100))
        with pytest.raises(InputError, match="both"):
            plan(problem, trees=1, tolerance=Fraction(1, 100))


def _forest(made: Plan) -> Forest:
    assert made.forest is not None
    return made.forest


TOLERANCES = [Fraction(0), Fraction(1, 100), Fraction(1, 10), Fraction(1, 3)]


def expected_trees(problem: Problem, tolerance: Fraction) -> int | None:
    """The least k by a linear scan with the slow reference; None where a switch has more out than in on the way."""
    network, supply = broadcast_view(problem), supply_of(problem)
    if not network.can_forward_all():
        return None
    best = bound(problem).inv_rate
    for trees in range(1, 400):
        inv_tree_rate = smallest_inv_tree_rate(network, supply, trees=trees)
        assert inv_tree_rate is not None
        if inv_tree_rate / trees <= best * (1 + tolerance):
            return trees if floors_stay_balanced(network, inv_tree_rate) else None
    return None


class TestToleranceInTrees:
    """`--trees auto:1%`."""

    @pytest.mark.parametrize("block", blocks(8, always=1))
    def test_fewest_trees_by_linear_scan(self, block: int) -> None:
        compared = 0
        for seed in range(block * 10, block * 10 + 10):
            problem = seeded_problem(seed, BALANCED_FAMILIES, 8)
            for tolerance in TOLERANCES:
                forest = plan_forest(problem, tolerance=tolerance)
                reached = judged_inv_rate(problem, forest)
                best = bound(problem).attainable
                assert best is not None
                assert reached <= best * (1 + tolerance)
                wanted = expected_trees(problem, tolerance)
                if wanted is not None:
                    compared += 1
                    assert wanted % per_root(problem, forest) == 0, f"seed {seed}, tolerance {tolerance}"
        assert compared >= 25

    @pytest.mark.parametrize("block", blocks(6, always=1))
    def test_no_smaller_number_will_do_where_switches_are_short_of_input(self, block: int) -> None:
        for seed in range(block * 10, block * 10 + 10):
            problem = seeded_problem(seed, UNBALANCED_FAMILIES, 8)
            best = bound(problem).attainable
            assert best is not None
            for tolerance in (Fraction(1, 100), Fraction(1, 10), Fraction(1, 3)):
                forest = plan_forest(problem, tolerance=tolerance)
                assert judged_inv_rate(problem, forest) <= best * (1 + tolerance)
                for trees in range(1, min(per_root(problem, forest), 20)):
                    fewer = forest_loads(plan_forest(problem, trees=trees), problem.weights).inv_rate
                    assert fewer > best * (1 + tolerance), f"seed {seed}, {tolerance}, {trees} trees"

    @pytest.mark.parametrize("rates", [(1, 1, 2), (1, 2, 3), (Fraction(1, 10), 1, 1), (1, 1, 3, 3)])
    def test_all_reduce_that_two_phases_do_not_reach(self, rates: tuple[Fraction | int, ...]) -> None:
        links = [
            Link(src=f"g{i}", dst=f"g{(i + 1) % len(rates)}", gb_per_s=Fraction(rate))
            for i, rate in enumerate(rates)
        ]
        topology = Topology.of("uneven ring", [Node(id=f"g{i}") for i in range(len(rates))], links)
        problem = Problem(topology=topology, collective=Collective.ALL_REDUCE)
        for tolerance in TOLERANCES:
            reached = judged_inv_rate(problem, plan_forest(problem, tolerance=tolerance))
            assert reached <= bound(problem).inv_rate * (1 + tolerance)

    @pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER], ids=str)
    @pytest.mark.parametrize("name", ["mi250", "dgx-a100"])
    def test_two_boxes_within_one_percent(self, name: str, collective: Collective) -> None:
        problem = Problem(topology=boxes(name, 2), collective=collective)
        result = plan(problem, tolerance=Fraction(1, 100), ring=False)
        assert result.report.ok
        assert result.inv_rate <= bound(problem).inv_rate * Fraction(101, 100)
        exact = exact_units(Network.of(problem), bound(problem).inv_rate).trees
        assert per_root(problem, _forest(result.plan)) < exact

    def test_no_tolerance_is_the_exact_optimum(self) -> None:
        for name in ("mi250", "dgx-a100"):
            problem = all_gather(boxes(name, 2))
            assert plan(problem, tolerance=Fraction(0), ring=False).loss == 0

    def test_wide_tolerance_is_one_tree(self) -> None:
        for name in ("mi250", "dgx-a100"):
            problem = all_gather(boxes(name, 2))
            assert per_root(problem, plan_forest(problem, tolerance=Fraction(10))) == 1

    @pytest.mark.parametrize(
        "text",
        [
            "auto:1%",
            *(pytest.param(f"auto:{each}%", marks=pytest.mark.slow) for each in ("0", "12.5", "400")),
        ],
    )
    def test_on_the_command_line(self, text: str, tmp_path: Path) -> None:
        from coppice.schedule.files.plan_file import read_plan

        target = tmp_path / "plan.json"
        arguments = ["plan", "mi250", "--boxes", "2", "-c", "all_gather", "--trees", text, "-o", str(target)]
        done = coppice(*arguments)
        assert done.exit_code == 0, done.output
        made = read_plan(target)
        assert verify(made).ok
        tolerance = Fraction(text.removeprefix("auto:").removesuffix("%")) / 100
        assert made.inv_rate <= Fraction(15, 166) * (1 + tolerance)
        assert made.parameters["tolerance"] == str(tolerance)


def test_few_trees_on_a_ring_with_odd_rates() -> None:
    """Rates that would take 10^9 trees for the exact optimum: one percent is had with a handful."""
    rates = [Fraction(2**31 - 1 - i, 7) for i in range(4)]
    links = [Link(src=f"g{i}", dst=f"g{(i + 1) % 4}", gb_per_s=rate) for i, rate in enumerate(rates)]
    problem = all_gather(Topology.of("odd ring", [Node(id=f"g{i}") for i in range(4)], links))
    forest = plan_forest(problem, tolerance=Fraction(1, 100))
    assert per_root(problem, forest) <= 100
    assert judged_inv_rate(problem, forest) <= bound(problem).inv_rate * Fraction(101, 100)


def test_few_trees_where_the_exact_number_is_beyond_all_integers() -> None:
    """The refusal of the exact plan names a way out, and it is one."""
    rates = [2**57 - i for i in (1, 3, 7, 13, 25, 31, 57, 63)]
    links = [
        Link(src=f"g{i}", dst=f"g{(i + 1) % 8}", gb_per_s=Fraction(rate)) for i, rate in enumerate(rates)
    ]
    problem = all_gather(Topology.of("wide ring", [Node(id=f"g{i}") for i in range(8)], links))
    with pytest.raises(InputError, match="auto:1%"):
        plan_forest(problem)
    forest = plan_forest(problem, tolerance=Fraction(1, 100))
    assert judged_inv_rate(problem, forest) <= bound(problem).inv_rate * Fraction(101, 100)


def test_one_slow_nic_leaves_trees_low() -> None:
    """Without symmetry all trees grow at once: one by one the last ones were up to three times as tall."""
    healthy = resolve("mi250", boxes=4)
    slow = set_link_rate(healthy, "box0/gpu0", "network", "50%")
    problem = Problem(topology=slow, collective=Collective.ALL_GATHER)
    optimum = bound(problem)
    forest = plan_forest(problem)
    report = verify(Plan(problem=problem, inv_rate=optimum.inv_rate, forest=forest, bound=optimum))
    assert report.ok
    assert report.optimal
    assert judged_inv_rate(problem, forest) == optimum.inv_rate
    usual = shape(plan_forest(replace(problem, topology=healthy))).max_height
    assert shape(forest).max_height <= 2 * usual


def busiest(made: Plan, name: str) -> float:
    """Load of the busiest link at a switch of this name."""
    topology, loads = made.topology, plan_loads(made)
    links = [e for e in range(topology.num_links) if name in topology.link_name(e)]
    return max(float(loads.utilisation(e, loads.inv_rate)) for e in links)


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "broadcast"])
@pytest.mark.parametrize(
    "options",
    [{"boxes": 3, "spines": 2, "oversubscription": 2}, {"boxes": 4, "spines": 4, "oversubscription": 8}],
)
def test_a_healthy_rail_plan_leaves_spines_alone(collective: str, options: dict[str, Any]) -> None:
    made = plan(load("dgx-h100", **options), collective, ring=False)
    assert made.algbw_gb_per_s == bound(load("dgx-h100", boxes=options["boxes"]), collective).algbw_gb_per_s
    assert busiest(made.plan, "spine") == 0


def test_spines_that_are_needed_are_used() -> None:
    topology = load("dgx-h100", boxes=4, spines=2, oversubscription=2, hosts_per_leaf=2)
    made = plan(topology, "all_gather", ring=False)
    assert made.inv_rate == bound(topology, "all_gather").inv_rate
    assert busiest(made.plan, "spine") > 0


def listed(problem: Problem, **options: object) -> list[Alternative]:
    return list(alternatives(problem, PlannerOptions.of(problem, **options), bound(problem)))


def time_us(body: object, size_bytes: int) -> float:
    return simulate(body, size_bytes, pieces=2).time_us


@pytest.fixture(name="dead_nic", scope="module")
def fixture_dead_nic() -> Problem:
    topology = remove_nodes(preset("dgx-a100", boxes=2), ["box0/mlx5_0"])
    return Problem(topology=topology, collective=Collective.ALL_REDUCE)


@pytest.fixture(name="found", scope="module")
def fixture_found(dead_nic) -> list[Alternative]:
    return listed(dead_nic)


def test_a_dead_nic_leaves_several_plans_and_each_is_sound(dead_nic, found):
    names = [one.name for one in found]
    assert names[:2] == ["combined", "two phases"]
    assert "1 tree per root" in names
    for one in found:
        inv_rate = body_loads(one.made.body, dead_nic).inv_rate
        assert verify(Plan(problem=dead_nic, inv_rate=inv_rate, forest=one.made.body)).ok
        assert inv_rate >= bound(dead_nic).inv_rate


def test_no_plan_of_the_list_is_faster_at_the_size_asked_for(found):
    for size in (1 << 20, 1 << 26):
        chosen = preferred(found, [size], time_us)
        assert chosen.worst_loss == 0
        assert all(time_us(one.made.body, size) >= chosen.time_us[size] for one in found)
    # the plan of the best rate loses at 1 MiB, which is why there is a choice
    assert (
        preferred(found[:1], [1 << 20], time_us).time_us[1 << 20]
        > 1.1 * (preferred(found, [1 << 20], time_us).time_us[1 << 20])
    )


@pytest.mark.parametrize(("options", "name"), [({"trees": 2}, "forest"), ({"algorithm": "ring"}, "ring")])
def test_a_request_that_says_what_it_wants_gets_that(dead_nic, options, name):
    assert [one.name for one in listed(dead_nic, **options)] == [name]


def test_the_worst_loss_decides_for_several_sizes(found):
    table = {("a", 1): 1.0, ("a", 2): 30.0, ("b", 1): 1.5, ("b", 2): 20.0, ("c", 1): 9.0, ("c", 2): 19.0}
    plans = {
        name: Alternative(name=name, made=PlannerOutput(body=found[0].made.body, parameters={}))
        for name in "abc"
    }
    order = iter([name for name in "abc" for _ in (1, 2)])
    chosen = preferred(plans.values(), [1, 2], lambda _, size: table[next(order), size])
    assert chosen.taken.name == "b"
    assert chosen.fastest == {1: ("a", 1.0), 2: ("c", 19.0)}
    assert chosen.worst_loss == 0.5


def test_of_equal_plans_the_first_is_taken(found):
    assert preferred(found, [1, 2], lambda _body, _size: 3.0).taken.name == "combined"
    with pytest.raises(InputError, match="0 sizes"):
        preferred(found, [], time_us)
    with pytest.raises(InputError, match="0 plans"):
        preferred([], [1], time_us)
