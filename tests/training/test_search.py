"""Proposals: regression is exact, improvement leads to the minimum, failures are avoided, seeds repeat."""

from __future__ import annotations

from math import inf, log10

import numpy as np
import pytest

from coppice.training.autolrs.search import _matern, best_of, propose, regress

RANGE = (1e-4, 1.0)


def bowl(rate: float, best: float = 1e-2) -> float:
    return 0.5 + 0.3 * (log10(rate) - log10(best)) ** 2


def search(score, *, count: int = 10, **options) -> list[float]:
    rates: list[float] = []
    for _ in range(count):
        rates.append(propose(rates, [score(rate) for rate in rates], lr_range=RANGE, seed=(1, 0), **options))
    return rates


@pytest.mark.parametrize("best", [1e-4, 1e-3, 0.03, 0.5])
def test_finds_the_minimum_of_a_bowl(best: float) -> None:
    rates = search(lambda rate: bowl(rate, best))
    scores = [bowl(rate, best) for rate in rates]
    chosen = rates[best_of(rates, scores, lr_range=RANGE)]
    assert abs(log10(chosen / best)) < 0.1
    assert all(RANGE[0] <= rate <= RANGE[1] for rate in rates)


def test_goes_below_what_fails() -> None:
    rates = search(lambda rate: inf if rate > 2e-3 else bowl(rate, 1e-3))
    below = [rate for rate in rates if rate <= 2e-3]
    assert len(below) >= 4
    assert abs(log10(min(below, key=lambda rate: bowl(rate, 1e-3)) / 1e-3)) < 0.15


def test_goes_down_when_everything_fails() -> None:
    rates = search(lambda _: inf, count=6)
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[3] < min(rates[:3])
    assert best_of(rates, [inf] * 6, lr_range=RANGE) is None


def test_never_proposes_twice_and_repeats_by_seed() -> None:
    for options in ({}, {"published": True}, {"previous": 3e-3}):
        rates = search(bowl, count=12, **options)
        assert len(set(rates)) == 12
        assert rates == search(bowl, count=12, **options)


def test_begins_with_the_rate_of_the_stage_before() -> None:
    assert propose([], [], lr_range=RANGE, seed=(0, 1), previous=0.02) == 0.02
    assert propose([], [], lr_range=RANGE, seed=(0, 1), previous=5.0) == 1.0


def test_published_search_fills_the_range_whatever_the_scores() -> None:
    for score in (bowl, lambda rate: -bowl(rate), lambda _: 1e6):
        assert _widest_gap(search(score, published=True)) < 0.3
        assert sum(rate < 5e-4 for rate in search(score, published=True)) <= 3
    assert sum(rate < 5e-4 for rate in search(lambda rate: bowl(rate, 1e-4))) >= 5


def _widest_gap(rates: list[float]) -> float:
    places = np.sort([(log10(rate) + 4) / 4 for rate in rates])
    return float(np.diff([0.0, *places, 1.0]).max())


def test_noisy_scores_do_not_choose_by_luck() -> None:
    """One lucky score on the flank of a clear bowl does not win against the regression."""
    rates = list(np.geomspace(1e-4, 1.0, 13))
    scores = [bowl(rate) for rate in rates]
    scores[10] = 0.495  # truth: 1.03
    assert best_of(rates, scores, lr_range=RANGE, published=True) == 10
    assert best_of(rates, scores, lr_range=RANGE) == 6


def test_regression_is_that_of_the_textbook() -> None:
    """Mean and deviation by inverting the matrix, for the length and noise that explain the data best."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.random(8))
    y = np.sin(5 * x) + 0.01 * rng.normal(size=8)
    at = np.linspace(0, 1, 17)
    belief = regress(x, y, at)
    z = (y - y.mean()) / y.std()
    closest = inf
    for length in np.geomspace(0.05, 2.0, 16):
        for noise in np.geomspace(1e-4, 1.0, 9):
            inverse = np.linalg.inv(_matern(x, x, length) + noise * np.eye(8))
            across = _matern(at, x, length)
            mean = y.mean() + y.std() * (across @ inverse @ z)
            signal = z @ inverse @ z / 8
            variance = signal * (1 - np.einsum("ij,jk,ik->i", across, inverse, across))
            deviation = y.std() * np.sqrt(np.clip(variance, 0, None))
            away = np.abs(mean - belief.mean).max() + np.abs(deviation - belief.deviation).max()
            closest = min(closest, float(away))
    assert closest < 1e-6
    assert np.abs(belief.mean - np.sin(5 * at))[2:-2].max() < 0.1


def test_regression_agrees_with_scikit_learn() -> None:
    process = pytest.importorskip("sklearn.gaussian_process", reason="an independent implementation")
    x, at = np.array([0.0, 0.3, 0.6, 1.0]), np.linspace(0, 1, 9)
    kernel = process.kernels.Matern(length_scale=0.4, nu=2.5, length_scale_bounds="fixed")
    assert _matern(x, at, 0.4) == pytest.approx(kernel(x[:, None], at[:, None]))
