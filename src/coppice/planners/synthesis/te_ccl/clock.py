"""Epochs of TE-CCL: their length, the epochs of a chunk per route, and the chunks of a link per epoch.

An epoch is the time of a piece on the fastest link, or on the slowest one: coarser, but fewer. Latency takes
``ceil(alpha / epoch)`` epochs more, none where it is below a tenth of an epoch; a link that takes ``w`` epochs for a
piece begins one in any ``w`` epochs (TE-CCL, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from coppice.planners.synthesis.mip.greedy import LinkUse
from coppice.planners.synthesis.mip.routes import Route
from coppice.topology.model import Topology

_NEGLIGIBLE = Fraction(1, 10)


@dataclass(frozen=True, eq=False, kw_only=True)
class Clock:
    """Epochs of one network; make one with :meth:`of`."""

    routes: tuple[Route, ...]  # The ways between ranks
    epoch: Fraction  # Length of an epoch, in the time that a piece takes at 1 GB/s
    epoch_us: float  # The same in microseconds
    delay: tuple[int, ...]  # Epochs of latency of each route
    transit: tuple[int, ...]  # Epochs from the start of a piece on each route until it may be sent on
    per_epoch: dict[int, Fraction]  # Pieces that each link carries in an epoch, by link
    use: tuple[dict[int, LinkUse], ...]  # What a piece on each route takes of its links

    @classmethod
    def of(
        cls,
        topology: Topology,
        routes: Sequence[Route],
        *,
        chunk_bytes: int,
        fastest: bool,
        multiplier: int = 1,
    ) -> Clock:
        """Epochs of ``topology``.

        Args:
            fastest: An epoch is the time of a piece on the fastest route, instead of the slowest.

        Examples:
            >>> from coppice.planners.synthesis.mip.routes import routes_of
            >>> from coppice.topology.presets import preset
            >>> pair = preset("ndv2", boxes=2)
            >>> clock = Clock.of(pair, routes_of(pair), chunk_bytes=1_000_000, fastest=True)
            >>> clock.epoch_us, sorted(set(clock.transit))
            (20.0, [1, 2, 4])
        """
        rates = [route.gb_per_s for route in routes] or [Fraction(1)]
        epoch = multiplier / (max(rates) if fastest else min(rates))
        epoch_us = float(epoch) * chunk_bytes / 1000
        late = [Fraction(route.latency_us) / Fraction(epoch_us) for route in routes]
        delay = tuple(ceil(each) if each > _NEGLIGIBLE else 0 for each in late)
        per_epoch = {e: topology.gb_per_s(e) * epoch for route in routes for e in route.links}
        return cls(
            routes=tuple(routes),
            epoch=epoch,
            epoch_us=epoch_us,
            delay=delay,
            transit=tuple(
                wait + ceil(1 / (route.gb_per_s * epoch)) for wait, route in zip(delay, routes, strict=True)
            ),
            per_epoch=per_epoch,
            use=tuple(
                {
                    e: LinkUse(slots=max(1, floor(per_epoch[e])), period=max(1, ceil(1 / per_epoch[e])))
                    for e in route.links
                }
                for route in routes
            ),
        )
