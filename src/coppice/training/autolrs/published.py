"""The forecast of the published AutoLRS code, quirks included, to compare with.

Source: the method and its public implementation (YuchenJin/autolrs), described from that code: outliers are dropped
around a quadratic smoothing spline, the spline replaces the data, and an exponential is fitted to it by a simplex
search from ``b = -1``. A smoothing spline with the default smoothing (one unit of squared error per point) is one
parabola unless losses are large, and no parabola is an exponential: noiseless data is mis-forecast by 0.07 to 0.15,
which :func:`coppice.training.autolrs.forecast.fit_exponential` mends.

Two crashes of that code are not kept: NaN losses are the controller's business, and a rank-deficient fit has
residual 0.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from math import exp

import numpy as np
import numpy.typing as npt

from coppice.errors import MissingExtraError
from coppice.training.autolrs.forecast import ExponentialFit, Series

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
    """The points that stay after the published number of rounds."""
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
    """The point that replaces the worst one: reflected, expanded or contracted."""
    reflected = best + step
    at_reflected = value(reflected)
    if at_reflected < at_best:
        expanded = best + 2 * step
        at_expanded = value(expanded)
        return (expanded, at_expanded) if at_expanded < at_reflected else (reflected, at_reflected)
    contracted = best + step / 2 if at_reflected < at_worst else best - step / 2
    return contracted, value(contracted)
