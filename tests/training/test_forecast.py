"""Forecasts of losses: exact on exponentials, sound with noise and outliers, better than the published method."""

from __future__ import annotations

from math import inf, log10

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.training.autolrs.forecast import _simplex, _smoothed, fit_exponential, fit_published
from coppice.training.autolrs.search import _matern, best_of, propose, regress

STEPS = np.arange(100)
HORIZON = 1000


def exponential(a: float, b: float, c: float, steps: np.ndarray = STEPS) -> np.ndarray:
    return a * np.exp(-b * steps) + c


@pytest.mark.parametrize(("a", "b"), [(2, 0.01), (2, 0.03), (1, 0.003), (2, 0.1), (-1, 0.02), (1, 0.001)])
def test_exact_without_noise(a: float, b: float) -> None:
    fit = fit_exponential(exponential(a, b, 0.5), horizon=HORIZON)
    assert fit.at(HORIZON) == pytest.approx(exponential(a, b, 0.5, np.array(HORIZON)), abs=1e-6)
    assert fit.outliers == 0


@given(
    a=st.floats(0.1, 10), b=st.floats(0.002, 0.3), c=st.floats(-5, 5), scale=st.sampled_from([1e-6, 1.0, 1e6])
)
def test_exact_at_any_scale(a: float, b: float, c: float, scale: float) -> None:
    fit = fit_exponential(scale * exponential(a, b, c), horizon=HORIZON)
    assert fit.at(HORIZON) / scale == pytest.approx(
        c + a * np.exp(-b * HORIZON), abs=1e-4 * (abs(a) + abs(c))
    )


@pytest.mark.parametrize(("b", "bias"), [(0.01, 0.07), (0.03, 0.13)])
def test_published_method_is_biased_where_ours_is_not(b: float, bias: float) -> None:
    losses, truth = exponential(2, b, 0.5), float(exponential(2, b, 0.5, np.array(HORIZON)))
    assert bias < abs(fit_published(losses).at(HORIZON) - truth) < 0.16
    assert abs(fit_exponential(losses, horizon=HORIZON).at(HORIZON) - truth) < 1e-6


def median_error(fit, b: float, *, noise: float, outliers: int) -> float:
    truth = float(exponential(2, b, 0.5, np.array(HORIZON)))
    errors = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        losses = exponential(2, b, 0.5) + noise * rng.normal(size=len(STEPS))
        losses[rng.choice(len(STEPS), outliers, replace=False)] += rng.uniform(1, 5, outliers)
        errors.append(abs(fit(losses) - truth))
    return float(np.median(errors))


@pytest.mark.parametrize(("b", "ours_below", "times"), [(0.01, 0.04, 15), (0.03, 0.005, 15), (0.1, 0.002, 8)])
@pytest.mark.spread(2)
def test_noise_and_outliers(b: float, ours_below: float, times: float) -> None:
    def ours(losses: np.ndarray) -> float:
        return fit_exponential(losses, horizon=HORIZON).at(HORIZON)

    def published(losses: np.ndarray) -> float:
        return fit_published(losses).at(HORIZON)

    assert median_error(ours, b, noise=0.01, outliers=0) < ours_below
    mine = median_error(ours, b, noise=0.01, outliers=5)
    assert mine < ours_below
    assert median_error(published, b, noise=0.01, outliers=5) > times * mine


def test_a_quarter_of_huge_outliers() -> None:
    """Wherever they lie, at the first and the last step too; only where they cluster are they believed."""
    errors = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        losses = exponential(2, 0.05, 0.5) + 0.01 * rng.normal(size=len(STEPS))
        losses[rng.choice(len(STEPS), 25, replace=False)] += rng.uniform(4, 20, 25)
        errors.append(abs(fit_exponential(losses, horizon=HORIZON).at(HORIZON) - 0.5))
    assert np.quantile(errors, 0.9) < 0.01


def test_outliers_are_named() -> None:
    losses = exponential(2, 0.02, 0.5)
    losses[[3, 40, 90]] += [4, -3, 8]
    fit = fit_exponential(losses, horizon=HORIZON)
    assert fit.outliers == 3
    assert fit.at(HORIZON) == pytest.approx(0.5, abs=1e-6)


def test_positions_are_steps() -> None:
    places = np.array([5, 10, 20, 25, 40, 60, 80])
    fit = fit_exponential(exponential(3, 0.05, 1, places), positions=places, horizon=HORIZON)
    assert (fit.a, fit.b, fit.c) == pytest.approx((3, 0.05, 1), abs=1e-6)


@pytest.mark.parametrize("losses", [[2.0], [2.0, 2.0, 2.0], [2.0] * 50, [1.0, 2.0, 3.0]])
def test_without_a_curve_the_level_is_forecast(losses: list[float]) -> None:
    assert fit_exponential(losses, horizon=10).at(1000) == 2.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"losses": [], "horizon": 10}, "one or more finite losses"),
        ({"losses": [1.0, float("nan")], "horizon": 10}, "1 finite"),
        ({"losses": [1.0, 2.0], "horizon": 10, "positions": [3, 3]}, "ascending position"),
        ({"losses": [1.0, 2.0], "horizon": 10, "positions": [3]}, "ascending position"),
        ({"losses": [1.0, 2.0], "horizon": 0}, "more than 0 steps"),
    ],
)
def test_bad_input(arguments: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_exponential(**arguments)


def test_published_smoothing_is_that_of_scipy() -> None:
    interpolate = pytest.importorskip("scipy.interpolate", reason="SciPy is what the published code calls")
    rng = np.random.default_rng(0)
    x = np.arange(100.0)
    for losses in (exponential(2, 0.01, 0.5), exponential(2, 0.05, 0.5) + 0.1 * rng.normal(size=100)):
        assert _smoothed(x, losses, x) == pytest.approx(
            interpolate.UnivariateSpline(x, losses, k=2)(x), abs=1e-9
        )
    rough = 100 * exponential(2, 0.05, 0.5) + 20 * rng.normal(size=100)  # knots are needed
    assert _smoothed(x, rough, x) == pytest.approx(interpolate.UnivariateSpline(x, rough, k=2)(x), abs=1e-9)


def test_published_search_is_that_of_scipy() -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="SciPy is what the published code calls")
    for middle in (-4.5, -0.2, 0.0, 0.3, 7.0):
        ours = _simplex(lambda x, m=middle: (x - m) ** 2 + 0.1 * abs(x - m))
        theirs = optimize.fmin(
            lambda x, m=middle: (x[0] - m) ** 2 + 0.1 * abs(x[0] - m), 0, xtol=1e-5, ftol=1e-5, disp=0
        )
        assert ours == pytest.approx(float(theirs[0]), abs=1e-4)


def test_a_slow_decay_is_believed_on_evidence_only() -> None:
    """A few noisy losses on a slope are no reason to forecast a loss far below all of them."""
    line = [4.33, 4.22, 4.25, 3.97, 3.92, 3.79]
    assert fit_exponential(line, horizon=60).at(60) > 3.0
    slow = exponential(1, 0.002, 0.5)
    assert fit_exponential(slow, horizon=HORIZON).b == pytest.approx(0.002)


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
