"""A lowered forest does the same thing at the same exact cost."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.schedule.forest import Forest, Phase
from coppice.schedule.loads import forest_loads, schedule_loads
from coppice.schedule.lower import lower
from coppice.schedule.verification.transfers import verify_schedule
from schedule.builders import (
    Tree,
    chain,
    forests,
    make_forest,
    reversed_tree,
    ring_forest,
    ring_topology,
    star_topology,
)


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
