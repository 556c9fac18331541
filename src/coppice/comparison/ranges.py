"""Winners by size range, with reasons taken from the figures.

Times within one percent of the best count as the best, so that a range does not fall apart where two algorithms are
equally good; among all ways to cover the sizes so, this is one with the fewest ranges.

Beside it stands what NCCL or RCCL would pick at each size, and how far that is from the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from coppice.bounds.problem import Problem
from coppice.comparison.library import LibraryRuns
from coppice.comparison.measurement import SimulatedTime
from coppice.errors import InputError
from coppice.selection import select
from coppice.selection.nccl.machines import machines_of
from coppice.selection.rccl.boards import architecture_of
from coppice.simulation.models import Model, protocol_text
from coppice.text import plural, short_size, time_text

if TYPE_CHECKING:
    from coppice.outputs.shapes.timing import LibraryPickJson, SizeRangeJson

TOLERANCE = 0.01
"""Share by which a time may exceed the best one and still count as the best."""

Times = Mapping[str, Mapping[int, SimulatedTime]]


@dataclass(frozen=True, kw_only=True)
class Range:
    """Neighbouring sizes with the same winner."""

    algorithm: str  # Its name
    first_bytes: int  # Smallest of the sizes
    last_bytes: int  # Largest
    variants: str  # Values of its parameters on the way, such as `segments 1..16`
    # What it is compared with: the winner of the next range (of the one before, at the end), or the second
    # best; None where nothing else applies
    rival: str | None
    why: str  # What makes it faster than the rival
    share_of_limit: float  # How close it comes to the limit at the largest of the sizes

    @property
    def sizes_text(self) -> str:
        """The sizes: ``1K..64K``."""
        first, last = short_size(self.first_bytes), short_size(self.last_bytes)
        return first if first == last else f"{first}..{last}"

    @property
    def text(self) -> str:
        """The range in a line: ``1K..64K recursive-doubling (5 messages in a row, ring 62; 80% of the limit)``."""
        variants = f" with {self.variants}" if self.variants else ""
        notes = [self.why] if self.why else []
        notes.append(f"{percent(self.share_of_limit)} of the limit at {short_size(self.last_bytes)}")
        return f"{self.sizes_text} {self.algorithm}{variants} ({'; '.join(notes)})"

    def record(self) -> SizeRangeJson:
        """JSON values."""
        return {
            "algorithm": self.algorithm,
            "first_bytes": self.first_bytes,
            "last_bytes": self.last_bytes,
            "variants": self.variants,
            "rival": self.rival,
            "why": self.why,
            "share_of_limit": self.share_of_limit,
            "text": self.text,
        }


def ranges(sizes: Sequence[int], times: Times, *, limit_us: Callable[[int], float]) -> tuple[Range, ...]:
    """Cover the sizes with the fewest ranges within the tolerance.

    Args:
        sizes: All sizes, ascending; those at which nothing applies are in no range.
        times: The best variant of each algorithm at each size.
        limit_us: Least time at a size.
    """
    covers = _covers(sizes, times)
    found = []
    for number, (name, covered) in enumerate(covers):
        neighbour = number + 1 if number + 1 < len(covers) else number - 1
        middle = covered[len(covered) // 2]
        rival = covers[neighbour][0] if len(covers) > 1 else None
        if rival in (None, name) or middle not in times[str(rival)]:
            rival = _second(name, middle, times)
        row = times[name][covered[-1]]
        found.append(
            Range(
                algorithm=name,
                first_bytes=covered[0],
                last_bytes=covered[-1],
                variants=variants([times[name][size] for size in covered]),
                rival=rival,
                why="" if rival is None else _why(times[name][middle], times[rival][middle]),
                share_of_limit=limit_us(covered[-1]) / row.time_us if row.time_us else 1.0,
            )
        )
    return tuple(found)


def variants(rows: Sequence[SimulatedTime]) -> str:
    """Parameter values of some measurements of one algorithm: ``segments 1..16, order topology``."""
    words = []
    for name in dict.fromkeys(name for row in rows for name in row.parameters):
        values = list(dict.fromkeys(row.parameters[name] for row in rows if name in row.parameters))
        numbers = [value for value in values if isinstance(value, int)]
        if len(numbers) == len(values):
            low, high = min(numbers), max(numbers)
            if high > 1 or name != "segments":
                words.append(f"{name} {low}" if low == high else f"{name} {low}..{high}")
        else:
            words.append(f"{name} {' or '.join(map(str, values))}")
    most = max((row.pieces for row in rows), default=1)
    if most > 1:
        least = min(row.pieces for row in rows)
        words.append(f"{most} pieces" if least == most else f"{least}..{most} pieces")
    used = list(dict.fromkeys(protocol_text(row.protocol) for row in rows if row.protocol))
    if used:
        words.append(" or ".join(used))
    if any(row.order == "topology" for row in rows):
        words.append("ranks in the order of the topology")
    if any(row.relays for row in rows):
        words.append("GPUs that relay")
    if any(row.in_network for row in rows):
        words.append("switches that copy and add")
    return ", ".join(words)


def percent(share: float) -> str:
    """Format a share in percent, never rounded up to 100.

    >>> percent(0.981), percent(0.9999), percent(0.0123), percent(1.0), percent(1.07)
    ('98%', '99.9%', '1.2%', '100%', '107%')
    """
    if share > 1 + 1e-6:
        return f"{100 * share:.4g}%"
    if share >= 1 - 1e-9:
        return "100%"
    if share > 0.99:
        return f"{int(share * 1000) / 10:g}%"
    return f"{100 * share:.2g}%"


def _covers(sizes: Sequence[int], times: Times) -> list[tuple[str, list[int]]]:
    """Algorithms with the sizes that each covers: always the one that stays the best for longest."""
    good: dict[int, dict[str, float]] = {}
    for size in sizes:
        at = {name: by_size[size].time_us for name, by_size in times.items() if size in by_size}
        least = min(at.values(), default=0.0)
        good[size] = {name: time for name, time in at.items() if time <= least * (1 + TOLERANCE)}
    covers: list[tuple[str, list[int]]] = []
    position = 0
    while position < len(sizes):
        runs = {name: _run(name, sizes[position:], good) for name in good[sizes[position]]}
        if not runs:
            position += 1
            continue
        name = min(runs, key=lambda each: (-len(runs[each]), sum(good[size][each] for size in runs[each])))
        covers.append((name, runs[name]))
        position += len(runs[name])
    return covers


def _run(name: str, sizes: Sequence[int], good: Mapping[int, Mapping[str, float]]) -> list[int]:
    run: list[int] = []
    for size in sizes:
        if name not in good[size]:
            break
        run.append(size)
    return run


def _second(name: str, size: int, times: Times) -> str | None:
    """The fastest other algorithm at a size."""
    others = {
        each: by_size[size].time_us for each, by_size in times.items() if each != name and size in by_size
    }
    return min(others, key=lambda each: others[each], default=None)


def _why(winner: SimulatedTime, rival: SimulatedTime) -> str:
    """The figure that explains most of the difference."""
    gap = rival.time_us - winner.time_us
    link_us = rival.link_us - winner.link_us
    chain_us = gap - link_us
    if gap <= TOLERANCE * winner.time_us:
        return f"as good as {rival.algorithm}"
    if chain_us >= link_us and rival.chain > winner.chain:
        return f"{plural(winner.chain, 'message')} in a row, {rival.algorithm} {rival.chain}"
    if link_us > 0:
        ratio = rival.link_us / winner.link_us if winner.link_us else float("inf")
        if ratio >= 1.02:
            busy, rival_busy = time_text(winner.link_us), time_text(rival.link_us)
            return f"its busiest link is busy {busy}, that of {rival.algorithm} {rival_busy}"
    busy, rival_busy = percent(winner.link_us / winner.time_us), percent(rival.link_us / rival.time_us)
    return f"its busiest link works {busy} of the time, that of {rival.algorithm} {rival_busy}"


@dataclass(frozen=True, kw_only=True)
class LibraryPick:
    """The pick of NCCL or RCCL at one size."""

    size_bytes: int  # M
    name: str  # Algorithm and protocol as NCCL calls them, such as `Tree/LL`
    algorithm: str | None  # Its name here, None where it is not simulated
    # Its time on NCCL's own channels and in its protocol, and that over the best time of its class, both simulated;
    # None where it was not simulated
    time_us: float | None
    ratio: float | None
    in_network: bool = False  # Its class: switches copy and add
    channels: int | None = None  # Channels of its kernel, as :func:`coppice.select` has them
    predicted_us: float | None = None  # Time by NCCL's own model, likewise
    predicted_by: str | None = None  # Name of that model
    library: str = "NCCL"  # Whose pick it is

    def record(self) -> LibraryPickJson:
        """JSON values."""
        return {
            "size_bytes": self.size_bytes,
            "library": self.library,
            "pick": self.name,
            "algorithm": self.algorithm,
            "channels": self.channels,
            "predicted_us": self.predicted_us,
            "predicted_by": self.predicted_by,
            "time_us": self.time_us,
            "ratio": self.ratio,
            "switches_used": self.in_network,
            "in_network": self.in_network,
        }


def library_picks(
    problem: Problem,
    sizes: tuple[int, ...],
    times: Mapping[str, Mapping[int, SimulatedTime]],  # The best variant of each algorithm at each size
    # The same of algorithms whose switches copy and add, where these were compared by themselves
    helped: Mapping[str, Mapping[int, SimulatedTime]] | None = None,
    *,
    model: Model,  # What simulates them
) -> tuple[LibraryPick, ...]:
    """Predicted pick of NCCL, or of RCCL on AMD's GPUs, at each size; empty where neither runs or has the collective.

    Picks are simulated where their algorithm was compared.
    """
    found = []
    runs = LibraryRuns(problem, model)
    library = "nccl" if architecture_of(problem.topology) is None else "rccl"
    for size in sizes:
        try:
            if library == "nccl" and machines_of(problem.topology).generation is None:
                return ()
            chosen = select(library, problem.collective, size, topology=problem.topology, root=problem.root)
        except InputError:  # GPUs of another make, unequal boxes, or a collective that it does not have
            return ()
        name = chosen.ours or ""
        apart = helped is not None and size in helped.get(name, {})
        beside = helped if helped is not None and apart else times
        least = min((row[size].time_us for row in beside.values() if size in row), default=0.0)
        time_us = runs.of(chosen).time_us if size in beside.get(name, {}) else None
        found.append(
            LibraryPick(
                size_bytes=size,
                name=chosen.algorithm,
                algorithm=chosen.ours,
                time_us=time_us,
                ratio=time_us / least if time_us is not None and least else None,
                in_network=apart,
                channels=chosen.channels,
                predicted_us=None if chosen.cell is None else chosen.cell.time_us,
                predicted_by=chosen.model_name,
                library=chosen.library,
            )
        )
    return tuple(found)


_THERE = " of those whose switches copy and add"


def pick_title(picks: tuple[LibraryPick, ...], model: Model) -> str:
    """What stands above the lines of picks: whose times they have."""
    own = next((f", its own estimates: {pick.predicted_by}" for pick in picks if pick.predicted_by), "")
    return f"{picks[0].library} would pick (times: {model.name}{own})"


def pick_lines(picks: tuple[LibraryPick, ...]) -> list[str]:
    """Picks as lines; neighbouring sizes with the same pick share one, with the times of the largest.

    >>> row = {"name": "Ring/LL", "algorithm": "ring", "time_us": 10.0, "predicted_us": 12.0}
    >>> pick_lines(tuple(LibraryPick(size_bytes=2**k, ratio=1 + (k == 11) / 4, **row) for k in (10, 11)))
    ['1K..2K Ring/LL: 1 to 1.25 times the best time; at 2K 10 us, its own estimate 12 us']
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
        lines.append(f"{sizes} {name}: {words}{_times_of(run[-1], alone=len(run) == 1)}")
    return lines


def _times_of(pick: LibraryPick, *, alone: bool) -> str:
    """Simulated and estimated time of a pick."""
    at = "" if alone else f"at {short_size(pick.size_bytes)} "
    times = [] if pick.time_us is None else [time_text(pick.time_us)]
    if pick.predicted_us is not None:
        times.append(f"its own estimate {time_text(pick.predicted_us)}")
    return f"; {at}{', '.join(times)}" if times else ""
