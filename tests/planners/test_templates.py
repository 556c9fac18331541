"""Templates: one tree that stands for all its images, against the same forest written out."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from coppice.bounds import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.forest import packed
from coppice.planners.forest import planner as forest
from coppice.planners.forest.planner import plan_forest
from coppice.planners.planning import plan
from coppice.schedule.explanation import height_counts
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.forest import Forest, Phase, expanded, expanded_edges
from coppice.schedule.loads import forest_loads
from coppice.schedule.lower import lower
from coppice.schedule.plan import Plan
from coppice.schedule.shape import shape
from coppice.schedule.verification.verify import verify
from coppice.topology.model import Link, Node, NodeKind, Topology
from planners.template_cases import (
    MULTI_ORBIT,
    NAMES,
    ORDER,
    TWO_PHASES,
    assert_same_columns,
    forest_in,
    plan_templates,
    planned,
    preset,
    slowly_expanded,
    symmetry_in,
)
from planners.test_scale import verified
from reference.plans import judged_inv_rate
from support.paths import ROOT

CASES = list(product(NAMES, TWO_PHASES))


def check_against_written_out(problem: Problem, forest: Forest) -> None:
    """A template forest verifies by its certificate and is in all respects the forest that it stands for."""
    report = verified(problem, forest)
    whole = expanded(forest)
    assert whole.symmetry is None
    assert whole.num_edges == expanded_edges(forest) == report.checked["edges"]
    assert whole.num_trees == report.checked["trees"] == forest.num_trees * forest.num_images
    assert judged_inv_rate(problem, whole) == report.inv_rate
    assert Counter(slowly_expanded(forest)) == Counter(slowly_expanded(whole))
    plain = verified(problem, whole)
    for name in ("ok", "inv_rate", "optimal", "bound_proved", "max_link_load"):
        assert getattr(plain, name) == getattr(report, name), name
    loads, all_loads = forest_loads(forest), forest_loads(whole)
    assert loads.load == all_loads.load
    assert loads.shard == all_loads.shard
    assert [forest.phase_weight(phase) for phase in Phase] == [whole.phase_weight(phase) for phase in Phase]
    assert shape(forest) == shape(whole)
    assert height_counts(forest) == height_counts(whole)


class TestPresets:
    @pytest.mark.parametrize(("name", "collective"), CASES, ids=str)
    @pytest.mark.spread(5)
    def test_equals_the_forest_written_out(self, name: str, collective: Collective) -> None:
        made = planned(name, collective)
        assert forest_in(made).num_images == ORDER[name]
        check_against_written_out(made.problem, forest_in(made))

    @pytest.mark.parametrize(("name", "collective"), CASES, ids=str)
    @pytest.mark.spread(5)
    def test_as_fast_as_the_plan_without_templates(
        self, name: str, collective: Collective, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made = planned(name, collective)
        monkeypatch.setattr(forest, "pack_with_symmetry", lambda *_: None)
        plain = plan_forest(made.problem)
        assert plain.symmetry is None
        assert forest_loads(plain).inv_rate == forest_loads(forest_in(made)).inv_rate

    @pytest.mark.parametrize(("name", "collective"), CASES, ids=str)
    def test_plan_file_round_trip(self, name: str, collective: Collective) -> None:
        made = planned(name, collective)
        data = encode_plan(made)
        again = decode_plan(data, name="plan.json")
        assert encode_plan(again) == data
        assert_same_columns(forest_in(again), forest_in(made))
        read, kept = symmetry_in(forest_in(again)), symmetry_in(forest_in(made))
        assert read.orders == kept.orders
        for column in ("generators", "node_orbit", "node_element", "link_orbit", "link_orbit_size"):
            np.testing.assert_array_equal(getattr(read, column), getattr(kept, column), err_msg=column)
        report = verify(again)
        assert report.ok, report.failures
        assert report.inv_rate == made.inv_rate

    @pytest.mark.parametrize(("name", "collective"), CASES, ids=str)
    def test_lowers_to_the_same_schedule(self, name: str, collective: Collective) -> None:
        made = planned(name, collective)
        schedule = lower(forest_in(made))
        assert_same_columns(schedule, lower(expanded(forest_in(made))))
        report = verify(replace(made, forest=None, schedule=schedule))
        assert report.ok, report.failures
        assert report.inv_rate == made.inv_rate

    @pytest.mark.parametrize("name", NAMES)
    def test_one_phase_is_the_other_turned_round(self, name: str) -> None:
        topology = preset(name)
        mirror = Problem(topology=topology.transposed(), collective=Collective.ALL_GATHER)
        reached = forest_loads(forest_in(planned(name, Collective.REDUCE_SCATTER))).inv_rate
        assert reached == forest_loads(plan_templates(mirror)).inv_rate


class TestWhenThereAreNone:
    @pytest.mark.parametrize("name", ["torus 4x4", "dgx-a100 2"])
    def test_roots_and_weights_break_the_symmetry(self, name: str) -> None:
        topology = preset(name)
        for collective in (Collective.BROADCAST, Collective.REDUCE):
            rooted = Problem(topology=topology, collective=collective, root=1)
            assert plan_templates(rooted).symmetry is None
        weights = (2, *(1 for _ in range(topology.num_ranks - 1)))
        uneven = Problem(topology=topology, collective=Collective.ALL_GATHER, weights=weights)
        assert plan_templates(uneven).symmetry is None

    def test_small_plans_are_written_out(self) -> None:
        forest = plan_forest(Problem(topology=preset("torus 4x4"), collective=Collective.ALL_REDUCE))
        assert forest.symmetry is None
        assert_same_columns(forest, expanded(forest_in(planned("torus 4x4", Collective.ALL_REDUCE))))

    def test_too_many_edges_stay_templates(self, monkeypatch: pytest.MonkeyPatch) -> None:
        forest = forest_in(planned("torus 4x4", Collective.ALL_GATHER))
        monkeypatch.setattr("coppice.schedule.forest.MOST_EDGES", expanded_edges(forest))
        assert expanded(forest).num_edges == expanded_edges(forest)
        monkeypatch.setattr("coppice.schedule.forest.MOST_EDGES", expanded_edges(forest) - 1)
        with pytest.raises(InputError, match="keep the templates"):
            expanded(forest)


def lifted(seed: int) -> Topology:
    """A random graph times a cyclic group: link (a, b) with shift s becomes (a, i) -> (b, i + s) for all i."""
    choose = random.Random(seed).randint
    order, ranks, switches = choose(2, 6), choose(1, 3), choose(0, 2)
    base = ranks + switches
    nodes = [
        Node(id=f"{'g' if v < ranks else 's'}{v}.{i}", kind=NodeKind.GPU if v < ranks else NodeKind.SWITCH)
        for v in range(base)
        for i in range(order)
    ]
    shifts = [(v, (v + 1) % base, choose(0, order - 1), choose(1, 6)) for v in range(base)]
    shifts += [(0, 0, 1, choose(1, 6))]
    for _ in range(choose(0, 4)):
        shifts.append((choose(0, base - 1), choose(0, base - 1), choose(0, order - 1), choose(1, 6)))
    rates: Counter[tuple[str, str]] = Counter()
    for a, b, shift, rate in shifts:
        for i in range(order):
            one, other = nodes[a * order + i].id, nodes[b * order + (i + shift) % order].id
            if one != other:
                rates[one, other] += rate
                rates[other, one] += rate
    random.Random(seed).shuffle(nodes)
    links = [Link(src=a, dst=b, gb_per_s=Fraction(r), duplex=False) for (a, b), r in rates.items()]
    return Topology.of(f"lifted #{seed}", nodes, links)


def check_lifted(seed: int) -> int:
    """Check templates on a lifted graph; the number of images (1 where the planner found no templates)."""
    topology = lifted(seed)
    most = 1
    for collective in TWO_PHASES:
        problem = Problem(topology=topology, collective=collective)
        forest = plan_templates(problem)
        check_against_written_out(problem, forest)
        data = encode_plan(Plan(problem=problem, inv_rate=forest_loads(forest).inv_rate, forest=forest))
        assert encode_plan(decode_plan(data, name="p")) == data
        most = max(most, forest.num_images)
    return most


@pytest.mark.parametrize("block", range(2))
@pytest.mark.spread(2)
def test_random_graphs_with_a_cyclic_group(block: int) -> None:
    found = [check_lifted(seed) for seed in range(block * 20, block * 20 + 20)]
    assert sum(order > 1 for order in found) >= 10, found


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_random_graphs_with_a_cyclic_group_thoroughly(block: int) -> None:
    for seed in range(10**6 + block * 100, 10**6 + block * 100 + 100):
        check_lifted(seed)


def moved(forest: Forest, chosen: list[int]) -> Forest:
    """The same forest with each template replaced by its image under the chosen element."""
    symmetry = symmetry_in(forest)
    tree_element = np.array(chosen)
    element = np.repeat(tree_element, np.diff(forest.tree_start))
    path_length = np.diff(forest.path_start)[forest.edge_path]
    nodes = np.concatenate([forest.path(int(path)) for path in forest.edge_path])
    return replace(
        forest,
        tree_root=symmetry.image(forest.tree_root, tree_element),
        edge_src=symmetry.image(forest.edge_src, element),
        edge_dst=symmetry.image(forest.edge_dst, element),
        edge_path=np.arange(forest.num_edges, dtype=np.int32),
        path_start=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(path_length)]),
        path_nodes=symmetry.image(nodes, np.repeat(element, path_length)),
    )


class TestOtherRepresentatives:
    """Which image of a tree is listed makes no difference."""

    @pytest.mark.parametrize("collective", TWO_PHASES, ids=str)
    @pytest.mark.parametrize("name", ["ring 5", "torus 3x5", "fat-tree", "dgx-a100 2", *MULTI_ORBIT])
    def test_any_image_will_do(self, name: str, collective: Collective) -> None:
        made = planned(name, collective)
        forest = forest_in(made)
        choose = random.Random(name)
        roots = list(zip(forest.tree_phase.tolist(), forest.tree_root.tolist(), strict=True))
        element = {root: choose.randrange(forest.num_images) for root in sorted(set(roots))}
        other = moved(forest, [element[root] for root in roots])
        check_against_written_out(made.problem, other)
        assert Counter(slowly_expanded(other)) == Counter(slowly_expanded(forest))


class TestDocumentation:
    PAGE = ROOT / "docs" / "plan-format.md"

    @pytest.mark.parametrize("collective", TWO_PHASES, ids=str)
    @pytest.mark.parametrize("name", ["torus 2x3x4", "dgx-a100 2", "dragonfly"])
    def test_the_checker_by_hand_knows_templates(
        self, name: str, collective: Collective, tmp_path: Path
    ) -> None:
        program = re.search(r"```python\n(.*?)```", self.PAGE.read_text(), re.DOTALL)
        assert program is not None
        made = planned(name, collective)
        (tmp_path / "plan.json").write_bytes(encode_plan(made))
        command = [sys.executable, "-c", program[1], str(tmp_path / "plan.json")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert Fraction(done.stdout.split(":")[1].strip()) == made.problem.shards / made.inv_rate

    def test_the_ring_in_the_page(self) -> None:
        nodes = [Node(id=name) for name in "abcd"]
        links = [Link(src="abcd"[v], dst="bcda"[v], gb_per_s=Fraction(1), duplex=False) for v in range(4)]
        topology = Topology.of("ring", nodes, links)
        forest = plan_templates(Problem(topology=topology, collective=Collective.ALL_GATHER))
        assert symmetry_in(forest).orders == (4,)
        assert symmetry_in(forest).generators.tolist() in ([[1, 2, 3, 0]], [[3, 0, 1, 2]])
        listed = [path for _, _, path in forest.edges(0)]
        assert listed == [(0, 1), (1, 2), (2, 3)]
        assert (forest.num_trees, forest.num_images) == (1, 4)

    def test_page_names_the_members(self) -> None:
        document = json.loads(encode_plan(planned("ring 5", Collective.ALL_GATHER)))
        text = self.PAGE.read_text()
        for member in ("symmetry", *document["symmetry"]):
            assert f"`{member}`" in text
        keys = list(document)
        assert keys.index("topology") + 1 == keys.index("symmetry") == keys.index("paths") - 1


def test_plan_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users see the same figures whether trees are listed or not."""
    problem = Problem(topology=preset("dgx-a100 2"), collective=Collective.ALL_REDUCE)
    plain = plan(problem)
    monkeypatch.setattr(packed, "WRITTEN_OUT", 0)
    result = plan(problem)
    assert forest_in(plain.plan).symmetry is None
    assert forest_in(result.plan).num_images == 16
    assert result.report.ok
    assert result.loss == 0
    fleeting = {"seconds", "planning_seconds", "verify_seconds", "seconds_by_stage", "peak_rss_bytes"}
    records = [
        {key: value for key, value in made.record().items() if key not in fleeting}
        for made in (plain, result)
    ]
    assert records[0] == records[1]
