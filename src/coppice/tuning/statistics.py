"""Statistical comparison of a choice with the default: gain, confidence interval, p-value; outliers are kept.

Pairs are compared by the signed ranks of their log ratios: under the hypothesis that the choice makes no difference,
both orders of a pair are equally likely, so the p-value is the share of sign changes that rank as well (all of them up
to 15 pairs, 5,000 random ones beyond). Single outliers move ranks by little. Unpaired times are compared by rank sums
under random relabelling. The gain is the median ratio, its interval that of a percentile bootstrap. All is seeded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EXACT = 15
_RANDOM = 5_000
_RESAMPLES = 2_000
_CONFIDENCE = 0.95
_SCALE_OF_MAD = 1.4826
_OUTLIER = 3.5

Floats = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceVerdict:
    """Comparison of a choice with the default."""

    gain: float  # Default's time / time of the choice, the median; above 1 the choice is faster
    low: float  # Lower end of the 95 percent interval of the gain
    high: float  # Upper end
    p_faster: float  # Probability of such a result, or a clearer one, if the choice made no difference
    p_slower: float  # The same for being slower
    time_us: float  # Median time of the choice
    default_us: float  # Median time of the default
    repeats: int  # Number of times of the choice
    # How many of its times (of the ratios, where paired) lie far from the others; they count all the same
    outliers: int

    @property
    def noise(self) -> float:
        """Half-width of the confidence interval of the gain."""
        return (self.high - self.low) / 2


def compare(
    default_us: Sequence[float], time_us: Sequence[float], *, paired: bool, seed: int = 0
) -> ChoiceVerdict:
    """Compare the times of a choice with those of the default.

    Args:
        default_us: Times of the default, one at least.
        time_us: Times of the choice, one at least.
        paired: The i-th times of both were measured next to each other.
        seed: For random sign changes, relabellings and resamples.

    Examples:
        >>> found = compare([10, 11, 12, 10, 11, 30], [5, 5.4, 6.1, 5, 5.5, 5], paired=True)
        >>> round(found.gain, 2), found.p_faster, found.outliers
        (2.0, 0.015625, 1)
        >>> compare([10.0], [5.0], paired=True).p_faster
        0.5
    """
    default, times = np.asarray(default_us, dtype=float), np.asarray(time_us, dtype=float)
    random = np.random.default_rng(seed)
    logs = np.log(default) - np.log(times) if paired else None
    if logs is not None:
        faster, slower = _signed_ranks(logs, random)
        medians = np.median(logs[random.integers(len(logs), size=(_RESAMPLES, len(logs)))], axis=1)
        middle, outliers = float(np.median(logs)), _outliers(logs)
    else:
        faster, slower = _rank_sums(default, times, random)
        medians = _resampled(np.log(default), random) - _resampled(np.log(times), random)
        middle = float(np.median(np.log(default)) - np.median(np.log(times)))
        outliers = _outliers(np.log(times))
    low, high = np.quantile(medians, ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2))
    return ChoiceVerdict(
        gain=math.exp(middle),
        low=math.exp(low),
        high=math.exp(high),
        p_faster=faster,
        p_slower=slower,
        time_us=float(np.median(times)),
        default_us=float(np.median(default)),
        repeats=len(times),
        outliers=outliers,
    )


def holm(values: Sequence[float]) -> list[float]:
    """P-values corrected for multiple testing by Holm's method.

    Args:
        values: The p-values, one for every question.

    Examples:
        >>> holm([0.01, 0.5, 0.02])
        [0.03, 0.5, 0.04]
    """
    order = sorted(range(len(values)), key=lambda at: values[at])
    found, largest = [0.0] * len(values), 0.0
    for place, at in enumerate(order):
        largest = max(largest, min(1.0, values[at] * (len(values) - place)))
        found[at] = largest
    return found


def _resampled(values: Floats, random: np.random.Generator) -> Floats:
    resamples: Floats = np.median(
        values[random.integers(len(values), size=(_RESAMPLES, len(values)))], axis=1
    )
    return resamples


def _signed_ranks(logs: Floats, random: np.random.Generator) -> tuple[float, float]:
    """Probabilities of a sum of signed ranks as high, and as low, as that of ``logs``."""
    count = len(logs)
    ranks = _ranks(np.abs(logs)) * (logs != 0)
    observed = float(ranks @ np.sign(logs))
    if count <= _EXACT:
        signs = 1 - 2 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)
        sums = signs @ ranks
        return float(np.mean(sums >= observed - 1e-9)), float(np.mean(sums <= observed + 1e-9))
    sums = (1 - 2 * random.integers(2, size=(_RANDOM, count))) @ ranks
    return _share(sums >= observed - 1e-9), _share(sums <= observed + 1e-9)


def _rank_sums(default: Floats, times: Floats, random: np.random.Generator) -> tuple[float, float]:
    """Probabilities that times drawn from all of them rank as low, and as high, as those of the choice."""
    ranks = _ranks(np.concatenate((times, default)))
    observed = float(ranks[: len(times)].sum())
    sums = random.permuted(np.tile(ranks, (_RANDOM, 1)), axis=1)[:, : len(times)].sum(axis=1)
    return _share(sums <= observed + 1e-9), _share(sums >= observed - 1e-9)


def _share(hits: Floats) -> float:
    """Share of hits, with what was observed among them: never 0."""
    return (int(np.count_nonzero(hits)) + 1) / (len(hits) + 1)


def _ranks(values: Floats) -> Floats:
    """Ranks from 1, equal values share theirs.

    >>> _ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = ((ends - counts + 1 + ends) / 2)[place]
    return ranks


def _outliers(values: Floats) -> int:
    distance = np.abs(values - np.median(values))
    spread = _SCALE_OF_MAD * float(np.median(distance))
    return int(np.count_nonzero(distance > _OUTLIER * spread)) if spread else 0
