"""Algorithms that work level by level: tori, BlueConnect, EFLOPS, PLink, and the k-grouped all-reduce."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.catalogue import case_of, find
from coppice.planners.algorithms.parts.grids import torus_dims
from coppice.planners.algorithms.trees.camdoop import torus_trees
from coppice.schedule.forest import Forest
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from planners.algorithms.crossbar import RANKS, check_cost, made, verified, with_ranks_shuffled
from support.alpha_beta import simulate

ALL = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("name", "collective"),
    [
        *((name, collective) for name in ("2d-torus", "blueconnect", "accl") for collective in ALL),
        ("plink", Collective.ALL_REDUCE),
        ("k-grouped", Collective.ALL_REDUCE),
    ],
)
@pytest.mark.spread(3)
def test_cost(name: str, collective: Collective, ranks: int) -> None:
    check_cost(name, collective, ranks)


@pytest.mark.parametrize(("columns", "ranks"), [(1, 6), (2, 6), (3, 6), (6, 6), (4, 24), (8, 64)])
def test_steps_of_the_torus(columns: int, ranks: int) -> None:
    schedule = check_cost("2d-torus", Collective.ALL_REDUCE, ranks, columns=columns)
    assert int(schedule.step.max()) + 1 == 2 * (columns - 1) + 2 * (ranks // columns - 1)


def test_rows_of_the_torus_move_more_than_columns() -> None:
    schedule = check_cost("2d-torus", Collective.REDUCE_SCATTER, 12, columns=4)
    along_rows = schedule.src // 4 == schedule.dst // 4
    assert int(along_rows.sum()) == 12 * 3 * 3
    assert int((~along_rows).sum()) == 12 * 2 * 1


@pytest.mark.parametrize("levels", ["2x2x2x3", "24", "3x8", "8x3", "4x1x6"])
def test_steps_of_blueconnect(levels: str) -> None:
    sizes = [int(part) for part in levels.split("x")]
    schedule = check_cost("blueconnect", Collective.ALL_REDUCE, prod(sizes), levels=levels)
    assert int(schedule.step.max()) + 1 == 2 * sum(size - 1 for size in sizes)


@pytest.mark.parametrize(("group", "ranks"), [(1, 16), (3, 24), (4, 32), (8, 8), (2, 6), (3, 21)])
def test_steps_of_accl(group: int, ranks: int) -> None:
    schedule = check_cost("accl", Collective.ALL_REDUCE, ranks, group=group)
    assert int(schedule.step.max()) + 1 == 2 * (group - 1) + 2 * (ranks // group - 1).bit_length()


def test_leaders_of_plink_rotate() -> None:
    """In the first level every rank receives the part of its own number only, straight from its owner."""
    schedule = check_cost("plink", Collective.ALL_REDUCE, 24, group=4)
    first = schedule.step < 3
    assert (schedule.src[first] // 4 == schedule.dst[first] // 4).all()
    assert (schedule.chunk[first] % 4 == schedule.dst[first] % 4).all()


def test_steps_of_k_grouped() -> None:
    """4 (k - 1) + 2 (P/k - 1): 186 where one ring takes 2046."""
    entry = find("k-grouped", Collective.ALL_REDUCE)
    problem = Problem(topology=preset("star", gpus=1024), collective=Collective.ALL_REDUCE)
    assert entry.cost is not None
    assert entry.cost(case_of(entry, problem, {"k": 16})).steps == 186
    ring = find("ring", Collective.ALL_REDUCE)
    assert ring.cost is not None
    assert ring.cost(case_of(ring, problem)).steps == 2046
    for k, ranks in ((1, 7), (2, 12), (12, 12), (8, 64)):
        schedule = check_cost("k-grouped", Collective.ALL_REDUCE, ranks, k=k)
        assert int(schedule.step.max()) + 1 == 4 * (k - 1) + 2 * (ranks // k - 1)
        masters = schedule.src // k != schedule.dst // k
        assert not (schedule.src[masters] % k).any()
        assert not (schedule.dst[masters] % k).any()


@pytest.mark.parametrize(
    ("name", "given", "complaint"),
    [
        ("2d-torus", {"columns": 5}, "divide 12 ranks, found 5"),
        ("blueconnect", {"levels": "4x4"}, "multiply to 12 ranks, found '4x4'"),
        ("blueconnect", {"levels": "grid"}, "multiply to 12 ranks, found 'grid'"),
        ("accl", {"group": 5}, "divides 12 ranks, found 5"),
        ("plink", {"group": 5}, "divides 12 ranks, found 5"),
        ("k-grouped", {"k": 5}, "divides 12 ranks, found 5"),
        ("nccl-tree", {"group": 5}, "divides 12 ranks, found 5"),
        ("hierarchical", {"group": 5}, "divides 12 ranks, found 5"),
    ],
)
def test_refusals(name: str, given: dict[str, int | str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        made(name, Collective.ALL_REDUCE, preset("star", gpus=12), **given)


@pytest.mark.parametrize(
    "name", ["2d-torus", "blueconnect", "accl", "plink", "k-grouped", "hierarchical", "nccl-tree"]
)
@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100"])
def test_boxes_meet_on_one_rail(name: str, machine: str) -> None:
    """Boxes and rails are found whatever the numbering, so no other GPU has to forward."""
    topology = with_ranks_shuffled(preset(machine, boxes=4), seed=7)
    verified(made(name, Collective.ALL_REDUCE, topology))


SHAPES = (
    *((k, k, k) for k in (2, 3, 4, 5)),
    *product((2, 3, 4), repeat=3),
    *product((1, 2, 3, 5), repeat=2),
    (1,), (2,), (3,), (7,), (5, 3, 4), (2, 5, 2, 3), (2, 2, 2, 2), (3, 1, 4, 2), (6, 2, 1, 5),
)  # fmt: skip


def hops_of(dims: tuple[int, ...]) -> list[list[int]]:
    hops: list[list[int]] = torus_trees(tuple(size for size in dims if size > 1)).hops.tolist()
    return hops


@pytest.mark.parametrize("dims", sorted(set(SHAPES)), ids=str)
def test_trees_span_and_share_no_directed_link(dims: tuple[int, ...]) -> None:
    topology = preset("torus", dims=dims)
    links = set(zip(topology.src.tolist(), topology.dst.tolist(), strict=True))
    trees = hops_of(dims)
    size = prod(dims)
    assert len(trees) == sum(min(k - 1, 2) for k in dims)
    used = [(node, hops[node]) for hops in trees for node in range(1, size)]
    # Every link that does not leave the root is used once, those into the root among them.
    assert sorted(used) == sorted(link for link in links if link[0] != 0)
    for hops in trees:
        for node in range(size):
            seen = 0
            while node:
                node, seen = hops[node], seen + 1
                assert seen < size


@pytest.mark.parametrize("k", [3, 4, 5, 8])
def test_height(k: int) -> None:
    assert torus_trees((k, k, k)).height == 3 * (k - 1) + 1
    assert torus_trees((k, k)).height == 2 * (k - 1) + 1
    assert torus_trees((k,)).height == k - 1


@pytest.mark.parametrize("dims", [(3, 3, 3), (2, 4, 3), (5, 2), (2, 2, 3, 2)], ids=str)
def test_every_root_has_the_trees_of_node_0(dims: tuple[int, ...]) -> None:
    trees = torus_trees(dims)
    roots = np.arange(prod(dims))
    for tree in range(trees.count):
        below, above = trees.upward(tree, roots)
        for root in roots.tolist():
            assert sorted([*below[root].tolist(), root]) == roots.tolist()
            assert above[root, -1] == root


@pytest.mark.parametrize("dims", [(3, 3, 3), (4, 4), (2, 3, 4), (2, 2, 2), (6,), (5, 3)], ids=str)
@pytest.mark.parametrize("root", [0, 4])
def test_rooted_ones_take_all_links_of_the_root(dims: tuple[int, ...], root: int) -> None:
    """x/(6 B) on a 3D torus: what the root can receive, so nothing is faster."""
    topology = preset("torus", dims=dims)
    degree = sum(min(k - 1, 2) for k in dims)
    for collective in (Collective.REDUCE, Collective.BROADCAST):
        report = verified(made("camdoop", collective, topology, root), root)
        assert report.inv_rate == Fraction(1, degree)
        assert report.inv_rate == bound(Problem(topology=topology, collective=collective, root=root)).inv_rate


@pytest.mark.parametrize("dims", [(3, 3, 3), (4, 4), (2, 3, 4), (2, 2, 2), (6,), (5, 3)], ids=str)
def test_all_ranks_are_roots(dims: tuple[int, ...]) -> None:
    topology = preset("torus", dims=dims)
    size, degree = prod(dims), sum(min(k - 1, 2) for k in dims)
    share = Fraction(size - 1, size)
    for collective in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
        report = verified(made("camdoop", collective, topology))
        assert report.inv_rate == Fraction(size - 1, degree)  # per shard
        assert report.inv_rate == bound(Problem(topology=topology, collective=collective)).inv_rate
    assert verified(made("camdoop", Collective.ALL_REDUCE, topology)).inv_rate == 2 * share / degree
    # With one root some link carries its stripe up and another one down, wherever two trees meet.
    one = verified(made("camdoop", Collective.ALL_REDUCE, topology, roots="one")).inv_rate
    assert one == Fraction(2 if size > 2 else 1, degree)


@pytest.mark.parametrize("dims", [(3, 3, 3), (2, 3, 4), (4, 4)], ids=str)
def test_links_of_all_roots_carry_the_same(dims: tuple[int, ...]) -> None:
    forest = made("camdoop", Collective.REDUCE_SCATTER, preset("torus", dims=dims))
    assert isinstance(forest, Forest)
    loads = np.unique(np.stack([forest.edge_src, forest.edge_dst]), axis=1, return_counts=True)[1]
    shape = np.array(dims)
    for axis, size in enumerate(shape.tolist()):
        along = [
            load
            for (a, b), load in zip(
                np.unique(np.stack([forest.edge_src, forest.edge_dst]), axis=1).T.tolist(),
                loads.tolist(),
                strict=True,
            )
            if np.unravel_index(a, dims)[axis] != np.unravel_index(b, dims)[axis]
        ]
        assert set(along) == {prod(dims) - 1}, (axis, size)


@pytest.mark.parametrize("collective", [Collective.REDUCE, Collective.BROADCAST])
def test_the_simulator_takes_x_over_6_b(collective: Collective) -> None:
    """In many pieces the time tends to x/(6 B): seven hops of the last piece come on top."""
    body = made("camdoop", collective, preset("torus", dims=(3, 3, 3), gb_per_s=10))
    size, pieces = 6 * 2**30, 256
    took = simulate(body, size, pieces=pieces).time_us
    ideal = size / (6 * 10e3)
    latency = 7 * (1 + ideal / pieces)
    assert ideal <= took <= (ideal + latency) * (1 + 1e-9)


@pytest.mark.parametrize(("roots", "pieces", "share"), [("one", 64, 1), ("all", 4, Fraction(26, 27))])
def test_an_all_reduce_takes_twice_that(roots: str, pieces: int, share: Fraction) -> None:
    body = made("camdoop", Collective.ALL_REDUCE, preset("torus", dims=(3, 3, 3), gb_per_s=10), roots=roots)
    size = 27 * 6 * 2**22
    took = simulate(body, size, pieces=pieces).time_us
    ideal = float(2 * share) * size / (6 * 10e3)
    assert ideal * (1 - 1e-9) <= took <= 1.2 * ideal


@pytest.mark.parametrize("dims", [(3, 3, 3), (2, 4, 3), (2, 2), (7,), (1, 5), (1,)], ids=str)
def test_axes_are_found(dims: tuple[int, ...]) -> None:
    assert torus_dims(preset("torus", dims=dims)) == tuple(size for size in dims if size > 1)


@pytest.mark.parametrize(
    ("topology", "complaint"),
    [
        (preset("mesh"), "needs a torus of ranks alone, .* found mesh 3x3"),
        (preset("dgx-a100"), "needs a torus of ranks alone"),
        (preset("star", gpus=1), "needs a torus of ranks alone"),
        (preset("complete", gpus=6), "needs a torus of ranks alone"),
        (with_ranks_shuffled(preset("torus", dims=(3, 4)), seed=3), "in rank order"),
        (preset("torus", dims=(3, 3, 3, 3)), "at most 3 axes of three and more ranks, found 4"),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else "",
)
def test_camdoop_refusals(topology: Topology, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        made("camdoop", Collective.ALL_REDUCE, topology)


def test_one_rank_has_nothing_to_do() -> None:
    for collective in (Collective.ALL_REDUCE, Collective.BROADCAST):
        forest = made("camdoop", collective, preset("torus", dims=(1,)))
        assert isinstance(forest, Forest)
        assert forest.num_trees == 0
        verified(forest)
