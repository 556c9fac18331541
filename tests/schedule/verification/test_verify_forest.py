"""The forest verifier: hand-made forests with known figures, every kind of damage, and a slow reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.verification.forest import verify_forest
from coppice.topology.model import Link, Node, NodeKind, Topology
from schedule.builders import (
    Tree,
    chain,
    forests,
    make_forest,
    reversed_tree,
    ring_forest,
    ring_topology,
    slow_verdict,
    star_forest,
    star_topology,
    trees_of,
)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_ring_all_gather_takes_half_of_n_minus_1(n: int) -> None:
    report = verify_forest(ring_forest(n))
    assert report.ok, report.failures
    assert report.inv_rate == Fraction(n - 1, 2) if n > 2 else Fraction(1)
    assert report.max_link_load == 1


@pytest.mark.parametrize("n", [3, 8])
def test_ring_all_reduce_counts_both_phases(n: int) -> None:
    report = verify_forest(ring_forest(n, Collective.ALL_REDUCE))
    assert report.ok, report.failures
    assert report.inv_rate == Fraction(n - 1, n)


def test_ring_reduce_scatter_mirrors_all_gather() -> None:
    report = verify_forest(ring_forest(6, Collective.REDUCE_SCATTER))
    assert report.ok, report.failures
    assert report.inv_rate == Fraction(5, 2)


def test_star_counts_every_copy_at_the_sender() -> None:
    report = verify_forest(star_forest(4, Fraction(75, 2)), claimed=Fraction(6, 50))
    assert report.ok, report.failures
    assert report.inv_rate == Fraction(3) / Fraction(75, 2) == Fraction(2, 25)
    assert report.max_link_load == Fraction(2, 3)
    assert report.checked["edges"] == 12


def test_broadcast_and_reduce_need_their_root() -> None:
    forest = make_forest(ring_topology(4), Collective.BROADCAST, [chain(2, 4, 1)])
    assert verify_forest(forest, root=2).inv_rate == 1
    assert not verify_forest(forest, root=1).ok
    assert not verify_forest(forest).ok
    mirror = make_forest(ring_topology(4), Collective.REDUCE, [reversed_tree(chain(2, 4, 1))])
    assert verify_forest(mirror, root=2).ok
    assert not verify_forest(replace(mirror, collective=Collective.BROADCAST), root=2).ok


def test_weights_set_the_rates_of_roots() -> None:
    trees = [chain(0, 3, 1, 2), chain(1, 3, 1, 4), chain(2, 3, 1, 6)]
    forest = make_forest(ring_topology(3), Collective.ALL_GATHER, trees)
    report = verify_forest(forest, weights=(1, 2, 3))
    assert report.ok, report.failures
    assert (
        report.inv_rate == 5
    )  # link 0 -> 1 carries the shards of ranks 0, 2: but 2 -> 0 those of 1, 2 (2 + 3)
    assert not verify_forest(forest).ok
    assert not verify_forest(forest, weights=(1, 2)).ok


def test_a_rank_of_weight_zero_has_no_trees() -> None:
    forest = make_forest(ring_topology(3), Collective.ALL_GATHER, [chain(0, 3, 1), chain(1, 3, 1)])
    assert verify_forest(forest, weights=(1, 1, 0)).ok


def test_in_network_all_reduce_at_the_switch() -> None:
    n = 4
    up: Tree = (n, 1, Phase.REDUCE, [(i, n) for i in range(n)])
    forest = make_forest(
        star_topology(n, 300, in_network=True), Collective.ALL_REDUCE, [up, reversed_tree(up)]
    )
    report = verify_forest(forest)
    assert report.ok, report.failures
    assert report.inv_rate == Fraction(1, 300)
    plain = make_forest(star_topology(n, 300), Collective.ALL_REDUCE, [up, reversed_tree(up)])
    report = verify_forest(plain)
    assert any("cannot copy" in failure for failure in report.failures)
    assert any("cannot add" in failure for failure in report.failures)


def test_a_switch_that_copies_must_be_entered() -> None:
    n = 3
    enters: Tree = (0, 1, Phase.BROADCAST, [(0, n), (n, 1), (n, 2)])
    starts: Tree = (0, 1, Phase.BROADCAST, [(n, 1), (n, 2)])
    topology = star_topology(n, in_network=True)
    assert verify_forest(make_forest(topology, Collective.BROADCAST, [enters]), root=0).inv_rate == 1
    assert not verify_forest(make_forest(topology, Collective.BROADCAST, [starts]), root=0).ok


def test_one_rank_needs_no_trees() -> None:
    alone = Topology.of("one", [Node(id="g0")], [])
    report = verify_forest(make_forest(alone, Collective.ALL_GATHER, []))
    assert report.ok
    assert report.inv_rate == 0


def test_no_trees_is_not_a_plan() -> None:
    for collective in (Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        assert not verify_forest(make_forest(ring_topology(3), collective, [])).ok


def test_relay_gpus_pass_data_on_but_ranks_do_not() -> None:
    nodes = [Node(id="a", rank=0), Node(id="relay"), Node(id="b", rank=1)]
    links = [
        Link(src="a", dst="relay", gb_per_s=Fraction(2)),
        Link(src="relay", dst="b", gb_per_s=Fraction(2)),
    ]
    trees: list[Tree] = [(0, 1, Phase.BROADCAST, [(0, 1, 2)]), (2, 1, Phase.BROADCAST, [(2, 1, 0)])]
    assert verify_forest(make_forest(Topology.of("r", nodes, links), Collective.ALL_GATHER, trees)).ok
    through_rank = make_forest(ring_topology(4), Collective.BROADCAST, [(0, 1, Phase.BROADCAST, [(0, 1, 2)])])
    assert any("rank 1" in failure for failure in verify_forest(through_rank, root=0).failures)


def test_claims_are_held_against_the_loads() -> None:
    assert verify_forest(star_forest(4), claimed=Fraction(3)).ok
    report = verify_forest(star_forest(4), claimed=Fraction(29, 10))
    assert not report.ok
    assert report.max_link_load == Fraction(30, 29)
    with pytest.raises(CheckError, match="more than the claimed 29/10"):
        report.require_ok()


def test_weights_near_2_to_the_63_do_not_overflow() -> None:
    heavy = 2**62
    trees = [chain(root, 3, step, heavy) for root in range(3) for step in (1, -1)]
    report = verify_forest(make_forest(ring_topology(3), Collective.ALL_GATHER, trees))
    assert report.ok, report.failures
    assert report.inv_rate == 1


# Damage. Each function changes one thing in the trees of a right forest.


def _drop(trees: list[Tree]) -> None:
    trees[0][3].pop()


def _drop_first(trees: list[Tree]) -> None:
    trees[1][3].pop(0)


def _double(trees: list[Tree]) -> None:
    trees[0][3].append(trees[0][3][-1])


def _reaim(trees: list[Tree]) -> None:
    trees[0][3][-1] = tuple(reversed(trees[0][3][0]))


def _reorder(trees: list[Tree]) -> None:
    edges = trees[1][3]
    edges[0], edges[1] = edges[1], edges[0]


def _heavier(trees: list[Tree]) -> None:
    root, weight, phase, edges = trees[2]
    trees[2] = (root, weight + 1, phase, edges)


def _other_root(trees: list[Tree]) -> None:
    _, weight, phase, edges = trees[0]
    trees[0] = (3, weight, phase, edges)


def _other_phase(trees: list[Tree]) -> None:
    trees[0] = reversed_tree(trees[0])


def _no_such_link(trees: list[Tree]) -> None:
    src, dst = trees[0][3][0]
    trees[0][3][0] = (src, 4 if src != 4 else 3, dst)


def _lost_tree(trees: list[Tree]) -> None:
    trees.pop()


DAMAGE = [
    _drop, _drop_first, _double, _reaim, _reorder, _heavier, _other_root, _other_phase, _no_such_link,
    _lost_tree,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "collective", [Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE]
)
def test_every_damage_is_found(damage: Callable[[list[Tree]], None], collective: Collective) -> None:
    forest = ring_forest(6, collective)
    trees = trees_of(forest)
    damage(trees)
    report = verify_forest(make_forest(forest.topology, collective, trees))
    assert not report.ok
    assert all(failure.endswith(".") and len(failure) < 300 for failure in report.failures)


def test_a_path_that_does_not_join_its_ends_is_found() -> None:
    forest = star_forest(4)
    swapped = forest.edge_path.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    report = verify_forest(replace(forest, edge_path=swapped))
    assert any("g0 -> sw -> g2" in failure for failure in report.failures)


def test_a_detour_over_other_links_is_counted_not_refused() -> None:
    nodes = [
        Node(id="a"),
        Node(id="b"),
        Node(id="s", kind=NodeKind.SWITCH),
        Node(id="t", kind=NodeKind.SWITCH),
    ]
    links = [
        Link(src=x, dst=y, gb_per_s=Fraction(1)) for x, y in [("a", "s"), ("s", "b"), ("s", "t"), ("t", "b")]
    ]
    trees: list[Tree] = [(0, 1, Phase.BROADCAST, [(0, 2, 3, 1)]), (1, 1, Phase.BROADCAST, [(1, 2, 0)])]
    report = verify_forest(make_forest(Topology.of("t", nodes, links), Collective.ALL_GATHER, trees))
    assert report.ok
    assert report.inv_rate == 1


COLUMNS: list[tuple[str, object]] = [
    ("tree_root", np.array([99] * 10)),
    ("tree_weight", np.array([0] * 10)),
    ("tree_weight", np.array([1] * 9)),
    ("tree_phase", np.array([2] * 10)),
    ("tree_start", np.array([0, 4])),
    ("edge_src", np.array([-1] * 40)),
    ("edge_dst", np.array([0.5] * 40)),
    ("edge_path", np.array([10**6] * 40)),
    ("path_nodes", np.array([77] * 20)),
    ("path_start", np.array([0, 1, 20])),
    ("path_start", np.array([], dtype=np.int64)),
]


@pytest.mark.parametrize(("name", "column"), COLUMNS)
def test_malformed_columns_are_named(name: str, column: np.ndarray) -> None:
    report = verify_forest(replace(ring_forest(5), **{name: column}))
    assert not report.ok
    assert name in " ".join(report.failures)


def test_all_to_all_is_no_forest() -> None:
    assert not verify_forest(replace(ring_forest(3), collective=Collective.ALL_TO_ALL)).ok


@given(forests())
@settings(max_examples=60, deadline=None)
def test_drawn_forests_agree_with_the_slow_reference(forest: Forest) -> None:
    report = verify_forest(forest)
    assert report.ok, report.failures
    assert slow_verdict(forest) == (True, report.inv_rate)


@given(forests(Collective.ALL_REDUCE), st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_forests_agree_with_the_slow_reference(forest: Forest, data: st.DataObject) -> None:
    trees = trees_of(forest)
    number = data.draw(st.integers(0, len(trees) - 1))
    root, weight, phase, edges = trees[number]
    edges = list(edges)
    rows = st.integers(0, len(edges) - 1)
    match data.draw(st.sampled_from(["drop", "double", "swap", "path", "weight", "root", "phase", "borrow"])):
        case "drop":
            edges.pop(data.draw(rows))
        case "double":
            edges.insert(data.draw(rows), edges[data.draw(rows)])
        case "swap":
            a, b = data.draw(rows), data.draw(rows)
            edges[a], edges[b] = edges[b], edges[a]
        case "path":
            node = st.integers(0, forest.topology.num_nodes - 1)
            edges[data.draw(rows)] = tuple(data.draw(st.lists(node, min_size=2, max_size=4)))
        case "weight":
            weight = data.draw(st.integers(1, 9))
        case "root":
            root = data.draw(st.integers(0, forest.topology.num_nodes - 1))
        case "phase":
            phase = Phase(1 - phase)
        case "borrow":
            edges[data.draw(rows)] = data.draw(st.sampled_from([p for t in trees for p in t[3]]))
    trees[number] = (root, weight, phase, edges)
    changed = make_forest(forest.topology, forest.collective, trees)
    good, inv_rate = slow_verdict(changed)
    report = verify_forest(changed)
    assert report.ok == good, report.failures
    if inv_rate is not None:
        assert report.inv_rate == inv_rate
