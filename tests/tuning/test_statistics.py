"""Verdicts on pairs: exact on small cases, honest under noise, seeded."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from coppice.tuning.statistics import compare, holm


def test_exact_probability_of_signed_ranks() -> None:
    """Counted by hand: all 2^n sign changes of the ranks."""
    default, times = [10.0, 20.0, 30.0, 40.0, 50.0], [9.0, 17.0, 24.0, 44.0, 30.0]
    logs = np.log(default) - np.log(times)
    ranks = np.argsort(np.argsort(np.abs(logs))) + 1
    observed = int((np.sign(logs) * ranks).sum())
    sums = [
        sum(sign * rank for sign, rank in zip(signs, ranks, strict=True))
        for signs in product((1, -1), repeat=5)
    ]
    found = compare(default, times, paired=True)
    assert found.p_faster == sum(each >= observed for each in sums) / 32
    assert found.p_slower == sum(each <= observed for each in sums) / 32


def test_no_difference_is_rarely_taken_for_one() -> None:
    """Of 100 comparisons each of equal things with heavy tails, about 5 percent may pass at 5 percent."""
    random = np.random.default_rng(5)
    for paired in (True, False):
        passed = 0
        for _ in range(100):
            default, times = np.exp(random.standard_t(2, (2, 9)) / 10) * 50
            passed += compare(default.tolist(), times.tolist(), paired=paired).p_faster <= 0.05
        assert passed <= 12


def test_pairs_find_what_drift_hides() -> None:
    """A gain of 5 percent under a drift of 40 percent: sure in pairs, lost without them."""
    random = np.random.default_rng(2)
    drift = np.exp(random.normal(0, 0.4, 11))
    default, times = 100 * drift, 100 * drift / 1.05 * np.exp(random.normal(0, 0.005, 11))
    inside = compare(default.tolist(), times.tolist(), paired=True)
    assert inside.p_faster < 0.001
    assert inside.low > 1.03
    assert compare(default.tolist(), times.tolist(), paired=False).p_faster > 0.2


def test_outliers_count_but_do_not_decide() -> None:
    default, times = (
        [10.0, 10.1, 9.9, 10.0, 10.2, 10.1, 9.8, 10.0, 10.0, 10.3, 9.9],
        [5.0, 5.1, 5.0, 4.9, 5.05, 5.0, 5.1, 900.0, 5.0, 5.1, 5.0],
    )
    found = compare(default, times, paired=True)
    assert (found.outliers, found.repeats) == (1, 11)
    assert 1.9 < found.gain < 2.1
    assert found.p_faster < 0.05


def test_same_input_same_verdict() -> None:
    random = np.random.default_rng(1)
    default, times = np.exp(random.normal(0, 1, (2, 30)))
    first, again = (compare(default.tolist(), times.tolist(), paired=True, seed=4) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("paired", [True, False])
def test_one_measurement_proves_nothing(paired: bool) -> None:
    assert compare([100.0], [1.0], paired=paired).p_faster > 0.4


def test_holm() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
