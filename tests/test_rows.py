"""Ragged rows against plain loops."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from coppice.rows import (
    begins_run,
    distinct,
    first_rows,
    grouped,
    inverse,
    last_before,
    next_after,
    nth_in_group,
    nth_in_run,
    offsets,
    positions,
    ranges,
    rows_of_groups,
    sorted_rows,
)

COUNTS = st.lists(st.integers(0, 4), max_size=8)
KEYS = st.lists(st.integers(-3, 3), max_size=20)
QUICK = settings(deadline=None)
HUGE = st.sampled_from([-(2**62), -1, 0, 1, 2**62])


def ints(values: list[int]) -> Any:
    return np.array(values, dtype=np.int64)


def same(found: Any, expected: list[Any]) -> None:
    """The values, as 64-bit integers, or as booleans where they are such."""
    assert found.tolist() == expected
    assert found.dtype in (np.int64, np.bool_)


@QUICK
@given(COUNTS, st.sampled_from([np.int32, np.int64]))
def test_offsets_and_positions(counts: list[int], dtype: Any) -> None:
    given_counts = np.array(counts, dtype=dtype)
    expected = [sum(counts[:group]) for group in range(len(counts) + 1)]
    same(offsets(given_counts), expected)
    same(first_rows(given_counts), expected[:-1])
    same(positions(given_counts), [place for count in counts for place in range(count)])


@QUICK
@given(st.lists(st.tuples(st.integers(-5, 50), st.integers(0, 4)), max_size=8))
def test_ranges(groups: list[tuple[int, int]]) -> None:
    found = ranges(ints([first for first, _ in groups]), ints([count for _, count in groups]))
    same(found, [first + place for first, count in groups for place in range(count)])


@QUICK
@given(KEYS)
def test_positions_in_groups_and_runs(keys: list[int]) -> None:
    same(nth_in_group(ints(keys)), [keys[:row].count(key) for row, key in enumerate(keys)])
    runs = [list(run) for _, run in groupby(keys)]
    same(nth_in_run(ints(keys)), [place for run in runs for place in range(len(run))])
    same(begins_run(ints(keys)), [place == 0 for run in runs for place in range(len(run))])


@QUICK
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=20))
def test_runs_of_several_columns(rows: list[tuple[int, int]]) -> None:
    found = begins_run(ints([one for one, _ in rows]), ints([two for _, two in rows]))
    same(found, [not row or rows[row] != rows[row - 1] for row in range(len(rows))])


@QUICK
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
def test_last_and_next_marked_rows(rows: list[tuple[int, bool]]) -> None:
    rows.sort(key=lambda row: -row[0])  # groups follow each other, in any order of their numbers
    group, marked = ints([row[0] for row in rows]), np.array([row[1] for row in rows], dtype=np.bool_)
    every = range(len(rows))
    hits = {
        row: [other for other in every if rows[other][1] and rows[other][0] == rows[row][0]] for row in every
    }
    same(last_before(group, marked), [max([o for o in hits[row] if o < row], default=-1) for row in every])
    same(next_after(group, marked), [min([o for o in hits[row] if o > row], default=-1) for row in every])


@QUICK
@given(st.lists(st.integers(0, 4), max_size=20))
def test_rows_of_each_group(groups: list[int]) -> None:
    rows, start = grouped(ints(groups), 6)
    expected = [[row for row, group in enumerate(groups) if group == each] for each in range(6)]
    same(rows, [row for each in expected for row in each])
    assert np.diff(start).tolist() == [len(each) for each in expected]


@QUICK
@given(COUNTS.filter(bool), st.data())
def test_rows_of_some_groups(counts: list[int], data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=10))
    start = offsets(ints(counts))
    rows, own = rows_of_groups(start, ints(groups))
    same(rows, [row for each in groups for row in range(start[each], start[each + 1])])
    same(own, offsets(ints([counts[each] for each in groups])).tolist())


@QUICK
@given(st.permutations(range(8)))
def test_place_in_an_order(order: list[int]) -> None:
    same(inverse(ints(order)), [order.index(row) for row in range(len(order))])


@QUICK
@given(KEYS)
def test_distinct(keys: list[int]) -> None:
    values, counts = distinct(ints(keys))
    same(values, sorted(set(keys)))
    same(counts, [keys.count(value) for value in sorted(set(keys))])


@QUICK
@given(
    arrays.arrays(
        np.int64, st.tuples(st.integers(1, 3), st.integers(0, 12)), elements=st.integers(-2, 2) | HUGE
    )
)
def test_sorting_by_several_columns(columns: Any) -> None:
    rows = list(zip(*columns.tolist(), strict=True))
    same(sorted_rows(*columns), sorted(range(len(rows)), key=rows.__getitem__))


def test_no_rows() -> None:
    none = ints([])
    for found in (
        offsets(none)[1:],
        positions(none),
        nth_in_group(none),
        last_before(none, none > 0),
        inverse(none),
    ):
        same(found, [])
