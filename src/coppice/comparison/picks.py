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
from coppice.simulation.channels import generation_of
from coppice.text import short_size

__all__ = ["LibraryPick", "nccl_picks", "pick_lines"]


@dataclass(frozen=True, kw_only=True)
class LibraryPick:
    """NCCL's pick at one size.

    Attributes:
        size_bytes: M.
        name: Algorithm and protocol as NCCL calls them, such as ``Tree/LL``.
        algorithm: Its name here, None where it is not simulated.
        ratio: Its time over that of the best algorithm, both simulated; None where it was not simulated.
    """

    size_bytes: int
    name: str
    algorithm: str | None
    ratio: float | None

    def record(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "size_bytes": self.size_bytes,
            "pick": self.name,
            "algorithm": self.algorithm,
            "ratio": self.ratio,
        }


def nccl_picks(
    problem: Problem, sizes: tuple[int, ...], times: Mapping[str, Mapping[int, SimulatedTime]]
) -> tuple[LibraryPick, ...]:
    """NCCL's pick at each size; none where NCCL does not perform the collective, or does not run on such GPUs.

    Args:
        problem: What was compared.
        sizes: At which sizes.
        times: The best variant of each algorithm at each size.
    """
    found = []
    for size in sizes:
        try:
            generation_of(problem.topology)
            chosen = select("nccl", problem.collective, size, topology=problem.topology)
        except InputError:  # GPUs of another make, or a collective that it does not have
            return ()
        least = min((row[size].time_us for row in times.values() if size in row), default=0.0)
        own = times.get(chosen.ours or "", {}).get(size)
        found.append(
            LibraryPick(
                size_bytes=size,
                name=chosen.algorithm,
                algorithm=chosen.ours,
                ratio=own.time_us / least if own is not None and least else None,
            )
        )
    return tuple(found)


def pick_lines(picks: tuple[LibraryPick, ...]) -> list[str]:
    """The picks, neighbouring sizes with the same one in a line.

    >>> row = {"name": "Ring/LL", "algorithm": "ring"}
    >>> pick_lines(tuple(LibraryPick(size_bytes=2**k, ratio=1 + (k == 11) / 4, **row) for k in (10, 11)))
    ['1K..2K Ring/LL: 1 to 1.25 times the best time']
    """
    lines = []
    for (name, algorithm), rows in groupby(picks, key=lambda pick: (pick.name, pick.algorithm)):
        run = list(rows)
        sizes = "..".join(dict.fromkeys((short_size(run[0].size_bytes), short_size(run[-1].size_bytes))))
        ratios = [pick.ratio for pick in run if pick.ratio is not None]
        if not ratios:
            words = "not simulated here" if algorithm is None else f"{algorithm} was not simulated"
        elif max(ratios) <= 1 + TOLERANCE:
            words = "as good as the best"
        else:
            low, high = (f"{ratio:.3g}" for ratio in (min(ratios), max(ratios)))
            words = f"{low if low == high else f'{low} to {high}'} times the best time"
        lines.append(f"{sizes} {name}: {words}")
    return lines
