"""Trees moved by the native core are those of the readable reference."""

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import coppice
from coppice import InputError, UnreachableError
from coppice.planners.forest.damage import damaged_by, placed
from coppice.planners.forest.moving import MovableForest
from coppice.planners.forest.rehanging import Rehanging
from coppice.planners.forest.repairing import fault_of
from coppice.schedule.forest import expanded
from coppice.schedule.plan import Plan
from coppice.topology.model import Topology
from coppice.topology.operations import remove_links, remove_nodes, scale_nodes, set_link_rate

CASES = {
    "two boxes": ("dgx-a100", {"boxes": 2}, "all_gather"),
    "both phases": ("dgx-a100", {"boxes": 2}, "all_reduce"),
    "spines": ("fat-tree", {"leaves": 4, "gpus_per_leaf": 4, "spines": 4}, "reduce_scatter"),
    "rails": ("dgx-h100", {"boxes": 4}, "all_gather"),
}
COLUMNS = (
    *("tree_root", "tree_weight", "tree_phase", "tree_start"),
    *("edge_src", "edge_dst", "edge_path", "path_start", "path_nodes"),
)


def struck(whole: Topology, draw: random.Random) -> Topology:
    """The network after one to three faults."""
    now = whole
    for _ in range(draw.randint(1, 3)):
        a, b = draw.choice(list(zip(now.src.tolist(), now.dst.tolist(), strict=True)))
        ends = now.node_ids[a], now.node_ids[b]
        match draw.randrange(4):
            case 0:
                now = remove_links(now, [ends], one_way=draw.random() < 0.3)
            case 1:
                now = set_link_rate(now, *ends, "50%", one_way=draw.random() < 0.3)
            case 2:
                now = remove_nodes(now, ends[:1])
            case _:
                now = scale_nodes(now, {ends[0]: "50%"})
    return now


@pytest.mark.parametrize("name", CASES)
def test_native_trees_are_those_of_the_reference(name: str) -> None:
    preset, settings, collective = CASES[name]
    whole = coppice.load(preset, **settings)
    plan = coppice.plan(whole, collective, ring=False).plan
    assert plan.forest is not None
    draw = random.Random(name)
    found = {True: 0, False: 0}
    for _ in range(12):
        try:
            now = struck(whole, draw)
            where, _ = fault_of(plan, now)
        except (InputError, UnreachableError):
            continue
        left, _ = placed(expanded(plan.forest), now, where)
        if not left.num_trees:
            continue
        movable = MovableForest(left)
        damaged, _ = damaged_by(left, now, np.arange(now.num_nodes, dtype=np.int32))
        assert movable.load == damaged.load
        assert movable.broken.tolist() == damaged.broken.tolist()
        scale = draw.choice([1, 3, 12])
        each = plan.inv_rate * left.total_weight * scale * Fraction(draw.randint(90, 200), 100)
        each /= plan.problem.collective.shards(now.num_ranks, None) * now.denominator
        limit = [int(capacity * each) for capacity in now.capacity.tolist()]
        low, tallest = draw.random() < 0.5, draw.choice([None, 2, 3])
        got = movable.moved(scale, limit, low=low, tallest=tallest)
        twin = Rehanging(damaged, scale=scale, limit=limit, low=low, tallest=tallest)
        fits = twin.run()
        found[fits] += 1
        assert (got is not None) == fits
        if got is None:
            continue
        expected = twin.forest()
        for column in COLUMNS:
            assert getattr(got.forest, column).tolist() == getattr(expected, column).tolist(), column
        assert tuple(got.load) == twin.load()
        assert (got.rehung, got.split) == (len(twin.trees), len(twin.split))
        assert got.rerouted == len(twin.rerouted - twin.trees.keys())
    assert found[True]
    assert sum(found.values()) > 6


def test_numbers_beyond_64_bits_are_left_to_the_reference() -> None:
    whole = coppice.load("dgx-a100", boxes=2)
    plan: Plan = coppice.plan(whole, "all_gather", ring=False).plan
    now = set_link_rate(whole, "box0/gpu0", "box0/nvswitch", "50%")
    assert plan.forest is not None
    left, _ = placed(expanded(plan.forest), now, np.arange(now.num_nodes, dtype=np.int32))
    heavy = replace(left, tree_weight=left.tree_weight * 2**40)
    limit = [2**100] * now.num_links
    assert MovableForest(heavy).load == [load * 2**40 for load in MovableForest(left).load]
    moved = MovableForest(left).moved(1, limit)
    assert moved is not None
    assert moved.load == tuple(MovableForest(left).load)
