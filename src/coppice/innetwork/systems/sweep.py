"""Estimates of several systems over a range of workers, slots or loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.innetwork.systems.estimate import AggregationCase, AggregationEstimate
from coppice.innetwork.systems.registry import MODELLED, estimates, named_system
from coppice.text import suggestion

if TYPE_CHECKING:
    from coppice.outputs.shapes.switches import SystemSweepJson

SWEEPS: Mapping[str, tuple[float, ...]] = {
    "workers": (2, 4, 8, 16, 32, 64, 128),
    "slots": (16, 32, 64, 128, 256, 512, 1024),
    "loss": (0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
}
"""What is swept, and over which values."""


@dataclass(frozen=True, kw_only=True)
class AggregationSweep:
    """Estimates of several systems at each value of a range."""

    over: str  # What changes: workers, slots or loss
    values: tuple[float, ...]  # Its values
    size_bytes: int  # Bytes of the tensor
    # By system, the estimate at each value, None where it does not suit
    found: Mapping[str, tuple[AggregationEstimate | None, ...]]
    refused: Mapping[str, str]  # Why a system suits at no value

    def goodput(self, system: str) -> list[float | None]:
        """Bytes of the tensor over its time at each value, in GB/s.

        Args:
            system: Name of a system that suits somewhere.
        """
        return [
            None if each is None else self.size_bytes / each.time_us / 1000 for each in self.found[system]
        ]

    def record(self) -> SystemSweepJson:
        """The estimates as JSON values."""
        swept = {
            name: [None if each is None else each.record() for each in row]
            for name, row in self.found.items()
        }
        return {
            "over": self.over,
            "values": list(self.values),
            "size_bytes": self.size_bytes,
            "swept_systems": swept,
            "systems": swept,
            "refusals": dict(self.refused),
        }


@checked
def sweep(
    systems: Iterable[str],
    case: AggregationCase,
    size_bytes: int,
    *,
    over: str,  # `workers`, `slots` or `loss`
    values: Sequence[float] | None = None,  # Values to take; None: those of :data:`SWEEPS`
) -> AggregationSweep:
    """Estimate several systems at each value of a range.

    Examples:
        >>> from fractions import Fraction
        >>> case = AggregationCase(workers=8, gb_per_s=Fraction(25, 2))
        >>> found = sweep(["switchml"], case, 10**9, over="slots", values=[32, 64, 128])
        >>> [round(8 * rate) for rate in found.goodput("switchml")]
        [43, 86, 93]
    """
    if over not in SWEEPS:
        raise InputError(
            f"expected a sweep over workers, slots or loss, found {over!r}: {suggestion(over, SWEEPS)}"
        )
    points = tuple(SWEEPS[over] if values is None else values)
    names = [named_system(each, MODELLED) for each in systems]
    rows: dict[str, list[AggregationEstimate | None]] = {}
    why: dict[str, str] = {}
    for value in points:
        changed = replace(case, **{over: value if over == "loss" else int(value)})  # type: ignore[arg-type]
        found, refused = estimates(names, changed, size_bytes)
        here = {each.system: each for each in found}
        for name in [*here, *refused]:
            rows.setdefault(name, [])
        for name, row in rows.items():
            row.append(here.get(name))
        for name, words in refused.items():
            why.setdefault(name, words)
    order = [each for each in dict.fromkeys(names) if any(rows.get(each, ()))]
    return AggregationSweep(
        over=over,
        values=points,
        size_bytes=size_bytes,
        found={name: tuple(rows[name]) for name in order},
        refused={name: words for name, words in why.items() if name not in order},
    )
