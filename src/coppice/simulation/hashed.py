"""Hashed flows: what a schedule takes when switches choose among equally good routes by a hash.

Equal-cost multipath sends every flow, here all that one rank sends another in one channel, over one of the shortest
routes. Flows that meet on a link share it while other links idle. Which ones meet is chance: a *seed* is one outcome,
many seeds are a distribution, whose median and 99th percentile are told by nearest rank. Ideal multipath, which
spreads every flow evenly over all its routes, is what they are measured by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from coppice.display import Brief
from coppice.errors import InputError
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule, routed
from coppice.simulation.multipath import over_all_routes

__all__ = ["Hashed", "hashed_times"]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Hashed(Brief):
    """Times of a schedule under many hashes.

    Attributes:
        times_us: Time under each seed, 0 being the default routing (float64).
        multipath_us: Time with ideal multipath.
    """

    times_us: NDArray[np.float64]
    multipath_us: float

    @property
    def median_us(self) -> float:
        """Half of the seeds take this time or less."""
        return self.quantile_us(0.5)

    @property
    def p99_us(self) -> float:
        """99% of the seeds take this time or less."""
        return self.quantile_us(0.99)

    def quantile_us(self, share: float) -> float:
        """The least of the times that ``share`` of the seeds do not pass.

        Examples:
            >>> Hashed(times_us=np.array([4.0, 1.0, 3.0, 2.0]), multipath_us=1.0).quantile_us(0.5)
            2.0
        """
        return float(np.sort(self.times_us)[max(ceil(share * len(self.times_us)), 1) - 1])


def hashed_times(
    body: Schedule | Forest,
    seeds: int,
    time_us: Callable[[Schedule], float],
    *,
    relay_gpus: bool = False,
    on_seed: Callable[[int], None] | None = None,
) -> Hashed:
    """Times of a schedule under ``seeds`` hashes, and with ideal multipath.

    Args:
        body: A schedule whose transfers follow default routes, at least some of them.
        seeds: Number of hashes, 1 or more.
        time_us: Simulates a schedule with routes for all transfers.
        relay_gpus: Where no path of switches and NICs exists, other ranks may pass data on.
        on_seed: Called with the number of every seed before it is simulated.

    Raises:
        InputError: If there is no seed, or every transfer names its path, so that nothing is left to a hash.
    """
    if seeds < 1:
        msg = f"expected 1 or more seeds, found {seeds}."
        raise InputError(msg)
    if isinstance(body, Forest) or not (body.path < 0).any():
        msg = (
            "expected transfers that follow default routes, found a path for each: nothing is left to a hash."
        )
        raise InputError(msg)
    times = np.empty(seeds)
    for seed in range(seeds):
        if on_seed is not None:
            on_seed(seed)
        times[seed] = time_us(routed(body, relay_gpus=relay_gpus, seed=seed))
    return Hashed(times_us=times, multipath_us=time_us(over_all_routes(body, relay_gpus=relay_gpus)))
