"""Settings of a policy that suit a workload: all choices tried, or few of many by expected improvement.

The second is what ByteScheduler (SOSP'19) and DeAR (ICDCS'23) do while they train: a Gaussian process over the
choices tried so far, and next the choice of the greatest expected improvement over the best (Jones et al., 1998),
with the margin xi = 0.1 of the spread. The choices are a finite set and the seed is fixed, so every rank tunes
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import erf, exp, pi, sqrt
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.policy import Policy
from coppice.iteration.steady import steady_iteration

__all__ = ["best_settings", "minimize_by_expected_improvement", "policy_seconds", "tuned_settings"]

_MARGIN = 0.1
_NOISE = 1e-6
_LENGTHS = (0.1, 0.2, 0.4, 0.8)


def policy_seconds(policy: Policy, workload: LayerWorkload, settings: Mapping[str, Any]) -> float:
    """Time of an iteration under a policy with some of its settings changed."""
    changed = type(policy)(msgspec.structs.replace(policy.settings, **settings))
    return steady_iteration(lambda count: changed.iterations(workload, count)).seconds


def best_settings(
    policy: Policy, workload: LayerWorkload, choices: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The best of some choices and of the settings that the policy has, all simulated; of equal ones the first."""
    found = min([{}, *choices], key=lambda choice: policy_seconds(policy, workload, choice))
    return {**msgspec.structs.asdict(policy.settings), **found}


def tuned_settings(
    policy: Policy,
    workload: LayerWorkload,
    choices: Sequence[Mapping[str, float]],
    *,
    initial: int,
    trials: int,
) -> dict[str, Any]:
    """As :func:`best_settings`, of which a few are simulated; choices are numbers above 0 and compared by ratios."""
    places = np.log([[*choice.values()] for choice in choices])
    tried = minimize_by_expected_improvement(
        lambda number: policy_seconds(policy, workload, choices[number]),
        places,
        initial=initial,
        trials=trials,
    )
    return best_settings(policy, workload, [choices[min(tried, key=lambda number: (tried[number], number))]])


def minimize_by_expected_improvement(
    objective: Callable[[int], float],
    places: NDArray[np.float64],
    *,
    initial: int = 10,
    trials: int = 15,
    seed: int = 0,
) -> dict[int, float]:
    """Look for the least of a function on a finite set by Bayesian optimization.

    Args:
        objective: Value of a choice, by number.
        places: Where the choices are, (choices, dimensions).
        initial: Choices tried at first, at random.
        trials: Choices tried in all, no more than there are.
        seed: Seed of the random part.

    Returns:
        Value of each choice that was tried.

    Examples:
        >>> line = np.linspace(0.0, 1.0, 101)[:, None]
        >>> tried = minimize_by_expected_improvement(lambda k: (k - 30) ** 2, line, initial=3, trials=12)
        >>> abs(min(tried, key=tried.__getitem__) - 30) <= 2
        True
    """
    spread = np.ptp(places, axis=0)
    at = (places - places.min(axis=0)) / np.where(spread > 0, spread, 1.0)
    order = np.random.default_rng(seed).permutation(len(at))
    tried: dict[int, float] = {int(number): objective(int(number)) for number in order[: max(1, initial)]}
    while len(tried) < min(trials, len(at)):
        rest = np.asarray([number for number in range(len(at)) if number not in tried])
        known = np.asarray(sorted(tried))
        values = np.asarray([tried[int(number)] for number in known])
        gain = _expected_improvement(at[known], values, at[rest])
        number = int(rest[int(gain.argmax())])
        tried[number] = objective(number)
    return tried


def _expected_improvement(
    known: NDArray[np.float64], values: NDArray[np.float64], rest: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Expected improvement of choices, by a Gaussian process with the squared exponential covariance.

    The length is the one of greatest evidence of a few.
    """
    level, deviation = float(values.mean()), float(values.std()) or 1.0
    z = (values - level) / deviation

    def factor(length: float) -> NDArray[np.float64]:
        noise = _NOISE * np.eye(len(known))
        return np.asarray(np.linalg.cholesky(_covariance(known, known, length) + noise), dtype=np.float64)

    def evidence(length: float) -> float:
        lower = factor(length)
        half = np.linalg.solve(lower, z)
        return float(-half @ half / 2 - np.log(np.diag(lower)).sum())

    length = max(_LENGTHS, key=evidence)
    lower = factor(length)
    across = np.linalg.solve(lower, _covariance(known, rest, length))
    mean = across.T @ np.linalg.solve(lower, z)
    sigma = np.sqrt(np.clip(1 + _NOISE - (across * across).sum(axis=0), 1e-12, None))
    better = z.min() - mean - _MARGIN
    ratio = better / sigma
    below = np.asarray([(1 + erf(each / sqrt(2))) / 2 for each in ratio])
    density = np.asarray([exp(-each * each / 2) / sqrt(2 * pi) for each in ratio])
    return np.asarray(better * below + sigma * density)


def _covariance(a: NDArray[np.float64], b: NDArray[np.float64], length: float) -> NDArray[np.float64]:
    """Squared exponential covariance of places, (a, b)."""
    apart = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-apart / (2 * length * length)))
