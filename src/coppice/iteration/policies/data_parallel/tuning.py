"""Tune a policy's settings: try all choices, or a few of many by expected improvement.

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
from coppice.iteration.step.workloads import steady_iteration

_MARGIN = 0.1
_NOISE = 1e-6
_LENGTHS = (0.1, 0.2, 0.4, 0.8)


def policy_seconds(policy: Policy, workload: LayerWorkload, settings: Mapping[str, Any]) -> float:
    """Iteration time under a policy with some settings changed."""
    changed = type(policy)(msgspec.structs.replace(policy.settings, **settings))
    return steady_iteration(lambda count: changed.iterations(workload, count)).seconds


def best_settings(
    policy: Policy, workload: LayerWorkload, choices: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Best of the choices and the current settings, all simulated; ties go to the first."""
    found = (
        min([{}, *choices], key=lambda choice: policy_seconds(policy, workload, choice)) if choices else {}
    )
    return {**msgspec.structs.asdict(policy.settings), **found}


def tuned_settings(
    policy: Policy, workload: LayerWorkload, choices: Sequence[Mapping[str, Any]], initial: int, trials: int
) -> dict[str, Any]:
    """Best settings by simulating only a few choices, the first ones at random."""
    if not choices:
        return best_settings(policy, workload, choices)
    tried = minimize_by_expected_improvement(
        lambda number: policy_seconds(policy, workload, choices[number]),
        places_of(choices),
        initial=initial,
        trials=trials,
    )
    return best_settings(policy, workload, [choices[min(tried, key=lambda number: (tried[number], number))]])


def minimize_by_expected_improvement(
    objective: Callable[[int], float],  # Value of a choice, by number
    places: NDArray[np.float64],  # Where the choices are, (choices, dimensions)
    *,
    initial: int = 10,  # Choices tried at first, at random
    trials: int = 15,  # Choices tried in all, no more than there are
    seed: int = 0,
) -> dict[int, float]:
    """Minimise a function on a finite set by Bayesian optimization.

    Returns:
        Value of each choice that was tried.

    Examples:
        >>> line = np.linspace(0.0, 1.0, 101)[:, None]
        >>> tried = minimize_by_expected_improvement(lambda k: (k - 30) ** 2, line, initial=3, trials=12)
        >>> abs(min(tried, key=tried.__getitem__) - 30) <= 2
        True
    """
    search = ImprovementSearch(places, initial=initial, trials=trials, seed=seed)
    while (number := search.propose()) is not None:
        search.record(number, objective(number))
    return search.tried


