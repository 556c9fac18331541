"""The cheapest closed tour by dynamic programming over subsets, subset by subset: reference of cpp/graph/tour.cc."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray


def cheapest_tour(cost: NDArray[np.float64]) -> list[int] | None:
    """The tour from point 0 on, of equal ones that whose points are least from its end; None where there is none."""
    last = len(cost) - 1
    least = {(frozenset((j,)), j): float(cost[last, j]) for j in range(last)}
    for size in range(2, last + 1):
        for members in combinations(range(last), size):
            subset = frozenset(members)
            for j in members:
                before = subset - {j}
                least[subset, j] = min(least[before, i] + float(cost[i, j]) for i in before)
    left, following = frozenset(range(last)), last
    tour = [last]
    while left:
        total = {i: least[left, i] + float(cost[i, following]) for i in sorted(left)}
        following = min(total, key=total.__getitem__)
        if total[following] == np.inf:
            return None
        tour.append(following)
        left -= {following}
    tour.reverse()
    at = tour.index(0)
    return tour[at:] + tour[:at]
