"""Heights, distinct trees and exact sums against figures worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.exact_sums import exact_total, grouped_sums
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.shape import shape, tree_heights
from schedule.builders import (
    Tree,
    chain,
    forests,
    make_forest,
    reversed_tree,
    ring_forest,
    ring_topology,
    star_forest,
    star_topology,
    trees_of,
)


def test_ring_chains_are_as_high_as_the_ring_is_long() -> None:
    found = shape(ring_forest(6))
    assert (found.max_height, found.mean_height, found.distinct_trees, found.trees_per_root) == (5, 5, 12, 2)


def test_star_trees_have_height_one_through_the_switch() -> None:
    found = shape(star_forest(5))
    assert (found.max_height, found.mean_height, found.distinct_trees, found.trees_per_root) == (1, 1, 5, 1)


def test_all_reduce_heights_add_up() -> None:
    found = shape(ring_forest(5, Collective.ALL_REDUCE))
    assert (found.max_height, found.mean_height, found.distinct_trees) == (8, 8, 20)
    assert found.phases[Phase.REDUCE].max_height == found.phases[Phase.BROADCAST].max_height == 4
    assert found.trees_per_root == 2


def test_mean_height_is_weighted() -> None:
    trees: list[Tree] = [
        (0, 2, Phase.BROADCAST, [(0, 3, 1), (0, 3, 2)]),
        (0, 6, Phase.BROADCAST, [(0, 3, 1), (1, 3, 2)]),
    ]
    found = shape(make_forest(star_topology(3), Collective.BROADCAST, trees))
    assert found.mean_height == Fraction(14, 8)
    assert found.trees_per_root is None


def test_trees_per_root_is_in_lowest_terms_and_none_where_roots_differ() -> None:
    same = make_forest(
        ring_topology(3), Collective.ALL_GATHER, [chain(r, 3, s, 6) for r in range(3) for s in (1, -1)]
    )
    assert shape(same).trees_per_root == 2
    different = make_forest(
        ring_topology(3), Collective.ALL_GATHER, [chain(r, 3, 1, r + 1) for r in range(3)]
    )
    assert shape(different).trees_per_root is None


def test_the_same_tree_twice_is_not_distinct_whatever_its_order() -> None:
    trees: list[Tree] = [
        (0, 1, Phase.BROADCAST, [(0, 3, 1), (0, 3, 2)]),
        (0, 1, Phase.BROADCAST, [(0, 3, 2), (0, 3, 1)]),
        (0, 1, Phase.BROADCAST, [(0, 3, 2), (2, 3, 1)]),
    ]
    assert shape(make_forest(star_topology(3), Collective.BROADCAST, trees)).distinct_trees == 2


def test_copying_switches_make_no_hop() -> None:
    n = 3
    up: Tree = (0, 1, Phase.REDUCE, [(1, n), (2, n), (n, 0)])
    forest = make_forest(star_topology(n, in_network=True), Collective.ALL_REDUCE, [up, reversed_tree(up)])
    assert tree_heights(forest).tolist() == [1, 1]
    assert shape(forest).max_height == 2


def test_an_empty_forest_has_no_height() -> None:
    found = shape(make_forest(star_topology(1), Collective.ALL_GATHER, []))
    assert (found.max_height, found.mean_height, found.distinct_trees) == (0, 0, 0)


def test_edges_in_a_circle_are_refused() -> None:
    loop: Tree = (0, 1, Phase.BROADCAST, [(1, 2), (2, 1), (2, 3)])
    with pytest.raises(InputError, match="does not lead to the root"):
        tree_heights(make_forest(ring_topology(4), Collective.BROADCAST, [loop]))


def slow_height(tree: Tree) -> int:
    depth = {tree[0]: 0}
    edges = tree[3] if tree[2] == Phase.BROADCAST else [p[::-1] for p in reversed(tree[3])]
    for path in edges:
        depth[path[-1]] = depth[path[0]] + 1
    return max(depth.values())


@given(forests(Collective.ALL_REDUCE))
@settings(max_examples=100, deadline=None)
def test_drawn_heights_and_distinct_trees(forest: Forest) -> None:
    trees = trees_of(forest)
    assert tree_heights(forest).tolist() == [slow_height(tree) for tree in trees]
    assert shape(forest).distinct_trees == len({(t[0], t[2], frozenset(t[3])) for t in trees})


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**63 - 1)), max_size=30),
)
def test_sums_are_exact(rows: list[tuple[int, int]]) -> None:
    group = np.array([g for g, _ in rows], dtype=np.int64)
    values = np.array([v for _, v in rows], dtype=np.int64)
    expected = [sum(v for g, v in rows if g == each) for each in range(4)]
    assert grouped_sums(group, values, 4) == expected
    assert grouped_sums(group, [v * 2**40 for _, v in rows], 4) == [v * 2**40 for v in expected]
    assert exact_total(values) == sum(expected)
