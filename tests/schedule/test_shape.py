"""Schedules and forests: shapes by hand, what lowering keeps, chunks that tile the buffer, and what objects print."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import AlgorithmCase
from coppice.planners.algorithms.parts.moves import Moves, blocks, pairs, whole
from coppice.planners.planning import plan
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.loads import exact_total, forest_loads, grouped_sums, schedule_loads
from coppice.schedule.lower import chunk_bounds, lower
from coppice.schedule.schedule import Schedule, in_pieces
from coppice.schedule.shape import shape, tree_heights
from coppice.schedule.verification.report import Report
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.presets import preset
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


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**63 - 1)), max_size=30))
def test_sums_are_exact(rows: list[tuple[int, int]]) -> None:
    group = np.array([g for g, _ in rows], dtype=np.int64)
    values = np.array([v for _, v in rows], dtype=np.int64)
    expected = [sum(v for g, v in rows if g == each) for each in range(4)]
    assert grouped_sums(group, values, 4) == expected
    assert grouped_sums(group, [v * 2**40 for _, v in rows], 4) == [v * 2**40 for v in expected]
    assert exact_total(values) == sum(expected)


@pytest.mark.parametrize(
    "collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE]
)
def test_ring_forests(collective: Collective) -> None:
    forest = ring_forest(7, collective)
    schedule = lower(forest)
    report = verify_schedule(schedule)
    assert report.ok, report.failures
    assert report.redundant == 0
    assert report.inv_rate == forest_loads(forest).inv_rate
    assert schedule.num_transfers == forest.num_edges


def test_rooted_forests() -> None:
    down = chain(2, 4, 1, 3), chain(2, 4, -1, 5)
    broadcast = lower(make_forest(ring_topology(4), Collective.BROADCAST, down))
    assert verify_schedule(broadcast).inv_rate == Fraction(5, 8)
    up = [reversed_tree(tree) for tree in down]
    reduce = lower(make_forest(ring_topology(4), Collective.REDUCE, up))
    assert verify_schedule(reduce).inv_rate == Fraction(5, 8)
    assert reduce.root == 2


def test_weights_become_slot_weights() -> None:
    trees = [chain(0, 3, 1, 20), chain(1, 3, 1, 10), chain(1, 3, -1, 30)]
    schedule = lower(make_forest(ring_topology(3), Collective.ALL_GATHER, trees))
    assert schedule.slot_weight.tolist() == [1, 2, 0]
    report = verify_schedule(schedule, weights=(1, 2, 0))
    assert report.ok, report.failures


def test_all_reduce_cuts_where_either_phase_does() -> None:
    reduces = [reversed_tree(chain(0, 3, 1, 3)), reversed_tree(chain(0, 3, -1, 4))]
    trees = [*reduces, chain(0, 3, 1, 2), chain(0, 3, -1, 5)]
    forest = make_forest(ring_topology(3), Collective.ALL_REDUCE, trees)
    schedule = lower(forest)
    assert schedule.chunk_share.tolist() == [2, 1, 4]
    report = verify_schedule(schedule)
    assert report.ok, report.failures
    assert report.inv_rate == forest_loads(forest).inv_rate


def test_unequal_phases_are_refused() -> None:
    trees = [reversed_tree(chain(0, 3, 1, 3)), chain(0, 3, 1, 2)]
    with pytest.raises(InputError, match="3 reduced and 2 broadcast"):
        lower(make_forest(ring_topology(3), Collective.ALL_REDUCE, trees))


def test_copying_switches_are_refused() -> None:
    tree: Tree = (0, 1, Phase.BROADCAST, [(0, 3), (3, 1), (3, 2)])
    with pytest.raises(InputError, match="at sw"):
        lower(make_forest(star_topology(3, in_network=True), Collective.BROADCAST, [tree]))


@given(forests(Collective.ALL_REDUCE))
@settings(max_examples=60, deadline=None)
def test_drawn_forests(forest: Forest) -> None:
    schedule = lower(forest)
    report = verify_schedule(schedule)
    assert report.ok, report.failures
    assert report.inv_rate == forest_loads(forest).inv_rate
    ours, theirs = forest_loads(forest), schedule_loads(schedule)
    assert [load / ours.shard for load in ours.load] == [load / theirs.shard for load in theirs.load]


def schedule(collective: Collective, ranks: int = 4, **columns: list[int]) -> Schedule:
    root = 0 if collective.rooted else -1
    case = AlgorithmCase(topology=preset("star", gpus=ranks), collective=collective, root=root)
    layout = pairs(case) if collective is Collective.ALL_TO_ALL else blocks(case)
    made = Moves(case, layout).schedule()
    kinds = {"chunk_slot": np.int32, "slot_weight": np.int64, "chunk_share": np.int64}
    for name, values in columns.items():
        object.__setattr__(made, name, np.array(values, dtype=kinds[name]))
    return made


weights = st.integers(0, 9) | st.integers(2**40, 2**62)


@settings(max_examples=300)
@given(
    st.lists(weights, min_size=4, max_size=4),
    st.lists(st.lists(st.integers(1, 9) | st.integers(2**40, 2**61), max_size=3), min_size=4, max_size=4),
    st.integers(0, 1000) | st.integers(2**40, 2**62),
)
def test_every_boundary_is_the_floor_of_its_share(
    weight: list[int], shares: list[list[int]], size: int
) -> None:
    body = schedule(
        Collective.ALL_GATHER,
        slot_weight=weight,
        chunk_slot=[slot for slot, parts in enumerate(shares) for _ in parts],
        chunk_share=[share for parts in shares for share in parts],
    )
    offset, length = chunk_bounds(body, size)
    expected = []
    for slot, parts in enumerate(shares):
        for i in range(len(parts)):
            cuts = [
                sum(weight[:slot]) + Fraction(weight[slot] * sum(parts[:j]), sum(parts)) for j in (i, i + 1)
            ]
            begin, end = (size * cut // sum(weight) if sum(weight) else 0 for cut in cuts)
            expected.append((begin, end - begin))
    assert list(zip(offset.tolist(), length.tolist(), strict=True)) == expected


@pytest.mark.parametrize("size", [0, 1, 2, 1000, 2**40 + 7])
def test_equal_chunks_differ_by_one_byte_and_add_up(size: int) -> None:
    for pieces in (1, 3, 64):
        length = chunk_bounds(in_pieces(schedule(Collective.ALL_REDUCE, 7), pieces), size)[1]
        assert length.sum() == size
        assert length.max() - length.min() <= 1


def test_all_to_all_has_a_buffer_of_m_for_every_sender() -> None:
    offset, length = chunk_bounds(schedule(Collective.ALL_TO_ALL, 3), 10)
    assert length.reshape(3, 3).sum(axis=1).tolist() == [10, 10, 10]
    assert offset[::3].tolist() == [0, 10, 20]


def test_a_buffer_in_one_slot() -> None:
    case = AlgorithmCase(topology=preset("star", gpus=4), collective=Collective.ALL_REDUCE)
    assert chunk_bounds(Moves(case, whole(case, 2)).schedule(), 11)[1].tolist() == [5, 6]


def test_a_barrier_has_no_bytes() -> None:
    case = AlgorithmCase(topology=preset("star", gpus=4), collective=Collective.BARRIER)
    assert chunk_bounds(Moves(case, whole(case)).schedule(), 11)[1].tolist() == [0]


def test_refuses_what_has_no_meaning() -> None:
    with pytest.raises(InputError, match="0 bytes or more"):
        chunk_bounds(schedule(Collective.ALL_GATHER), -1)
    with pytest.raises(InputError, match=r"2\^63"):
        chunk_bounds(schedule(Collective.ALL_TO_ALL, 8), 2**60)


MOST = 400


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.BROADCAST])
def test_short_however_long_the_names(collective: Collective) -> None:
    topology = replace(preset("torus", dims=(2, 3)), name="x" * 10_000)
    root = 0 if collective.rooted else None
    result = plan(Problem(topology=topology, collective=collective, root=root), ring=False)
    made = replace(result.plan, planner="y" * 10_000)
    assert made.forest is not None
    schedule = lower(made.forest)
    for each in (topology, made.problem, result.bound, made.forest, schedule, made, result.report):
        text = repr(each)
        assert text.startswith(f"{type(each).__name__}(")
        assert "\n" not in text
        assert len(text) < MOST
    assert f"{schedule.num_transfers} transfers" in repr(schedule)


def test_a_report_says_what_failed() -> None:
    assert repr(Report(ok=False, failures=("z" * 10_000,)))[:22] == "Report(1 failure: zzzz"
    assert len(repr(Report(ok=False, failures=("z" * 10_000,)))) < MOST
    assert repr(Report(ok=True)) == "Report(ok)"
    assert "optimal" in repr(Report(ok=True, optimal=True, inv_rate=Fraction(1, 3), checked={"trees": 3}))


def test_a_problem_says_where_its_data_go() -> None:
    star = preset("star", gpus=3)
    assert "gather to rank 1," in repr(Problem(topology=star, collective=Collective.GATHER, root=1))
    assert "scatter from rank 1," in repr(Problem(topology=star, collective=Collective.SCATTER, root=1))
    weighted = Problem(topology=star, collective=Collective.ALL_GATHER, weights=(1, 2, 3))
    assert "all_gather, with weights," in repr(weighted)
