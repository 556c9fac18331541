"""Heights, distinct trees, latencies and pipeline fill against figures worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.cost import PipelineModel, forest_pipeline, schedule_pipeline, tree_latencies_us
from coppice.schedule.exact_sums import exact_total, grouped_sums
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.lower import lower
from coppice.schedule.shape import shape, tree_heights
from schedule.builders import (
    Tree,
    chain,
    forests,
    make_forest,
    make_schedule,
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


def test_latency_of_a_tree_adds_links_and_overhead() -> None:
    trees: list[Tree] = [(0, 1, Phase.BROADCAST, [(0, 3, 1), (1, 3, 2)])]
    forest = make_forest(star_topology(3), Collective.BROADCAST, trees)
    latency, hops = tree_latencies_us(forest)
    assert (latency.tolist(), hops.tolist()) == ([4.0], [2])
    latency, _ = tree_latencies_us(forest, hop_overhead_us=0.25)
    assert latency.tolist() == [2.5]


def test_pipeline_of_a_forest() -> None:
    model = forest_pipeline(star_forest(5), inv_rate=Fraction(4), shards=5)
    assert (model.hops, model.latency_us) == (1, 2.0)
    assert model.us_per_byte == pytest.approx(4 / 5 / 1000)
    assert model.time_us(5000) == pytest.approx(2 + 4)
    both = forest_pipeline(ring_forest(5, Collective.ALL_REDUCE), inv_rate=Fraction(8, 5), shards=1)
    assert (both.hops, both.latency_us) == (8, 8.0)


@pytest.mark.parametrize("hops", [1, 2, 5, 40])
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9, 0.99])
def test_the_rate_is_reached_at_the_given_size(hops: int, share: float) -> None:
    model = PipelineModel(hops=hops, latency_us=3.0 * hops, us_per_byte=1e-5)
    size = model.size_bytes_at(share)
    assert size * model.us_per_byte / model.time_us(size) == pytest.approx(share)


def test_time_is_the_best_over_the_number_of_pieces() -> None:
    model = PipelineModel(hops=7, latency_us=21.0, us_per_byte=1e-3)
    for size in (10.0, 1e3, 1e5, 1e7):
        bandwidth = size * 1e-3
        pieces = [max(1.0, sqrt(6 * bandwidth / 3) * factor) for factor in (0.9, 1.0, 1.1)]
        times = [(m + 6) * (3 + bandwidth / m) for m in pieces]
        assert model.time_us(size) == pytest.approx(min(times))


def test_no_hops_no_wait() -> None:
    nothing = PipelineModel(hops=0, latency_us=0.0, us_per_byte=0.0)
    assert (nothing.time_us(100), nothing.size_bytes_at(0.9)) == (0.0, 0.0)
    assert PipelineModel(hops=1, latency_us=1.0, us_per_byte=0.0).size_bytes_at(0.9) == inf
    with pytest.raises(InputError, match="between 0 and 1"):
        nothing.size_bytes_at(1.0)


def test_pipeline_of_a_schedule_follows_dependencies() -> None:
    forest = ring_forest(6, Collective.ALL_REDUCE)
    model = schedule_pipeline(lower(forest), inv_rate=Fraction(1), shards=1)
    assert (model.hops, model.latency_us) == (10, 10.0)
    rows = [(0, 0, 1, 0, None, 0), (0, 1, 2, 0, None, 1), (1, 1, 2, 0, None, 1)]
    stepped = make_schedule(ring_topology(3), Collective.ALL_GATHER, rows, chunk_slot=[0, 1])
    assert schedule_pipeline(stepped, inv_rate=Fraction(1), shards=3).hops == 2
    waiting = make_schedule(
        ring_topology(3), Collective.ALL_GATHER, rows, chunk_slot=[0, 1], after=[(), (), (0, 1)]
    )
    assert schedule_pipeline(waiting, inv_rate=Fraction(1), shards=3).hops == 3
    exchange = [(0, 0, 1, 1, None, 0), (0, 1, 0, 1, None, 0)]
    pair = make_schedule(ring_topology(2), Collective.ALL_REDUCE, exchange, chunk_slot=[0])
    assert schedule_pipeline(pair, inv_rate=Fraction(1), shards=1).hops == 1


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
