"""What passes the native walk of a forest is what the verifier's Python finds nothing wrong with."""

import random
from dataclasses import replace

import numpy as np
import pytest

import coppice
from coppice.schedule import loads, shape
from coppice.schedule.forest import Forest, expanded
from coppice.schedule.verification import forest as judge
from coppice.schedule.verification.forest import verify_forest
from coppice.schedule.walk import walk

CHANGED = {
    "tree_root": 1,
    "tree_weight": 40,
    "tree_phase": 1,
    "tree_start": 2,
    "edge_src": 1,
    "edge_dst": 1,
    "edge_path": 3,
    "path_start": 1,
    "path_nodes": 1,
}


def forests() -> list[Forest]:
    """Forests of all three kinds."""
    made = []
    for name, collective in (
        ("dgx-a100", "all_gather"),
        ("ring", "all_reduce"),
        ("fat-tree", "reduce_scatter"),
    ):
        forest = coppice.plan(name, collective, ring=False).plan.forest
        assert forest is not None
        made.append(expanded(forest))
    return made


def broken(forest: Forest, draw: random.Random) -> Forest:
    """A forest with one or two numbers changed, or two rows swapped."""
    columns = {}
    for name in draw.sample(sorted(CHANGED), draw.randint(1, 2)):
        column = getattr(forest, name).copy()
        at, other = draw.randrange(len(column)), draw.randrange(len(column))
        if draw.random() < 0.5:
            column[[at, other]] = column[[other, at]]
        else:
            column[at] += draw.choice([-1, 1]) * draw.randint(1, CHANGED[name])
        columns[name] = column
    return replace(forest, **columns)


@pytest.mark.parametrize("number", range(3))
def test_walks_agree_with_the_reference(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    forest, draw = forests()[number], random.Random(number)
    passed = 0
    for _ in range(120):
        changed = broken(forest, draw)
        native = verify_forest(changed)
        walked = walk(changed)
        with monkeypatch.context() as patch:
            for module in (judge, loads, shape):
                patch.setattr(module, "walk", lambda _: None)
            twin = verify_forest(changed)
            if walked is not None:
                assert twin.inv_rate == native.inv_rate
                assert shape.tree_heights(changed).tolist() == walked.height.tolist()
                assert native.max_height == shape.shape(changed).max_height
        assert (native.ok, native.failures) == (twin.ok, twin.failures)
        assert native.checked == twin.checked
        passed += walked is not None
    assert 0 < passed < 120


def test_columns_of_other_types_are_left_to_the_reference() -> None:
    forest = forests()[0]
    wide = replace(forest, edge_src=forest.edge_src.astype(np.int64) + 2**32)
    assert walk(wide) is None
    assert not verify_forest(wide).ok
    assert walk(replace(forest, tree_weight=forest.tree_weight * 2**58)) is None
    assert verify_forest(replace(forest, tree_weight=forest.tree_weight * 2**50)).ok


def test_loads_are_those_of_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    for forest in forests():
        native = loads.forest_loads(forest).load
        with monkeypatch.context() as patch:
            patch.setattr(loads, "walk", lambda _: None)
            assert loads.forest_loads(forest).load == native
