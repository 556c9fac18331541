"""Finite fields: the axioms, by all pairs and triples."""

from __future__ import annotations

from itertools import product

import pytest

from coppice.design.families.distance_regular import field, prime_power


@pytest.mark.parametrize("q", [2, 3, 4, 5, 8, 9, 16, 25, 27])
def test_axioms(q: int) -> None:
    made = field(q)
    plus, times = made.plus, made.times
    everything = list(range(q))
    for a in everything:
        assert sorted(plus[a]) == everything
        assert plus[a][0] == a
        assert plus[a][made.minus[a]] == 0
        assert times[a][0] == 0
        assert times[a][1] == a
        if a:
            assert sorted(times[a]) == everything
            assert times[a][made.inverse[a]] == 1
    for a, b in product(everything, repeat=2):
        assert plus[a][b] == plus[b][a]
        assert times[a][b] == times[b][a]
    for a, b, c in product(everything[:9], everything, everything[-9:]):
        assert plus[plus[a][b]][c] == plus[a][plus[b][c]]
        assert times[times[a][b]][c] == times[a][times[b][c]]
        assert times[a][plus[b][c]] == plus[times[a][b]][times[a][c]]


def test_other_orders_have_none() -> None:
    assert [q for q in range(1, 20) if prime_power(q) is None] == [1, 6, 10, 12, 14, 15, 18]
    with pytest.raises(ValueError, match="found 6"):
        field(6)