def places_of(choices: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Coordinates of choices, (choices, options): positive numbers by ratio, others by rank.

    0 and texts are ranked as they come in order, None behind all.

    Examples:
        >>> places_of([{"a": 1.0, "b": None}, {"a": np.e, "b": 2}, {"a": 1.0, "b": 0}]).tolist()
        [[0.0, 2.0], [1.0, 1.0], [0.0, 0.0]]
    """
    columns = []
    for name in choices[0]:
        values = [choice[name] for choice in choices]
        if all(isinstance(value, int | float) and value > 0 for value in values):
            columns.append(np.log(np.asarray(values, dtype=np.float64)))
        else:
            ranks = sorted({value for value in values if value is not None})
            columns.append(
                np.asarray([float(ranks.index(v)) if v is not None else len(ranks) for v in values])
            )
    return np.stack(columns, axis=1) if columns else np.zeros((len(choices), 1))


class ImprovementSearch:
    """Minimise a function on a finite set by Bayesian optimization, one proposal at a time.

    Args:
        places: Where the choices are, (choices, dimensions).
        initial: Choices tried before values are looked at: those of ``first``, then others at random.
        trials: Choices tried in all, no more than there are.
        seed: Seed of the random part.
        first: Choices to begin with.
        expected: What is expected of each choice, up to a constant; None: nothing is.
        least_spread: Spread of values that is assumed where those seen have less.
    """

    def __init__(
        self,
        places: NDArray[np.float64],
        *,
        initial: int,
        trials: int,
        seed: int = 0,
        first: Sequence[int] = (),
        expected: Sequence[float] | None = None,
        least_spread: float = 0.0,
    ) -> None:
        spread = np.ptp(places, axis=0)
        self._at = (places - places.min(axis=0)) / np.where(spread > 0, spread, 1.0)
        random = [int(each) for each in np.random.default_rng(seed).permutation(len(places))]
        self._opening = list(dict.fromkeys([*first, *random]))[: max(1, initial)]
        self._trials = min(max(trials, len(self._opening)), len(places))
        self._expected = np.asarray(expected) if expected is not None else np.zeros(len(places))
        self._least_spread = least_spread
        self.tried: dict[int, float] = {}  # Value of each choice that was tried
        self.noise = 0.0  # Variance of the values told

    def record(self, number: int, value: float) -> None:
        """Record the value of a choice."""
        self.tried[number] = value

    def propose(self) -> int | None:
        """Propose the next choice; None after the last one."""
        following = next((each for each in self._opening if each not in self.tried), None)
        if following is not None or len(self.tried) >= self._trials:
            return following
        known = np.asarray(sorted(self.tried))
        rest = np.asarray([number for number in range(len(self._at)) if number not in self.tried])
        mean, sigma, spread = self._posterior(known, rest)
        least = self._posterior(known, known)[0].min() if self.noise else min(self.tried.values())
        gain = _expected_improvement((least - mean) / spread - _MARGIN, sigma / spread)
        return int(rest[int(gain.argmax())])

    def best(self) -> int:
        """Best choice tried; with noise, by the posterior mean."""
        known = np.asarray(sorted(self.tried))
        values = np.asarray([self.tried[int(number)] for number in known])
        if self.noise and len(known) > 1:
            values = self._posterior(known, known)[0]
        return int(known[int(values.argmin())])

    def _posterior(
        self, known: NDArray[np.int64], asked: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Posterior mean and deviation of some choices, and the scale of the residuals.

        By a Gaussian process with the squared exponential covariance, its length that of greatest evidence of a few.
        """
        apart = np.asarray([self.tried[int(number)] for number in known]) - self._expected[known]
        level, spread = float(apart.mean()), max(float(apart.std()), self._least_spread) or 1.0
        z = (apart - level) / spread
        noise = max(_NOISE, self.noise / spread**2)

        def factor(length: float) -> NDArray[np.float64]:
            own = _covariance(self._at[known], self._at[known], length)
            return np.asarray(np.linalg.cholesky(own + noise * np.eye(len(known))), dtype=np.float64)

        def evidence(length: float) -> float:
            lower = factor(length)
            half = np.linalg.solve(lower, z)
            return float(-half @ half / 2 - np.log(np.diag(lower)).sum())

        length = max(_LENGTHS, key=evidence)
        lower = factor(length)
        across = np.linalg.solve(lower, _covariance(self._at[known], self._at[asked], length))
        mean = across.T @ np.linalg.solve(lower, z)
        sigma = np.sqrt(np.clip(1 + _NOISE - (across * across).sum(axis=0), 1e-12, None))
        return self._expected[asked] + level + spread * mean, spread * sigma, spread


def _expected_improvement(better: NDArray[np.float64], sigma: NDArray[np.float64]) -> NDArray[np.float64]:
    """Expected improvement of normally distributed values.

    Args:
        better: By how much each is expected to improve.
    """
    ratio = better / sigma
    below = np.asarray([(1 + erf(each / sqrt(2))) / 2 for each in ratio])
    density = np.asarray([exp(-each * each / 2) / sqrt(2 * pi) for each in ratio])
    return np.asarray(better * below + sigma * density)


def _covariance(a: NDArray[np.float64], b: NDArray[np.float64], length: float) -> NDArray[np.float64]:
    """Squared exponential covariance of coordinates, (a, b)."""
    apart = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-apart / (2 * length * length)))
