"""The native core refuses tables that do not fit together instead of reading past their ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coppice import _core

ARCS = np.array([0, 1], dtype=np.int32)
HEADS = np.array([1, 0], dtype=np.int32)
ONES = np.ones(2, dtype=np.int64)
BOTH = np.ones(2, dtype=np.bool_)
SHORT = {
    1: HEADS[:1],
    2: ONES[:1],
    3: ONES[:1],
    4: BOTH[:1],
}


def calls() -> dict[str, Any]:
    return {
        "violated_cuts": lambda *columns: _core.violated_cuts(2, *columns, 2),
        "cut_bound": lambda *columns: _core.cut_bound(2, *columns),
        "pack_trees": lambda *columns: _core.pack_trees(2, *columns),
    }


@pytest.mark.parametrize("name", sorted(calls()))
@pytest.mark.parametrize("place", sorted(SHORT))
def test_short_columns_are_refused(name: str, place: int) -> None:
    columns: list[Any] = [ARCS, HEADS, ONES, ONES, BOTH]
    calls()[name](*columns)
    columns[place] = SHORT[place]
    with pytest.raises(ValueError, match="entries, found 1"):
        calls()[name](*columns)


def test_templates_refuse_negative_orbits() -> None:
    orbits = np.zeros(2, dtype=np.int32)
    orders, elements = np.array([2], dtype=np.int64), np.array([0, 1], dtype=np.int64)
    arguments: tuple[Any, ...] = (2, ARCS, HEADS, ONES, ONES, BOTH, orders)
    assert _core.pack_templates(*arguments, orbits, elements, orbits)["complete"]
    with pytest.raises(ValueError, match="0 or more"):
        _core.pack_templates(*arguments, orbits, elements, orbits - 1)
    with pytest.raises(ValueError, match="link_orbit must have 2 entries"):
        _core.pack_templates(*arguments, orbits, elements, orbits[:1])
