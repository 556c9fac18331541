"""Forecast the loss: fit an exponential to a short, noisy beginning, and extrapolate.

The model is ``loss(t) = a exp(-b t) + c`` with ``b > 0``. For a given ``b`` the best ``a`` and ``c`` are a weighted
linear regression in closed form, so one dimension is searched: ``log b``, on a grid and then by golden section.
Outliers lose their weight twice: a running median names the gross ones before the first fit, and Tukey's biweight does
the rest around the fit, where points at a steep beginning that the median misjudged get their weight back.

:func:`fit_published` is kept for comparison: the forecast of the published AutoLRS code, described from that code
(YuchenJin/autolrs), quirks included. Outliers are dropped around a quadratic smoothing spline, the spline replaces the
data, and an exponential is fitted to it by a simplex search from ``b = -1``. A smoothing spline with the default
smoothing (one unit of squared error per point) is one parabola unless losses are large, and no parabola is an
exponential: noiseless data is mis-forecast by 0.07 to 0.15. Two crashes of that code are not kept: NaN losses are the
controller's business, and a rank-deficient fit has residual 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from math import exp
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from coppice.errors import InputError, MissingExtraError

Series: TypeAlias = npt.NDArray[np.float64]

FEWEST_POINTS = 4
"""An exponential has three parameters: with fewer points than this the level is all there is to see."""

_GRID = 96
_GOLDEN_ROUNDS = 48
_WEIGHT_ROUNDS = 12
_BIWEIGHT = 4.685
"""Tukey's constant: 95% efficiency on normal noise."""

_GROSS = 6.0
"""Distance from the running median, in standard deviations, beyond which a point is left out of the first fit."""

_MAD_TO_SIGMA = 1.4826
_EXACT = 1e-9
"""Share of the range of the data below which residuals count as rounding."""

_SLOWEST_DECAY = 0.5
"""Smallest ``b`` times the horizon: slower decays look like straight lines, whose far end is anything."""

_EVIDENCE = 4.0
"""Drop of the squared residuals, in variances, that a slow decay has to bring: two standard deviations."""

_FASTEST_DECAY = 3.0
"""Largest ``b`` times the distance between points: gone from one point to the next."""


@dataclass(frozen=True, kw_only=True)
class ExponentialFit:
    """``a exp(-b t) + c``."""

    a: float  # Height above (below, if negative) the level at `t = 0`
    b: float  # Rate of decay per step
    c: float  # Level that it tends to
    noise: float = 0.0  # Robust standard deviation of the data around the curve
    outliers: int = 0  # Points that have no weight in it

    def at(self, position: float) -> float:
        """Value at a position, in steps.

        >>> ExponentialFit(a=2.0, b=0.01, c=0.5).at(0)
        2.5
        """
        return float(self.a * np.exp(-self.b * position) + self.c)


def fit_exponential(
    losses: npt.ArrayLike, *, horizon: float, positions: npt.ArrayLike | None = None
) -> ExponentialFit:
    """Fit ``a exp(-b t) + c`` robustly.

    Args:
        horizon: Position (in steps) at which the curve will be read; decays slower than twice that are not told
            from straight lines and are left out.
        positions: Steps at which the losses were taken, ascending; 0, 1, 2 ... by default.

    Examples:
        >>> steps = np.arange(100)
        >>> fit = fit_exponential(2 * np.exp(-0.01 * steps) + 0.5, horizon=1000)
        >>> round(fit.a, 5), round(fit.b, 7), round(fit.c, 5)
        (2.0, 0.01, 0.5)
    """
    y = np.asarray(losses, dtype=np.float64)
    x = np.arange(len(y), dtype=np.float64) if positions is None else np.asarray(positions, dtype=np.float64)
    _check(x, y, horizon)
    spread = float(np.ptp(y))
    if len(y) < FEWEST_POINTS or spread <= _EXACT * float(np.abs(y).max()):
        return ExponentialFit(a=0.0, b=1.0 / horizon, c=float(np.median(y)))
    start, x = float(x[0]), x - x[0]
    gap = float(np.median(np.diff(x)))
    slowest = _SLOWEST_DECAY / max(horizon, float(x[-1]))
    rates = np.geomspace(slowest, max(_FASTEST_DECAY / gap, 2 * slowest), _GRID)
    floor = _EXACT * spread
    weights = _without_gross_outliers(y, floor)
    a, b, c = _best(x, y, weights, rates)
    for _ in range(_WEIGHT_ROUNDS):
        residual = y - (a * np.exp(-b * x) + c)
        updated = _biweight(residual, _sigma(residual, floor))
        if np.abs(updated - weights).max() < _EXACT:
            break
        weights = updated
        a, b, c = _best(x, y, weights, rates)
    a, b, c = _believed(x, y, weights, (a, b, c))
    residual = y - (a * np.exp(-b * x) + c)
    sigma = _sigma(residual, floor)
    outliers = int((np.abs(residual) >= _BIWEIGHT * sigma).sum())
    return ExponentialFit(a=a * float(np.exp(b * start)), b=b, c=c, noise=sigma, outliers=outliers)


