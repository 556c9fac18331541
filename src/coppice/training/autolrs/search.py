"""Choose the next learning rate to try: exact Gaussian-process regression over log LR.

A stage tries ten rates; ten points on a line are solved exactly in microseconds, on a grid, with no optimiser inside.
So the search is a pure function of what was tried and a seed, the same on every machine that resumes it, and needs
neither torch nor SciPy, as the samplers of the large libraries do.

The covariance is Matern 5/2 plus noise; length and noise are those of greatest posterior probability on a small grid
under broad priors, and the signal's variance is profiled out. Failed rates (NaN, infinite, diverged) count as bad as
the worst that came back, which keeps the search away from them without bending the curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, exp, inf, log, pi, sqrt

import numpy as np
import numpy.typing as npt

from coppice.training.autolrs.forecast import Series

PUBLISHED_KAPPA = 1e6
"""Weight of the deviation in the published code's lower confidence bound: it fills space whatever the scores."""

_POINTS = 1025
_LENGTHS = np.geomspace(0.05, 2.0, 16)
_NOISES = np.geomspace(1e-4, 1.0, 9)
_LENGTH_PRIOR = (log(0.4), 0.7)
_NOISE_PRIOR = (log(0.01), 1.5)
_CLIP = 4.0
"""Scores worse than the best by more than this many times the median's distance are cut: only their order matters."""

_OPENING = (0.5, 0.2, 0.8)
"""Where a stage looks first, as shares of the logarithmic range, before there is a curve to follow."""

_BESIDE = (-0.25, 0.15)
"""Where a later stage looks after the rate of the stage before; rates fall more often than they rise."""

