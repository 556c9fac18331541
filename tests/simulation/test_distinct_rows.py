"""Rows of node ids without repeats, as numpy finds them along an axis, for keys of any width."""

from __future__ import annotations

import numpy as np
import pytest

from coppice.schedule.messages import _distinct_rows


@pytest.mark.parametrize("below", [2, 7, 5_000, 2**20, 2**31 - 1])
@pytest.mark.parametrize("width", [1, 3, 6])
def test_as_numpy_along_an_axis(below: int, width: int) -> None:
    rng = np.random.default_rng(width)
    table = rng.integers(0, below, (200, width)).astype(np.int32)[rng.integers(0, 200, 500)]
    distinct, which = _distinct_rows(table, below)
    expected, inverse = np.unique(table, axis=0, return_inverse=True)
    assert np.array_equal(distinct, expected)
    assert np.array_equal(which, inverse.reshape(-1))
