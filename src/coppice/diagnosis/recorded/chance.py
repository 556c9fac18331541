"""How probable an observation is by chance: tests without assumptions on how times are distributed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def binomial_tail(hits: int, trials: int, share: float) -> float:
    """Probability of at least so many hits, where each has a given probability.

    Examples:
        >>> round(binomial_tail(3, 3, 0.5), 6), binomial_tail(0, 9, 0.5)
        (0.125, 1.0)
    """
    if hits <= 0:
        return 1.0
    terms = [
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(share)
        + (trials - k) * math.log1p(-share)
        for k in range(hits, trials + 1)
    ]
    return min(1.0, sum(math.exp(each) for each in terms))


def rank_sum(some: Sequence[float], others: Sequence[float]) -> float:
    """Probability that some are so much larger than others by chance (Mann and Whitney 1947, one-sided).

    Exact for up to 12 values in all where none repeats, else by the normal approximation with ties.

    Examples:
        >>> round(rank_sum([5, 6, 7], [1, 2, 3]), 4), rank_sum([1, 2], [1, 2]) > 0.4
        (0.05, True)
    """
    m, n = len(some), len(others)
    if not m or not n:
        return 1.0
    both = np.concatenate([np.asarray(some, dtype=np.float64), np.asarray(others, dtype=np.float64)])
    values, place, counts = np.unique(both, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    above = float(mean_rank[place[:m]].sum()) - m * (m + 1) / 2
    if len(values) == m + n <= 12:
        return _exact(round(above), m, n)
    total = m + n
    ties = float((counts**3 - counts).sum())
    variance = m * n / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    return normal_tail((above - m * n / 2 - 0.5) / math.sqrt(variance))


def normal_tail(z: float) -> float:
    """Probability of a standard normal value above z."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def _exact(above: int, m: int, n: int) -> float:
    """Share of all orders in which at least so many pairs are the right way round."""
    ways = [[[0] * (m * n + 1) for _ in range(n + 1)] for _ in range(m + 1)]
    for a in range(m + 1):
        for b in range(n + 1):
            if a == 0 or b == 0:
                ways[a][b][0] = 1
                continue
            for u in range(a * b + 1):
                ways[a][b][u] = (ways[a - 1][b][u - b] if u >= b else 0) + ways[a][b - 1][u]
    return sum(ways[m][n][above:]) / math.comb(m + n, m)


def trend(values: Sequence[float]) -> tuple[float, float]:
    """Probability of such a rise by chance (Mann 1945, Kendall 1975, one-sided), and the rise by its median slope.

    Examples:
        >>> p, rise = trend([10.0, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6, 10.7, 10.8, 10.9])
        >>> p < 1e-4, round(rise, 3)
        (True, 0.9)
    """
    x: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    n = len(x)
    if n < 4:
        return 1.0, 0.0
    i, j = np.triu_indices(n, 1)
    difference = x[j] - x[i]
    score = float(np.sign(difference).sum())
    variance = n * (n - 1) * (2 * n + 5) / 18
    return normal_tail((score - 1) / math.sqrt(variance)), float(np.median(difference / (j - i))) * (n - 1)
