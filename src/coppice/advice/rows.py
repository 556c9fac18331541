"""What a library picks for a call and what it could pick best, with the time of both by one and the same model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from coppice.collectives import Collective
from coppice.text import short_size

if TYPE_CHECKING:
    from coppice.outputs.shapes.deploying import AdviceRowJson

WORTH = 0.03
"""Share of the time that a change has to save before it is advised."""

MOST_NOISE = 0.2
"""Half width of the interval of a measured gain, as a share of it, from which it is too noisy to be promised."""

SMALL_BYTES = 2**20
"""Below this size messages that wait for each other decide, not bandwidth."""


@dataclass(frozen=True, kw_only=True)
class AdviceRow:
    """One collective of one group at one size."""

    group: str  # Whose collective it is: `all`, or the axis of a job
    collective: Collective  # What is performed
    nodes: int  # Boxes that the group spans
    ranks: int  # Its ranks
    size_bytes: int  # M
    picked: str  # What the library picks today, in its own words
    best: str  # What it could pick best; the same where nothing is gained
    picked_us: float | None  # Time of the pick, None where no model knows it
    best_us: float | None  # Time of the best, by the same model
    model: str  # What the times are from
    why: str  # What makes the difference, or why there is none
    change: str = ""  # Name of the change that brings it, empty where there is none
    rival: str = ""  # The next best of the choices of today, empty where there is none
    rival_us: float | None = None  # Its time by the same model
    latency_us: float | None = None  # Of the time of the pick, what does not depend on the size
    p99_us: float | None = None  # 99th percentile of single iterations of the pick, where a log has them
    reckoned_us: float | None = None  # Of a measured pick, what the library's own model reckons with there

    @property
    def gain(self) -> float:
        """Time of the pick over that of the best; 1 where one is unknown."""
        return self.picked_us / self.best_us if self.picked_us and self.best_us else 1.0

    @property
    def saves(self) -> bool:
        """Whether there is something to gain."""
        return self.gain > 1 / (1 - WORTH)

    def record(self) -> AdviceRowJson:
        """The row as JSON values."""
        return {
            "group": self.group,
            "collective": self.collective.value,
            "node_count": self.nodes,
            "ranks": self.ranks,
            "size_bytes": self.size_bytes,
            "picked": self.picked,
            "best": self.best,
            "picked_seconds": None if self.picked_us is None else self.picked_us / 1e6,
            "best_seconds": None if self.best_us is None else self.best_us / 1e6,
            "rival": self.rival or None,
            "rival_seconds": None if self.rival_us is None else self.rival_us / 1e6,
            "latency_seconds": None if self.latency_us is None else self.latency_us / 1e6,
            "p99_seconds": None if self.p99_us is None else self.p99_us / 1e6,
            "model": self.model,
            "why": self.why,
            "by_change": self.change or None,
        }


def settled(row: AdviceRow) -> AdviceRow:
    """The row with the pick as the best where nothing worth a change is gained."""
    if row.saves:
        return row
    return replace(row, best=row.picked, best_us=row.picked_us, change="")


def by_ranges(rows: Sequence[AdviceRow]) -> Iterator[tuple[str, list[AdviceRow]]]:
    """Neighbouring sizes with the same pick, best and reason, with the sizes as text."""

    def key(row: AdviceRow) -> tuple[str, ...]:
        return (row.group, row.collective, row.picked, row.best, row.change, row.model, row.why)

    for _, members in groupby(rows, key=key):
        run = list(members)
        ends = dict.fromkeys((short_size(run[0].size_bytes), short_size(run[-1].size_bytes)))
        yield "..".join(ends), run