def _check(x: Series, y: Series, horizon: float) -> None:
    """Refuse what has no fit."""
    if y.ndim != 1 or not len(y) or not np.isfinite(y).all():
        raise InputError(
            f"expected one or more finite losses, found {y.shape} with {np.isfinite(y).sum()} finite: drop the rest."
        )
    if x.shape != y.shape or not np.isfinite(x).all() or (np.diff(x) <= 0).any():
        raise InputError(
            f"expected one ascending position per loss, found {x.shape} for {y.shape}: give the steps in order."
        )
    if not (np.isfinite(horizon) and horizon > 0):
        raise InputError(
            f"expected a horizon of more than 0 steps, found {horizon}: give the position to forecast."
        )


def _best(x: Series, y: Series, weights: Series, rates: Series) -> tuple[float, float, float]:
    """Weighted least squares for ``a, b, c``: a grid over ``log b``, then golden-section search at its best point."""
    squares = _squares(x, y, weights, rates)
    best = int(squares.argmin())
    low, high = np.log(rates[max(best - 1, 0)]), np.log(rates[min(best + 1, len(rates) - 1)])
    golden = (5**0.5 - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = (float(_squares(x, y, weights, np.exp([b]))[0]) for b in (left, right))
    for _ in range(_GOLDEN_ROUNDS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = float(_squares(x, y, weights, np.exp([left]))[0])
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = float(_squares(x, y, weights, np.exp([right]))[0])
    # An end of the grid is a candidate of its own: golden section never touches the ends of its interval.
    ends = np.array([np.exp((low + high) / 2), rates[best]])
    b = float(ends[int(_squares(x, y, weights, ends).argmin())])
    a, c = _line(np.exp(-b * x)[None], y, weights)
    return float(a[0]), b, float(c[0])


def _believed(
    x: Series, y: Series, weights: Series, best: tuple[float, float, float]
) -> tuple[float, float, float]:
    """The best curve, or a steeper one that the data cannot distinguish from it.

    A decay much slower than the data is long is a straight line, and its far end a multiple of the noise: it is
    believed on evidence only. The steeper curve has levelled out by a factor e at the end of the data.
    """
    length = float(x[-1])
    if best[1] * length >= 1:
        return best
    squares = _squares(x, y, weights, np.array([best[1], 1 / length]))
    free = max(float((weights > 0).sum()) - 3, 1.0)
    if squares[1] - squares[0] > _EVIDENCE * squares[0] / free:
        return best
    a, c = _line(np.exp(-x / length)[None], y, weights)
    return float(a[0]), 1 / length, float(c[0])


def _line(curves: Series, y: Series, weights: Series) -> tuple[Series, Series]:
    """Slope and intercept of ``y`` over each row of ``curves``; centred, so that near-constant rows stay accurate."""
    total = weights.sum()
    middle = curves @ weights / total
    centred = curves - middle[:, None]
    level = float(y @ weights / total)
    power = (centred * centred) @ weights
    slope = np.divide(centred @ (weights * (y - level)), power, out=np.zeros_like(power), where=power > 0)
    return slope, level - slope * middle


def _squares(x: Series, y: Series, weights: Series, rates: Series) -> Series:
    """Weighted squared residuals of the best curve for each rate."""
    curves = np.exp(-rates[:, None] * x)
    slope, intercept = _line(curves, y, weights)
    residual = y - (slope[:, None] * curves + intercept[:, None])
    squares: Series = (residual * residual) @ weights
    return squares


def _without_gross_outliers(y: Series, floor: float) -> Series:
    """Weight 1, or 0 where a point lies far from the median of its neighbours."""
    count = len(y)
    reach = max(2, count // 20)
    middle = np.empty(count)
    for index in range(count):
        middle[index] = np.median(y[max(index - reach, 0) : index + reach + 1])
    distance = y - middle
    weights = (np.abs(distance) <= _GROSS * _sigma(distance, floor)).astype(np.float64)
    return weights if weights.sum() >= FEWEST_POINTS else np.ones(count)


def _sigma(residual: Series, floor: float) -> float:
    """Robust standard deviation, at least what is rounding."""
    return max(_MAD_TO_SIGMA * float(np.median(np.abs(residual))), floor)


def _biweight(residual: Series, sigma: float) -> Series:
    """Tukey's weights; all 1 where too few points would be left."""
    share = np.clip(np.abs(residual) / (_BIWEIGHT * sigma), 0, 1)
    weights: Series = (1 - share**2) ** 2
    return weights if (weights > 0).sum() >= FEWEST_POINTS else np.ones(len(residual))


PACKAGE = "scipy"
_DEGREE = 2
_ROUNDS = 10
_DROPPED_SHARE = 0.03
_TOLERANCE = 1e-5
_MOST_ROUNDS = 200


def fit_published(losses: npt.ArrayLike, *, validating: bool = False) -> ExponentialFit:
    """Fit as the published code does; positions are indices.

    Args:
        validating: Losses are validations: one round that drops one point, instead of ten that drop the worst 3%
            and of those only what lies in the first half.

    Examples:
        >>> steps = np.arange(100)
        >>> fit = fit_published(2 * np.exp(-0.01 * steps) + 0.5)
        >>> abs(fit.at(1000) - 0.5) > 0.05      # the curve ends at 0.50009
        True
    """
    y = np.asarray(losses, dtype=np.float64)
    x = np.arange(len(y), dtype=np.float64)
    smooth = _smoothed(*_without_outliers(x, y, validating=validating), x)

    def squares(beta: float) -> float:
        return _regression(-_exp(beta), x, smooth)[2]

    rate = _exp(_simplex(squares))
    a, c, _ = _regression(-rate, x, smooth)
    return ExponentialFit(a=a, b=rate, c=c, noise=float(np.std(y - smooth)))


def _without_outliers(x: Series, y: Series, *, validating: bool) -> tuple[Series, Series]:
    """Points left after the published number of outlier rounds."""
    half = len(x) / 2
    for _ in range(1 if validating else _ROUNDS):
        if len(x) <= _DEGREE + 1:
            break
        dropped = 1 if validating else int(len(x) * _DROPPED_SHARE)
        distance = np.abs(y - _smoothed(x, y, x))
        worst = np.argsort(distance, kind="stable")[len(x) - dropped :]
        if not validating:
            worst = worst[worst < half]
        x, y = np.delete(x, worst), np.delete(y, worst)
    return x, y


def _smoothed(x: Series, y: Series, at: Series) -> Series:
    """A quadratic smoothing spline with the default smoothing of one unit of squared error per point."""
    if len(x) <= _DEGREE:
        return np.interp(at, x, y)
    middle, scale = x.mean(), max(float(np.ptp(x)) / 2, 1.0)
    basis = np.vander((x - middle) / scale, _DEGREE + 1)
    parabola = np.linalg.lstsq(basis, y, rcond=None)[0]
    if float(((y - basis @ parabola) ** 2).sum()) <= len(x):
        smooth: Series = np.vander((at - middle) / scale, _DEGREE + 1) @ parabola
        return smooth
    if find_spec(PACKAGE) is None:
        raise MissingExtraError.of(PACKAGE, extra="autolrs")
    spline = import_module("scipy.interpolate").UnivariateSpline(x, y, k=_DEGREE)
    return np.asarray(spline(at), dtype=np.float64)


def _exp(beta: float) -> float:
    """``exp`` that stays finite: a simplex may walk far."""
    return exp(min(max(beta, -700.0), 700.0))


def _regression(rate: float, x: Series, y: Series) -> tuple[float, float, float]:
    """``a``, ``c`` and the squared residual for a given rate; 0 where the curve is as flat as a constant."""
    basis = np.stack([np.exp(rate * x), np.ones_like(x)], axis=1)
    (a, c), residual, _, _ = np.linalg.lstsq(basis, y, rcond=None)
    return float(a), float(c), float(residual[0]) if len(residual) else 0.0


def _simplex(value: Callable[[float], float]) -> float:
    """Nelder-Mead in one dimension from 0 with the usual steps and coefficients (1, 2, 1/2, 1/2)."""
    best, worst = 0.0, 0.00025
    at_best, at_worst = value(best), value(worst)
    if at_worst < at_best:
        best, worst, at_best, at_worst = worst, best, at_worst, at_best
    for _ in range(_MOST_ROUNDS):
        if abs(worst - best) <= _TOLERANCE and abs(at_worst - at_best) <= _TOLERANCE:
            break
        step = best - worst
        tried, at_tried = _moved(value, best, step, at_best, at_worst)
        if at_tried >= at_worst:  # nothing on the line is better than what there is: shrink towards the best
            tried = best - step / 2
            at_tried = value(tried)
        worst, at_worst = tried, at_tried
        if at_worst < at_best:
            best, worst, at_best, at_worst = worst, best, at_worst, at_best
    return best


def _moved(
    value: Callable[[float], float], best: float, step: float, at_best: float, at_worst: float
) -> tuple[float, float]:
    """Point that replaces the worst one: reflected, expanded or contracted."""
    reflected = best + step
    at_reflected = value(reflected)
    if at_reflected < at_best:
        expanded = best + 2 * step
        at_expanded = value(expanded)
        return (expanded, at_expanded) if at_expanded < at_reflected else (reflected, at_reflected)
    contracted = best + step / 2 if at_reflected < at_worst else best - step / 2
    return contracted, value(contracted)