_JITTER = 0.1


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Posterior mean and deviation of the score at some rates."""

    mean: Series  # Expected score
    deviation: Series  # Standard deviation of the score without noise


def regress(places: npt.ArrayLike, scores: npt.ArrayLike, at: npt.ArrayLike) -> Posterior:
    """Gaussian-process regression in one dimension.

    Args:
        places: Where scores are known, in the unit interval.

    Examples:
        >>> belief = regress([0.0, 0.5, 1.0], [1.0, 0.0, 1.0], [0.5, 0.25])
        >>> bool(belief.mean[0] < belief.mean[1]), bool(belief.deviation[0] < belief.deviation[1])
        (True, True)
    """
    x, y, t = (np.asarray(values, dtype=np.float64) for values in (places, scores, at))
    level, spread = float(y.mean()), float(y.std()) or 1.0
    z = (y - level) / spread
    best, chosen = -inf, (float(_LENGTHS[0]), float(_NOISES[0]))
    for length in _LENGTHS:
        smooth = _matern(x, x, length)
        for noise in _NOISES:
            value = _evidence(smooth + noise * np.eye(len(x)), z) + _prior(length, noise)
            if value > best:
                best, chosen = value, (float(length), float(noise))
    length, noise = chosen
    factor = np.linalg.cholesky(_matern(x, x, length) + noise * np.eye(len(x)))
    half = np.linalg.solve(factor, z)
    across = np.linalg.solve(factor, _matern(x, t, length))
    variance = _signal(half) * np.clip(1 - (across * across).sum(axis=0), 0, None)
    return Posterior(mean=level + spread * (across.T @ half), deviation=spread * np.sqrt(variance))


def propose(
    rates: Sequence[float],  # Learning rates tried in this stage
    scores: Sequence[float],  # Forecast loss of each; infinite where it failed
    *,
    lr_range: tuple[float, float],
    seed: Sequence[int],  # Seeds of the random part; the same arguments give the same rate
    previous: float | None = None,
    # Propose as the published code: the first at random, then where least is known, whatever the scores
    published: bool = False,
) -> float:
    """Next learning rate to try; never a repeated one.

    The first are the rate of the stage before and points spread over the range, moved a little at random; then the
    rate of greatest expected improvement.

    Examples:
        >>> propose([1e-3, 1e-2, 1e-1], [0.9, 0.5, 0.9], lr_range=(1e-4, 1.0), seed=(0, 0)) < 0.1
        True
    """
    low, high = log(lr_range[0]), log(lr_range[1])
    if previous is not None and not rates and not published:
        return min(max(previous, lr_range[0]), lr_range[1])
    tried = np.array([(log(rate) - low) / (high - low) for rate in rates], dtype=np.float64)
    rng = np.random.default_rng([*seed, len(rates)])
    grid = np.linspace(0.0, 1.0, _POINTS)
    if not published:
        place = _corrected(grid, tried, scores, rng, again=previous is not None)
    elif not rates:
        place = float(rng.random())
    else:
        belief = regress(tried, _squashed(scores), grid)
        place = _free(grid, PUBLISHED_KAPPA * belief.deviation - belief.mean, tried)
    return min(max(exp(low + (high - low) * place), lr_range[0]), lr_range[1])


def best_of(
    rates: Sequence[float], scores: Sequence[float], *, lr_range: tuple[float, float], published: bool = False
) -> int | None:
    """Index of the best rate tried, or None if all failed.

    Scores are noisy, so the one whose expectation under the regression is best is taken; the published code takes the
    best score itself.

    Args:
        scores: Forecast loss of each; infinite where it failed.

    Examples:
        >>> best_of([1e-3, 1e-2, 1e-1], [0.9, 0.5, float("inf")], lr_range=(1e-4, 1.0))
        1
    """
    values = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(values).any():
        return None
    if not published:
        places = np.log(np.asarray(rates) / lr_range[0]) / log(lr_range[1] / lr_range[0])
        expected = regress(places, _squashed(scores), places).mean
        values = np.where(np.isfinite(values), expected, inf)
    return int(values.argmin())


def _corrected(
    grid: Series, tried: Series, scores: Sequence[float], rng: np.random.Generator, *, again: bool
) -> float:
    """The place of the next rate: an opening of spread points, then expected improvement.

    ``again`` says that the first place is that of the stage before; two points beside it then open the search.
    """
    opening = tuple(tried[0] + step for step in _BESIDE) if again else _OPENING
    number = len(tried) - again
    if number < len(opening):
        place = min(max(opening[number] + _JITTER * (rng.random() - 0.5), 0.0), 1.0)
        return _free(grid, -np.abs(grid - place), tried)
    if not np.isfinite(np.asarray(scores)).any():  # too large a rate is what makes training fail
        return float(tried.min()) / 2
    squashed = _squashed(scores)
    # What is to be beaten is an expectation too: the scores themselves are noisy.
    incumbent = float(regress(tried, squashed, tried).mean.min())
    return _free(grid, _improvement(regress(tried, squashed, grid), incumbent), tried)


def _free(grid: Series, value: Series, tried: Series) -> float:
    """The place of greatest value among those that were not tried."""
    taken = (np.abs(grid[:, None] - tried[None, :]) < 1.0 / _POINTS).any(axis=1)
    return float(grid[int(np.where(taken, -inf, value).argmax())])


def _squashed(scores: Sequence[float]) -> Series:
    """Finite scores: failures count as the worst, and very bad ones are cut."""
    values = np.asarray(scores, dtype=np.float64)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.zeros(len(values))
    best, middle = float(finite.min()), float(np.median(finite))
    worst = min(float(finite.max()), best + _CLIP * (middle - best)) if middle > best else float(finite.max())
    return np.where(np.isfinite(values), np.minimum(values, worst), worst)


def _matern(a: Series, b: Series, length: float) -> Series:
    """Covariance of smoothness 5/2 and variance 1."""
    r = sqrt(5.0) * np.abs(a[:, None] - b[None, :]) / length
    covariance: Series = (1 + r + r * r / 3) * np.exp(-r)
    return covariance


def _signal(half: Series) -> float:
    """The variance that makes the (whitened) scores most probable."""
    return max(float(half @ half) / len(half), 1e-12)


def _evidence(covariance: Series, z: Series) -> float:
    """Log probability of the scores, the signal's variance profiled out."""
    factor = np.linalg.cholesky(covariance)
    half = np.linalg.solve(factor, z)
    return -0.5 * len(z) * log(_signal(half)) - float(np.log(np.diag(factor)).sum())


def _prior(length: float, noise: float) -> float:
    """Log-normal densities, up to a constant."""
    pairs = ((length, _LENGTH_PRIOR), (noise, _NOISE_PRIOR))
    return -sum(0.5 * ((log(value) - middle) / width) ** 2 for value, (middle, width) in pairs)


def _improvement(belief: Posterior, incumbent: float) -> Series:
    """Expected improvement below the incumbent."""
    deviation = np.maximum(belief.deviation, 1e-12)
    gain = (incumbent - belief.mean) / deviation
    below = np.array([0.5 * (1 + erf(value / sqrt(2))) for value in gain])
    density = np.exp(-0.5 * gain * gain) / sqrt(2 * pi)
    expected: Series = deviation * (gain * below + density)
    return expected
