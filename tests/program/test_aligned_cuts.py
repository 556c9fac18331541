"""Pairs of ranges are cut at equal places, and nowhere else."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coppice.program.memory import aligned_cuts


def column(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def closed(cuts: list[int], pairs: list[tuple[int, int, int]]) -> list[int]:
    """The reference: from cut to cut, as long as there are others."""
    found, todo = set(cuts), list(cuts)
    while todo:
        cut = todo.pop()
        for one, other, count in pairs:
            for here, there in ((one, other), (other, one)):
                moved = cut - here + there
                if here <= cut < here + count and moved not in found:
                    found.add(moved)
                    todo.append(moved)
    return sorted(found)


PAIRS = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 20))


@given(st.sets(st.integers(0, 59)), st.lists(PAIRS, max_size=5))
def test_cuts_are_those_that_follow_and_no_others(cuts: set[int], pairs: list[tuple[int, int, int]]) -> None:
    one, other, count = (column([pair[place] for pair in pairs]) for place in range(3))
    given_ = sorted(cuts | {0, 60})
    assert aligned_cuts(column(given_), one, other, count).tolist() == closed(given_, pairs)


def test_each_cut_may_follow_from_the_one_before() -> None:
    """As in an all-to-all of blocks that differ by an element: a round for each."""
    count = 10_000
    found = aligned_cuts(column([0, count + 1]), column([0]), column([1]), column([count]))
    assert found.tolist() == list(range(count + 2))
