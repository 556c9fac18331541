"""Rank groups of a training job, and the interface of collective costs with all groups running concurrently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coppice.errors import InputError

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
"""What groups of a job do; in a send every rank but the last sends the whole buffer to the next one of its group."""


@dataclass(frozen=True)
class RankGroup:
    """Concurrent groups of strided ranks along one axis of parallelism.

    Raises:
        InputError: If a number is below 1.

    Examples:
        >>> RankGroup(2, 4).members(8)
        [[0, 4], [1, 5], [2, 6], [3, 7]]
    """

    ranks: int  # Ranks of a group
    stride: int  # Distance of neighbours

    def __post_init__(self) -> None:
        for name in ("ranks", "stride"):
            if getattr(self, name) < 1:
                raise InputError(f"expected `{name}` of a group of 1 or more, found {getattr(self, name)}.")

    def members(self, total: int) -> list[list[int]]:
        """Ranks of every group, by first rank."""
        span = self.ranks * self.stride
        if total % span:
            raise InputError(
                f"expected groups of {self.ranks} ranks {self.stride} apart that divide the ranks, found {total}."
            )
        return [
            [block + first + k * self.stride for k in range(self.ranks)]
            for block in range(0, total, span)
            for first in range(self.stride)
        ]


@dataclass(frozen=True)
class CollectiveCost:
    """Time of a collective that all groups run concurrently."""

    seconds: float  # From its start until the last group is done
    # The kind of link that limits it: `NVLink` (inside a box), `NIC` (out of a box) or `fabric` (between
    # switches); empty where nothing moves
    link: str = ""
    # Share of the time for which the busiest link of each kind is in use at its full rate
    loads: Mapping[str, float] = field(default_factory=dict)


class CollectiveCosts(Protocol):
    """Interface of collective costs."""

    def cost(
        self, collective: str, size_bytes: float, group: RankGroup, *, gradients: bool = False
    ) -> CollectiveCost:
        """Cost of a collective.

        Args:
            collective: One of :data:`COLLECTIVES`.
            size_bytes: M in bytes, as :mod:`coppice.collectives` defines it; of a send what each rank sends.
            gradients: It sums gradients, or gathers the parameters that they update: models that were fitted to
                measurements know another rate for these.
        """
        ...  # pragma: no cover
