"""Camdoop: spanning trees of a torus that share no directed link, and the collectives along them."""

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
from coppice.planners.algorithms.parts.torus_trees import torus_dims, torus_trees
from coppice.schedule.forest import Forest
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from planners.algorithms.crossbar import made, verified, with_ranks_shuffled
from support.ideal import simulate

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
def test_refusals(topology: Topology, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        made("camdoop", Collective.ALL_REDUCE, topology)


def test_one_rank_has_nothing_to_do() -> None:
    for collective in (Collective.ALL_REDUCE, Collective.BROADCAST):
        forest = made("camdoop", collective, preset("torus", dims=(1,)))
        assert isinstance(forest, Forest)
        assert forest.num_trees == 0
        verified(forest)
