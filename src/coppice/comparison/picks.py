"""What NCCL would pick at each size of a comparison, and how far that is from the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from coppice.bounds.problem import Problem
from coppice.comparison.measurement import SimulatedTime
from coppice.comparison.ranges import TOLERANCE
from coppice.errors import InputError
from coppice.selection import select
from coppice.selection.nccl_machine import machine_of
from coppice.text import short_size


@dataclass(frozen=True, kw_only=True)
class LibraryPick:
    """NCCL's pick at one size."""

    size_bytes: int  # M
    name: str  # Algorithm and protocol as NCCL calls them, such as `Tree/LL`
    algorithm: str | None  # Its name here, None where it is not simulated
    # Its time over that of the best algorithm of its class, both simulated; None where it was not simulated
    ratio: float | None
    in_network: bool = False  # Its class: switches copy and add

    def record(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "size_bytes": self.size_bytes,
            "pick": self.name,
            "algorithm": self.algorithm,
            "ratio": self.ratio,
            "in_network": self.in_network,
        }


def nccl_picks(
    problem: Problem,
    sizes: tuple[int, ...],
    times: Mapping[str, Mapping[int, SimulatedTime]],  # The best variant of each algorithm at each size
    # The same of algorithms whose switches copy and add, where these were compared by themselves
    helped: Mapping[str, Mapping[int, SimulatedTime]] | None = None,
) -> tuple[LibraryPick, ...]:
    """NCCL's pick at each size; none where NCCL does not perform the collective, or does not run on such GPUs."""
    found = []
    for size in sizes:
        try:
            if machine_of(problem.topology).generation is None:
                return ()
            chosen = select("nccl", problem.collective, size, topology=problem.topology, root=problem.root)
        except InputError:  # GPUs of another make, unequal boxes, or a collective that it does not have
            return ()
        name = chosen.ours or ""
        apart = helped is not None and size in helped.get(name, {})
        beside = helped if helped is not None and apart else times
        least = min((row[size].time_us for row in beside.values() if size in row), default=0.0)
        own = beside.get(name, {}).get(size)
        found.append(
            LibraryPick(
                size_bytes=size,
                name=chosen.algorithm,
                algorithm=chosen.ours,
                ratio=own.time_us / least if own is not None and least else None,
                in_network=apart,
            )
        )
    return tuple(found)


_THERE = " of those whose switches copy and add"


def pick_lines(picks: tuple[LibraryPick, ...]) -> list[str]:
    """The picks, neighbouring sizes with the same one in a line.

    >>> row = {"name": "Ring/LL", "algorithm": "ring"}
    >>> pick_lines(tuple(LibraryPick(size_bytes=2**k, ratio=1 + (k == 11) / 4, **row) for k in (10, 11)))
    ['1K..2K Ring/LL: 1 to 1.25 times the best time']
    """
    lines = []
    for (name, algorithm, apart), rows in groupby(
        picks, key=lambda pick: (pick.name, pick.algorithm, pick.in_network)
    ):
        run = list(rows)
        sizes = "..".join(dict.fromkeys((short_size(run[0].size_bytes), short_size(run[-1].size_bytes))))
        ratios = [pick.ratio for pick in run if pick.ratio is not None]
        if not ratios:
            words = "not simulated here" if algorithm is None else f"{algorithm} was not simulated"
        elif max(ratios) <= 1 + TOLERANCE:
            words = f"as good as the best{_THERE if apart else ''}"
        else:
            low, high = (f"{ratio:.3g}" for ratio in (min(ratios), max(ratios)))
            words = (
                f"{low if low == high else f'{low} to {high}'} times the best time{_THERE if apart else ''}"
            )
        lines.append(f"{sizes} {name}: {words}")
    return lines
